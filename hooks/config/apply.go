package config

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"stoker.io/stoker/api/v1alpha1/syntax"
	"stoker.io/stoker/hooks/display"
	"stoker.io/stoker/hooks/exit"
	"stoker.io/stoker/hooks/output"
	"stoker.io/stoker/internal/configsync"
)

func newApplyCommand(env *Env) *cobra.Command {
	command := &cobra.Command{
		Use:   "apply NAME",
		Short: "Apply the commit of a ConfigSync, prune, and wait",
		Long: `Apply the commit of a ConfigSync, prune, and wait.

The command dry-runs every object first; if one is refused, or belongs to others, nothing is changed. Then it records in the
status what it will own, applies the objects in order of kind, prunes, and waits until all are healthy.

The caller needs get, create, patch and delete for the kinds of the commit (update, too, for GatewaySyncs and ConfigSyncs), get
for configsyncs, and update for configsyncs/status. Creating Events is optional.`,
		Example: `  stoker config apply plant

  # show the plan and change nothing
  stoker config apply plant --dry-run`,
		Args: cobra.ExactArgs(1),
	}
	x := &flags{env: env}
	var o configsync.Options
	command.Flags().BoolVar(&o.DryRun, "dry-run", false, "print the plan, and change nothing")
	x.setApply(command, &o)
	return command
}

func newPruneCommand(env *Env) *cobra.Command {
	command := &cobra.Command{
		Use:   "prune NAME",
		Short: "Delete the objects of a ConfigSync that git no longer has",
		Long: `Delete the objects of a ConfigSync that git no longer has.

The command deletes what apply would delete: objects with the inventory's UID, and the mark or fields that a ConfigSync applied.
It never deletes a Namespace, a CustomResourceDefinition, a PersistentVolumeClaim, or an object with the annotation
stoker.io/prune: disabled.`,
		Example: `  stoker config prune plant

  # more than half of the objects
  stoker config prune plant --confirm-deletion 1f0c2d3`,
		Args: cobra.ExactArgs(1),
	}
	x := &flags{env: env}
	o := configsync.Options{PruneOnly: true}
	x.setApply(command, &o)
	return command
}

// setApply makes a command apply or prune, as the options say.
func (x *flags) setApply(command *cobra.Command, o *configsync.Options) {
	command.Flags().StringVar(&o.Confirm, "confirm-deletion", "", "confirm a mass deletion of this `commit`, as the annotation stoker.io/confirm-deletion does")
	x.setRun(command, func(ctx context.Context, args []string) error {
		if o.Confirm != "" && !syntax.IsCommitPrefix(o.Confirm) {
			return exit.Errorf(exit.Usage, "invalid --confirm-deletion %.40q: use a commit, or its first 7 digits or more", o.Confirm)
		}
		p, err := x.connected()
		if err != nil {
			return err
		}
		cs, err := p.Get(ctx, args[0])
		if err != nil {
			return err
		}
		r, err := x.engine("").Apply(ctx, cs, *o)
		if r != nil && r.Plan != nil {
			if err := display.ConfigPlan(r.Plan).Print(x.env.Stdout, *x.output); err != nil {
				return err
			}
		}
		if err == nil && !o.DryRun {
			fmt.Fprintf(x.env.Stderr, "ConfigSync %s: %s\n", args[0], output.Clean(r.Outcome()))
		}
		return err
	})
}
