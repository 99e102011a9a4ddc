package v1alpha1

// Annotations of a GatewaySync. They request something without a change of the spec. Package desiredref evaluates the requested ref.
const (
	// AnnotationRequestedRef is the requested ref, which overrides spec.git.ref.
	AnnotationRequestedRef = "stoker.io/requested-ref"
	// AnnotationRequestedOver is the requested ref and the value of spec.git.ref at the time of the request, as requested@spec. A
	// space and the time of the request may follow, to distinguish the request from an earlier one with the same refs.
	AnnotationRequestedOver = "stoker.io/requested-over"
	// AnnotationRequestedUnless is a commit. The request is in force only while spec.git.ref resolves to this commit.
	AnnotationRequestedUnless = "stoker.io/requested-unless"
	// AnnotationRequestedCommit is the commit that requested-ref must resolve to. Otherwise the request is refused.
	AnnotationRequestedCommit = "stoker.io/requested-commit"
	// AnnotationRequestedAt is a time in RFC 3339 with nanoseconds. A new value makes the lead poll git.
	AnnotationRequestedAt = "stoker.io/requested-at"
	// AnnotationRequestedBy is the name of the sender, such as github, kargo or cli. The flag --by of stoker set-ref lists them.
	AnnotationRequestedBy = "stoker.io/requested-by"
	// AnnotationRequestedFor is a text that describes the origin of the request, such as the Stage, Freight, actor and link of a Kargo
	// promotion. It is only displayed.
	AnnotationRequestedFor = "stoker.io/requested-for"
	// AnnotationRequestedBefore is a JSON object with the id of the request and what it replaced, which a withdrawal restores.
	AnnotationRequestedBefore = "stoker.io/requested-before"
	// AnnotationRequestedIDs is a JSON object with the ids of the last eight requests of each sender, separated by spaces, the newest last.
	AnnotationRequestedIDs = "stoker.io/requested-ids"
	// AnnotationRequestedTags lists the last tags that spec.webhook.followTags selected, separated by spaces, the newest last.
	AnnotationRequestedTags = "stoker.io/requested-tags"
	// AnnotationForceSync is any text. A new value makes the agents verify every managed file by its content, and repair
	// drift. It does not deliver a commit that a restore or a rollback has blocked; stoker.io/retry does.
	AnnotationForceSync = "stoker.io/force-sync"
	// AnnotationConfirmDeletion is a commit, or its first 7 or more digits. It approves every mass deletion while this commit is the target,
	// also on other gateways and with another spec. Changing it requires the verb update.
	AnnotationConfirmDeletion = "stoker.io/confirm-deletion"
	// AnnotationPropose is the name of a gateway, a space and a time in RFC 3339. A new value makes the agent of that gateway close its
	// pull request and propose the changes again, based on the commit that the gateway runs now.
	AnnotationPropose = "stoker.io/propose"
	// AnnotationRestore is the id of a snapshot, a space and a time in RFC 3339. The id begins with the name of a gateway. A new value makes
	// the agent of this gateway restore the snapshot. Changing it requires the verb update.
	AnnotationRestore = "stoker.io/restore"
	// AnnotationRetry is a commit, a space and a time in RFC 3339. A new value makes the gateways where a restore or a rollback has
	// blocked this commit sync it again.
	AnnotationRetry = "stoker.io/retry"
	// AnnotationPaused pauses the GatewaySync if it is "true".
	AnnotationPaused = "stoker.io/paused"
	// AnnotationApproved lists the last 17 approvals, separated by commas, the newest last. An approval is stage@commit with all 40 digits
	// of the commit, and may be followed by a space and the writer's user name. window@commit lets a commit through closed maintenance
	// windows. Changing it requires the verb approve.
	AnnotationApproved = "stoker.io/approved"
)

// AnnotationWriter says who may change an annotation.
type AnnotationWriter string

// The writers of annotations. Admission policies enforce them.
const (
	WriterSetter   AnnotationWriter = "setter"   // who may patch the object
	WriterEditor   AnnotationWriter = "editor"   // who may update the object
	WriterApprover AnnotationWriter = "approver" // who has the verb approve
)

// RequestAnnotation is an annotation by which users and programs request something, and who may change it.
//
// +kubebuilder:object:generate=false
type RequestAnnotation struct {
	Name   string
	Writer AnnotationWriter
}

