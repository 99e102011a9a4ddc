package peers

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

// Field is the field of a GatewaySync that names a secret.
type Field string

// The fields that name secrets.
const (
	GitToken      Field = "spec.git.auth.token"
	GitSSHKey     Field = "spec.git.auth.sshKey"
	GitKnownHosts Field = "spec.git.auth.sshKey.knownHosts"
	GitHubApp     Field = "spec.git.auth.githubApp"
	GitCA         Field = "spec.git.caSecretRef"
	GatewayAPI    Field = "spec.gateway.api"
	GatewayCA     Field = "spec.gateway.tlsConfig.caSecretRef"
)

// Secrets finds the values of the secrets that a GatewaySync names.
type Secrets interface {
	// Read returns the value of ref, which the GatewaySync names at field. It is read anew each time, so that a rotated
	// secret counts at once; white space at its end is not part of it. The error says what to do.
	Read(field Field, ref v1alpha1.SecretKeyRef) (secret.String, error)
	// Reachable returns why the value of ref can never be read, whatever is put into the cluster or beside the agent; nil
	// where it can, or could.
	Reachable(field Field, ref v1alpha1.SecretKeyRef) error
}

// Beside finds secrets in files that somebody put beside the agent.
type Beside struct {
	// Files maps NAME/KEY to a file.
	Files map[string]string
	// Dir holds NAME/KEY for what is not in Files.
	Dir string
}

// Read implements Secrets.
func (b Beside) Read(_ Field, ref v1alpha1.SecretKeyRef) (secret.String, error) {
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

// file is where the value of ref is.
func (b Beside) file(ref v1alpha1.SecretKeyRef) (string, error) {
	if name, ok := b.Files[ref.Name+"/"+ref.Key]; ok {
		return name, nil
	}
	return filepath.Join(b.Dir, ref.Name, ref.Key), local(ref)
}

// Changing are the files that are replaced when a secret that spec names changes. Those whose folder does not exist are left out.
func (b Beside) Changing(spec *v1alpha1.GatewaySyncSpec) []string {
	var files []string
	for _, ref := range named(spec) {
		if name, err := b.file(ref); err == nil {
			files = append(files, name)
		}
	}
	return watchable(files)
}

// Reachable implements Secrets: a file can always be put there.
func (b Beside) Reachable(Field, v1alpha1.SecretKeyRef) error { return nil }

// Mounted finds the secrets of a pod. What a pod mounts is settled when it starts.
type Mounted struct {
	// Dir holds a directory for each Secret that the pod mounts, with a file for each key. "": Files counts.
	Dir string
	// Keys are what the pod mounts, as NAME/KEY; nil where nobody says, and every key of the Secrets in Dir may come.
	Keys map[string]bool
	// Files are the files of a pod that was written by hand.
	Files map[Field]string
}

// Read implements Secrets.
func (m Mounted) Read(field Field, ref v1alpha1.SecretKeyRef) (secret.String, error) {
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

// Changing are the files that are replaced when one of the Secrets changes: a mounted volume changes by its ..data link.
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

// watchable leaves out the files whose folder cannot be watched: whoever watches tells their names, and a name may be the
// secret itself.
func watchable(files []string) []string {
	return slices.DeleteFunc(files, func(name string) bool {
		fi, err := os.Stat(filepath.Dir(name))
		return err != nil || !fi.IsDir()
	})
}

// missing says what to do about a key that is not there.
func (m Mounted) missing() string {
	switch {
	case m.Dir == "":
		return "create it; the pod's variable takes the path of its file, not the value"
	case m.Keys != nil:
		return "create it"
	}
	return "create it; where the Secret has it, restart the pod, which was started before that key was named"
}

// Reachable implements Secrets: a Secret or key that the pod does not mount comes only with another pod.
func (m Mounted) Reachable(field Field, ref v1alpha1.SecretKeyRef) error {
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

// local refuses names that are no names of files. The API does so too; here it counts.
func local(ref v1alpha1.SecretKeyRef) error {
	for _, s := range []string{ref.Name, ref.Key} {
		if s == "" || s == "." || s == ".." || strings.ContainsAny(s, "/\\\x00") {
			return failure.New(v1alpha1.ReasonProfilesInvalid, "%.80q/%.80q is no name and key of a secret", ref.Name, ref.Key)
		}
	}
	return nil
}

// maxSecret bounds a secret's file, as Kubernetes bounds a Secret.
const maxSecret = 1 << 20

// read returns what is in a file. Where there is none its error does not say the name: somebody may have given the secret
// itself in its place.
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
