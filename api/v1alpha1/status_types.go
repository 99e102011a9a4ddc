package v1alpha1

import (
	"bytes"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kjson "sigs.k8s.io/json"
)

// Types of the conditions of a GatewaySync. Reconciling and Stalled exist only while they are true.
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
	// ConfirmEvery is how often the lead confirms a status that has not changed.
	ConfirmEvery = 2 * time.Minute
	// ConfirmedFor is how long a status is valid after a confirmation: one confirmation may be late or lost. It is also the tolerated
	// difference between the clocks of a writer and a reader.
	ConfirmedFor = 5 * time.Minute
)

// GatewaySyncStatus is the observed state of the gateways. The lead writes it when it changes, and every two minutes to confirm it.
type GatewaySyncStatus struct {
	// Generation of the spec that this status describes.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Annotations of the request that this status describes, as lines "name=value". If they differ from the annotations of the object, the
	// status does not describe the current request yet.
	// +optional
	// +kubebuilder:validation:MaxLength=4096
	ObservedRequest string `json:"observedRequest,omitempty"`
	// How far the gateways are with the desired ref. It is valid if observedGeneration and observedRequest match the object, and
	// confirmedAt is less than five minutes ago.
	// +optional
	Outcome *Outcome `json:"outcome,omitempty"`
	// What a rollback would request now. Absent if no commit has run on every gateway yet, or if git was not polled yet.
	// +optional
	Rollback *Rollback `json:"rollback,omitempty"`
	// Progress of a rollout in steps. Absent if all gateways change at once.
	// +optional
	Rollout *RolloutStatus `json:"rollout,omitempty"`
	// Commit that a retry would request again: the target, if a gateway rolled it back or its rollout failed. Otherwise empty.
	// +optional
	// +kubebuilder:validation:MaxLength=40
	Retry string `json:"retry,omitempty"`
	// What an approval would approve now. Absent if nothing can be approved.
	// +optional
	Approval *Approval `json:"approval,omitempty"`
	// When the lead last confirmed this status. If this is more than five minutes ago, or in the future, no agent leads, and the status
	// may be out of date.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^[1-9][0-9]{3}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$`
	ConfirmedAt *metav1.Time `json:"confirmedAt,omitempty"`
	// Time of the last sync of a gateway.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^[1-9][0-9]{3}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$`
	LastSyncTime *metav1.Time `json:"lastSyncTime,omitempty"`
	// Synced gateways out of all gateways, such as 3/3. For a column of kubectl get; outcome has the numbers.
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
	// Record of the request in the annotations.
	// +optional
	Request *RequestStatus `json:"request,omitempty"`
	// The newest value of the annotation stoker.io/requested-at that every gateway has handled.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	LastHandledRequest string `json:"lastHandledRequest,omitempty"`
	// Commit that last ran on every gateway, verified.
	// +optional
	LastGood *CommitRecord `json:"lastGood,omitempty"`
	// The last commits that ran on every gateway, newest first.
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
	// The conditions that docs/reference/status.md lists. Reconciling and Stalled exist only while they are true.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:XValidation:rule="self.all(c, c.lastTransitionTime > timestamp('1000-01-01T00:00:00Z'))",message="lastTransitionTime must be a time such as 2006-01-02T15:04:05Z"
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// Unread is the status as the API server has it, if it cannot be decoded or written back. Then all other fields are empty.
	Unread []byte `json:"-"`
}

// RolloutPhase is the phase of a rollout.
//
// +kubebuilder:validation:Enum=Planning;Progressing;Soaking;Waiting;Aborted;Done
type RolloutPhase string

// The phases of a rollout.
const (
	// RolloutPlanning means that every gateway makes a dry run first.
	RolloutPlanning RolloutPhase = "Planning"
	// RolloutProgressing means that the gateways of a step sync.
	RolloutProgressing RolloutPhase = "Progressing"
	// RolloutSoaking means that the gateways of a stage have synced, and that postSyncWait or a health check has not finished.
	RolloutSoaking RolloutPhase = "Soaking"
	// RolloutWaiting means that the next stage waits for an approval.
	RolloutWaiting RolloutPhase = "Waiting"
	// RolloutAborted means that the rollout failed. Another commit or spec, or "stoker retry", starts the next rollout.
	RolloutAborted RolloutPhase = "Aborted"
	// RolloutDone means that the gateways of all steps may sync.
	RolloutDone RolloutPhase = "Done"
)

