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
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/desiredref"
	"stoker.io/stoker/api/v1alpha1/validation"
	"stoker.io/stoker/hooks/exit"
	"stoker.io/stoker/hooks/output"
	"stoker.io/stoker/hooks/preflight"
	"stoker.io/stoker/hooks/specfile"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/kube"
)

// preflightFlags holds the flags of preflight.
type preflightFlags struct {
	c        *cli
	fromSync *applicationFlags

	file, ref, secretsDir, ignition string
	secretFiles, labels             map[string]string
	profiles, gateways              []string
	ifExists                        bool
	timeout                         time.Duration
	output                          *string
}

func newPreflightCommand(c *cli) *cobra.Command {
	command := &cobra.Command{
		Use:   "preflight [NAME]",
		Short: "Check before a sync whether gateways can run its commit",
		Long: `Check before a sync whether gateways can run its commit.

The command runs the agent's own code: it resolves the desired ref, checks that requests may name it, fetches the commit, and plans
it for every profile and every known gateway. It reports all problems and changes nothing.

With --filename the spec comes from a file; the GatewaySync in the cluster, if there is one, adds gateways and requests.
Without NAME the command needs no cluster. While a rollback is in force, the command checks the commit of the rollback;
with --filename it checks the ref of the file.

The credentials for git are files: a Job mounts the Secrets that the spec references, and needs no right to read Secrets.

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
	x := &preflightFlags{c: c}
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
	x.fromSync = c.addApplicationFlags(command)
	x.output = output.AddFlag(command.Flags())
	command.RunE = func(command *cobra.Command, args []string) error { return x.run(command.Context(), args) }
	return command
}

func (x *preflightFlags) run(ctx context.Context, args []string) error {
	name := strings.Join(args, "")
	switch {
	case name == "" && x.file == "":
		return exit.Errorf(exit.Usage, "missing the name of a GatewaySync, or a file with -f FILE")
	case x.fromSync.used() && (name == "" || x.ref != ""):
		return exit.Errorf(exit.Usage, "--application needs the name of a GatewaySync and cannot be used with --ref")
	case x.timeout <= 0:
		return exit.Errorf(exit.Usage, "--timeout must be positive")
	}
	for id := range x.secretFiles {
		if secret, key, ok := strings.Cut(id, "/"); !ok || secret == "" || key == "" || strings.Contains(key, "/") {
			return exit.Errorf(exit.Usage, "invalid --secret %.80q: use NAME/KEY=FILE", id)
		}
	}
	form, err := (&renderFlags{ignition: x.ignition}).signatureForm()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, x.timeout)
	defer cancel()
	in := preflight.Input{Ref: x.ref, Profiles: x.profiles, Secrets: preflight.Mounts{Files: x.secretFiles, Dir: x.secretsDir}, Form: form}
	if err := x.addFlags(&in); err != nil {
		return err
	}
	if name != "" {
		ok, err := x.addCluster(ctx, name, &in)
		if err != nil || !ok {
			return err
		}
	}
	result, err := preflight.Run(ctx, in)
	if err != nil {
		return err
	}
	return x.report(result)
}

// addFlags adds the gateways of the flags and the GatewaySync of the file.
func (x *preflightFlags) addFlags(in *preflight.Input) error {
	for _, g := range x.gateways {
		name, profile, _ := strings.Cut(g, "=")
		if name == "" {
			return exit.Errorf(exit.Usage, "invalid --gateway %.80q: use NAME or NAME=PROFILE", g)
		}
		in.Gateways = append(in.Gateways, preflight.Gateway{Name: name, Profile: profile, Labels: x.labels})
	}
	if x.file == "" {
		return nil
	}
	gs, err := specfile.GatewaySync(x.file, x.c.stdin)
	if err != nil {
		return withReason(err)
	}
	x.c.printWarnings(validation.Warnings(gs))
	if x.ref != "" { // it replaces the ref of the file, for example by the revision that Argo CD passes
		gs.Spec.Git.Ref, in.Ref = x.ref, ""
	}
	in.GatewaySync, in.Unapplied = gs, true
	return nil
}

// addCluster adds the GatewaySync and the gateways of the cluster. It returns false if there is no GatewaySync to check.
func (x *preflightFlags) addCluster(ctx context.Context, name string, in *preflight.Input) (bool, error) {
	p, err := x.c.connect()
	if err != nil {
		return false, err
	}
	manifest := in.GatewaySync
	switch {
	case manifest == nil:
	case manifest.Name != name:
		return false, exit.Errorf(exit.Usage, "%s contains GatewaySync %s, not %s", x.file, manifest.Name, name)
	case manifest.Namespace != "" && manifest.Namespace != p.namespace:
		return false, exit.Errorf(exit.Usage, "%s contains a GatewaySync of namespace %s, not %s: use --namespace %[2]s", x.file, manifest.Namespace, p.namespace)
	}
	gs, err := p.get(ctx, name)
	switch {
	case apierrors.IsNotFound(err) && manifest != nil:
		gs = &v1alpha1.GatewaySync{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: p.namespace}}
	case apierrors.IsNotFound(err) && x.ifExists:
		fmt.Fprintf(x.c.stderr, "%s: nothing was checked: %s\n", name, output.Clean(p.explain(name, err).Error()))
		return false, nil
	case apierrors.IsNotFound(err):
		return false, fmt.Errorf("%w\nIf it does not exist yet, name its manifest with -f FILE, or pass --if-exists", p.explain(name, err))
	case err != nil:
		return false, p.explain(name, err)
	}
	if manifest != nil {
		gs.Spec = manifest.Spec
		annotations := map[string]string{}
		maps.Copy(annotations, gs.Annotations)
		maps.Copy(annotations, manifest.Annotations)
		gs.Annotations = annotations
	}
	in.GatewaySync = gs
	if x.fromSync.used() {
		sync, _, err := x.fromSync.findSync(ctx, p, desiredref.InputsOf(gs))
		if err != nil {
			return false, err
		}
		in.Ref = sync.Commit
	}
	addGateways(ctx, p, in)
	return true, nil
}

// addGateways adds the gateways of the status, with the labels and annotations of their pods if those can be read.
func addGateways(ctx context.Context, p target, in *preflight.Input) {
	gs := in.GatewaySync
	if len(gs.Status.DiscoveredGateways) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	pods := map[string]*corev1.Pod{}
	unread := "its pod does not exist"
	list, err := kube.ListAll[corev1.Pod](ctx, p.Core.CoreV1().Pods(p.namespace).List, metav1.ListOptions{LabelSelector: v1alpha1.LabelCRName + "=" + gs.Name})
	switch {
	case apierrors.IsForbidden(err):
		unread = "pods cannot be listed"
	case err != nil:
		unread = "pods cannot be listed: " + output.OneLine(err.Error())
	}
	for _, pod := range list {
		pods[pod.Name] = pod
	}
	for _, row := range gs.Status.DiscoveredGateways {
		if slices.ContainsFunc(in.Gateways, func(g preflight.Gateway) bool { return g.Name == row.Name }) {
			continue
		}
		g := preflight.Gateway{Name: row.Name, Pod: row.PodName, Profile: row.Profile, UnreadReason: unread}
		if pod := pods[row.PodName]; pod != nil {
			g.Labels, g.Annotations, g.UnreadReason = pod.Labels, pod.Annotations, ""
		}
		in.Gateways = append(in.Gateways, g)
	}
}

// report prints the result. The error lists the problems.
func (x *preflightFlags) report(result preflight.Result) error {
	x.c.printWarnings(result.Warnings)
	r := output.Result{Data: result, Text: func(w io.Writer) {
		if len(result.Problems) == 0 {
			fmt.Fprintln(w, output.Clean(summary(result)))
		}
	}}
	for _, ch := range result.Checked {
		r.Names = append(r.Names, strings.Trim(ch.Profile+"/"+ch.Gateway, "/"))
	}
	if err := r.Print(x.c.stdout, *x.output); err != nil || len(result.Problems) == 0 {
		return err
	}
	return exit.With(preflightExitCode(result.Problems), errors.New(problemText(result.Problems)))
}

// summary returns what was checked without a problem.
func summary(result preflight.Result) string {
	gateways, profiles, files := 0, map[string]bool{}, 0
	for _, ch := range result.Checked {
		if ch.Gateway != "" {
			gateways++
		}
		profiles[ch.Profile] = true
		files = max(files, ch.Files)
	}
	return fmt.Sprintf("%s can run: checked %s and %s with up to %s each", output.RefAt(result.Ref, result.Commit),
		output.Count(len(profiles), "profile"), output.Count(gateways, "gateway"), output.Count(files, "file"))
}

// preflightExitCode returns the exit code for problems.
func preflightExitCode(list []preflight.Problem) int {
	all := func(is func(v1alpha1.Reason) bool) bool {
		return !slices.ContainsFunc(list, func(p preflight.Problem) bool { return !is(p.Reason) })
	}
	switch {
	case all(func(r v1alpha1.Reason) bool { return r == v1alpha1.ReasonRefNotAllowed }):
		return exit.Forbidden
	case all(func(r v1alpha1.Reason) bool { return r.Class() == v1alpha1.ClassRetry }):
		return exit.Timeout
	}
	return exit.Failed
}

// problemText lists the problems, and then the documentation of each reason once.
func problemText(list []preflight.Problem) string {
	var b strings.Builder
	b.WriteString(output.Count(len(list), "problem"))
	var links []string
	for _, p := range list {
		fmt.Fprintf(&b, "\n  %s: %s", p.Reason, output.OneLine(p.Message))
		if len(p.Gateways) > 0 {
			fmt.Fprintf(&b, " (%s)", failure.First(p.Gateways, maxListed))
		}
		if link := troubleshootingLink(p.Reason); !slices.Contains(links, link) {
			links = append(links, link)
		}
	}
	return b.String() + strings.Join(links, "")
}
