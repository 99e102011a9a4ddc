package v1alpha1

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

const (
	// AgentContainer is the name of the agent's container in the pod of a gateway. The injector or a user adds it.
	AgentContainer = "stoker-agent"
	// AgentHealthPort is the name of the container's port for probes and /state.
	AgentHealthPort = "stoker-health"
)

// IsForeignAgent reports whether a container has the name of the agent's container but runs another program. The environment of an agent
// always has POD_UID, without which the agent does not start.
func IsForeignAgent(c *corev1.Container) bool {
	return c.Name == AgentContainer && len(c.Env) > 0 && !slices.ContainsFunc(c.Env, func(v corev1.EnvVar) bool { return v.Name == "POD_UID" })
}
