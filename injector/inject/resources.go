package inject

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// guaranteedLimits are the limits of the agent in a Guaranteed pod if neither the GatewaySync nor the injector's defaults set a
// limit. The gateway waits for the first sync, which can use a little more than one processor. The pod reserves the CPU for as long as it
// runs, so the agent gets at most half of the gateway's CPU: a larger agent could be the reason why no node has room for the pod.
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
// needs. The default amount of CPU is not an integer, because the static policy of the CPU manager would reserve whole processors for the
// agent.
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
