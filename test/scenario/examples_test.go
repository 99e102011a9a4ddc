package scenario

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"stoker.io/stoker/agent/standalone"
	"stoker.io/stoker/api/v1alpha1/effective"
	"stoker.io/stoker/test/document"
	"stoker.io/stoker/test/gateway/simulator"
	"stoker.io/stoker/test/gitserver"
	"stoker.io/stoker/test/program"
	"stoker.io/stoker/test/trees"
)

const examples = "../../examples"

// Every GatewaySync in the examples is valid and each of its profiles is usable.
func TestExamplesAreValid(t *testing.T) {
	n := 0
	require.NoError(t, filepath.WalkDir(examples, func(path string, d os.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && d.Name() == "templates": // templates of a Helm chart
			return filepath.SkipDir
		case d.Name() != "gatewaysync.yaml":
			return nil
		}
		n++
		gs, warnings, err := standalone.Load(path)
		if !assert.NoError(t, err) {
			return nil
		}
		assert.Empty(t, warnings, path)
		for name := range gs.Spec.Sync.Profiles {
			_, err := effective.Of(gs, name, nil)
			assert.NoError(t, err, "%s: profile %s", path, name)
		}
		return nil
	}))
	assert.Positive(t, n)
}

// manifest matches a GatewaySync, also one inside a ConfigMap or a template.
var manifest = regexp.MustCompile(`kind: GatewaySync\n\s*metadata:`)

// A reader has no gateway yet. So each gateway in the examples has an administrator, without whom an image of Ignition does not start, and each
// GatewaySync lets the agent make the API key. The quick start is left out: it is for a gateway that runs already.
func TestExamplesStartFromNothing(t *testing.T) {
	found := 0
	require.NoError(t, filepath.WalkDir(examples, func(path string, d os.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && d.Name() == "quickstart":
			return filepath.SkipDir
		case d.IsDir():
			return nil
		}
		raw, err := os.ReadFile(path)
		text := string(raw)
		gateways, syncs := strings.Count(text, "- name: ACCEPT_IGNITION_EULA"), len(manifest.FindAllString(text, -1))
		assert.GreaterOrEqual(t, strings.Count(text, "- name: GATEWAY_ADMIN_PASSWORD"), gateways, "%s: a gateway without an administrator", path)
		assert.Equal(t, syncs, strings.Count(text, "managed: true #"), "%s: a GatewaySync whose API key must exist before its gateway", path)
		found += gateways + syncs
		return err
	}))
	assert.Greater(t, found, 20)
}

// Follows the README of the quick start: one repository and two gateways, each with its own profile.
func TestQuickStart(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join(examples, "quickstart", "gatewaysync.yaml"))
	require.NoError(t, err)
	for site, other := range map[string]string{"site-a": "site-b", "site-b": "site-a"} {
		t.Run(site, func(t *testing.T) {
			p := newPlant(t, func(_ *plant, o *simulator.Options) { o.Name = site })
			dir, err := filepath.Abs(filepath.Join(examples, "quickstart"))
			require.NoError(t, err)
			head := p.importTree(dir)
			p.spec.mappings = [][2]string{{"shared/projects", "projects"}, {"services/" + site + "/projects", "projects"}, {"services/" + site + "/config", "config"}}
			p.spec.raw = regexp.MustCompile(`repo: .*`).ReplaceAllLiteralString(string(raw), "repo: "+p.git.URL("site.git"))
			p.secret("gateway-api/apiKey", p.gw.Token())
			p.start("--profile", site)
			p.synced(head)
			assert.NoDirExists(t, filepath.Join(p.data, "projects", other))
			assert.Empty(t, p.gw.Data.LoadErrors())
			for path, id := range p.desired(head) {
				assert.Equal(t, id, blobID(p.read(path)), "the gateway must not change %s", path)
			}
			p.stop()
		})
	}
}

// tree is a real Ignition tree.
type tree struct {
	name, dir string
	mappings  [][2]string
}

// realTrees finds trees in STOKER_TREES: a folder with services/*/projects or services/*/config is an 8.3 tree; one with project.json is an
// 8.1 project.
func realTrees(t *testing.T) []tree {
	t.Helper()
	root := trees.Root(t)
	var list []tree
	dirs, err := os.ReadDir(root)
	require.NoError(t, err)
	for _, d := range dirs {
		dir := filepath.Join(root, d.Name())
		services, err := filepath.Glob(filepath.Join(dir, "services", "*"))
		require.NoError(t, err)
		var m [][2]string
		for _, s := range services {
			for _, part := range []string{"projects", "config"} {
				if _, err := os.Stat(filepath.Join(s, part)); err == nil {
					m = append(m, [2]string{"services/" + filepath.Base(s) + "/" + part, part})
				}
			}
		}
		if _, err := os.Stat(filepath.Join(dir, "project.json")); err == nil {
			for _, part := range []string{"com.inductiveautomation.vision", "ignition"} {
				m = append(m, [2]string{part, "projects/" + d.Name() + "/" + part})
			}
		}
		if len(m) > 0 {
			list = append(list, tree{d.Name(), dir, m})
		}
	}
	require.NotEmpty(t, list, "STOKER_TREES=%s holds no Ignition tree", root)
	return list
}

// importTree commits a directory byte for byte, without conversion of line ends.
func (p *plant) importTree(dir string) string {
	p.t.Helper()
	in := []string{"-C", dir, "--git-dir=" + p.repo.Dir, "--work-tree=" + dir, "-c", "core.autocrlf=false"}
	p.repo.Git(append(in, "add", "-A", "-f", ".")...)
	head := p.repo.CommitTree("import", p.repo.Git("write-tree"))
	p.repo.ForcePush(head)
	return head
}

