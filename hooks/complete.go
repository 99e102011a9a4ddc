package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/request"
	"stoker.io/stoker/internal/sender"
)

// completionTimeout is how long completion waits for the API server.
const completionTimeout = 3 * time.Second

// completions registers completion functions for names, refs and other values from the cluster.
func (c *cli) completions(root *cobra.Command) error {
	var errs []error
	for _, command := range root.Commands() {
		if strings.Contains(command.Use, "NAME") {
			command.ValidArgsFunction = c.completeArgs
		}
		for flag, values := range map[string][]string{"output": {asTable, asJSON, asYAML, asName}, "by": sender.Names()} {
			if command.Flags().Lookup(flag) != nil {
				errs = append(errs, command.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)))
			}
		}
		for flag, refs := range map[string]func(*v1alpha1.GatewaySync) []string{"to": commits, "ref": refs, "renew": proposers} {
			if command.Flags().Lookup(flag) != nil {
				errs = append(errs, command.RegisterFlagCompletionFunc(flag, func(command *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
					return c.completeFrom(command, args, refs), cobra.ShellCompDirectiveNoFileComp
				}))
			}
		}
	}
	errs = append(errs, root.RegisterFlagCompletionFunc("namespace", c.completeNamespaces), root.RegisterFlagCompletionFunc("context", c.completeContexts))
	return errors.Join(errs...)
}

// completeArgs completes the name of a GatewaySync, and a ref after it.
func (c *cli) completeArgs(command *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	const none = cobra.ShellCompDirectiveNoFileComp
	if len(args) == 1 && strings.Contains(command.Use, "REF") {
		return c.completeFrom(command, args, refs), none
	}
	if len(args) == 1 && strings.Contains(command.Use, "STAGE") {
		return c.completeFrom(command, args, stages), none
	}
	if len(args) > 0 {
		return nil, none
	}
	p, err := c.connect()
	if err != nil {
		return nil, none
	}
	ctx, cancel := context.WithTimeout(command.Context(), completionTimeout)
	defer cancel()
	list, err := c.list(ctx, p)
	if err != nil {
		return nil, none
	}
	var names []string
	for _, gs := range list {
		names = append(names, completion(gs.Name, gs.Spec.Git.Ref+" "+gs.Status.GatewaysReady))
	}
	return names, none
}

// completeFrom completes from the GatewaySync that the first argument names.
func (c *cli) completeFrom(command *cobra.Command, args []string, from func(*v1alpha1.GatewaySync) []string) []string {
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
	return from(gs)
}

// refs returns the ref of the spec and those of the history.
func refs(gs *v1alpha1.GatewaySync) []string {
	list := []string{completion(gs.Spec.Git.Ref, "spec.git.ref")}
	for _, h := range gs.Status.History {
		if h.Ref != gs.Spec.Git.Ref {
			list = append(list, completion(h.Ref, "ran "+age(h.At.Time)+" ago"))
		}
	}
	return slices.Compact(list)
}

// stages returns the stages of the spec.
func stages(gs *v1alpha1.GatewaySync) []string {
	var list []string
	if d := gs.Spec.Deployment; d != nil {
		for _, s := range d.Stages {
			what := "needs no approval"
			if s.RequireApproval {
				what = "needs an approval"
			}
			list = append(list, completion(s.Name, what))
		}
	}
	return list
}

// commits returns the commits that a rollback can go back to.
func commits(gs *v1alpha1.GatewaySync) []string {
	var list []string
	for _, h := range gs.Status.History {
		list = append(list, completion(request.Short(h.Commit), h.Ref+", "+age(h.At.Time)+" ago"))
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
func completion(word, what string) string { return oneLine(word) + "\t" + oneLine(what) }

func (c *cli) completeContexts(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	config, err := c.flags.ToRawKubeConfigLoader().RawConfig()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []string
	for name := range config.Contexts {
		names = append(names, name)
	}
	slices.Sort(names)
	return names, cobra.ShellCompDirectiveNoFileComp
}

// completeNamespaces completes namespaces that have a GatewaySync.
func (c *cli) completeNamespaces(command *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	p, err := c.connect()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	p.namespace = ""
	ctx, cancel := context.WithTimeout(command.Context(), completionTimeout)
	defer cancel()
	list, err := c.list(ctx, p)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []string
	for _, gs := range list {
		names = append(names, gs.Namespace)
	}
	slices.Sort(names)
	return slices.Compact(names), cobra.ShellCompDirectiveNoFileComp
}

func (c *cli) version() *cobra.Command {
	command := &cobra.Command{
		Use:     "version",
		Short:   "Print the version of this command",
		Example: `  stoker version -o json`,
		Args:    cobra.NoArgs,
	}
	var form *string
	command.RunE = func(*cobra.Command, []string) error {
		return c.print(*form, versionResult())
	}
	form = addOutputFlag(command)
	return command
}

func versionResult() result {
	return result{
		table: func(w io.Writer) { fmt.Fprintln(w, version) },
		data:  map[string]string{"version": version, "go": runtime.Version(), "platform": runtime.GOOS + "/" + runtime.GOARCH},
		names: []string{version},
	}
}
