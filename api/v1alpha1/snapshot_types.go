package v1alpha1

import (
	"cmp"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// SnapshotsSpec says whether the agent keeps the files that a sync replaces or deletes.
type SnapshotsSpec struct {
	// If true, every sync that changes files keeps the replaced and deleted files on the data volume, so that the gateway can be rolled back
	// without git. If it is changed to false, the next such sync that is not a restore removes all snapshots.
	// +optional
	Enabled bool `json:"enabled,omitempty"`
	// How many snapshots a gateway keeps.
	// +optional
	// +kubebuilder:default=5
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	RetentionCount int32 `json:"retentionCount,omitempty"`
	// Maximum size of all snapshots and backups of a gateway, a quantity such as 1Gi. The agent removes the oldest ones, but keeps the newest
	// of each. A sync that alone replaces or deletes more, or whose backup is larger, fails with LimitExceeded before it changes anything.
	// +optional
	// +kubebuilder:default="1Gi"
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:Pattern=`^[1-9][0-9]{0,8}(Ki|Mi|Gi)?$`
	MaxSize string `json:"maxSize,omitempty"`
	// beforeSync makes the gateway save a backup of itself (.gwbk) before each sync that changes files. Backups are kept on the data volume
	// and copied to object storage, as snapshots are. If the backup fails, the sync changes nothing (SnapshotFailed). There is no backup if
	// the gateway does not run, on the standby node of a pair, and before a restore. Agents do not restore backups. It needs an API key
	// and Ignition 8.3.
	// +optional
	// +kubebuilder:default=never
	GatewayBackup GatewayBackup `json:"gatewayBackup,omitempty"`
	// Second place for the snapshots, so that a gateway can be restored after its data volume is lost.
	// +optional
	Storage *SnapshotStorage `json:"storage,omitempty"`
}

// GatewayBackup says when the whole gateway is backed up.
//
// +kubebuilder:validation:Enum=never;beforeSync
type GatewayBackup string

// When the whole gateway is backed up.
const (
	GatewayBackupNever      GatewayBackup = "never"
	GatewayBackupBeforeSync GatewayBackup = "beforeSync"
)

// SnapshotStorage is object storage for copies of the snapshots. The agent uploads them after each sync; no sync waits for it.
//
// +kubebuilder:validation:XValidation:rule="has(self.bucket) == (has(self.type) && self.type != 'pvc')",message="goes with the types s3, gcs and azure, which need it",fieldPath=".bucket"
// +kubebuilder:validation:XValidation:rule="has(self.account) == (has(self.type) && self.type == 'azure')",message="goes with type azure, which needs it",fieldPath=".account"
// +kubebuilder:validation:XValidation:rule="has(self.bucket) || !has(self.keyPrefix) && !has(self.endpoint) && !has(self.secretRef)",message="keyPrefix, endpoint and secretRef go with a bucket"
// +kubebuilder:validation:XValidation:rule="has(self.type) && self.type == 's3' || !has(self.region) && (!has(self.pathStyle) || !self.pathStyle)",message="region and pathStyle go with type s3"
// +kubebuilder:validation:XValidation:rule="!has(self.bucket) || !has(self.type) || self.type != 's3' || size(self.bucket) <= 63 && !self.bucket.contains('_')",message="must be the name of a bucket: 3 to 63 lower-case letters, digits, dots and hyphens",fieldPath=".bucket"
// +kubebuilder:validation:XValidation:rule="!has(self.bucket) || !has(self.type) || self.type != 'azure' || size(self.bucket) <= 63 && self.bucket.matches('^[a-z0-9](-?[a-z0-9])*$')",message="must be the name of a container: 3 to 63 lower-case letters, digits and single hyphens",fieldPath=".bucket"
// +kubebuilder:validation:XValidation:rule="!has(self.endpoint) || has(self.secretRef) || !has(self.type) || self.type != 'gcs' || self.endpoint.matches('^(https://)?([a-z0-9-]+[.])+googleapis[.]com(:443)?$')",message="without secretRef, it must be a host below googleapis.com: other servers do not get the identity of the pod",fieldPath=".endpoint"
// +kubebuilder:validation:XValidation:rule="!has(self.endpoint) || has(self.secretRef) || !has(self.type) || self.type != 'azure' || self.endpoint.matches('^(https://)?[a-z0-9]{3,24}[.](z[0-9]{1,4}[.])?blob[.](core[.]windows[.]net|core[.]usgovcloudapi[.]net|core[.]chinacloudapi[.]cn|storage[.]azure[.]net)(:443)?$')",message="without secretRef, it must be a host of Azure, such as account.blob.core.windows.net: other servers do not get the identity of the pod",fieldPath=".endpoint"
type SnapshotStorage struct {
	// pvc keeps the snapshots only on the data volume. The other types also keep a complete archive of each in a bucket: s3 of Amazon S3 or a
	// server with the same API, gcs of Google Cloud Storage, azure in a container of Azure Blob Storage.
	// +optional
	// +kubebuilder:default=pvc
	Type StorageType `json:"type,omitempty"`
	// Name of the bucket, or of the container. It must exist.
	// +optional
	// +kubebuilder:validation:MinLength=3
	// +kubebuilder:validation:MaxLength=222
	// +kubebuilder:validation:Pattern=`^[a-z0-9][a-z0-9._-]*[a-z0-9]$`
	Bucket string `json:"bucket,omitempty"`
	// Name of the storage account of type azure.
	// +optional
	// +kubebuilder:validation:MinLength=3
	// +kubebuilder:validation:MaxLength=24
	// +kubebuilder:validation:Pattern=`^[a-z0-9]+$`
	Account string `json:"account,omitempty"`
	// Prefix of all keys, with a trailing slash, such as stoker/. Clusters that share a bucket need different prefixes.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:Pattern=`^([A-Za-z0-9_=-][A-Za-z0-9_.=-]*/)*$`
	KeyPrefix string `json:"keyPrefix,omitempty"`
	// Host of the server, with an optional port. The agent uses TLS, unless the endpoint begins with http://. Default: Amazon S3,
	// storage.googleapis.com, or account.blob.core.windows.net. Without secretRef it must be below googleapis.com for type gcs, and a host of
	// Azure for type azure. If a host for azure does not begin with the account, URLs have the account in the path.
	// +optional
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:Pattern=`^(https?://)?([A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?$`
	Endpoint string `json:"endpoint,omitempty"`
	// Region of the bucket of type s3. Default: as reported by the server.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9-]+$`
	Region string `json:"region,omitempty"`
	// If true, URLs of type s3 have the bucket in the path and not in the host name. For servers other than Amazon S3 they always do.
	// +optional
	PathStyle bool `json:"pathStyle,omitempty"`
	// Credentials. For s3, in the format of the credentials file of the AWS command line: lines with aws_access_key_id,
	// aws_secret_access_key and, optionally, aws_session_token. For gcs, the key of a service account, as the JSON file that Google makes. For
	// azure, an access key of the account, or a shared access signature (SAS) of the container. Default: the identity of the pod (an IAM role
	// for its service account, or that of its node; Workload Identity Federation for GKE, or the service account of its node; Microsoft Entra
	// Workload ID).
	// +optional
	SecretRef *SecretKeyRef `json:"secretRef,omitempty"`
}

// StorageType says where snapshots are kept.
//
// +kubebuilder:validation:Enum=pvc;s3;gcs;azure
type StorageType string

// The types of storage.
const (
	StoragePVC   StorageType = "pvc"
	StorageS3    StorageType = "s3"
	StorageGCS   StorageType = "gcs"
	StorageAzure StorageType = "azure"
)

// RollbackSpec restores a snapshot of a gateway.
type RollbackSpec struct {
	// The ID begins with the name of the gateway, which restores the snapshot once unless stoker.io/restore names another of its snapshots,
	// and keeps it until another commit is the target or stoker.io/retry names the blocked one.
	// +optional
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:Pattern=`^[a-zA-Z0-9][-a-zA-Z0-9._]{0,199}-[0-9]{8}-[0-9]{6}(\.tar\.gz)?$`
	ToSnapshot string `json:"toSnapshot,omitempty"`
}

// GatewaySnapshot is a snapshot of a gateway.
type GatewaySnapshot struct {
	// ID of the snapshot, for spec.rollback.toSnapshot and stoker snapshots --restore.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	ID string `json:"id"`
	// Size of the files in the snapshot, such as 12Ki.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	Size string `json:"size,omitempty"`
	// When the snapshot was taken.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^[1-9][0-9]{3}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$`
	Timestamp *metav1.Time `json:"timestamp,omitempty"`
	// Location of the snapshot, if spec.snapshots.storage names object storage: local (only on the data volume), remote (only in object
	// storage) or both.
	// +optional
	Stored SnapshotStored `json:"stored,omitempty"`
}

// SnapshotStored says where a snapshot is.
//
// +kubebuilder:validation:Enum=local;remote;both
type SnapshotStored string

// The places of a snapshot.
const (
	StoredLocal  SnapshotStored = "local"
	StoredRemote SnapshotStored = "remote"
	StoredBoth   SnapshotStored = "both"
)

// The defaults of spec.snapshots.
const (
	DefaultRetentionCount  = 5
	DefaultMaxSnapshotSize = "1Gi"
)

// TakesSnapshots reports whether the agents keep what a sync replaces or deletes.
func (gs *GatewaySync) TakesSnapshots() bool {
	return gs.Spec.Snapshots != nil && gs.Spec.Snapshots.Enabled
}

// ObjectStorage returns the object storage of the snapshots; nil if they are only on the data volume. s may be nil.
func (s *SnapshotsSpec) ObjectStorage() *SnapshotStorage {
	if s == nil || s.Storage == nil || cmp.Or(s.Storage.Type, StoragePVC) == StoragePVC {
		return nil
	}
	return s.Storage
}

// AutoRollbackSpec says when a gateway is rolled back automatically because it cannot load what was synced.
//
// +kubebuilder:validation:XValidation:rule="!has(self.scope) || self.scope != 'rollout' || !has(self.triggers) || size(self.triggers) == 0",message="apply to scope gateway only: with scope rollout, every failure that aborts the rollout rolls its gateways back",fieldPath=".triggers"
type AutoRollbackSpec struct {
	// If true, a gateway that cannot load a commit returns to what it ran before, but not twice in a row from the same commit. The commit
	// is blocked until another one is the target, or until a user requests it again (stoker retry).
	// +optional
	Enabled bool `json:"enabled,omitempty"`
	// Failures that roll a gateway back. Default: all three. Not with scope rollout, where every failure that aborts the rollout does.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=3
	Triggers []AutoRollbackTrigger `json:"triggers,omitempty"`
	// What is rolled back. gateway: the gateway that cannot load the commit, with its snapshot. rollout: all gateways that an aborted
	// rollout has reached, which needs stages, syncOrder or dryRunBefore. Default: gateway.
	// +optional
	Scope AutoRollbackScope `json:"scope,omitempty"`
}

// AutoRollbackTrigger is a failure that rolls a gateway back: it does not finish its scans, it does not show a project as before, or it
// does not list a config resource.
//
// +kubebuilder:validation:Enum=scanFailure;projectLoadError;configError
type AutoRollbackTrigger string

// The triggers.
const (
	TriggerScanFailure      AutoRollbackTrigger = "scanFailure"
	TriggerProjectLoadError AutoRollbackTrigger = "projectLoadError"
	TriggerConfigError      AutoRollbackTrigger = "configError"
)

// AutoRollbackScope says what is rolled back.
//
// +kubebuilder:validation:Enum=gateway;rollout
type AutoRollbackScope string

// The scopes.
const (
	// AutoRollbackGateway means that each agent decides for its own gateway.
	AutoRollbackGateway AutoRollbackScope = "gateway"
	// AutoRollbackRollout means that the lead decides for all gateways that the rollout has reached.
	AutoRollbackRollout AutoRollbackScope = "rollout"
)

// AutoRollbackTriggers returns all triggers.
func AutoRollbackTriggers() []AutoRollbackTrigger {
	return []AutoRollbackTrigger{TriggerScanFailure, TriggerProjectLoadError, TriggerConfigError}
}

// AutoRollbackScope returns what is rolled back if a gateway cannot load a commit; "" if nothing is.
func (gs *GatewaySync) AutoRollbackScope() AutoRollbackScope {
	if a := gs.Spec.AutoRollback; a != nil && a.Enabled {
		return cmp.Or(a.Scope, AutoRollbackGateway)
	}
	return ""
}
