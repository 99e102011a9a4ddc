package offline

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/ignition/resource"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/effective"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/test/gitserver"
)

func gateway() Gateway {
	return Gateway{
		Profile: effective.Settings{Profile: "default", Mappings: []v1alpha1.Mapping{
			{Source: "projects", Destination: "projects"}, {Source: "names", Destination: "config/names", Template: true},
		}},
		Facts: plan.Facts{GatewayName: "line-1", PodName: "line-1", Namespace: "plant", CRName: "plant"}, Form: resource.Form83,
	}
}

func content(t *testing.T, tree *Tree) map[string]string {
	t.Helper()
	files := map[string]string{}
	for _, path := range tree.paths {
		b, err := tree.Read(path, 1<<20)
		require.NoError(t, err)
		files[path] = string(b)
	}
	return files
}

func open(t *testing.T, dir string) *Checkout {
	t.Helper()
	c, err := Open(dir)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, c.Close()) })
	return c
}

func (c *Checkout) at(t *testing.T, ref string) *Tree {
	t.Helper()
	at, err := c.Resolve(t.Context(), ref)
	require.NoError(t, err)
	tree, err := c.Tree(t.Context(), gateway(), at, "main")
	require.NoError(t, err)
	return tree
}

// A plan between two commits must turn the files of the first into those of the second, whatever they contain.
func TestPlanBetweenCommits(t *testing.T) {
	r := gitserver.NewRepo(t, filepath.Join(t.TempDir(), "plant.git"))
	random := rand.New(rand.NewPCG(1, 2))
	var commits []string
	for range 8 {
		files := map[string]string{"README": fmt.Sprint(len(commits)), "names/n.txt": fmt.Sprintf("{{.GatewayName}} %d", random.IntN(2))}
		for i := range 12 {
			// The same path can be a file in one commit and a directory in another.
			path := fmt.Sprintf("projects/p%d/x%d", i%3, i)
			if random.IntN(2) == 0 {
				path += "/inner"
			}
			if random.IntN(4) > 0 {
				files[path] = fmt.Sprint(random.IntN(3))
			}
		}
		commits = append(commits, r.Commit(fmt.Sprint(len(commits)), gitserver.Delete("projects"), gitserver.Files(files)))
	}
	c := open(t, r.Dir)
	for _, from := range commits {
		before := c.at(t, from)
		for _, to := range commits {
			after := c.at(t, to)
			changes, err := after.From(before)
			require.NoError(t, err)
			sizes, err := after.Check(changes)
			require.NoError(t, err)
			files := content(t, before)
			for _, ch := range changes.List {
				switch ch.Op {
				case plan.Create, plan.Update:
					var b bytes.Buffer
					require.NoError(t, after.CopyFile(&b, ch.Path))
					require.EqualValues(t, b.Len(), sizes[ch.Path])
					require.NotEqual(t, files[ch.Path], b.String(), "%s must change", ch.Path)
					files[ch.Path] = b.String()
				case plan.Delete:
					delete(files, ch.Path)
				}
				require.False(t, ch.Conflict, "%s must not be a conflict", ch.Path)
			}
			assert.Equal(t, content(t, after), files, "%s to %s", from, to)
			if from == to {
				assert.Empty(t, changes.List)
			}
		}
	}
}

func TestPlanForNewGateway(t *testing.T) {
	r := gitserver.NewRepo(t, filepath.Join(t.TempDir(), "plant.git"))
	r.Commit("first", gitserver.Files(map[string]string{"projects/a/x.json": "{}", "names/n.txt": "{{.GatewayName}} runs {{.Ref}}"}))
	tree := open(t, r.Dir).at(t, "HEAD")
	assert.Equal(t, map[string]string{"projects/a/x.json": "{}", "config/names/n.txt": "line-1 runs main"}, content(t, tree))
	changes, err := tree.From(&Tree{})
	require.NoError(t, err)
	assert.Equal(t, 2, changes.Counts().Added)
	_, err = tree.Read("projects/a/x.json", 1)
	assert.ErrorContains(t, err, "larger")
	_, err = tree.Read("nothing", 1)
	assert.ErrorContains(t, err, "there is no file")
}

