package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// KindSyncReport is the kind of the object in which an agent reports the state of its gateway.
const KindSyncReport = "SyncReport"

// SyncReport is the state of one gateway. It has the name of the gateway's pod, which owns it, and the label stoker.io/cr-name. Only the
// agent of this pod writes it. It has at most 4 KiB; the agent serves its history and plans over HTTP. Its target is the SyncTarget of its
// GatewaySync.
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
	// Observed state.
	// +required
	Status SyncReportStatus `json:"status"`
}

// SyncReportStatus is what the agent observed. The agent writes it only when it changes.
type SyncReportStatus struct {
	GatewayDetails `json:",inline"`
	// Format of this object.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	Format int32 `json:"format"`
	// Name of the gateway.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$`
	Gateway string `json:"gateway"`
	// Profile of the gateway. Empty in service-path mode.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Profile string `json:"profile,omitempty"`
	// State of the gateway.
	// +required
	Phase GatewaySyncState `json:"phase"`
	// Reason for the state.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Reason Reason `json:"reason,omitempty"`
	// Explanation of the state.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
	// Ref of the target that this report describes.
	// +optional
	// +kubebuilder:validation:MaxLength=255
	Ref string `json:"ref,omitempty"`
	// Commit of the files on the gateway's disk. It is never ahead of the disk.
	// +optional
	// +kubebuilder:validation:Pattern=`^([0-9a-f]{40})?$`
	Commit string `json:"commit,omitempty"`
	// Target commit of the sync.
	// +optional
	// +kubebuilder:validation:Pattern=`^([0-9a-f]{40})?$`
	Target string `json:"target,omitempty"`
	// Revision of the target that this report describes.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Revision int64 `json:"revision,omitempty"`
	// Generation of the spec of the GatewaySync that the agent used.
	// +optional
	Generation int64 `json:"generation,omitempty"`
	// The requestedAt of the target that this gateway has handled.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	HandledRequest string `json:"handledRequest,omitempty"`
	// The annotation stoker.io/force-sync that this gateway has handled.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	HandledForceSync string `json:"handledForceSync,omitempty"`
	// Term of the lead that wrote the target.
	// +optional
	Term int32 `json:"term,omitempty"`
	// Start of the last sync that changed something, or failed.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^[1-9][0-9]{3}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$`
	Started *metav1.Time `json:"started,omitempty"`
	// Duration of that sync, such as 1.2s.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	Duration string `json:"duration,omitempty"`
	// Number of files that the sync changed.
	// +optional
	Files FileCounts `json:"files,omitempty"`
	// Projects that are synced, at most 32 of them.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=128
	Projects []string `json:"projects,omitempty"`
	// Result of the gateway's last scan.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Scan string `json:"scan,omitempty"`
	// Files that were changed on the gateway and not in git.
	// +optional
	Drift DriftFiles `json:"drift,omitempty"`
	// The pull request with this gateway's changes. Absent if there is none, and no change waits for one.
	// +optional
	Proposal *Proposal `json:"proposal,omitempty"`
	// Commit that was planned in a dry run before a rollout. Empty if none was for the current target. The message has the numbers of files.
	// +optional
	// +kubebuilder:validation:Pattern=`^([0-9a-f]{40})?$`
	Planned string `json:"planned,omitempty"`
	// If true, syncing of this gateway is paused.
	// +optional
	Paused bool `json:"paused,omitempty"`
}

// GatewayDetails is what the SyncReport of a gateway and its row in the status have in common.
type GatewayDetails struct {
	// Version of the agent.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	AgentVersion string `json:"agentVersion,omitempty"`
	// What users should know about the last sync that changed something, or failed: another deployment mode than the pod asks for, an expired
	// trial, a pending restart, a refused scan lock, errors that the gateway logged. If there are too many, the last ones are omitted; in the
	// status of a large fleet, all.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MaxLength=256
	Notes []string `json:"notes,omitempty"`
	// The newest snapshot of the gateway. Absent if there is none.
	// +optional
	LastSnapshot *GatewaySnapshot `json:"lastSnapshot,omitempty"`
	// Commit that the gateway could not load and rolled back (spec.autoRollback). Absent if no commit is blocked.
	// +optional
	// +kubebuilder:validation:Pattern=`^([0-9a-f]{40})?$`
	AutoRollback string `json:"autoRollback,omitempty"`
	// The last syncs that changed files of the gateway, or failed, newest first. A SyncReport has ten, or fewer if it would be too large. The
	// status has ten with up to 32 gateways, three with up to 100, and none with more.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=10
	SyncHistory []SyncRecord `json:"syncHistory,omitempty"`
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
	// Ref of the commit, as it was requested.
	// +optional
	// +kubebuilder:validation:MaxLength=255
	Ref string `json:"ref,omitempty"`
	// Number of files that the sync changed.
	// +optional
	FilesChanged int32 `json:"filesChanged,omitempty"`
	// Number of projects that the gateway reloaded.
	// +optional
	ProjectsSynced int32 `json:"projectsSynced,omitempty"`
	// How long the sync took, such as 1.2s.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	Duration string `json:"duration,omitempty"`
	// Synced, or the reason why not.
	// +required
	// +kubebuilder:validation:MaxLength=64
	Result Reason `json:"result"`
	// ID of the snapshot of what the sync replaced or deleted.
	// +optional
	// +kubebuilder:validation:MaxLength=255
	SnapshotID string `json:"snapshotId,omitempty"`
}

// FileCounts are numbers of files.
type FileCounts struct {
	// New files.
	// +optional
	Added int32 `json:"added,omitempty"`
	// Files that were replaced.
	// +optional
	Modified int32 `json:"modified,omitempty"`
	// Files that were removed.
	// +optional
	Deleted int32 `json:"deleted,omitempty"`
	// Files that differ from git and were not changed, because of conflictPolicy.
	// +optional
	Kept int32 `json:"kept,omitempty"`
	// Files that were changed on the gateway and replaced or removed; lost+found has the gateway's version.
	// +optional
	Saved int32 `json:"saved,omitempty"`
}

// DriftFiles are the files that were changed on the gateway since they were written.
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
