package kargo

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Fake steps record the configuration that Kargo would pass to them.
func TestGitPromotion(t *testing.T) {
	t.Parallel()
	pushed := "1234567890123456789012345678901234567890" // only digits: unquoted, it would become a number
	got := map[string]map[string]any{}
	p := promote(t, "stoker-argocd",
		variable{"ref", "${{ quote(commitFrom('https://git.example.com/site.git').Tag) }}"}, variable{"repoURL", "https://git.example.com/deploy.git"},
		variable{"path", "plant/gatewaysync.yaml"}, variable{"application", "2"}, variable{"branch", "1.0"})
	p.commits[0].Tag = "1.10"
	p.others = map[string]func(map[string]any) (map[string]any, error){}
	for _, uses := range []string{"git-clone", "yaml-update", "git-commit", "git-push", "argocd-update"} {
		p.others[uses] = func(config map[string]any) (map[string]any, error) {
			got[uses] = config
			return map[string]any{"commit": pushed}, nil
		}
	}
	require.NoError(t, p.run(t.Context(), nil))
	require.Equal(t, succeeded, p.phase, p.message)
	assert.Equal(t, map[string]map[string]any{
		"git-clone":   {"repoURL": "https://git.example.com/deploy.git", "checkout": []any{map[string]any{"branch": "1.0", "path": "./deploy"}}},
		"yaml-update": {"path": "./deploy/plant/gatewaysync.yaml", "updates": []any{map[string]any{"key": "spec.git.ref", "value": "1.10"}}},
		"git-commit":  {"path": "./deploy", "message": "stoker: stoker-demo/test to 1.10"},
		"git-push":    {"path": "./deploy", "targetBranch": "1.0"},
		"argocd-update": {"apps": []any{map[string]any{"name": "2", "namespace": "argocd", "sources": []any{
			map[string]any{"repoURL": "https://git.example.com/deploy.git", "desiredRevision": pushed},
		}}}},
	}, got)
	assert.Equal(t, map[string]any{"ref": "1.10", "commit": pushed}, p.state["stoker"])
}

func TestGitPromotionRejectsNonStringRef(t *testing.T) {
	t.Parallel()
	for _, tag := range []string{"1.10", ""} {
		t.Run(fmt.Sprintf("%q", tag), func(t *testing.T) {
			p := promote(t, "stoker-argocd", variable{"ref", "${{ commitFrom('https://git.example.com/site.git').Tag }}"},
				variable{"repoURL", "x"}, variable{"path", "x"}, variable{"application", "x"})
			p.commits[0].Tag = tag
			require.NoError(t, p.run(t.Context(), nil)) // others is nil, so each of these steps would return an error of its own
			assert.Equal(t, failed, p.phase)
			assert.Contains(t, p.message, "the var ref of task stoker-argocd is not a string, or empty")
			for _, r := range p.done[1:] {
				assert.Equal(t, skipped, r.status, r.alias)
			}
		})
	}
}
