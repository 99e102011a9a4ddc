// Package command has the commands of stoker create: their flags, and what they read and write. Package create computes the objects.
package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/hooks/create"
	"stoker.io/stoker/hooks/exit"
	"stoker.io/stoker/internal/kube"
)

// explain adds to an error what the user can do about it. No role of Stoker grants the right to create these objects, so the API server's text
// for a missing right stays as it is.
func (p Cluster) explain(name string, err error) error {
	answer, answered := errors.AsType[*apierrors.StatusError](err)
	switch {
	case apierrors.IsForbidden(err):
		return err
	case answered && apierrors.IsNotFound(err) && answer.ErrStatus.Details != nil && answer.ErrStatus.Details.Kind == "namespaces":
		return fmt.Errorf("namespace %s does not exist: create it with 'kubectl create namespace %[1]s', or name another one with --namespace", p.Namespace)
	}
	return p.Explain(name, err)
}

// applyGatewaySync creates a GatewaySync. An existing one must have the same spec.
func (p Cluster) applyGatewaySync(ctx context.Context, env *Env, gs *v1alpha1.GatewaySync) error {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	objects := kube.GatewaySyncs(p.Dynamic, p.Namespace)
	gs.Namespace = p.Namespace
	_, err := objects.Create(ctx, gs, metav1.CreateOptions{})
	if err == nil {
		fmt.Fprintf(env.Stdout, "gatewaysync.%s/%s created\n", v1alpha1.GroupVersion.Group, gs.Name)
		return nil
	}
	if !apierrors.IsAlreadyExists(err) {
		return p.explain(gs.Name, err)
	}
	live, err := objects.Get(ctx, gs.Name)
	if err != nil {
		return p.explain(gs.Name, err)
	}
	// The API server fills in the defaults of a dry run, so that the specs can be compared.
	twin := gs.DeepCopy()
	twin.Name, twin.GenerateName = "", "stoker-create-"
	want, err := objects.Create(ctx, twin, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	switch {
	case err != nil:
		return p.explain(gs.Name, err)
	case reflect.DeepEqual(want.Spec, live.Spec):
		fmt.Fprintf(env.Stdout, "gatewaysync.%s/%s unchanged\n", v1alpha1.GroupVersion.Group, gs.Name)
		return nil
	}
	return fmt.Errorf("GatewaySync %s exists in namespace %s with another spec, and was not changed: print the new one without --apply to a file, "+
		"compare with 'kubectl diff -f FILE', then 'kubectl apply -f FILE'", gs.Name, p.Namespace)
}

// applySecret creates a Secret. An existing one must have the same data, or, if the value is random, the same keys.
func (env *Env) applySecret(ctx context.Context, s *corev1.Secret, random bool) error {
	p, err := env.Connect()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	client := p.Core.CoreV1().Secrets(p.Namespace)
	s.Namespace = p.Namespace
	_, err = client.Create(ctx, s, metav1.CreateOptions{})
	if err == nil {
		fmt.Fprintf(env.Stdout, "secret/%s created\n", s.Name)
		return nil
	}
	if !apierrors.IsAlreadyExists(err) {
		return p.explain(s.Name, err)
	}
	live, err := client.Get(ctx, s.Name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("the existing Secret %s in namespace %s cannot be compared: %w", s.Name, p.Namespace, p.explain(s.Name, err))
	}
	sameKeys := slices.Equal(slices.Sorted(maps.Keys(live.Data)), slices.Sorted(maps.Keys(s.Data)))
	if reflect.DeepEqual(live.Data, s.Data) || random && sameKeys && len(live.Data[create.TokenKey]) > 0 {
		fmt.Fprintf(env.Stdout, "secret/%s unchanged\n", s.Name)
		return nil
	}
	return fmt.Errorf("the existing Secret %s in namespace %s has other values (keys %s), and was not changed: to replace it, leave out --apply, and append '| kubectl apply -f -'",
		s.Name, p.Namespace, strings.Join(slices.Sorted(maps.Keys(live.Data)), ", "))
}

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
