// Package inject decides, from a pod and its GatewaySync alone, how the pod gets its agent, or why it gets none. It asks
// nobody: the same pod gives the same patch in the webhook, in upkeep and in a test.
package inject

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"stoker.io/stoker/api/v1alpha1"
)

// Container is the name of the agent's container.
const Container = v1alpha1.AgentContainer

// Defaults are what the injector was told and no pod decides.
type Defaults struct {
	// Image is complete: a GatewaySync may leave out any part of its own. Of this repository it may name any version.
	Image v1alpha1.AgentImage
	// AllowedImages are prefixes of the images that a pod's annotation stoker.io/agent-image and spec.agent.image of a
	// GatewaySync may name.
	AllowedImages []string
	// Resources are those of a GatewaySync that names none.
	Resources corev1.ResourceRequirements
	// Env and Args are added to those of every agent. Whoever names them has checked that agents know them, and that they are
	// none of those that the pod decides.
	Env  []corev1.EnvVar
	Args []string
}

// Op is one operation of RFC 6902. Only "add" is ever used.
type Op struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

// Decision is what became of a pod, and why.
type Decision struct {
	// Injected is true where the operations put an agent into the pod.
	Injected bool `json:"injected"`
	// Reason is why not; empty where the pod is injected.
	Reason v1alpha1.Reason `json:"reason,omitempty"`
	// Message says the same for people, and what to do.
	Message string `json:"message,omitempty"`
	// Warnings are for whoever creates the pod.
	Warnings []string `json:"warnings,omitempty"`
	// GatewaySync and Gateway are the names that were found. Gateway is empty where it is the pod's own, which a pod with
	// generateName does not have yet.
	GatewaySync string `json:"gatewaySync,omitempty"`
	Gateway     string `json:"gateway,omitempty"`
}

func skip(reason v1alpha1.Reason, format string, args ...any) Decision {
	return Decision{Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// Wanted reports whether a pod asks for an agent.
func Wanted(annotations map[string]string) bool { return is(annotations, v1alpha1.AnnotationInject) }

// Required reports whether a pod must not start without its agent.
func Required(annotations map[string]string) bool {
	return Wanted(annotations) && is(annotations, v1alpha1.AnnotationRequire)
}

func is(annotations map[string]string, name string) bool {
	value, _ := v1alpha1.PodAnnotation(annotations, name)
	return value == "true"
}

// Has reports whether a pod has its agent: put there by the injector, or written by hand under its name.
func Has(pod *corev1.Pod) bool {
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if list[i].Name == Container {
				return true
			}
		}
	}
	return false
}

// Foreign reports whether a pod's container of the agent's name is another program's.
func Foreign(pod *corev1.Pod) bool {
	return slices.ContainsFunc(slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers), func(c corev1.Container) bool { return v1alpha1.IsForeignAgent(&c) })
}

// WithoutForeign returns a copy of a pod as it would be without such a container and its volumes.
func WithoutForeign(pod *corev1.Pod) *corev1.Pod {
	pod = pod.DeepCopy()
	named := func(c corev1.Container) bool { return c.Name == Container }
	pod.Spec.InitContainers = slices.DeleteFunc(pod.Spec.InitContainers, named)
	pod.Spec.Containers = slices.DeleteFunc(pod.Spec.Containers, named)
	pod.Spec.Volumes = slices.DeleteFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return strings.HasPrefix(v.Name, "stoker-") })
	return pod
}

// Patch returns what puts the agent into a pod: additions only, none where the pod has it already or cannot have it. gs is
// what Choose found. Neither argument is changed.
func Patch(pod *corev1.Pod, gs *v1alpha1.GatewaySync, d Defaults) ([]Op, Decision) {
	if decision := fit(pod, gs); decision.Reason != "" {
		return nil, decision
	}
	s := sidecar{pod: pod, gs: gs, defaults: d}
	if decision := s.find(); decision.Reason != "" {
		decision.GatewaySync = gs.Name
		return nil, decision
	}
	return s.ops(), Decision{Injected: true, Warnings: s.warnings, GatewaySync: gs.Name, Gateway: s.gateway}
}

// fit answers what needs no look at the pod's containers.
func fit(pod *corev1.Pod, gs *v1alpha1.GatewaySync) Decision {
	switch {
	case !Wanted(pod.Annotations):
		return skip(v1alpha1.ReasonNotRequested, "the pod has no annotation %s: \"true\"", v1alpha1.AnnotationInject)
	case Foreign(pod):
		d := skip(v1alpha1.ReasonAlreadyInjected, "the pod has a container %s already, of another program", Container)
		d.Warnings = []string{fmt.Sprintf("container %s is not this version's agent: it lacks the variable POD_UID; remove it from the pod template, and the webhook that adds it (docs/migration.md)", Container)}
		return d
	case Has(pod):
		return skip(v1alpha1.ReasonAlreadyInjected, "the pod has a container %s already", Container)
	case gs == nil:
		return skip(v1alpha1.ReasonGatewaySyncNotFound, "no GatewaySync was found")
	case isStatic(pod):
		return skip(v1alpha1.ReasonUnsupportedPod, "a static pod is started by its node and cannot be changed: create the gateway as a StatefulSet")
	case isWindows(pod):
		return skip(v1alpha1.ReasonUnsupportedPod, "the pod is for a Windows node, and the agent runs on Linux: remove the annotation %s, or move the gateway to Linux", v1alpha1.AnnotationInject)
	}
	if label, ok := pod.Labels[v1alpha1.LabelCRName]; ok && label != gs.Name {
		return skip(v1alpha1.ReasonInvalidAnnotation, "label %s: %.80q is not %s, which the pod's annotation leads to: remove the label, the injector sets it",
			v1alpha1.LabelCRName, label, gs.Name)
	}
	return Decision{}
}

// isStatic tells a pod that a kubelet reads from a file: its object in the API is a copy.
func isStatic(pod *corev1.Pod) bool {
	if _, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]; mirror {
		return true
	}
	source, ok := pod.Annotations["kubernetes.io/config.source"]
	return ok && source != "api"
}

func isWindows(pod *corev1.Pod) bool {
	return pod.Spec.OS != nil && pod.Spec.OS.Name == corev1.Windows || pod.Spec.NodeSelector[corev1.LabelOSStable] == string(corev1.Windows)
}
