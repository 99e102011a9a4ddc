package v1alpha1

import "fmt"

// Reason is a word of a closed list that explains a state. The same word is the reason of a condition and of an Event, a label of metrics,
// output of the command line, and an anchor in docs/how-to/troubleshooting.md.
type Reason string

// Class says what happens next.
type Class string

const (
	// ClassDone means that there is nothing more to do.
	ClassDone Class = "done"
	// ClassWorking means that work is in progress.
	ClassWorking Class = "working"
	// ClassRetry means that the agent tries again, with backoff and jitter.
	ClassRetry Class = "retry"
	// ClassHeld means that the work waits for a user or a policy.
	ClassHeld Class = "held"
	// ClassStalled means that a user must look at it: retries are not expected to succeed before the spec, the commit, a Secret or the gateway
	// changes.
	ClassStalled Class = "stalled"
	// ClassNotInjected means that the injector added no agent to the pod.
	ClassNotInjected Class = "not-injected"
)

// The reasons, in the order of their classes. Reasons says what each means.
const (
	ReasonRefResolved     Reason = "RefResolved"
	ReasonSynced          Reason = "Synced"
	ReasonStandby         Reason = "Standby"
	ReasonPaused          Reason = "Paused"
	ReasonDryRun          Reason = "DryRun"
	ReasonNoGateways      Reason = "NoGateways"
	ReasonProfilesValid   Reason = "ProfilesValid"
	ReasonSidecarInjected Reason = "SidecarInjected"
	ReasonHostKeyVerified Reason = "HostKeyVerified"
	ReasonProposalsReady  Reason = "ProposalsReady"

	ReasonProgressing             Reason = "Progressing"
	ReasonWaitingForGateway       Reason = "WaitingForGateway"
	ReasonWaitingForCommissioning Reason = "WaitingForCommissioning"
	ReasonWaitingForLead          Reason = "WaitingForLead"
	ReasonAgentsAway              Reason = "AgentsAway"
	ReasonUnhealthy               Reason = "Unhealthy"
	ReasonDependencyNotReady      Reason = "DependencyNotReady"

	ReasonGitUnreachable     Reason = "GitUnreachable"
	ReasonGitTimeout         Reason = "GitTimeout"
	ReasonGitThrottled       Reason = "GitThrottled"
	ReasonScanFailed         Reason = "ScanFailed"
	ReasonGatewayUnreachable Reason = "GatewayUnreachable"
	ReasonNoSpace            Reason = "NoSpace"
	ReasonWriteFailed        Reason = "WriteFailed"
	ReasonVerificationFailed Reason = "VerificationFailed"
	ReasonSnapshotFailed     Reason = "SnapshotFailed"

	ReasonValidationUnavailable Reason = "ValidationUnavailable"
	ReasonApplyForbidden        Reason = "ApplyForbidden"
	ReasonKindUnknown           Reason = "KindUnknown"
	ReasonPruneFailed           Reason = "PruneFailed"

	ReasonDesignerSessionActive Reason = "DesignerSessionActive"
	ReasonConflictDetected      Reason = "ConflictDetected"
	ReasonMassDeletion          Reason = "MassDeletion"
	ReasonMaintenanceWindow     Reason = "MaintenanceWindow"
	ReasonGateClosed            Reason = "GateClosed"
	ReasonApprovalNeeded        Reason = "ApprovalNeeded"
	ReasonRolloutSoaking        Reason = "RolloutSoaking"
	ReasonValidationDenied      Reason = "ValidationDenied"
	ReasonChangesRefused        Reason = "ChangesRefused"
	ReasonBranchTaken           Reason = "BranchTaken"
	ReasonRestored              Reason = "Restored"
	ReasonNoConfigAccess        Reason = "NoConfigAccess"
	ReasonDuplicateGateway      Reason = "DuplicateGateway"
	ReasonNotOwned              Reason = "NotOwned"
	ReasonApplyConflict         Reason = "ApplyConflict"

	ReasonRefNotFound              Reason = "RefNotFound"
	ReasonAmbiguousRef             Reason = "AmbiguousRef"
	ReasonRefNotAllowed            Reason = "RefNotAllowed"
	ReasonRefMoved                 Reason = "RefMoved"
	ReasonAuthFailed               Reason = "AuthFailed"
	ReasonHostKeyUnknown           Reason = "HostKeyUnknown"
	ReasonHostKeyMismatch          Reason = "HostKeyMismatch"
	ReasonSignatureInvalid         Reason = "SignatureInvalid"
	ReasonRedirectRefused          Reason = "RedirectRefused"
	ReasonProfileNotFound          Reason = "ProfileNotFound"
	ReasonProfilesInvalid          Reason = "ProfilesInvalid"
	ReasonTemplateFailed           Reason = "TemplateFailed"
	ReasonPatchFailed              Reason = "PatchFailed"
	ReasonConfigSyntaxError        Reason = "ConfigSyntaxError"
	ReasonSourceMissing            Reason = "SourceMissing"
	ReasonUnsafePath               Reason = "UnsafePath"
	ReasonPathCollision            Reason = "PathCollision"
	ReasonLimitExceeded            Reason = "LimitExceeded"
	ReasonLFSPointer               Reason = "LFSPointer"
	ReasonEmbeddedSecret           Reason = "EmbeddedSecret"
	ReasonReferenceMissing         Reason = "ReferenceMissing"
	ReasonGatewayForbidden         Reason = "GatewayForbidden"
	ReasonGatewayUntrusted         Reason = "GatewayUntrusted"
	ReasonPushRejected             Reason = "PushRejected"
	ReasonUnsupportedRepository    Reason = "UnsupportedRepository"
	ReasonPodRestartNeeded         Reason = "PodRestartNeeded"
	ReasonProgressDeadlineExceeded Reason = "ProgressDeadlineExceeded"
	ReasonRolledBack               Reason = "RolledBack"
	ReasonCanaryStageFailed        Reason = "CanaryStageFailed"
	ReasonManifestInvalid          Reason = "ManifestInvalid"
	ReasonApplyRefused             Reason = "ApplyRefused"
	ReasonImmutableField           Reason = "ImmutableField"
	ReasonDependencyCycle          Reason = "DependencyCycle"

	ReasonMissingSidecar        Reason = "MissingSidecar"
	ReasonNotRequested          Reason = "NotRequested"
	ReasonNamespaceExcluded     Reason = "NamespaceExcluded"
	ReasonGatewaySyncNotFound   Reason = "GatewaySyncNotFound"
	ReasonGatewaySyncAmbiguous  Reason = "GatewaySyncAmbiguous"
	ReasonGatewaySyncUnreadable Reason = "GatewaySyncUnreadable"
	ReasonNoDataVolume          Reason = "NoDataVolume"
	ReasonUnsupportedDataVolume Reason = "UnsupportedDataVolume"
	ReasonGatewayRunsAsRoot     Reason = "GatewayRunsAsRoot"
	ReasonUnsupportedPod        Reason = "UnsupportedPod"
	ReasonAlreadyInjected       Reason = "AlreadyInjected"
	ReasonInvalidAnnotation     Reason = "InvalidAnnotation"
)

