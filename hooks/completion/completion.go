// Package completion completes what the user of a shell types for stoker: the names, refs, stages, commits and gateways of
// GatewaySyncs, and the values of flags.
package completion

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/syntax"
	"stoker.io/stoker/hooks/output"
	"stoker.io/stoker/internal/sender"
)

// Source reads the cluster and the kubeconfig. Its functions return nothing for what they cannot read, because a shell shows no
// errors.
type Source struct {
	// GatewaySyncs returns the GatewaySyncs of the namespace of the command, or of all namespaces.
	GatewaySyncs func(ctx context.Context, allNamespaces bool) []*v1alpha1.GatewaySync
	// GatewaySync returns the GatewaySync with this name, or nil.
	GatewaySync func(ctx context.Context, name string) *v1alpha1.GatewaySync
	// Contexts returns the sorted names of the contexts.
	Contexts func() []string
}

// Register adds completions to root and to the commands directly below it. The error names flags that do not exist.
func Register(root *cobra.Command, from Source) error {
	var errs []error
	for _, command := range root.Commands() {
		if strings.Contains(command.Use, "NAME") {
			command.ValidArgsFunction = from.args
		}
		by := sender.Names()
		if command.Name() == "status" {
			by = []string{"commit"}
		}
		if command.Flags().Lookup("contexts") != nil {
			errs = append(errs, command.RegisterFlagCompletionFunc("contexts", from.contextLists))
		}
		for flag, values := range map[string][]string{"output": {output.Table, output.JSON, output.YAML, output.Name}, "by": by} {
			if command.Flags().Lookup(flag) != nil {
				errs = append(errs, command.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)))
			}
		}
		for flag, complete := range map[string]func(*v1alpha1.GatewaySync) []string{"to": commits, "ref": refs, "renew": proposers} {
			if command.Flags().Lookup(flag) != nil {
				errs = append(errs, command.RegisterFlagCompletionFunc(flag, func(command *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
					return from.ofFirst(command, args, complete), cobra.ShellCompDirectiveNoFileComp
				}))
			}
		}
	}
	errs = append(errs, root.RegisterFlagCompletionFunc("namespace", from.namespaces), root.RegisterFlagCompletionFunc("context", from.contexts))
	return errors.Join(errs...)
}

// args completes the name of a GatewaySync, and after it a ref or a stage if the command takes one.
func (s Source) args(command *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	var list []string
	switch {
	case len(args) == 0:
		for _, gs := range s.GatewaySyncs(command.Context(), false) {
			list = append(list, described(gs.Name, gs.Spec.Git.Ref+" "+gs.Status.GatewaysReady))
		}
	case len(args) == 1 && strings.Contains(command.Use, "REF"):
		list = s.ofFirst(command, args, refs)
	case len(args) == 1 && strings.Contains(command.Use, "STAGE"):
		list = s.ofFirst(command, args, stages)
	}
	return list, cobra.ShellCompDirectiveNoFileComp
}

// ofFirst returns what complete takes from the GatewaySync that the first argument names.
func (s Source) ofFirst(command *cobra.Command, args []string, complete func(*v1alpha1.GatewaySync) []string) []string {
	if len(args) == 0 {
		return nil
	}
	gs := s.GatewaySync(command.Context(), args[0])
	if gs == nil {
		return nil
	}
	return complete(gs)
}

// contextLists completes a list of contexts, or all.
func (s Source) contextLists(_ *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
	before := typed[:strings.LastIndex(typed, ",")+1]
	var list []string
	for _, name := range s.Contexts() {
		list = append(list, before+name)
	}
	if before == "" {
		list = append(list, "all")
	}
	return list, cobra.ShellCompDirectiveNoFileComp
}

func (s Source) contexts(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return s.Contexts(), cobra.ShellCompDirectiveNoFileComp
}

// namespaces completes namespaces that have a GatewaySync.
func (s Source) namespaces(command *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	var names []string
	for _, gs := range s.GatewaySyncs(command.Context(), true) {
		names = append(names, gs.Namespace)
	}
	slices.Sort(names)
	return slices.Compact(names), cobra.ShellCompDirectiveNoFileComp
}

// refs returns the ref of the spec and those of the history.
func refs(gs *v1alpha1.GatewaySync) []string {
	list := []string{described(gs.Spec.Git.Ref, "spec.git.ref")}
	for _, h := range gs.Status.History {
		if h.Ref != gs.Spec.Git.Ref {
			list = append(list, described(h.Ref, "ran "+output.Age(h.At.Time)+" ago"))
		}
	}
	return slices.Compact(list)
}

func stages(gs *v1alpha1.GatewaySync) []string {
	var list []string
	if d := gs.Spec.Deployment; d != nil {
		for _, s := range d.Stages {
			description := "needs no approval"
			if s.RequireApproval {
				description = "needs an approval"
			}
			list = append(list, described(s.Name, description))
		}
	}
	return list
}

// commits returns the commits that a rollback can go back to.
func commits(gs *v1alpha1.GatewaySync) []string {
	var list []string
	for _, h := range gs.Status.History {
		list = append(list, described(syntax.ShortCommit(h.Commit), h.Ref+", "+output.Age(h.At.Time)+" ago"))
	}
	return list
}

// proposers returns the gateways that propose changes.
func proposers(gs *v1alpha1.GatewaySync) []string {
	var list []string
	for _, g := range gs.Status.DiscoveredGateways {
		if g.ProposalState != "" {
			list = append(list, described(g.Name, string(g.ProposalState)+" "+g.Proposal))
		}
	}
	return list
}

// described returns a completion with the description that shells show beside it.
func described(word, description string) string {
	return output.OneLine(word) + "\t" + output.OneLine(description)
}
