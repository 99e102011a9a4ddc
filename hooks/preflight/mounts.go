package preflight

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"sync"

	"stoker.io/stoker/agent/connect"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/secretrefs"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/secret"
)

// Mounts reads secrets from files. A Job mounts them, so that it needs no right to read Secrets.
type Mounts struct {
	// Files maps NAME/KEY to a file.
	Files map[string]string
	// Dir holds a directory for each Secret, with a file for each key.
	Dir string
}

var _ connect.Secrets = Mounts{}

// Read implements connect.Secrets.
func (m Mounts) Read(field secretrefs.Field, ref v1alpha1.SecretKeyRef) (secret.String, error) {
	v, err := connect.LocalSecrets(m).Read(field, ref)
	switch {
	case err == nil:
		return v, nil
	case errors.Is(err, fs.ErrNotExist):
		return v, failure.New(v1alpha1.ReasonAuthFailed, "%s references key %s of %s %s, which is not mounted: mount the %[3]s at %[5]s, or pass --secret %[4]s/%[2]s=FILE",
			field, ref.Key, field.Kind(), ref.Name, filepath.Join(m.Dir, ref.Name))
	}
	return v, fmt.Errorf("%s: %w", field, err)
}

// Reachable implements connect.Secrets. It does not wait, because mounts do not change during a run.
func (m Mounts) Reachable(field secretrefs.Field, ref v1alpha1.SecretKeyRef) error {
	_, err := m.Read(field, ref)
	return err
}

// cachedSecrets reads each secret once: a process substitution of a shell, <(command), is a pipe that is empty the second time.
type cachedSecrets struct {
	connect.Secrets
	mu    sync.Mutex
	cache map[v1alpha1.SecretKeyRef]secret.String
}

func (r *cachedSecrets) Read(field secretrefs.Field, ref v1alpha1.SecretKeyRef) (secret.String, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if v, ok := r.cache[ref]; ok {
		return v, nil
	}
	v, err := r.Secrets.Read(field, ref)
	if err == nil {
		r.cache[ref] = v
	}
	return v, err
}

func (r *cachedSecrets) Reachable(field secretrefs.Field, ref v1alpha1.SecretKeyRef) error {
	_, err := r.Read(field, ref)
	return err
}