// RolloutStatus is the progress of a rollout.
type RolloutStatus struct {
	// Commit that is rolled out.
	// +optional
	// +kubebuilder:validation:MaxLength=40
	Commit string `json:"commit,omitempty"`
	// Commit that ran on every gateway before.
	// +optional
	// +kubebuilder:validation:MaxLength=40
	From string `json:"from,omitempty"`
	// Stage of the current step, or the stage that waits for an approval. Empty for gateways in no stage.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Stage string `json:"stage,omitempty"`
	// Number of steps whose gateways may sync.
	// +optional
	Step int32 `json:"step,omitempty"`
	// Number of all steps.
	// +optional
	Steps int32 `json:"steps,omitempty"`
	// Phase: Planning, Progressing, Soaking, Waiting, Aborted or Done.
	// +required
	Phase RolloutPhase `json:"phase"`
	// When the phase began.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^[1-9][0-9]{3}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$`
	Since *metav1.Time `json:"since,omitempty"`
	// Explanation of the phase in one line.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
}

// TargetStatus is the desired ref and its commit.
type TargetStatus struct {
	// The desired ref.
	// +optional
	// +kubebuilder:validation:MaxLength=255
	Ref string `json:"ref,omitempty"`
	// The ref; the first seven digits if it is a commit. For a column of kubectl get, which cannot shorten a value.
	// +optional
	// +kubebuilder:validation:MaxLength=255
	RefShort string `json:"refShort,omitempty"`
	// The commit that the ref was resolved to.
	// +optional
	// +kubebuilder:validation:MaxLength=40
	Commit string `json:"commit,omitempty"`
	// First seven digits of the commit. For a column of kubectl get, which cannot shorten a value.
	// +optional
	// +kubebuilder:validation:MaxLength=7
	CommitShort string `json:"commitShort,omitempty"`
	// First line of the commit's message, and the name of its author in parentheses, as git has them. Absent until the lead has fetched it.
	// +optional
	// +kubebuilder:validation:MaxLength=200
	Subject string `json:"subject,omitempty"`
	// Sender of the request, if the ref comes from one.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	RequestedBy string `json:"requestedBy,omitempty"`
	// Time of the request: RFC 3339 with nanoseconds.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	RequestedAt string `json:"requestedAt,omitempty"`
}

// RequestStatus is the record of a request.
type RequestStatus struct {
	// The request and the ref of the spec when the lead first saw it: requested@spec, and the time of the request if it has one.
	// +optional
	// +kubebuilder:validation:MaxLength=640
	Over string `json:"over,omitempty"`
	// The request that has lapsed, in the same form. It stays lapsed even if the spec changes back.
	// +optional
	// +kubebuilder:validation:MaxLength=768
	Lapsed string `json:"lapsed,omitempty"`
	// The request that was refused because its ref resolved to another commit than requested, and that other commit. It stays refused even
	// if the ref moves back.
	// +optional
	// +kubebuilder:validation:MaxLength=768
	Refused string `json:"refused,omitempty"`
}

