package reconcile

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/gatewaypod"
	"stoker.io/stoker/injector/inject"
	"stoker.io/stoker/internal/kube"
)

// podIndex has the pods that ask for an agent or have one, live and terminating.
type podIndex struct {
	live, ending []*corev1.Pod
	// missingSuccessor is why an evicted pod has no successor; empty if none is missing.
	missingSuccessor string
	// whyNoAgent is why pods have no agent, and unclaimed why pods that name no GatewaySync belong to none; empty if there are none.
	whyNoAgent map[types.UID]string
	unclaimed  string
}

// of returns the pods that are gateways of gs, and why other pods belong to no GatewaySync.
func (t podIndex) of(gs *v1alpha1.GatewaySync, all inject.Candidates) podIndex {
	mine := func(pods []*corev1.Pod) (out []*corev1.Pod) {
		for _, p := range pods {
			if belongs(p, gs, all) {
				out = append(out, p)
			}
		}
		return out
	}
	return podIndex{live: mine(t.live), ending: mine(t.ending), unclaimed: t.ambiguous(all)}
}

// maxUnclaimed bounds the names in a message.
const maxUnclaimed = 5

// ambiguous returns why pods that name no GatewaySync belong to none of several, or "".
func (t podIndex) ambiguous(all inject.Candidates) string {
	var names []string
	why := ""
	for _, p := range t.live {
		if p.Labels[v1alpha1.LabelCRName] != "" || inject.Has(p) {
			continue
		}
		if _, decision := inject.Choose(p, all); decision.Reason == v1alpha1.ReasonGatewaySyncAmbiguous {
			names, why = append(names, p.Name), decision.Message
		}
	}
	if why == "" {
		return ""
	}
	slices.Sort(names)
	return fmt.Sprintf("no agent in pods %s: %s", strings.Join(names[:min(len(names), maxUnclaimed)], ", "), why)
}

// maxValue is more than the length of any value of an annotation that has an effect here: true, and the name of a GatewaySync.
const maxValue = 256

// slim is a transform for an informer. It saves memory, because a user may create pods with large annotations and many labels. Of pods that
// are not relevant (isRelevant), it keeps only their identity and whether they terminate, and of the others only what the reconciler reads.
// It replaces Status.Message with why the pod is stuck. client-go may call slim again with a result of slim.
func slim(obj any) (any, error) {
	p, ok := obj.(*corev1.Pod)
	if !ok || len(p.Spec.Containers) == 0 { // a result of slim: every pod of an API server has containers
		return obj, nil
	}
	s := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: p.Namespace, Name: p.Name, UID: p.UID, ResourceVersion: p.ResourceVersion,
		DeletionTimestamp: p.DeletionTimestamp, // a terminating pod does not count, even if it asks for an agent
	}}
	for _, name := range []string{v1alpha1.AnnotationInject, v1alpha1.AnnotationCRName} {
		if value, ok := gatewaypod.Annotation(p.Annotations, name); ok {
			metav1.SetMetaDataAnnotation(&s.ObjectMeta, name, strings.Clone(value[:min(len(value), maxValue)]))
		}
	}
	for _, name := range []string{v1alpha1.LabelInjection, v1alpha1.LabelCRName} {
		if value, ok := p.Labels[name]; ok {
			metav1.SetMetaDataLabel(&s.ObjectMeta, name, value)
		}
	}
	if inject.Has(p) && !inject.Foreign(p) { // for the reconciler, a pod with another program's agent has none
		s.Spec.InitContainers = []corev1.Container{{Name: inject.Container}}
	}
	if !isRelevant(s) {
		s.Annotations, s.Labels = nil, nil
		return s, nil
	}
	s.CreationTimestamp = p.CreationTimestamp
	if c := metav1.GetControllerOfNoCopy(p); c != nil {
		s.OwnerReferences = []metav1.OwnerReference{*c}
	}
	if hash, ok := p.Labels[appsv1.DefaultDeploymentUniqueLabelKey]; ok {
		metav1.SetMetaDataLabel(&s.ObjectMeta, appsv1.DefaultDeploymentUniqueLabelKey, hash)
	}
	s.Spec.ServiceAccountName = p.Spec.ServiceAccountName
	if status := agentStatus(p); status != nil && inject.Has(s) {
		kept := corev1.ContainerStatus{Name: status.Name, Started: status.Started}
		if status.State.Waiting != nil {
			kept.State.Waiting = &corev1.ContainerStateWaiting{Reason: status.State.Waiting.Reason}
		}
		for _, ended := range []*corev1.ContainerStateTerminated{status.State.Terminated, status.LastTerminationState.Terminated} {
			if ended != nil && ended.ExitCode == gatewaypod.ExitRestartGateway && !startedAfter(p, ended.FinishedAt) {
				kept.LastTerminationState.Terminated = &corev1.ContainerStateTerminated{ExitCode: ended.ExitCode}
			}
		}
		s.Status.InitContainerStatuses = []corev1.ContainerStatus{kept}
	}
	s.Status.Message = kube.Stuck(p)
	return s, nil
}

