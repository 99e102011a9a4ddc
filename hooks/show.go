package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/internal/request"
)

// resourceName returns the name of an object in the form of kubectl.
func resourceName(o v1alpha1.Requestable) string {
	kind := v1alpha1.Kind
	if _, ok := o.(*v1alpha1.ConfigSync); ok {
		kind = v1alpha1.KindConfigSync
	}
	return strings.ToLower(kind) + "." + v1alpha1.GroupVersion.Group + "/" + o.GetName()
}

// bareObject returns a copy without managed fields, with kind and version set.
func bareObject(o v1alpha1.Requestable) v1alpha1.Requestable {
	switch o := o.(type) {
	case *v1alpha1.GatewaySync:
		o = o.DeepCopy()
		o.ManagedFields, o.APIVersion, o.Kind = nil, v1alpha1.GroupVersion.String(), v1alpha1.Kind
		return o
	case *v1alpha1.ConfigSync:
		o = o.DeepCopy()
		o.ManagedFields, o.APIVersion, o.Kind = nil, v1alpha1.GroupVersion.String(), v1alpha1.KindConfigSync
		return o
	}
	return o
}

func (c *cli) get() *cobra.Command {
	command := &cobra.Command{
		Use:   "get [NAME]",
		Short: "List GatewaySyncs with their refs and gateways",
		Example: `  stoker get
  stoker get -A
  stoker get line -o yaml`,
		Args: cobra.MaximumNArgs(1),
	}
	all := command.Flags().BoolP("all-namespaces", "A", false, "list the GatewaySyncs of all namespaces")
	var form *string
	command.RunE = func(command *cobra.Command, args []string) error {
		if *all && len(args) > 0 {
			return exitErrorf(exitUsage, "NAME and --all-namespaces exclude each other")
		}
		p, err := c.connect()
		if err != nil {
			return err
		}
		if len(args) > 0 {
			gs, err := p.load(command.Context(), args[0])
			if err != nil {
				return err
			}
			return c.print(*form, listResult([]*v1alpha1.GatewaySync{gs}, c.leads(command.Context(), p), false, bareObject(gs)))
		}
		if *all {
			p.namespace = ""
		}
		list, err := c.list(command.Context(), p)
		if err != nil {
			return err
		}
		if len(list) == 0 && *form == asTable {
			where := "namespace " + p.namespace
			if *all {
				where = "any namespace"
			}
			fmt.Fprintf(c.stderr, "No GatewaySync in %s.\n", where)
			return nil
		}
		items := make([]any, len(list))
		for i, gs := range list {
			items[i] = bareObject(gs)
		}
		return c.print(*form, listResult(list, c.leads(command.Context(), p), *all, map[string]any{"apiVersion": "v1", "kind": "List", "items": items}))
	}
	form = addOutputFlag(command)
	return command
}

// list returns all GatewaySyncs of a namespace and prints an error for each that cannot be decoded.
func (c *cli) list(ctx context.Context, p target) ([]*v1alpha1.GatewaySync, error) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	list, undecodable, err := kube.GatewaySyncs(p.Dynamic, p.namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, p.explain("", err)
	}
	for _, u := range undecodable {
		fmt.Fprintln(c.stderr, clean(u.Error()))
	}
	return list, nil
}

// leads holds the SyncTargets of a namespace, whose locks show which GatewaySyncs have a lead.
type leads struct {
	now     time.Time
	read    bool
	targets map[types.NamespacedName]*v1alpha1.SyncTarget
}