// Cause says what a reason comes from, as far as a decision depends on it.
type Cause int

const (
	// CauseOther is anything else.
	CauseOther Cause = iota
	// CauseCommit means that the content of the commit causes the failure, so that another commit helps. UnsupportedRepository is not one, because
	// the login page of a git server can cause it, too.
	CauseCommit
	// CauseGit means that the git server, its address or the credentials for it cause the failure.
	CauseGit
	// CausePlan means that the wait is for a time that the spec names, for the rollout, or for an approval. While nothing else is missing, no
	// deadline runs.
	CausePlan
)

// ReasonInfo is one row of the list of reasons.
//
// +kubebuilder:object:generate=false
type ReasonInfo struct {
	Reason  Reason
	Class   Class
	Cause   Cause
	Meaning string
}

// Reasons is the closed list, in the order of the documentation. ProfileNotFound is also used for a pod that is not
// injected; its class stays stalled.
var Reasons = []ReasonInfo{
	{ReasonRefResolved, ClassDone, CauseOther, "the desired ref was resolved to a commit"},
	{ReasonSynced, ClassDone, CauseOther, "the gateway runs the target commit, verified, or all objects of a ConfigSync are as git has them"},
	{ReasonStandby, ClassDone, CauseOther, "the standby node of a redundant pair holds the target commit"},
	{ReasonPaused, ClassDone, CauseOther, "syncing is paused in the spec or by an annotation"},
	{ReasonDryRun, ClassDone, CauseOther, "the plan of a dry run was made, and nothing was written"},
	{ReasonNoGateways, ClassDone, CauseOther, "no gateway was discovered for this GatewaySync"},
	{ReasonProfilesValid, ClassDone, CauseOther, "the spec and all its profiles are valid"},
	{ReasonSidecarInjected, ClassDone, CauseOther, "every pod that requests an agent has one"},
	{ReasonHostKeyVerified, ClassDone, CauseOther, "the ssh host key of the git server is trusted"},
	{ReasonProposalsReady, ClassDone, CauseOther, "changes made on gateways can be sent back to git"},
	{ReasonProgressing, ClassWorking, CauseOther, "a sync is under way"},
	{ReasonWaitingForGateway, ClassWorking, CauseOther, "the gateway does not run yet, or its volume is not seeded yet"},
	{ReasonWaitingForCommissioning, ClassWorking, CauseOther, "the gateway waits for its commissioning steps"},
	{ReasonWaitingForLead, ClassWorking, CauseOther, "no lead agent has published a target yet"},
	{ReasonAgentsAway, ClassWorking, CauseOther, "no agent reports at the moment"},
	{ReasonUnhealthy, ClassWorking, CauseOther, "an object of a ConfigSync failed, or cannot be recreated"},
	{ReasonDependencyNotReady, ClassWorking, CauseOther, "a ConfigSync waits for an object that it depends on"},
	{ReasonGitUnreachable, ClassRetry, CauseGit, "the git server could not be reached or answered with a server error"},
	{ReasonGitTimeout, ClassRetry, CauseGit, "the git server did not answer in time or stopped sending"},
	{ReasonGitThrottled, ClassRetry, CauseGit, "the git server limits the rate of requests"},
	{ReasonScanFailed, ClassRetry, CauseOther, "the gateway did not finish a scan"},
	{ReasonGatewayUnreachable, ClassRetry, CauseOther, "the gateway's web server could not be reached"},
	{ReasonNoSpace, ClassRetry, CauseOther, "the data directory has no space, no inodes left, or is read-only"},
	{ReasonWriteFailed, ClassRetry, CauseOther, "the data directory could not be read or written"},
	{ReasonVerificationFailed, ClassRetry, CauseCommit, "files were written, but the gateway does not show them"},
	{ReasonSnapshotFailed, ClassRetry, CauseOther, "a snapshot could not be taken, or one that was requested cannot be restored"},
	{ReasonValidationUnavailable, ClassRetry, CauseOther, "the validation webhook could not be asked, or its answer was not valid"},
	{ReasonApplyForbidden, ClassRetry, CauseOther, "the caller has no right to read or change an object of a ConfigSync"},
	{ReasonKindUnknown, ClassRetry, CauseOther, "the cluster does not serve the kind of an object of a ConfigSync"},
	{ReasonPruneFailed, ClassRetry, CauseOther, "an object that git no longer has could not be deleted"},
	{ReasonDesignerSessionActive, ClassHeld, CauseOther, "a Designer session is open on what would change"},
	{ReasonConflictDetected, ClassHeld, CauseOther, "a file was changed on the gateway and in git, and conflictPolicy is hold"},
	{ReasonMassDeletion, ClassHeld, CauseOther, "the sync would delete a project or a large part of the owned files"},
	{ReasonMaintenanceWindow, ClassHeld, CausePlan, "the maintenance windows do not allow a change now; the gateway follows when they do"},
	{ReasonGateClosed, ClassHeld, CausePlan, "the rollout has not reached the step of the gateway; it keeps the commit that it runs"},
	{ReasonApprovalNeeded, ClassHeld, CausePlan, "the stage of the gateway waits for an approval of the commit"},
	{ReasonRolloutSoaking, ClassHeld, CausePlan, "the rollout waits for the time of postSyncWait, or for a health check"},
	{ReasonValidationDenied, ClassHeld, CauseOther, "the validation webhook does not allow the change; the agent asks again"},
	{ReasonChangesRefused, ClassHeld, CauseOther, "changes made on a gateway must not leave it, or cannot be expressed in git"},
	{ReasonBranchTaken, ClassHeld, CauseOther, "another gateway or another author committed to the branch for a gateway's changes"},
	{ReasonRestored, ClassHeld, CauseOther, "a user restored a snapshot of the gateway; the commit is blocked until another one is requested, or until it is retried"},
	{ReasonNoConfigAccess, ClassHeld, CauseOther, "this redundant node may not change its configuration now"},
	{ReasonDuplicateGateway, ClassHeld, CauseOther, "two live pods claim the same gateway name"},
	{ReasonNotOwned, ClassHeld, CauseOther, "an object of a ConfigSync exists already, and the ConfigSync does not own it"},
	{ReasonApplyConflict, ClassHeld, CauseOther, "another manager owns fields that a ConfigSync sets, and conflictPolicy is hold"},
	{ReasonRefNotFound, ClassStalled, CauseOther, "the repository has no such ref or commit"},
	{ReasonAmbiguousRef, ClassStalled, CauseOther, "the name is both a branch and a tag"},
	{ReasonRefNotAllowed, ClassStalled, CauseOther, "a request named a ref that spec.git.allowedRefs does not admit"},
	{ReasonRefMoved, ClassStalled, CauseOther, "the requested ref points to another commit than the requested one"},
	{ReasonAuthFailed, ClassStalled, CauseGit, "the git server refused the credentials, or there are none"},
	{ReasonHostKeyUnknown, ClassStalled, CauseGit, "the ssh host key is not known"},
	{ReasonHostKeyMismatch, ClassStalled, CauseGit, "the ssh host key is not the known one, or is revoked"},
	{ReasonSignatureInvalid, ClassStalled, CauseOther, "the commit, or its tag, has no signature that spec.git.verify accepts"},
	{ReasonRedirectRefused, ClassStalled, CauseGit, "the git server redirected to another host"},
	{ReasonProfileNotFound, ClassStalled, CauseOther, "the GatewaySync has no such profile"},
	{ReasonProfilesInvalid, ClassStalled, CauseOther, "a profile of the GatewaySync is not valid"},
	{ReasonTemplateFailed, ClassStalled, CauseCommit, "a template could not be rendered"},
	{ReasonPatchFailed, ClassStalled, CauseCommit, "a patch could not be applied"},
	{ReasonConfigSyntaxError, ClassStalled, CauseCommit, "a JSON file of the commit is invalid, or a resource.json lacks fields that a gateway needs"},
	{ReasonSourceMissing, ClassStalled, CauseCommit, "a required mapping source is not in the commit"},
	{ReasonUnsafePath, ClassStalled, CauseCommit, "a path or a symbolic link could leave the data directory"},
	{ReasonPathCollision, ClassStalled, CauseCommit, "two paths are equal on some file systems, or a file is in the place of a directory"},
	{ReasonLimitExceeded, ClassStalled, CauseCommit, "a size or count is over its limit"},
	{ReasonLFSPointer, ClassStalled, CauseCommit, "a file under a mapped path is a Git LFS pointer"},
	{ReasonEmbeddedSecret, ClassStalled, CauseCommit, "a file of the commit has an embedded secret, and embeddedSecretPolicy is refuse"},
	{ReasonReferenceMissing, ClassStalled, CauseCommit, "files of the commit name something that does not exist, and validation.references is refuse"},
	{ReasonGatewayForbidden, ClassStalled, CauseOther, "the gateway refused the API key, or no key can be read"},
	{ReasonGatewayUntrusted, ClassStalled, CauseOther, "the agent does not trust the TLS certificate of the gateway, or its port does not speak TLS"},
	{ReasonPushRejected, ClassStalled, CauseOther, "the git server declined the push of a gateway's changes"},
	{ReasonUnsupportedRepository, ClassStalled, CauseOther, "the repository uses something that Stoker does not read"},
	{ReasonPodRestartNeeded, ClassStalled, CauseGit, "the spec names a credential that the pod does not mount; restart the pod"},
	{ReasonProgressDeadlineExceeded, ClassStalled, CauseOther, "the work took longer than spec.progressDeadline; it continues"},
	{ReasonRolledBack, ClassStalled, CauseOther, "the request was rolled back, or the gateway went back by itself to a snapshot"},
	{ReasonCanaryStageFailed, ClassStalled, CauseOther, "a stage of the rollout failed; the gateways of later stages keep what they run"},
	{ReasonManifestInvalid, ClassStalled, CauseOther, "a ConfigSync or a manifest of its commit is not valid"},
	{ReasonApplyRefused, ClassStalled, CauseOther, "the API server refuses an object of a ConfigSync"},
	{ReasonImmutableField, ClassStalled, CauseOther, "a manifest changes a field that the API server does not change"},
	{ReasonDependencyCycle, ClassStalled, CauseOther, "ConfigSyncs depend on each other"},
	{ReasonMissingSidecar, ClassNotInjected, CauseOther, "the pod asks for an agent and has none"},
	{ReasonNotRequested, ClassNotInjected, CauseOther, "the pod does not ask for an agent"},
	{ReasonNamespaceExcluded, ClassNotInjected, CauseOther, "the namespace is excluded from injection"},
	{ReasonGatewaySyncNotFound, ClassNotInjected, CauseOther, "the named GatewaySync does not exist"},
	{ReasonGatewaySyncAmbiguous, ClassNotInjected, CauseOther, "the pod names no GatewaySync and the namespace has more than one"},
	{ReasonGatewaySyncUnreadable, ClassNotInjected, CauseOther, "the GatewaySync of the pod could not be read"},
	{ReasonNoDataVolume, ClassNotInjected, CauseOther, "the pod has no volume for Ignition's data directory"},
	{ReasonUnsupportedDataVolume, ClassNotInjected, CauseOther, "the data volume cannot be shared with a sidecar"},
	{ReasonGatewayRunsAsRoot, ClassNotInjected, CauseOther, "the gateway container runs as root"},
	{ReasonUnsupportedPod, ClassNotInjected, CauseOther, "the pod cannot run an agent"},
	{ReasonAlreadyInjected, ClassNotInjected, CauseOther, "the pod has its agent already"},
	{ReasonInvalidAnnotation, ClassNotInjected, CauseOther, "an annotation of the pod is not valid"},
}

