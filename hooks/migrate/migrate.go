// Package migrate finds and removes what an earlier product with the same API group, stoker.io, left in a cluster and what
// keeps this one from working. It deletes no object; such steps are left to the operator.
package migrate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/kube"
)

// Finalizer is the finalizer of the earlier product. No controller removes it any more, so its objects and their namespaces
// cannot be deleted.
const Finalizer = "stoker.io/finalizer"

// The kinds of actions.
const (
	RemoveFinalizer = "remove finalizer"
	Adopt           = "label for Helm"
	Evict           = "evict"
	ByHand          = "by hand"
)

// maxList bounds each list.
const maxList = 5000

// Action is one step of the migration.
type Action struct {
	Do     string `json:"do"`
	Object string `json:"object"`
	Why    string `json:"why"`

	pod   bool
	apply func(context.Context) error
}

// OfPod reports whether the action concerns a pod.
func (a Action) OfPod() bool { return a.pod }

// Apply carries out the action. It does nothing for an action that is left to the operator.
func (a Action) Apply(ctx context.Context) error {
	if a.apply == nil {
		return nil
	}
	if err := a.apply(ctx); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("%s %s: %w", a.Do, a.Object, err)
	}
	return nil
}

// Finder looks for leftovers.
type Finder struct {
	kube.Clients
	Namespace string // "" for all
	// Release and ReleaseNamespace name the Helm release that will own the custom resource definitions.
	Release, ReleaseNamespace string
}

// Plan returns the actions in order. The error tells what could not be read; the returned actions are valid nevertheless.
func (f Finder) Plan(ctx context.Context) ([]Action, error) {
	adopt, err := f.definitions(ctx)
	kinds, errKinds := f.kinds(ctx)
	hooks, ours, errHooks := f.webhooks(ctx)
	var pods []Action
	errPods := error(nil)
	if errHooks == nil || apierrors.IsForbidden(errHooks) {
		pods, errPods = f.pods(ctx, ours && len(hooks) == 0)
	}
	return slices.Concat(adopt, kinds, hooks, pods), errors.Join(err, errKinds, errHooks, errPods)
}

var definition = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

const managedBy = "app.kubernetes.io/managed-by"

// definitions finds the earlier product's definition of GatewaySync, because Helm refuses to install over one that no release
// owns. If SyncTargets are defined, too, this product was installed before, and there is nothing to do.
func (f Finder) definitions(ctx context.Context) ([]Action, error) {
	crds := f.Dynamic.Resource(definition)
	_, err := crds.Get(ctx, kube.SyncTarget.Resource().GroupResource().String(), metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		return nil, err
	}
	name := kube.GatewaySync.Resource().GroupResource().String()
	crd, err := crds.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	a := Action{Do: Adopt, Object: "customresourcedefinition/" + name,
		Why: fmt.Sprintf("no Helm release owns it, so Helm refuses to install: assign it to release %s in namespace %s", f.Release, f.ReleaseNamespace)}
	owner, at := crd.GetAnnotations()["meta.helm.sh/release-name"], crd.GetAnnotations()["meta.helm.sh/release-namespace"]
	manager := crd.GetLabels()[managedBy]
	switch {
	case manager == "Helm" && owner == f.Release && at == f.ReleaseNamespace:
		return nil, nil
	case manager != "" || owner != "":
		a.Do, a.Why = ByHand, fmt.Sprintf("%s manages it (release %q, namespace %q): remove that installation, but keep the definition", orOther(manager), owner, at)
		return []Action{a}, nil
	}
	patch := map[string]any{"metadata": map[string]any{
		"uid":         crd.GetUID(),
		"labels":      map[string]string{managedBy: "Helm"},
		"annotations": map[string]string{"meta.helm.sh/release-name": f.Release, "meta.helm.sh/release-namespace": f.ReleaseNamespace},
	}}
	a.apply = func(ctx context.Context) error { return merge(ctx, crds, name, patch) }
	return []Action{a}, nil
}

func orOther(manager string) string {
	if manager == "" {
		return "another program"
	}
	return manager
}

