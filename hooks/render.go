package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/spf13/cobra"

	"stoker.io/stoker/agent/ignition/resource"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/effective"
	"stoker.io/stoker/api/v1alpha1/gatewaypod"
	"stoker.io/stoker/api/v1alpha1/syntax"
	"stoker.io/stoker/api/v1alpha1/validation"
	"stoker.io/stoker/hooks/exit"
	"stoker.io/stoker/hooks/offline"
	"stoker.io/stoker/hooks/output"
	"stoker.io/stoker/hooks/specfile"
	"stoker.io/stoker/internal/failure"
)

// offlineTimeout bounds the whole run of render and of diff.
const offlineTimeout = 10 * time.Minute

// renderFlags holds the flags of render. The command diff has only those of addSourceFlags.
type renderFlags struct {
	file, repo, ref, profile, gateway, ignition string
	into, show                                  string
	labels, annotations                         map[string]string
}

func newRenderCommand(c *cli) *cobra.Command {
	command := &cobra.Command{
		Use:   "render -f FILE",
		Short: "Show the files that a gateway would get from a local clone",
		Long: `Show the files that a gateway would get from a local clone, without a cluster.

The command reads the GatewaySync from a file and the commit from the clone, without uncommitted changes. It runs the agent's own
code: what fails here fails on the gateway, with the same reason.`,
		Example: `  # list the files for the gateway line-1
  stoker render -f gatewaysync.yaml --gateway line-1

  # print one file, or write all files to a directory
  stoker render -f gatewaysync.yaml --profile area --show config/resources/core/ignition/system-properties/config.json
  stoker render -f gatewaysync.yaml --ref v2.4.0 --into out`,
		Args: cobra.NoArgs,
	}
	var d renderFlags
	f := command.Flags()
	f.StringVarP(&d.file, "filename", "f", "", "file with the GatewaySync; - is stdin")
	d.addSourceFlags(command)
	f.StringVar(&d.profile, "profile", "", "profile of the gateway (default: the one of --annotation, or default)")
	f.StringVar(&d.gateway, "gateway", "gateway", "name of the gateway and of its pod")
	f.StringToStringVar(&d.labels, "label", nil, "label of the pod, KEY=VALUE (repeatable)")
	f.StringToStringVar(&d.annotations, "annotation", nil, "annotation of the pod, KEY=VALUE (repeatable)")
	f.StringVar(&d.show, "show", "", "print one file, by its path on the gateway, instead of the list")
	f.StringVar(&d.into, "into", "", "write all files to this directory, which must be new or empty")
	format := output.AddFlag(command.Flags())
	command.RunE = func(command *cobra.Command, _ []string) error {
		if d.file == "" {
			return exit.Errorf(exit.Usage, "-f is required: name the file with the GatewaySync")
		}
		ctx, cancel := context.WithTimeout(command.Context(), offlineTimeout)
		defer cancel()
		return withReason(c.renderFiles(ctx, &d, *format))
	}
	return command
}

// addSourceFlags adds the flags that choose the commit and the version of Ignition.
func (d *renderFlags) addSourceFlags(command *cobra.Command) {
	f := command.Flags()
	f.StringVar(&d.repo, "repo", ".", "local clone")
	f.StringVar(&d.ref, "ref", "HEAD", "branch, tag or commit of the clone")
	f.StringVar(&d.ignition, "ignition", "8.3", "version of Ignition, which determines how resources are signed")
}

// withReason adds to an error its reason and the URL of the documentation of the reason, if it has one.
func withReason(err error) error {
	if reason := failure.Reason(err, ""); reason != "" {
		return fmt.Errorf("%s: %w%s", reason, err, troubleshootingLink(reason))
	}
	return err
}

// signatureForm returns the form in which the version of Ignition signs resources.
func (d *renderFlags) signatureForm() (resource.Form, error) {
	var major, minor int
	if n, err := fmt.Sscanf(d.ignition, "%d.%d", &major, &minor); n != 2 {
		return 0, errors.Join(exit.Errorf(exit.Usage, "invalid --ignition %.20q: use a version such as 8.3", d.ignition), err)
	}
	return resource.FormOf(major, minor), nil
}

