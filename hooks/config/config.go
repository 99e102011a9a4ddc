// Package config has the commands of stoker config that run once: they render, compare and apply the objects of a ConfigSync, and show them.
package config

import (
	"context"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
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
