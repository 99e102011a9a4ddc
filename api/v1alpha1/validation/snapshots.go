package validation

import (
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/internal/fielderr"
	"stoker.io/stoker/api/v1alpha1/syntax"
)

const (
	minBucket    = 3
	maxKeyPrefix = 256
	maxEndpoint  = 255
)

var (
	storagePrefix   = regexp.MustCompile(`^([A-Za-z0-9_=-][A-Za-z0-9_.=-]*/)*$`)
	storageEndpoint = regexp.MustCompile(`^(https?://)?([A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?$`)
	storageRegion   = regexp.MustCompile(`^[a-z0-9-]{1,63}$`)
	googleEndpoint  = regexp.MustCompile(`^(https://)?([a-z0-9-]+\.)+googleapis\.com(:443)?$`)
	azureAccount    = regexp.MustCompile(`^[a-z0-9]{3,24}$`)
	azureEndpoint   = regexp.MustCompile(`^(https://)?[a-z0-9]{3,24}\.(z[0-9]{1,4}\.)?blob\.(core\.windows\.net|core\.usgovcloudapi\.net|core\.chinacloudapi\.cn|storage\.azure\.net)(:443)?$`)
)

// objectStores has the types of object storage: the names that a bucket may have, and the endpoints that may get the identity of the pod if
// the spec names no secret.
var objectStores = map[v1alpha1.StorageType]struct {
	bucket         *regexp.Regexp
	maxBucket      int
	bucketAdvice   string
	endpoint       *regexp.Regexp
	identityAdvice string
}{
	v1alpha1.StorageS3: {
		regexp.MustCompile(`^[a-z0-9][a-z0-9.-]*[a-z0-9]$`), 63, "must be the name of a bucket: 3 to 63 lower-case letters, digits, dots and hyphens",
		storageEndpoint, "",
	},
	v1alpha1.StorageGCS: {
		regexp.MustCompile(`^[a-z0-9][a-z0-9._-]*[a-z0-9]$`), 222, "must be the name of a bucket: 3 to 222 lower-case letters, digits, dots, hyphens and underscores",
		googleEndpoint, "a host below googleapis.com",
	},
	v1alpha1.StorageAzure: {
		regexp.MustCompile(`^[a-z0-9](-?[a-z0-9])*$`), 63, "must be the name of a container: 3 to 63 lower-case letters, digits and single hyphens",
		azureEndpoint, "a host of Azure, such as account.blob.core.windows.net",
	},
}

func validateSnapshots(path *field.Path, gs *v1alpha1.GatewaySync) field.ErrorList {
	var errs field.ErrorList
	if s := gs.Spec.Snapshots; s != nil {
		if s.RetentionCount < 0 || s.RetentionCount > 100 {
			errs = append(errs, field.Invalid(path.Child("snapshots", "retentionCount"), s.RetentionCount, "must be between 1 and 100"))
		}
		if s.MaxSize != "" && syntax.SnapshotSize(s.MaxSize) == 0 {
			errs = append(errs, fielderr.Invalid(path.Child("snapshots", "maxSize"), s.MaxSize, "must be a number of bytes with Ki, Mi or Gi, such as 1Gi"))
		}
		errs = append(errs, fielderr.OneOf(path.Child("snapshots", "gatewayBackup"), s.GatewayBackup, v1alpha1.GatewayBackupNever, v1alpha1.GatewayBackupBeforeSync)...)
		errs = append(errs, validateStorage(path.Child("snapshots", "storage"), s.Storage)...)
	}
	if r := gs.Spec.Rollback; r != nil && r.ToSnapshot != "" && syntax.SnapshotID(r.ToSnapshot) == "" {
		errs = append(errs, fielderr.Invalid(path.Child("rollback", "toSnapshot"), r.ToSnapshot, "must be the ID of a snapshot, such as area-4-20260212-102000; stoker snapshots lists them"))
	}
	return errs
}

