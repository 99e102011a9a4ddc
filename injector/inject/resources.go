package inject

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// least is the least that an agent of a Guaranteed pod gets of a resource without a limit of its own. A first sync, for which
// the gateway waits, keeps up to one processor busy, and a limit below that would throttle it. The amount is no whole number,
// because the static policy of the CPU manager would reserve a processor for the agent alone.
var least = corev1.ResourceList{
	corev1.ResourceCPU:    resource.MustParse("1100m"),
	corev1.ResourceMemory: resource.MustParse("256Mi"),
}

// resources returns the agent's requests and limits. A Guaranteed pod stays Guaranteed. A pod with resources of its own as a
// whole gets an agent without any, since what containers ask for may not exceed the pod's. There is never a limit on
// ephemeral storage: the kubelet would evict the whole pod for it, gateway included.
func (s *sidecar) resources() corev1.ResourceRequirements {
	if s.pod.Spec.Resources != nil {
		return corev1.ResourceRequirements{}
	}
	r := s.defaults.Resources.DeepCopy()
	if s.gs.Spec.Agent.Resources != nil {
		r = s.gs.Spec.Agent.Resources.DeepCopy()
		if problem := ResourcesProblem(*r); problem != "" {
			s.warn("GatewaySync %s: spec.agent.resources: %s; the injector's own are used", s.gs.Name, problem)
			r = s.defaults.Resources.DeepCopy()
		}
	}
	r.Claims = nil // the pod has none for the agent
	delete(r.Limits, corev1.ResourceEphemeralStorage)
	if guaranteed(s.pod) {
		return Guaranteed(*r)
	}
	return *r
}

// Guaranteed returns what the agent of a Guaranteed pod gets in place of r: requests that equal limits. A limit that r names
// counts as it is. A request without a limit says what an idle agent needs and is no limit on one that works.
func Guaranteed(r corev1.ResourceRequirements) corev1.ResourceRequirements {
	r = *r.DeepCopy()
	if r.Limits == nil {
		r.Limits = corev1.ResourceList{}
	}
	if r.Requests == nil {
		r.Requests = corev1.ResourceList{}
	}
	for name, amount := range least {
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

// ResourcesProblem says why a pod could not have an agent with such resources; empty where it could. The API server would
// refuse the pod as a whole.
func ResourcesProblem(r corev1.ResourceRequirements) string {
	for kind, list := range map[string]corev1.ResourceList{"requests": r.Requests, "limits": r.Limits} {
		for name, amount := range list {
			switch {
			case name != corev1.ResourceCPU && name != corev1.ResourceMemory && name != corev1.ResourceEphemeralStorage:
				return fmt.Sprintf("%s: %.60q is none of cpu, memory and ephemeral-storage", kind, name)
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

// guaranteed reports whether every container of a pod has limits for CPU and memory and asks for just as much.
func guaranteed(pod *corev1.Pod) bool {
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			for name := range least {
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
