package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/hooks/output"
	"stoker.io/stoker/internal/request"
)

// proposal is the state of the pull request with changes of a gateway, in JSON and YAML.
type proposal struct {
	Gateway string                 `json:"gateway"`
	State   v1alpha1.ProposalState `json:"state"`
	// PullRequest is the URL of the pull request, or the branch if there is none.
	PullRequest string `json:"pullRequest,omitempty"`
}

func newProposalsCommand(c *cli) *cobra.Command {
	command := &cobra.Command{
		Use:   "proposals NAME",
		Short: "List the pull requests with changes made on gateways",
		Long: `List the pull requests with changes made on gateways.

The list shows each gateway with changes that are proposed, refused or under way. If there is no pull request, it shows the
branch. The command status shows why changes are refused.

With --renew, the agent of that gateway closes its pull request and proposes today's changes from today's base. Use it if the
pull request conflicts with its base branch. The command writes an annotation, which Argo CD does not revert.`,
		Example: `  stoker proposals line

  # close the pull request of the gateway line-1, and propose its changes again
  stoker proposals line --renew line-1`,
		Args: cobra.ExactArgs(1),
	}
	renew := command.Flags().String("renew", "", "propose the changes of this `gateway` again, from today's base")
	c.newRequester(command, func(ctx context.Context, r *requester, args []string) error {
		if command.Flags().Changed("renew") {
			return r.send(ctx, args[0], "changes of "+*renew+" are proposed again", func(ctx context.Context, p target) (request.Answer, error) {
				return p.setter().Propose(ctx, p.namespace, p.name, *renew)
			})
		}
		return c.listProposals(ctx, args[0], *r.output)
	})
	return command
}

func (c *cli) listProposals(ctx context.Context, name, format string) error {
	_, gs, err := c.loadGatewaySync(ctx, name)
	if err != nil {
		return err
	}
	list := []proposal{}
	r := output.Result{Head: []string{"GATEWAY", "STATE", "PULL REQUEST"}}
	for _, g := range gs.Status.DiscoveredGateways {
		if g.ProposalState != "" {
			list = append(list, proposal{g.Name, g.ProposalState, g.Proposal})
			r.Add(g.Name, g.Name, string(g.ProposalState), g.Proposal)
		}
	}
	if len(list) == 0 && format == output.Table {
		fmt.Fprintln(c.stderr, "No gateway has changes to propose.")
		return nil
	}
	r.Data = list
	return r.Print(c.stdout, format)
}
