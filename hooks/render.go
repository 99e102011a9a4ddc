package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"stoker.io/stoker/agent/ignition/resource"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/hooks/offline"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/file"
	"stoker.io/stoker/internal/request"
)

const (
	// maxManifest is the largest file with a GatewaySync; an object in Kubernetes has at most 1.5 MiB.
	maxManifest = 1536 << 10
	// offlineTimeout is the time limit for work on a local repository.
	offlineTimeout = 10 * time.Minute
)

// renderFlags holds the flags of render. The command diff shares those that choose the commit.
type renderFlags struct {
	file, repo, ref, profile, gateway, ignition string
	into, show                                  string
	labels, annotations                         map[string]string
}

func (c *cli) render() *cobra.Command {
	command := &cobra.Command{
		Use:   "render -f FILE",
		Short: "Show the files that a gateway would get from a local clone",
		Long: `Show the files that a gateway would get from a local clone, without a cluster.

The command reads the GatewaySync from a file and the commit from the clone; it ignores uncommitted changes. Mappings,
templates, patches, excludes and checks run the agent's own code: what fails here fails on the gateway, with the same reason.`,
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
	var form *string
	command.RunE = func(command *cobra.Command, _ []string) error {
		if d.file == "" {
			return exitErrorf(exitUsage, "-f is required: name the file with the GatewaySync")
		}
		ctx, cancel := context.WithTimeout(command.Context(), offlineTimeout)
		defer cancel()
		return withReason(c.renderFiles(ctx, &d, *form))
	}
	form = addOutputFlag(command)
	return command
}

// addSourceFlags adds the flags that choose the commit.
func (d *renderFlags) addSourceFlags(command *cobra.Command) {
	f := command.Flags()
	f.StringVar(&d.repo, "repo", ".", "local clone")
	f.StringVar(&d.ref, "ref", "HEAD", "branch, tag or commit of the clone")
	f.StringVar(&d.ignition, "ignition", "8.3", "version of Ignition, which determines how resources are signed")
}

// withReason adds the reason of a failure and the address of its documentation.
func withReason(err error) error {
	if reason := failure.Reason(err, ""); reason != "" {
		return fmt.Errorf("%s: %w%s", reason, err, troubleshootingLink(reason))
	}
	return err
}

// signatureForm returns the form of signatures for the version of Ignition.
func (d *renderFlags) signatureForm() (resource.Form, error) {
	var major, minor int
	if n, err := fmt.Sscanf(d.ignition, "%d.%d", &major, &minor); n != 2 {
		return 0, errors.Join(exitErrorf(exitUsage, "invalid --ignition %.20q: use a version such as 8.3", d.ignition), err)
	}
	return resource.FormOf(major, minor), nil
}

// templateRef returns the ref that templates see: the requested one, or that of the spec for HEAD.
func (d *renderFlags) templateRef(gs *v1alpha1.GatewaySync) string {
	if d.ref == "HEAD" {
		return gs.Spec.Git.Ref
	}
	return d.ref
}

func (c *cli) renderFiles(ctx context.Context, d *renderFlags, form string) (err error) {
	gs, err := c.readGatewaySync(d.file)
	if err != nil {
		return err
	}
	g, err := d.target(gs)
	if err != nil {
		return err
	}
	from, err := offline.Open(d.repo)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, from.Close()) }()
	at, err := from.Resolve(ctx, d.ref)
	if err != nil {
		return err
	}
	tree, err := from.Tree(ctx, g, at, d.templateRef(gs))
	if err != nil {
		return err
	}
	if d.show != "" {
		there, err := tree.Write(c.stdout, d.show)
		if err == nil && !there {
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
	for _, w := range changes.Warnings {
		fmt.Fprintln(c.stderr, "warning: "+oneLine(w))
	}
	fmt.Fprintf(c.stderr, "%s for %s, profile %s, at %s\n", counted(len(changes.List), "file"), g.Facts.GatewayName, profileLabel(g.Profile.Profile), at.Commit.Short())
	if d.into != "" {
		return writeFiles(d.into, tree, changes)
	}
	return c.print(form, fileResult(changes, sizes))
}

func profileLabel(profile string) string {
	if profile == "" {
		return "none (service path)"
	}
	return profile
}

// readGatewaySync reads and validates a GatewaySync from a file, and prints its warnings.
func (c *cli) readGatewaySync(name string) (*v1alpha1.GatewaySync, error) {
	gs, err := c.decodeGatewaySync(name)
	if err != nil {
		return nil, err
	}
	if errs := v1alpha1.Validate(gs); len(errs) > 0 {
		return nil, failure.New(v1alpha1.ReasonProfilesInvalid, "%s: %w", name, errs.ToAggregate())
	}
	for _, w := range v1alpha1.Warnings(gs) {
		fmt.Fprintln(c.stderr, "warning: "+oneLine(w))
	}
	return gs, nil
}

// decodeGatewaySync reads a GatewaySync from a file, or from stdin if name is "-". It does not validate.
func (c *cli) decodeGatewaySync(name string) (*v1alpha1.GatewaySync, error) {
	var raw []byte
	var err error
	if name == "-" {
		if raw, err = io.ReadAll(io.LimitReader(c.stdin, maxManifest+1)); err == nil && len(raw) > maxManifest {
			err = fmt.Errorf("stdin has more than %d bytes", maxManifest)
		}
	} else {
		raw, err = file.Read(name, maxManifest)
	}
	if err != nil {
		return nil, err
	}
	gs, err := v1alpha1.Decode(raw)
	if err != nil {
		return nil, failure.New(v1alpha1.ReasonProfilesInvalid, "%s: %w", name, err)
	}
	if gs.Name == "" {
		gs.Name = strings.TrimSuffix(filepath.Base(name), filepath.Ext(name))
	}
	return gs, nil
}

// target returns the gateway that the flags describe.
func (d *renderFlags) target(gs *v1alpha1.GatewaySync) (offline.Gateway, error) {
	form, err := d.signatureForm()
	if err != nil {
		return offline.Gateway{}, err
	}
	profile, err := gs.Effective(d.profile, d.annotations)
	if err != nil {
		return offline.Gateway{}, err
	}
	namespace := gs.Namespace
	if namespace == "" {
		namespace = "default"
	}
	ordinal, _ := v1alpha1.PodOrdinal(d.gateway, d.labels)
	return offline.Gateway{Profile: profile, Form: form, Facts: plan.Facts{
		GatewayName: d.gateway, PodName: d.gateway, PodOrdinal: ordinal, Namespace: namespace, CRName: gs.Name, Labels: d.labels,
	}}, nil
}

// renderedFile is a file in JSON output.
type renderedFile struct {
	Path       string `json:"path"`
	Source     string `json:"source"`
	Blob       string `json:"blob"`
	Size       int64  `json:"size"`
	Executable bool   `json:"executable,omitempty"`
}

func fileResult(changes *plan.Changes, sizes map[string]int64) result {
	list := []renderedFile{}
	r := result{}
	var lines [][]string
	for _, f := range changes.List {
		var source string
		if int(f.Origin) < len(changes.Mappings) {
			source = changes.Mappings[f.Origin].Source
		}
		list = append(list, renderedFile{f.Path, source, f.ID.String(), sizes[f.Path], f.Exec})
		lines = append(lines, []string{f.Path, fmt.Sprint(sizes[f.Path]), request.Short(f.ID.String()), source})
		r.names = append(r.names, f.Path)
	}
	r.data = list
	r.table = func(w io.Writer) { rows(w, []string{"PATH", "BYTES", "BLOB", "SOURCE"}, lines) }
	return r
}

// writeFiles writes all files to a directory that is new or empty.
func writeFiles(dir string, tree *offline.Tree, changes *plan.Changes) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }() // only a directory handle
	there, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	if len(there) > 0 {
		return fmt.Errorf("%s is not empty: use a new directory", dir)
	}
	for _, f := range changes.List {
		if err := writeFile(root, tree, f); err != nil {
			return err
		}
	}
	return nil
}

func writeFile(root *os.Root, tree *offline.Tree, f plan.Change) error {
	if err := root.MkdirAll(path.Dir(f.Path), 0o755); err != nil {
		return err
	}
	mode := os.FileMode(0o644)
	if f.Exec {
		mode = 0o755
	}
	out, err := root.OpenFile(f.Path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	if _, err := tree.Write(out, f.Path); err != nil {
		return errors.Join(err, out.Close())
	}
	return out.Close()
}
