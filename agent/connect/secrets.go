package connect

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/file"
	"stoker.io/stoker/internal/secret"
)

// Secrets reads the secrets that a GatewaySync names.
type Secrets interface {
	// Read returns the value of ref, the secret named at field, without trailing white space. It reads the value again
	// on each call, so that a rotated secret takes effect immediately. The error says what to do.
	Read(field v1alpha1.SecretField, ref v1alpha1.SecretKeyRef) (secret.String, error)
	// Reachable returns why the value of ref can never be read, whatever is created in the cluster or beside the agent.
	// It returns nil if it can, or could later.
	Reachable(field v1alpha1.SecretField, ref v1alpha1.SecretKeyRef) error
}

// Beside reads secrets from files beside a standalone agent.
type Beside struct {
	// Files maps NAME/KEY to a file.
	Files map[string]string
	// Dir has the file NAME/KEY of each secret that is not in Files.
	Dir string
}

// Read implements Secrets.
func (b Beside) Read(_ v1alpha1.SecretField, ref v1alpha1.SecretKeyRef) (secret.String, error) {
	id := ref.Name + "/" + ref.Key
	name, err := b.file(ref)
	if err != nil {
		return secret.String{}, err
	}
	v, err := read(name)
	if _, given := b.Files[id]; given && err != nil {
		return v, fmt.Errorf("secret %s: what --secret %s names cannot be read: %w; give the path of a file there, not the value", id, id, err)
	} else if err != nil {
		return v, fmt.Errorf("secret %s: %s: %w; give --secret %s=FILE", id, name, err, id)
	}
	return v, nil
}

// file returns the file of ref.
func (b Beside) file(ref v1alpha1.SecretKeyRef) (string, error) {
	if name, ok := b.Files[ref.Name+"/"+ref.Key]; ok {
		return name, nil
	}
	return filepath.Join(b.Dir, ref.Name, ref.Key), local(ref)
}

// Changing returns the files to watch for changes of the secrets that spec names, except those whose directory does not
// exist.
func (b Beside) Changing(spec *v1alpha1.GatewaySyncSpec) []string {
	var files []string
	for _, named := range allSecrets(spec) {
		for _, ref := range named {
			if name, err := b.file(ref); err == nil {
				files = append(files, name)
			}
		}
	}
	return watchable(files)
}

// Reachable implements Secrets. It returns nil, because a file can always be created.
func (b Beside) Reachable(v1alpha1.SecretField, v1alpha1.SecretKeyRef) error { return nil }

// Mounted reads the secrets that a pod mounts. The mounts are fixed when the pod is created.
type Mounted struct {
	// Dir has a directory for each mounted Secret, with a file for each key. If empty, Files is used.
	Dir string
	// Keys are the mounted keys, as NAME/KEY. If nil, every key of the Secrets in Dir may appear.
	Keys map[string]bool
	// Files are the secret files of a pod that the injector did not write.
	Files map[v1alpha1.SecretField]string
}

// Read implements Secrets.
func (m Mounted) Read(field v1alpha1.SecretField, ref v1alpha1.SecretKeyRef) (secret.String, error) {
	if err := m.Reachable(field, ref); err != nil {
		return secret.String{}, err
	}
	name, ok := m.Files[field]
	if m.Dir != "" {
		if err := local(ref); err != nil {
			return secret.String{}, err
		}
		name, ok = filepath.Join(m.Dir, ref.Name, ref.Key), true
	}
	if !ok {
		return secret.String{}, fmt.Errorf("%s: no file is known for it", field)
	}
	v, err := read(name)
	if os.IsNotExist(err) {
		return v, fmt.Errorf("%s: the pod has no key %s of Secret %s: %s", field, ref.Key, ref.Name, m.missing())
	}
	if err != nil {
		return v, fmt.Errorf("%s: Secret %s, key %s: %w", field, ref.Name, ref.Key, err)
	}
	return v, nil
}

// Changing returns the files to watch for changes of the Secrets. A mounted volume changes by its ..data link.
func (m Mounted) Changing() []string {
	if m.Dir == "" {
		return slices.DeleteFunc(watchable(slices.Sorted(maps.Values(m.Files))), func(name string) bool { return !filepath.IsAbs(name) })
	}
	entries, err := os.ReadDir(m.Dir)
	if err != nil {
		return nil // the pod mounts none
	}
	var changing []string
	for _, e := range entries {
		if e.IsDir() {
			changing = append(changing, filepath.Join(m.Dir, e.Name(), "..data"))
		}
	}
	return changing
}

// watchable removes the files whose directory cannot be watched. The watcher logs names, and a name that is not a path
// may be the secret itself.
func watchable(files []string) []string {
	return slices.DeleteFunc(files, func(name string) bool {
		fi, err := os.Stat(filepath.Dir(name))
		return err != nil || !fi.IsDir()
	})
}

// missing says what to do about a missing key.
func (m Mounted) missing() string {
	switch {
	case m.Dir == "":
		return "create it; the pod's variable takes the path of its file, not the value"
	case m.Keys != nil:
		return "create it"
	}
	return "create it; where the Secret has it, restart the pod, which was started before that key was named"
}

// Reachable implements Secrets. A Secret or key that the pod does not mount needs a new pod.
func (m Mounted) Reachable(field v1alpha1.SecretField, ref v1alpha1.SecretKeyRef) error {
	if m.Dir == "" {
		if m.Files[field] == "" {
			return failure.New(v1alpha1.ReasonPodRestartNeeded, "%s names a secret that this pod has no file for: add it to the pod (by a variable of its own, or below SECRETS_DIR), and restart it", field)
		}
		return nil
	}
	if err := local(ref); err != nil {
		return err
	}
	if fi, err := os.Stat(filepath.Join(m.Dir, ref.Name)); err != nil || !fi.IsDir() {
		return failure.New(v1alpha1.ReasonPodRestartNeeded, "%s names Secret %s, which this pod does not mount because it was started before: restart the pod", field, ref.Name)
	}
	if m.Keys != nil && !m.Keys[ref.Name+"/"+ref.Key] {
		return failure.New(v1alpha1.ReasonPodRestartNeeded, "%s names key %s of Secret %s, which this pod does not mount because it was started before: restart the pod", field, ref.Key, ref.Name)
	}
	return nil
}

// local rejects names that are not file names. The API rejects them too, but this is the check that protects the files.
func local(ref v1alpha1.SecretKeyRef) error {
	for _, s := range []string{ref.Name, ref.Key} {
		if s == "" || s == "." || s == ".." || strings.ContainsAny(s, "/\\\x00") {
			return failure.New(v1alpha1.ReasonProfilesInvalid, "%.80q/%.80q is no name and key of a secret", ref.Name, ref.Key)
		}
	}
	return nil
}

// maxSecret bounds the file of a secret; Kubernetes has the same bound for a Secret.
const maxSecret = 1 << 20

// read returns the content of a file. Its error for an unreadable file omits the name, which may be the secret itself
// if a user passed the value instead of a path.
func read(name string) (secret.String, error) {
	b, err := file.Read(name, maxSecret)
	if unread, ok := errors.AsType[*os.PathError](err); ok {
		return secret.String{}, unread.Err
	}
	if err != nil {
		return secret.String{}, err
	}
	v := strings.TrimRight(string(b), " \t\r\n")
	if v == "" {
		return secret.String{}, fmt.Errorf("%s is empty", name)
	}
	return secret.New(v), nil
}