// terminal returns a shell on the machine of the gateway. Its agent and curl use the addresses and the
// data directory of the plant instead of the fixed ones on a real machine, because the last value of a
// flag wins.
func (p *plant) terminal() *document.Shell {
	p.t.Helper()
	programs := map[string]string{"agent": p.script("agent", fmt.Sprintf(`case "$1" in
lost-and-found) exec %[1]q "$@" ;;
*) exec %[1]q "$@" --data-dir %[2]q --gateway-url %[3]q --repo-dir %[4]q --health-addr 127.0.0.1:0 --metrics-addr 127.0.0.1:0 ;;
esac`, program.Build(p.t, "agent"), p.data, p.gw.URL(), filepath.Join(p.dir, "objects")))}
	if curl, err := exec.LookPath("curl"); err == nil && p.agent != nil {
		programs["curl"] = p.script("curl", fmt.Sprintf("exec %q --fail-with-body --connect-to 127.0.0.1:8082:%s \"$@\"", curl, p.agent.health))
	}
	return document.NewShell(p.t, p.dir, programs)
}

func (p *plant) script(name, text string) string {
	p.t.Helper()
	file := filepath.Join(p.t.TempDir(), name)
	program.Script(p.t, file, "#!/bin/sh\n"+text+"\n")
	return file
}

// Runs the documented commands for an agent without Kubernetes next to a gateway.
func TestDocumentedCommands(t *testing.T) {
	t.Parallel()
	lines := document.Open(t)
	t.Run("by the page on the agent", func(t *testing.T) {
		p := newPlant(t)
		first := p.repo.Commit("first", site()...)
		p.saveSpec()
		for c := range lines.Of("docs/reference/agent.md") {
			p.terminal().Watch(t, c.Text, "Synced", first)
		}
		p.start()
		p.synced(first)
		var edits []gitserver.Edit
		for i := range 3 {
			file := fmt.Sprintf("projects/line/ignition/script-python/pkg%d/mod/code.py", i)
			p.write(file, fmt.Sprintf("# of a person, %d\n", i))
			edits = append(edits, gitserver.Write(inGit+file, "def run():\n    return None\n"))
		}
		p.synced(p.repo.Commit("second", edits...))

		person := p.terminal()
		for c := range lines.Of("docs/how-to/troubleshooting.md") {
			if _, err := exec.LookPath("curl"); err != nil {
				t.Logf("no curl on this machine: %s", c.Text)
				continue
			}
			assert.Contains(t, person.Type(t, c.Text), `"Synced"`)
		}
		require.NoError(t, os.Symlink(p.data, filepath.Join(p.dir, "DIR")))
		for c := range lines.Of("docs/reference/lost-and-found.md") {
			person.Type(t, c.Text)
		}
		saved, err := os.ReadFile(filepath.Join(p.dir, "saved.json"))
		require.NoError(t, err)
		assert.Contains(t, p.lostAndFound(), string(saved))
		p.await("the restored file is drift", func(s state) bool { return s.Drift != nil && s.Drift.Files == 1 })
		p.stop()
	})
	t.Run("by the tutorial", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		// setup: a checkout after make build
		for name, target := range map[string]string{"examples": examples, "bin/agent": program.Build(t, "agent"), "bin/stoker": program.Build(t, "hooks")} {
			target, err := filepath.Abs(target)
			require.NoError(t, err)
			require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700))
			require.NoError(t, os.Symlink(target, filepath.Join(dir, name)))
		}
		build := filepath.Join(t.TempDir(), "make")
		program.Script(t, build, "#!/bin/sh\n")
		user := document.NewShell(t, dir, map[string]string{"make": build}, "TMPDIR="+t.TempDir(),
			"GIT_AUTHOR_NAME=You", "GIT_AUTHOR_EMAIL=you@example.com", "GIT_COMMITTER_NAME=You", "GIT_COMMITTER_EMAIL=you@example.com")
		var said []string
		for c := range lines.Of("docs/start/tutorial.md") {
			output := user.Type(t, c.Text)
			if strings.HasPrefix(c.Text, "sh ") || strings.HasPrefix(c.Text, "bin/agent ") {
				said = append(said, output)
			}
		}
		require.Len(t, said, 6)
		for i, want := range []string{"DryRun", "14 created", "2 updated\n", "drift: modified projects/site-a/", "2 to lost+found\n", "changed on the gateway and in git"} {
			assert.Contains(t, said[i], want)
		}
	})
	t.Run("by the quick start", func(t *testing.T) {
		p := newPlant(t, func(_ *plant, o *simulator.Options) { o.Name = "site-a" })
		dir, err := filepath.Abs(filepath.Join(examples, "quickstart"))
		require.NoError(t, err)
		head := p.importTree(dir)
		raw, err := os.ReadFile(filepath.Join(dir, "gatewaysync.yaml"))
		require.NoError(t, err)
		p.spec.raw = regexp.MustCompile(`repo: .*`).ReplaceAllLiteralString(string(raw), "repo: "+p.git.URL("site.git"))
		p.secret("gateway-api/apiKey", p.gw.Token())
		p.saveSpec()
		for c := range lines.Of("examples/quickstart/README.md") {
			p.terminal().Watch(t, c.Text, "Synced", head)
		}
		assert.FileExists(t, filepath.Join(p.data, "projects", "site-a", "project.json"))
	})
}

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
