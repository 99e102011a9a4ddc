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
	"stoker.io/stoker/internal/kube"
)

func (c *cli) configApply() *cobra.Command {
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
	x.changes(command, &o)
	return command
}

func (c *cli) configPrune() *cobra.Command {
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
	x.changes(command, &o)
	return command
}

// changes sets up apply and prune.
func (x *configFlags) changes(command *cobra.Command, o *configsync.Options) {
	command.Flags().StringVar(&o.Confirm, "confirm-deletion", "", "confirm a mass deletion of this `commit`, as the annotation stoker.io/confirm-deletion does")
	x.run(command, func(ctx context.Context, args []string) error {
		if o.Confirm != "" && !v1alpha1.IsCommitPrefix(o.Confirm) {
			return outcome(exitUsage, "invalid --confirm-deletion %.40q: use a commit, or its first 7 digits or more", o.Confirm)
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
			if failed := x.print(*x.form, planned(r.Plan)); failed != nil {
				return failed
			}
		}
		if err == nil && !o.DryRun {
			fmt.Fprintf(x.talk, "ConfigSync %s: %s\n", args[0], clean(r.Outcome()))
		}
		return err
	})
}

func (c *cli) configStatus() *cobra.Command {
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
	x.run(command, func(ctx context.Context, args []string) error {
		p, err := x.connected()
		if err != nil {
			return err
		}
		if len(args) == 0 {
			if *orphans {
				return outcome(exitUsage, "--orphans needs the name of a ConfigSync")
			}
			return x.listConfigSyncs(ctx, p)
		}
		cs, err := p.configSync(ctx, args[0])
		if err != nil {
			return err
		}
		if *orphans {
			return x.orphans(ctx, cs)
		}
		return x.print(*x.form, configStatus(cs))
	})
	return command
}

// ready returns the status and the message of the condition Ready.
func ready(cs *v1alpha1.ConfigSync) (is, message string) {
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
	r := result{}
	items := []any{}
	var lines [][]string
	for _, cs := range list {
		is, message := ready(cs)
		lines = append(lines, []string{cs.Name, cs.Status.SourceRevisionShort, cs.Status.TargetsReady, is, cut(message)})
		r.names = append(r.names, "configsync.stoker.io/"+cs.Name)
		cs.ManagedFields = nil
		items = append(items, cs)
	}
	r.data = map[string]any{"apiVersion": "v1", "kind": "List", "items": items}
	r.table = func(w io.Writer) { rows(w, []string{"NAME", "REVISION", "TARGETS", "READY", "STATUS"}, lines) }
	return x.print(*x.form, r)
}

// configStatus returns the status of a ConfigSync for printing.
func configStatus(cs *v1alpha1.ConfigSync) result {
	r := result{data: cs.Status}
	var lines [][]string
	for _, t := range cs.Status.Targets {
		health := ""
		if t.Healthy != nil {
			health = map[bool]string{true: "yes", false: "no"}[*t.Healthy]
		}
		why := string(t.Reason)
		if t.Message != "" {
			why = strings.TrimPrefix(why+": "+t.Message, ": ")
		}
		lines = append(lines, []string{t.Type, t.Namespace, t.Name, string(t.State), health, cut(why)})
		r.names = append(r.names, t.Type+"/"+t.Name)
	}
	r.table = func(w io.Writer) {
		is, message := ready(cs)
		fmt.Fprintf(w, "%s at %s, %s ready, Ready is %s: %s\n", oneLine(at(cs.Status.SourceRef, cs.Status.SourceRevision)), oneLine(cs.Status.SourcePath),
			oneLine(cs.Status.TargetsReady), is, oneLine(message))
		rows(w, []string{"TYPE", "NAMESPACE", "NAME", "STATE", "HEALTHY", "WHY"}, lines)
	}
	return r
}

func (x *configFlags) orphans(ctx context.Context, cs *v1alpha1.ConfigSync) error {
	found, unseen, err := x.engine("").Orphans(ctx, cs)
	if err != nil {
		return err
	}
	if len(unseen) > 0 {
		fmt.Fprintf(x.talk, "warning: not listed, for want of rights or of an answer: %s\n", clean(strings.Join(unseen, ", ")))
	}
	r := result{}
	list := []plannedObject{}
	var lines [][]string
	for _, id := range found {
		lines = append(lines, []string{id.Type(), id.Namespace, id.Name})
		list = append(list, plannedObject{Type: id.Type(), Namespace: id.Namespace, Name: id.Name})
		r.names = append(r.names, id.Type()+"/"+id.Name)
	}
	r.data = list
	r.table = func(w io.Writer) { rows(w, []string{"TYPE", "NAMESPACE", "NAME"}, lines) }
	return x.print(*x.form, r)
}
