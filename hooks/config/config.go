// Package config has the commands of stoker config that run once: they render, compare and apply the objects of a ConfigSync, and show them.
package config

import (
	"context"
	"fmt"
	"io"
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
	"stoker.io/stoker/hooks/exit"
	"stoker.io/stoker/hooks/output"
	"stoker.io/stoker/hooks/specfile"
	"stoker.io/stoker/internal/configsync"
	"stoker.io/stoker/internal/kube"
)

// Env is what the commands need of the program.
type Env struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Namespace      func() (string, error) // of the flags or the kubeconfig
	Connect        func() (Cluster, error)
}

// Cluster is the namespace with the ConfigSyncs.
type Cluster struct {
	kube.Clients
	Namespace string
	// Get reads a ConfigSync. Its error says what the user can do.
	Get func(ctx context.Context, name string) (*v1alpha1.ConfigSync, error)
	// Explain adds to an error of the API server what the user can do about it.
	Explain func(name string, err error) error
}

// New returns the command with the subcommands that run once.
func New(env *Env) *cobra.Command {
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
	command.AddCommand(newRenderCommand(env), newDiffCommand(env), newApplyCommand(env), newPruneCommand(env), newStatusCommand(env))
	return command
}

// flags are the flags of a subcommand, and the connection to the cluster.
type flags struct {
	env         *Env
	file, ref   string
	showSecrets bool
	timeout     time.Duration
	output      *string

	connectOnce sync.Once
	cluster     Cluster
	connectErr  error
}

// connected returns the cluster. The first call connects, so that a command that needs no cluster works without one.
func (x *flags) connected() (Cluster, error) {
	x.connectOnce.Do(func() { x.cluster, x.connectErr = x.env.Connect() })
	return x.cluster, x.connectErr
}

// engine returns the engine for ConfigSyncs. dir replaces the repository and the path of the spec, unless it is "".
func (x *flags) engine(dir string) *configsync.Engine {
	return &configsync.Engine{Dir: dir, Ref: x.ref, Connect: func() (kube.Clients, error) {
		p, err := x.connected()
		return p.Clients, err
	}}
}

// addSourceFlags adds the flags that choose the ConfigSync and the commit.
func (x *flags) addSourceFlags(command *cobra.Command) {
	f := command.Flags()
	f.StringVarP(&x.file, "filename", "f", "", "file with the ConfigSync; - is stdin (default: the ConfigSync of the cluster)")
	f.StringVar(&x.ref, "ref", "", "branch, tag or commit instead of the one of the spec")
}

// setRun makes run the function of a command, and adds the flags --timeout and --output.
func (x *flags) setRun(command *cobra.Command, run func(ctx context.Context, args []string) error) {
	command.Flags().DurationVar(&x.timeout, "timeout", 15*time.Minute, "maximum duration of the whole run")
	x.output = output.AddFlag(command.Flags())
	command.RunE = func(command *cobra.Command, args []string) error {
		if x.timeout <= 0 {
			return exit.Errorf(exit.Usage, "--timeout must be positive")
		}
		ctx, cancel := context.WithTimeout(command.Context(), x.timeout)
		defer cancel()
		return run(ctx, args)
	}
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
			return "", "", exit.Errorf(exit.Usage, "use at most one name and one directory; a directory has a slash, as in ./kubernetes")
		}
	}
	if dir != "" {
		if st, err := os.Stat(dir); err != nil || !st.IsDir() {
			return "", "", exit.Errorf(exit.Usage, "%s is not a directory of a local clone", dir)
		}
	}
	return name, dir, nil
}

// load returns the ConfigSync of the file or of the cluster. With a directory alone, the ConfigSync has only a namespace.
func (x *flags) load(ctx context.Context, name, dir string) (*v1alpha1.ConfigSync, error) {
	if x.file != "" {
		cs, err := specfile.ConfigSync(x.file, x.env.Stdin)
		if err == nil && name != "" && cs.Name != name {
			err = exit.Errorf(exit.Usage, "%s contains ConfigSync %s, not %s", x.file, cs.Name, name)
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
		return nil, exit.Errorf(exit.Usage, "missing the name of a ConfigSync, a file with -f FILE, or a directory such as ./kubernetes")
	}
	p, err := x.connected()
	if err != nil {
		return nil, err
	}
	return p.Get(ctx, name)
}

// namespace returns the namespace of the flags or of the kubeconfig, or the default one if there is none.
func (x *flags) namespace() string {
	namespace, err := x.env.Namespace()
	if err != nil || namespace == "" {
		return metav1.NamespaceDefault
	}
	return namespace
}

func newRenderCommand(env *Env) *cobra.Command {
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
	x := &flags{env: env}
	x.addSourceFlags(command)
	command.Flags().BoolVar(&x.showSecrets, "show-secrets", false, "show the values of Secrets, and objects that may hold some")
	x.setRun(command, func(ctx context.Context, args []string) error {
		_, rendered, err := x.renderObjects(ctx, args)
		if err != nil {
			return err
		}
		list, withoutValues, hidden := display.Objects(rendered.Objects, x.showSecrets)
		for _, id := range withoutValues {
			if *x.output == output.YAML || *x.output == output.JSON {
				fmt.Fprintf(x.env.Stderr, "warning: %s is shown without its values, and cannot be applied; use --show-secrets\n", output.Clean(id.String()))
			}
		}
		for _, id := range hidden {
			fmt.Fprintf(x.env.Stderr, "warning: %s is not shown, because it may hold values of Secrets; use --show-secrets\n", output.Clean(id.String()))
		}
		return list.Print(x.env.Stdout, *x.output)
	})
	return command
}

// renderObjects returns the ConfigSync of the arguments, and its objects at the commit of the flags.
func (x *flags) renderObjects(ctx context.Context, args []string) (*v1alpha1.ConfigSync, *configsync.Rendered, error) {
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
	fmt.Fprintf(x.env.Stderr, "%s of %s at %.7s\n", output.Count(len(rendered.Objects), "object"), output.OneLine(rendered.Ref), rendered.Commit)
	return cs, rendered, nil
}

func newDiffCommand(env *Env) *cobra.Command {
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
	x := &flags{env: env}
	x.addSourceFlags(command)
	x.setRun(command, func(ctx context.Context, args []string) error {
		cs, rendered, err := x.renderObjects(ctx, args)
		if err != nil {
			return err
		}
		if cs.Name == "" {
			return exit.Errorf(exit.Usage, "missing the name of a ConfigSync, or a file with -f FILE: a diff needs to know what it owns")
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
				return p.Explain(cs.Name, err)
			}
		}
		r, err := x.engine("").Prepare(ctx, cs, rendered)
		if err != nil {
			return err
		}
		if err := display.ConfigPlan(r.Plan).Print(x.env.Stdout, *x.output); err != nil {
			return err
		}
		return r.Plan.Problem(annotation.ConfirmsDeletion(cs.Annotations[v1alpha1.AnnotationConfirmDeletion], rendered.Commit))
	})
	return command
}
