package preflight

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"sync"

	"stoker.io/stoker/agent/peers"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/secret"
)

// Mounts finds secrets in what a Job mounts: it needs no right to read Secrets.
type Mounts struct {
	// Files maps NAME/KEY to a file.
	Files map[string]string
	// Dir holds a directory for each Secret, with a file for each key.
	Dir string
}

var _ peers.Secrets = Mounts{}

// Read implements peers.Secrets.
func (m Mounts) Read(field peers.Field, ref v1alpha1.SecretKeyRef) (secret.String, error) {
	v, err := peers.Beside(m).Read(field, ref)
	switch {
	case err == nil:
		return v, nil
	case errors.Is(err, fs.ErrNotExist):
		return v, failure.New(v1alpha1.ReasonAuthFailed, "%s names key %s of Secret %s, which is not mounted: mount that Secret at %s, or give --secret %s/%s=FILE",
			field, ref.Key, ref.Name, filepath.Join(m.Dir, ref.Name), ref.Name, ref.Key)
	}
	return v, fmt.Errorf("%s: %w", field, err)
}

// Reachable implements peers.Secrets: what is not there now is not there for this run.
func (m Mounts) Reachable(field peers.Field, ref v1alpha1.SecretKeyRef) error {
	_, err := m.Read(field, ref)
	return err
}

// readOnce reads each secret once: a file that a shell makes of a command's output, <(command), is a pipe and empty the second
// time.
type readOnce struct {
	peers.Secrets
	mu    sync.Mutex
	known map[v1alpha1.SecretKeyRef]secret.String
}

func (r *readOnce) Read(field peers.Field, ref v1alpha1.SecretKeyRef) (secret.String, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if v, ok := r.known[ref]; ok {
		return v, nil
	}
	v, err := r.Secrets.Read(field, ref)
	if err == nil {
		if r.known == nil {
			r.known = map[v1alpha1.SecretKeyRef]secret.String{}
		}
		r.known[ref] = v
	}
	return v, err
}

func (r *readOnce) Reachable(field peers.Field, ref v1alpha1.SecretKeyRef) error {
	_, err := r.Read(field, ref)
	return err
}
