// Package command has the commands of stoker create: their flags, and what they read and write. Package create computes the objects.
package command

import (
	"io"
	"time"

	"github.com/spf13/cobra"

	"stoker.io/stoker/hooks/exit"
	"stoker.io/stoker/internal/kube"
)

// Env is what the commands need of the program.
type Env struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Interactive    bool          // a user can answer a question
	Namespace      func() string // of the flag --namespace; "" if it is not set
	Connect        func() (Cluster, error)
}

// Cluster is the namespace in which objects are created.
type Cluster struct {
	kube.Clients
	Namespace string
	// Explain adds to an error of the API server what the user can do about it.
	Explain func(name string, err error) error
}

const (
	treeTimeout  = 10 * time.Minute // to read a repository
	queryTimeout = 30 * time.Second // for the API server, and for an ssh host
)

// New returns the command with its subcommands.
func New(env *Env) *cobra.Command {
	command := &cobra.Command{
		Use:   "create",
		Short: "Create a GatewaySync from a repository, and its Secrets",
		Long: `Create a GatewaySync from a repository, and its Secrets.

The commands print YAML to commit, or with --apply create the object.`,
		Example: `  stoker create gatewaysync plants --dir . > gatewaysync.yaml`,
		Args:    cobra.NoArgs,
		RunE:    func(command *cobra.Command, _ []string) error { return command.Help() },
	}
	command.AddCommand(newGatewaySyncCommand(env), newSecretCommand(env))
	return command
}

// applyFlags choose between printing and creating an object.
type applyFlags struct{ apply, export bool }

func (a *applyFlags) add(command *cobra.Command) {
	f := command.Flags()
	f.BoolVar(&a.apply, "apply", false, "create the object in the cluster, unless it exists and is the same")
	f.BoolVar(&a.export, "export", true, "print the object as YAML")
	command.MarkFlagsMutuallyExclusive("apply", "export")
	command.PreRunE = func(*cobra.Command, []string) error {
		if !a.export {
			return exit.Errorf(exit.Usage, "--export=false: to create the object, use --apply")
		}
		return nil
	}
}
