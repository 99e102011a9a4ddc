package v1alpha1

import (
	"bytes"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kjson "sigs.k8s.io/json"
)

// GatewaySync keeps the Ignition gateways that name it at the commit that git, Argo CD or Kargo asks for.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=gatewaysyncs,singular=gatewaysync,shortName=gs;gsync,scope=Namespaced
// +kubebuilder:printcolumn:name="Ref",type=string,JSONPath=`.status.target.refShort`,description="Desired ref"
// +kubebuilder:printcolumn:name="Commit",type=string,JSONPath=`.status.target.commitShort`,description="Commit that the ref was resolved to"
// +kubebuilder:printcolumn:name="Gateways",type=string,JSONPath=`.status.gatewaysReady`,description="Synced of discovered gateways"
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Confirmed",type=date,JSONPath=`.status.confirmedAt`,description="How long ago the lead confirmed this; after five minutes it counts for nothing"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Status",type=string,JSONPath=`.status.summary`,description="What keeps gateways from it, in a few words"
// +kubebuilder:printcolumn:name="Profiles",type=integer,JSONPath=`.status.profileCount`,priority=1
// +kubebuilder:printcolumn:name="Last Sync",type=date,JSONPath=`.status.lastSyncTime`,priority=1
// +kubebuilder:printcolumn:name="Last Ref",type=string,JSONPath=`.status.lastSyncRef`,priority=1,description="Ref that a gateway was synced to last"
// +kubebuilder:printcolumn:name="Last Commit",type=string,JSONPath=`.status.lastSyncCommitShort`,priority=1,description="Commit that a gateway was synced to last"
// +kubebuilder:printcolumn:name="Repo",type=string,JSONPath=`.spec.git.repo`,priority=1
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`,priority=1
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 48",message="metadata.name must have at most 48 characters: objects that Stoker makes carry it in their names"
type GatewaySync struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// What is wanted.
	// +required
	Spec GatewaySyncSpec `json:"spec"`
	// What is. Written by Stoker; only in a cluster.
	// +optional
	Status GatewaySyncStatus `json:"status,omitempty"`
}

// GatewaySyncList is a list of GatewaySyncs.
//
// +kubebuilder:object:root=true
type GatewaySyncList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []GatewaySync `json:"items"`
}

// GatewaySyncSpec says from which repository, at which ref, with which mappings the gateways are kept.
//
// +kubebuilder:validation:XValidation:rule="!has(self.autoRollback) || !has(self.autoRollback.enabled) || !self.autoRollback.enabled || has(self.autoRollback.scope) && self.autoRollback.scope == 'rollout' || has(self.snapshots) && has(self.snapshots.enabled) && self.snapshots.enabled",message="needs snapshots: set spec.snapshots.enabled to true",fieldPath=".autoRollback.enabled"
// +kubebuilder:validation:XValidation:rule="!has(self.autoRollback) || !has(self.autoRollback.enabled) || !self.autoRollback.enabled || !has(self.autoRollback.scope) || self.autoRollback.scope != 'rollout' || has(self.validation) && has(self.validation.dryRunBefore) && self.validation.dryRunBefore || has(self.deployment) && (has(self.deployment.syncOrder) && size(self.deployment.syncOrder) > 0 || has(self.deployment.stages) && size(self.deployment.stages) > 0 && (!has(self.deployment.strategy) || self.deployment.strategy != 'all-at-once'))",message="needs a rollout: set spec.deployment.stages, spec.deployment.syncOrder or spec.validation.dryRunBefore",fieldPath=".autoRollback.scope"
type GatewaySyncSpec struct {
	// The repository, the ref, and the credentials.
	// +required
	Git GitSpec `json:"git"`
	// How often the lead polls git.
	// +optional
	// +kubebuilder:default={}
	Polling PollingSpec `json:"polling,omitempty"`
	// Requests over HTTP: webhooks of git hosts, Argo CD, Kargo. Only in a cluster.
	// +optional
	// +kubebuilder:default={}
	Webhook WebhookSpec `json:"webhook,omitempty"`
	// How the agent reaches the gateway beside it.
	// +optional
	// +kubebuilder:default={}
	Gateway GatewaySpec `json:"gateway,omitempty"`
	// What is synced, and with which policies.
	// +optional
	// +kubebuilder:default={}
	Sync SyncSpec `json:"sync,omitempty"`
	// Changes that users save on a gateway become pull requests.
	// +optional
	Bidirectional *BidirectionalSpec `json:"bidirectional,omitempty"`
	// What a sync replaces or deletes on a gateway is kept.
	// +optional
	Snapshots *SnapshotsSpec `json:"snapshots,omitempty"`
	// In which order and when gateways may be changed.
	// +optional
	Deployment *DeploymentSpec `json:"deployment,omitempty"`
	// What is checked before gateways change.
	// +optional
	Validation *ValidationSpec `json:"validation,omitempty"`
	// Whom stoker notify tells about the gateways. Only in a cluster.
	// +optional
	Alerting *AlertingSpec `json:"alerting,omitempty"`
	// Brings a gateway back to a snapshot.
	// +optional
	Rollback *RollbackSpec `json:"rollback,omitempty"`
	// A gateway goes back by itself after a sync that it cannot load.
	// +optional
	AutoRollback *AutoRollbackSpec `json:"autoRollback,omitempty"`
	// If true, nothing is synced. Pods still get their agent and start with the files on disk; drift is still reported. The
	// annotation stoker.io/paused does the same without a change of the spec.
	// +optional
	Paused bool `json:"paused,omitempty"`
	// How long a sync may take before the GatewaySync counts as stalled (ProgressDeadlineExceeded). The agents continue. A
	// duration such as 90s or 10m, from 1s to 24h.
	// +optional
	// +kubebuilder:default="10m"
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule=`self.matches(r'^([0-9]{1,8}ms|[0-9]{1,5}(\.[0-9]{1,6})?[smh])+$') && duration(self) >= duration('1s') && duration(self) <= duration('24h')`,message="must be a duration from 1s to 24h: numbers with units, such as 30s, 5m or 1h30m"
	ProgressDeadline string `json:"progressDeadline,omitempty"`
	// The agent in gateway pods. Only in a cluster.
	// +optional
	Agent AgentSpec `json:"agent,omitempty"`
}

// PollingSpec says how often the lead polls git.
type PollingSpec struct {
	// If false, the lead polls git only on request and when it starts.
	// +optional
	// +kubebuilder:default=true
	Enabled *bool `json:"enabled,omitempty"`
	// How often the lead polls git for a branch or a tag, for all gateways together, with jitter. A commit
	// id is never polled. A duration such as 60s or 5m, from 1s to 24h.
	// +optional
	// +kubebuilder:default="60s"
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule=`self.matches(r'^([0-9]{1,8}ms|[0-9]{1,5}(\.[0-9]{1,6})?[smh])+$') && duration(self) >= duration('1s') && duration(self) <= duration('24h')`,message="must be a duration from 1s to 24h: numbers with units, such as 30s, 5m or 1h30m"
	Interval string `json:"interval,omitempty"`
}

// WebhookSpec says who may make requests over HTTP. Only in a cluster.
type WebhookSpec struct {
	// If false, the receiver rejects every call for this GatewaySync.
	// +optional
	// +kubebuilder:default=true
	Enabled *bool `json:"enabled,omitempty"`
	// The secret that senders sign with or present. With it a sender may ask for a ref; without it, only hints that are
	// signed with the receiver's own secret are accepted.
	// +optional
	SecretRef *SecretKeyRef `json:"secretRef,omitempty"`
	// Patterns of tag names that are followed: a pushed tag or a published release that matches becomes the requested ref.
	// None by default.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=255
	FollowTags []string `json:"followTags,omitempty"`
	// If true, a followed tag may be a lower version than the current one.
	// +optional
	AllowDowngrade bool `json:"allowDowngrade,omitempty"`
}

// AgentSpec is about the agent's container. Only in a cluster.
type AgentSpec struct {
	// The agent's image. What is left out comes from the injector's own default. A repository other than that one counts only if
	// the injector admits it (--allow-agent-image).
	// +optional
	Image AgentImage `json:"image,omitempty"`
	// Resource requests and limits of the agent's container. The injector's default counts where this is left out.
	// +optional
	Resources *corev1.ResourceRequirements `json:"resources,omitempty"`
}

// AgentImage names an image.
type AgentImage struct {
	// Registry and repository, without tag or digest.
	// +optional
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:XValidation:rule=`self.matches(r'^([A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:[0-9]{1,5})?/)?[a-z0-9]+((\.|__?|-+)[a-z0-9]+)*(/[a-z0-9]+((\.|__?|-+)[a-z0-9]+)*)*$')`,message="use registry and repository, such as registry.example.com/stoker/agent: a tag goes into tag, a digest into digest"
	Repository string `json:"repository,omitempty"`
	// Tag. Unused where a digest is given.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9_][A-Za-z0-9._-]*$`
	Tag string `json:"tag,omitempty"`
	// Digest, such as sha256:… with 64 hex digits. It wins over the tag.
	// +optional
	// +kubebuilder:validation:MaxLength=71
	// +kubebuilder:validation:Pattern=`^sha256:[a-f0-9]{64}$`
	Digest string `json:"digest,omitempty"`
	// When the image is pulled. Kubernetes' own rule counts where this is left out.
	// +optional
	// +kubebuilder:validation:Enum=Always;IfNotPresent;Never
	PullPolicy corev1.PullPolicy `json:"pullPolicy,omitempty"`
}

