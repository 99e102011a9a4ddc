package connect

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/secretrefs"
	"stoker.io/stoker/internal/failure"
)

func write(t *testing.T, name, content string) string {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o700))
	require.NoError(t, os.WriteFile(name, []byte(content), 0o600))
	return name
}

func ref(name, key string) v1alpha1.SecretKeyRef { return v1alpha1.SecretKeyRef{Name: name, Key: key} }

// A secret is read again each time. An error names the secret and how to give it.
func TestSecretFilesAreReread(t *testing.T) {
	dir := t.TempDir()
	s := LocalSecrets{Dir: dir, Files: map[string]string{"git/token": write(t, filepath.Join(t.TempDir(), "token"), "S3CR3T-1\n")}}
	v, err := s.Read(secretrefs.GitToken, ref("git", "token"))
	require.NoError(t, err)
	assert.Equal(t, "S3CR3T-1", v.Reveal())
	write(t, s.Files["git/token"], "S3CR3T-2")
	v, err = s.Read(secretrefs.GitToken, ref("git", "token"))
	require.NoError(t, err)
	assert.Equal(t, "S3CR3T-2", v.Reveal())

	_, err = s.Read(secretrefs.GatewayAPI, ref("gateway", "other"))
	require.ErrorContains(t, err, "--secret gateway/other=FILE")
	assert.NotContains(t, err.Error(), "S3CR3T")
}

func TestUnusableSecretFile(t *testing.T) {
	for name, c := range map[string]struct{ content, want string }{
		"empty":     {" \n", "the file is empty"},
		"too large": {strings.Repeat("S3CR3T", maxSecret/6+1), "the file is larger than 1048576 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := write(t, filepath.Join(dir, "git", "token"), c.content)
			_, err := LocalSecrets{Dir: dir}.Read(secretrefs.GitToken, ref("git", "token"))
			require.EqualError(t, err, "secret git/token: "+path+": "+c.want)
			_, err = LocalSecrets{Files: map[string]string{"git/token": path}}.Read(secretrefs.GitToken, ref("git", "token"))
			require.EqualError(t, err, "secret git/token: "+path+": "+c.want)
			_, err = Mounted{Dir: dir}.Read(secretrefs.GitToken, ref("git", "token"))
			assert.EqualError(t, err, "spec.git.auth.token: Secret git, key token: "+c.want)
		})
	}
}

func TestUnmountedSecretNeedsRestart(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "git", "..data", "token"), "S3CR3T-1\n")
	require.NoError(t, os.Symlink("..data/token", filepath.Join(dir, "git", "token"))) // as the kubelet does
	m := Mounted{Dir: dir}
	v, err := m.Read(secretrefs.GitToken, ref("git", "token"))
	require.NoError(t, err)
	assert.Equal(t, "S3CR3T-1", v.Reveal())

	_, err = m.Read(secretrefs.GitToken, ref("git", "password"))
	require.ErrorContains(t, err, "no key password of Secret git")
	assert.NotEqual(t, v1alpha1.ReasonPodRestartNeeded, failure.Reason(err, ""), "a user may create the key")

	_, err = m.Read(secretrefs.GitToken, ref("other", "token"))
	assert.True(t, failure.Is(err, v1alpha1.ReasonPodRestartNeeded), "%v", err)
	assert.ErrorContains(t, err, "spec.git.auth.token")
	assert.True(t, failure.Is(m.Reachable(secretrefs.GatewayAPI, ref("other", "token")), v1alpha1.ReasonPodRestartNeeded))
}

func TestFilesToWatch(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "git", "token"), "S3CR3T-1\n")
	assert.Equal(t, []string{filepath.Join(dir, "git", "..data")}, Mounted{Dir: dir}.FilesToWatch())
	assert.Empty(t, Mounted{Dir: filepath.Join(dir, "none")}.FilesToWatch())

	t.Chdir(dir)
	write(t, "token", "S3CR3T-1")
	spec := &v1alpha1.GatewaySyncSpec{Git: v1alpha1.GitSpec{Auth: &v1alpha1.Credential{Token: &v1alpha1.TokenAuth{SecretRef: ref("git", "token")}}}}
	for _, name := range []string{"token", "git/later"} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, []string{name}, LocalSecrets{Files: map[string]string{"git/token": name}}.FilesToWatch(spec))
		})
	}
}

