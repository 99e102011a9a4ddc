package v1alpha1

import (
	"regexp"
	"strconv"
	"strings"
)

// genericName is what the official Helm chart writes into the label app.kubernetes.io/name of every gateway.
const genericName = "ignition"

var gatewayName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$`)

const maxGatewayName = 200

// GatewayName returns the identity of the gateway in a pod: the annotation stoker.io/gateway-name; else the label
// app.kubernetes.io/name, unless that is the chart's generic "ignition"; else the label app.kubernetes.io/instance; else
// the pod's name. On all but the last, the pod of a StatefulSet with an index n > 0 gets "-n" appended, so that replicas
// of one template differ.
//
// The error is an *Error with ReasonInvalidAnnotation: an annotation that cannot be a name is not passed over, since the
// next choice would silently be another gateway. Labels that cannot be a name are passed over.
func GatewayName(podName string, labels, annotations map[string]string) (string, error) {
	var name string
	if value, ok := PodAnnotation(annotations, AnnotationGatewayName); ok && value != "" {
		if !isGatewayName(value) {
			return "", NewError(ReasonInvalidAnnotation,
				"annotation %s: %.80q is not a name of a gateway; use letters, digits, '.', '_' and '-', at most %d, a letter or digit first and last",
				AnnotationGatewayName, value, maxGatewayName)
		}
		name = value
	} else if value := labels[labelName]; value != genericName && isGatewayName(value) {
		name = value
	} else if value := labels[labelInstance]; isGatewayName(value) {
		name = value
	} else {
		return podName, nil
	}
	if n, ok := PodOrdinal(podName, labels); ok && n > 0 {
		name += "-" + strconv.Itoa(n)
	}
	return name, nil
}

// GatewayLabel names a gateway in messages for people, with its pod if that has another name. The pod line-0 is the gateway line:
// a reader of "line, line-1, line-2" could not tell which pod each is.
func GatewayLabel(name, pod string) string {
	if pod == "" || pod == name {
		return name
	}
	return name + " (pod " + pod + ")"
}

// PodOrdinal returns the index of a StatefulSet's pod: its label apps.kubernetes.io/pod-index, else the number at the end
// of its name where the label statefulset.kubernetes.io/pod-name tells that it belongs to a StatefulSet. The name alone
// does not tell: that of a Deployment's pod may end in digits, too.
func PodOrdinal(podName string, labels map[string]string) (n int, ok bool) {
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

func isGatewayName(s string) bool { return len(s) <= maxGatewayName && gatewayName.MatchString(s) }
