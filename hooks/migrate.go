package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/gatewaypod"
	"stoker.io/stoker/hooks/check"
	"stoker.io/stoker/hooks/migrate"
	"stoker.io/stoker/hooks/output"
)

// planTimeout bounds the reads of stoker migrate. They are three for each pod with a foreign agent.
const planTimeout = 10 * time.Minute

func newMigrateCommand(c *cli) *cobra.Command {
	command := &cobra.Command{
		Use:   "migrate",
		Short: "Remove objects that an earlier product of the API group left",
		Long: `Remove objects that an earlier product of the API group left.

Without --yes the command only lists its actions. It labels the definition of GatewaySync for the Helm release, removes the
finalizer stoker.io/finalizer from objects, and evicts pods whose container stoker-agent belongs to another program: one pod of
a GatewaySync at a time, within disruption budgets. It deletes no object, and lists steps that you have to do as "by hand".
Remove the Deployment of the earlier product first. Run the command before and after you install Stoker.

The command needs the rights of a cluster administrator.`,
		Example: `  stoker migrate -A
  stoker migrate -A --yes`,
		Args: cobra.NoArgs,
	}
	flags := command.Flags()
	all := flags.BoolP("all-namespaces", "A", false, "search all namespaces")
	yes := flags.BoolP("yes", "y", false, "carry out the listed actions")
	release := flags.String("release", "stoker", "Helm release that will own the custom resource definitions")
	releaseNamespace := flags.String("release-namespace", "stoker-system", "namespace of that release")
	format := output.AddFlag(command.Flags())
	command.RunE = func(command *cobra.Command, _ []string) error {
		p, err := c.connect()
		if err != nil {
			return err
		}
		if *all {
			p.namespace = ""
		}
		ctx, cancel := context.WithTimeout(command.Context(), planTimeout)
		defer cancel()
		noAgent := func(ctx context.Context, pod *corev1.Pod) (string, error) {
			name, _ := gatewaypod.Annotation(pod.Annotations, v1alpha1.AnnotationCRName)
			f, err := (check.Checker{Clients: p.Clients, Namespace: pod.Namespace}).DryRun(ctx, name, pod.Annotations)
			if f.State == check.OK {
				return "", err
			}
			return f.Message, err
		}
		plan, errPlan := migrate.Finder{Clients: p.Clients, Namespace: p.namespace, Release: *release, ReleaseNamespace: *releaseNamespace, NoAgent: noAgent}.Plan(ctx)
		r := output.Result{Data: append([]migrate.Action{}, plan...), Head: []string{"ACTION", "OBJECT", "REASON"}}
		byHand := 0
		for _, a := range plan {
			r.Add(a.Object, a.Do, a.Object, a.Why)
			if a.Do == migrate.ByHand {
				byHand++
			}
		}
		if len(plan) > 0 || *format != output.Table {
			if err := r.Print(c.stdout, *format); err != nil {
				return err
			}
		}
		switch {
		case errPlan != nil:
			return fmt.Errorf("the list is incomplete: %w", errPlan)
		case len(plan) == 0:
			fmt.Fprintln(c.stderr, "Nothing to do: there are no objects of an earlier product. To go on with Helm after kustomize, see docs/how-to/kustomize.md#uninstall-or-go-on-with-helm.")
			return nil
		case !*yes:
			fmt.Fprintf(c.stderr, "Nothing was changed. With --yes, %d of %d actions are carried out.\n", len(plan)-byHand, len(plan))
			return nil
		}
		var errs []error
		for _, a := range plan {
			ctx, cancel := context.WithTimeout(command.Context(), queryTimeout)
			errs = append(errs, a.Apply(ctx))
			cancel()
		}
		if err := errors.Join(errs...); err != nil {
			return err
		}
		fmt.Fprintf(c.stderr, "%d of %d actions done; %d left to do by hand.\n", len(plan)-byHand, len(plan), byHand)
		return nil
	}
	return command
}
