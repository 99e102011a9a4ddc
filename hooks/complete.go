package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/hooks/output"
	"stoker.io/stoker/internal/request"
	"stoker.io/stoker/internal/sender"
)

// completionTimeout bounds how long completion waits for the API server.
const completionTimeout = 3 * time.Second

// completions registers completion functions for names, refs and other values from the cluster.
func (c *cli) completions(root *cobra.Command) error {
	var errs []error
	for _, command := range root.Commands() {
		if strings.Contains(command.Use, "NAME") {
			command.ValidArgsFunction = c.completeArgs
		}
		for flag, values := range map[string][]string{"output": {output.Table, output.JSON, output.YAML, output.Name}, "by": sender.Names()} {
			if command.Flags().Lookup(flag) != nil {
				errs = append(errs, command.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)))
			}
		}
		for flag, complete := range map[string]func(*v1alpha1.GatewaySync) []string{"to": commits, "ref": refs, "renew": proposers} {
			if command.Flags().Lookup(flag) != nil {
				errs = append(errs, command.RegisterFlagCompletionFunc(flag, func(command *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
					return c.completeFrom(command, args, complete), cobra.ShellCompDirectiveNoFileComp
				}))
			}
		}
	}
	errs = append(errs, root.RegisterFlagCompletionFunc("namespace", c.completeNamespaces), root.RegisterFlagCompletionFunc("context", c.completeContexts))
	return errors.Join(errs...)
}

// completeArgs completes the name of a GatewaySync, and after it a ref or a stage if the command takes one.
func (c *cli) completeArgs(command *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	var list []string
	switch {
	case len(args) == 0:
		for _, gs := range c.listForCompletion(command.Context(), false) {
			list = append(list, completion(gs.Name, gs.Spec.Git.Ref+" "+gs.Status.GatewaysReady))
		}
	case len(args) == 1 && strings.Contains(command.Use, "REF"):
		list = c.completeFrom(command, args, refs)
	case len(args) == 1 && strings.Contains(command.Use, "STAGE"):
		list = c.completeFrom(command, args, stages)
	}
	return list, cobra.ShellCompDirectiveNoFileComp
}

// listForCompletion returns the GatewaySyncs of the namespace or of all namespaces, and none if they cannot be listed.
func (c *cli) listForCompletion(ctx context.Context, allNamespaces bool) []*v1alpha1.GatewaySync {
	p, err := c.connect()
	if err != nil {
		return nil
	}
	if allNamespaces {
		p.namespace = ""
	}
	ctx, cancel := context.WithTimeout(ctx, completionTimeout)
	defer cancel()
	list, err := c.list(ctx, p)
	if err != nil {
		return nil
	}
	return list
}

// completeFrom returns the completions that complete takes from the GatewaySync of the first argument, and none if it cannot be
// read.
func (c *cli) completeFrom(command *cobra.Command, args []string, complete func(*v1alpha1.GatewaySync) []string) []string {
	if len(args) == 0 {
		return nil
	}
	p, err := c.connect()
	if err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(command.Context(), completionTimeout)
	defer cancel()
	gs, err := p.load(ctx, args[0])
	if err != nil {
		return nil
	}
	return complete(gs)
}

// refs returns the ref of the spec and those of the history.
func refs(gs *v1alpha1.GatewaySync) []string {
	list := []string{completion(gs.Spec.Git.Ref, "spec.git.ref")}
	for _, h := range gs.Status.History {
		if h.Ref != gs.Spec.Git.Ref {
			list = append(list, completion(h.Ref, "ran "+output.Age(h.At.Time)+" ago"))
		}
	}
	return slices.Compact(list)
}

// stages returns the stages of the spec.
func stages(gs *v1alpha1.GatewaySync) []string {
	var list []string
	if d := gs.Spec.Deployment; d != nil {
		for _, s := range d.Stages {
			description := "needs no approval"
			if s.RequireApproval {
				description = "needs an approval"
			}
			list = append(list, completion(s.Name, description))
		}
	}
	return list
}

// commits returns the commits that a rollback can go back to.
func commits(gs *v1alpha1.GatewaySync) []string {
	var list []string
	for _, h := range gs.Status.History {
		list = append(list, completion(request.Short(h.Commit), h.Ref+", "+output.Age(h.At.Time)+" ago"))
	}
	return list
}

// proposers returns the gateways that propose changes.
func proposers(gs *v1alpha1.GatewaySync) []string {
	var list []string
	for _, g := range gs.Status.DiscoveredGateways {
		if g.ProposalState != "" {
			list = append(list, completion(g.Name, string(g.ProposalState)+" "+g.Proposal))
		}
	}
	return list
}

// completion returns a completion with the description that shells show beside it.
func completion(word, description string) string {
	return output.OneLine(word) + "\t" + output.OneLine(description)
}

func (c *cli) completeContexts(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	config, err := c.flags.ToRawKubeConfigLoader().RawConfig()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return slices.Sorted(maps.Keys(config.Contexts)), cobra.ShellCompDirectiveNoFileComp
}

// completeNamespaces completes namespaces that have a GatewaySync.
func (c *cli) completeNamespaces(command *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	var names []string
	for _, gs := range c.listForCompletion(command.Context(), true) {
		names = append(names, gs.Namespace)
	}
	slices.Sort(names)
	return slices.Compact(names), cobra.ShellCompDirectiveNoFileComp
}

func newVersionCommand(c *cli) *cobra.Command {
	command := &cobra.Command{
		Use:     "version",
		Short:   "Print the version of this command",
		Example: `  stoker version -o json`,
		Args:    cobra.NoArgs,
	}
	format := addOutputFlag(command)
	command.RunE = func(*cobra.Command, []string) error {
		r := output.Result{
			Data:  map[string]string{"version": version, "go": runtime.Version(), "platform": runtime.GOOS + "/" + runtime.GOARCH},
			Names: []string{version}, Text: func(w io.Writer) { fmt.Fprintln(w, version) },
		}
		return r.Print(c.stdout, *format)
	}
	return command
}
