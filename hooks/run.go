package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/cli-runtime/pkg/genericclioptions"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/hooks/completion"
	create "stoker.io/stoker/hooks/create/command"
	"stoker.io/stoker/hooks/daemons"
	"stoker.io/stoker/hooks/exit"
	"stoker.io/stoker/hooks/output"
	"stoker.io/stoker/hooks/push"
	"stoker.io/stoker/internal/request"
)

// run is the whole program, for main and tests. args[0] is the name of the program.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	name := "stoker"
	if base := filepath.Base(args[0]); strings.HasPrefix(base, "kubectl-stoker") {
		name = "kubectl stoker"
	}
	return newCLI(stdout, stderr).run(ctx, name, args[1:])
}

func (c *cli) run(ctx context.Context, name string, args []string) int {
	root := c.root(name)
	root.SetArgs(args)
	command, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exit.Done
	}
	var code int
	if !c.argsValid { // cobra rejected the arguments or flags, so the command did not run
		code = exit.Usage
		err = fmt.Errorf("%w\nSee '%s --help'", err, command.CommandPath())
	} else {
		code = exitCodeOf(ctx, err)
	}
	fmt.Fprintf(c.stderr, "%s: %s\n", name, output.Clean(err.Error()))
	return code
}

// exitCodeOf returns the exit code for the error of a command.
func exitCodeOf(ctx context.Context, err error) int {
	if e, ok := errors.AsType[*exit.Error](err); ok {
		return e.Code
	}
	_, invalid := errors.AsType[*request.InvalidError](err)
	switch {
	// The user interrupted the command, the API server does not answer, other clients wrote the object at each of many attempts, or
	// the object was deleted and created again.
	case ctx.Err() != nil, unavailable(err), apierrors.IsConflict(err), errors.Is(err, request.ErrReplaced):
		return exit.Retry
	case invalid:
		return exit.Usage
	case apierrors.IsForbidden(err), apierrors.IsUnauthorized(err):
		return exit.Forbidden
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, request.ErrTooEarly):
		return exit.Timeout
	}
	return exit.Failed
}

// cli holds what all commands share.
type cli struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	interactive    bool                // stderr is a terminal
	env            func(string) string // returns an environment variable
	flags          *genericclioptions.ConfigFlags
	argsValid      bool // cobra accepted the arguments, and a command runs
	answersAtOnce  bool // the command is one of viewCommands, and requests nothing
}

// viewCommands show something, unless a flag such as --restore requests a change. They do not retry while the API server does not answer.
var viewCommands = []string{"get", "status", "history", "proposals", "snapshots", "diff", "ui", "config status", "config diff"}

func newCLI(stdout, stderr io.Writer) *cli {
	f := genericclioptions.NewConfigFlags(true)
	f.CacheDir, f.DisableCompression, f.Username, f.Password = nil, nil, nil, nil
	return &cli{stdin: os.Stdin, stdout: stdout, stderr: stderr, interactive: output.IsTerminal(stderr), env: os.Getenv, flags: f}
}

// root returns the root command with all commands below it. name is the name of the program in help texts.
func (c *cli) root(name string) *cobra.Command {
	root := &cobra.Command{
		Use:   "stoker",
		Short: "Keep Ignition gateways on Kubernetes at a commit of git",
		Long: `Keep Ignition gateways on Kubernetes at a commit of git.

A GatewaySync defines the ref that its gateways run. These commands request a ref, wait until the gateways run it, and show
the state of each gateway. Data goes to stdout; messages go to stderr.

Exit codes: 0 success, 1 failed, 2 usage, 3 timeout, 4 superseded, 5 forbidden, 6 held, 7 interrupted or API server
unavailable (try again).`,
		SilenceErrors: true, SilenceUsage: true,
		Annotations: map[string]string{cobra.CommandDisplayNameAnnotation: name},
		PersistentPreRunE: func(command *cobra.Command, _ []string) error {
			c.argsValid = true
			_, path, _ := strings.Cut(command.CommandPath(), " ")
			c.answersAtOnce = slices.Contains(viewCommands, strings.TrimPrefix(path, "stoker "))
			return errors.Join(output.CheckFlag(command.Flags()), checkEmpty(command))
		},
		SuggestionsMinimumDistance: 2,
		Args: func(command *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			if near := command.SuggestionsFor(args[0]); len(near) > 0 {
				return fmt.Errorf("unknown command %.40q; did you mean %s?", args[0], strings.Join(near, " or "))
			}
			return fmt.Errorf("unknown command %.40q", args[0])
		},
		RunE: func(command *cobra.Command, _ []string) error { return command.Help() },
	}
	root.SetOut(c.stdout)
	root.SetErr(c.stderr)
	c.flags.AddFlags(root.PersistentFlags())
	root.AddGroup(
		&cobra.Group{ID: "request", Title: "Request changes:"},
		&cobra.Group{ID: "inspect", Title: "Inspect gateways and commits:"},
		&cobra.Group{ID: "config", Title: "Apply objects of Kubernetes:"},
		&cobra.Group{ID: "install", Title: "Install and verify:"},
	)
	for group, commands := range map[string][]*cobra.Command{
		"request": {newSetRefCommand(c), newSyncCommand(c), newRollbackCommand(c), newApproveCommand(c), newRetryCommand(c), newPauseCommand(c), newResumeCommand(c)},
		"inspect": {newGetCommand(c), newStatusCommand(c), newUICommand(c), newHistoryCommand(c), newProposalsCommand(c), newSnapshotsCommand(c), newWaitCommand(c), newDiffCommand(c), newRenderCommand(c), newPreflightCommand(c)},
		"config":  {newConfigCommand(c)},
		"install": {newBundleCommand(c), newCheckCommand(c), newCreateCommand(c), push.NewCommand(c.stdout), daemons.NewNotify(c.daemons()), newMigrateCommand(c)},
	} {
		for _, command := range commands {
			command.GroupID = group
			missing := "name of a GatewaySync"
			if command.Name() == "push" {
				missing = "address of an artifact"
			}
			command.Args = explainArgs(command.Args, missing)
			root.AddCommand(command)
		}
	}
	root.AddCommand(newVersionCommand(c), newOptionsCommand(c), newManCommand())
	root.SetUsageTemplate(shortUsage.Replace(root.UsageTemplate()))
	if err := completion.Register(root, c.completionSource()); err != nil { // a defect that the completion test catches: a flag does not exist
		fmt.Fprintf(c.stderr, "completion: %v\n", err)
	}
	return root
}

