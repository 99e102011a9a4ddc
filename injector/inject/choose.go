package inject

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/gatewaypod"
	"stoker.io/stoker/internal/kube"
)

// maxNamed bounds the names in a message.
const maxNamed = 5

// GatewaySyncName returns the name of the GatewaySync in a pod's annotation, or "".
func GatewaySyncName(annotations map[string]string) string {
	name, _ := gatewaypod.Annotation(annotations, v1alpha1.AnnotationCRName)
	return name
}

// Candidates are the GatewaySyncs among which that of a pod is.
type Candidates struct {
	Read []*v1alpha1.GatewaySync
	// Unreadable are those that this version cannot decode. They count, so that no pod gets the settings of another one.
	Unreadable []*kube.UndecodableError
	// Selector is the label selector that candidates must match, or "".
	Selector string
}

// Choose returns the GatewaySync of a pod: the one that its annotation names, or the only one of its namespace. If there is
// none, it returns nil and the reason.
func Choose(pod *corev1.Pod, all Candidates) (*v1alpha1.GatewaySync, Decision) {
	name, only := GatewaySyncName(pod.Annotations), ""
	if name == "" && len(all.Read)+len(all.Unreadable) > 1 {
		return nil, skip(v1alpha1.ReasonGatewaySyncAmbiguous, "the namespace has several GatewaySyncs (%s): name one with the annotation %s",
			all.names(), v1alpha1.AnnotationCRName)
	}
	for _, gs := range all.Read {
		if name == "" || gs.Name == name {
			return gs, Decision{}
		}
	}
	for _, bad := range all.Unreadable {
		if name == "" || bad.Name == name {
			return nil, skip(v1alpha1.ReasonGatewaySyncUnreadable, "%.200v: correct it, or upgrade the injector", bad)
		}
	}
	if all.Selector != "" {
		only = fmt.Sprintf("; this installation serves only those with the labels %.100s (watchLabelSelector)", all.Selector)
	}
	if name == "" {
		return nil, skip(v1alpha1.ReasonGatewaySyncNotFound, "the namespace has no GatewaySync: create one%s", only)
	}
	return nil, skip(v1alpha1.ReasonGatewaySyncNotFound, "the namespace has no GatewaySync %.60q, which annotation %s names: create it, or correct the annotation%s",
		name, v1alpha1.AnnotationCRName, only)
}

func (c Candidates) names() string {
	var list []string
	for _, gs := range c.Read {
		list = append(list, gs.Name)
	}
	for _, bad := range c.Unreadable {
		list = append(list, bad.Name)
	}
	slices.Sort(list)
	if len(list) > maxNamed {
		list = append(list[:maxNamed], "…")
	}
	return strings.Join(list, ", ")
}