var infos = func() map[Reason]ReasonInfo {
	m := make(map[Reason]ReasonInfo, len(Reasons))
	for _, r := range Reasons {
		m[r.Reason] = r
	}
	return m
}()

// Info returns the row of a reason in the list, and whether it has one. The class is ClassRetry for a reason that is not in the list, such
// as one of a newer agent, which must not stall a plant.
func (r Reason) Info() (ReasonInfo, bool) {
	if info, ok := infos[r]; ok {
		return info, true
	}
	return ReasonInfo{Reason: r, Class: ClassRetry}, false
}

// Known reports whether a reason is in the list.
func (r Reason) Known() bool {
	_, ok := r.Info()
	return ok
}

// Class returns the class of a reason.
func (r Reason) Class() Class {
	info, _ := r.Info()
	return info.Class
}

// Cause returns what a reason comes from.
func (r Reason) Cause() Cause {
	info, _ := r.Info()
	return info.Cause
}

// Error is an error with a reason. Its text says what is wrong and what to do.
//
// +kubebuilder:object:generate=false
type Error struct {
	Reason Reason
	err    error
}

func (e *Error) Error() string { return e.err.Error() }

func (e *Error) Unwrap() error { return e.err }

// NewError returns an Error. The arguments are those of fmt.Errorf.
func NewError(reason Reason, format string, args ...any) *Error {
	return &Error{Reason: reason, err: fmt.Errorf(format, args...)}
}