func (c *cli) leads(ctx context.Context, p target) leads {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	list, undecodable, err := kube.SyncTargets(p.Dynamic, p.namespace).List(ctx, metav1.ListOptions{})
	l := leads{p.Now(), err == nil, map[types.NamespacedName]*v1alpha1.SyncTarget{}}
	if err != nil {
		fmt.Fprintln(c.stderr, clean(fmt.Sprintf("SyncTargets cannot be read, so it takes up to %s to notice that no agent leads any more: %v", v1alpha1.ConfirmedFor, err)))
	}
	for _, t := range list {
		l.targets[types.NamespacedName{Namespace: t.Namespace, Name: t.Name}] = t
	}
	for _, u := range undecodable { // of another version: the age of the status decides
		l.targets[types.NamespacedName{Namespace: u.Namespace, Name: u.Name}] = nil
	}
	return l
}

// of returns the SyncTarget of gs: an empty one if there is none, nil if it is unknown.
func (l leads) of(gs *v1alpha1.GatewaySync) *v1alpha1.SyncTarget {
	t, ok := l.targets[types.NamespacedName{Namespace: gs.Namespace, Name: gs.Name}]
	if l.read && !ok {
		return &v1alpha1.SyncTarget{}
	}
	return t
}

func listResult(list []*v1alpha1.GatewaySync, seen leads, namespaces bool, data any) result {
	r := result{data: data}
	head := []string{"NAME", "REF", "COMMIT", "GATEWAYS", "READY", "CONFIRMED", "AGE", "STATUS"}
	if namespaces {
		head = append([]string{"NAMESPACE"}, head...)
	}
	var lines [][]string
	for _, gs := range list {
		ready, message := "Unknown", "neither an agent nor the injector has read this GatewaySync yet"
		if c := meta.FindStatusCondition(gs.Status.Conditions, v1alpha1.ConditionReady); c != nil {
			ready, message = string(c.Status), c.Message
		}
		gateways := gs.Status.GatewaysReady
		if since, left := request.Left(gs, seen.of(gs), seen.now); left && ready == string(metav1.ConditionTrue) {
			_, all, _ := strings.Cut(gateways, "/")
			ready, message, gateways = string(metav1.ConditionUnknown), request.Unconfirmed(since), "0/"+all
		}
		confirmed := ""
		if at := gs.Status.ConfirmedAt; at != nil {
			confirmed = age(at.Time)
		}
		v := request.Read(gs, "", seen.of(gs), seen.now)
		ref, commit := v.Ref, v.Commit
		if t := gs.Status.Target; commit == "" && t != nil && t.Ref == ref {
			commit = t.Commit
		}
		if v1alpha1.IsCommit(ref) {
			ref = request.Short(ref)
		}
		line := []string{gs.Name, ref, request.Short(commit), gateways, ready, confirmed, age(gs.CreationTimestamp.Time), cut(message)}
		if namespaces {
			line = append([]string{gs.Namespace}, line...)
		}
		lines = append(lines, line)
		r.names = append(r.names, resourceName(gs))
	}
	r.table = func(w io.Writer) { rows(w, head, lines) }
	return r
}

func (c *cli) status() *cobra.Command {
	command := &cobra.Command{
		Use:   "status NAME",
		Short: "Show the state of each gateway",
		Long: `Show the state of each gateway.

As JSON or YAML, the output is the result that wait returns: phase, ref, commit, numbers of gateways, and unfinished gateways.

With --watch, the command shows the table until you stop it with Ctrl-C, gateways that are behind first. If its output is not a
terminal, it prints a line for each change instead. Set NO_COLOR for a table without colors.`,
		Example: `  stoker status line
  stoker status line --watch
  stoker status line -o json`,
		Args: cobra.ExactArgs(1),
	}
	watch := command.Flags().BoolP("watch", "w", false, "show changes until the command is stopped")
	var form *string
	command.RunE = func(command *cobra.Command, args []string) error {
		if *watch && *form != asTable {
			return exitErrorf(exitUsage, "--watch shows a table: leave out --output")
		}
		p, err := c.connect()
		if err != nil {
			return err
		}
		if *watch {
			return c.watchStatus(command.Context(), p, args[0])
		}
		gs, err := p.load(command.Context(), args[0])
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(command.Context(), pollTimeout)
		defer cancel()
		v, err := request.Look(ctx, p.Clients, gs, "")
		if err != nil {
			fmt.Fprintln(c.stderr, clean(err.Error()))
		}
		return c.print(*form, result{data: v, names: []string{resourceName(gs)}, table: func(w io.Writer) { describe(w, gs, v) }})
	}
	form = addOutputFlag(command)
	return command
}

