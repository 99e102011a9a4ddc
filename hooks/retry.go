package main

import (
	"context"

	"github.com/spf13/cobra"

	"stoker.io/stoker/internal/request"
)

func (c *cli) retry() *cobra.Command {
	command := &cobra.Command{
		Use:   "retry NAME",
		Short: "Take a commit again that gateways went back from",
		Long: `Take a commit again that gateways went back from.

After a restored snapshot, an automatic rollback or a failed rollout, the commit is held off until another one is requested. If the
commit was not to blame, this command ends that. If it fails again, a gateway does not go back by itself a second time.

The command writes an annotation, which Argo CD does not revert.`,
		Example: `  # take the commit again, and wait until the gateways run it
  stoker retry line
  stoker wait line`,
		Args: cobra.ExactArgs(1),
	}
	c.newRequester(command, func(ctx context.Context, r *requester, args []string) error {
		return r.send(ctx, args[0], "is retried", func(ctx context.Context, p target) (request.Answer, error) {
			return p.setter().Retry(ctx, p.namespace, p.name)
		})
	})
	return command
}
