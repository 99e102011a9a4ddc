package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/request"
)

// proposal is where the proposal of a gateway's changes stands, as JSON and YAML show it.
type proposal struct {
	Gateway string                 `json:"gateway"`
	State   v1alpha1.ProposalState `json:"state"`
	// PullRequest is the address of the pull request, or the branch if there is none.
	PullRequest string `json:"pullRequest,omitempty"`
}

func (c *cli) proposals() *cobra.Command {
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
	c.requests(command, func(ctx context.Context, got *requester, args []string) error {
		if command.Flags().Changed("renew") {
			return got.send(ctx, args[0], "changes of "+*renew+" are proposed again", func(ctx context.Context, p target) (request.Answer, error) {
				return p.setter().Propose(ctx, p.namespace, p.name, *renew)
			})
		}
		return c.listProposals(ctx, args[0], *got.output)
	})
	return command
}

func (c *cli) listProposals(ctx context.Context, name, form string) error {
	p, err := c.connect()
	if err != nil {
		return err
	}
	gs, err := p.load(ctx, name)
	if err != nil {
		return err
	}
	list := []proposal{}
	r := result{}
	var lines [][]string
	for _, g := range gs.Status.DiscoveredGateways {
		if g.ProposalState == "" {
			continue
		}
		list = append(list, proposal{g.Name, g.ProposalState, g.Proposal})
		r.names = append(r.names, g.Name)
		lines = append(lines, []string{g.Name, string(g.ProposalState), g.Proposal})
	}
	if len(list) == 0 && form == asTable {
		fmt.Fprintln(c.stderr, "No gateway has changes to propose.")
		return nil
	}
	r.data = list
	r.table = func(w io.Writer) { rows(w, []string{"GATEWAY", "STATE", "PULL REQUEST"}, lines) }
	return c.print(form, r)
}