// templateRef returns the ref that templates see: the one of the flags, or that of the spec for HEAD.
func (d *renderFlags) templateRef(gs *v1alpha1.GatewaySync) string {
	if d.ref == "HEAD" {
		return gs.Spec.Git.Ref
	}
	return d.ref
}

func (c *cli) renderFiles(ctx context.Context, d *renderFlags, format string) (err error) {
	gs, err := specfile.GatewaySync(d.file, c.stdin)
	if err != nil {
		return err
	}
	if errs := validation.GatewaySync(gs); len(errs) > 0 {
		return failure.New(v1alpha1.ReasonProfilesInvalid, "%s: %w", d.file, errs.ToAggregate())
	}
	c.printWarnings(validation.Warnings(gs))
	g, err := d.target(gs)
	if err != nil {
		return err
	}
	repository, err := offline.Open(d.repo)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, repository.Close()) }()
	at, err := repository.Resolve(ctx, d.ref)
	if err != nil {
		return err
	}
	tree, err := repository.Tree(ctx, g, at, d.templateRef(gs))
	if err != nil {
		return err
	}
	if d.show != "" {
		err := tree.CopyFile(c.stdout, d.show)
		if errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("there is no file %s; omit --show to list the files", d.show)
		}
		return err
	}
	changes, err := tree.From(&offline.Tree{})
	if err != nil {
		return err
	}
	sizes, err := tree.Check(changes)
	if err != nil {
		return err
	}
	c.printWarnings(changes.Warnings)
	fmt.Fprintf(c.stderr, "%s for %s, profile %s, at %s\n", output.Count(len(changes.List), "file"), g.Facts.GatewayName,
		offline.ProfileLabel(g.Profile.Profile), at.Commit.Short())
	if d.into != "" {
		return tree.WriteFiles(d.into, changes)
	}
	return fileList(changes, sizes).Print(c.stdout, format)
}

func (c *cli) printWarnings(warnings []string) {
	for _, w := range warnings {
		fmt.Fprintln(c.stderr, "warning: "+output.OneLine(w))
	}
}

// target returns the gateway that the flags describe.
func (d *renderFlags) target(gs *v1alpha1.GatewaySync) (offline.Gateway, error) {
	form, err := d.signatureForm()
	if err != nil {
		return offline.Gateway{}, err
	}
	profile, err := effective.Of(gs, d.profile, d.annotations)
	if err != nil {
		return offline.Gateway{}, err
	}
	namespace := gs.Namespace
	if namespace == "" {
		namespace = "default"
	}
	ordinal, _ := gatewaypod.Ordinal(d.gateway, d.labels)
	return offline.Gateway{Profile: profile, Form: form, Facts: plan.Facts{
		GatewayName: d.gateway, PodName: d.gateway, PodOrdinal: ordinal, Namespace: namespace, CRName: gs.Name, Labels: d.labels,
	}}, nil
}

type renderedFile struct {
	Path       string `json:"path"`
	Source     string `json:"source"`
	Blob       string `json:"blob"`
	Size       int64  `json:"size"`
	Executable bool   `json:"executable,omitempty"`
}

// fileList returns the files of a plan for printing. sizes maps paths to sizes in bytes.
func fileList(changes *plan.Changes, sizes map[string]int64) *output.Result {
	list := []renderedFile{}
	r := &output.Result{Head: []string{"PATH", "BYTES", "BLOB", "SOURCE"}}
	for _, f := range changes.List {
		var source string
		if int(f.Origin) < len(changes.Mappings) {
			source = changes.Mappings[f.Origin].Source
		}
		list = append(list, renderedFile{f.Path, source, f.ID.String(), sizes[f.Path], f.Exec})
		r.Add(f.Path, f.Path, fmt.Sprint(sizes[f.Path]), syntax.ShortCommit(f.ID.String()), source)
	}
	r.Data = list
	return r
}
