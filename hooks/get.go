package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/hooks/display"
	"stoker.io/stoker/hooks/exit"
	"stoker.io/stoker/hooks/output"
	"stoker.io/stoker/hooks/sites"
	"stoker.io/stoker/internal/kube"
)

func newGetCommand(c *cli) *cobra.Command {
	command := &cobra.Command{
		Use:   "get [NAME]",
		Short: "List GatewaySyncs with their refs and gateways",
		Example: `  stoker get
  stoker get -A
  stoker get line -o yaml`,
		Args: cobra.MaximumNArgs(1),
	}
	all := command.Flags().BoolP("all-namespaces", "A", false, "list the GatewaySyncs of all namespaces")
	format := output.AddFlag(command.Flags())
	command.RunE = func(command *cobra.Command, args []string) error {
		if *all && len(args) > 0 {
			return exit.Errorf(exit.Usage, "NAME and --all-namespaces cannot be used together")
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
			return c.printList(command.Context(), p, []*v1alpha1.GatewaySync{gs}, display.BareObject(gs), *format)
		}
		if *all {
			p.namespace = ""
		}
		list, err := c.list(command.Context(), p)
		if err != nil {
			return err
		}
		if len(list) == 0 && *format == output.Table {
			where := "namespace " + p.namespace
			if *all {
				where = "any namespace"
			}
			fmt.Fprintf(c.stderr, "No GatewaySync in %s.\n", where)
			return nil
		}
		items := make([]any, len(list))
		for i, gs := range list {
			items[i] = display.BareObject(gs)
		}
		return c.printList(command.Context(), p, list, display.ListObject(items), *format)
	}
	return command
}

// list returns all GatewaySyncs of a namespace and prints an error for each that cannot be decoded.
func (c *cli) list(ctx context.Context, p target) ([]*v1alpha1.GatewaySync, error) {
	ctx, cancel := context.WithTimeout(ctx, p.patience)
	defer cancel()
	list, undecodable, err := kube.GatewaySyncs(p.Dynamic, p.namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, p.explain("", err)
	}
	for _, u := range undecodable {
		fmt.Fprintln(c.stderr, output.Clean(u.Error()))
	}
	return list, nil
}

// printList prints GatewaySyncs as a table, or data in another format.
func (c *cli) printList(ctx context.Context, p target, list []*v1alpha1.GatewaySync, data any, format string) error {
	ctx, cancel := context.WithTimeout(ctx, p.patience)
	defer cancel()
	l := sites.ReadLeads(ctx, p.Dynamic, p.namespace)
	if l.Err != nil {
		fmt.Fprintln(c.stderr, output.Clean(sites.LeadsUnread()+": "+l.Err.Error()))
	}
	return display.List(list, l, p.Now(), p.namespace == "", data).Print(c.stdout, format)
}
