// Package migrate prepares a cluster in which an earlier product with the same API group, stoker.io, was installed. It removes
// stale finalizers, labels a custom resource definition for Helm, and evicts pods that have a foreign agent. A foreign agent is a
// container with the name of Stoker's agent that belongs to another program. All other steps, such as the deletion of definitions
// and webhooks, are left to the operator.
package migrate

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/gatewaypod"
	"stoker.io/stoker/internal/kube"
)

// Finalizer is the finalizer of the earlier product. No controller removes it any more, so that objects with it, and their
// namespaces, cannot be deleted.
const Finalizer = "stoker.io/finalizer"

// The kinds of actions.
const (
	RemoveFinalizer = "remove finalizer"
	Adopt           = "label for Helm"
	Evict           = "evict"
	ByHand          = "by hand"
)

// maxList bounds each list. A longer list is an error.
const maxList = 5000

// Action is one step of the migration.
type Action struct {
	Do     string `json:"do"`
	Object string `json:"object"`
	Why    string `json:"why"`

	apply func(context.Context) error // nil if the step is left to the operator
}

// Apply carries out the action. It does nothing for an action by hand, or if the object no longer exists.
func (a Action) Apply(ctx context.Context) error {
	if a.apply == nil {
		return nil
	}
	if err := ignoreNotFound(a.apply(ctx)); err != nil {
		return fmt.Errorf("%s %s: %w", a.Do, a.Object, err)
	}
	return nil
}

// Finder looks for what the earlier product left.
type Finder struct {
	kube.Clients
	Namespace string // "" for all
	// Release and ReleaseNamespace name the Helm release that will own the custom resource definitions.
	Release, ReleaseNamespace string
	// NoAgent returns why a new pod like p gets no agent of Stoker, or "" if it does. Plan needs it. Its error says why that is unknown.
	NoAgent func(ctx context.Context, p *corev1.Pod) (string, error)
}

// Plan returns the actions in order. It changes nothing. The error says what could not be read; the returned actions are valid
// nevertheless.
func (f Finder) Plan(ctx context.Context) ([]Action, error) {
	actions, noAgent, err := f.objects(ctx)
	pods, errPods := f.pods(ctx, noAgent)
	return append(actions, pods...), errors.Join(err, errPods)
}

// Objects returns the actions of Plan that are not about pods.
func (f Finder) Objects(ctx context.Context) ([]Action, error) {
	actions, _, err := f.objects(ctx)
	return actions, err
}

func (f Finder) objects(ctx context.Context) (actions []Action, noAgent string, _ error) {
	definitions, errDefinitions := f.definitions(ctx)
	kinds, errKinds := f.kinds(ctx)
	hooks, noAgent, errHooks := f.webhooks(ctx)
	return slices.Concat(definitions, kinds, hooks), noAgent, errors.Join(errDefinitions, errKinds, errHooks)
}

// complete returns an error if a list is longer than maxList.
func complete(list metav1.ListInterface, what string) error {
	if list.GetContinue() != "" {
		return fmt.Errorf("there are more than %d %s: choose one namespace with --namespace", maxList, what)
	}
	return nil
}

var definition = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

const managedBy = "app.kubernetes.io/managed-by"