func TestHostileSecretNames(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "git", "token"), "S3CR3T-1\n")
	m := Mounted{Dir: dir}
	write(t, filepath.Join(dir, "..", "outside"), "S3CR3T-2")
	for _, bad := range []v1alpha1.SecretKeyRef{ref("..", "outside"), ref("git", ".."), ref("git/../..", "outside"), ref("", "x"), ref("git", ".")} {
		t.Run(fmt.Sprintf("key %q of Secret %q", bad.Key, bad.Name), func(t *testing.T) {
			_, err := m.Read(secretrefs.GitToken, bad)
			assert.ErrorContains(t, err, "is not a valid NAME/KEY")
			_, err = LocalSecrets{Dir: dir}.Read(secretrefs.GitToken, bad)
			assert.ErrorContains(t, err, "is not a valid NAME/KEY")
		})
	}
}

// A pod mounts only the keys that were named when it was created. Another key never appears.
func TestChangedSecretKeyNeedsRestart(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "git", "token"), "S3CR3T-1")
	write(t, filepath.Join(dir, "git", "beside"), "S3CR3T-2")
	m := Mounted{Dir: dir, Keys: map[string]bool{"git/token": true, "git/later": true}}
	_, err := m.Read(secretrefs.GitToken, ref("git", "token"))
	require.NoError(t, err)

	for _, key := range []string{"password", "beside"} {
		t.Run(key, func(t *testing.T) {
			_, err := m.Read(secretrefs.GitToken, ref("git", key))
			require.True(t, failure.Is(err, v1alpha1.ReasonPodRestartNeeded), "%v", err)
			require.ErrorContains(t, err, "spec.git.auth.token names key "+key+" of Secret git")
			spec := v1alpha1.GatewaySyncSpec{Git: v1alpha1.GitSpec{Auth: &v1alpha1.Credential{Token: &v1alpha1.TokenAuth{SecretRef: ref("git", key)}}}}
			assert.True(t, failure.Is(Reachable(&spec, m), v1alpha1.ReasonPodRestartNeeded), "an agent without the key does not lead")
		})
	}

	_, err = m.Read(secretrefs.GitToken, ref("git", "later"))
	require.ErrorContains(t, err, "no key later of Secret git: create it")
	assert.False(t, failure.Is(err, v1alpha1.ReasonPodRestartNeeded))
	assert.NotContains(t, err.Error(), "restart")
	require.NoError(t, m.Reachable(secretrefs.GitToken, ref("git", "later")))
	write(t, filepath.Join(dir, "git", "later"), "S3CR3T-3")
	v, err := m.Read(secretrefs.GitToken, ref("git", "later"))
	require.NoError(t, err)
	assert.Equal(t, "S3CR3T-3", v.Reveal())
}

func TestPodWithoutSecrets(t *testing.T) {
	_, err := Mounted{}.Read(secretrefs.GitToken, ref("whatever", "name"))
	assert.True(t, failure.Is(err, v1alpha1.ReasonPodRestartNeeded), "%v", err)
	assert.Empty(t, Mounted{}.FilesToWatch())
}

// C7: a value instead of a file path is a common mistake. The error must not repeat the path that failed to open.
func TestSecretValueInsteadOfPath(t *testing.T) {
	for name, value := range map[string]string{
		"a key":            "-----BEGIN OPENSSH PRIVATE KEY-----\n" + strings.Repeat("S3CR3T", 60),
		"a token":          "ghp_S3CR3T",
		"with slashes":     "ab/S3CR3T/cd==",
		"like a long path": "/" + strings.Repeat("S3CR3T", 60) + "/x",
		"with a NUL":       "S3CR3T\x00",
	} {
		t.Run(name, func(t *testing.T) {
			l := LocalSecrets{Dir: t.TempDir(), Files: map[string]string{"git/token": value}}
			_, err := l.Read(secretrefs.GitToken, ref("git", "token"))
			require.ErrorContains(t, err, "FILE must be a path, not the value")
			assert.NotContains(t, err.Error(), "S3CR3T")
			spec := &v1alpha1.GatewaySyncSpec{Git: v1alpha1.GitSpec{Auth: &v1alpha1.Credential{Token: &v1alpha1.TokenAuth{SecretRef: ref("git", "token")}}}}
			assert.Empty(t, l.FilesToWatch(spec), "the watcher would log the value")
		})
	}
}

