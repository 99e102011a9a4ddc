package v1alpha1

import "strings"

// Annotations of a GatewaySync: requests, and what a person may say without a change of the spec. DesiredRef says what
// they mean.
const (
	// AnnotationRequestedRef is the ref that is asked for in place of spec.git.ref.
	AnnotationRequestedRef = "stoker.io/requested-ref"
	// AnnotationRequestedOver says over which spec.git.ref that was; RequestOver writes it.
	AnnotationRequestedOver = "stoker.io/requested-over"
	// AnnotationRequestedUnless is a commit: the request counts only while spec.git.ref resolves to it.
	AnnotationRequestedUnless = "stoker.io/requested-unless"
	// AnnotationRequestedAt is a time in RFC 3339 with nanoseconds: a new value asks for a fresh look at git.
	AnnotationRequestedAt = "stoker.io/requested-at"
	// AnnotationRequestedBy names who asks: github, gitlab, gitea, bitbucket, azuredevops, argocd, kargo, generic, cli, hook.
	AnnotationRequestedBy = "stoker.io/requested-by"
	// AnnotationRequestedIDs is a JSON object from sender to the id of its last request.
	AnnotationRequestedIDs = "stoker.io/requested-ids"
	// AnnotationForceSync asks, with any new value, to verify every managed file by its content.
	AnnotationForceSync = "stoker.io/force-sync"
	// AnnotationPaused is "true" where a person has paused the GatewaySync.
	AnnotationPaused = "stoker.io/paused"
)

// Annotations and labels of a gateway pod. The annotations are read with PodAnnotation, which also knows their older prefix.
const (
	AnnotationInject             = "stoker.io/inject"
	AnnotationInjected           = "stoker.io/injected"
	AnnotationCRName             = "stoker.io/cr-name"
	AnnotationProfile            = "stoker.io/profile"
	AnnotationGatewayName        = "stoker.io/gateway-name"
	AnnotationServicePath        = "stoker.io/service-path"
	AnnotationDeploymentMode     = "stoker.io/deployment-mode"
	AnnotationTagProvider        = "stoker.io/tag-provider"
	AnnotationSystemName         = "stoker.io/system-name"
	AnnotationSystemNameTemplate = "stoker.io/system-name-template"
	AnnotationSyncPeriod         = "stoker.io/sync-period"
	AnnotationExcludePatterns    = "stoker.io/exclude-patterns"
	AnnotationDataVolume         = "stoker.io/data-volume"
	AnnotationAgentImage         = "stoker.io/agent-image"
	AnnotationRequire            = "stoker.io/require"

	// LabelCRName is the label that the injector adds, with the name of the GatewaySync.
	LabelCRName = "stoker.io/cr-name"

	labelName        = "app.kubernetes.io/name"
	labelInstance    = "app.kubernetes.io/instance"
	labelPodIndex    = "apps.kubernetes.io/pod-index"
	labelStatefulPod = "statefulset.kubernetes.io/pod-name"
)

const (
	prefix      = "stoker.io/"
	olderPrefix = "ignition-sync.io/"
)

// PodAnnotation returns an annotation of a pod. Where it is not there, the same name with the prefix ignition-sync.io/
// counts, which manifests of an earlier time carry.
func PodAnnotation(annotations map[string]string, name string) (value string, ok bool) {
	if value, ok = annotations[name]; ok {
		return value, true
	}
	if rest, ours := strings.CutPrefix(name, prefix); ours {
		value, ok = annotations[olderPrefix+rest]
	}
	return value, ok
}

// Paused reports whether the whole GatewaySync is paused, by its spec or by a person.
func (gs *GatewaySync) Paused() bool {
	return gs.Spec.Paused || gs.Annotations[AnnotationPaused] == "true"
}

// ForceSync returns the value of the annotation stoker.io/force-sync. A value that was not seen before asks to verify
// every managed file by its content, to repair and to scan again.
func (gs *GatewaySync) ForceSync() string { return gs.Annotations[AnnotationForceSync] }
