package v1alpha1

import (
	"strings"
	"time"
	"unicode/utf8"
)

// Annotations of a GatewaySync. They ask for something without a change of the spec; DesiredRef says what they mean.
const (
	// AnnotationRequestedRef is the requested ref, which overrides spec.git.ref.
	AnnotationRequestedRef = "stoker.io/requested-ref"
	// AnnotationRequestedOver says over which spec.git.ref that was, as requested@spec. After a space may follow what tells
	// the request from an earlier one of the same words, such as its time.
	AnnotationRequestedOver = "stoker.io/requested-over"
	// AnnotationRequestedUnless is a commit: the request counts only while spec.git.ref resolves to it.
	AnnotationRequestedUnless = "stoker.io/requested-unless"
	// AnnotationRequestedCommit is the commit that requested-ref has to stand at. A ref that stands elsewhere is refused.
	AnnotationRequestedCommit = "stoker.io/requested-commit"
	// AnnotationRequestedAt is a time in RFC 3339 with nanoseconds: a new value asks for a fresh look at git.
	AnnotationRequestedAt = "stoker.io/requested-at"
	// AnnotationRequestedBy names who asks: github, gitlab, gitea, bitbucket, azuredevops, argocd, kargo, generic, cli, hook.
	AnnotationRequestedBy = "stoker.io/requested-by"
	// AnnotationRequestedFor says in words what the request belongs to, such as the Stage, the Freight, the actor and the link
	// of a promotion of Kargo. It is only shown.
	AnnotationRequestedFor = "stoker.io/requested-for"
	// AnnotationRequestedIDs is a JSON object from sender to the ids of its last eight requests, with a space between them and
	// the newest last.
	AnnotationRequestedIDs = "stoker.io/requested-ids"
	// AnnotationRequestedTags holds the last tags that were followed, with a space between them and the newest last.
	AnnotationRequestedTags = "stoker.io/requested-tags"
	// AnnotationForceSync asks, with any new value, to verify every managed file by its content.
	AnnotationForceSync = "stoker.io/force-sync"
	// AnnotationConfirmDeletion is a commit, in full or its first 7 digits or more, whose mass deletion an operator approves.
	AnnotationConfirmDeletion = "stoker.io/confirm-deletion"
	// AnnotationPropose is the name of a gateway, a space and a time in RFC 3339. A new value asks that gateway's agent to close
	// its pull request and to propose the changes again from today's base.
	AnnotationPropose = "stoker.io/propose"
	// AnnotationRestore is the id of a snapshot, a space and a time in RFC 3339. A new value asks the agent of the gateway that the id
	// begins with to bring the gateway back to the snapshot.
	AnnotationRestore = "stoker.io/restore"
	// AnnotationPaused pauses the GatewaySync if it is "true".
	AnnotationPaused = "stoker.io/paused"
)

// Annotations of a gateway pod. They are read with PodAnnotation, which also knows their older prefix.
const (
	// AnnotationInject is "true" on a pod that gets an agent.
	AnnotationInject = "stoker.io/inject"
	// AnnotationCRName names the GatewaySync; it may be left out where the namespace has exactly one.
	AnnotationCRName = "stoker.io/cr-name"
	// AnnotationProfile names the profile; default counts where it is left out.
	AnnotationProfile = "stoker.io/profile"
	// AnnotationGatewayName is the gateway's name. Default: the label app.kubernetes.io/name, unless it is ignition; else
	// the label app.kubernetes.io/instance; else the pod's name. Pods of a StatefulSet get -n appended from the second one on.
	AnnotationGatewayName = "stoker.io/gateway-name"
	// AnnotationServicePath is the folder of the repository that this gateway gets, where the GatewaySync has no profiles.
	AnnotationServicePath = "stoker.io/service-path"
	// AnnotationDeploymentMode is the gateway's deployment mode.
	AnnotationDeploymentMode = "stoker.io/deployment-mode"
	// AnnotationTagProvider is the tag provider that udts go to in service-path mode; default counts where it is left out.
	AnnotationTagProvider = "stoker.io/tag-provider"
	// AnnotationSystemName is what the gateway's system name is set to.
	AnnotationSystemName = "stoker.io/system-name"
	// AnnotationSystemNameTemplate is the same as a template; stoker.io/system-name wins over it.
	AnnotationSystemNameTemplate = "stoker.io/system-name-template"
	// AnnotationSyncPeriod overrides syncPeriod, in seconds.
	AnnotationSyncPeriod = "stoker.io/sync-period"
	// AnnotationExcludePatterns holds patterns, separated by commas, that are added to the excludePatterns.
	AnnotationExcludePatterns = "stoker.io/exclude-patterns"
	// AnnotationDataVolume names the volume of Ignition's data directory. Default: the one that the gateway's container
	// mounts there, else data, else ignition-data.
	AnnotationDataVolume = "stoker.io/data-volume"
	// AnnotationAgentImage is another image of the agent; it counts only where the injector admits it.
	AnnotationAgentImage = "stoker.io/agent-image"
	// AnnotationRequire is "true" on a pod that must not start without its agent.
	AnnotationRequire = "stoker.io/require"
	// AnnotationInjected is "true" on a pod that has its agent. The injector writes it.
	AnnotationInjected = "stoker.io/injected"
)

// LabelCRName is the label, with the name of the GatewaySync, that the injector gives a pod.
const LabelCRName = "stoker.io/cr-name"

// LabelInjection is "disabled" on a pod or a namespace that gets no agents, or "enabled" on one that does.
const LabelInjection = "stoker.io/injection"

const (
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

// Paused reports whether the whole GatewaySync is paused, by its spec or by the annotation.
func (gs *GatewaySync) Paused() bool {
	return gs.Spec.Paused || gs.Annotations[AnnotationPaused] == "true"
}

// ForceSync returns the value of the annotation stoker.io/force-sync. A value that was not seen before asks to verify
// every managed file by its content, to repair and to scan again.
func (gs *GatewaySync) ForceSync() string { return gs.Annotations[AnnotationForceSync] }

// maxPropose bounds the annotation stoker.io/propose, in bytes.
const maxPropose = 320

// Propose returns the value of the annotation stoker.io/propose, or "" if it is too long or not one line of text.
func (gs *GatewaySync) Propose() string {
	value := gs.Annotations[AnnotationPropose]
	if len(value) > maxPropose || !utf8.ValidString(value) || strings.ContainsFunc(value, isControl) {
		return ""
	}
	return value
}

// ProposeValue returns the value of the annotation stoker.io/propose for a gateway at a time.
func ProposeValue(gateway string, at time.Time) string {
	return gateway + " " + at.UTC().Format(time.RFC3339)
}

// ProposesFor reports whether a value of the annotation stoker.io/propose is about this gateway.
func ProposesFor(value, gateway string) bool {
	name, _, _ := strings.Cut(value, " ")
	return name != "" && name == gateway
}
