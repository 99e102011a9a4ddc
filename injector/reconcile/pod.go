package reconcile

import (
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/gatewaypod"
	"stoker.io/stoker/injector/inject"
	"stoker.io/stoker/internal/kube"
)

// maxValue is more than the length of any value of an annotation that has an effect here: true, and the name of a GatewaySync.
const maxValue = 256

// slim is a transform for an informer. It saves memory: of most pods it keeps only the name and whether they terminate, and of the
// others only what the reconciler reads, and why the pod is stuck as Status.Message, because a user may create pods with large annotations and many labels. client-go calls it
// again with its own results, for every pod of the first list and of any list after a lost watch.
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

// needsGatewayRestart reports whether the agent of a pod has ended because its gateway has to start once more: see gatewaypod.ExitRestartGateway. p must be a result of slim.
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