// startedAfter reports whether a container of the pod was started after a time: then the gateway did not wait for the eviction.
func startedAfter(p *corev1.Pod, at metav1.Time) bool {
	return slices.ContainsFunc(p.Status.ContainerStatuses, func(c corev1.ContainerStatus) bool {
		return c.State.Running != nil && at.Before(&c.State.Running.StartedAt)
	})
}

// needsGatewayRestart reports whether the agent of a pod has ended because its gateway has to start once more: see
// gatewaypod.ExitRestartGateway. p must be a result of slim.
func needsGatewayRestart(p *corev1.Pod) bool {
	status := agentStatus(p)
	return status != nil && status.LastTerminationState.Terminated != nil
}

// requestsAgent reports whether a pod asks for an agent.
func requestsAgent(p *corev1.Pod) bool {
	return inject.Requested(p.Annotations) && p.Labels[v1alpha1.LabelInjection] != "disabled"
}

// isRelevant reports whether a pod asks for an agent, or has one.
func isRelevant(p *corev1.Pod) bool { return requestsAgent(p) || inject.Has(p) }

// belongs reports whether a pod is a gateway of gs, by the injector's label or because it asks for it.
func belongs(p *corev1.Pod, gs *v1alpha1.GatewaySync, all inject.Candidates) bool {
	if label, ok := p.Labels[v1alpha1.LabelCRName]; ok {
		return label == gs.Name
	}
	if !requestsAgent(p) {
		return false
	}
	chosen, _ := inject.Choose(p, all)
	return chosen == gs
}

// podWatch watches the pods of one namespace or of all.
type podWatch struct {
	namespace string // "" for all
	informer  cache.SharedIndexInformer
	forbidden atomic.Bool // set once the API server forbids listing
}

// watchPods returns a podWatch. It calls changed with each changed pod that asks for an agent or has one, and failed with the error of
// each failed list or watch.
func watchPods(client kube.Core, namespace string, changed func(*corev1.Pod), failed func(error)) (*podWatch, error) {
	w := &podWatch{namespace: namespace}
	living := func(o *metav1.ListOptions) {
		o.FieldSelector = "status.phase!=" + string(corev1.PodSucceeded) + ",status.phase!=" + string(corev1.PodFailed)
	}
	onError := func(err error) {
		failed(err)
		if apierrors.IsForbidden(err) {
			w.forbidden.Store(true)
		}
	}
	w.informer = cache.NewSharedIndexInformer(kube.ListWatch(client.CoreV1().Pods(namespace), living, onError), &corev1.Pod{}, 0,
		cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	if err := w.informer.SetTransform(slim); err != nil {
		return nil, err
	}
	// ListWatch reports failed attempts already.
	if err := w.informer.SetWatchErrorHandlerWithContext(func(context.Context, *cache.Reflector, error) {}); err != nil {
		return nil, err
	}
	notify := func(obj any) {
		if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
			obj = gone.Obj
		}
		if p, ok := obj.(*corev1.Pod); ok && isRelevant(p) {
			changed(p)
		}
	}
	_, err := w.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: notify, DeleteFunc: notify, UpdateFunc: func(_, now any) { notify(now) },
	})
	return w, err
}

// listedOrForbidden reports whether the first list is complete, or the API server forbids it in this namespace. Missing rights in one
// namespace must not stop the others.
func (w *podWatch) listedOrForbidden() bool {
	return w.informer.HasSynced() || w.namespace != "" && w.forbidden.Load()
}

// hasSynced reports whether the pods and GatewaySyncs of a namespace are known.
func (u *Reconciler) hasSynced(namespace string) bool {
	if !u.Find.Seen(namespace) {
		return false
	}
	for _, w := range u.pods {
		if w.namespace == "" || w.namespace == namespace {
			return w.informer.HasSynced()
		}
	}
	return false
}