func TestInvalidJSON(t *testing.T) {
	r := gitserver.NewRepo(t, filepath.Join(t.TempDir(), "plant.git"))
	r.Commit("first", gitserver.Write("projects/a/x.json", "{"))
	tree := open(t, r.Dir).at(t, "main")
	changes, err := tree.From(&Tree{})
	require.NoError(t, err)
	_, err = tree.Check(changes)
	assert.ErrorContains(t, err, "projects/a/x.json:1:")
}

// The checks of a tree end with the context of Tree, so that commands have a timeout and end on Ctrl-C.
func TestCanceledPlan(t *testing.T) {
	r := gitserver.NewRepo(t, filepath.Join(t.TempDir(), "plant.git"))
	r.Commit("first", gitserver.Write("projects/a/x.json", "{}"))
	c := open(t, r.Dir)
	at, err := c.Resolve(t.Context(), "main")
	require.NoError(t, err)
	ctx, cancel := context.WithCancelCause(t.Context())
	tree, err := c.Tree(ctx, gateway(), at, "main")
	require.NoError(t, err)
	changes, err := tree.From(&Tree{})
	require.NoError(t, err)
	late := errors.New("not done in time")
	cancel(late)
	_, err = tree.Check(changes)
	assert.ErrorIs(t, err, late)
}

func TestMissingCommitAndClone(t *testing.T) {
	r := gitserver.NewRepo(t, filepath.Join(t.TempDir(), "plant.git"))
	r.Commit("first", gitserver.Write("projects/a/x.json", "{}"))
	c := open(t, r.Dir)
	_, err := c.Tree(t.Context(), gateway(), repo.Resolution{Commit: plan.ID{1}}, "main")
	assert.Error(t, err)
	_, err = Open(filepath.Join(r.Dir, "nowhere"))
	assert.ErrorContains(t, err, "open the clone")
}

func TestEmbeddedSecrets(t *testing.T) {
	r := gitserver.NewRepo(t, filepath.Join(t.TempDir(), "plant.git"))
	r.Commit("c", gitserver.Write("projects/p/project.json", `{"a": {"encrypted_key": "x", "ciphertext": "planted"}}`))
	c := open(t, r.Dir)
	at, err := c.Resolve(t.Context(), "main")
	require.NoError(t, err)
	for _, policy := range []v1alpha1.EmbeddedSecretPolicy{v1alpha1.EmbeddedSecretWarn, v1alpha1.EmbeddedSecretRefuse} {
		t.Run(string(policy), func(t *testing.T) {
			g := gateway()
			g.Profile.EmbeddedSecretPolicy = policy
			tree, err := c.Tree(t.Context(), g, at, "main")
			require.NoError(t, err)
			changes, err := tree.From(&Tree{})
			require.NoError(t, err)
			faults := tree.Faults(changes, 10)
			if policy == v1alpha1.EmbeddedSecretRefuse {
				require.Len(t, faults, 1)
				assert.True(t, failure.Is(faults[0], v1alpha1.ReasonEmbeddedSecret), "%v", faults[0])
				_, err = tree.Check(changes)
				assert.True(t, failure.Is(err, v1alpha1.ReasonEmbeddedSecret), "%v", err)
				return
			}
			assert.Empty(t, faults)
			require.Len(t, changes.Warnings, 2, "the first is that the commit has no folder names")
			assert.Contains(t, changes.Warnings[1], "projects/p/project.json")
			assert.NotContains(t, changes.String(), "planted")
			assert.Contains(t, changes.String(), "embedded secrets are in git", "the plan must warn about the secrets")
		})
	}
}
