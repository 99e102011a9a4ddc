package main

import (
	"context"

	"github.com/spf13/cobra"

	"stoker.io/stoker/internal/request"
)

func newRetryCommand(c *cli) *cobra.Command {
	command := &cobra.Command{
		Use:   "retry NAME",
		Short: "Retry a commit that was rolled back",
		Long: `Retry a commit that was rolled back.

After a restored snapshot, an automatic rollback or a failed rollout, the gateways do not take that commit again until another one is
requested. Use this command if the commit was not the cause. Automatic rollback is off for the retry: if the commit fails again, a
gateway keeps it.`,
		Example: `  # retry the commit, and wait until the gateways run it
  stoker retry line
  stoker wait line`,
		Args: cobra.ExactArgs(1),
	}
	c.newRequester(command, func(ctx context.Context, r *requester, args []string) error {
		return r.send(ctx, args[0], "retry requested", func(ctx context.Context, p target) (request.Answer, error) {
			return p.setter().Retry(ctx, p.namespace, p.name)
		})
	})
	return command
}
