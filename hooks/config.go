package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/hooks/config"
	"stoker.io/stoker/hooks/daemons"
	"stoker.io/stoker/hooks/exit"
	"stoker.io/stoker/internal/configsync"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/kube"
)

// newConfigCommand returns the command with the subcommands for ConfigSyncs.
func newConfigCommand(c *cli) *cobra.Command {
	command := config.New(&config.Env{
		Stdin: c.stdin, Stdout: c.stdout, Stderr: c.stderr,
		Namespace: func() (string, error) {
			namespace, _, err := c.flags.ToRawKubeConfigLoader().Namespace()
			return namespace, err
		},
		Connect: func() (config.Cluster, error) {
			p, err := c.connect()
			return config.Cluster{Clients: p.Clients, Namespace: p.namespace, Get: p.configSync, Explain: p.explain}, err
		},
	})
	for _, sub := range command.Commands() {
		run := sub.RunE
		sub.RunE = func(sub *cobra.Command, args []string) error { return withExitCode(withReason(run(sub, args))) }
	}
	command.AddCommand(daemons.NewConfigRun(c.daemons()))
	for _, sub := range command.Commands() {
		sub.Args = explainArgs(sub.Args, "name of a ConfigSync")
	}
	return command
}

// daemons returns what the commands that run until they are stopped need.
func (c *cli) daemons() *daemons.Env {
	return &daemons.Env{Stderr: c.stderr, Connect: func() (daemons.Cluster, error) {
		p, err := c.connect()
		return daemons.Cluster{Clients: p.Clients, Namespace: p.namespace, Version: version}, err
	}}
}

// withExitCode returns err with the exit code for its reason or for a concurrent change, unless err has a code already.
func withExitCode(err error) error {
	reason := failure.Reason(err, "")
	_, hasCode := errors.AsType[*exit.Error](err)
	switch {
	case err == nil, hasCode:
		return err
	case errors.Is(err, configsync.ErrConcurrentChange):
		return exit.With(exit.Retry, err)
	case reason == "":
		return err
	case reason == v1alpha1.ReasonApplyForbidden, reason == v1alpha1.ReasonRefNotAllowed:
		return exit.With(exit.Forbidden, err)
	case reason == v1alpha1.ReasonProgressDeadlineExceeded:
		return exit.With(exit.Timeout, err)
	case reason == v1alpha1.ReasonPaused, reason.Class() == v1alpha1.ClassHeld:
		return exit.With(exit.Held, err)
	case reason != v1alpha1.ReasonUnhealthy && (reason.Class() == v1alpha1.ClassRetry || reason.Class() == v1alpha1.ClassWorking):
		return exit.With(exit.Retry, err)
	}
	return err
}

func (p target) configSync(ctx context.Context, name string) (cs *v1alpha1.ConfigSync, err error) {
	err = p.retry(ctx, func(ctx context.Context) (err error) {
		cs, err = kube.ConfigSyncs(p.Dynamic, p.namespace).Get(ctx, name)
		return err
	})
	p.kind = kube.ConfigSync
	return cs, p.explain(name, err)
}
