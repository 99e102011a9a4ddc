package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"stoker.io/stoker/hooks/check"
)

func (c *cli) check() *cobra.Command {
	command := &cobra.Command{
		Use:   "check",
		Short: "Say what is wrong with an installation, and how to mend it",
		Long: `Say what is wrong with an installation, and how to mend it.

It looks at the parts that the chart installs, and at the GatewaySyncs, pods and rights of one namespace, and at the Secrets
that let callers of the receiver in. It only reads, and prints no secret. What is not ok names its place in the documentation.
What you may not read is unknown; a check that failed ends it with 1.`,
		Example: `  stoker check
  stoker check -n plant -o json`,
		Args: cobra.NoArgs,
	}
	var form *string
	command.RunE = func(command *cobra.Command, _ []string) error {
		p, err := c.connect()
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(command.Context(), within)
		defer cancel()
		list, err := check.Looker{Clients: p.Clients, Namespace: p.namespace, Now: time.Now}.Look(ctx)
		if err != nil {
			return err
		}
		r := result{data: list}
		var lines [][]string
		failed := 0
		for i := range list {
			f := &list[i]
			f.ReadOn = manual(f.ReadOn)
			message := f.Message
			if f.State != check.OK {
				message += "; read on: " + f.ReadOn
			}
			lines = append(lines, []string{string(f.State), string(f.Check), message})
			if f.State == check.Failed {
				failed++
				r.names = append(r.names, string(f.Check))
			}
		}
		r.table = func(w io.Writer) { rows(w, []string{"STATE", "CHECK", "MESSAGE"}, lines) }
		if err := c.print(*form, r); err != nil {
			return err
		}
		if failed > 0 {
			return fmt.Errorf("%d of %d checks failed", failed, len(list))
		}
		return nil
	}
	form = outputs(command)
	return command
}