func merge(ctx context.Context, in dynamic.ResourceInterface, name string, patch any) error {
	body, err := json.Marshal(patch)
	if err == nil {
		_, err = in.Patch(ctx, name, types.MergePatchType, body, metav1.PatchOptions{})
	}
	return err
}

// kinds looks for the finalizer on the objects of every kind of the group, and reports kinds that do not belong to this
// product.
func (f Finder) kinds(ctx context.Context) (list []Action, err error) {
	served, err := f.Core.Discovery().ServerPreferredResources()
	if len(served) == 0 && err != nil {
		return nil, err
	}
	var errs []error // an unavailable API service must not hide the other kinds
	for _, l := range served {
		version, err := schema.ParseGroupVersion(l.GroupVersion)
		if err != nil || version.Group != v1alpha1.GroupVersion.Group {
			continue
		}
		for i := range l.APIResources {
			r := &l.APIResources[i]
			ours := slices.ContainsFunc([]kube.Kind{kube.GatewaySync, kube.ConfigSync, kube.SyncTarget, kube.SyncReport}, func(k kube.Kind) bool { return k.Plural == r.Name })
			name := r.Name + "." + version.Group
			if !ours {
				list = append(list, Action{Do: ByHand, Object: "customresourcedefinition/" + name,
					Why: "kind " + r.Kind + " belongs to an earlier product and has no reader: move its settings to a GatewaySync (docs/how-to/migration.md), then delete the definition and thereby its objects"})
			}
			if !slices.Contains(r.Verbs, "list") || !slices.Contains(r.Verbs, "patch") {
				continue
			}
			in := dynamic.ResourceInterface(f.Dynamic.Resource(version.WithResource(r.Name)))
			if r.Namespaced {
				in = f.Dynamic.Resource(version.WithResource(r.Name)).Namespace(f.Namespace)
			}
			found, err := in.List(ctx, metav1.ListOptions{Limit: maxList})
			if err != nil {
				errs = append(errs, err)
				continue
			}
			for j := range found.Items {
				if a, ok := f.finalizer(version.WithResource(r.Name), &found.Items[j]); ok {
					list = append(list, a)
				}
			}
		}
	}
	return list, errors.Join(errs...)
}

func (f Finder) finalizer(kind schema.GroupVersionResource, o *unstructured.Unstructured) (Action, bool) {
	if !slices.Contains(o.GetFinalizers(), Finalizer) {
		return Action{}, false
	}
	a := Action{Do: RemoveFinalizer, Object: object(kind.GroupResource().String(), o.GetNamespace(), o.GetName()), Why: "no controller removes " + Finalizer + ", so the object and its namespace cannot be deleted"}
	in := dynamic.ResourceInterface(f.Dynamic.Resource(kind))
	if o.GetNamespace() != "" {
		in = f.Dynamic.Resource(kind).Namespace(o.GetNamespace())
	}
	left := slices.DeleteFunc(slices.Clone(o.GetFinalizers()), func(s string) bool { return s == Finalizer })
	// The resourceVersion is a precondition, so that finalizers added in the meantime are kept.
	patch := map[string]any{"metadata": map[string]any{"resourceVersion": o.GetResourceVersion(), "finalizers": left}}
	a.apply = func(ctx context.Context) error { return merge(ctx, in, o.GetName(), patch) }
	return a, true
}

func object(kind, namespace, name string) string {
	if namespace == "" {
		return kind + "/" + name
	}
	return namespace + " " + kind + "/" + name
}

// webhooks finds webhook configurations that inject another program's agent, and reports whether ours is installed.
func (f Finder) webhooks(ctx context.Context) (list []Action, ours bool, err error) {
	found, err := f.Core.AdmissionregistrationV1().MutatingWebhookConfigurations().List(ctx, metav1.ListOptions{Limit: maxList})
	if err != nil {
		return nil, false, err
	}
	for i := range found.Items {
		c := &found.Items[i]
		if c.Name == "stoker-injector" {
			ours = true
			continue
		}
		for j := range c.Webhooks {
			if strings.HasSuffix(c.Webhooks[j].Name, ".stoker.io") {
				list = append(list, Action{Do: ByHand, Object: "mutatingwebhookconfiguration/" + c.Name,
					Why: "it injects another program's agent into new pods, and Stoker skips such pods: delete it"})
				break
			}
		}
	}
	return list, ours, nil
}

