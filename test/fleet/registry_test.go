package fleet

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/test/cluster/kubetest"
	"stoker.io/stoker/test/document"
	"stoker.io/stoker/test/fleet/plant"
	"stoker.io/stoker/test/ociregistry"
)

// F32: the lead resolves a tag of a registry, and all gateways run its artifact: after a push under the same tag, and after a rollback to the
// artifact that no tag has any more.
func TestRegistry(t *testing.T) {
	t.Parallel()
	registry := ociregistry.Start(t)
	push := func(title string) string {
		return registry.Push("stable", ociregistry.Files(t, map[string]string{
			"projects/line/project.json": fmt.Sprintf(`{"title": %q, "description": "", "parent": "", "enabled": true, "inheritable": false}`, title),
		}), map[string]string{"org.opencontainers.image.revision": title})
	}
	push("one")
	lines := document.Open(t)
	p := plant.NewAt(t, kubetest.Control(t), "line", "line", 3, func(gs *v1alpha1.GatewaySync) {
		gs.Spec.Git.Repo, gs.Spec.Git.Ref = registry.Repo(), "stable"
	})
	p.Start()
	runs := func(title, other string) string {
		t.Helper()
		p.Eventually(title+" everywhere", func() bool {
			c := p.Target().Commit
			return c != "" && c != other && p.Ready(c)
		})
		commit := p.Target().Commit
		p.Converges(title, commit)
		return commit
	}
	first := runs("one", "")
	assert.Equal(t, "refs/tags/stable", p.Target().RefName)
	push("two")
	second := runs("two", first)

	// No tag has the first artifact any more, and each agent knows it from its store.
	shell := terminal(t, p, t.TempDir())
	shell.Type(t, "stoker rollback line --to "+first[:7])
	p.Converges("one", first)
	assert.Equal(t, first, p.Target().Ref)

	// A push ends the rollback, as one to a branch does.
	push("three")
	third := runs("three", first)
	assert.NotEqual(t, second, third)
	t.Run("by digest", func(t *testing.T) {
		digest := push("four")
		fourth := runs("four", third)
		push("five")
		fifth := runs("five", fourth)
		assert.NotEqual(t, fourth, fifth)
		admin := office(t, p.Cluster, map[string]string{})
		admin.Dir = t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(admin.Dir, "cosign.pub"), nil, 0o600))
		for c := range lines.Of("docs/how-to/registry.md") {
			if strings.HasPrefix(c.Text, "kubectl") {
				admin.Type(t, c.Text)
				continue
			}
			shell.Type(t, strings.Replace(c.Text, "sha256:6e6f…", digest, 1))
		}
		p.Converges("four", fourth)
		assert.Equal(t, digest, p.Target().Ref)
	})
}
