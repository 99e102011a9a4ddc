package inject

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/gatewaypod"
)

// maxNamed bounds the names in a message.
const maxNamed = 5

// GatewaySyncName returns the name of the GatewaySync in a pod's annotation, or "".
func GatewaySyncName(annotations map[string]string) string {
	name, _ := gatewaypod.Annotation(annotations, v1alpha1.AnnotationCRName)
	return name
}

// Choose returns the GatewaySync of a pod: the one that its annotation names, or the only one of its namespace. If there is
// none, it returns nil and the reason.
func Choose(pod *corev1.Pod, candidates []*v1alpha1.GatewaySync) (*v1alpha1.GatewaySync, Decision) {
	name := GatewaySyncName(pod.Annotations)
	if name != "" {
		for _, gs := range candidates {
			if gs.Name == name {
				return gs, Decision{}
			}
		}
		return nil, skip(v1alpha1.ReasonGatewaySyncNotFound, "the namespace has no GatewaySync %.60q, which annotation %s names: create it, or correct the annotation",
			name, v1alpha1.AnnotationCRName)
	}
	switch len(candidates) {
	case 0:
		return nil, skip(v1alpha1.ReasonGatewaySyncNotFound, "the namespace has no GatewaySync: create one")
	case 1:
		return candidates[0], Decision{}
	}
	return nil, skip(v1alpha1.ReasonGatewaySyncAmbiguous, "the namespace has several GatewaySyncs (%s): name one with the annotation %s",
		names(candidates), v1alpha1.AnnotationCRName)
}

func names(all []*v1alpha1.GatewaySync) string {
	list := make([]string, 0, len(all))
	for _, gs := range all {
		list = append(list, gs.Name)
	}
	slices.Sort(list)
	if len(list) > maxNamed {
		list = append(list[:maxNamed], "…")
	}
	return strings.Join(list, ", ")
}
