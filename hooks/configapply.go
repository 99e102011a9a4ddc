package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/hooks/configsync"
	"stoker.io/stoker/hooks/display"
	"stoker.io/stoker/hooks/output"
	"stoker.io/stoker/internal/kube"
)

func newConfigApplyCommand(c *cli) *cobra.Command {
	command := &cobra.Command{
		Use:   "apply NAME",
		Short: "Apply the commit of a ConfigSync, prune, and wait",
		Long: `Apply the commit of a ConfigSync, prune, and wait.

The command dry-runs every object on the API server first. If one is refused, or belongs to others, nothing is changed. Then it
records in the status what it is about to own, applies the objects in the order of their kinds, deletes what git no longer has
and what is still the ConfigSync's own, and waits until all objects are healthy.

All of it is done with the rights of the caller: it needs get, create, patch and delete for the kinds of the commit, get for
configsyncs, and update for configsyncs/status. The right to create Events is of use.`,
		Example: `  stoker config apply plant

  # show the plan and change nothing
  stoker config apply plant --dry-run`,
		Args: cobra.ExactArgs(1),
	}
	x := &configFlags{cli: c}
	var o configsync.Options
	command.Flags().BoolVar(&o.DryRun, "dry-run", false, "print the plan, and change nothing")
	x.setApply(command, &o)
	return command
}

func newConfigPruneCommand(c *cli) *cobra.Command {
	command := &cobra.Command{
		Use:   "prune NAME",
		Short: "Delete the objects of a ConfigSync that git no longer has",
		Long: `Delete the objects of a ConfigSync that git no longer has.

The command deletes what apply would delete, and does nothing else. It deletes an object only if the inventory lists it, and its mark
and its UID are still the ConfigSync's. It never deletes a Namespace, a CustomResourceDefinition, a PersistentVolumeClaim, or
an object with the annotation stoker.io/prune: disabled.`,
		Example: `  stoker config prune plant

  # more than half of the objects
  stoker config prune plant --confirm-deletion 1f0c2d3`,
		Args: cobra.ExactArgs(1),
	}
	x := &configFlags{cli: c}
	o := configsync.Options{PruneOnly: true}
	x.setApply(command, &o)
	return command
}

// setApply makes a command apply or prune, as the options say.
func (x *configFlags) setApply(command *cobra.Command, o *configsync.Options) {
	command.Flags().StringVar(&o.Confirm, "confirm-deletion", "", "confirm a mass deletion of this `commit`, as the annotation stoker.io/confirm-deletion does")
	x.setRun(command, func(ctx context.Context, args []string) error {
		if o.Confirm != "" && !v1alpha1.IsCommitPrefix(o.Confirm) {
			return exitErrorf(exitUsage, "invalid --confirm-deletion %.40q: use a commit, or its first 7 digits or more", o.Confirm)
		}
		p, err := x.connected()
		if err != nil {
			return err
		}
		cs, err := p.configSync(ctx, args[0])
		if err != nil {
			return err
		}
		r, err := x.engine("").Apply(ctx, cs, *o)
		if r != nil && r.Plan != nil {
			if err := planResult(r.Plan).Print(x.stdout, *x.output); err != nil {
				return err
			}
		}
		if err == nil && !o.DryRun {
			fmt.Fprintf(x.stderr, "ConfigSync %s: %s\n", args[0], output.Clean(r.Outcome()))
		}
		return err
	})
}

func newConfigStatusCommand(c *cli) *cobra.Command {
	command := &cobra.Command{
		Use:   "status [NAME]",
		Short: "Show ConfigSyncs and the objects of one",
		Long: `Show ConfigSyncs and the objects of one.

Without NAME the command lists the ConfigSyncs of the namespace. With NAME it shows what the last run did with each object. With
--orphans it lists objects that are marked as the ConfigSync's and that its inventory does not have, as after a restore of the
cluster without the status. No run deletes those: delete them yourself, or add them to git.`,
		Example: `  stoker config status
  stoker config status plant
  stoker config status plant --orphans`,
		Args: cobra.MaximumNArgs(1),
	}
	orphans := command.Flags().Bool("orphans", false, "list objects that are marked and not in the inventory")
	x := &configFlags{cli: c}
	x.setRun(command, func(ctx context.Context, args []string) error {
		p, err := x.connected()
		if err != nil {
			return err
		}
		if len(args) == 0 {
			if *orphans {
				return exitErrorf(exitUsage, "--orphans needs the name of a ConfigSync")
			}
			return x.listConfigSyncs(ctx, p)
		}
		cs, err := p.configSync(ctx, args[0])
		if err != nil {
			return err
		}
		if *orphans {
			return x.listOrphans(ctx, cs)
		}
		return configStatus(cs).Print(x.stdout, *x.output)
	})
	return command
}