// CommitRecord is a commit of a status's history.
type CommitRecord struct {
	// Ref that the commit was resolved from.
	// +optional
	// +kubebuilder:validation:MaxLength=255
	Ref string `json:"ref,omitempty"`
	// The commit.
	// +required
	// +kubebuilder:validation:MaxLength=40
	Commit string `json:"commit"`
	// First line of the commit's message, and the name of its author in parentheses, as git has them. Absent if it is not known.
	// +optional
	// +kubebuilder:validation:MaxLength=200
	Subject string `json:"subject,omitempty"`
	// When the commit was first seen on all gateways, or when a ConfigSync had applied it.
	// +required
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^[1-9][0-9]{3}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$`
	At metav1.Time `json:"at"`
}

// GatewaySyncState is the state of one gateway.
//
// +kubebuilder:validation:Enum=Pending;Applied;Syncing;Synced;Standby;Held;Error;MissingSidecar
type GatewaySyncState string

// The states of a gateway. Synced and Standby count as synced.
const (
	// GatewayPending means that the gateway has no result for the current target yet: its agent has not reported, has not begun, or made a
	// dry run.
	GatewayPending GatewaySyncState = "Pending"
	// GatewayApplied means that files were written before the gateway started, and are not verified yet.
	GatewayApplied GatewaySyncState = "Applied"
	// GatewaySyncing means that a sync is in progress.
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

// Synced reports whether a state counts as synced: Synced, or Standby of a redundant pair.
func (s GatewaySyncState) Synced() bool { return s == GatewaySynced || s == GatewayStandby }

// GatewayStates lists the states.
var GatewayStates = []GatewaySyncState{GatewayPending, GatewayApplied, GatewaySyncing, GatewaySynced, GatewayStandby, GatewayHeld, GatewayError,
	GatewayMissingSidecar}

// DiscoveredGateway is the status of one gateway.
type DiscoveredGateway struct {
	GatewayDetails `json:",inline"`
	// Name of the gateway; see the annotation stoker.io/gateway-name.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// Name of the pod. Two live pods that claim one gateway are both named here, and are not synced.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	PodName string `json:"podName,omitempty"`
	// Profile of the gateway.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Profile string `json:"profile,omitempty"`
	// State of the gateway.
	// +optional
	SyncStatus GatewaySyncState `json:"syncStatus,omitempty"`
	// Reason for the state.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Reason Reason `json:"reason,omitempty"`
	// Time of the last sync.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^[1-9][0-9]{3}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$`
	LastSyncTime *metav1.Time `json:"lastSyncTime,omitempty"`
	// Duration of the last sync, such as 1.2s.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	LastSyncDuration string `json:"lastSyncDuration,omitempty"`
	// Commit of the files on the gateway.
	// +optional
	// +kubebuilder:validation:MaxLength=40
	SyncedCommit string `json:"syncedCommit,omitempty"`
	// Ref of that commit, as it was requested.
	// +optional
	// +kubebuilder:validation:MaxLength=255
	SyncedRef string `json:"syncedRef,omitempty"`
	// Result of the gateway's last scan.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	LastScanResult string `json:"lastScanResult,omitempty"`
	// Number of files that the last sync changed.
	// +optional
	FilesChanged int32 `json:"filesChanged,omitempty"`
	// Number of files that a user had changed and that the last sync replaced or removed. lost+found has the user's version.
	// +optional
	FilesSaved int32 `json:"filesSaved,omitempty"`
	// Projects that are synced, at most 32 of them.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=255
	ProjectsSynced []string `json:"projectsSynced,omitempty"`
	// Details for users, such as the error.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
	// Number of files that were changed on the gateway and not in git.
	// +optional
	Drift int32 `json:"drift,omitempty"`
	// State of the proposal of this gateway's changes. Empty if there is none.
	// +optional
	// +kubebuilder:validation:MaxLength=16
	ProposalState ProposalState `json:"proposalState,omitempty"`
	// URL of the pull request, or the branch if there is no pull request.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Proposal string `json:"proposal,omitempty"`
}

// RanEverywhere reports whether every gateway ran a commit, verified.
func (s *GatewaySyncStatus) RanEverywhere(commit string) bool {
	return s.LastGood != nil && s.LastGood.Commit == commit || slices.ContainsFunc(s.History, func(c CommitRecord) bool { return c.Commit == commit })
}

// Confirmed reports whether the lead confirmed this status recently. If no agent runs, no agent corrects the status, so readers must not
// trust it. A time in the future does not count: with the year 9999, a stolen token could declare a fleet synced forever.
func (s *GatewaySyncStatus) Confirmed(now time.Time) bool {
	return s.ConfirmedAt != nil && now.Sub(s.ConfirmedAt.Time).Abs() <= ConfirmedFor
}

// OutcomePhase is how far the gateways, or the objects of a ConfigSync, are with the desired ref.
//
// +kubebuilder:validation:Enum=Progressing;Succeeded;Failed;Held;Paused
type OutcomePhase string

