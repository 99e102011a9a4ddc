package v1alpha1

import (
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// KindSyncReport is the kind of the object in which one agent says where its gateway stands.
const KindSyncReport = "SyncReport"

// SyncReport is where one gateway stands. It has the name of the gateway's pod, is owned by it and carries the label
// stoker.io/cr-name. Only that pod's agent writes it. At most 4 KiB: history and plans are kept by the agent, which serves
// them read-only.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:shortName=gsr,categories=stoker
// +kubebuilder:printcolumn:name="Gateway",type=string,JSONPath=`.status.gateway`
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.reason`
// +kubebuilder:printcolumn:name="Ref",type=string,JSONPath=`.status.ref`
// +kubebuilder:printcolumn:name="Drift",type=integer,JSONPath=`.status.drift.files`,description="Files that were changed on the gateway and not in git"
// +kubebuilder:printcolumn:name="Last Sync",type=date,JSONPath=`.status.started`
// +kubebuilder:printcolumn:name="Commit",type=string,JSONPath=`.status.commit`,priority=1
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.message`,priority=1
type SyncReport struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// What the agent last saw.
	// +required
	Status SyncReportStatus `json:"status"`
}

// SyncReportStatus is what the agent last saw. It is written when it changes, not because time passes.
type SyncReportStatus struct {
	// Format of this object.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	Format int32 `json:"format"`
	// Name of the gateway.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Gateway string `json:"gateway"`
	// Profile in force; empty in service-path mode.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Profile string `json:"profile,omitempty"`
	// Where the gateway stands.
	// +required
	Phase GatewaySyncState `json:"phase"`
	// Why.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Reason Reason `json:"reason,omitempty"`
	// The same for people.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
	// Ref of the target that this report is about.
	// +optional
	// +kubebuilder:validation:MaxLength=255
	Ref string `json:"ref,omitempty"`
	// Commit that lies on the gateway's disk: never ahead of it.
	// +optional
	// +kubebuilder:validation:Pattern=`^([0-9a-f]{40})?$`
	Commit string `json:"commit,omitempty"`
	// Target commit of the sync.
	// +optional
	// +kubebuilder:validation:Pattern=`^([0-9a-f]{40})?$`
	Target string `json:"target,omitempty"`
	// Revision of the target that this report is about.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Revision int64 `json:"revision,omitempty"`
	// Generation of the GatewaySync's spec that was followed.
	// +optional
	Generation int64 `json:"generation,omitempty"`
	// The target's requestedAt that this gateway has dealt with.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	HandledRequest string `json:"handledRequest,omitempty"`
	// The target's forceSync that this gateway has dealt with.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	HandledForceSync string `json:"handledForceSync,omitempty"`
	// Term of the lead whose target was followed.
	// +optional
	Term int32 `json:"term,omitempty"`
	// When the last sync that did something, or failed, started.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^[1-9][0-9]{3}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$`
	Started *metav1.Time `json:"started,omitempty"`
	// How long it took, such as 1.2s.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	Duration string `json:"duration,omitempty"`
	// What it did.
	// +optional
	Files FileCounts `json:"files,omitempty"`
	// Projects that are synced, at most 32 of them.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=128
	Projects []string `json:"projects,omitempty"`
	// What the gateway's last scan said.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Scan string `json:"scan,omitempty"`
	// What users should know of that sync: another deployment mode than the pod asks for, an expired trial, a pending restart, a refused scan
	// lock, errors that the gateway logged. The last are left out if there are too many.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MaxLength=256
	Notes []string `json:"notes,omitempty"`
	// Files that were changed on the gateway and not in git.
	// +optional
	Drift DriftFiles `json:"drift,omitempty"`
	// The pull request with this gateway's changes. Absent if there is none and nothing waits for one.
	// +optional
	Proposal *Proposal `json:"proposal,omitempty"`
	// The newest snapshot. Absent if there is none.
	// +optional
	LastSnapshot *GatewaySnapshot `json:"lastSnapshot,omitempty"`
	// Commit that the agent went back from by itself, because the gateway could not load it. Absent unless it is held off.
	// +optional
	// +kubebuilder:validation:Pattern=`^([0-9a-f]{40})?$`
	AutoRollback string `json:"autoRollback,omitempty"`
	// What a dry run before a rollout would change. Absent if none was made for the current target.
	// +optional
	Planned *PlannedChanges `json:"planned,omitempty"`
	// The last syncs that changed files of the gateway, or failed, newest first. The oldest are left out if the report would be too large.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=10
	SyncHistory []SyncRecord `json:"syncHistory,omitempty"`
	// Version of the agent.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	AgentVersion string `json:"agentVersion,omitempty"`
	// If true, syncing of this gateway is paused.
	// +optional
	Paused bool `json:"paused,omitempty"`
}

