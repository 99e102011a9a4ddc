// Package gatewaypod reads the pod of a gateway: the name of the gateway, its annotations, its agent.
package gatewaypod

import (
	"slices"
	"strings"

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

const (
	prefix      = "stoker.io/"
	olderPrefix = "ignition-sync.io/"
)

// Annotation returns an annotation of a pod. If the pod does not have it, Annotation returns the annotation of the same name with
// the older prefix ignition-sync.io/.
func Annotation(annotations map[string]string, name string) (value string, ok bool) {
	if value, ok = annotations[name]; ok {
		return value, true
	}
	if rest, ours := strings.CutPrefix(name, prefix); ours {
		value, ok = annotations[olderPrefix+rest]
	}
	return value, ok
}