// The phases of an outcome.
const (
	// OutcomeProgressing means that work is under way, or that there is no gateway yet.
	OutcomeProgressing OutcomePhase = "Progressing"
	// OutcomeSucceeded means that every gateway runs the commit and has handled the request, or that the last run of the ConfigSync succeeded.
	OutcomeSucceeded OutcomePhase = "Succeeded"
	// OutcomeFailed means that no retry succeeds until the spec, the request, the commit or a gateway changes.
	OutcomeFailed OutcomePhase = "Failed"
	// OutcomeHeld means that all gateways that do not run the commit wait for a user, for example to close a Designer, or that the last run of
	// the ConfigSync waits for one.
	OutcomeHeld OutcomePhase = "Held"
	// OutcomePaused means that all gateways that do not run the commit are paused or make dry runs only, or that the ConfigSync is paused or
	// makes dry runs only.
	OutcomePaused OutcomePhase = "Paused"
)

// Outcome says how far the gateways, or the objects of a ConfigSync, are with the desired ref. It is valid for the spec and the request that
// the status observed. That of a GatewaySync is valid while the status is confirmed.
type Outcome struct {
	// How far the gateways or the objects are: Progressing, Succeeded, Failed, Held or Paused.
	// +required
	Phase OutcomePhase `json:"phase"`
	// Desired ref. Empty if the request names no valid ref.
	// +optional
	// +kubebuilder:validation:MaxLength=255
	Ref string `json:"ref,omitempty"`
	// Commit that the desired ref resolves to. Empty until git was polled for the request.
	// +optional
	// +kubebuilder:validation:MaxLength=40
	Commit string `json:"commit,omitempty"`
	// Number of gateways. A ConfigSync has none.
	// +optional
	Total int32 `json:"total,omitempty"`
	// Number of gateways that run the commit.
	// +optional
	Synced int32 `json:"synced,omitempty"`
	// Number of gateways that failed, and that a retry does not help.
	// +optional
	Failed int32 `json:"failed,omitempty"`
	// Reason for the phase.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Reason Reason `json:"reason,omitempty"`
	// Explanation of the phase in one line.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
}

// Approval is what an approval would approve now.
type Approval struct {
	// Commit to approve: that of the desired ref.
	// +required
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{40}$`
	Commit string `json:"commit"`
	// Stage that waits for an approval. Empty if none does.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^([a-z0-9]([-a-z0-9]*[a-z0-9])?)?$`
	Stage string `json:"stage,omitempty"`
	// Whether an approval can let the commit through the maintenance windows: there are some, and a gateway does not run the commit.
	// +optional
	Window bool `json:"window,omitempty"`
}

// Rollback is what a rollback would request now.
type Rollback struct {
	// Last good commit (status.lastGood). Empty if it is the desired commit.
	// +optional
	// +kubebuilder:validation:MaxLength=40
	Commit string `json:"commit,omitempty"`
	// Commit that the ref of the spec resolves to now. The rollback lapses when the ref moves to another commit. Empty if a request led
	// to the desired commit.
	// +optional
	// +kubebuilder:validation:MaxLength=40
	Unless string `json:"unless,omitempty"`
	// The commit, an @ and the ref of the spec: the annotation stoker.io/requested-over of the rollback, without its time. Empty if commit
	// is.
	// +optional
	// +kubebuilder:validation:MaxLength=296
	Over string `json:"over,omitempty"`
}

// UnmarshalJSON reads a status. Pods of gateways can write it, so an invalid status must not prevent readers from reading the spec. If
// the status cannot be decoded, or the API server would not take it back, all fields are empty and Unread has the JSON. The next
// writer replaces the whole status.
func (s *GatewaySyncStatus) UnmarshalJSON(data []byte) error {
	type plain GatewaySyncStatus
	var status plain
	if err := kjson.UnmarshalCaseSensitivePreserveInts(data, &status); err != nil || (*GatewaySyncStatus)(&status).lacksTime() {
		status = plain{Unread: bytes.Clone(data)}
	}
	*s = GatewaySyncStatus(status)
	return nil
}

// lacksTime reports whether a required time is zero. It would be written as null, which the API server refuses.
func (s *GatewaySyncStatus) lacksTime() bool {
	return s.LastGood != nil && s.LastGood.At.IsZero() ||
		slices.ContainsFunc(s.History, func(r CommitRecord) bool { return r.At.IsZero() }) ||
		slices.ContainsFunc(s.Conditions, func(c metav1.Condition) bool { return c.LastTransitionTime.IsZero() })
}