// PlannedChanges is what a dry run would change.
type PlannedChanges struct {
	// The commit.
	// +required
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{40}$`
	Commit string `json:"commit"`
	// Files that are not there.
	// +optional
	Added int32 `json:"added,omitempty"`
	// Files that would be replaced.
	// +optional
	Modified int32 `json:"modified,omitempty"`
	// Files that would be removed.
	// +optional
	Deleted int32 `json:"deleted,omitempty"`
}

// SyncRecord is a sync that changed files of a gateway, or failed.
type SyncRecord struct {
	// When the sync began.
	// +required
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^[1-9][0-9]{3}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$`
	Timestamp metav1.Time `json:"timestamp"`
	// Target commit of the sync.
	// +optional
	// +kubebuilder:validation:Pattern=`^([0-9a-f]{40})?$`
	Commit string `json:"commit,omitempty"`
	// Its ref, as it was asked for.
	// +optional
	// +kubebuilder:validation:MaxLength=255
	Ref string `json:"ref,omitempty"`
	// Number of files that the sync changed.
	// +optional
	FilesChanged int32 `json:"filesChanged,omitempty"`
	// Number of projects that the gateway loaded again.
	// +optional
	ProjectsSynced int32 `json:"projectsSynced,omitempty"`
	// How long the sync took, such as 1.2s.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	Duration string `json:"duration,omitempty"`
	// Synced, or the reason of another outcome.
	// +required
	// +kubebuilder:validation:MaxLength=64
	Result Reason `json:"result"`
	// Id of the snapshot of what the sync replaced or deleted.
	// +optional
	// +kubebuilder:validation:MaxLength=255
	SnapshotID string `json:"snapshotId,omitempty"`
}

// Valid reports whether the API server takes a record. One invalid record would make it reject the whole object.
func (r *SyncRecord) Valid() bool {
	year := r.Timestamp.UTC().Year()
	return year >= 1000 && year <= 9999 && (r.Commit == "" || IsCommit(r.Commit) && r.Commit == strings.ToLower(r.Commit)) && len(r.Ref) <= 255 &&
		len(r.Duration) <= 32 && len(r.Result) <= 64 && (r.SnapshotID == "" || SnapshotID(r.SnapshotID) == r.SnapshotID)
}

// FileCounts are numbers of files.
type FileCounts struct {
	// Files that were not there.
	// +optional
	Added int32 `json:"added,omitempty"`
	// Files that were replaced.
	// +optional
	Modified int32 `json:"modified,omitempty"`
	// Files that were removed.
	// +optional
	Deleted int32 `json:"deleted,omitempty"`
	// Files that differ from git and were left, by conflictPolicy.
	// +optional
	Kept int32 `json:"kept,omitempty"`
	// Files that were changed on the gateway and replaced or removed; lost+found has the gateway's version.
	// +optional
	Saved int32 `json:"saved,omitempty"`
}

// DriftFiles is what was changed on the gateway since it was written.
type DriftFiles struct {
	// Number of files.
	// +optional
	Files int32 `json:"files,omitempty"`
	// The first ten.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=10
	// +kubebuilder:validation:items:MaxLength=256
	Paths []string `json:"paths,omitempty"`
}

// SyncReportList is a list of SyncReports.
//
// +kubebuilder:object:root=true
type SyncReportList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []SyncReport `json:"items"`
}