// SecretKeyRef names one key of a Secret in the GatewaySync's own namespace. The standalone agent reads it from a file.
type SecretKeyRef struct {
	// Name of the Secret.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$`
	Name string `json:"name"`
	// Key within the Secret.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[-._a-zA-Z0-9]+$`
	Key string `json:"key"`
}

// SecretSource wraps a SecretKeyRef.
type SecretSource struct {
	// The key of a Secret.
	// +required
	SecretRef SecretKeyRef `json:"secretRef"`
}

// UnmarshalJSON reads a status. Agents write it with the rights of gateways, so that it must not keep anybody from reading the
// spec beside it: one that cannot be read, or not be written back, counts as empty and is kept in Unread. Its next writer
// replaces all of it.
func (s *GatewaySyncStatus) UnmarshalJSON(data []byte) error {
	type plain GatewaySyncStatus
	var is plain
	if err := kjson.UnmarshalCaseSensitivePreserveInts(data, &is); err != nil || (*GatewaySyncStatus)(&is).lacksTime() {
		is = plain{Unread: bytes.Clone(data)}
	}
	*s = GatewaySyncStatus(is)
	return nil
}

// lacksTime reports whether a required time is zero: it would be written as null, which the API server refuses.
func (s *GatewaySyncStatus) lacksTime() bool {
	return s.LastGood != nil && s.LastGood.At.IsZero() ||
		slices.ContainsFunc(s.History, func(r CommitRecord) bool { return r.At.IsZero() }) ||
		slices.ContainsFunc(s.Conditions, func(c metav1.Condition) bool { return c.LastTransitionTime.IsZero() })
}
