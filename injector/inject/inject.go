// Package inject decides, from a pod, its GatewaySync and the settings of the installation alone, how the pod gets its agent, or why it gets
// none. It is pure: the same pod gets the same patch in the webhook, in the reconciler and in a test. It cannot know that a quota, a
// LimitRange or a policy rejects a pod with an agent: a dry run would need the right to create pods.
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

// Container is the name of the agent's container.
const Container = gatewaypod.AgentContainer

// Defaults are the settings of the installation.
type Defaults struct {
	// Image is complete. A GatewaySync may override any part of it.
	Image v1alpha1.AgentImage
	// AllowedImages are prefixes of the images that a pod's annotation stoker.io/agent-image and spec.agent.image of a
	// GatewaySync may name.
	AllowedImages []string
	// Resources are used if the GatewaySync has none.
	Resources corev1.ResourceRequirements
	// Env and Args are added to every agent. The caller has verified that agents know them and that they do not conflict with
	// those of this package.
	Env  []corev1.EnvVar
	Args []string
}

// Op is one operation of a JSON patch (RFC 6902). Only "add" is used.
type Op struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

// Decision is the result for a pod.
type Decision struct {
	// Injected is true if the operations add an agent.
	Injected bool `json:"injected"`
	// Reason is why there is no agent; empty if Injected.
	Reason v1alpha1.Reason `json:"reason,omitempty"`
	// Message explains the reason and what to do.
	Message string `json:"message,omitempty"`
	// Warnings are for the client that creates the pod.
	Warnings []string `json:"warnings,omitempty"`
	// GatewaySync and Gateway are the names that were found. Gateway is empty if it is the name of the pod, which a pod with
	// generateName does not have yet.
	GatewaySync string `json:"gatewaySync,omitempty"`
	Gateway     string `json:"gateway,omitempty"`
}

func skip(reason v1alpha1.Reason, format string, args ...any) Decision {
	return Decision{Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// Requested reports whether a pod asks for an agent.
func Requested(annotations map[string]string) bool {
	return isTrue(annotations, v1alpha1.AnnotationInject)
}

// Required reports whether a pod must not start without its agent.
func Required(annotations map[string]string) bool {
	return Requested(annotations) && isTrue(annotations, v1alpha1.AnnotationRequire)
}

func isTrue(annotations map[string]string, name string) bool {
	value, _ := gatewaypod.Annotation(annotations, name)
	return value == "true"
}

// Has reports whether a pod has a container with the agent's name, injected or added by hand.
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

// Foreign reports whether the pod has a container with the agent's name that runs another program.
func Foreign(pod *corev1.Pod) bool {
	return slices.ContainsFunc(slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers), func(c corev1.Container) bool { return gatewaypod.IsForeignAgent(&c) })
}

// WithoutForeign returns a copy of a pod without the container with the agent's name and its volumes.
func WithoutForeign(pod *corev1.Pod) *corev1.Pod {
	pod = pod.DeepCopy()
	named := func(c corev1.Container) bool { return c.Name == Container }
	pod.Spec.InitContainers = slices.DeleteFunc(pod.Spec.InitContainers, named)
	pod.Spec.Containers = slices.DeleteFunc(pod.Spec.Containers, named)
	pod.Spec.Volumes = slices.DeleteFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return strings.HasPrefix(v.Name, "stoker-") })
	return pod
}

// Patch returns the operations that add the agent to a pod. There are none if the pod does not ask for an agent, has one already or cannot
// have one. gs is the result of Choose; if it is nil, the pod cannot have one. Patch does not change its arguments.
func Patch(pod *corev1.Pod, gs *v1alpha1.GatewaySync, d Defaults) ([]Op, Decision) {
	if decision := check(pod, gs); decision.Reason != "" {
		return nil, decision
	}
	s := sidecar{pod: pod, gs: gs, defaults: d}
	if decision := s.examine(); decision.Reason != "" {
		decision.GatewaySync = gs.Name
		return nil, decision
	}
	return s.ops(), Decision{Injected: true, Warnings: s.warnings, GatewaySync: gs.Name, Gateway: s.gateway}
}

// check returns why a pod cannot have an agent, as far as that does not depend on the details of its containers.
func check(pod *corev1.Pod, gs *v1alpha1.GatewaySync) Decision {
	switch {
	case !Requested(pod.Annotations):
		return skip(v1alpha1.ReasonNotRequested, "the pod has no annotation %s: \"true\"", v1alpha1.AnnotationInject)
	case Foreign(pod):
		d := skip(v1alpha1.ReasonAlreadyInjected, "the pod already has a container %s of another program", Container)
		d.Warnings = []string{fmt.Sprintf("container %s is not an agent of this version, because it has no variable POD_UID: remove it and the webhook that adds it (docs/how-to/migration.md)", Container)}
		return d
	case Has(pod):
		return skip(v1alpha1.ReasonAlreadyInjected, "the pod already has a container %s", Container)
	case gs == nil:
		return skip(v1alpha1.ReasonGatewaySyncNotFound, "no GatewaySync was found")
	case isStatic(pod):
		return skip(v1alpha1.ReasonUnsupportedPod, "the kubelet runs this static pod from a file, so it cannot get an agent: create the gateway as a StatefulSet")
	case isWindows(pod):
		return skip(v1alpha1.ReasonUnsupportedPod, "the pod runs on Windows, and the agent only on Linux: remove the annotation %s, or move the gateway to Linux", v1alpha1.AnnotationInject)
	}
	if label, ok := pod.Labels[v1alpha1.LabelCRName]; ok && label != gs.Name {
		return skip(v1alpha1.ReasonInvalidAnnotation, "label %s is %.80q, but the pod belongs to GatewaySync %s: remove the label; the injector sets it",
			v1alpha1.LabelCRName, label, gs.Name)
	}
	return Decision{}
}

// isStatic reports whether a kubelet reads the pod from a file. The object in the API is only a copy.
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

// maxNamed bounds the names in a message.
const maxNamed = 5

// GatewaySyncName returns the name of the GatewaySync in a pod's annotation, or "".
func GatewaySyncName(annotations map[string]string) string {
	name, _ := gatewaypod.Annotation(annotations, v1alpha1.AnnotationCRName)
	return name
}

// Candidates are the GatewaySyncs among which that of a pod is.
type Candidates struct {
	Readable []*v1alpha1.GatewaySync
	// Unreadable has the GatewaySyncs that this version cannot decode. They count, so that no pod gets the settings of another GatewaySync.
	Unreadable []*kube.UndecodableError
	// Selector is the label selector that candidates must match, or "".
	Selector string
}

// Choose returns the GatewaySync of a pod: the one that its annotation names, or the only one of its namespace. If there is
// none, it returns nil and the reason.
func Choose(pod *corev1.Pod, all Candidates) (*v1alpha1.GatewaySync, Decision) {
	name, only := GatewaySyncName(pod.Annotations), ""
	if name == "" && len(all.Readable)+len(all.Unreadable) > 1 {
		return nil, skip(v1alpha1.ReasonGatewaySyncAmbiguous, "the namespace has several GatewaySyncs (%s): name one with the annotation %s",
			all.names(), v1alpha1.AnnotationCRName)
	}
	for _, gs := range all.Readable {
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
	for _, gs := range c.Readable {
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
