package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/hooks/preflight"
)

// preflightFlags holds the flags of preflight.
type preflightFlags struct {
	*cli
	application *applicationFlags

	file, ref, secretsDir, ignition string
	secretFiles, labels             map[string]string
	profiles, gateways              []string
	ifExists                        bool
	timeout                         time.Duration
	output                          *string
}

func (c *cli) preflight() *cobra.Command {
	command := &cobra.Command{
		Use:   "preflight [NAME]",
		Short: "Check before a sync whether gateways can run its commit",
		Long: `Check before a sync whether gateways can run its commit.

The command runs the agent's own code: it resolves the desired ref in git, checks that requests may name the ref, fetches
the commit, and plans it for every profile and every known gateway, including sources, templates, patches and JSON. It
reports all problems of a run and changes nothing.

With --filename the spec comes from a file; the GatewaySync in the cluster, if there is one, adds gateways and requests.
Without NAME the command needs no cluster. While a rollback is in force, the command checks the commit of the rollback;
with --filename it checks the ref of the file, even if the rollback holds it back.

The credentials for git are files. A Job mounts the Secrets that the spec references, so it needs no right to read Secrets.

The exit code is 5 if the only problem is that requests may not name the ref, 3 if git did not answer and a retry may
help, and 1 for all other problems.`,
		Example: `  # in the PreSync hook of Argo CD: check the manifest that is about to be applied
  stoker preflight line -f /manifest/gatewaysync.yaml

  # check a manifest with local credentials
  stoker preflight -f gatewaysync.yaml --secret git-credentials/token=token.txt

  # check another ref for a gateway that does not exist yet
  stoker preflight line --ref v2.4.0 --gateway line-7=area --secret git-credentials/token=token.txt`,
		Args: cobra.MaximumNArgs(1),
	}
	x := &preflightFlags{cli: c}
	f := command.Flags()
	f.StringVarP(&x.file, "filename", "f", "", "file with the spec; - is stdin (default: the spec of the GatewaySync)")
	f.StringVar(&x.ref, "ref", "", "check this ref as if it were requested; with --filename, as its spec.git.ref (default: the desired ref)")
	f.StringVar(&x.secretsDir, "secrets", "/secrets", "directory of mounted Secrets: a directory for each Secret, with a file for each key")
	f.StringToStringVar(&x.secretFiles, "secret", nil, "file with one key of a Secret, NAME/KEY=FILE (repeatable)")
	f.StringSliceVar(&x.profiles, "profile", nil, "check this profile only (repeatable)")
	f.StringArrayVar(&x.gateways, "gateway", nil, "gateway that does not exist yet: NAME, or NAME=PROFILE (repeatable)")
	f.StringToStringVar(&x.labels, "label", nil, "label of the pods of these gateways, KEY=VALUE (repeatable)")
	f.StringVar(&x.ignition, "ignition", "8.3", "version of Ignition, which determines how resources are signed")
	f.BoolVar(&x.ifExists, "if-exists", false, "exit with 0 if the GatewaySync does not exist yet")
	f.DurationVar(&x.timeout, "timeout", 5*time.Minute, "maximum duration of the whole run")
	x.application = c.addApplicationFlags(command)
	command.RunE = func(command *cobra.Command, args []string) error { return x.run(command.Context(), args) }
	x.output = addOutputFlag(command)
	return command
}

