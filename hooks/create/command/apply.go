package command

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/hooks/create"
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
