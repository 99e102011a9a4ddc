package lead

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/kube"
)

// Pod is what the lead knows of a pod.
type Pod struct {
	Namespace, Name     string
	UID                 types.UID
	Labels, Annotations map[string]string
	ServiceAccount      string
	// Ended means that the pod terminates or has ended, Ending that it terminates and still exists.
	Ended, Ending bool
	// Agent means that it has an agent's container.
	Agent bool
	// Stuck is why it does not run, "" if it does or just starts.
	Stuck string
}

// labelInjection on a pod may disable its injection.
const labelInjection = "stoker.io/injection"

// of reports whether a pod is a gateway of the GatewaySync with this name: the injector labelled it, it reports, or it asks for
// an agent.
func (p Pod) of(name string, reports, sole bool) bool {
	if label := p.Labels[v1alpha1.LabelCRName]; label != "" {
		return label == name
	}
	if reports {
		return true // reports are selected by the same label
	}
	if inject, _ := v1alpha1.PodAnnotation(p.Annotations, v1alpha1.AnnotationInject); inject != "true" {
		return false
	}
	if p.Labels[labelInjection] == "disabled" && !p.Agent {
		return false // injection is disabled
	}
	asked, _ := v1alpha1.PodAnnotation(p.Annotations, v1alpha1.AnnotationCRName)
	return asked == name || asked == "" && sole
}

// nameless reports whether a pod asks for an agent without naming its GatewaySync.
func (p Pod) nameless() bool {
	return !p.Ended && p.Labels[v1alpha1.LabelCRName] == "" && p.of("", false, true)
}

// stripped is the transform of the informer. It keeps only what the lead needs, because the namespace may have many other pods.
func stripped(obj any) (any, error) {
	p, ok := obj.(*corev1.Pod)
	if !ok {
		return obj, nil
	}
	s := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: p.Namespace, Name: p.Name, UID: p.UID, ResourceVersion: p.ResourceVersion, DeletionTimestamp: p.DeletionTimestamp,
		Labels: only(p.Labels, v1alpha1.LabelCRName, labelInjection, "app.kubernetes.io/name", "app.kubernetes.io/instance",
			"apps.kubernetes.io/pod-index", "statefulset.kubernetes.io/pod-name"),
		Annotations: only(p.Annotations, "stoker.io/", "ignition-sync.io/"),
	}}
	s.Status.Phase = p.Status.Phase
	if len(s.Labels)+len(s.Annotations) == 0 {
		return s, nil // not a gateway
	}
	s.Spec.ServiceAccountName = p.Spec.ServiceAccountName
	if why := kube.Stuck(p); why != kube.Pending { // the time between a pod and its first report needs no word of its own
		s.Status.Message = why
	}
	for _, containers := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range containers {
			if containers[i].Name == v1alpha1.AgentContainer && !v1alpha1.IsForeignAgent(&containers[i]) {
				s.Spec.Containers = []corev1.Container{{Name: v1alpha1.AgentContainer}}
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

func podOf(p *corev1.Pod) Pod {
	over := p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
	return Pod{
		Namespace: p.Namespace, Name: p.Name, UID: p.UID, Labels: p.Labels, Annotations: p.Annotations,
		ServiceAccount: p.Spec.ServiceAccountName, Agent: len(p.Spec.Containers) > 0,
		Ended: p.DeletionTimestamp != nil || over, Ending: p.DeletionTimestamp != nil && !over, Stuck: p.Status.Message,
	}
}