func (x *preflightFlags) run(ctx context.Context, args []string) error {
	name := strings.Join(args, "")
	switch {
	case name == "" && x.file == "":
		return exitErrorf(exitUsage, "missing the name of a GatewaySync, or a file with -f FILE")
	case x.application.used() && (name == "" || x.ref != ""):
		return exitErrorf(exitUsage, "--application needs the name of a GatewaySync and excludes --ref")
	case x.timeout <= 0:
		return exitErrorf(exitUsage, "--timeout must be positive")
	}
	for id := range x.secretFiles {
		if secret, key, ok := strings.Cut(id, "/"); !ok || secret == "" || key == "" || strings.Contains(key, "/") {
			return exitErrorf(exitUsage, "invalid --secret %.80q: use NAME/KEY=FILE", id)
		}
	}
	sign, err := (&renderFlags{ignition: x.ignition}).signatureForm()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, x.timeout)
	defer cancel()
	asked := preflight.Asked{Ref: x.ref, Profiles: x.profiles, Secrets: preflight.Mounts{Files: x.secretFiles, Dir: x.secretsDir}, Form: sign}
	if err := x.addFlags(&asked); err != nil {
		return err
	}
	if name != "" {
		there, err := x.addCluster(ctx, name, &asked)
		if err != nil || !there {
			return err
		}
	}
	found, err := preflight.Look(ctx, asked)
	if err != nil {
		return err
	}
	return x.report(found)
}

// addFlags adds the gateways of the flags and the GatewaySync of the file to asked.
func (x *preflightFlags) addFlags(asked *preflight.Asked) error {
	for _, g := range x.gateways {
		name, profile, _ := strings.Cut(g, "=")
		if name == "" {
			return exitErrorf(exitUsage, "invalid --gateway %.80q: use NAME or NAME=PROFILE", g)
		}
		asked.Gateways = append(asked.Gateways, preflight.Gateway{Name: name, Profile: profile, Labels: x.labels})
	}
	if x.file == "" {
		return nil
	}
	gs, err := x.decodeGatewaySync(x.file)
	if err != nil {
		return withReason(err)
	}
	x.warn(v1alpha1.Warnings(gs))
	if x.ref != "" { // the ref of the file is replaced, for example by the revision that Argo CD passes
		gs.Spec.Git.Ref, asked.Ref = x.ref, ""
	}
	asked.GatewaySync, asked.Coming = gs, true
	return nil
}

func (x *preflightFlags) warn(list []string) {
	for _, w := range list {
		fmt.Fprintln(x.stderr, "warning: "+oneLine(w))
	}
}

// addCluster adds the GatewaySync and the gateways of the cluster. It returns false if there is nothing to check.
func (x *preflightFlags) addCluster(ctx context.Context, name string, asked *preflight.Asked) (bool, error) {
	p, err := x.connect()
	if err != nil {
		return false, err
	}
	gs, err := p.get(ctx, name)
	given := asked.GatewaySync
	switch {
	case apierrors.IsNotFound(err) && given != nil:
		gs = &v1alpha1.GatewaySync{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: p.namespace}}
	case apierrors.IsNotFound(err) && x.ifExists:
		fmt.Fprintf(x.stderr, "%s: nothing was checked: %s\n", name, clean(p.explain(name, err).Error()))
		return false, nil
	case apierrors.IsNotFound(err):
		return false, fmt.Errorf("%w\nIf it does not exist yet, name its manifest with -f FILE, or pass --if-exists", p.explain(name, err))
	case err != nil:
		return false, p.explain(name, err)
	}
	if given != nil {
		if given.Name != name {
			return false, exitErrorf(exitUsage, "%s contains GatewaySync %s, not %s", x.file, given.Name, name)
		}
		gs.Spec = given.Spec
		gs.Annotations = mergedAnnotations(gs.Annotations, given.Annotations)
	}
	asked.GatewaySync = gs
	if x.application.used() {
		found, _, err := x.application.findSync(ctx, p, gs.Requests())
		if err != nil {
			return false, err
		}
		asked.Ref = found.Commit
	}
	x.addGateways(ctx, p, gs, asked)
	return true, nil
}

// mergedAnnotations returns the annotations after a manifest is applied.
func mergedAnnotations(live, given map[string]string) map[string]string {
	all := maps.Clone(live)
	if all == nil {
		all = map[string]string{}
	}
	maps.Copy(all, given)
	return all
}

// maxPods bounds the list of pods.
const maxPods = 500

