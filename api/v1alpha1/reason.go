package v1alpha1

// Reason is the enumerated "why" of an outcome. The same word is the reason of a condition and of an event, the label
// of a metric, what the command line prints, and the anchor in docs/how-to/troubleshooting.md.
type Reason string

// Class says what happens next after an outcome.
type Class string

const (
	// ClassDone means that nothing more has to happen.
	ClassDone Class = "done"
	// ClassWorking means that something is under way; look again.
	ClassWorking Class = "working"
	// ClassRetry means that the same thing is tried again by itself, with backoff and jitter.
	ClassRetry Class = "retry"
	// ClassHeld means that a person, a gate or a Designer has to move first.
	ClassHeld Class = "held"
	// ClassStalled means that it cannot succeed until the spec, the commit or a secret changes.
	ClassStalled Class = "stalled"
	// ClassNotInjected means that a pod was left without its agent.
	ClassNotInjected Class = "not-injected"
)

// Reasons of class ClassDone.
const (
	// ReasonRefResolved means: the desired ref was resolved to a commit.
	ReasonRefResolved Reason = "RefResolved"
	// ReasonSynced means: the gateway runs the target commit, verified.
	ReasonSynced Reason = "Synced"
	// ReasonStandby means: a redundant backup holds the target commit as far as it may write it.
	ReasonStandby Reason = "Standby"
	// ReasonPaused means: syncing is paused by the spec or by a person.
	ReasonPaused Reason = "Paused"
	// ReasonDryRun means: the plan of a dry run was made, and nothing was written.
	ReasonDryRun Reason = "DryRun"
	// ReasonNoGateways means: no gateway was discovered for this GatewaySync.
	ReasonNoGateways Reason = "NoGateways"
	// ReasonProfilesValid means: the spec and all its profiles are valid.
	ReasonProfilesValid Reason = "ProfilesValid"
	// ReasonSidecarInjected means: every pod that asks for an agent has one.
	ReasonSidecarInjected Reason = "SidecarInjected"
	// ReasonHostKeyVerified means: the git host showed an ssh host key that is trusted.
	ReasonHostKeyVerified Reason = "HostKeyVerified"
)

// Reasons of class ClassWorking.
const (
	// ReasonProgressing means: a sync is under way.
	ReasonProgressing Reason = "Progressing"
	// ReasonWaitingForGateway means: the gateway does not run yet, or its volume is not seeded yet.
	ReasonWaitingForGateway Reason = "WaitingForGateway"
	// ReasonWaitingForCommissioning means: the gateway waits for its commissioning steps.
	ReasonWaitingForCommissioning Reason = "WaitingForCommissioning"
	// ReasonWaitingForLead means: no lead agent has published a target yet.
	ReasonWaitingForLead Reason = "WaitingForLead"
	// ReasonAgentsAway means: no agent reports at the moment.
	ReasonAgentsAway Reason = "AgentsAway"
)

// Reasons of class ClassRetry.
const (
	// ReasonGitUnreachable means: the git server could not be reached or answered with an error of its own.
	ReasonGitUnreachable Reason = "GitUnreachable"
	// ReasonGitTimeout means: the git server did not answer in time or stopped sending.
	ReasonGitTimeout Reason = "GitTimeout"
	// ReasonGitThrottled means: the git server asked to come back later.
	ReasonGitThrottled Reason = "GitThrottled"
	// ReasonScanFailed means: the gateway did not finish a scan.
	ReasonScanFailed Reason = "ScanFailed"
	// ReasonGatewayUnreachable means: the gateway's web server could not be reached.
	ReasonGatewayUnreachable Reason = "GatewayUnreachable"
	// ReasonGatewayForbidden means: the gateway refused the API token.
	ReasonGatewayForbidden Reason = "GatewayForbidden"
	// ReasonNoSpace means: the data directory has no space, no inodes left, or is read-only.
	ReasonNoSpace Reason = "NoSpace"
	// ReasonWriteFailed means: the data directory could not be read or written.
	ReasonWriteFailed Reason = "WriteFailed"
	// ReasonVerificationFailed means: files were written, but the gateway does not show them.
	ReasonVerificationFailed Reason = "VerificationFailed"
)

