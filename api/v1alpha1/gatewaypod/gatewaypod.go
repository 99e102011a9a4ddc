// Package gatewaypod reads the pod of a gateway: the name of the gateway, its annotations, its agent.
package gatewaypod

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"stoker.io/stoker/api/v1alpha1"
)

const (
	// AgentContainer is the name of the agent's container in the pod of a gateway. The injector or a user adds it.
	AgentContainer = "stoker-agent"
	// AgentHealthPort is the name of the container's port for probes and /state.
	AgentHealthPort = "stoker-health"
	// ExitRestartGateway is the exit code of an agent whose gateway has to start once more to accept the agent's API key (EX_TEMPFAIL). The
	// kubelet reports it in the status of the pod, where only this agent can cause it. The injector then evicts the pod.
	ExitRestartGateway = 75
)

// IsForeignAgent reports whether a container has the name of the agent's container but runs another program. The environment of an agent
// always has POD_UID, without which the agent does not start.
func IsForeignAgent(c *corev1.Container) bool {
	return c.Name == AgentContainer && len(c.Env) > 0 && !slices.ContainsFunc(c.Env, func(v corev1.EnvVar) bool { return v.Name == "POD_UID" })
}

const (
	// Prefix begins the names of the annotations of pods.
	Prefix = "stoker.io/"
	// OlderPrefix may stand for Prefix.
	OlderPrefix = "ignition-sync.io/"
)

// known are all annotations that a pod may use. Except for an allowed image, they cannot change the rights of the pod:
// no security context, ServiceAccount, mount or path of the node.
var known = []string{
	v1alpha1.AnnotationInject, v1alpha1.AnnotationCRName, v1alpha1.AnnotationProfile, v1alpha1.AnnotationGatewayName, v1alpha1.AnnotationServicePath,
	v1alpha1.AnnotationDeploymentMode, v1alpha1.AnnotationTagProvider, v1alpha1.AnnotationSystemName, v1alpha1.AnnotationSystemNameTemplate,
	v1alpha1.AnnotationSyncPeriod, v1alpha1.AnnotationExcludePatterns, v1alpha1.AnnotationDataVolume, v1alpha1.AnnotationAgentImage,
	v1alpha1.AnnotationRequire, v1alpha1.AnnotationInjected,
}

// IsUnknown reports whether an annotation has one of the prefixes, and yet no effect on a pod.
func IsUnknown(annotation string) bool {
	name, ours := strings.CutPrefix(annotation, Prefix)
	if !ours {
		name, ours = strings.CutPrefix(annotation, OlderPrefix)
	}
	return ours && !slices.Contains(known, Prefix+name)
}

// Annotation returns an annotation of a pod. If the pod does not have it, Annotation returns the annotation of the same name with
// OlderPrefix.
func Annotation(annotations map[string]string, name string) (value string, ok bool) {
	if value, ok = annotations[name]; ok {
		return value, true
	}
	if rest, ours := strings.CutPrefix(name, Prefix); ours {
		value, ok = annotations[OlderPrefix+rest]
	}
	return value, ok
}
