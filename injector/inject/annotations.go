package inject

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"stoker.io/stoker/api/v1alpha1"
)

// podAnnotations are all annotations that a pod may use. Except for an allowed image, they cannot change the rights of the pod:
// no security context, ServiceAccount, mount or path of the node.
var podAnnotations = []string{
	v1alpha1.AnnotationInject, v1alpha1.AnnotationCRName, v1alpha1.AnnotationProfile, v1alpha1.AnnotationGatewayName, v1alpha1.AnnotationServicePath,
	v1alpha1.AnnotationDeploymentMode, v1alpha1.AnnotationTagProvider, v1alpha1.AnnotationSystemName, v1alpha1.AnnotationSystemNameTemplate,
	v1alpha1.AnnotationSyncPeriod, v1alpha1.AnnotationExcludePatterns, v1alpha1.AnnotationDataVolume, v1alpha1.AnnotationAgentImage,
	v1alpha1.AnnotationRequire, v1alpha1.AnnotationInjected,
}

// maxUnknown bounds the annotations in a warning.
const maxUnknown = 3

// warnUnknown warns about annotations with our prefix that have no effect.
func (s *sidecar) warnUnknown() {
	var unknown []string
	for _, key := range slices.Sorted(maps.Keys(s.pod.Annotations)) {
		prefix, name, _ := strings.Cut(key, "/")
		if (prefix == "stoker.io" || prefix == "ignition-sync.io") && !slices.Contains(podAnnotations, "stoker.io/"+name) {
			unknown = append(unknown, fmt.Sprintf("%.63q", key))
		}
	}
	if n := len(unknown); n > maxUnknown {
		unknown = append(unknown[:maxUnknown], fmt.Sprintf("and %d more", n-maxUnknown))
	}
	if len(unknown) > 0 {
		s.warn("unknown annotations are ignored: %s", strings.Join(unknown, ", "))
	}
}