// Reasons of class ClassHeld.
const (
	// ReasonDesignerSessionActive means: a Designer session is open on what would change.
	ReasonDesignerSessionActive Reason = "DesignerSessionActive"
	// ReasonConflictDetected means: a file was changed on the gateway and in git, and conflictPolicy is hold.
	ReasonConflictDetected Reason = "ConflictDetected"
	// ReasonMassDeletion means: the sync would delete a project or a large part of the owned files.
	ReasonMassDeletion Reason = "MassDeletion"
	// ReasonGateClosed means: the rollout order does not let this gateway sync yet.
	ReasonGateClosed Reason = "GateClosed"
	// ReasonNoConfigAccess means: this redundant node may not change its configuration now.
	ReasonNoConfigAccess Reason = "NoConfigAccess"
	// ReasonApprovalNeeded means: a person has to approve first.
	ReasonApprovalNeeded Reason = "ApprovalNeeded"
	// ReasonDuplicateGateway means: two live pods have the name of one gateway.
	ReasonDuplicateGateway Reason = "DuplicateGateway"
)

// Reasons of class ClassStalled.
const (
	// ReasonRefNotFound means: the repository has no such ref or commit.
	ReasonRefNotFound Reason = "RefNotFound"
	// ReasonAmbiguousRef means: the name is both a branch and a tag.
	ReasonAmbiguousRef Reason = "AmbiguousRef"
	// ReasonRefNotAllowed means: a request named a ref that spec.git.allowedRefs does not admit.
	ReasonRefNotAllowed Reason = "RefNotAllowed"
	// ReasonRefMoved means: the requested ref is at another commit than the one that was requested with it.
	ReasonRefMoved Reason = "RefMoved"
	// ReasonAuthFailed means: the git server refused the credentials, or there are none.
	ReasonAuthFailed Reason = "AuthFailed"
	// ReasonHostKeyUnknown means: the ssh host key is not known.
	ReasonHostKeyUnknown Reason = "HostKeyUnknown"
	// ReasonHostKeyMismatch means: the ssh host key is not the known one, or is revoked.
	ReasonHostKeyMismatch Reason = "HostKeyMismatch"
	// ReasonRedirectRefused means: the git server redirected to another host.
	ReasonRedirectRefused Reason = "RedirectRefused"
	// ReasonProfileNotFound means: the GatewaySync has no such profile.
	ReasonProfileNotFound Reason = "ProfileNotFound"
	// ReasonProfilesInvalid means: a profile of the GatewaySync is not valid.
	ReasonProfilesInvalid Reason = "ProfilesInvalid"
	// ReasonTemplateFailed means: a template could not be rendered.
	ReasonTemplateFailed Reason = "TemplateFailed"
	// ReasonPatchFailed means: a patch could not be applied.
	ReasonPatchFailed Reason = "PatchFailed"
	// ReasonConfigSyntaxError means: a JSON file of the commit is broken, or a resource.json has not the shape that a gateway needs.
	ReasonConfigSyntaxError Reason = "ConfigSyntaxError"
	// ReasonSourceMissing means: a required mapping source is not in the commit.
	ReasonSourceMissing Reason = "SourceMissing"
	// ReasonUnsafePath means: a path or a symbolic link could leave the data directory.
	ReasonUnsafePath Reason = "UnsafePath"
	// ReasonPathCollision means: two paths would be one on some file systems, or a file stands where a directory is needed.
	ReasonPathCollision Reason = "PathCollision"
	// ReasonLimitExceeded means: a size or count is over its limit.
	ReasonLimitExceeded Reason = "LimitExceeded"
	// ReasonLFSPointer means: a file under a mapped path is a Git LFS pointer.
	ReasonLFSPointer Reason = "LFSPointer"
	// ReasonUnsupportedRepository means: the repository uses something that Stoker does not read.
	ReasonUnsupportedRepository Reason = "UnsupportedRepository"
	// ReasonPodRestartNeeded means: the pod lacks a credential that the spec asks for since it was started.
	ReasonPodRestartNeeded Reason = "PodRestartNeeded"
	// ReasonProgressDeadlineExceeded means: it took longer than spec.progressDeadline; work goes on.
	ReasonProgressDeadlineExceeded Reason = "ProgressDeadlineExceeded"
	// ReasonRolledBack means: the request was rolled back.
	ReasonRolledBack Reason = "RolledBack"
)

