package command

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/decode"
	"stoker.io/stoker/hooks/exit"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/test/gitserver"
)

const token = "S3CR3T-1"

// terminal runs stoker create with a terminal, or without one, and keeps the output.
type terminal struct {
	out, err    bytes.Buffer
	stdin       string
	interactive bool
	namespace   string
}

// run runs stoker create with arguments.
func (x *terminal) run(t *testing.T, args ...string) error {
	t.Helper()
	x.out.Reset()
	x.err.Reset()
	root := New(&Env{
		Stdin: strings.NewReader(x.stdin), Stdout: &x.out, Stderr: &x.err, Interactive: x.interactive,
		Namespace: func() string { return x.namespace },
		Connect:   func() (Cluster, error) { return Cluster{}, errors.New("there is no cluster") },
	})
	root.SilenceErrors, root.SilenceUsage = true, true
	root.SetArgs(args)
	err := root.ExecuteContext(t.Context())
	if err != nil {
		assert.NotContains(t, err.Error(), token)
	}
	assert.NotContains(t, x.err.String(), token)
	return err
}

func fileWith(t *testing.T, content string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(name, []byte(content), 0o600))
	return name
}

func isUsage(err error) bool {
	e, ok := errors.AsType[*exit.Error](err)
	return ok && e.Code == exit.Usage
}

var press = gitserver.Files(map[string]string{
	"projects/press/project.json":                                      `{"title":"Press","enabled":true}`,
	"config/resources/core/config-mode.json":                           `{"parent":"external"}`,
	"config/resources/core/ignition/security-properties/config.json":   `{}`,
	"config/resources/core/ignition/security-properties/resource.json": `{"scope":"A","version":1,"files":["config.json"],"attributes":{}}`,
})

// C7 of docs/internals/threats.md: a private repository over https. Only the folders and a few files are fetched, and the token is printed nowhere.
func TestPrivateRepository(t *testing.T) {
	root := t.TempDir()
	repo := gitserver.NewRepo(t, filepath.Join(root, "plant.git"))
	big := make([]byte, 4<<20)
	_, _ = rand.Read(big)
	commit := repo.Commit("first", press, gitserver.Write("projects/press/com.x.y/big.bin", string(big)))
	repo.Git("config", "uploadpack.allowFilter", "true")
	repo.Git("config", "uploadpack.allowAnySHA1InWant", "true")
	server, err := gitserver.Start(root, gitserver.Options{TLS: true, Auth: gitserver.Token(token)})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, server.Close()) })
	address, ca, secret := server.URL("plant.git"), fileWith(t, string(server.CA())), fileWith(t, token+"\n")
	x := &terminal{namespace: "plant"}

	require.NoError(t, x.run(t, "gatewaysync", "press", "--repo", address, "--secret", "login/token="+secret, "--secret", "ca/ca.crt="+ca))
	gs, err := decode.GatewaySync(x.out.Bytes())
	require.NoError(t, err)
	assert.Equal(t, "plant", gs.Namespace)
	assert.Equal(t, v1alpha1.GitSpec{Repo: address, Ref: "main", CASecretRef: &v1alpha1.SecretKeyRef{Name: "ca", Key: "ca.crt"},
		Auth: &v1alpha1.Credential{Token: &v1alpha1.TokenAuth{SecretRef: v1alpha1.SecretKeyRef{Name: "login", Key: "token"}}}}, gs.Spec.Git)
	assert.Equal(t, &v1alpha1.GatewayAPI{SecretName: "gateway-api", SecretKey: "apiKey"}, gs.Spec.Gateway.API, "git has security-properties")
	assert.Contains(t, x.err.String(), "main at "+commit[:7])
	assert.Contains(t, x.err.String(), "stoker create secret git login --token-file FILE --apply --namespace plant\n  stoker create secret api-key gateway-api --key-file FILE --apply --namespace plant\n")
	assert.NotContains(t, x.out.String(), token)
	assert.Less(t, server.Stats().PackBytes, int64(100<<10), "the large file must not be fetched")

	t.Run("without token", func(t *testing.T) {
		err := x.run(t, "gatewaysync", "press", "--repo", address, "--secret", "ca/ca.crt="+ca)
		assert.Equal(t, v1alpha1.ReasonAuthFailed, failure.Reason(err, ""))
		require.ErrorContains(t, err, "--secret git-credentials/token=FILE")
	})
	t.Run("password in the address", func(t *testing.T) {
		err := x.run(t, "gatewaysync", "press", "--repo", strings.Replace(address, "://", "://git:"+token+"@", 1))
		assert.True(t, isUsage(err), err)
		require.ErrorContains(t, err, "--repo has a password")
	})
	t.Run("missing branch", func(t *testing.T) {
		err := x.run(t, "gatewaysync", "press", "--repo", address, "--ref", "mian", "--secret", "git/token="+secret, "--secret", "ca/ca.crt="+ca)
		assert.Equal(t, v1alpha1.ReasonRefNotFound, failure.Reason(err, ""))
		require.ErrorContains(t, err, "did you mean \"main\"?")
	})
}

