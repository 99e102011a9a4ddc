// Package inject decides, from a pod and its GatewaySync alone, how the pod gets its agent, or why it gets none. It is pure:
// the same pod gets the same patch in the webhook, in the reconciler and in a test. It cannot know that a quota, a LimitRange or a policy
// rejects a pod with an agent: a dry run would need the right to create pods.
package inject

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

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

// Op is one operation of RFC 6902. Only "add" is used.
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

// Patch returns the operations that add the agent to a pod. There are none if the pod has an agent already or cannot have one.
// gs is the result of Choose. Patch does not change its arguments.
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
	// Unreadable are those that this version cannot decode. They count, so that no pod gets the settings of another one.
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

// guaranteedLimits are the limits of the agent in a Guaranteed pod if neither the GatewaySync nor the injector's defaults set a
// limit. The gateway waits for the first sync, which can use a little more than one processor. The pod reserves the CPU for as long as it
// runs, so the agent gets at most half of the gateway's CPU: it must not be the reason why a gateway finds no node.
var guaranteedLimits = corev1.ResourceList{
	corev1.ResourceCPU:    resource.MustParse("1100m"),
	corev1.ResourceMemory: resource.MustParse("256Mi"),
}

// resources returns the agent's requests and limits. A Guaranteed pod stays Guaranteed. If the pod has pod-level resources, the
// agent gets none, because the sum of its containers must not exceed them. There is never a limit on ephemeral storage, because
// the kubelet would evict the whole pod for it, including the gateway.
func (s *sidecar) resources() corev1.ResourceRequirements {
	if s.pod.Spec.Resources != nil {
		return corev1.ResourceRequirements{}
	}
	r := s.defaults.Resources.DeepCopy()
	if s.gs.Spec.Agent.Resources != nil {
		r = s.gs.Spec.Agent.Resources.DeepCopy()
		if problem := ResourcesProblem(*r); problem != "" {
			s.warn("GatewaySync %s: spec.agent.resources is ignored: %s", s.gs.Name, problem)
			r = s.defaults.Resources.DeepCopy()
		}
	}
	r.Claims = nil // the pod has no claims for the agent
	delete(r.Limits, corev1.ResourceEphemeralStorage)
	if guaranteed(s.pod) {
		return Guaranteed(*r, gatewayCPU(s.pod))
	}
	return *r
}

// Guaranteed returns the resources r for the agent of a Guaranteed pod whose containers have this CPU, with requests equal to limits.
// Limits in r are kept. A missing limit is the larger of guaranteedLimits and the request, because a request only says what an idle agent
// needs. The amount of CPU is not an integer, because the static policy of the CPU manager would reserve whole processors for the agent.
func Guaranteed(r corev1.ResourceRequirements, gateway resource.Quantity) corev1.ResourceRequirements {
	r = *r.DeepCopy()
	if r.Limits == nil {
		r.Limits = corev1.ResourceList{}
	}
	if r.Requests == nil {
		r.Requests = corev1.ResourceList{}
	}
	for name, amount := range guaranteedLimits {
		if half := gateway.MilliValue() / 2; name == corev1.ResourceCPU && half < amount.MilliValue() {
			if half%1000 == 0 {
				half -= 100
			}
			amount = *resource.NewMilliQuantity(max(half, minMilliCPU), resource.DecimalSI)
		}
		limit, ok := r.Limits[name]
		if !ok {
			limit = amount
			if request := r.Requests[name]; request.Cmp(limit) > 0 {
				limit = request
			}
		}
		r.Limits[name], r.Requests[name] = limit.DeepCopy(), limit.DeepCopy()
	}
	return r
}

// ResourcesProblem returns why an agent cannot have these resources, or "". An agent needs no resource except cpu, memory and
// ephemeral-storage. With negative amounts, or requests above their limits, the API server would reject the pod.
func ResourcesProblem(r corev1.ResourceRequirements) string {
	for kind, list := range map[string]corev1.ResourceList{"requests": r.Requests, "limits": r.Limits} {
		for name, amount := range list {
			switch {
			case name != corev1.ResourceCPU && name != corev1.ResourceMemory && name != corev1.ResourceEphemeralStorage:
				return fmt.Sprintf("%s: %.60q is not cpu, memory or ephemeral-storage", kind, name)
			case amount.Sign() < 0:
				return fmt.Sprintf("%s: %s is below zero", kind, name)
			}
		}
	}
	for name, request := range r.Requests {
		if limit, ok := r.Limits[name]; ok && request.Cmp(limit) > 0 {
			return fmt.Sprintf("requests: %s is above its limit", name)
		}
	}
	return ""
}

// minMilliCPU is the least limit on CPU, with which the probes of the agent still pass.
const minMilliCPU = 100

// gatewayCPU returns the CPU of the containers that run beside the agent.
func gatewayCPU(pod *corev1.Pod) (sum resource.Quantity) {
	for i := range pod.Spec.Containers {
		sum.Add(pod.Spec.Containers[i].Resources.Limits[corev1.ResourceCPU])
	}
	return sum
}

// guaranteed reports whether every container of a pod has CPU and memory limits and requests that equal them.
func guaranteed(pod *corev1.Pod) bool {
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			for name := range guaranteedLimits {
				limit, limited := list[i].Resources.Limits[name]
				request, requested := list[i].Resources.Requests[name]
				if !limited || limit.IsZero() || requested && request.Cmp(limit) != 0 {
					return false
				}
			}
		}
	}
	return true
}
