package v1alpha1

import (
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Types of the conditions of a GatewaySync. Reconciling and Stalled are there only while they are true.
const (
	ConditionReady                  = "Ready"
	ConditionRefResolved            = "RefResolved"
	ConditionProfilesValid          = "ProfilesValid"
	ConditionAllGatewaysSynced      = "AllGatewaysSynced"
	ConditionSidecarInjected        = "SidecarInjected"
	ConditionSSHHostKeyVerification = "SSHHostKeyVerification"
	ConditionBidirectionalReady     = "BidirectionalReady"
	ConditionReconciling            = "Reconciling"
	ConditionStalled                = "Stalled"
)

const (
	// ConfirmEvery is how often the lead writes that a status still holds, although nothing else of it changed.
	ConfirmEvery = 2 * time.Minute
	// ConfirmedFor is how long a status holds without that: one confirmation may be late or lost. It is also how far the clocks
	// of a writer and a reader may be apart.
	ConfirmedFor = 5 * time.Minute
)

// GatewaySyncStatus is what Stoker last saw. It is written when it changes, and every two minutes to confirm that it holds.
type GatewaySyncStatus struct {
	// Generation of the spec that this status is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Request annotations that this status describes, one "name=value" in each line. A reader whose annotations differ has to
	// wait.
	// +optional
	// +kubebuilder:validation:MaxLength=4096
	ObservedRequest string `json:"observedRequest,omitempty"`
	// How far the gateways are with the desired ref. It holds if observedGeneration and observedRequest are those of the object
	// and confirmedAt is at most five minutes from now.
	// +optional
	Outcome *Outcome `json:"outcome,omitempty"`
	// What a rollback would request now. Absent if no commit has run on every gateway yet, or before git was polled.
	// +optional
	Rollback *Rollback `json:"rollback,omitempty"`
	// How far a rollout in steps is. Absent if all gateways change at once.
	// +optional
	Rollout *RolloutStatus `json:"rollout,omitempty"`
	// Commit that a retry would request again: the target, if a gateway went back from it or its rollout failed. Empty if there is nothing to
	// retry.
	// +optional
	// +kubebuilder:validation:MaxLength=40
	Retry string `json:"retry,omitempty"`
	// When the lead last confirmed that this status holds. If that is more than five minutes ago, or ahead, no agent leads, and
	// what the status says of gateways is the past.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^[1-9][0-9]{3}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$`
	ConfirmedAt *metav1.Time `json:"confirmedAt,omitempty"`
	// When a gateway was synced last.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^[1-9][0-9]{3}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$`
	LastSyncTime *metav1.Time `json:"lastSyncTime,omitempty"`
	// Ref that was synced last; the first seven digits if it is a commit.
	// +optional
	// +kubebuilder:validation:MaxLength=255
	LastSyncRef string `json:"lastSyncRef,omitempty"`
	// Commit that was synced last.
	// +optional
	// +kubebuilder:validation:MaxLength=40
	LastSyncCommit string `json:"lastSyncCommit,omitempty"`
	// The same, first seven digits.
	// +optional
	// +kubebuilder:validation:MaxLength=7
	LastSyncCommitShort string `json:"lastSyncCommitShort,omitempty"`
	// Whether the desired ref is resolved to a commit.
	// +optional
	RefResolutionStatus RefResolutionStatus `json:"refResolutionStatus,omitempty"`
	// Number of profiles of the spec.
	// +optional
	ProfileCount int32 `json:"profileCount,omitempty"`
	// Synced of discovered gateways, such as 3/3.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	GatewaysReady string `json:"gatewaysReady,omitempty"`
	// What keeps the gateways from the desired commit, in a few words, such as "area-4: DesignerSessionActive; 2 more". For a column of
	// kubectl get; the condition Ready has the whole message.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Summary string `json:"summary,omitempty"`
	// The desired ref and its commit.
	// +optional
	Target *TargetStatus `json:"target,omitempty"`
	// What is known of the request in the annotations.
	// +optional
	Request *RequestStatus `json:"request,omitempty"`
	// The newest value of the annotation stoker.io/requested-at that every gateway has dealt with.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	LastHandledRequest string `json:"lastHandledRequest,omitempty"`
	// What last ran on every gateway, verified.
	// +optional
	LastGood *CommitRecord `json:"lastGood,omitempty"`
	// The last commits of the fleet, newest first.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=10
	History []CommitRecord `json:"history,omitempty"`
	// The gateways, one row each.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=2000
	DiscoveredGateways []DiscoveredGateway `json:"discoveredGateways,omitempty"`
	// Ready, RefResolved, ProfilesValid, AllGatewaysSynced, SidecarInjected, SSHHostKeyVerification; Reconciling and
	// Stalled only while they are true.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:XValidation:rule="self.all(c, c.lastTransitionTime > timestamp('1000-01-01T00:00:00Z'))",message="lastTransitionTime must be a time such as 2006-01-02T15:04:05Z"
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// Unread is what the API server holds, if it cannot be read or written back; all other fields are empty then.
	Unread []byte `json:"-"`
}

// RolloutPhase is what a rollout does.
//
// +kubebuilder:validation:Enum=Planning;Progressing;Soaking;Waiting;Aborted;Done
type RolloutPhase string

// The phases of a rollout.
const (
	// RolloutPlanning means that every gateway makes a dry run first.
	RolloutPlanning RolloutPhase = "Planning"
	// RolloutProgressing means that the gateways of a step sync.
	RolloutProgressing RolloutPhase = "Progressing"
	// RolloutSoaking means that the gateways of a stage have synced, and that the time of postSyncWait or a health check runs.
	RolloutSoaking RolloutPhase = "Soaking"
	// RolloutWaiting means that the next stage waits for an approval.
	RolloutWaiting RolloutPhase = "Waiting"
	// RolloutAborted means that the rollout failed. Another commit or spec, or "stoker retry", begins the next one.
	RolloutAborted RolloutPhase = "Aborted"
	// RolloutDone means that all steps are open.
	RolloutDone RolloutPhase = "Done"
)

// RolloutStatus is how far a rollout is.
type RolloutStatus struct {
	// Commit that is rolled out.
	// +optional
	// +kubebuilder:validation:MaxLength=40
	Commit string `json:"commit,omitempty"`
	// Commit that ran on every gateway before.
	// +optional
	// +kubebuilder:validation:MaxLength=40
	From string `json:"from,omitempty"`
	// Stage of the step. While the rollout waits, the stage that waits. Empty for gateways in no stage.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Stage string `json:"stage,omitempty"`
	// Number of open steps.
	// +optional
	Step int32 `json:"step,omitempty"`
	// Number of all steps.
	// +optional
	Steps int32 `json:"steps,omitempty"`
	// What the rollout does: Planning, Progressing, Soaking, Waiting, Aborted or Done.
	// +required
	Phase RolloutPhase `json:"phase"`
	// Since when.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^[1-9][0-9]{3}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$`
	Since *metav1.Time `json:"since,omitempty"`
	// Explanation of the phase in one line.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
}

// RefResolutionStatus is how far the desired ref is resolved.
//
// +kubebuilder:validation:Enum=NotResolved;Resolving;Resolved;Error
type RefResolutionStatus string

// The steps of resolving a ref.
const (
	RefNotResolved     RefResolutionStatus = "NotResolved"
	RefResolving       RefResolutionStatus = "Resolving"
	RefResolved        RefResolutionStatus = "Resolved"
	RefResolutionError RefResolutionStatus = "Error"
)

// TargetStatus is the desired ref and its commit.
type TargetStatus struct {
	// The desired ref.
	// +optional
	// +kubebuilder:validation:MaxLength=255
	Ref string `json:"ref,omitempty"`
	// The same, of a commit the first seven digits.
	// +optional
	// +kubebuilder:validation:MaxLength=255
	RefShort string `json:"refShort,omitempty"`
	// The commit it was resolved to.
	// +optional
	// +kubebuilder:validation:MaxLength=40
	Commit string `json:"commit,omitempty"`
	// The same, first seven digits.
	// +optional
	// +kubebuilder:validation:MaxLength=7
	CommitShort string `json:"commitShort,omitempty"`
	// Who asked, where the ref is a request.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	RequestedBy string `json:"requestedBy,omitempty"`
	// When it was asked for, RFC 3339 with nanoseconds.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	RequestedAt string `json:"requestedAt,omitempty"`
}

// RequestStatus is what is kept of a request.
type RequestStatus struct {
	// The request and the ref of the spec that it was first seen beside: requested@spec, and its time where it says one.
	// +optional
	// +kubebuilder:validation:MaxLength=640
	Over string `json:"over,omitempty"`
	// The request that is dead, in the same form: it stays so even if the spec goes back.
	// +optional
	// +kubebuilder:validation:MaxLength=768
	Lapsed string `json:"lapsed,omitempty"`
	// The request that was refused because its ref stood at another commit than requested, and at which: it is not carried
	// out even if the ref comes back.
	// +optional
	// +kubebuilder:validation:MaxLength=768
	Refused string `json:"refused,omitempty"`
}

// CommitRecord is a commit that the fleet ran.
type CommitRecord struct {
	// Ref that it was resolved from.
	// +optional
	// +kubebuilder:validation:MaxLength=255
	Ref string `json:"ref,omitempty"`
	// The commit.
	// +required
	// +kubebuilder:validation:MaxLength=40
	Commit string `json:"commit"`
	// Since when.
	// +required
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^[1-9][0-9]{3}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$`
	At metav1.Time `json:"at"`
}

// GatewaySyncState is where one gateway stands.
//
// +kubebuilder:validation:Enum=Pending;Applied;Syncing;Synced;Standby;Held;Error;MissingSidecar
type GatewaySyncState string

// The states of a gateway. Synced and Standby count as synced.
const (
	// GatewayPending means that no agent has reported yet.
	GatewayPending GatewaySyncState = "Pending"
	// GatewayApplied means that files were written before the gateway's start, and are not verified yet.
	GatewayApplied GatewaySyncState = "Applied"
	// GatewaySyncing means that a sync is under way.
	GatewaySyncing GatewaySyncState = "Syncing"
	// GatewaySynced means that the gateway runs the target commit, verified.
	GatewaySynced GatewaySyncState = "Synced"
	// GatewayStandby means that the standby node of a redundant pair holds the target commit.
	GatewayStandby GatewaySyncState = "Standby"
	// GatewayHeld means that the sync waits for a user or a policy.
	GatewayHeld GatewaySyncState = "Held"
	// GatewayError means that the last sync failed; message says why.
	GatewayError GatewaySyncState = "Error"
	// GatewayMissingSidecar means that the pod has no agent.
	GatewayMissingSidecar GatewaySyncState = "MissingSidecar"
)

// GatewayStates lists the states.
var GatewayStates = []GatewaySyncState{GatewayPending, GatewayApplied, GatewaySyncing, GatewaySynced, GatewayStandby, GatewayHeld, GatewayError,
	GatewayMissingSidecar}

// DiscoveredGateway is one row of the status.
type DiscoveredGateway struct {
	// Name of the gateway; see the annotation stoker.io/gateway-name.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// Namespace of the pod.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace,omitempty"`
	// Name of the pod. Two live pods that claim one gateway are both named here, and are not synced.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	PodName string `json:"podName,omitempty"`
	// ServiceAccount of the pod.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	ServiceAccountName string `json:"serviceAccountName,omitempty"`
	// Profile in force.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Profile string `json:"profile,omitempty"`
	// Where the gateway stands.
	// +optional
	SyncStatus GatewaySyncState `json:"syncStatus,omitempty"`
	// Why.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Reason Reason `json:"reason,omitempty"`
	// When it was synced last.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^[1-9][0-9]{3}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$`
	LastSyncTime *metav1.Time `json:"lastSyncTime,omitempty"`
	// How long that took, such as 1.2s.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	LastSyncDuration string `json:"lastSyncDuration,omitempty"`
	// Commit that is on the gateway.
	// +optional
	// +kubebuilder:validation:MaxLength=40
	SyncedCommit string `json:"syncedCommit,omitempty"`
	// Ref of that commit, as it was asked for.
	// +optional
	// +kubebuilder:validation:MaxLength=255
	SyncedRef string `json:"syncedRef,omitempty"`
	// Version of the agent.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	AgentVersion string `json:"agentVersion,omitempty"`
	// What the gateway's last scan said.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	LastScanResult string `json:"lastScanResult,omitempty"`
	// Number of files that the last sync changed.
	// +optional
	FilesChanged int32 `json:"filesChanged,omitempty"`
	// Number of files that a user had changed and that the last sync replaced or removed. lost+found has the user's version.
	// +optional
	FilesSaved int32 `json:"filesSaved,omitempty"`
	// What users should know of the last sync. Left out in large fleets; the SyncReport has it.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MaxLength=256
	Notes []string `json:"notes,omitempty"`
	// Projects that are synced.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:items:MaxLength=255
	ProjectsSynced []string `json:"projectsSynced,omitempty"`
	// Details for users, such as the error.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
	// Number of files that were changed on the gateway and not in git.
	// +optional
	Drift int32 `json:"drift,omitempty"`
	// The newest snapshot of the gateway. Absent if there is none.
	// +optional
	LastSnapshot *GatewaySnapshot `json:"lastSnapshot,omitempty"`
	// Commit that the gateway went back from by itself, because it could not load it (spec.autoRollback). Absent unless it is held off.
	// +optional
	// +kubebuilder:validation:MaxLength=40
	AutoRollback string `json:"autoRollback,omitempty"`
	// The last syncs that changed files of the gateway, or failed, newest first: ten of them if there are up to 32 gateways, three if there
	// are up to 100. The SyncReport of the gateway has ten.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=10
	SyncHistory []SyncRecord `json:"syncHistory,omitempty"`
	// Where the proposal of this gateway's changes stands; empty if there is none.
	// +optional
	// +kubebuilder:validation:MaxLength=16
	ProposalState ProposalState `json:"proposalState,omitempty"`
	// Address of the pull request, or the branch if there is none.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Proposal string `json:"proposal,omitempty"`
}

// RanEverywhere reports whether the whole fleet ran a commit, verified.
func (s *GatewaySyncStatus) RanEverywhere(commit string) bool {
	return s.LastGood != nil && s.LastGood.Commit == commit || slices.ContainsFunc(s.History, func(c CommitRecord) bool { return c.Commit == commit })
}

// Confirmed reports whether the lead wrote lately that this status holds. If no agent runs, no one takes back what the status
// says, so that a reader must not take it for the present. A time of the future confirms nothing: with the year 9999, one token
// could otherwise declare a fleet done for good.
func (s *GatewaySyncStatus) Confirmed(now time.Time) bool {
	return s.ConfirmedAt != nil && now.Sub(s.ConfirmedAt.Time).Abs() <= ConfirmedFor
}
