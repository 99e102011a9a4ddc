package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/annotation"
	"stoker.io/stoker/hooks/display"
	"stoker.io/stoker/hooks/output"
	"stoker.io/stoker/hooks/specfile"
	"stoker.io/stoker/internal/configsync"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/kube"
)

// newConfigCommand returns the command with the subcommands for ConfigSyncs.
func newConfigCommand(c *cli) *cobra.Command {
	command := &cobra.Command{
		Use:   "config",
		Short: "Apply objects of Kubernetes from git",
		Long: `Apply objects of Kubernetes from git.

A ConfigSync says which objects of which commit belong to a namespace. These commands render, compare and apply them with the
rights of their caller. Only the command run watches ConfigSyncs.`,
		Example: `  stoker config diff plant
  stoker config apply plant
  stoker config status plant`,
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error { return command.Help() },
	}
	for _, sub := range []*cobra.Command{newConfigRenderCommand(c), newConfigDiffCommand(c), newConfigApplyCommand(c), newConfigPruneCommand(c), newConfigStatusCommand(c), newConfigRunCommand(c)} {
		sub.Args = explainArgs(sub.Args, "ConfigSync")
		command.AddCommand(sub)
	}
	return command
}

// configFlags are the flags of the subcommands that run once, and the connection to the cluster.
type configFlags struct {
	c           *cli
	file, ref   string
	showSecrets bool
	timeout     time.Duration
	output      *string

	connectOnce sync.Once
	target      target
	connectErr  error
}

// connected returns the cluster. The first call connects, so that a command that needs no cluster works without one.
func (x *configFlags) connected() (target, error) {
	x.connectOnce.Do(func() { x.target, x.connectErr = x.c.connect() })
	return x.target, x.connectErr
}

// engine returns the engine for ConfigSyncs. dir replaces the repository and the path of the spec, unless it is "".
func (x *configFlags) engine(dir string) *configsync.Engine {
	return &configsync.Engine{Dir: dir, Ref: x.ref, Connect: func() (kube.Clients, error) {
		p, err := x.connected()
		return p.Clients, err
	}}
}

// addSourceFlags adds the flags that choose the ConfigSync and the commit.
func (x *configFlags) addSourceFlags(command *cobra.Command) {
	f := command.Flags()
	f.StringVarP(&x.file, "filename", "f", "", "file with the ConfigSync; - is stdin (default: the ConfigSync of the cluster)")
	f.StringVar(&x.ref, "ref", "", "branch, tag or commit instead of the one of the spec")
}

// setRun makes run the function of a command, and adds the flags --timeout and --output. An error of run gets the exit code of
// its reason.
func (x *configFlags) setRun(command *cobra.Command, run func(ctx context.Context, args []string) error) {
	command.Flags().DurationVar(&x.timeout, "timeout", 15*time.Minute, "maximum duration of the whole run")
	x.output = addOutputFlag(command)
	command.RunE = func(command *cobra.Command, args []string) error {
		if x.timeout <= 0 {
			return exitErrorf(exitUsage, "--timeout must be positive")
		}
		ctx, cancel := context.WithTimeout(command.Context(), x.timeout)
		defer cancel()
		return withExitCode(withReason(run(ctx, args)))
	}
}

// withExitCode returns err with the exit code of its reason, unless err has one already.
func withExitCode(err error) error {
	reason := failure.Reason(err, "")
	_, hasCode := errors.AsType[*exitError](err)
	switch {
	case err == nil, hasCode:
		return err
	case errors.Is(err, configsync.ErrConcurrentChange):
		return &exitError{exitRetry, err}
	case reason == "":
		return err
	case reason == v1alpha1.ReasonApplyForbidden, reason == v1alpha1.ReasonRefNotAllowed:
		return &exitError{exitForbidden, err}
	case reason == v1alpha1.ReasonProgressDeadlineExceeded:
		return &exitError{exitTimeout, err}
	case reason == v1alpha1.ReasonPaused, reason.Class() == v1alpha1.ClassHeld:
		return &exitError{exitHeld, err}
	case reason != v1alpha1.ReasonUnhealthy && (reason.Class() == v1alpha1.ClassRetry || reason.Class() == v1alpha1.ClassWorking):
		return &exitError{exitRetry, err}
	}
	return err
}

// isDir reports whether an argument is a directory and not the name of a ConfigSync, which has no slash.
func isDir(arg string) bool { return arg == "." || arg == ".." || strings.Contains(arg, "/") }

// splitArgs returns the name and the directory among the arguments of render and diff, in any order; "" for a missing
// one.
func splitArgs(args []string) (name, dir string, err error) {
	for _, arg := range args {
		switch {
		case isDir(arg) && dir == "":
			dir = arg
		case !isDir(arg) && name == "":
			name = arg
		default:
			return "", "", exitErrorf(exitUsage, "use at most one name and one directory; a directory has a slash, as in ./kubernetes")
		}
	}
	if dir != "" {
		if st, err := os.Stat(dir); err != nil || !st.IsDir() {
			return "", "", exitErrorf(exitUsage, "%s is not a directory of a local clone", dir)
		}
	}
	return name, dir, nil
}