// clone makes a clone with a work tree, and an origin.
func clone(t *testing.T, origin string) string {
	t.Helper()
	bare := gitserver.NewRepo(t, filepath.Join(t.TempDir(), "plant.git"))
	bare.Commit("first", press)
	dir := filepath.Join(t.TempDir(), "clone")
	// setup: one command after the other
	for _, args := range [][]string{{"clone", "-q", bare.Dir, dir}, {"-C", dir, "remote", "set-url", "origin", origin}} {
		git := exec.Command("git", args...)
		git.Env = append(os.Environ(), gitserver.Env()...)
		out, err := git.CombinedOutput()
		require.NoError(t, err, string(out))
	}
	return dir
}

func TestLocalClone(t *testing.T) {
	x := &terminal{}
	for name, c := range map[string]struct{ origin, repo, auth string }{
		"https with a token":   {"https://" + token + "@git.example.com/plant.git", "https://git.example.com/plant.git", "token: {secretRef: {name: git-credentials, key: token}}"},
		"ssh":                  {"git@git.example.com:plants/site.git", "git@git.example.com:plants/site.git", "sshKey: {secretRef: {name: git-credentials, key: identity}, knownHosts: {secretRef: {name: git-credentials, key: known_hosts}}}"},
		"ssh of a public host": {"ssh://git@github.com/plants/site.git", "ssh://git@github.com/plants/site.git", "sshKey: {secretRef: {name: git-credentials, key: identity}}"},
		"directory":            {"/srv/git/plant.git", "https://git.example.com/plants/ignition.git", "token: {secretRef: {name: git-credentials, key: token}}"},
	} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, x.run(t, "gatewaysync", "press", "--dir", clone(t, c.origin)))
			gs, err := decode.GatewaySync(x.out.Bytes())
			require.NoError(t, err)
			var auth v1alpha1.Credential
			require.NoError(t, yaml.UnmarshalStrict([]byte("{"+c.auth+"}"), &auth))
			assert.Equal(t, v1alpha1.GitSpec{Repo: c.repo, Ref: "main", Auth: &auth}, gs.Spec.Git)
			assert.NotContains(t, x.out.String(), token)
		})
	}
	t.Run("apply without an address", func(t *testing.T) {
		err := x.run(t, "gatewaysync", "press", "--dir", clone(t, "/srv/git/plant.git"), "--apply")
		assert.True(t, isUsage(err), err)
		require.ErrorContains(t, err, "name it with --repo")
	})
	for name, c := range map[string]struct{ key, content, want string }{
		"apply a token with a line end": {"token", token + "\nother", "the token has a space or a line end"},
		"apply a public key":            {"identity", "ssh-ed25519 AAAA", "is not a private key"},
		"apply a token":                 {"password", token + "\n", "there is no cluster"},
	} {
		t.Run(name, func(t *testing.T) {
			err := x.run(t, "gatewaysync", "press", "--dir", clone(t, "https://git.example.com/plant.git"), "--secret", "a/"+c.key+"="+fileWith(t, c.content), "--apply")
			require.ErrorContains(t, err, c.want)
		})
	}
	t.Run("a token with another key", func(t *testing.T) {
		list, err := (&gatewaySyncFlags{secrets: map[string]string{"a/password": fileWith(t, token+"\n")}}).secretObjects(
			&v1alpha1.Credential{Token: &v1alpha1.TokenAuth{SecretRef: v1alpha1.SecretKeyRef{Name: "a", Key: "password"}}})
		require.NoError(t, err)
		require.Len(t, list, 1)
		assert.Equal(t, map[string][]byte{"password": []byte(token)}, list[0].Data)
	})
	t.Run("folder", func(t *testing.T) {
		dir := clone(t, "https://git.example.com/plant.git")
		require.NoError(t, x.run(t, "gatewaysync", "press", "--dir", dir))
		all, err := decode.GatewaySync(x.out.Bytes())
		require.NoError(t, err)
		require.NoError(t, x.run(t, "gatewaysync", "press", "--dir", filepath.Join(dir, "projects")))
		part, err := decode.GatewaySync(x.out.Bytes())
		require.NoError(t, err)
		assert.Equal(t, all.Spec.Git, part.Spec.Git)
		assert.Equal(t, []v1alpha1.Mapping{{Source: "projects", Destination: "projects", Required: true}}, part.Spec.Sync.Profiles["default"].Mappings)
		require.NoError(t, os.MkdirAll(filepath.Join(dir, "new"), 0o755))
		require.ErrorContains(t, x.run(t, "gatewaysync", "press", "--dir", filepath.Join(dir, "new")), "the commit has no folder new")
	})
	t.Run("no clone", func(t *testing.T) {
		err := x.run(t, "gatewaysync", "press", "--dir", t.TempDir())
		assert.True(t, isUsage(err), err)
		require.ErrorContains(t, err, "is in no clone: name one, or make it one with 'git init")
	})
	t.Run("empty clone", func(t *testing.T) {
		err := x.run(t, "gatewaysync", "press", "--dir", gitserver.NewRepo(t, filepath.Join(t.TempDir(), "plant.git")).Dir)
		assert.Equal(t, v1alpha1.ReasonRefNotFound, failure.Reason(err, ""))
		require.ErrorContains(t, err, "HEAD has no commit yet")
	})
	t.Run("damaged clone", func(t *testing.T) {
		dir := clone(t, "/srv/git/plant.git")
		require.NoError(t, os.RemoveAll(filepath.Join(dir, ".git", "objects")))
		require.Error(t, x.run(t, "gatewaysync", "press", "--dir", dir), "it must not be read as a folder")
	})
}