// addGateways adds the gateways of the status, with the labels and annotations of their pods if they can be read.
func (x *preflightFlags) addGateways(ctx context.Context, p target, gs *v1alpha1.GatewaySync, asked *preflight.Asked) {
	if len(gs.Status.DiscoveredGateways) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	type metadata struct{ labels, annotations map[string]string }
	pods := map[string]metadata{}
	unread := "its pod does not exist"
	list, err := p.Core.CoreV1().Pods(p.namespace).List(ctx, metav1.ListOptions{LabelSelector: v1alpha1.LabelCRName + "=" + gs.Name, Limit: maxPods})
	if err != nil {
		unread = "pods cannot be listed"
		if !apierrors.IsForbidden(err) {
			unread += ": " + oneLine(err.Error())
		}
	} else {
		for i := range list.Items {
			pods[list.Items[i].Name] = metadata{list.Items[i].Labels, list.Items[i].Annotations}
		}
	}
	for _, row := range gs.Status.DiscoveredGateways {
		if slices.ContainsFunc(asked.Gateways, func(g preflight.Gateway) bool { return g.Name == row.Name }) {
			continue
		}
		g := preflight.Gateway{Name: row.Name, Pod: row.PodName, Profile: row.Profile, Unread: unread}
		if pod, there := pods[row.PodName]; there {
			g.Labels, g.Annotations, g.Unread = pod.labels, pod.annotations, ""
		}
		asked.Gateways = append(asked.Gateways, g)
	}
}

// report prints the result. The error lists the problems.
func (x *preflightFlags) report(found preflight.Result) error {
	x.warn(found.Warnings)
	r := result{data: found}
	for _, ch := range found.Checked {
		r.names = append(r.names, strings.Trim(ch.Profile+"/"+ch.Gateway, "/"))
	}
	r.table = func(w io.Writer) {
		if len(found.Problems) == 0 {
			fmt.Fprintln(w, clean(summary(found)))
		}
	}
	if err := x.print(*x.output, r); err != nil {
		return err
	}
	if len(found.Problems) == 0 {
		return nil
	}
	return &exitError{preflightExitCode(found.Problems), errors.New(problemText(found.Problems))}
}

func summary(found preflight.Result) string {
	gateways, profiles, files := 0, map[string]bool{}, 0
	for _, ch := range found.Checked {
		if ch.Gateway != "" {
			gateways++
		}
		profiles[ch.Profile] = true
		files = max(files, ch.Files)
	}
	return fmt.Sprintf("%s can run: checked %s and %s with up to %s each", at(found.Ref, found.Commit),
		counted(len(profiles), "profile"), counted(gateways, "gateway"), counted(files, "file"))
}

// preflightExitCode returns the exit code for problems.
func preflightExitCode(list []preflight.Problem) int {
	all := func(is func(v1alpha1.Reason) bool) bool {
		return !slices.ContainsFunc(list, func(p preflight.Problem) bool { return !is(p.Reason) })
	}
	switch {
	case all(func(r v1alpha1.Reason) bool { return r == v1alpha1.ReasonRefNotAllowed }):
		return exitForbidden
	case all(func(r v1alpha1.Reason) bool { return r.Class() == v1alpha1.ClassRetry }):
		return exitTimeout
	}
	return exitFailed
}

// problemText lists the problems, followed by the documentation of each reason.
func problemText(list []preflight.Problem) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d problems", len(list))
	if len(list) == 1 {
		b.Reset()
		b.WriteString("1 problem")
	}
	var read []string
	for _, p := range list {
		fmt.Fprintf(&b, "\n  %s: %s", p.Reason, oneLine(p.Message))
		if n := len(p.Gateways); n > 0 {
			shown := p.Gateways[:min(n, maxListed)]
			fmt.Fprintf(&b, " (%s", strings.Join(shown, ", "))
			if n > len(shown) {
				fmt.Fprintf(&b, " and %d more", n-len(shown))
			}
			b.WriteString(")")
		}
		if anchor := troubleshootingLink(p.Reason); anchor != "" && !slices.Contains(read, anchor) {
			read = append(read, anchor)
		}
	}
	b.WriteString(strings.Join(read, ""))
	return b.String()
}
