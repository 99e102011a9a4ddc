package scenario

import (
	"encoding/json"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"stoker.io/stoker/test/gateway/simulator"
	"stoker.io/stoker/test/gitserver"
)

// The example of passwords outside of git: what it references exists, and a sync neither warns of it nor touches the Secret.
func TestExampleOfMountedSecrets(t *testing.T) {
	folder, err := filepath.Abs(filepath.Join(examples, "secrets"))
	require.NoError(t, err)
	read := func(name string, to any) {
		t.Helper()
		raw, err := os.ReadFile(filepath.Join(folder, name))
		require.NoError(t, err)
		require.NoError(t, yaml.Unmarshal(raw, to), name)
	}
	const core = "config/resources/core/ignition/"
	var secret corev1.Secret
	read("secret.yaml", &secret)
	var provider struct {
		Settings struct {
			Files map[string]struct{ FilePath string }
		}
	}
	read("repository/"+core+"secret-provider/files/config.json", &provider)
	var connection struct {
		Password struct {
			Type string
			Data struct{ ProviderName, SecretName string }
		}
	}
	read("repository/"+core+"database-connection/historian/config.json", &connection)
	set := statefulSet(t, filepath.Join(folder, "gateway.yaml"))
	container := set.Spec.Template.Spec.Containers[0]

	assert.Equal(t, "Referenced", connection.Password.Type)
	assert.Equal(t, "files", connection.Password.Data.ProviderName)
	name := connection.Password.Data.SecretName
	require.Contains(t, provider.Settings.Files, name)
	file := provider.Settings.Files[name].FilePath
	assert.Contains(t, secret.StringData, path.Base(file))
	mounted := map[string]string{}
	for _, m := range container.VolumeMounts {
		mounted[m.Name] = m.MountPath
	}
	assert.Equal(t, secret.Name, set.Spec.Template.Spec.Volumes[0].Secret.SecretName)
	assert.Equal(t, path.Dir(file), mounted[set.Spec.Template.Spec.Volumes[0].Name])
	assert.NotContains(t, path.Dir(file), mounted["data"], "the Secret must be outside the data directory")

	p := newPlant(t, func(_ *plant, o *simulator.Options) { o.Name = "mixer" })
	at := filepath.Join(p.dir, "run", path.Base(file)) // the mount, beside the data directory
	require.NoError(t, os.MkdirAll(filepath.Dir(at), 0o755))
	require.NoError(t, os.WriteFile(at, []byte("S3CR3T-db"), 0o440))
	before, err := os.Stat(at)
	require.NoError(t, err)
	head := p.importTree(filepath.Join(folder, "repository"))
	raw, err := os.ReadFile(filepath.Join(folder, "gatewaysync.yaml"))
	require.NoError(t, err)
	p.spec.mappings = [][2]string{{"config", "config"}}
	p.spec.raw = regexp.MustCompile(`repo: .*`).ReplaceAllLiteralString(string(raw), "repo: "+p.git.URL("site.git"))
	p.spec.raw = regexp.MustCompile(`interval: .*`).ReplaceAllLiteralString(p.spec.raw, "interval: 1s")
	p.spec.raw = regexp.MustCompile(`managed: true .*`).ReplaceAllLiteralString(p.spec.raw, "secretName: gateway-api") // the gateway runs already
	p.secret("gateway-api/apiKey", p.gw.Token())
	p.secret("git-credentials/token", "TOKEN")
	p.start()
	s := p.synced(head)
	assert.Empty(t, s.Report.Notes, "no embedded secret")
	assert.JSONEq(t, content(t, filepath.Join(folder, "repository", core, "database-connection/historian/config.json")), p.read(core+"database-connection/historian/config.json"))

	embedded, err := json.Marshal(map[string]any{"password": map[string]any{"type": "Embedded", "data": map[string]string{"ciphertext": "a", "encrypted_key": "b"}}})
	require.NoError(t, err)
	p.repo.Commit("embedded", gitserver.Write(core+"database-connection/historian/config.json", string(embedded)))
	assert.Equal(t, head, p.reason("EmbeddedSecret").Commit)

	after, err := os.Stat(at)
	require.NoError(t, err)
	assert.True(t, os.SameFile(before, after))
	assert.Equal(t, before.ModTime(), after.ModTime())
	assert.Equal(t, before.Mode(), after.Mode())
	assert.Equal(t, "S3CR3T-db", content(t, at))
	assert.NotContains(t, p.agent.Log.String(), "S3CR3T-db")
	p.stop()
}

func content(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	require.NoError(t, err)
	return string(b)
}

// statefulSet returns the StatefulSet of a manifest with several documents.
func statefulSet(t *testing.T, name string) appsv1.StatefulSet {
	t.Helper()
	var set appsv1.StatefulSet
	for _, document := range regexp.MustCompile(`(?m)^---$`).Split(content(t, name), -1) {
		var next appsv1.StatefulSet
		require.NoError(t, yaml.Unmarshal([]byte(document), &next))
		if next.Kind == "StatefulSet" {
			set = next
		}
	}
	require.Equal(t, "StatefulSet", set.Kind)
	return set
}