func TestWrongArguments(t *testing.T) {
	x := &terminal{}
	for name, args := range map[string][]string{
		"no tree":                     {"gatewaysync", "press"},
		"name":                        {"gatewaysync", "Press", "--dir", "."},
		"long name":                   {"gatewaysync", strings.Repeat("a", 49), "--dir", "."},
		"ref":                         {"gatewaysync", "press", "--dir", ".", "--ref", "a..b"},
		"ref of a folder":             {"gatewaysync", "press", "--dir", t.TempDir(), "--ref", "main"},
		"address":                     {"gatewaysync", "press", "--repo", "git.example.com"},
		"ssh without a key":           {"gatewaysync", "press", "--repo", "ssh://git@git.example.com/a.git"},
		"secret":                      {"gatewaysync", "press", "--dir", ".", "--secret", "token=x"},
		"two credentials":             {"gatewaysync", "press", "--dir", t.TempDir(), "--secret", "a/token=x", "--secret", "b/token=x"},
		"app without a key":           {"gatewaysync", "press", "--dir", t.TempDir(), "--github-app", "1/2"},
		"app without an id":           {"gatewaysync", "press", "--dir", t.TempDir(), "--github-app", "1", "--secret", "a/private-key.pem=x"},
		"value instead of file":       {"secret", "git", "git-credentials", "--token-file", token},
		"ssh key without a host":      {"secret", "git", "git-credentials", "--ssh-key-file", sshKey(t)},
		"neither printed nor applied": {"secret", "webhook", "line", "--export=false"},
		"name of a secret":            {"secret", "webhook", "A_B"},
		"host keys for a token":       {"secret", "git", "a", "--token-file", fileWith(t, token), "--known-hosts-file", fileWith(t, "x")},
	} {
		t.Run(name, func(t *testing.T) {
			err := x.run(t, args...)
			assert.True(t, isUsage(err), "%v", err)
			assert.Empty(t, x.out.String())
		})
	}
}

func sshKey(t *testing.T) string {
	t.Helper()
	_, text, err := gitserver.NewSSHKey()
	require.NoError(t, err)
	return fileWith(t, text)
}

// secretOf reads the printed Secret.
func secretOf(t *testing.T, x *terminal) corev1.Secret {
	t.Helper()
	var s corev1.Secret
	require.NoError(t, yaml.UnmarshalStrict(x.out.Bytes(), &s))
	assert.Equal(t, "Secret", s.Kind)
	return s
}