// checkEmpty returns an error if a flag of command is empty and has no default. The command would run as without the flag, for example
// for any commit, because a variable of a script is not set.
func checkEmpty(command *cobra.Command) (err error) {
	command.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if f.Changed && f.Value.Type() == "string" && f.Value.String() == "" && f.DefValue == "" {
			err = exit.Errorf(exit.Usage, "--%s is empty: set a value, or omit the flag", f.Name)
		}
	})
	return err
}

// printTable prints a table, or the same data in another format. Instead of a table without rows, it prints the text in empty to stderr, or
// nothing if empty is "".
func (c *cli) printTable(r *output.Result, format, empty string) error {
	if len(r.Rows) > 0 || format != output.Table {
		return r.Print(c.stdout, format)
	}
	if empty != "" {
		fmt.Fprintln(c.stderr, empty)
	}
	return nil
}

// completionTimeout bounds how long completion waits for the API server.
const completionTimeout = 3 * time.Second

// completionSource returns what completion reads, with the flags of the command.
func (c *cli) completionSource() completion.Source {
	return completion.Source{
		GatewaySyncs: func(ctx context.Context, allNamespaces bool) []*v1alpha1.GatewaySync {
			p, err := c.connect()
			if err != nil {
				return nil
			}
			if allNamespaces {
				p.namespace = ""
			}
			ctx, cancel := context.WithTimeout(ctx, completionTimeout)
			defer cancel()
			list, _, err := list(ctx, p)
			if err != nil {
				return nil
			}
			return list
		},
		GatewaySync: func(ctx context.Context, name string) *v1alpha1.GatewaySync {
			p, err := c.connect()
			if err != nil {
				return nil
			}
			ctx, cancel := context.WithTimeout(ctx, completionTimeout)
			defer cancel()
			gs, err := p.load(ctx, name)
			if err != nil {
				return nil
			}
			return gs
		},
		Contexts: func() []string {
			config, err := c.flags.ToRawKubeConfigLoader().RawConfig()
			if err != nil {
				return nil
			}
			return slices.Sorted(maps.Keys(config.Contexts))
		},
	}
}

// newCreateCommand returns the command that creates a GatewaySync and its Secrets.
func newCreateCommand(c *cli) *cobra.Command {
	root := create.New(&create.Env{
		Stdin: c.stdin, Stdout: c.stdout, Stderr: c.stderr, Interactive: c.interactive,
		Namespace: func() string { return *c.flags.Namespace },
		Connect: func() (create.Cluster, error) {
			p, err := c.connect()
			return create.Cluster{Clients: p.Clients, Namespace: p.namespace, Explain: p.explainWrite}, err
		},
	})
	for _, sub := range root.Commands() {
		explainCreate(sub, "GatewaySync")
		for _, secret := range sub.Commands() {
			explainCreate(secret, "Secret")
		}
	}
	return root
}

// explainCreate makes the errors of a command name the arguments and reasons. kind is the kind of the object that the first argument names.
func explainCreate(command *cobra.Command, kind string) {
	command.Args = explainArgs(command.Args, "name of a "+kind)
	run := command.RunE
	command.RunE = func(command *cobra.Command, args []string) error { return withReason(run(command, args)) }
}
