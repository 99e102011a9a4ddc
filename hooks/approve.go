package main

import (
	"context"

	"github.com/spf13/cobra"

	"stoker.io/stoker/hooks/exit"
	"stoker.io/stoker/internal/request"
)

func newApproveCommand(c *cli) *cobra.Command {
	command := &cobra.Command{
		Use:   "approve NAME [STAGE]",
		Short: "Approve a stage of a rollout, or delivery outside the maintenance windows",
		Long: `Approve a stage of a rollout, or delivery outside the maintenance windows.

Without STAGE, the command approves the stage that waits; with STAGE, also one that the rollout has not reached. An approval
counts only for the commit that the command prints. With --commit, the command fails if another commit is rolled out by now.

With --window, the gateways follow the desired commit although no maintenance window allows it. The stages still count.

It needs the verb approve on the GatewaySync, which the ClusterRole stoker-approver grants.`,
		Example: `  # see which stage waits for which commit, and approve it
  stoker status line
  stoker approve line

  # approve the stage prod only for the commit that was tested
  stoker approve line prod --commit 1f0c2d3

  # deliver the commit now, outside the maintenance windows
  stoker approve line --window`,
		Args: cobra.RangeArgs(1, 2),
	}
	commit := command.Flags().String("commit", "", "approve only if this `commit` is rolled out (7 to 40 hexadecimal digits)")
	window := command.Flags().Bool("window", false, "let the commit through a closed maintenance window")
	c.newRequester(command, func(ctx context.Context, r *requester, args []string) error {
		stage := ""
		if len(args) == 2 {
			stage = args[1]
		}
		if *window && stage != "" {
			return exit.Errorf(exit.Usage, "--window and STAGE cannot be used together")
		}
		r.role = "stoker-approver"
		return r.send(ctx, args[0], "approved", func(ctx context.Context, p target) (request.Answer, error) {
			if *window {
				return p.setter().ApproveWindow(ctx, p.namespace, p.name, *commit, p.person(ctx))
			}
			return p.setter().Approve(ctx, p.namespace, p.name, stage, *commit, p.person(ctx))
		})
	})
	return command
}
