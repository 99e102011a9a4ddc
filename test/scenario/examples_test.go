package scenario

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/standalone"
	"stoker.io/stoker/api/v1alpha1/effective"
	"stoker.io/stoker/test/gateway/simulator"
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

// A reader has no gateway yet: an image of Ignition starts only with an administrator, and no API key exists before that. The quick start is for
// a gateway that runs already.
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
