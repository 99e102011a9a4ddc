// Package gatewaypod reads the pod of a gateway: the name of the gateway, its annotations, its agent.
package gatewaypod

import (
	"regexp"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/syntax"
)

const (
	// AgentContainer is the name of the agent's container in the pod of a gateway. The injector or a user adds it.
	AgentContainer = "stoker-agent"
	// AgentHealthPort is the name of the port at which that container answers probes and shows its state.
	AgentHealthPort = "stoker-health"
	// ExitRestartGateway is the exit code of an agent whose gateway has to start once more to accept the agent's API key (EX_TEMPFAIL). The
	// kubelet reports it in the status of the pod, where only this agent can cause it. The injector then evicts the pod.
	ExitRestartGateway = 75
)

// IsForeignAgent reports whether a container has the name of the agent's container but runs another program. The environment of an agent
// always has POD_UID, without which the agent does not start. A container without variables is that of a trimmed copy of a pod with an agent.
func IsForeignAgent(c *corev1.Container) bool {
	return c.Name == AgentContainer && len(c.Env) > 0 && !slices.ContainsFunc(c.Env, func(v corev1.EnvVar) bool { return v.Name == "POD_UID" })
}

const (
	// Prefix begins the names of the annotations of pods.
	Prefix = "stoker.io/"
	// OlderPrefix is an earlier form of Prefix that still works.
	OlderPrefix = "ignition-sync.io/"
)

// known are all annotations that a pod may use. None changes the rights of the pod (security context, ServiceAccount, mounts, paths of the
// node), except that another allowed image of the agent may run.
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

const (
	labelName        = "app.kubernetes.io/name"
	labelInstance    = "app.kubernetes.io/instance"
	labelPodIndex    = "apps.kubernetes.io/pod-index"
	labelStatefulPod = "statefulset.kubernetes.io/pod-name"
)

// genericName is the label app.kubernetes.io/name of every gateway of the official Helm chart.
const genericName = "ignition"

var gatewayName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$`)

// GatewayName returns the identity of the gateway in a pod: the annotation stoker.io/gateway-name; else the label
// app.kubernetes.io/name, unless that is the chart's generic "ignition"; else the label app.kubernetes.io/instance; else
// the pod's name. If the name is that of an annotation or label, and the pod has an index n > 0 in a StatefulSet, "-n" is appended, so
// that replicas of one template differ.
//
// The error is an *v1alpha1.Error with ReasonInvalidAnnotation. An invalid annotation is not ignored, because the next choice would
// silently be another gateway. Invalid labels are ignored.
func GatewayName(podName string, labels, annotations map[string]string) (string, error) {
	var name string
	if value, ok := Annotation(annotations, v1alpha1.AnnotationGatewayName); ok && value != "" {
		if !isGatewayName(value) {
			return "", v1alpha1.NewError(v1alpha1.ReasonInvalidAnnotation,
				"annotation %s: %.80q is not a name of a gateway; use letters, digits, '.', '_' and '-', at most %d, a letter or digit first and last",
				v1alpha1.AnnotationGatewayName, value, syntax.MaxGatewayName)
		}
		name = value
	} else if value := labels[labelName]; value != genericName && isGatewayName(value) {
		name = value
	} else if value := labels[labelInstance]; isGatewayName(value) {
		name = value
	} else {
		return podName, nil
	}
	if n, ok := Ordinal(podName, labels); ok && n > 0 {
		name += "-" + strconv.Itoa(n)
	}
	return name, nil
}

// GatewayLabel returns the name of a gateway for messages, with its pod if that has another name. For example, the pod line-0 is the
// gateway line, which a reader of "line, line-1, line-2" could not guess.
func GatewayLabel(name, pod string) string {
	if pod == "" || pod == name {
		return name
	}
	return name + " (pod " + pod + ")"
}

// Ordinal returns the index of a pod in its StatefulSet: the label apps.kubernetes.io/pod-index, else the number at the end of its
// name if the pod has the label statefulset.kubernetes.io/pod-name. Without this label, the name may be that of a pod of a Deployment,
// which may end with digits, too.
func Ordinal(podName string, labels map[string]string) (n int, ok bool) {
	if n, ok = ordinal(labels[labelPodIndex]); ok {
		return n, true
	}
	if labels[labelStatefulPod] == "" {
		return 0, false
	}
	return ordinal(podName[strings.LastIndexByte(podName, '-')+1:])
}

func ordinal(s string) (int, bool) {
	n, err := strconv.ParseUint(s, 10, 31)
	if err != nil || strconv.FormatUint(n, 10) != s {
		return 0, false
	}
	return int(n), true
}

func isGatewayName(s string) bool {
	return len(s) <= syntax.MaxGatewayName && gatewayName.MatchString(s)
}

// ValidName reports whether s can be the name of a gateway, which may also be that of a pod.
func ValidName(s string) bool { return len(s) <= 253 && gatewayName.MatchString(s) }
