package v1alpha1

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

const (
	// AgentContainer is the name of the agent's container in a gateway's pod, put there by the injector or by hand.
	AgentContainer = "stoker-agent"
	// AgentHealthPort is the name of its port for probes and /state.
	AgentHealthPort = "stoker-health"
)

// IsForeignAgent reports whether a container has the name of the agent's and is another program's: its environment lacks
// POD_UID, which only a field of the pod can give and without which the agent does not start.
func IsForeignAgent(c *corev1.Container) bool {
	return c.Name == AgentContainer && len(c.Env) > 0 && !slices.ContainsFunc(c.Env, func(v corev1.EnvVar) bool { return v.Name == "POD_UID" })
}