// load returns the ConfigSync of the file or of the cluster. With a directory alone, the ConfigSync has only a namespace.
func (x *configFlags) load(ctx context.Context, name, dir string) (*v1alpha1.ConfigSync, error) {
	if x.file != "" {
		cs, err := specfile.ConfigSync(x.file, x.c.stdin)
		if err == nil && name != "" && cs.Name != name {
			err = exitErrorf(exitUsage, "%s contains ConfigSync %s, not %s", x.file, cs.Name, name)
		}
		if err == nil && cs.Namespace == "" {
			cs.Namespace = x.namespace()
		}
		return cs, err
	}
	if name == "" && dir != "" {
		return &v1alpha1.ConfigSync{ObjectMeta: metav1.ObjectMeta{Namespace: x.namespace()}}, nil
	}
	if name == "" {
		return nil, exitErrorf(exitUsage, "missing the name of a ConfigSync, a file with -f FILE, or a directory such as ./kubernetes")
	}
	p, err := x.connected()
	if err != nil {
		return nil, err
	}
	return p.configSync(ctx, name)
}

// namespace returns the namespace of the flags or of the kubeconfig, or the default one if there is none.
func (x *configFlags) namespace() string {
	namespace, _, err := x.c.flags.ToRawKubeConfigLoader().Namespace()
	if err != nil || namespace == "" {
		return metav1.NamespaceDefault
	}
	return namespace
}

// configSync reads one ConfigSync from the cluster.
func (p target) configSync(ctx context.Context, name string) (cs *v1alpha1.ConfigSync, err error) {
	err = p.retry(ctx, func(ctx context.Context) (err error) {
		cs, err = kube.ConfigSyncs(p.Dynamic, p.namespace).Get(ctx, name)
		return err
	})
	p.kind = kube.ConfigSync
	return cs, p.explain(name, err)
}

func newConfigRenderCommand(c *cli) *cobra.Command {
	command := &cobra.Command{
		Use:   "render [NAME] [DIR]",
		Short: "Show the objects of a commit",
		Long: `Show the objects of a commit.

The ConfigSync comes from the cluster, by its NAME, or from a file. DIR is a directory of a local clone: it replaces the
repository and the path of the spec, at HEAD or --ref. With DIR alone the command needs no cluster.

Values of Secrets, and objects whose templates can use them, are shown only with --show-secrets.`,
		Example: `  # what is committed in this clone
  stoker config render ./kubernetes

  # the objects of a ConfigSync, as YAML for other tools
  stoker config render plant -o yaml`,
		Args: cobra.MaximumNArgs(2),
	}
	x := &configFlags{c: c}
	x.addSourceFlags(command)
	command.Flags().BoolVar(&x.showSecrets, "show-secrets", false, "show the values of Secrets, and objects that may hold some")
	x.setRun(command, func(ctx context.Context, args []string) error {
		_, rendered, err := x.renderObjects(ctx, args)
		if err != nil {
			return err
		}
		list, hidden := display.Objects(rendered.Objects, x.showSecrets)
		for _, id := range hidden {
			fmt.Fprintf(x.c.stderr, "warning: %s is not shown, because it may hold values of Secrets; use --show-secrets\n", output.Clean(id.String()))
		}
		return list.Print(x.c.stdout, *x.output)
	})
	return command
}

// renderObjects returns the ConfigSync of the arguments, and its objects at the commit of the flags.
func (x *configFlags) renderObjects(ctx context.Context, args []string) (*v1alpha1.ConfigSync, *configsync.Rendered, error) {
	name, dir, err := splitArgs(args)
	if err != nil {
		return nil, nil, err
	}
	cs, err := x.load(ctx, name, dir)
	if err != nil {
		return nil, nil, err
	}
	rendered, err := x.engine(dir).Render(ctx, cs)
	if err != nil {
		return nil, nil, err
	}
	fmt.Fprintf(x.c.stderr, "%s of %s at %.7s\n", output.Count(len(rendered.Objects), "object"), output.OneLine(rendered.Ref), rendered.Commit)
	return cs, rendered, nil
}

func newConfigDiffCommand(c *cli) *cobra.Command {
	command := &cobra.Command{
		Use:   "diff [NAME] [DIR]",
		Short: "Show what a run would change in the cluster",
		Long: `Show what a run would change in the cluster.

The command renders as the command render does, and dry-runs the objects that are not as git has them. It prints the fields that
would change, never their values. It changes nothing, and needs the rights of a run. The exit code is 6 if a run would be held,
and 1 or 5 if the API server refuses an object.`,
		Example: `  stoker config diff plant

  # before a push: what the commit of this clone would change
  stoker config diff plant ./kubernetes`,
		Args: cobra.MaximumNArgs(2),
	}
	x := &configFlags{c: c}
	x.addSourceFlags(command)
	x.setRun(command, func(ctx context.Context, args []string) error {
		cs, rendered, err := x.renderObjects(ctx, args)
		if err != nil {
			return err
		}
		if cs.Name == "" {
			return exitErrorf(exitUsage, "missing the name of a ConfigSync, or a file with -f FILE: a diff needs to know what it owns")
		}
		if cs.UID == "" { // from a file: the status is in the cluster
			p, err := x.connected()
			if err != nil {
				return err
			}
			switch live, err := kube.ConfigSyncs(p.Dynamic, cs.Namespace).Get(ctx, cs.Name); {
			case err == nil:
				cs.Status = live.Status
			case !apierrors.IsNotFound(err): // without the inventory, the diff would not show what a run deletes
				return p.explain(cs.Name, err)
			}
		}
		r, err := x.engine("").Prepare(ctx, cs, rendered)
		if err != nil {
			return err
		}
		if err := display.ConfigPlan(r.Plan).Print(x.c.stdout, *x.output); err != nil {
			return err
		}
		return r.Plan.Problem(annotation.ConfirmsDeletion(cs.Annotations[v1alpha1.AnnotationConfirmDeletion], rendered.Commit))
	})
	return command
}