// Reasons of class ClassNotInjected.
const (
	// ReasonMissingSidecar means: the pod asks for an agent and has none.
	ReasonMissingSidecar Reason = "MissingSidecar"
	// ReasonNotRequested means: the pod does not ask for an agent.
	ReasonNotRequested Reason = "NotRequested"
	// ReasonNamespaceExcluded means: the namespace is excluded from injection.
	ReasonNamespaceExcluded Reason = "NamespaceExcluded"
	// ReasonGatewaySyncNotFound means: the named GatewaySync does not exist.
	ReasonGatewaySyncNotFound Reason = "GatewaySyncNotFound"
	// ReasonGatewaySyncAmbiguous means: the pod names no GatewaySync and the namespace has more than one.
	ReasonGatewaySyncAmbiguous Reason = "GatewaySyncAmbiguous"
	// ReasonNoDataVolume means: the pod has no volume for Ignition's data directory.
	ReasonNoDataVolume Reason = "NoDataVolume"
	// ReasonUnsupportedDataVolume means: the data volume cannot be shared with a sidecar.
	ReasonUnsupportedDataVolume Reason = "UnsupportedDataVolume"
	// ReasonGatewayRunsAsRoot means: the gateway container runs as root.
	ReasonGatewayRunsAsRoot Reason = "GatewayRunsAsRoot"
	// ReasonUnsupportedPod means: the pod cannot run an agent.
	ReasonUnsupportedPod Reason = "UnsupportedPod"
	// ReasonAlreadyInjected means: the pod has its agent already.
	ReasonAlreadyInjected Reason = "AlreadyInjected"
	// ReasonInvalidAnnotation means: an annotation of the pod is not valid.
	ReasonInvalidAnnotation Reason = "InvalidAnnotation"
)

// ReasonInfo is one row of the list of reasons.
//
// +kubebuilder:object:generate=false
type ReasonInfo struct {
	Reason  Reason
	Class   Class
	Meaning string
}

