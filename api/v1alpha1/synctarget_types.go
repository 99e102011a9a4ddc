package v1alpha1

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// KindSyncTarget is the kind of the one small object of a GatewaySync that all its agents watch.
const KindSyncTarget = "SyncTarget"

// Formats of what agents tell each other. An agent that knows only an older format leaves the lock to newer ones for a minute,
// and a follower whose format is below a target's minFormat leaves its gateway as it is and says so. If TargetFormat goes up,
// ReportFormat goes up with it: the reports tell an older agent that a newer one is there.
const (
	TargetFormat int32 = 2
	ReportFormat int32 = 2
)

// FormatRollout is the first format in which a target can have closed steps. An agent that does not know it would run ahead.
const FormatRollout int32 = 2

// SyncTarget says which commit the gateways of a GatewaySync run, and which agent leads. It has the
// name of its GatewaySync and is owned by it. Agents write it; people only read it.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:shortName=gst,categories=stoker
// +kubebuilder:printcolumn:name="Ref",type=string,JSONPath=`.spec.ref`
// +kubebuilder:printcolumn:name="Commit",type=string,JSONPath=`.spec.commit`
// +kubebuilder:printcolumn:name="Lead",type=string,JSONPath=`.spec.lead.holder`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 48",message="a name has at most 48 characters"
type SyncTarget struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// What the lead decided.
	// +required
	Spec SyncTargetSpec `json:"spec"`
}

// SyncTargetSpec is what the lead decided. Lock and target are one object, so that the write of a lead that was replaced
// fails by its resourceVersion.
type SyncTargetSpec struct {
	// Format of this object.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	Format int32 `json:"format"`
	// The oldest format that an agent has to know to follow it.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	MinFormat int32 `json:"minFormat"`
	// Who leads.
	// +optional
	Lead LeadRecord `json:"lead,omitempty"`
	// Revision is incremented by every change of the target that can change what an agent does. A report belongs to this target only if it
	// has the same revision. Otherwise a ref that returns to an earlier commit would be taken as synced by the reports of that time.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Revision int64 `json:"revision,omitempty"`
	// Generation of the GatewaySync that this target follows from. An agent takes the spec from the GatewaySync itself, and
	// only while its generation is this one: a target never leads to another repository or folder.
	// +optional
	Generation int64 `json:"generation,omitempty"`
	// The desired ref.
	// +optional
	// +kubebuilder:validation:MaxLength=255
	Ref string `json:"ref,omitempty"`
	// Full name of the ref that the commit is the tip of, such as refs/heads/main; empty for a commit that was asked for by
	// its id. Git servers that do not give a commit by its id are asked for this one.
	// +optional
	// +kubebuilder:validation:MaxLength=255
	RefName string `json:"refName,omitempty"`
	// The commit to run. Empty: none was resolved yet, and gateways stay as they are.
	// +optional
	// +kubebuilder:validation:Pattern=`^([0-9a-f]{40})?$`
	Commit string `json:"commit,omitempty"`
	// When the ref was resolved to this commit first.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^[1-9][0-9]{3}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$`
	ResolvedAt *metav1.Time `json:"resolvedAt,omitempty"`
	// The annotation stoker.io/requested-at that this target answers.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	RequestedAt string `json:"requestedAt,omitempty"`
	// The annotation stoker.io/force-sync, where there is one.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	ForceSync string `json:"forceSync,omitempty"`
	// The annotation stoker.io/confirm-deletion: the commit whose mass deletion an operator has approved, or its first digits.
	// +optional
	// +kubebuilder:validation:Pattern=`^([0-9a-f]{7,40})?$`
	ConfirmDeletion string `json:"confirmDeletion,omitempty"`
	// The annotation stoker.io/propose: the gateway that proposes its changes again, and when that was requested.
	// +optional
	// +kubebuilder:validation:MaxLength=320
	Propose string `json:"propose,omitempty"`
	// The annotation stoker.io/restore or spec.rollback.toSnapshot: the snapshot that a gateway is brought back to.
	// +optional
	// +kubebuilder:validation:MaxLength=288
	Restore string `json:"restore,omitempty"`
	// The annotation stoker.io/retry: the commit that gateways which went back from it take again, and when that was requested.
	// +optional
	// +kubebuilder:validation:MaxLength=80
	Retry string `json:"retry,omitempty"`
	// If true, a user has approved to deliver the commit although no maintenance window allows it. Each agent looks for the approval in the
	// GatewaySync itself.
	// +optional
	WindowApproved bool `json:"windowApproved,omitempty"`
	// If true, nothing is synced.
	// +optional
	Paused bool `json:"paused,omitempty"`
	// Which gateways may follow. Absent: all of them.
	// +optional
	Rollout *TargetRollout `json:"rollout,omitempty"`
	// Why the desired ref has no commit, if a user has to act. A gateway that has nothing yet starts without
	// it instead of waiting.
	// +optional
	Problem *TargetProblem `json:"problem,omitempty"`
}

