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

// flight holds the flags of preflight.
type flight struct {
	*cli
	from *syncing

	file, ref, secrets, ignition string
	files, labels                map[string]string
	profiles, gateways           []string
	ifExists                     bool
	timeout                      time.Duration
	form                         *string
}

func (c *cli) preflight() *cobra.Command {
	command := &cobra.Command{
		Use:   "preflight [NAME]",
		Short: "Find out before a sync whether gateways could run what it asks for",
		Long: `Find out before a sync whether gateways could run what it asks for.

With the agent's own code it asks git for the desired ref, looks whether a request may name it, fetches the commit, and
plans it for every profile and every gateway that is known: sources, templates, patches, JSON. It names every problem that
one run can find, and changes nothing. While a rollback is in force it looks at the commit that was gone back to; where the
spec is that of a file, at the ref that the file names, be it held off.

The spec is that of the GatewaySync, or of a file: then the one in the cluster, if it is there, says which gateways and
which requests there are. Without a name the file is all, and no cluster is needed. The credentials for git are files: a Job
mounts the Secrets that the spec names, and has no right to read others.

It ends with 5 where all that is wrong is that a ref may not be asked for, with 3 where git did not answer and another try
may help, and else with 1.`,
		Example: `  # in the PreSync hook of Argo CD: the manifest that is about to be applied
  stoker preflight line -f /manifest/gatewaysync.yaml

  # what is about to be applied, with the credentials of this machine
  stoker preflight -f gatewaysync.yaml --secret git-credentials/token=token.txt

  # another ref, for gateways that are not there yet
  stoker preflight line --ref v2.4.0 --gateway line-7=area --secret git-credentials/token=token.txt`,
		Args: cobra.MaximumNArgs(1),
	}
	x := &flight{cli: c}
	f := command.Flags()
	f.StringVarP(&x.file, "filename", "f", "", "the file with the spec; - is stdin; left out: that of the GatewaySync")
	f.StringVar(&x.ref, "ref", "", "look at this ref, as if it was asked for; with a file: as if it stood in its spec.git.ref; left out: the desired one")
	f.StringVar(&x.secrets, "secrets", "/secrets", "directory with a directory for each Secret, and in it a file for each key")
	f.StringToStringVar(&x.files, "secret", nil, "the file of one key, NAME/KEY=FILE")
	f.StringSliceVar(&x.profiles, "profile", nil, "look at this profile only (repeatable)")
	f.StringArrayVar(&x.gateways, "gateway", nil, "a gateway that is not there yet: NAME, or NAME=PROFILE (repeatable)")
	f.StringToStringVar(&x.labels, "label", nil, "label of the pods of those gateways, key=value")
	f.StringVar(&x.ignition, "ignition", "8.3", "version of Ignition, whose form signatures of resources have")
	f.BoolVar(&x.ifExists, "if-exists", false, "end with 0 where the GatewaySync is not there yet")
	f.DurationVar(&x.timeout, "timeout", 5*time.Minute, "how long all of it may take")
	x.from = c.syncs(command)
	command.RunE = func(command *cobra.Command, args []string) error { return x.run(command.Context(), args) }
	x.form = outputs(command)
	return command
}

func (x *flight) run(ctx context.Context, args []string) error {
	name := strings.Join(args, "")
	switch {
	case name == "" && x.file == "":
		return outcome(exitUsage, "name a GatewaySync, or a file: -f FILE")
	case x.from.on() && (name == "" || x.ref != ""):
		return outcome(exitUsage, "--application needs the name of a GatewaySync, and goes without --ref")
	case x.timeout <= 0:
		return outcome(exitUsage, "--timeout must be more than nothing")
	}
	for id := range x.files {
		if secret, key, ok := strings.Cut(id, "/"); !ok || secret == "" || key == "" || strings.Contains(key, "/") {
			return outcome(exitUsage, "--secret %.80q: write NAME/KEY=FILE", id)
		}
	}
	sign, err := (&drawing{ignition: x.ignition}).form()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, x.timeout)
	defer cancel()
	asked := preflight.Asked{Ref: x.ref, Profiles: x.profiles, Secrets: preflight.Mounts{Files: x.files, Dir: x.secrets}, Form: sign}
	if err := x.told(&asked); err != nil {
		return err
	}
	if name != "" {
		there, err := x.live(ctx, name, &asked)
		if err != nil || !there {
			return err
		}
	}
	found, err := preflight.Look(ctx, asked)
	if err != nil {
		return err
	}
	return x.say(found)
}