func validateStorage(path *field.Path, s *v1alpha1.SnapshotStorage) field.ErrorList {
	if s == nil {
		return nil
	}
	errs := fielderr.OneOf(path.Child("type"), s.Type, v1alpha1.StoragePVC, v1alpha1.StorageS3, v1alpha1.StorageGCS, v1alpha1.StorageAzure)
	invalid := func(name, value, advice string) {
		errs = append(errs, fielderr.Invalid(path.Child(name), value, advice))
	}
	kind, remote := objectStores[s.Type]
	switch {
	case remote != (s.Bucket != ""):
		invalid("bucket", s.Bucket, "goes with the types s3, gcs and azure, which need it")
	case remote && (len(s.Bucket) < minBucket || len(s.Bucket) > kind.maxBucket || !kind.bucket.MatchString(s.Bucket)):
		invalid("bucket", s.Bucket, kind.bucketAdvice)
	}
	switch azure := s.Type == v1alpha1.StorageAzure; {
	case azure != (s.Account != ""):
		invalid("account", s.Account, "goes with type azure, which needs it")
	case azure && !azureAccount.MatchString(s.Account):
		invalid("account", s.Account, "must be the name of a storage account: 3 to 24 lower-case letters and digits")
	}
	if s.Bucket == "" && (s.KeyPrefix != "" || s.Endpoint != "" || s.SecretRef != nil) {
		errs = append(errs, field.Forbidden(path, "keyPrefix, endpoint and secretRef go with a bucket"))
	}
	if s.Type != v1alpha1.StorageS3 && (s.Region != "" || s.PathStyle) {
		errs = append(errs, field.Forbidden(path, "region and pathStyle go with type s3"))
	}
	if s.Region != "" && !storageRegion.MatchString(s.Region) {
		invalid("region", s.Region, "must be a region, such as eu-central-1")
	}
	if len(s.KeyPrefix) > maxKeyPrefix || !storagePrefix.MatchString(s.KeyPrefix) {
		invalid("keyPrefix", s.KeyPrefix, "must be folders with a slash at the end, such as stoker/")
	}
	switch {
	case s.Endpoint == "":
	case len(s.Endpoint) > maxEndpoint || !storageEndpoint.MatchString(s.Endpoint):
		invalid("endpoint", s.Endpoint, "must be a host with an optional port, such as minio.example.com:9000")
	case remote && s.SecretRef == nil && !kind.endpoint.MatchString(s.Endpoint):
		invalid("endpoint", s.Endpoint, "without secretRef, it must be "+kind.identityAdvice+": other servers do not get the identity of the pod")
	}
	return append(errs, validateSecret(path.Child("secretRef"), s.SecretRef)...)
}

// storageWarnings warns of storage that is reached without TLS.
func storageWarnings(s *v1alpha1.SnapshotsSpec) []string {
	if storage := s.ObjectStorage(); storage == nil || !strings.HasPrefix(storage.Endpoint, "http://") {
		return nil
	}
	return []string{"spec.snapshots.storage.endpoint: http:// is not encrypted; others can read and change snapshots on the network. Use it only within the cluster"}
}

func validateAutoRollback(path *field.Path, gs *v1alpha1.GatewaySync) field.ErrorList {
	a := gs.Spec.AutoRollback
	if a == nil {
		return nil
	}
	var errs field.ErrorList
	for i, t := range a.Triggers {
		errs = append(errs, fielderr.OneOf(path.Child("triggers").Index(i), t, v1alpha1.AutoRollbackTriggers()...)...)
		if slices.Contains(a.Triggers[:i], t) {
			errs = append(errs, field.Duplicate(path.Child("triggers").Index(i), t))
		}
	}
	errs = append(errs, fielderr.OneOf(path.Child("scope"), a.Scope, v1alpha1.AutoRollbackGateway, v1alpha1.AutoRollbackRollout)...)
	if gs.AutoRollbackScope() == v1alpha1.AutoRollbackGateway && !gs.TakesSnapshots() {
		errs = append(errs, field.Invalid(path.Child("enabled"), true, "needs snapshots: set spec.snapshots.enabled to true"))
	}
	if a.Scope == v1alpha1.AutoRollbackRollout && len(a.Triggers) > 0 {
		errs = append(errs, field.Forbidden(path.Child("triggers"), "apply to scope gateway only: with scope rollout, every failure that aborts the rollout rolls its gateways back"))
	}
	if gs.AutoRollbackScope() == v1alpha1.AutoRollbackRollout && !gs.InSteps() {
		errs = append(errs, field.Invalid(path.Child("scope"), a.Scope, "needs a rollout: set spec.deployment.stages, spec.deployment.syncOrder or spec.validation.dryRunBefore"))
	}
	return errs
}
