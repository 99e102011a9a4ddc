package validation

import (
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/internal/fielderr"
)

const (
	maxKeyPrefix = 256
	maxEndpoint  = 255
)

var (
	storageBucket   = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$`)
	storagePrefix   = regexp.MustCompile(`^([A-Za-z0-9_=-][A-Za-z0-9_.=-]*/)*$`)
	storageEndpoint = regexp.MustCompile(`^(https?://)?([A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?$`)
	googleBucket    = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]$`)
	googleEndpoint  = regexp.MustCompile(`^(https://)?([a-z0-9-]+\.)+googleapis\.com(:443)?$`)
	azureAccount    = regexp.MustCompile(`^[a-z0-9]{3,24}$`)
	azureContainer  = regexp.MustCompile(`^[a-z0-9](-?[a-z0-9])*$`)
	azureEndpoint   = regexp.MustCompile(`^(https://)?[a-z0-9]{3,24}\.(z[0-9]{1,4}\.)?blob\.(core\.windows\.net|core\.usgovcloudapi\.net|core\.chinacloudapi\.cn|storage\.azure\.net)(:443)?$`)
	storageRegion   = regexp.MustCompile(`^[a-z0-9-]{1,63}$`)
)

// identityHosts are the endpoints that may get the identity of the pod if the spec names no secret.
var identityHosts = map[v1alpha1.StorageType]struct {
	pattern *regexp.Regexp
	name    string
}{
	v1alpha1.StorageS3:    {pattern: storageEndpoint},
	v1alpha1.StorageGCS:   {googleEndpoint, "a host below googleapis.com"},
	v1alpha1.StorageAzure: {azureEndpoint, "a host of Azure, such as account.blob.core.windows.net"},
}

func validateStorage(path *field.Path, s *v1alpha1.SnapshotStorage) field.ErrorList {
	if s == nil {
		return nil
	}
	types := []v1alpha1.StorageType{v1alpha1.StoragePVC, v1alpha1.StorageS3, v1alpha1.StorageGCS, v1alpha1.StorageAzure}
	errs := fielderr.OneOf(path.Child("type"), s.Type, types...)
	stores := s.Stores()
	for _, typ := range types[1:] {
		if (s.Type == typ) != slices.ContainsFunc(stores, func(o v1alpha1.ObjectStore) bool { return o.Type == typ }) {
			errs = append(errs, fielderr.Invalid(path.Child(string(typ)), "", "goes with type "+string(typ)+", and only with it"))
		}
	}
	for _, o := range stores {
		errs = append(errs, validateStore(path.Child(string(o.Type)), o)...)
	}
	invalid := func(store v1alpha1.StorageType, name, value, advice string) {
		errs = append(errs, fielderr.Invalid(path.Child(string(store), name), value, advice))
	}
	if b := s.S3; b != nil && !storageBucket.MatchString(b.Bucket) {
		invalid(v1alpha1.StorageS3, "bucket", b.Bucket, "must be the name of a bucket: 3 to 63 lower-case letters, digits, dots and hyphens")
	}
	if b := s.S3; b != nil && b.Region != "" && !storageRegion.MatchString(b.Region) {
		invalid(v1alpha1.StorageS3, "region", b.Region, "must be a region, such as eu-central-1")
	}
	if b := s.GCS; b != nil && !googleBucket.MatchString(b.Bucket) {
		invalid(v1alpha1.StorageGCS, "bucket", b.Bucket, "must be the name of a bucket: lower-case letters, digits, dots, hyphens and underscores")
	}
	if b := s.Azure; b != nil && !azureAccount.MatchString(b.Account) {
		invalid(v1alpha1.StorageAzure, "account", b.Account, "must be the name of a storage account: 3 to 24 lower-case letters and digits")
	}
	if b := s.Azure; b != nil && (len(b.Container) < 3 || len(b.Container) > 63 || !azureContainer.MatchString(b.Container)) {
		invalid(v1alpha1.StorageAzure, "container", b.Container, "must be the name of a container: 3 to 63 lower-case letters, digits and single hyphens")
	}
	return errs
}

// validateStore checks the fields that all kinds of object storage have.
func validateStore(path *field.Path, o v1alpha1.ObjectStore) field.ErrorList {
	var errs field.ErrorList
	if len(o.KeyPrefix) > maxKeyPrefix || !storagePrefix.MatchString(o.KeyPrefix) {
		errs = append(errs, fielderr.Invalid(path.Child("keyPrefix"), o.KeyPrefix, "must be folders with a slash at the end, such as stoker/"))
	}
	at := path.Child("endpoint")
	switch {
	case o.Endpoint == "":
	case len(o.Endpoint) > maxEndpoint || !storageEndpoint.MatchString(o.Endpoint):
		errs = append(errs, fielderr.Invalid(at, o.Endpoint, "must be a host with an optional port, such as minio.example.com:9000"))
	case o.SecretRef == nil && !identityHosts[o.Type].pattern.MatchString(o.Endpoint):
		errs = append(errs, fielderr.Invalid(at, o.Endpoint, "without secretRef, it must be "+identityHosts[o.Type].name+": other servers do not get the identity of the pod"))
	}
	return append(errs, validateSecret(path.Child("secretRef"), o.SecretRef)...)
}

// storageWarnings warns of storage that is reached without TLS.
func storageWarnings(s *v1alpha1.SnapshotsSpec) []string {
	storage := s.ObjectStorage()
	if storage == nil {
		return nil
	}
	var warnings []string
	for _, store := range storage.Stores() {
		if strings.HasPrefix(store.Endpoint, "http://") {
			warnings = append(warnings, "spec.snapshots.storage."+string(store.Type)+".endpoint: http:// is not encrypted; "+
				"others can read and change snapshots on the network. Use it only within the cluster")
		}
	}
	return warnings
}