// Reasons is the closed list, in the order of the documentation. ProfileNotFound is also used for a pod that is not
// injected; its class stays stalled.
var Reasons = []ReasonInfo{
	{ReasonRefResolved, ClassDone, "the desired ref was resolved to a commit"},
	{ReasonSynced, ClassDone, "the gateway runs the target commit, verified"},
	{ReasonStandby, ClassDone, "a redundant backup holds the target commit as far as it may write it"},
	{ReasonPaused, ClassDone, "syncing is paused by the spec or by a person"},
	{ReasonDryRun, ClassDone, "the plan of a dry run was made, and nothing was written"},
	{ReasonNoGateways, ClassDone, "no gateway was discovered for this GatewaySync"},
	{ReasonProfilesValid, ClassDone, "the spec and all its profiles are valid"},
	{ReasonSidecarInjected, ClassDone, "every pod that asks for an agent has one"},
	{ReasonHostKeyVerified, ClassDone, "the git host showed an ssh host key that is trusted"},
	{ReasonProgressing, ClassWorking, "a sync is under way"},
	{ReasonWaitingForGateway, ClassWorking, "the gateway does not run yet, or its volume is not seeded yet"},
	{ReasonWaitingForCommissioning, ClassWorking, "the gateway waits for its commissioning steps"},
	{ReasonWaitingForLead, ClassWorking, "no lead agent has published a target yet"},
	{ReasonAgentsAway, ClassWorking, "no agent reports at the moment"},
	{ReasonGitUnreachable, ClassRetry, "the git server could not be reached or answered with an error of its own"},
	{ReasonGitTimeout, ClassRetry, "the git server did not answer in time or stopped sending"},
	{ReasonGitThrottled, ClassRetry, "the git server asked to come back later"},
	{ReasonScanFailed, ClassRetry, "the gateway did not finish a scan"},
	{ReasonGatewayUnreachable, ClassRetry, "the gateway's web server could not be reached"},
	{ReasonGatewayForbidden, ClassRetry, "the gateway refused the API token"},
	{ReasonNoSpace, ClassRetry, "the data directory has no space, no inodes left, or is read-only"},
	{ReasonWriteFailed, ClassRetry, "the data directory could not be read or written"},
	{ReasonVerificationFailed, ClassRetry, "files were written, but the gateway does not show them"},
	{ReasonDesignerSessionActive, ClassHeld, "a Designer session is open on what would change"},
	{ReasonConflictDetected, ClassHeld, "a file was changed on the gateway and in git, and conflictPolicy is hold"},
	{ReasonMassDeletion, ClassHeld, "the sync would delete a project or a large part of the owned files"},
	{ReasonGateClosed, ClassHeld, "the rollout order does not let this gateway sync yet"},
	{ReasonNoConfigAccess, ClassHeld, "this redundant node may not change its configuration now"},
	{ReasonApprovalNeeded, ClassHeld, "a person has to approve first"},
	{ReasonDuplicateGateway, ClassHeld, "two live pods have the name of one gateway"},
	{ReasonRefNotFound, ClassStalled, "the repository has no such ref or commit"},
	{ReasonAmbiguousRef, ClassStalled, "the name is both a branch and a tag"},
	{ReasonRefNotAllowed, ClassStalled, "a request named a ref that spec.git.allowedRefs does not admit"},
	{ReasonRefMoved, ClassStalled, "the requested ref is at another commit than the one that was requested with it"},
	{ReasonAuthFailed, ClassStalled, "the git server refused the credentials, or there are none"},
	{ReasonHostKeyUnknown, ClassStalled, "the ssh host key is not known"},
	{ReasonHostKeyMismatch, ClassStalled, "the ssh host key is not the known one, or is revoked"},
	{ReasonRedirectRefused, ClassStalled, "the git server redirected to another host"},
	{ReasonProfileNotFound, ClassStalled, "the GatewaySync has no such profile"},
	{ReasonProfilesInvalid, ClassStalled, "a profile of the GatewaySync is not valid"},
	{ReasonTemplateFailed, ClassStalled, "a template could not be rendered"},
	{ReasonPatchFailed, ClassStalled, "a patch could not be applied"},
	{ReasonConfigSyntaxError, ClassStalled, "a JSON file of the commit is broken, or a resource.json has not the shape that a gateway needs"},
	{ReasonSourceMissing, ClassStalled, "a required mapping source is not in the commit"},
	{ReasonUnsafePath, ClassStalled, "a path or a symbolic link could leave the data directory"},
	{ReasonPathCollision, ClassStalled, "two paths would be one on some file systems, or a file stands where a directory is needed"},
	{ReasonLimitExceeded, ClassStalled, "a size or count is over its limit"},
	{ReasonLFSPointer, ClassStalled, "a file under a mapped path is a Git LFS pointer"},
	{ReasonUnsupportedRepository, ClassStalled, "the repository uses something that Stoker does not read"},
	{ReasonPodRestartNeeded, ClassStalled, "the pod lacks a credential that the spec asks for since it was started"},
	{ReasonProgressDeadlineExceeded, ClassStalled, "it took longer than spec.progressDeadline; work goes on"},
	{ReasonRolledBack, ClassStalled, "the request was rolled back"},
	{ReasonMissingSidecar, ClassNotInjected, "the pod asks for an agent and has none"},
	{ReasonNotRequested, ClassNotInjected, "the pod does not ask for an agent"},
	{ReasonNamespaceExcluded, ClassNotInjected, "the namespace is excluded from injection"},
	{ReasonGatewaySyncNotFound, ClassNotInjected, "the named GatewaySync does not exist"},
	{ReasonGatewaySyncAmbiguous, ClassNotInjected, "the pod names no GatewaySync and the namespace has more than one"},
	{ReasonNoDataVolume, ClassNotInjected, "the pod has no volume for Ignition's data directory"},
	{ReasonUnsupportedDataVolume, ClassNotInjected, "the data volume cannot be shared with a sidecar"},
	{ReasonGatewayRunsAsRoot, ClassNotInjected, "the gateway container runs as root"},
	{ReasonUnsupportedPod, ClassNotInjected, "the pod cannot run an agent"},
	{ReasonAlreadyInjected, ClassNotInjected, "the pod has its agent already"},
	{ReasonInvalidAnnotation, ClassNotInjected, "an annotation of the pod is not valid"},
}

var classes = func() map[Reason]Class {
	m := make(map[Reason]Class, len(Reasons))
	for _, r := range Reasons {
		m[r.Reason] = r.Class
	}
	return m
}()

// Class returns what happens next. A reason that is not in the list counts as retry: it must not stall a plant.
func (r Reason) Class() Class {
	if c, ok := classes[r]; ok {
		return c
	}
	return ClassRetry
}
