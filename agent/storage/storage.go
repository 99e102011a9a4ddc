// Package storage creates the object storage of a GatewaySync's snapshots. It is apart from connect, because the command stoker, which
// uses connect, needs no object storage.
package storage

import (
	"stoker.io/stoker/agent/archive"
	"stoker.io/stoker/agent/archive/azure"
	"stoker.io/stoker/agent/archive/gcs"
	"stoker.io/stoker/agent/archive/s3"
	"stoker.io/stoker/agent/connect"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/secretrefs"
	"stoker.io/stoker/internal/secret"
)

// New returns the object storage that a spec names, or nil if snapshots are on the data volume alone. It does not connect.
func New(spec *v1alpha1.GatewaySyncSpec, secrets connect.Secrets) (archive.Store, error) {
	o := spec.Snapshots.ObjectStorage()
	if o == nil {
		return nil, nil
	}
	var read func() (secret.String, error)                // nil: the identity of the pod
	for field, ref := range secretrefs.ForStorage(spec) { // at most one
		read = func() (secret.String, error) { return secrets.Read(field, ref) }
	}
	switch o.Type {
	case v1alpha1.StorageGCS:
		return gcs.New(o, read)
	case v1alpha1.StorageAzure:
		return azure.New(o, read)
	}
	return s3.New(o, read)
}