// definitions finds the earlier product's definition of GatewaySync, because Helm refuses to install if no release owns it. If
// SyncTargets are defined, too, this product was installed before, and there is nothing to do.
func (f Finder) definitions(ctx context.Context) ([]Action, error) {
	crds := f.Dynamic.Resource(definition)
	_, err := crds.Get(ctx, kube.SyncTarget.Resource().GroupResource().String(), metav1.GetOptions{})
	if !apierrors.IsNotFound(err) { // SyncTargets are defined and err is nil, or the read failed
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
	release, namespace := crd.GetAnnotations()["meta.helm.sh/release-name"], crd.GetAnnotations()["meta.helm.sh/release-namespace"]
	manager := crd.GetLabels()[managedBy]
	switch {
	case manager == "Helm" && release == f.Release && namespace == f.ReleaseNamespace:
		return nil, nil
	case manager != "" || release != "":
		a.Do, a.Why = ByHand, fmt.Sprintf("%s manages it (release %q, namespace %q): remove that installation, but keep the definition", cmp.Or(manager, "another program"), release, namespace)
		return []Action{a}, nil
	}
	patch := map[string]any{"metadata": map[string]any{
		"uid":         crd.GetUID(), // a precondition: the definition was not created again
		"labels":      map[string]string{managedBy: "Helm"},
		"annotations": map[string]string{"meta.helm.sh/release-name": f.Release, "meta.helm.sh/release-namespace": f.ReleaseNamespace},
	}}
	a.apply = func(ctx context.Context) error { return merge(ctx, crds, name, patch) }
	return []Action{a}, nil
}

// merge patches an object.
func merge(ctx context.Context, client dynamic.ResourceInterface, name string, patch any) error {
	body, err := json.Marshal(patch)
	if err == nil {
		_, err = client.Patch(ctx, name, types.MergePatchType, body, metav1.PatchOptions{})
	}
	return err
}

// ourKinds are the kinds of this product.
var ourKinds = []string{kube.GatewaySync.Plural, kube.ConfigSync.Plural, kube.SyncTarget.Plural, kube.SyncReport.Plural}

// kinds returns the actions for the kinds of the group and for their objects.
func (f Finder) kinds(ctx context.Context) (list []Action, err error) {
	served, err := f.Core.Discovery().ServerPreferredResources()
	var errs []error
	if !onlyOtherGroups(err) {
		errs = append(errs, err)
	}
	for _, l := range served {
		version, err := schema.ParseGroupVersion(l.GroupVersion)
		if err != nil || version.Group != v1alpha1.GroupVersion.Group {
			continue
		}
		for i := range l.APIResources {
			actions, err := f.kind(ctx, version.WithResource(l.APIResources[i].Name), &l.APIResources[i])
			list, errs = append(list, actions...), append(errs, err)
		}
	}
	return list, errors.Join(errs...)
}

// onlyOtherGroups reports whether a discovery failed only for groups other than stoker.io, whose API servers may be unavailable.
func onlyOtherGroups(err error) bool {
	failed, ok := discovery.GroupDiscoveryFailedErrorGroups(err)
	for version := range failed {
		ok = ok && version.Group != v1alpha1.GroupVersion.Group
	}
	return ok
}

// kind returns the actions for a kind: its deletion by hand, if this product does not have it, and the removal of the finalizer
// of its objects.
func (f Finder) kind(ctx context.Context, resource schema.GroupVersionResource, r *metav1.APIResource) (list []Action, err error) {
	name := resource.GroupResource().String()
	if !slices.Contains(ourKinds, r.Name) {
		list = append(list, Action{Do: ByHand, Object: "customresourcedefinition/" + name,
			Why: "kind " + r.Kind + " belongs to an earlier product and has no reader: move its settings to a GatewaySync (docs/how-to/migration.md), then delete the definition and thereby its objects"})
	}
	if !slices.Contains(r.Verbs, "list") || !slices.Contains(r.Verbs, "patch") {
		return list, nil
	}
	client := dynamic.ResourceInterface(f.Dynamic.Resource(resource))
	if r.Namespaced {
		client = f.Dynamic.Resource(resource).Namespace(f.Namespace)
	}
	objects, err := client.List(ctx, metav1.ListOptions{Limit: maxList})
	if err != nil {
		return list, err
	}
	for i := range objects.Items {
		if slices.Contains(objects.Items[i].GetFinalizers(), Finalizer) {
			list = append(list, f.removeFinalizer(resource, &objects.Items[i]))
		}
	}
	return list, complete(objects, name)
}

func (f Finder) removeFinalizer(resource schema.GroupVersionResource, o *unstructured.Unstructured) Action {
	client := dynamic.ResourceInterface(f.Dynamic.Resource(resource))
	if o.GetNamespace() != "" {
		client = f.Dynamic.Resource(resource).Namespace(o.GetNamespace())
	}
	others := slices.DeleteFunc(slices.Clone(o.GetFinalizers()), func(s string) bool { return s == Finalizer })
	// The resourceVersion is a precondition, so that finalizers added in the meantime are kept.
	patch := map[string]any{"metadata": map[string]any{"resourceVersion": o.GetResourceVersion(), "finalizers": others}}
	return Action{Do: RemoveFinalizer, Object: object(resource.GroupResource().String(), o.GetNamespace(), o.GetName()),
		Why:   "no controller removes " + Finalizer + ", so the object and its namespace cannot be deleted",
		apply: func(ctx context.Context) error { return merge(ctx, client, o.GetName(), patch) }}
}

func object(kind, namespace, name string) string {
	if namespace == "" {
		return kind + "/" + name
	}
	return namespace + " " + kind + "/" + name
}

// webhooks returns the actions for the webhook configurations that inject a foreign agent. noAgent says why new pods do not get
// the agent of Stoker; "" if they do.
func (f Finder) webhooks(ctx context.Context) (list []Action, noAgent string, err error) {
	found, err := f.Core.AdmissionregistrationV1().MutatingWebhookConfigurations().List(ctx, metav1.ListOptions{Limit: maxList})
	if err == nil {
		err = complete(found, "webhook configurations")
	}
	if err != nil {
		return nil, "it is unknown whether its replacement gets an agent: the webhook configurations cannot be read", err
	}
	installed := false
	for i := range found.Items {
		c := &found.Items[i]
		switch {
		case c.Name == "stoker-injector":
			installed = true
		case slices.ContainsFunc(c.Webhooks, func(w admissionregistrationv1.MutatingWebhook) bool { return strings.HasSuffix(w.Name, ".stoker.io") }):
			list = append(list, Action{Do: ByHand, Object: "mutatingwebhookconfiguration/" + c.Name,
				Why: "it injects another program's agent into new pods, and Stoker skips such pods: delete it"})
		}
	}
	if !installed || len(list) > 0 {
		noAgent = "its replacement would get no agent: install Stoker and delete the other webhook first"
	}
	return list, noAgent, nil
}

// pods returns the actions for the pods with a foreign agent. It evicts one pod of a GatewaySync at a time, and only if all of
// its other pods are ready and the replacement gets the agent of Stoker. noAgent says why no replacement does; "" if the webhook
// injects it.
func (f Finder) pods(ctx context.Context, noAgent string) (list []Action, err error) {
	found, err := f.Core.CoreV1().Pods(f.Namespace).List(ctx, metav1.ListOptions{Limit: maxList})
	if err == nil {
		err = complete(found, "pods") // a pod that is not in the list may be down
	}
	if err != nil {
		return nil, err
	}
	pods := slices.DeleteFunc(found.Items, func(p corev1.Pod) bool {
		return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed // no gateway runs in it
	})
	var evicted []*corev1.Pod
	for i := range pods {
		p := &pods[i]
		if !slices.ContainsFunc(containers(&p.Spec), func(c corev1.Container) bool { return gatewaypod.IsForeignAgent(&c) }) {
			continue
		}
		a := Action{Do: ByHand, Object: object("pod", p.Namespace, p.Name), Why: "its container " + gatewaypod.AgentContainer + " belongs to another program; "}
		down := otherPodDown(p, pods)
		first := slices.IndexFunc(evicted, func(other *corev1.Pod) bool { return sameGatewaySync(p, other) })
		switch {
		case !requestsAgent(p):
			a.Why += "it does not request an agent: remove the container, or add the annotation " + v1alpha1.AnnotationInject
		case noAgent != "":
			a.Why += noAgent
		case p.DeletionTimestamp != nil:
			a.Why += "it is being deleted; run this command again later"
		case down != "":
			a.Why += "not evicted now: pod " + down + " is not ready; run this command again later"
		case first >= 0:
			a.Why += "not evicted now: pod " + evicted[first].Name + " is evicted first; run this command again later"
		default:
			why, err := f.noReplacement(ctx, p)
			if err == nil && why == "" {
				why, err = f.NoAgent(ctx, p)
			}
			if err != nil {
				return list, fmt.Errorf("%s: it is unknown whether its replacement gets an agent: %w", a.Object, err)
			}
			if why != "" {
				a.Why += why
				break
			}
			a.Do = Evict
			a.Why += "its replacement gets the agent of Stoker"
			a.apply = func(ctx context.Context) error { return f.evict(ctx, p) }
			evicted = append(evicted, p)
		}
		list = append(list, a)
	}
	return list, nil
}

// otherPodDown returns the name of another pod of the same GatewaySync that is not ready or is being deleted, or "" if there is
// none.
func otherPodDown(p *corev1.Pod, pods []corev1.Pod) string {
	for i := range pods {
		other := &pods[i]
		if (other.DeletionTimestamp != nil || !ready(other)) && requestsAgent(other) && other.Name != p.Name && sameGatewaySync(p, other) {
			return other.Name
		}
	}
	return ""
}

// sameGatewaySync reports whether two pods may belong to one GatewaySync. A pod need not name the only one of its namespace.
func sameGatewaySync(p, other *corev1.Pod) bool {
	name, _ := gatewaypod.Annotation(p.Annotations, v1alpha1.AnnotationCRName)
	otherName, _ := gatewaypod.Annotation(other.Annotations, v1alpha1.AnnotationCRName)
	return p.Namespace == other.Namespace && (name == otherName || name == "" || otherName == "")
}

func (f Finder) evict(ctx context.Context, p *corev1.Pod) error {
	return f.Core.PolicyV1().Evictions(p.Namespace).Evict(ctx, &policyv1.Eviction{
		ObjectMeta:    metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name},
		DeleteOptions: &metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(p.UID))},
	})
}