// pods finds pods with another program's agent. It evicts one pod of a GatewaySync at a time, and only if all of its other pods
// are ready and the next pod gets this agent.
func (f Finder) pods(ctx context.Context, injected bool) (list []Action, err error) {
	found, err := f.Core.CoreV1().Pods(f.Namespace).List(ctx, metav1.ListOptions{Limit: maxList})
	if err != nil {
		return nil, err
	}
	busy := map[string]string{} // by GatewaySync: why no pod of it is evicted now
	of := func(p *corev1.Pod) string {
		name, _ := v1alpha1.PodAnnotation(p.Annotations, v1alpha1.AnnotationCRName)
		return p.Namespace + "/" + name
	}
	for i := range found.Items {
		if p := &found.Items[i]; requestsAgent(p) && (p.DeletionTimestamp != nil || !ready(p)) {
			busy[of(p)] = "pod " + p.Name + " is not ready"
		}
	}
	for i := range found.Items {
		p := &found.Items[i]
		if !slices.ContainsFunc(slices.Concat(p.Spec.InitContainers, p.Spec.Containers), func(c corev1.Container) bool { return v1alpha1.IsForeignAgent(&c) }) {
			continue
		}
		a := Action{pod: true, Do: ByHand, Object: object("pod", p.Namespace, p.Name), Why: "its container " + v1alpha1.AgentContainer + " belongs to another program; "}
		switch {
		case !requestsAgent(p):
			a.Why += "it does not request an agent: remove the container, or add the annotation " + v1alpha1.AnnotationInject
		case !injected:
			a.Why += "its replacement would get no agent: install Stoker and delete the other webhook first"
		case busy[of(p)] != "":
			a.Why += "not evicted now: " + busy[of(p)] + "; run this command again later"
		default:
			if why := f.replacement(ctx, p); why != "" {
				a.Why += why
				break
			}
			a.Do = Evict
			a.Why += "its replacement gets the agent of Stoker"
			a.apply = func(ctx context.Context) error {
				return f.Core.PolicyV1().Evictions(p.Namespace).Evict(ctx, &policyv1.Eviction{
					ObjectMeta:    metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name},
					DeleteOptions: &metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(p.UID))},
				})
			}
			busy[of(p)] = "pod " + p.Name + " is evicted first"
		}
		list = append(list, a)
	}
	return list, nil
}

func requestsAgent(p *corev1.Pod) bool {
	value, _ := v1alpha1.PodAnnotation(p.Annotations, v1alpha1.AnnotationInject)
	return value == "true"
}

func ready(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// replacement returns why the next pod would not get this agent, or "" if it would.
func (f Finder) replacement(ctx context.Context, p *corev1.Pod) string {
	owner := metav1.GetControllerOf(p)
	if owner == nil {
		return "no controller recreates the pod: recreate it without the container"
	}
	var template corev1.PodSpec
	apps := f.Core.AppsV1()
	switch owner.APIVersion + "/" + owner.Kind {
	case "apps/v1/StatefulSet":
		set, err := apps.StatefulSets(p.Namespace).Get(ctx, owner.Name, metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		template = set.Spec.Template.Spec
	case "apps/v1/ReplicaSet":
		set, err := apps.ReplicaSets(p.Namespace).Get(ctx, owner.Name, metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		template = set.Spec.Template.Spec
	default:
		return owner.Kind + " " + owner.Name + " may not recreate it: delete the pod yourself"
	}
	if slices.ContainsFunc(slices.Concat(template.InitContainers, template.Containers), func(c corev1.Container) bool { return c.Name == v1alpha1.AgentContainer }) {
		return "remove the container from the pod template of " + owner.Kind + " " + owner.Name
	}
	return ""
}