func TestSecrets(t *testing.T) {
	x := &terminal{namespace: "plant"}
	require.NoError(t, x.run(t, "secret", "git", "git-credentials", "--token-file", fileWith(t, token+"\n")))
	s := secretOf(t, x)
	assert.Equal(t, map[string][]byte{"token": []byte(token)}, s.Data)
	assert.Equal(t, []string{"git-credentials", "plant"}, []string{s.Name, s.Namespace})

	require.NoError(t, x.run(t, "secret", "api-key", "gateway-api", "--key-file", fileWith(t, "stoker:"+token+"\n")))
	assert.Equal(t, map[string][]byte{"apiKey": []byte("stoker:" + token)}, secretOf(t, x).Data)

	require.NoError(t, x.run(t, "secret", "webhook", "stoker-webhook"))
	first := secretOf(t, x).Data["token"]
	require.NoError(t, x.run(t, "secret", "webhook", "stoker-webhook"))
	raw, err := base64.RawURLEncoding.DecodeString(string(first))
	require.NoError(t, err)
	assert.Len(t, raw, 32)
	assert.NotEqual(t, first, secretOf(t, x).Data["token"])

	for name, args := range map[string][]string{
		"token with a line end":       {"git", "a", "--token-file", fileWith(t, token+"\nother")},
		"empty file":                  {"git", "a", "--token-file", fileWith(t, "\n")},
		"API key without a name":      {"api-key", "a", "--key-file", fileWith(t, token)},
		"public key":                  {"git", "a", "--ssh-key-file", fileWith(t, "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl"), "--known-hosts-file", fileWith(t, "x")},
		"app key without PEM":         {"git", "a", "--github-app-key-file", fileWith(t, token)},
		"two kinds of credentials":    {"git", "a", "--github-app-key-file", fileWith(t, token), "--token-file", fileWith(t, token)},
		"no kind of credentials":      {"git", "a"},
		"API key on the command line": {"api-key", "a", "stoker:" + token},
	} {
		t.Run(name, func(t *testing.T) {
			require.Error(t, x.run(t, append([]string{"secret"}, args...)...))
			assert.Empty(t, x.out.String())
		})
	}
}

// The host's key goes into the Secret only if a user confirms its fingerprint.
func TestHostKey(t *testing.T) {
	server, err := gitserver.StartSSH(t.TempDir(), gitserver.SSHOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, server.Close()) })
	key, address := sshKey(t), server.URL("git", "plant.git")
	hosts := server.KnownHosts()
	_, _, public, _, _, err := ssh.ParseKnownHosts([]byte(hosts))
	require.NoError(t, err)
	fingerprint := ssh.FingerprintSHA256(public)
	args := []string{"secret", "git", "git-credentials", "--ssh-key-file", key, "--repo", address}
	for name, c := range map[string]struct {
		terminal
		ok bool
	}{
		"confirmed":    {terminal{stdin: "y\n", interactive: true}, true},
		"declined":     {terminal{stdin: "\n", interactive: true}, false},
		"end of input": {terminal{interactive: true}, false},
		"no terminal":  {terminal{stdin: "y\n"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			x := &c.terminal
			err := x.run(t, args...)
			assert.Contains(t, x.err.String(), fingerprint)
			if !c.ok {
				require.ErrorContains(t, err, "was not confirmed")
				assert.Empty(t, x.out.String())
				return
			}
			require.NoError(t, err)
			assert.Equal(t, strings.TrimSpace(hosts), strings.TrimSpace(string(secretOf(t, x).Data["known_hosts"])))
			_, err = ssh.ParsePrivateKey(secretOf(t, x).Data["identity"])
			require.NoError(t, err)
		})
	}
	x := &terminal{}
	t.Run("file", func(t *testing.T) {
		require.NoError(t, x.run(t, "secret", "git", "git-credentials", "--ssh-key-file", key, "--known-hosts-file", fileWith(t, hosts)))
		assert.Equal(t, strings.TrimSpace(hosts), strings.TrimSpace(string(secretOf(t, x).Data["known_hosts"])))
	})
	t.Run("public host", func(t *testing.T) {
		require.NoError(t, x.run(t, "secret", "git", "git-credentials", "--ssh-key-file", key, "--repo", "git@github.com:plants/site.git"))
		assert.NotContains(t, secretOf(t, x).Data, "known_hosts")
	})
	t.Run("not ssh", func(t *testing.T) {
		err := x.run(t, "secret", "git", "git-credentials", "--ssh-key-file", key, "--repo", "https://git.example.com/plant.git")
		assert.Equal(t, v1alpha1.ReasonUnsupportedRepository, failure.Reason(err, ""))
	})
	t.Run("no server", func(t *testing.T) {
		require.NoError(t, server.Close())
		require.Error(t, x.run(t, args...))
	})
}
