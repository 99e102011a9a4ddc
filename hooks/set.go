package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/verb"
)

// asking is what commands share that ask for something.
type asking struct {
	*cli
	output *string
	by, id string
	wait   bool
	limits *limits
}

// asks makes a command one that asks.
func (c *cli) asks(command *cobra.Command, run func(context.Context, *asking, []string) error) *asking {
	a := &asking{cli: c}
	command.RunE = func(command *cobra.Command, args []string) error { return run(command.Context(), a, args) }
	a.output = outputs(command)
	return a
}

// sends adds the flags of a request that has a sender.
func (a *asking) sends(command *cobra.Command) {
	f := command.Flags()
	f.StringVar(&a.by, "by", "cli", "who asks: "+strings.Join(verb.Senders, ", "))
	f.StringVar(&a.id, "id", "", "tells a request that is repeated from a new one, such as the name of a Job or a promotion")
	f.BoolVar(&a.wait, "wait", false, "wait until the gateways run it, as the command wait does")
	a.limits = waitFlags(command)
}

func (c *cli) setRef() *cobra.Command {
	command := &cobra.Command{
		Use:   "set-ref NAME REF",
		Short: "Ask for a ref: a branch, a tag or a commit",
		Long: `Ask for a ref: a branch, a tag or a commit.

The request stands in annotations of the GatewaySync and counts until spec.git.ref changes, or somebody asks for another
ref. To ask for the ref that spec.git.ref says ends an earlier request. To ask twice for the same changes nothing.`,
		Example: `  # run the tag v2.4.0 on all gateways of the GatewaySync plant, and wait for it
  stoker set-ref plant v2.4.0 --wait

  # from a Job that may be repeated
  stoker set-ref plant "$REVISION" --by argocd --id "$JOB_NAME"

  # follow the branch of spec.git.ref again
  stoker set-ref plant main`,
		Args: cobra.ExactArgs(2),
	}
	c.asks(command, func(ctx context.Context, got *asking, args []string) error {
		if args[1] == "" {
			return outcome(exitUsage, "the ref is empty: name a branch, a tag or a commit")
		}
		return got.ask(ctx, args[0], "is to run "+args[1], func(ctx context.Context, p place) (verb.Answer, error) {
			return p.setter().Ask(ctx, p.namespace, args[0], verb.Request{Ref: args[1], By: got.by, ID: got.id})
		})
	}).sends(command)
	return command
}

func (c *cli) sync() *cobra.Command {
	command := &cobra.Command{
		Use:   "sync NAME",
		Short: "Look at git again now, and sync what moved",
		Long: `Look at git again now, and sync what moved.

With --force every managed file is compared by its content, drift is repaired, and gateways scan again. It is also the
answer to a sync that is held as MassDeletion.`,
		Example: `  # do not wait for spec.polling.interval
  stoker sync plant --wait

  # verify all files, repair what was changed on the gateways
  stoker sync plant --force`,
		Args: cobra.ExactArgs(1),
	}
	force := command.Flags().Bool("force", false, "verify every managed file by its content, and repair")
	c.asks(command, func(ctx context.Context, got *asking, args []string) error {
		return got.ask(ctx, args[0], "is asked to sync", func(ctx context.Context, p place) (verb.Answer, error) {
			return p.setter().Ask(ctx, p.namespace, args[0], verb.Request{By: got.by, ID: got.id, Force: *force})
		})
	}).sends(command)
	return command
}

func (c *cli) rollback() *cobra.Command {
	command := &cobra.Command{
		Use:   "rollback NAME",
		Short: "Go back to the last good commit",
		Long: `Go back to the last good commit: the last one that ran on every gateway, verified.

Where a branch led to what is rolled back, the rollback counts until the branch moves on: its next commit is taken again.
Where a request did, it counts until somebody asks for another ref.`,
		Example: `  # back to the last commit that ran on all gateways
  stoker rollback plant --wait

  # to an earlier one
  stoker history plant
  stoker rollback plant --to 3f9c2d1`,
		Args: cobra.ExactArgs(1),
	}
	to := command.Flags().String("to", "", "a commit of the history, seven digits or more; left out: the last good one")
	c.asks(command, func(ctx context.Context, got *asking, args []string) error {
		return got.ask(ctx, args[0], "goes back", func(ctx context.Context, p place) (verb.Answer, error) {
			for { // the lead may be about to say where the branch stands
				answer, err := p.setter().Rollback(ctx, p.namespace, args[0], *to, got.by, got.id)
				if !errors.Is(err, verb.ErrTooEarly) || !pause(ctx, time.Second) {
					return answer, err
				}
			}
		})
	}).sends(command)
	return command
}

func (c *cli) pause() *cobra.Command {
	command := &cobra.Command{
		Use:   "pause NAME",
		Short: "Sync nothing until resume",
		Long: `Sync nothing until resume. Gateways keep what they run and may restart; drift is still reported.

It is an annotation, which Argo CD does not revert.`,
		Example: `  stoker pause plant
  stoker resume plant`,
		Args: cobra.ExactArgs(1),
	}
	c.asks(command, func(ctx context.Context, got *asking, args []string) error {
		return got.ask(ctx, args[0], "is paused", func(ctx context.Context, p place) (verb.Answer, error) {
			return p.setter().Pause(ctx, p.namespace, args[0], true)
		})
	})
	return command
}

func (c *cli) resume() *cobra.Command {
	command := &cobra.Command{
		Use:     "resume NAME",
		Short:   "Sync again after pause",
		Example: `  stoker resume plant`,
		Args:    cobra.ExactArgs(1),
	}
	c.asks(command, func(ctx context.Context, got *asking, args []string) error {
		return got.ask(ctx, args[0], "is not paused", func(ctx context.Context, p place) (verb.Answer, error) {
			answer, err := p.setter().Pause(ctx, p.namespace, args[0], false)
			if err == nil && answer.GatewaySync.Spec.Paused {
				return answer, errors.New("spec.paused is true: set it to false where the manifest is kept; these commands never write the spec")
			}
			return answer, err
		})
	})
	return command
}

// ask carries one request out and prints what became of it.
func (a *asking) ask(ctx context.Context, name, done string, ask func(context.Context, place) (verb.Answer, error)) error {
	p, err := a.connect()
	if err != nil {
		return err
	}
	asking, cancel := context.WithTimeout(ctx, within)
	answer, err := ask(asking, p)
	cancel()
	if err != nil {
		return p.explain(name, err)
	}
	if answer.Outcome == verb.Superseded {
		return outcome(exitSuperseded, "%s", answer.Message)
	}
	d, err := v1alpha1.DesiredRef(answer.GatewaySync, "")
	if err != nil && answer.Ref != "" {
		return err
	}
	if answer.Ref != "" && d.Ref != answer.Ref {
		return outcome(exitSuperseded, "superseded: %s; by now it is to run %s", answer.Message, d.Ref)
	}
	full := resourceName(answer.GatewaySync)
	if err := a.print(*a.output, result{
		table: func(w io.Writer) {
			line := full + " " + done
			if answer.Message != "" {
				line += " (" + answer.Message + ")"
			} else if answer.Outcome == verb.Unchanged {
				line += " (it was before)"
			}
			fmt.Fprintln(w, clean(line))
		},
		data:  bareObject(answer.GatewaySync),
		names: []string{full},
	}); err != nil || !a.wait {
		return err
	}
	_, err = a.await(ctx, p, name, answer.Ref, a.limits)
	return err
}

// pause waits, and reports whether ctx let it.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
