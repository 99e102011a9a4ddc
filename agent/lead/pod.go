package lead

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/gatewaypod"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/internal/status"
)

// stripped is the transform of the informer. It keeps only what the lead needs, because the namespace may have many other pods.
func stripped(obj any) (any, error) {
	p, ok := obj.(*corev1.Pod)
	if !ok {
		return obj, nil
	}
	s := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: p.Namespace, Name: p.Name, UID: p.UID, ResourceVersion: p.ResourceVersion, DeletionTimestamp: p.DeletionTimestamp,
		Labels: only(p.Labels, v1alpha1.LabelCRName, v1alpha1.LabelInjection, "app.kubernetes.io/name", "app.kubernetes.io/instance",
			"apps.kubernetes.io/pod-index", "statefulset.kubernetes.io/pod-name"),
		Annotations: only(p.Annotations, gatewaypod.Prefix, gatewaypod.OlderPrefix),
	}}
	s.Status.Phase = p.Status.Phase
	if len(s.Labels)+len(s.Annotations) == 0 {
		return s, nil // not a gateway
	}
	if why := kube.Stuck(p); why != kube.Pending { // the time before a pod's first report needs no message
		s.Status.Message = why
	}
	for _, containers := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range containers {
			if containers[i].Name == gatewaypod.AgentContainer && !gatewaypod.IsForeignAgent(&containers[i]) {
				s.Spec.Containers = []corev1.Container{{Name: gatewaypod.AgentContainer}}
			}
		}
	}
	return s, nil
}

func only(from map[string]string, prefixes ...string) map[string]string {
	var to map[string]string
	for k, v := range from {
		for _, p := range prefixes {
			if strings.HasPrefix(k, p) {
				if to == nil {
					to = map[string]string{}
				}
				to[k] = v
				break
			}
		}
	}
	return to
}

func podOf(p *corev1.Pod) status.Pod {
	over := p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
	return status.Pod{
		Namespace: p.Namespace, Name: p.Name, UID: p.UID, Labels: p.Labels, Annotations: p.Annotations,
		Agent: len(p.Spec.Containers) > 0,
		Ended: p.DeletionTimestamp != nil || over, Ending: p.DeletionTimestamp != nil && !over, Stuck: p.Status.Message,
	}
}
