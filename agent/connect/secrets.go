package connect

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"stoker.io/stoker/agent/gitauth"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/secretrefs"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/file"
	"stoker.io/stoker/internal/secret"
)

// Secrets reads the secrets that a GatewaySync names.
type Secrets interface {
	// Read reads a value again on each call, so that a rotated secret takes effect immediately.
	gitauth.Secrets
	// Reachable returns an error if this process can never read the value, even if a user creates the missing secret.
	// It returns nil for a secret that is missing but can still appear.
	Reachable(field secretrefs.Field, ref v1alpha1.SecretKeyRef) error
}

// LocalSecrets reads the secrets of a standalone agent from files on the same machine.
type LocalSecrets struct {
	// Files maps NAME/KEY to a file. The flag --secret sets it.
	Files map[string]string
	// Dir contains the file NAME/KEY for each secret that is not in Files.
	Dir string
}

// Read implements Secrets.
func (l LocalSecrets) Read(_ secretrefs.Field, ref v1alpha1.SecretKeyRef) (secret.String, error) {
	id := ref.Name + "/" + ref.Key
	name, err := l.file(ref)
	if err != nil {
		return secret.String{}, err
	}
	v, err := readSecretFile(name)
	_, given := l.Files[id]
	_, opened := errors.AsType[contentError](err)
	switch {
	case err == nil:
		return v, nil
	case opened:
		return v, fmt.Errorf("secret %s: %s: %w", id, name, err)
	case given:
		return v, fmt.Errorf("secret %s: cannot read the file that --secret %s=FILE names: %w; FILE must be a path, not the value", id, id, err)
	}
	return v, fmt.Errorf("secret %s: %s: %w; create the file, or pass --secret %s=FILE", id, name, err, id)
}

// file returns the path of the file that holds the value of ref.
func (l LocalSecrets) file(ref v1alpha1.SecretKeyRef) (string, error) {
	if name, ok := l.Files[ref.Name+"/"+ref.Key]; ok {
		return name, nil
	}
	return filepath.Join(l.Dir, ref.Name, ref.Key), checkNames(ref)
}

// FilesToWatch returns the files of the secrets that spec names. It omits names that may be secrets instead of paths.
func (l LocalSecrets) FilesToWatch(spec *v1alpha1.GatewaySyncSpec) []string {
	var files []string
	for _, named := range allSecrets(spec) {
		for _, ref := range named {
			if name, err := l.file(ref); err == nil {
				files = append(files, name)
			}
		}
	}
	return watchable(files)
}

// Reachable implements Secrets. It returns nil, because a user can create a missing file at any time.
func (l LocalSecrets) Reachable(secretrefs.Field, v1alpha1.SecretKeyRef) error { return nil }

// Mounted reads the secrets that the pod of the agent mounts. The mounts are fixed when the pod is created.
type Mounted struct {
	// Dir contains a directory for each mounted Secret, with a file for each key.
	Dir string
	// Keys are the keys that the volumes in Dir list, as NAME/KEY. If nil, the volumes contain every key of their Secret.
	Keys map[string]bool
}

// Read implements Secrets.
func (m Mounted) Read(field secretrefs.Field, ref v1alpha1.SecretKeyRef) (secret.String, error) {
	if err := m.Reachable(field, ref); err != nil {
		return secret.String{}, err
	}
	v, err := readSecretFile(filepath.Join(m.Dir, field.Folder(ref.Name), ref.Key)) // Reachable has checked both names
	if os.IsNotExist(err) {
		advice := "create it"
		if m.Keys == nil {
			advice += "; if the Secret already has it, restart the pod to mount it"
		}
		return v, fmt.Errorf("%s: the pod has no key %s of %s %s: %s", field, ref.Key, field.Kind(), ref.Name, advice)
	}
	if err != nil {
		return v, fmt.Errorf("%s: %s %s, key %s: %w", field, field.Kind(), ref.Name, ref.Key, err)
	}
	return v, nil
}

// FilesToWatch returns the files that change when a secret changes. The kubelet replaces the link ..data of a volume.
func (m Mounted) FilesToWatch() []string {
	entries, err := os.ReadDir(m.Dir)
	if err != nil {
		return nil // the pod mounts no Secrets
	}
	var files []string
	for _, e := range entries {
		if e.IsDir() {
			files = append(files, filepath.Join(m.Dir, e.Name(), "..data"))
		}
	}
	return files
}

// watchable removes names that may be secrets instead of paths, because the watcher logs them: those whose directory does not exist, and
// those without a directory that name no file.
func watchable(files []string) []string {
	return slices.DeleteFunc(files, func(name string) bool {
		if filepath.Base(name) == name {
			_, err := os.Stat(name)
			return err != nil
		}
		fi, err := os.Stat(filepath.Dir(name))
		return err != nil || !fi.IsDir()
	})
}

// Reachable implements Secrets. Only a new pod can mount another Secret or key.
func (m Mounted) Reachable(field secretrefs.Field, ref v1alpha1.SecretKeyRef) error {
	if m.Dir == "" {
		return failure.New(v1alpha1.ReasonPodRestartNeeded, "%s names a secret, but the pod has no SECRETS_DIR: mount the secret there, and restart the pod", field)
	}
	if err := checkNames(ref); err != nil {
		return err
	}
	folder := field.Folder(ref.Name)
	if fi, err := os.Stat(filepath.Join(m.Dir, folder)); err != nil || !fi.IsDir() {
		return failure.New(v1alpha1.ReasonPodRestartNeeded, "%s names %s %s, which this pod does not mount because the pod is older than the reference: restart the pod", field, field.Kind(), ref.Name)
	}
	if m.Keys != nil && !m.Keys[folder+"/"+ref.Key] {
		return failure.New(v1alpha1.ReasonPodRestartNeeded, "%s names key %s of %s %s, which this pod does not mount because the pod is older than the reference: restart the pod", field, ref.Key, field.Kind(), ref.Name)
	}
	return nil
}

// checkNames rejects a name or key that is not a plain file name, so that Read stays below Dir. The API validates both too, but
// this check does not depend on it.
func checkNames(ref v1alpha1.SecretKeyRef) error {
	for _, s := range []string{ref.Name, ref.Key} {
		if s == "" || s == "." || s == ".." || strings.ContainsAny(s, "/\\\x00") {
			return failure.New(v1alpha1.ReasonProfilesInvalid, "%.80q/%.80q is not a valid NAME/KEY of a secret", ref.Name, ref.Key)
		}
	}
	return nil
}

// maxSecret is the maximum size of a secret file in bytes. Kubernetes has the same limit for a Secret.
const maxSecret = 1 << 20

// contentError says why the content of a file cannot be a secret. The file exists, so its name is not the secret itself.
type contentError string

func (e contentError) Error() string { return string(e) }

// readSecretFile returns the content of a file without trailing white space. The error omits the name of the file, because a
// user may have passed the secret itself instead of a path.
func readSecretFile(name string) (secret.String, error) {
	b, err := file.Read(name, maxSecret)
	if pathErr, ok := errors.AsType[*os.PathError](err); ok {
		return secret.String{}, pathErr.Err
	}
	if err != nil { // the only other error of file.Read
		return secret.String{}, contentError(fmt.Sprintf("the file is larger than %d bytes", maxSecret))
	}
	v := strings.TrimRight(string(b), " \t\r\n")
	if v == "" {
		return secret.String{}, contentError("the file is empty")
	}
	return secret.New(v), nil
}