// RequestAnnotations returns all annotations that request something. The policy stoker-gatewaysyncs lists those of setters and approvers; only
// editors may write others.
func RequestAnnotations() []RequestAnnotation {
	return []RequestAnnotation{
		{AnnotationRequestedRef, WriterSetter}, {AnnotationRequestedOver, WriterSetter}, {AnnotationRequestedUnless, WriterSetter},
		{AnnotationRequestedCommit, WriterSetter}, {AnnotationRequestedAt, WriterSetter}, {AnnotationRequestedBy, WriterSetter},
		{AnnotationRequestedFor, WriterSetter}, {AnnotationRequestedBefore, WriterSetter}, {AnnotationRequestedIDs, WriterSetter},
		{AnnotationRequestedTags, WriterSetter}, {AnnotationForceSync, WriterSetter}, {AnnotationPropose, WriterSetter},
		{AnnotationRetry, WriterSetter}, {AnnotationPaused, WriterSetter},
		{AnnotationConfirmDeletion, WriterEditor}, {AnnotationRestore, WriterEditor}, {AnnotationApproved, WriterApprover},
	}
}

// WindowApproval replaces the name of the stage in an approval for the maintenance windows. No stage can have this name.
const WindowApproval = "window"

// Annotations of a gateway pod. Read them with gatewaypod.Annotation, which also accepts their older prefix.
const (
	// AnnotationInject is "true" on a pod that gets an agent.
	AnnotationInject = "stoker.io/inject"
	// AnnotationCRName names the GatewaySync. It is optional if the namespace has exactly one.
	AnnotationCRName = "stoker.io/cr-name"
	// AnnotationProfile names the profile. Default: the profile with the name default.
	AnnotationProfile = "stoker.io/profile"
	// AnnotationGatewayName is the gateway's name. Default: the label app.kubernetes.io/name, unless it is ignition; else
	// the label app.kubernetes.io/instance; else the pod's name. Except for the pod's name, later pods of a StatefulSet append their ordinal (-1).
	AnnotationGatewayName = "stoker.io/gateway-name"
	// AnnotationServicePath is the folder of the repository that this gateway gets. It has an effect only if the GatewaySync has no
	// profiles.
	AnnotationServicePath = "stoker.io/service-path"
	// AnnotationDeploymentMode is the name of the gateway's deployment mode.
	AnnotationDeploymentMode = "stoker.io/deployment-mode"
	// AnnotationTagProvider is the tag provider that the folder udts is synced to, if the GatewaySync has no profiles. Default: the tag
	// provider with the name default.
	AnnotationTagProvider = "stoker.io/tag-provider"
	// AnnotationSystemName is the system name that the agent sets on the gateway.
	AnnotationSystemName = "stoker.io/system-name"
	// AnnotationSystemNameTemplate is a template for the system name. If stoker.io/system-name is set, the template is ignored.
	AnnotationSystemNameTemplate = "stoker.io/system-name-template"
	// AnnotationSyncPeriod overrides syncPeriod, in seconds.
	AnnotationSyncPeriod = "stoker.io/sync-period"
	// AnnotationExcludePatterns lists patterns, separated by commas, in addition to the excludePatterns of the GatewaySync.
	AnnotationExcludePatterns = "stoker.io/exclude-patterns"
	// AnnotationDataVolume names the volume of Ignition's data directory. Default: the volume that the gateway's container
	// mounts there, else the volume data, else ignition-data.
	AnnotationDataVolume = "stoker.io/data-volume"
	// AnnotationAgentImage is another image for the agent. The injector uses it only if its settings allow the image.
	AnnotationAgentImage = "stoker.io/agent-image"
	// AnnotationRequire is "true" on a pod that must not start without its agent.
	AnnotationRequire = "stoker.io/require"
	// AnnotationInjected is "true" on a pod that has its agent. The injector writes it.
	AnnotationInjected = "stoker.io/injected"
)

// LabelCRName is the label with which the injector marks a pod. Its value is the name of the GatewaySync.
const LabelCRName = "stoker.io/cr-name"

// LabelInjection is "disabled" on a pod or a namespace that gets no agents, or "enabled" on one that does.
const LabelInjection = "stoker.io/injection"

// Paused reports whether the whole GatewaySync is paused, by its spec or by the annotation.
func (gs *GatewaySync) Paused() bool {
	return gs.Spec.Paused || gs.Annotations[AnnotationPaused] == "true"
}