// describe prints a GatewaySync and its verdict.
func describe(w io.Writer, gs *v1alpha1.GatewaySync, v request.Verdict) {
	line := func(what, value string) {
		if value != "" {
			fmt.Fprintf(w, "%-12s %s\n", what+":", oneLine(value))
		}
	}
	line("Name", gs.Namespace+"/"+gs.Name)
	line("Repository", gs.Spec.Git.Repo)
	line("Ref", at(v.Ref, v.Commit)+refOrigin(gs, v.Ref))
	line("Gateways", fmt.Sprintf("%d of %d run it", v.Gateways.Synced, v.Gateways.Total))
	if gs.Paused() {
		line("Paused", "yes")
	}
	line("Phase", string(v.Phase))
	line("Rollout", rolloutLine(gs))
	if c := meta.FindStatusCondition(gs.Status.Conditions, v1alpha1.ConditionReady); c != nil && v.Reason == v1alpha1.ReasonAgentsAway && c.Status == metav1.ConditionTrue {
		line("Ready", fmt.Sprintf("Unknown, %s: %s", v.Reason, v.Message))
	} else if c != nil {
		line("Ready", fmt.Sprintf("%s, %s: %s", c.Status, c.Reason, c.Message))
	} else {
		line("Ready", "Unknown: neither an agent nor the injector has read this GatewaySync yet")
	}
	if v.Phase == request.Failed && v.Message != "" {
		line("Failed", v.Message)
	}
	if g := gs.Status.LastGood; g != nil {
		line("Last good", at(g.Ref, g.Commit)+", "+age(g.At.Time)+" ago")
	}
	if c := meta.FindStatusCondition(gs.Status.Conditions, v1alpha1.ConditionBidirectionalReady); c != nil && c.Status == metav1.ConditionTrue {
		line("Proposals", c.Message)
	} else if c != nil {
		line("Proposals", c.Reason+": "+c.Message)
	}
	if len(gs.Status.DiscoveredGateways) == 0 {
		return
	}
	fmt.Fprintln(w)
	var lines [][]string
	for _, g := range gs.Status.DiscoveredGateways {
		drift := ""
		if g.Drift > 0 {
			drift = fmt.Sprint(g.Drift)
		}
		reason := string(g.Reason)
		if reason == string(g.SyncStatus) {
			reason = ""
		}
		lines = append(lines, []string{g.Name, string(g.SyncStatus), reason, request.Short(g.SyncedCommit), g.Profile, drift, g.PodName, cut(g.Message)})
	}
	rows(w, []string{"GATEWAY", "STATUS", "REASON", "COMMIT", "PROFILE", "DRIFT", "POD", "MESSAGE"}, lines)
	notes(w, gs.Status.DiscoveredGateways)
}

// notes prints the notes of the gateways about their last syncs.
func notes(w io.Writer, gateways []v1alpha1.DiscoveredGateway) {
	var lines [][]string
	for _, g := range gateways {
		for _, note := range g.Notes {
			lines = append(lines, []string{g.Name, oneLine(note)})
		}
	}
	if len(lines) > 0 {
		fmt.Fprintln(w)
		rows(w, []string{"GATEWAY", "NOTE"}, lines)
	}
}

