package config

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/hooks/display"
	"stoker.io/stoker/hooks/exit"
	"stoker.io/stoker/hooks/output"
	"stoker.io/stoker/internal/kube"
)

func newStatusCommand(env *Env) *cobra.Command {
	command := &cobra.Command{
		Use:   "status [NAME]",
		Short: "Show ConfigSyncs and the objects of one",
		Long: `Show ConfigSyncs and the objects of one.

With NAME the command shows what the last run did with each object. With --orphans it lists objects that are marked as the
ConfigSync's and that its inventory does not have, as after a restore of the cluster without the status. No run deletes those:
delete them yourself, or add them to git.`,
		Example: `  stoker config status
  stoker config status plant
  stoker config status plant --orphans`,
		Args: cobra.MaximumNArgs(1),
	}
	orphans := command.Flags().Bool("orphans", false, "list marked objects that are not in the inventory")
	x := &flags{env: env}
	x.setRun(command, func(ctx context.Context, args []string) error {
		p, err := x.connected()
		if err != nil {
			return err
		}
		if len(args) == 0 {
			if *orphans {
				return exit.Errorf(exit.Usage, "--orphans needs the name of a ConfigSync")
			}
			return x.listConfigSyncs(ctx, p)
		}
		cs, err := p.Get(ctx, args[0])
		if err != nil {
			return err
		}
		if *orphans {
			return x.listOrphans(ctx, cs)
		}
		return display.ConfigSync(cs).Print(x.env.Stdout, *x.output)
	})
	return command
}

func (x *flags) listConfigSyncs(ctx context.Context, p Cluster) error {
	list, undecodable, err := kube.ConfigSyncs(p.Dynamic, p.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return p.Explain("", err)
	}
	errs := []error{display.ConfigSyncs(list).Print(x.env.Stdout, *x.output)}
	for _, u := range undecodable {
		errs = append(errs, u)
	}
	return errors.Join(errs...)
}

// listOrphans prints the objects that are marked as those of cs and are not in its inventory.
func (x *flags) listOrphans(ctx context.Context, cs *v1alpha1.ConfigSync) error {
	orphans, unlisted, err := x.engine("").Orphans(ctx, cs)
	if err != nil {
		return err
	}
	if len(unlisted) > 0 {
		fmt.Fprintf(x.env.Stderr, "warning: not listed, because a right or an answer is missing: %s\n", output.Clean(strings.Join(unlisted, ", ")))
	}
	return display.Orphans(orphans).Print(x.env.Stdout, *x.output)
}