// told adds the gateways of the flags and the GatewaySync of the file to asked.
func (x *flight) told(asked *preflight.Asked) error {
	for _, g := range x.gateways {
		name, profile, _ := strings.Cut(g, "=")
		if name == "" {
			return outcome(exitUsage, "--gateway %.80q: write NAME, or NAME=PROFILE", g)
		}
		asked.Gateways = append(asked.Gateways, preflight.Gateway{Name: name, Profile: profile, Labels: x.labels})
	}
	if x.file == "" {
		return nil
	}
	gs, err := x.decode(x.file)
	if err != nil {
		return told(err)
	}
	x.warn(v1alpha1.Warnings(gs))
	if x.ref != "" { // the ref of the file is replaced, for example by the revision that Argo CD passes
		gs.Spec.Git.Ref, asked.Ref = x.ref, ""
	}
	asked.GatewaySync, asked.Coming = gs, true
	return nil
}

func (x *flight) warn(list []string) {
	for _, w := range list {
		fmt.Fprintln(x.talk, "warning: "+oneLine(w))
	}
}

// live adds what the cluster knows. It returns false if there is nothing to check.
func (x *flight) live(ctx context.Context, name string, asked *preflight.Asked) (bool, error) {
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
		fmt.Fprintf(x.talk, "%s: nothing was looked at: %s\n", name, clean(p.explain(name, err).Error()))
		return false, nil
	case apierrors.IsNotFound(err):
		return false, fmt.Errorf("%w\nBefore it is made, give its manifest with -f FILE, or let it pass with --if-exists", p.explain(name, err))
	case err != nil:
		return false, p.explain(name, err)
	}
	if given != nil {
		if given.Name != name {
			return false, outcome(exitUsage, "%s holds GatewaySync %s and not %s", x.file, given.Name, name)
		}
		gs.Spec = given.Spec
		gs.Annotations = merged(gs.Annotations, given.Annotations)
	}
	asked.GatewaySync = gs
	if x.from.on() {
		found, _, err := x.from.learn(ctx, p, gs)
		if err != nil {
			return false, err
		}
		asked.Ref = found.Commit
	}
	x.gatewaysOf(ctx, p, gs, asked)
	return true, nil
}

// merged returns the annotations after a manifest is applied.
func merged(live, given map[string]string) map[string]string {
	all := maps.Clone(live)
	if all == nil {
		all = map[string]string{}
	}
	maps.Copy(all, given)
	return all
}

// maxPods bounds the list of pods.
const maxPods = 500

// gatewaysOf adds the gateways of the status, with the labels and annotations of their pods if they can be read.
func (x *flight) gatewaysOf(ctx context.Context, p place, gs *v1alpha1.GatewaySync, asked *preflight.Asked) {
	if len(gs.Status.DiscoveredGateways) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	type metadata struct{ labels, annotations map[string]string }
	pods := map[string]metadata{}
	unread := "its pod is not there"
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

// say prints the result. The error lists the problems.
func (x *flight) say(found preflight.Result) error {
	x.warn(found.Warnings)
	r := result{data: found}
	for _, ch := range found.Checked {
		r.names = append(r.names, strings.Trim(ch.Profile+"/"+ch.Gateway, "/"))
	}
	r.table = func(w io.Writer) {
		if len(found.Problems) == 0 {
			fmt.Fprintln(w, clean(passed(found)))
		}
	}
	if err := x.print(*x.form, r); err != nil {
		return err
	}
	if len(found.Problems) == 0 {
		return nil
	}
	return &outcomeError{seriousness(found.Problems), errors.New(problems(found.Problems))}
}

func passed(found preflight.Result) string {
	gateways, profiles, files := 0, map[string]bool{}, 0
	for _, ch := range found.Checked {
		if ch.Gateway != "" {
			gateways++
		}
		profiles[ch.Profile] = true
		files = max(files, ch.Files)
	}
	return fmt.Sprintf("%s can be run: looked at for %s and %s, up to %s each", at(found.Ref, found.Commit),
		counted(len(profiles), "profile"), counted(gateways, "gateway"), counted(files, "file"))
}

// seriousness returns the exit code for problems.
func seriousness(list []preflight.Problem) int {
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

// problems lists the problems, followed by the documentation of each reason.
func problems(list []preflight.Problem) string {
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
			shown := p.Gateways[:min(n, maxOthers)]
			fmt.Fprintf(&b, " (%s", strings.Join(shown, ", "))
			if n > len(shown) {
				fmt.Fprintf(&b, " and %d more", n-len(shown))
			}
			b.WriteString(")")
		}
		if anchor := help(p.Reason); anchor != "" && !slices.Contains(read, anchor) {
			read = append(read, anchor)
		}
	}
	b.WriteString(strings.Join(read, ""))
	return b.String()
}
