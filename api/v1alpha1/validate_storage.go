package v1alpha1

import (
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
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

// ObjectStorage returns the object storage of the snapshots, or nil if they are on the data volume alone.
func (s *SnapshotsSpec) ObjectStorage() *SnapshotStorage {
	if s == nil || s.Storage == nil || or(s.Storage.Type, StoragePVC) == StoragePVC {
		return nil
	}
	return s.Storage
}

// store is what all kinds of object storage have.
type store struct {
	typ                 StorageType // the name of the field
	keyPrefix, endpoint string
	identity            *regexp.Regexp // of the endpoints that get the identity of the pod; nil for all
	owner               string         // what these endpoints are
	secretField         SecretField
	secretRef           *SecretKeyRef
}

// stores returns the kinds of object storage that have a field.
func (s *SnapshotStorage) stores() []store {
	var list []store
	if b := s.S3; b != nil {
		list = append(list, store{StorageS3, b.KeyPrefix, b.Endpoint, nil, "", SecretStorageS3, b.SecretRef})
	}
	if b := s.GCS; b != nil {
		list = append(list, store{StorageGCS, b.KeyPrefix, b.Endpoint, googleEndpoint, "a host below googleapis.com", SecretStorageGCS, b.SecretRef})
	}
	if b := s.Azure; b != nil {
		list = append(list, store{StorageAzure, b.KeyPrefix, b.Endpoint, azureEndpoint, "a host of Azure, such as account.blob.core.windows.net", SecretStorageAzure, b.SecretRef})
	}
	return list
}

// KeyPrefix returns the prefix of all keys.
func (s *SnapshotStorage) KeyPrefix() string {
	for _, b := range s.stores() {
		if b.typ == s.Type {
			return b.keyPrefix
		}
	}
	return ""
}

func validateStorage(path *field.Path, s *SnapshotStorage) field.ErrorList {
	if s == nil {
		return nil
	}
	var errs field.ErrorList
	types := []StorageType{StoragePVC, StorageS3, StorageGCS, StorageAzure}
	if s.Type != "" && !slices.Contains(types, s.Type) {
		errs = append(errs, field.NotSupported(path.Child("type"), s.Type, types))
	}
	given := s.stores()
	for _, typ := range types[1:] {
		if (s.Type == typ) != slices.ContainsFunc(given, func(b store) bool { return b.typ == typ }) {
			errs = append(errs, invalid(path.Child(string(typ)), "", "goes with type "+string(typ)+", and only with it"))
		}
	}
	for _, b := range given {
		errs = append(errs, validateStore(path.Child(string(b.typ)), b)...)
	}
	if b := s.S3; b != nil {
		at := path.Child("s3")
		if !storageBucket.MatchString(b.Bucket) {
			errs = append(errs, invalid(at.Child("bucket"), b.Bucket, "must be the name of a bucket: 3 to 63 lower-case letters, digits, dots and hyphens"))
		}
		if b.Region != "" && !storageRegion.MatchString(b.Region) {
			errs = append(errs, invalid(at.Child("region"), b.Region, "must be a region, such as eu-central-1"))
		}
	}
	if b := s.GCS; b != nil && !googleBucket.MatchString(b.Bucket) {
		errs = append(errs, invalid(path.Child("gcs", "bucket"), b.Bucket, "must be the name of a bucket: lower-case letters, digits, dots, hyphens and underscores"))
	}
	if b := s.Azure; b != nil {
		at := path.Child("azure")
		if !azureAccount.MatchString(b.Account) {
			errs = append(errs, invalid(at.Child("account"), b.Account, "must be the name of a storage account: 3 to 24 lower-case letters and digits"))
		}
		if len(b.Container) < 3 || len(b.Container) > 63 || !azureContainer.MatchString(b.Container) {
			errs = append(errs, invalid(at.Child("container"), b.Container, "must be the name of a container: 3 to 63 lower-case letters, digits and single hyphens"))
		}
	}
	return errs
}

// validateStore validates what all kinds of object storage have.
func validateStore(path *field.Path, b store) field.ErrorList {
	var errs field.ErrorList
	if len(b.keyPrefix) > maxKeyPrefix || !storagePrefix.MatchString(b.keyPrefix) {
		errs = append(errs, invalid(path.Child("keyPrefix"), b.keyPrefix, "must be folders with a slash at the end, such as stoker/"))
	}
	at := path.Child("endpoint")
	switch {
	case b.endpoint == "":
	case len(b.endpoint) > maxEndpoint || !storageEndpoint.MatchString(b.endpoint):
		errs = append(errs, invalid(at, b.endpoint, "must be a host with an optional port, such as minio.example.com:9000"))
	case b.secretRef == nil && b.identity != nil && !b.identity.MatchString(b.endpoint):
		errs = append(errs, invalid(at, b.endpoint, "without secretRef, it must be "+b.owner+": other servers do not get the identity of the pod"))
	}
	return append(errs, validateSecret(path.Child("secretRef"), b.secretRef)...)
}

// storageWarnings warns of storage that is reached without TLS.
func storageWarnings(s *SnapshotsSpec) []string {
	o := s.ObjectStorage()
	if o == nil {
		return nil
	}
	var warnings []string
	for _, b := range o.stores() {
		if strings.HasPrefix(b.endpoint, "http://") {
			warnings = append(warnings, "spec.snapshots.storage."+string(b.typ)+".endpoint: http:// is not encrypted; "+
				"snapshots can be read and changed on their way. Use it only within the cluster")
		}
	}
	return warnings
}
