package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"stoker.io/stoker/hooks/migrate"
)

func (c *cli) migrate() *cobra.Command {
	command := &cobra.Command{
		Use:   "migrate",
		Short: "Remove what an earlier product of the group stoker.io left behind",
		Long: `Remove what an earlier product of the group stoker.io left behind.

Without --yes it only lists what it would do: hand the definition of GatewaySync to the Helm release, remove the finalizer
stoker.io/finalizer from objects, and evict pods whose container stoker-agent is another program's: one pod of a GatewaySync at
a time, within disruption budgets. It deletes no other object: what you have to do is listed as "by hand". Remove the earlier product's
Deployment first, then run it before and after the installation of this one.

It needs the rights to list and update the kinds of stoker.io, to list pods and webhook configurations, to get StatefulSets and
ReplicaSets, to create evictions, and to get and patch custom resource definitions: those of a cluster administrator.`,
		Example: `  stoker migrate -A
  stoker migrate -A --yes`,
		Args: cobra.NoArgs,
	}
	flags := command.Flags()
	all := flags.BoolP("all-namespaces", "A", false, "look at all namespaces")
	yes := flags.BoolP("yes", "y", false, "do it")
	release := flags.String("release", "stoker", "Helm release that is to own the custom resource definitions")
	releaseNamespace := flags.String("release-namespace", "stoker-system", "namespace of that release")
	var form *string
	command.RunE = func(command *cobra.Command, _ []string) error {
		p, err := c.connect()
		if err != nil {
			return err
		}
		if *all {
			p.namespace = ""
		}
		ctx, cancel := context.WithTimeout(command.Context(), within)
		defer cancel()
		plan, errPlan := migrate.Finder{Clients: p.Clients, Namespace: p.namespace, Release: *release, ReleaseNamespace: *releaseNamespace}.Plan(ctx)
		if plan == nil {
			plan = []migrate.Action{} // an empty list in JSON instead of null
		}
		r := result{data: plan}
		var lines [][]string
		hands := 0
		for _, a := range plan {
			lines = append(lines, []string{a.Do, a.Object, a.Why})
			r.names = append(r.names, a.Object)
			if a.Do == migrate.ByHand {
				hands++
			}
		}
		r.table = func(w io.Writer) {
			if len(lines) > 0 {
				rows(w, []string{"DO", "OBJECT", "WHY"}, lines)
			}
		}
		if err := c.print(*form, r); err != nil {
			return err
		}
		if errPlan != nil {
			return fmt.Errorf("not all could be looked at: %w", errPlan)
		}
		switch {
		case len(plan) == 0:
			fmt.Fprintln(c.talk, "Nothing is left of an earlier product.")
			return nil
		case !*yes:
			fmt.Fprintf(c.talk, "Nothing was changed. %d of %d are done with --yes.\n", len(plan)-hands, len(plan))
			return nil
		}
		var errs []error
		for _, a := range plan {
			errs = append(errs, a.Apply(ctx))
		}
		if err := errors.Join(errs...); err != nil {
			return err
		}
		fmt.Fprintf(c.talk, "%d of %d done; %d by hand.\n", len(plan)-hands, len(plan), hands)
		return nil
	}
	form = outputs(command)
	return command
}
