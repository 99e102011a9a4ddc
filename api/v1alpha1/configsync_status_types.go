package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// ConfigSyncStatus is what the last run did.
type ConfigSyncStatus struct {
	// Generation of the spec that the last run used.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Annotations of the request that this status describes, as lines "name=value".
	// +optional
	// +kubebuilder:validation:MaxLength=4096
	ObservedRequest string `json:"observedRequest,omitempty"`
	// How far the objects are with the desired ref. It is valid if observedGeneration and observedRequest match the object.
	// +optional
	Outcome *Outcome `json:"outcome,omitempty"`
	// Ref that was resolved.
	// +optional
	// +kubebuilder:validation:MaxLength=255
	SourceRef string `json:"sourceRef,omitempty"`
	// Commit that the ref was resolved to.
	// +optional
	// +kubebuilder:validation:MaxLength=40
	SourceRevision string `json:"sourceRevision,omitempty"`
	// First seven digits of the commit. For a column of kubectl get, which cannot shorten a value.
	// +optional
	// +kubebuilder:validation:MaxLength=7
	SourceRevisionShort string `json:"sourceRevisionShort,omitempty"`
	// Path that was applied.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	SourcePath string `json:"sourcePath,omitempty"`
	// End of the last successful run that changed objects or made the ConfigSync ready.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^[1-9][0-9]{3}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$`
	LastSyncedTime *metav1.Time `json:"lastSyncedTime,omitempty"`
	// Ready objects and all objects of the commit, such as 3/3. An object is ready if the run did not leave it Pending, Held or Failed,
	// and it is healthy or its health was not checked.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	TargetsReady string `json:"targetsReady,omitempty"`
	// At most 500 objects, those that are not ready first.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +listMapKey=namespace
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=500
	Targets []ConfigTargetStatus `json:"targets,omitempty"`
	// Every object that this ConfigSync owns or was about to create: group, kind, namespace, name and UID with _ between them. Only these
	// objects are pruned.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=2000
	// +kubebuilder:validation:items:MaxLength=640
	Inventory []string `json:"inventory,omitempty"`
	// Record of the last request.
	// +optional
	Request *RequestStatus `json:"request,omitempty"`
	// The last commit that was applied from sourcePath with all objects healthy.
	// +optional
	LastGood *CommitRecord `json:"lastGood,omitempty"`
	// What a rollback would request now. Absent if there is no last good commit, or if git was not polled yet.
	// +optional
	Rollback *Rollback `json:"rollback,omitempty"`
	// The last commits that were applied, newest first.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=10
	History []CommitRecord `json:"history,omitempty"`
	// Ready, RefResolved and Degraded; Available only if spec.apply.wait is true; Reconciling and Stalled only while they are true.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// ConfigTargetStatus is the status of one object, which is a target of the ConfigSync. The target of a GatewaySync is a commit.
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
	// Whether the object is healthy. Absent if the run did not check.
	// +optional
	Healthy *bool `json:"healthy,omitempty"`
	// Why the object is not ready.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Reason Reason `json:"reason,omitempty"`
	// Explanation of the reason.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
	// File of the repository that has the object.
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
	// ConfigPending means that the run did not reach the object.
	ConfigPending ConfigTargetState = "Pending"
	// ConfigUnchanged means that the object was equal to git.
	ConfigUnchanged ConfigTargetState = "Unchanged"
	// ConfigCreated means that the run created the object.
	ConfigCreated ConfigTargetState = "Created"
	// ConfigConfigured means that the run applied a change of git.
	ConfigConfigured ConfigTargetState = "Configured"
	// ConfigRepaired means that the object was changed in the cluster, and the run restored it.
	ConfigRepaired ConfigTargetState = "Repaired"
	// ConfigDrifted means that the object was changed in the cluster, and driftPolicy is report.
	ConfigDrifted ConfigTargetState = "Drifted"
	// ConfigHeld means that a user must act first.
	ConfigHeld ConfigTargetState = "Held"
	// ConfigFailed means that the object could not be applied or deleted.
	ConfigFailed ConfigTargetState = "Failed"
	// ConfigPruned means that the run deleted the object.
	ConfigPruned ConfigTargetState = "Pruned"
)

// Types of the conditions of a ConfigSync, besides Ready, RefResolved, Reconciling and Stalled.
const (
	// ConditionAvailable is true if all objects are applied and healthy. It is absent if spec.apply.wait is false.
	ConditionAvailable = "Available"
	// ConditionDegraded is true if a run failed after it had begun to change objects, or because objects are unhealthy or could not be
	// pruned, until a run applies all objects. It is false while a run only waits for healthy objects (Progressing), and, unless it is
	// true, unknown while a run changes objects.
	ConditionDegraded = "Degraded"
)
