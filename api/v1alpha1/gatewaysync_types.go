package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// GatewaySync keeps Ignition gateways in step with git: each gateway that names it runs the commit of its desired ref.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=gatewaysyncs,singular=gatewaysync,shortName=gs;gsync,scope=Namespaced
// +kubebuilder:printcolumn:name="Ref",type=string,JSONPath=`.status.target.refShort`,description="Desired ref"
// +kubebuilder:printcolumn:name="Commit",type=string,JSONPath=`.status.target.commitShort`,description="Commit that the ref was resolved to"
// +kubebuilder:printcolumn:name="Gateways",type=string,JSONPath=`.status.gatewaysReady`,description="Number of synced gateways, of all"
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Confirmed",type=date,JSONPath=`.status.confirmedAt`,description="How long ago the lead confirmed the status; do not trust it after five minutes"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Status",type=string,JSONPath=`.status.summary`,description="What keeps gateways from the desired commit"
// +kubebuilder:printcolumn:name="Last Sync",type=date,JSONPath=`.status.lastSyncTime`,priority=1
// +kubebuilder:printcolumn:name="Repo",type=string,JSONPath=`.spec.git.repo`,priority=1
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`,priority=1
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 48",message="metadata.name must have at most 48 characters: names of other objects contain it"
type GatewaySync struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Desired state.
	// +required
	Spec GatewaySyncSpec `json:"spec"`
	// Observed state. Stoker writes it, in a cluster only.
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

// GatewaySyncSpec names the repository, the ref and the mappings of the gateways.
//
// +kubebuilder:validation:XValidation:rule="!has(self.autoRollback) || !has(self.autoRollback.enabled) || !self.autoRollback.enabled || has(self.autoRollback.scope) && self.autoRollback.scope == 'rollout' || has(self.snapshots) && has(self.snapshots.enabled) && self.snapshots.enabled",message="needs snapshots: set spec.snapshots.enabled to true",fieldPath=".autoRollback.enabled"
// +kubebuilder:validation:XValidation:rule="!has(self.autoRollback) || !has(self.autoRollback.enabled) || !self.autoRollback.enabled || !has(self.autoRollback.scope) || self.autoRollback.scope != 'rollout' || has(self.validation) && has(self.validation.dryRunBefore) && self.validation.dryRunBefore || has(self.deployment) && (has(self.deployment.syncOrder) && size(self.deployment.syncOrder) > 0 || has(self.deployment.stages) && size(self.deployment.stages) > 0)",message="needs a rollout: set spec.deployment.stages, spec.deployment.syncOrder or spec.validation.dryRunBefore",fieldPath=".autoRollback.scope"
// +kubebuilder:validation:XValidation:rule="!has(self.bidirectional) || !has(self.git.repo) || !self.git.repo.startsWith('oci://') && !self.git.repo.startsWith('oci+http://') || !(has(self.sync) && has(self.sync.profiles) && size(self.sync.profiles) > 0 ? self.sync.profiles.exists(p, has(self.sync.profiles[p].bidirectional) ? self.sync.profiles[p].bidirectional : has(self.bidirectional.enabled) && self.bidirectional.enabled) : has(self.bidirectional.enabled) && self.bidirectional.enabled)",message="proposals need git: git.repo is a registry",fieldPath=".bidirectional.enabled"
type GatewaySyncSpec struct {
	// Repository, ref and credentials.
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
	// Files to sync, and policies.
	// +optional
	// +kubebuilder:default={}
	Sync SyncSpec `json:"sync,omitempty"`
	// Turns changes that users save on a gateway into pull requests.
	// +optional
	Bidirectional *BidirectionalSpec `json:"bidirectional,omitempty"`
	// Keeps the files that a sync replaces or deletes on a gateway.
	// +optional
	Snapshots *SnapshotsSpec `json:"snapshots,omitempty"`
	// Order and times in which gateways may change.
	// +optional
	Deployment *DeploymentSpec `json:"deployment,omitempty"`
	// Checks before gateways change.
	// +optional
	Validation *ValidationSpec `json:"validation,omitempty"`
	// Recipients of the notifications that stoker notify sends. Only in a cluster.
	// +optional
	Alerting *AlertingSpec `json:"alerting,omitempty"`
	// Restores a snapshot of a gateway.
	// +optional
	Rollback *RollbackSpec `json:"rollback,omitempty"`
	// Rolls a gateway back if it cannot load what was synced.
	// +optional
	AutoRollback *AutoRollbackSpec `json:"autoRollback,omitempty"`
	// If true, nothing is synced. Pods still get their agent and start with the files on disk, and drift is still reported. The
	// annotation stoker.io/paused does the same without a change of the spec.
	// +optional
	Paused bool `json:"paused,omitempty"`
	// How long a sync may take before the GatewaySync is reported as stalled (ProgressDeadlineExceeded). The agents continue. A
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

// PollingSpec says when the lead polls git.
type PollingSpec struct {
	// If false, the lead polls git only on request and when it starts.
	// +optional
	// +kubebuilder:default=true
	Enabled *bool `json:"enabled,omitempty"`
	// How often the lead polls a branch or a tag, once for all gateways, with jitter. A commit id is never polled. A duration such as
	// 60s or 5m, from 1s to 24h.
	// +optional
	// +kubebuilder:default="60s"
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule=`self.matches(r'^([0-9]{1,8}ms|[0-9]{1,5}(\.[0-9]{1,6})?[smh])+$') && duration(self) >= duration('1s') && duration(self) <= duration('24h')`,message="must be a duration from 1s to 24h: numbers with units, such as 30s, 5m or 1h30m"
	Interval string `json:"interval,omitempty"`
}

// WebhookSpec says which callers may make requests over HTTP. Only in a cluster.
type WebhookSpec struct {
	// If false, the receiver rejects every call for this object.
	// +optional
	// +kubebuilder:default=true
	Enabled *bool `json:"enabled,omitempty"`
	// The secret with which callers sign their requests, or which they present. It entitles them to request a ref. If unset, the receiver
	// accepts only requests to poll git that are signed with its own secret.
	// +optional
	SecretRef *SecretKeyRef `json:"secretRef,omitempty"`
	// Glob patterns of tag names. If a sender reports a pushed tag or a published release that matches, it becomes the requested ref.
	// Default: none.
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

// WebhookSpec returns spec.webhook.
func (gs *GatewaySync) WebhookSpec() *WebhookSpec { return &gs.Spec.Webhook }

// Requestable is an object whose ref can be requested with annotations: a GatewaySync or a ConfigSync. Package desiredref computes the
// desired ref of either.
//
// +kubebuilder:object:generate=false
type Requestable interface {
	metav1.Object
	// WebhookSpec returns which callers may make requests over HTTP.
	WebhookSpec() *WebhookSpec
}

// AgentSpec configures the agent's container. Only in a cluster.
type AgentSpec struct {
	// The agent's image. Fields that are unset come from the injector's default. Another repository than the injector's is used only if
	// the injector allows it (--allow-agent-image).
	// +optional
	Image AgentImage `json:"image,omitempty"`
	// Resource requests and limits of the agent's container. Default: those of the injector.
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
	// Tag. Ignored if digest is set.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9_][A-Za-z0-9._-]*$`
	Tag string `json:"tag,omitempty"`
	// Digest, such as sha256:… with 64 hex digits.
	// +optional
	// +kubebuilder:validation:MaxLength=71
	// +kubebuilder:validation:Pattern=`^sha256:[a-f0-9]{64}$`
	Digest string `json:"digest,omitempty"`
	// When the image is pulled. Default: as in Kubernetes.
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

// SecretSource names where a value comes from.
type SecretSource struct {
	// The key of a Secret.
	// +required
	SecretRef SecretKeyRef `json:"secretRef"`
}