// rolloutLine returns how far the rollout of gs is, in one line; "" if all gateways change at once.
func rolloutLine(gs *v1alpha1.GatewaySync) string {
	r := gs.Status.Rollout
	if r == nil {
		return ""
	}
	s := fmt.Sprintf("%s, step %d of %d", r.Phase, r.Step, r.Steps)
	if r.Stage != "" {
		s += ", stage " + r.Stage
	}
	if r.Since != nil {
		s += ", for " + age(r.Since.Time)
	}
	if r.Message != "" {
		s += ": " + r.Message
	}
	if r.Phase == v1alpha1.RolloutWaiting {
		s += "; to approve: stoker approve " + gs.Name
	}
	return s
}

// refOrigin returns who requested the ref, or "" if it comes from the spec.
func refOrigin(gs *v1alpha1.GatewaySync, ref string) string {
	from, commit := request.Origin(gs, ref), gs.RequestedCommit()
	if from == "spec.git.ref" {
		return ""
	}
	s := " (" + from
	if commit != "" {
		s += ", at " + request.Short(commit) + " only"
	}
	if ref != gs.Spec.Git.Ref {
		s += "; spec.git.ref is " + gs.Spec.Git.Ref
	}
	if unless := gs.RequestedUnless(); unless != "" {
		s += fmt.Sprintf(", until it moves on from %s", request.Short(unless))
	}
	return s + ")"
}

func (c *cli) history() *cobra.Command {
	command := &cobra.Command{
		Use:   "history NAME",
		Short: "List the last commits that ran on every gateway, newest first",
		Long: `List the last commits that ran on every gateway, newest first.

With --gateway, list the last ten syncs that changed one gateway or failed, as its SyncReport has them.

With --audit, list what the syncs of the gateways changed, and on whose request: the audit records on their data volumes. With --diff, list
the files that one of the last ten syncs of a gateway changed; the audit record names it in the field diff. For both, the command asks each
agent through the API server, so it needs the right to get pods and pods/proxy. Use -o json for all fields.`,
		Example: `  stoker history line
  stoker rollback line --to 8a9ef4f

  # the last syncs of the gateway line-1
  stoker history line --gateway line-1

  # who requested them
  stoker history line --audit --gateway line-1`,
		Args: cobra.ExactArgs(1),
	}
	var form *string
	audit := command.Flags().Bool("audit", false, "list the audit records of the gateways")
	gateway := command.Flags().String("gateway", "", "name of one gateway; with --audit the default is all gateways")
	diff := command.Flags().String("diff", "", "list the files that the sync with this `id` changed; requires --gateway")
	command.RunE = func(command *cobra.Command, args []string) error {
		if *diff != "" {
			if *audit || *gateway == "" {
				return exitErrorf(exitUsage, "--diff requires --gateway and excludes --audit")
			}
			return c.listDiff(command.Context(), args[0], *gateway, *diff, *form)
		}
		if *audit {
			return c.listAudit(command.Context(), args[0], *gateway, *form)
		}
		if *gateway != "" {
			return c.listSyncs(command.Context(), args[0], *gateway, *form)
		}
		p, err := c.connect()
		if err != nil {
			return err
		}
		gs, err := p.load(command.Context(), args[0])
		if err != nil {
			return err
		}
		list := slices.Clone(gs.Status.History)
		if list == nil {
			list = []v1alpha1.CommitRecord{}
		}
		if len(list) == 0 && *form == asTable {
			fmt.Fprintln(c.stderr, "No commit has run on all gateways yet.")
			return nil
		}
		r := result{data: list}
		var lines [][]string
		for _, h := range list {
			ref := h.Ref
			if ref == h.Commit { // of a rollback
				ref = request.Short(ref)
			}
			lines = append(lines, []string{h.At.UTC().Format(time.RFC3339), ref, request.Short(h.Commit), age(h.At.Time)})
			r.names = append(r.names, h.Commit)
		}
		r.table = func(w io.Writer) { rows(w, []string{"SINCE", "REF", "COMMIT", "AGE"}, lines) }
		return c.print(*form, r)
	}
	form = addOutputFlag(command)
	return command
}
