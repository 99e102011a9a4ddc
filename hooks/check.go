package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"stoker.io/stoker/hooks/check"
	"stoker.io/stoker/hooks/output"
)

func newCheckCommand(c *cli) *cobra.Command {
	command := &cobra.Command{
		Use:   "check",
		Short: "Find problems of an installation, and show how to fix them",
		Long: `Find problems of an installation, and show how to fix them.

The command checks what the chart installs, the GatewaySyncs, pods and rights of one namespace, and the Secrets that authenticate
callers of the receiver. It changes nothing and prints no secret. A check is unknown if you may not read what it needs. The exit
code is 1 if a check failed.`,
		Example: `  stoker check
  stoker check -n plant -o json`,
		Args: cobra.NoArgs,
	}
	format := output.AddFlag(command.Flags())
	command.RunE = func(command *cobra.Command, _ []string) error {
		p, err := c.connect()
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(command.Context(), queryTimeout)
		defer cancel()
		list, err := check.Checker{Clients: p.Clients, Namespace: p.namespace, Now: p.Clients.Now}.Check(ctx)
		if err != nil {
			return err
		}
		r := output.Result{Data: list, Head: []string{"STATE", "CHECK", "MESSAGE"}}
		for i := range list {
			f := &list[i]
			f.Docs = documentationURL(f.Docs)
			message := f.Message
			if f.State != check.OK {
				message += "; see " + f.Docs
			}
			r.Rows = append(r.Rows, []string{string(f.State), string(f.Check), message})
		}
		failed, all := check.Count(list)
		for _, t := range failed {
			r.Names = append(r.Names, string(t))
		}
		if err := r.Print(c.stdout, *format); err != nil {
			return err
		}
		if len(failed) > 0 {
			return fmt.Errorf("%d of %d checks failed", len(failed), all)
		}
		return nil
	}
	return command
}
