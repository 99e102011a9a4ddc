package v1alpha1

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// KindSyncTarget is the kind of the object that all agents of a GatewaySync watch.
const KindSyncTarget = "SyncTarget"

// Formats of the objects by which agents communicate. They increase when an agent that does not know the change would do the wrong thing.
// An agent leaves the lock to agents with a newer format for a minute, and a follower does not change its gateway for a target with a newer
// format, and reports why. If TargetFormat increases, ReportFormat must increase, too: an older agent learns from reports that a newer one
// runs.
const (
	TargetFormat int32 = 1
	ReportFormat int32 = 1
)

// SyncTarget says which commit the gateways of a GatewaySync must run, and which agent leads. It has the name of its GatewaySync, which
// owns it. Only agents write it.
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
	// What the lead has decided.
	// +required
	Spec SyncTargetSpec `json:"spec"`
}

// SyncTargetSpec is what the lead has decided. The lock and the target are one object, so that a write by a replaced lead fails with a
// conflict.
type SyncTargetSpec struct {
	// Format of this object. An agent that knows only an older one does not follow it.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	Format int32 `json:"format"`
	// The lock of the lead.
	// +optional
	Lead LeadRecord `json:"lead,omitempty"`
	// Counter that the lead increments with every change of the target that can change what an agent does. A report belongs to this target
	// only if it has the same revision. Otherwise old reports would count again when a ref returns to an earlier commit.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Revision int64 `json:"revision,omitempty"`
	// Generation of the GatewaySync that this target was computed from. Agents read the spec from the GatewaySync, and follow the target
	// only if this is its generation, so that a target cannot select another repository or folder.
	// +optional
	Generation int64 `json:"generation,omitempty"`
	// The desired ref.
	// +optional
	// +kubebuilder:validation:MaxLength=255
	Ref string `json:"ref,omitempty"`
	// Full name of the ref whose tip the commit is, such as refs/heads/main. Empty if the ref is a commit. Agents fetch this ref from git
	// servers that do not serve commits by id.
	// +optional
	// +kubebuilder:validation:MaxLength=255
	RefName string `json:"refName,omitempty"`
	// The commit to run. Empty if no ref was resolved yet; then gateways do not change.
	// +optional
	// +kubebuilder:validation:Pattern=`^([0-9a-f]{40})?$`
	Commit string `json:"commit,omitempty"`
	// When the ref was first resolved to this commit.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^[1-9][0-9]{3}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$`
	ResolvedAt *metav1.Time `json:"resolvedAt,omitempty"`
	// The annotation stoker.io/requested-at of the request that this target handles.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	RequestedAt string `json:"requestedAt,omitempty"`
	// Hash of the annotations by which users request something of gateways. Agents read the requests from the GatewaySync, and follow the
	// target only if its annotations have this hash.
	// +optional
	// +kubebuilder:validation:Pattern=`^([0-9a-f]{64})?$`
	Requests string `json:"requests,omitempty"`
	// If true, nothing is synced.
	// +optional
	Paused bool `json:"paused,omitempty"`
	// Which gateways may follow the target. Absent if all may.
	// +optional
	Rollout *TargetRollout `json:"rollout,omitempty"`
	// Why the desired ref has no commit, if a user must act. A gateway without files then starts instead of waiting.
	// +optional
	Problem *TargetProblem `json:"problem,omitempty"`
}

// TargetRollout says which gateways may follow the target. Each agent computes its own step from the spec of the GatewaySync.
type TargetRollout struct {
	// Revision of the target with which the rollout began.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Revision int64 `json:"revision,omitempty"`
	// Hash of the part of the spec that decides what gateways run. A change of another part starts no rollout.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Rules string `json:"rules,omitempty"`
	// Hash of the stages and the sync order, which decide the step of each gateway. If it changes, the rollout starts again.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Order string `json:"order,omitempty"`
	// The annotation stoker.io/retry with which the rollout began. A new value makes a rollout that was aborted begin again.
	// +optional
	// +kubebuilder:validation:MaxLength=80
	Retry string `json:"retry,omitempty"`
	// Number of all steps.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=10000
	Steps int32 `json:"steps,omitempty"`
	// Number of open steps, whose gateways may sync. Gateways of later steps do not change. If it is 0, and spec.validation.dryRunBefore
	// is true, gateways make a dry run.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=10000
	Open int32 `json:"open,omitempty"`
	// If true, the rollout is over: all gateways may follow, and failures no longer abort it.
	// +optional
	Done bool `json:"done,omitempty"`
	// Why the rollout was aborted. Empty if it was not.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Failed string `json:"failed,omitempty"`
	// If true, the gateways of open steps return to the commit in from.
	// +optional
	Back bool `json:"back,omitempty"`
	// The commit that last ran on every gateway. Absent if unknown.
	// +optional
	From *TargetCommit `json:"from,omitempty"`
}

// TargetCommit is a commit and the ref that it was resolved from.
type TargetCommit struct {
	// The ref.
	// +optional
	// +kubebuilder:validation:MaxLength=255
	Ref string `json:"ref,omitempty"`
	// Full name of the ref. Empty if the ref is a commit.
	// +optional
	// +kubebuilder:validation:MaxLength=255
	RefName string `json:"refName,omitempty"`
	// The commit.
	// +required
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{40}$`
	Commit string `json:"commit"`
}

// TargetProblem says why the desired ref is not resolved.
type TargetProblem struct {
	// Generation of the GatewaySync whose ref could not be resolved.
	// +optional
	Generation int64 `json:"generation,omitempty"`
	// Reason of the problem.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	Reason Reason `json:"reason"`
	// Explanation, and what must change.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Message string `json:"message,omitempty"`
}

// LeadRecord is the lock of the lead election.
type LeadRecord struct {
	// Pod of the lead and a random suffix. Empty if the lead released the lock.
	// +optional
	// +kubebuilder:validation:MaxLength=300
	Holder string `json:"holder,omitempty"`
	// When the lead acquired the lock.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^[1-9][0-9]{3}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6}Z$`
	Acquired *metav1.MicroTime `json:"acquired,omitempty"`
	// When the lead last renewed the lock.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^[1-9][0-9]{3}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6}Z$`
	Renewed *metav1.MicroTime `json:"renewed,omitempty"`
	// Seconds after the last renewal, after which another agent may take the lock.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=3600
	DurationSeconds int32 `json:"durationSeconds,omitempty"`
	// Number of changes of the lead: the term.
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

const (
	// LeadDuration is how long a lock that an agent writes is valid after its last renewal, and one that names no duration.
	LeadDuration = 15 * time.Second
	// MaxLeadDuration limits how long a lock is valid after its last renewal. The limit keeps other writers of the SyncTarget from blocking the
	// election with a large durationSeconds.
	MaxLeadDuration = time.Minute
)

// ValidFor returns how long the lock is valid after its last renewal: DurationSeconds, at most MaxLeadDuration, or LeadDuration if it is not
// positive.
func (l LeadRecord) ValidFor() time.Duration {
	if l.DurationSeconds <= 0 {
		return LeadDuration
	}
	return min(time.Duration(l.DurationSeconds)*time.Second, MaxLeadDuration)
}