// TargetRollout says which gateways may follow the target. Each agent finds its own step in the spec of the GatewaySync.
type TargetRollout struct {
	// Revision of the target that the rollout began with.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Revision int64 `json:"revision,omitempty"`
	// Hash of the part of the spec that decides what gateways run. A spec that differs only elsewhere begins no rollout.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Rules string `json:"rules,omitempty"`
	// Hash of the stages and of the order in them: which gateways belong to which step. A rollout begins again if it changes.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Order string `json:"order,omitempty"`
	// Number of all steps.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=10000
	Steps int32 `json:"steps,omitempty"`
	// Number of open steps. A gateway of a step above it stays as it is. If it is 0, every gateway makes a dry run.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=10000
	Open int32 `json:"open,omitempty"`
	// If true, all gateways may follow, and the rollout is over: none is judged any more.
	// +optional
	Done bool `json:"done,omitempty"`
	// Why the rollout was aborted. Empty if it was not.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Failed string `json:"failed,omitempty"`
	// If true, the gateways of open steps go back to from.
	// +optional
	Back bool `json:"back,omitempty"`
	// What last ran on every gateway. Absent if that is not known.
	// +optional
	From *TargetCommit `json:"from,omitempty"`
}

// TargetCommit is a commit and the ref that it was resolved from.
type TargetCommit struct {
	// The ref.
	// +optional
	// +kubebuilder:validation:MaxLength=255
	Ref string `json:"ref,omitempty"`
	// Full name of the ref, empty for a commit that was asked for by its id.
	// +optional
	// +kubebuilder:validation:MaxLength=255
	RefName string `json:"refName,omitempty"`
	// The commit.
	// +required
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{40}$`
	Commit string `json:"commit"`
}

// TargetProblem is why the desired ref is not resolved, and what has to change before it can be.
type TargetProblem struct {
	// Generation of the GatewaySync that could not be resolved.
	// +optional
	Generation int64 `json:"generation,omitempty"`
	// Why.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	Reason Reason `json:"reason"`
	// The same for people.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Message string `json:"message,omitempty"`
}

// LeadRecord is the lock of the lead election.
type LeadRecord struct {
	// Pod and a random suffix of the lead; empty where it was released.
	// +optional
	// +kubebuilder:validation:MaxLength=300
	Holder string `json:"holder,omitempty"`
	// Since when it leads.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^[1-9][0-9]{3}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6}Z$`
	Acquired *metav1.MicroTime `json:"acquired,omitempty"`
	// When it last said so.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^[1-9][0-9]{3}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6}Z$`
	Renewed *metav1.MicroTime `json:"renewed,omitempty"`
	// How long after that others may take over, in seconds.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=3600
	DurationSeconds int32 `json:"durationSeconds,omitempty"`
	// How often the lead changed: the term.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Transitions int32 `json:"transitions,omitempty"`
}

// SyncTargetList is a list of SyncTargets.
//
// +kubebuilder:object:root=true
type SyncTargetList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []SyncTarget `json:"items"`
}

// MaxLeadDuration is the most that a lock counts without a sign of life, whatever it says. Agents write 15 s; who else may
// write a SyncTarget cannot keep everybody from leading with one word.
const MaxLeadDuration = time.Minute

// Lasts returns how long the lock counts without a sign of life; 0 where it does not say.
func (l LeadRecord) Lasts() time.Duration {
	return min(max(time.Duration(l.DurationSeconds)*time.Second, 0), MaxLeadDuration)
}
