package main

import (
	"context"

	"github.com/spf13/cobra"

	"stoker.io/stoker/hooks/display"
	"stoker.io/stoker/internal/request"
)

func newProposalsCommand(c *cli) *cobra.Command {
	command := &cobra.Command{
		Use:   "proposals NAME",
		Short: "List the pull requests with changes made on gateways",
		Long: `List the pull requests with changes made on gateways.

The list shows each gateway with changes that are proposed, refused or under way, and the branch if there is no pull request. The
command status shows why changes are refused.

With --renew, the agent of that gateway closes its pull request and proposes the current changes from the current base. Use it if the
pull request conflicts with its base branch.`,
		Example: `  stoker proposals line

  # close the pull request of the gateway line-1, and propose its changes again
  stoker proposals line --renew line-1`,
		Args: cobra.ExactArgs(1),
	}
	renew := command.Flags().String("renew", "", "propose the changes of this `gateway` again, from the current base")
	c.newRequester(command, func(ctx context.Context, r *requester, args []string) error {
		if command.Flags().Changed("renew") {
			return r.send(ctx, args[0], "changes of "+*renew+" are proposed again", func(ctx context.Context, p target) (request.Answer, error) {
				return p.setter().Propose(ctx, p.namespace, p.name, *renew)
			})
		}
		_, gs, err := c.loadGatewaySync(ctx, args[0])
		if err != nil {
			return err
		}
		return c.printTable(display.Proposals(gs.Status.DiscoveredGateways), *r.output, "No gateway has changes to propose.")
	})
	return command
}