func containers(spec *corev1.PodSpec) []corev1.Container {
	return slices.Concat(spec.InitContainers, spec.Containers)
}

func requestsAgent(p *corev1.Pod) bool {
	value, _ := gatewaypod.Annotation(p.Annotations, v1alpha1.AnnotationInject)
	return value == "true"
}

func ready(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// noReplacement returns why the pod that replaces p would not get the agent of Stoker, or "" if it would.
func (f Finder) noReplacement(ctx context.Context, p *corev1.Pod) (string, error) {
	const recreate = "no controller recreates the pod: recreate it without the container"
	owner := metav1.GetControllerOf(p)
	if owner == nil {
		return recreate, nil
	}
	var template corev1.PodTemplateSpec
	switch owner.APIVersion + "/" + owner.Kind {
	case "apps/v1/StatefulSet":
		set, err := f.Core.AppsV1().StatefulSets(p.Namespace).Get(ctx, owner.Name, metav1.GetOptions{})
		if err != nil {
			return recreate, ignoreNotFound(err)
		}
		template = set.Spec.Template
	case "apps/v1/ReplicaSet":
		set, err := f.Core.AppsV1().ReplicaSets(p.Namespace).Get(ctx, owner.Name, metav1.GetOptions{})
		if err != nil {
			return recreate, ignoreNotFound(err)
		}
		template = set.Spec.Template
	default:
		return owner.Kind + " " + owner.Name + " might not recreate it: delete the pod yourself", nil
	}
	if slices.ContainsFunc(containers(&template.Spec), func(c corev1.Container) bool { return c.Name == gatewaypod.AgentContainer }) {
		return "remove the container from the pod template of " + owner.Kind + " " + owner.Name, nil
	}
	return "", nil
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
