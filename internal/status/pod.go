package status

import (
	"k8s.io/apimachinery/pkg/types"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/gatewaypod"
)

// Pod is what a summary needs to know of a pod.
type Pod struct {
	Namespace, Name     string
	UID                 types.UID
	Labels, Annotations map[string]string
	// Ended means that the pod terminates or has ended, Ending that it terminates and still exists.
	Ended, Ending bool
	// Agent means that it has an agent's container.
	Agent bool
	// Stuck is why it does not run, "" if it does or just starts.
	Stuck string
}

// belongsTo reports whether a pod is a gateway of the GatewaySync with this name: the injector labelled it, it asks for an agent, or its agent
// reports. sole means that the namespace has no other GatewaySync.
func (p Pod) belongsTo(name string, reports, sole bool) bool {
	if label := p.Labels[v1alpha1.LabelCRName]; label != "" {
		return label == name
	}
	if reports {
		return true // reports are selected by the same label
	}
	if inject, _ := gatewaypod.Annotation(p.Annotations, v1alpha1.AnnotationInject); inject != "true" {
		return false
	}
	if p.Labels[v1alpha1.LabelInjection] == "disabled" && !p.Agent {
		return false
	}
	asked, _ := gatewaypod.Annotation(p.Annotations, v1alpha1.AnnotationCRName)
	return asked == name || asked == "" && sole
}

// Nameless reports whether a pod asks for an agent without naming its GatewaySync.
func (p Pod) Nameless() bool {
	return !p.Ended && p.Labels[v1alpha1.LabelCRName] == "" && p.belongsTo("", false, true)
}

func (p Pod) label() string {
	if p.Stuck != "" {
		return p.Name + " (" + p.Stuck + ")"
	}
	return p.Name
}