func TestReachable(t *testing.T) {
	git := ref("git", "key")
	api, ca := ref("api", "key"), ref("ca", "key")
	for name, spec := range map[string]v1alpha1.GatewaySyncSpec{
		"token":      {Git: v1alpha1.GitSpec{Auth: &v1alpha1.Credential{Token: &v1alpha1.TokenAuth{SecretRef: git}}}},
		"sshKey":     {Git: v1alpha1.GitSpec{Auth: &v1alpha1.Credential{SSHKey: &v1alpha1.SSHKeyAuth{SecretRef: git}}}},
		"githubApp":  {Git: v1alpha1.GitSpec{Auth: &v1alpha1.Credential{GitHubApp: &v1alpha1.GitHubAppAuth{PrivateKeySecretRef: git}}}},
		"knownHosts": {Git: v1alpha1.GitSpec{Auth: &v1alpha1.Credential{SSHKey: &v1alpha1.SSHKeyAuth{SecretRef: api, KnownHosts: &v1alpha1.SecretSource{SecretRef: git}}}}},
		"ca":         {Git: v1alpha1.GitSpec{CASecretRef: &git}},
		"api":        {Gateway: v1alpha1.GatewaySpec{API: &v1alpha1.GatewayAPI{SecretName: git.Name, SecretKey: git.Key}}},
		"gateway ca": {Gateway: v1alpha1.GatewaySpec{TLSConfig: &v1alpha1.GatewayTLSConfig{CASecretRef: &git}}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for _, r := range []v1alpha1.SecretKeyRef{api, ca} {
				require.NoError(t, os.MkdirAll(filepath.Join(dir, r.Name), 0o700))
			}
			assert.True(t, failure.Is(Reachable(&spec, Mounted{Dir: dir}), v1alpha1.ReasonPodRestartNeeded), name)
			require.NoError(t, os.MkdirAll(filepath.Join(dir, git.Name), 0o700))
			assert.NoError(t, Reachable(&spec, Mounted{Dir: dir}), name)
			spec.Git.Repo = "https://git.example.com/plant.git"
			if name == "sshKey" || name == "knownHosts" {
				spec.Git.Repo = "ssh://git@git.example.com/plant.git"
			}
			p, err := New(&spec, Gateway{URL: "http://127.0.0.1:8088"}, Mounted{Dir: dir}, repo.RemoteOptions{}, slog.New(slog.DiscardHandler))
			require.NoError(t, err, name)
			assert.NoError(t, p.Remote.Close())
		})
	}
}

// The keys of signed commits may be in a ConfigMap that has the name of a Secret.
func TestConfigMap(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "keys", "list"), "of the Secret\n")
	file := write(t, filepath.Join(dir, "configmap_keys", "list"), "of the ConfigMap\n")
	m := Mounted{Dir: dir, Keys: map[string]bool{"keys/list": true, "configmap_keys/list": true}}
	v, err := m.Read(secretrefs.GitKeysConfigMap, ref("keys", "list"))
	require.NoError(t, err)
	assert.Equal(t, "of the ConfigMap", v.Reveal())
	v, err = m.Read(secretrefs.GitKeys, ref("keys", "list"))
	require.NoError(t, err)
	assert.Equal(t, "of the Secret", v.Reveal())

	spec := &v1alpha1.GatewaySyncSpec{Git: v1alpha1.GitSpec{Verify: &v1alpha1.GitVerify{KeysConfigMapRef: &v1alpha1.SecretKeyRef{Name: "keys", Key: "list"}}}}
	require.NoError(t, Reachable(spec, m))
	before := Fingerprint(spec, m)
	write(t, file, "rotated\n")
	assert.NotEqual(t, before, Fingerprint(spec, m))
	err = Reachable(&v1alpha1.GatewaySyncSpec{Git: v1alpha1.GitSpec{Verify: &v1alpha1.GitVerify{KeysConfigMapRef: &v1alpha1.SecretKeyRef{Name: "other", Key: "list"}}}}, m)
	assert.True(t, failure.Is(err, v1alpha1.ReasonPodRestartNeeded), "%v", err)
	assert.ErrorContains(t, err, "spec.git.verify.keysConfigMapRef names ConfigMap other")
}
