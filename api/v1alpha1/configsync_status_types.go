package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// ConfigSyncStatus is what the last run did.
type ConfigSyncStatus struct {
	// Generation of the spec that the last run was about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// The annotations stoker.io/requested-… that the status is about, as one text.
	// +optional
	// +kubebuilder:validation:MaxLength=4096
	ObservedRequest string `json:"observedRequest,omitempty"`
	// Ref that was resolved.
	// +optional
	// +kubebuilder:validation:MaxLength=255
	SourceRef string `json:"sourceRef,omitempty"`
	// Commit that it was resolved to.
	// +optional
	// +kubebuilder:validation:MaxLength=40
	SourceRevision string `json:"sourceRevision,omitempty"`
	// The same, first seven digits.
	// +optional
	// +kubebuilder:validation:MaxLength=7
	SourceRevisionShort string `json:"sourceRevisionShort,omitempty"`
	// Path that was rendered.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	SourcePath string `json:"sourcePath,omitempty"`
	// When all objects of a commit were applied last.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^[1-9][0-9]{3}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$`
	LastSyncedTime *metav1.Time `json:"lastSyncedTime,omitempty"`
	// Number of objects that are as git has them.
	// +optional
	AppliedTargets int32 `json:"appliedTargets,omitempty"`
	// Ready of all objects, such as 3/3.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	TargetsReady string `json:"targetsReady,omitempty"`
	// The objects, those that are not ready first; at most 500.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +listMapKey=namespace
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=500
	Targets []ConfigTargetStatus `json:"targets,omitempty"`
	// Every object that this ConfigSync owns or was about to create: group, kind, namespace, name and UID with _ between them.
	// Only these are pruned.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=2000
	// +kubebuilder:validation:items:MaxLength=640
	Inventory []string `json:"inventory,omitempty"`
	// What is kept of the last request.
	// +optional
	Request *RequestStatus `json:"request,omitempty"`
	// The commit that was applied last with all objects healthy.
	// +optional
	LastGood *CommitRecord `json:"lastGood,omitempty"`
	// What a rollback would request now. Absent if there is no last good commit, or before git was polled.
	// +optional
	Rollback *Rollback `json:"rollback,omitempty"`
	// The last commits that were applied, newest first.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=10
	History []CommitRecord `json:"history,omitempty"`
	// Ready, RefResolved, Available and Degraded; Reconciling and Stalled only while they are true.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// ConfigTargetStatus is one object.
type ConfigTargetStatus struct {
	// Kind of the object, or Kind.group.
	// +required
	// +kubebuilder:validation:MaxLength=317
	Type string `json:"type"`
	// Namespace of the object; empty if it has none.
	// +optional
	// +kubebuilder:default=""
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace"`
	// Name of the object.
	// +required
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// What the last run did with it.
	// +optional
	State ConfigTargetState `json:"state,omitempty"`
	// Whether it is healthy. Absent if the run did not look.
	// +optional
	Healthy *bool `json:"healthy,omitempty"`
	// Why it is not ready.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Reason Reason `json:"reason,omitempty"`
	// The same for people.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
	// File of the repository that it comes from.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	File string `json:"file,omitempty"`
}

// ConfigTargetState is what a run did with an object.
//
// +kubebuilder:validation:Enum=Pending;Unchanged;Created;Configured;Repaired;Drifted;Held;Failed;Pruned
type ConfigTargetState string

// The states of an object.
const (
	// ConfigPending means that the run did not come to the object.
	ConfigPending ConfigTargetState = "Pending"
	// ConfigUnchanged means that the object was as git has it.
	ConfigUnchanged ConfigTargetState = "Unchanged"
	// ConfigCreated means that the run created the object.
	ConfigCreated ConfigTargetState = "Created"
	// ConfigConfigured means that git changed, and the object with it.
	ConfigConfigured ConfigTargetState = "Configured"
	// ConfigRepaired means that the object was changed in the cluster, and is as git has it again.
	ConfigRepaired ConfigTargetState = "Repaired"
	// ConfigDrifted means that the object was changed in the cluster, and driftPolicy leaves it so.
	ConfigDrifted ConfigTargetState = "Drifted"
	// ConfigHeld means that a user has to act first.
	ConfigHeld ConfigTargetState = "Held"
	// ConfigFailed means that the API server refused the object, or its deletion.
	ConfigFailed ConfigTargetState = "Failed"
	// ConfigPruned means that the run deleted the object.
	ConfigPruned ConfigTargetState = "Pruned"
)

// Types of the conditions of a ConfigSync, beside Ready, RefResolved, Reconciling and Stalled.
const (
	// ConditionAvailable is true if all objects are healthy.
	ConditionAvailable = "Available"
	// ConditionDegraded is true if a run ended with a part of the objects applied or healthy.
	ConditionDegraded = "Degraded"
)
