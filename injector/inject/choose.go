package inject

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"stoker.io/stoker/api/v1alpha1"
)

// maxNamed bounds the names in a message.
const maxNamed = 5

// Named returns the GatewaySync that a pod's annotation names, or "".
func Named(annotations map[string]string) string {
	name, _ := v1alpha1.PodAnnotation(annotations, v1alpha1.AnnotationCRName)
	return name
}

// Choose returns the GatewaySync of a pod: the one that its annotation names, or the only one of its namespace. If there is
// none, it returns nil and the reason.
func Choose(pod *corev1.Pod, there []*v1alpha1.GatewaySync) (*v1alpha1.GatewaySync, Decision) {
	name := Named(pod.Annotations)
	if name != "" {
		for _, gs := range there {
			if gs.Name == name {
				return gs, Decision{}
			}
		}
		return nil, skip(v1alpha1.ReasonGatewaySyncNotFound, "the namespace has no GatewaySync %.60q, which annotation %s names: create it, or correct the annotation",
			name, v1alpha1.AnnotationCRName)
	}
	switch len(there) {
	case 0:
		return nil, skip(v1alpha1.ReasonGatewaySyncNotFound, "the namespace has no GatewaySync: create one")
	case 1:
		return there[0], Decision{}
	}
	return nil, skip(v1alpha1.ReasonGatewaySyncAmbiguous, "the namespace has several GatewaySyncs (%s): name one with the annotation %s",
		names(there), v1alpha1.AnnotationCRName)
}

func names(there []*v1alpha1.GatewaySync) string {
	list := make([]string, 0, len(there))
	for _, gs := range there {
		list = append(list, gs.Name)
	}
	slices.Sort(list)
	if len(list) > maxNamed {
		list = append(list[:maxNamed], "…")
	}
	return strings.Join(list, ", ")
}
