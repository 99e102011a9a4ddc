package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/hooks/create/createtest"
	"stoker.io/stoker/hooks/exit"
	"stoker.io/stoker/test/cluster/kubetest"
	"stoker.io/stoker/test/document"
	"stoker.io/stoker/test/gitserver"
	"stoker.io/stoker/test/program"
)

// creator runs stoker create in a namespace of a real API server.
type creator struct {
	kubeconfig string
	out, err   bytes.Buffer
}

func (x *creator) run(t *testing.T, args ...string) int {
	t.Helper()
	x.out.Reset()
	x.err.Reset()
	c := newCLI(&x.out, &x.err)
	*c.flags.KubeConfig = x.kubeconfig
	return c.run(t.Context(), "stoker", append([]string{"create"}, args...))
}

func newCreator(t *testing.T, cluster *kubetest.Cluster, namespace string) *creator {
	t.Helper()
	x := &creator{kubeconfig: filepath.Join(t.TempDir(), "kubeconfig")}
	require.NoError(t, writeKubeconfig(cluster.Kubeconfig(), x.kubeconfig, namespace, ""))
	return x
}

// The API server accepts the GatewaySync of each tree, and a repeated command changes nothing.
func TestCreateApplies(t *testing.T) {
	t.Parallel()
	cluster := kubetest.Control(t)
	x := newCreator(t, cluster, cluster.Namespace(t))
	for i, tree := range append(createtest.Trees(), createtest.LFS()) {
		t.Run(tree.Name, func(t *testing.T) {
			repo := gitserver.NewRepo(t, filepath.Join(t.TempDir(), "plant.git"))
			repo.Commit("first", tree.Edits...)
			args := []string{"gatewaysync", fmt.Sprintf("plant-%d", i), "--dir", repo.Dir, "--repo", "https://git.example.com/plant.git", "--apply"}
			require.Equal(t, exit.Done, x.run(t, args...), x.err.String())
			assert.Equal(t, fmt.Sprintf("gatewaysync.stoker.io/plant-%d created\n", i), x.out.String())
			require.Equal(t, exit.Done, x.run(t, args...), x.err.String())
			assert.Equal(t, fmt.Sprintf("gatewaysync.stoker.io/plant-%d unchanged\n", i), x.out.String())

			args[5] = "https://git.example.com/other.git"
			require.Equal(t, exit.Failed, x.run(t, args...), x.err.String())
			assert.Empty(t, x.out.String())
			assert.Contains(t, x.err.String(), "with another spec, and was not changed")
		})
	}
}

func TestCreateSecretApplies(t *testing.T) {
	t.Parallel()
	cluster := kubetest.Control(t)
	namespace := cluster.Namespace(t)
	x := newCreator(t, cluster, namespace)
	key := func(text string) string {
		name := filepath.Join(t.TempDir(), "key")
		require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
		return name
	}
	get := func(name string) map[string][]byte {
		s, err := cluster.Client(t).CoreV1().Secrets(namespace).Get(t.Context(), name, metav1.GetOptions{})
		require.NoError(t, err)
		return s.Data
	}
	args := []string{"secret", "api-key", "gateway-api", "--apply", "--key-file", key("a:S3CR3T")}
	for _, want := range []string{"created", "unchanged"} { // sequence: the second one repeats the first
		require.Equal(t, exit.Done, x.run(t, args...), x.err.String())
		assert.Equal(t, "secret/gateway-api "+want+"\n", x.out.String())
	}
	args[5] = key("a:OTHER")
	require.Equal(t, exit.Failed, x.run(t, args...))
	assert.Contains(t, x.err.String(), "the existing Secret gateway-api in namespace "+namespace+" has other values (keys apiKey), and was not changed")
	assert.NotContains(t, x.err.String(), "S3CR3T")
	assert.Equal(t, "a:S3CR3T", string(get("gateway-api")["apiKey"]))

	require.Equal(t, exit.Done, x.run(t, "secret", "webhook", "stoker-webhook", "--apply"), x.err.String())
	first := get("stoker-webhook")
	require.Equal(t, exit.Done, x.run(t, "secret", "webhook", "stoker-webhook", "--apply"), x.err.String())
	assert.Equal(t, "secret/stoker-webhook unchanged\n", x.out.String())
	assert.Equal(t, first, get("stoker-webhook"))

	other := newCreator(t, cluster, "missing")
	require.Equal(t, exit.Failed, other.run(t, "secret", "webhook", "stoker-webhook", "--apply"))
	assert.Contains(t, other.err.String(), "namespace missing does not exist")
	require.Equal(t, exit.Usage, other.run(t, "secret", "git", "Name_", "--token-file", key("x")))
}

// The documented commands, in a clone of a private repository.
func TestCreateCommands(t *testing.T) {
	t.Parallel()
	lines := document.Open(t)
	cluster := kubetest.Control(t)
	namespace := cluster.NamespaceNamed(t, "line") // as on docs/how-to/installation.md
	root := t.TempDir()
	repo := gitserver.NewRepo(t, filepath.Join(root, "plant.git"))
	repo.Commit("first", createtest.Trees()[0].Edits...)
	server, err := gitserver.Start(root, gitserver.Options{Auth: gitserver.Token("TOKEN")})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, server.Close()) })

	dir := filepath.Join(t.TempDir(), "clone")
	// setup: one command after the other
	for _, args := range [][]string{{"clone", "-q", repo.Dir, dir}, {"-C", dir, "remote", "set-url", "origin", server.URL("plant.git")}} {
		git := exec.Command("git", args...)
		git.Env = append(os.Environ(), gitserver.Env()...)
		out, err := git.CombinedOutput()
		require.NoError(t, err, string(out))
	}
	_, identity, err := gitserver.NewSSHKey()
	require.NoError(t, err)
	// setup: the files that the commands name
	for name, text := range map[string]string{"token.txt": "TOKEN\n", "key.txt": "stoker:KEY\n", "identity": identity, "known_hosts": "x"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, writeKubeconfig(cluster.Kubeconfig(), kubeconfig, namespace, ""))
	kubectl, _ := kubetest.Kubectl(t)
	cluster.NamespaceNamed(t, "press") // as on docs/start/tutorial-kubernetes.md, where make build writes bin/stoker
	fake := filepath.Join(t.TempDir(), "make")
	program.Script(t, fake, "#!/bin/sh\nmkdir bin && ln -s "+program.Build(t, "hooks")+" bin/stoker\n")
	shell := document.NewShell(t, dir, map[string]string{"make": fake, "kubectl": kubectl, "stoker": program.Build(t, "hooks")},
		"KUBECONFIG="+kubeconfig, "REPOSITORY="+server.URL("plant.git"))
	example := regexp.MustCompile(`https://git\.example\.com/plants/[a-z]+\.git`)
	for _, page := range []string{"docs/how-to/installation.md", "docs/how-to/validation.md", "docs/reference/cli.md", "docs/start/tutorial-kubernetes.md"} {
		for c := range lines.Of(page) {
			shell.Type(t, example.ReplaceAllLiteralString(c.Text, server.URL("plant.git")))
		}
	}
	for _, name := range []string{"line", "press --namespace press"} { // sequence: both exist now
		assert.Contains(t, shell.Type(t, "kubectl get gatewaysync "+name+" --output yaml"), "managed: true")
	}
	assert.Equal(t, "TOKEN", shell.Type(t, "kubectl get secret git-credentials --output 'jsonpath={.data.token}' | base64 --decode"))
}
