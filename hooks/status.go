package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/hooks/display"
	"stoker.io/stoker/hooks/output"
	"stoker.io/stoker/internal/backoff"
	"stoker.io/stoker/internal/request"
)

// statusInterval is how often --watch reads the status.
const statusInterval = time.Second

func newStatusCommand(c *cli) *cobra.Command {
	command := &cobra.Command{
		Use:   "status NAME",
		Short: "Show the state of each gateway",
		Long: `Show the state of each gateway.

The output first says how many gateways are behind for which reason, and what happens next; the table starts with them. As JSON or
YAML, it is the result that wait returns: phase, ref, commit, numbers of gateways, and unfinished gateways.

With --watch, the command shows the table until you stop it with Ctrl-C, or, if its output is not a terminal, prints a line for each
change. Set NO_COLOR for a table without colors.`,
		Example: `  stoker status line
  stoker status line --watch
  stoker status line -o json`,
		Args: cobra.ExactArgs(1),
	}
	watch := command.Flags().BoolP("watch", "w", false, "show changes until the command is stopped")
	behind := command.Flags().Bool("behind", false, "leave out gateways that run the commit")
	format := addOutputFlag(command)
	command.RunE = func(command *cobra.Command, args []string) error {
		if *watch && *format != output.Table {
			return exitErrorf(exitUsage, "--watch shows a table: leave out --output")
		}
		p, err := c.connect()
		if err != nil {
			return err
		}
		if *watch {
			return c.watchStatus(command.Context(), p, args[0], *behind)
		}
		gs, err := p.load(command.Context(), args[0])
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(command.Context(), pollTimeout)
		defer cancel()
		v, err := request.ReadWithLock(ctx, p.Clients, gs, "")
		if err != nil {
			fmt.Fprintln(c.stderr, output.Clean(err.Error()))
		}
		r := output.Result{Data: v, Names: []string{display.ResourceName(gs)}, Text: func(w io.Writer) { display.Describe(w, gs, v, *behind) }}
		return r.Print(c.stdout, *format)
	}
	return command
}

// watchStatus shows a GatewaySync until ctx is done. It fails only for errors that a retry does not fix, and prints each other
// error when it begins.
func (c *cli) watchStatus(ctx context.Context, p target, name string, behind bool) error {
	viewer := display.NewViewer(c.stdout, c.env, behind)
	failing := false
	for {
		gs, v, err := p.loadVerdict(ctx, name)
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // the user ended it
		case gs == nil && !unavailable(err) && !errors.Is(err, context.DeadlineExceeded), apierrors.IsNotFound(err):
			return p.explain(name, err)
		case err != nil && !failing:
			fmt.Fprintln(c.stderr, output.Clean(err.Error())+"; trying again")
		}
		failing = err != nil
		if gs != nil {
			viewer.Show(gs, v)
		}
		if !backoff.Wait(ctx, statusInterval) {
			return nil
		}
	}
}

// loadVerdict reads a GatewaySync once, and the verdict on it. If only its SyncTarget cannot be read, it returns both with an
// error.
func (p target) loadVerdict(ctx context.Context, name string) (*v1alpha1.GatewaySync, request.Verdict, error) {
	ctx, cancel := context.WithTimeout(ctx, pollTimeout)
	defer cancel()
	gs, err := p.get(ctx, name)
	if err != nil {
		return gs, request.Verdict{}, err
	}
	v, err := request.ReadWithLock(ctx, p.Clients, gs, "")
	return gs, v, err
}