// readyState returns the status and the message of the condition Ready, or Unknown if it is not about the current spec.
func readyState(cs *v1alpha1.ConfigSync) (status, message string) {
	c := meta.FindStatusCondition(cs.Status.Conditions, v1alpha1.ConditionReady)
	switch {
	case c == nil:
		return "Unknown", "no run yet: use 'stoker config apply " + cs.Name + "'"
	case cs.Status.ObservedGeneration != cs.Generation:
		return "Unknown", "the spec changed since the last run"
	}
	return string(c.Status), c.Message
}

func (x *configFlags) listConfigSyncs(ctx context.Context, p target) error {
	list, _, err := kube.ConfigSyncs(p.Dynamic, p.namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return p.explain("", err)
	}
	r := output.Result{Head: []string{"NAME", "REVISION", "TARGETS", "READY", "STATUS"}}
	items := []any{}
	for _, cs := range list {
		status, message := readyState(cs)
		r.Add(display.ResourceName(cs), cs.Name, cs.Status.SourceRevisionShort, cs.Status.TargetsReady, status, output.Shorten(message))
		cs.ManagedFields = nil
		items = append(items, cs)
	}
	r.Data = listObject(items)
	return r.Print(x.stdout, *x.output)
}

// configStatus returns the status of a ConfigSync for printing.
func configStatus(cs *v1alpha1.ConfigSync) *output.Result {
	r := &output.Result{Data: cs.Status, Head: []string{"TYPE", "NAMESPACE", "NAME", "STATE", "HEALTHY", "WHY"}}
	for _, t := range cs.Status.Targets {
		healthy := ""
		if t.Healthy != nil {
			healthy = map[bool]string{true: "yes", false: "no"}[*t.Healthy]
		}
		why := string(t.Reason)
		if t.Message != "" {
			why = strings.TrimPrefix(why+": "+t.Message, ": ")
		}
		r.Add(t.Type+"/"+t.Name, t.Type, t.Namespace, t.Name, string(t.State), healthy, output.Shorten(why))
	}
	r.Text = func(w io.Writer) {
		status, message := readyState(cs)
		fmt.Fprintf(w, "%s at %s, %s ready, Ready is %s: %s\n", output.OneLine(output.RefAt(cs.Status.SourceRef, cs.Status.SourceRevision)),
			output.OneLine(cs.Status.SourcePath), output.OneLine(cs.Status.TargetsReady), status, output.OneLine(message))
		output.WriteTable(w, r.Head, r.Rows)
	}
	return r
}

// listOrphans prints the objects that are marked as those of cs and are not in its inventory.
func (x *configFlags) listOrphans(ctx context.Context, cs *v1alpha1.ConfigSync) error {
	orphans, unlisted, err := x.engine("").Orphans(ctx, cs)
	if err != nil {
		return err
	}
	if len(unlisted) > 0 {
		fmt.Fprintf(x.stderr, "warning: not listed, for want of rights or of an answer: %s\n", output.Clean(strings.Join(unlisted, ", ")))
	}
	list := []plannedObject{}
	r := output.Result{Head: []string{"TYPE", "NAMESPACE", "NAME"}}
	for _, id := range orphans {
		list = append(list, plannedObject{Type: id.Type(), Namespace: id.Namespace, Name: id.Name})
		r.Add(id.Type()+"/"+id.Name, id.Type(), id.Namespace, id.Name)
	}
	r.Data = list
	return r.Print(x.stdout, *x.output)
}
