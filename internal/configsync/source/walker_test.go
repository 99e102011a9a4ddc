package source

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/configsync/builder"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/test/gitserver"
)

// G5: each tree is read once, however many paths a build looks up, and a run that is over looks up none.
func TestLookups(t *testing.T) {
	root := t.TempDir()
	edits := []gitserver.Edit{gitserver.Write("k8s/sub/a.yaml", "{}")}
	for i := range 1000 {
		edits = append(edits, gitserver.Write(fmt.Sprint("file-", i), "x"))
	}
	gitserver.NewRepo(t, filepath.Join(root, "plant.git")).Commit("first", edits...)
	server, err := gitserver.Start(root, gitserver.Options{})
	require.NoError(t, err)
	defer func() { require.NoError(t, server.Close()) }()
	remote, err := GitRemote(t.Context(), &v1alpha1.ConfigGit{RepoURL: server.URL("plant.git")}, nil, repo.RemoteOptions{})
	require.NoError(t, err)
	c, err := Open(t.Context(), remote, CommitSpec{Ref: "main"}, Slot{})
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Close()) }()

	ctx, cancel := context.WithCancelCause(t.Context())
	w, err := c.walker(ctx, nil, true)
	require.NoError(t, err)
	for path, want := range map[string]builder.Kind{"k8s/sub/a.yaml": builder.File, "k8s/sub": builder.Folder, "file-7": builder.File, "k8s/none": builder.Nothing, "file-7/x": builder.Nothing} {
		t.Run(path, func(t *testing.T) {
			got, err := w.Stat(path)
			require.NoError(t, err)
			assert.Equal(t, want, got)
		})
	}
	assert.Less(t, testing.AllocsPerRun(10, func() { _, _ = w.Stat("k8s/sub/a.yaml") }), 20.0)
	assert.Less(t, testing.AllocsPerRun(10, func() { _, _ = w.enter(".", w.root, 0) }), 20.0)

	w.trees, w.entries = map[plan.ID]*tree{}, maxEntries-1000
	_, err = w.Stat("k8s")
	assert.True(t, failure.Is(err, v1alpha1.ReasonLimitExceeded), "%v", err)
	over := errors.New("the run is over")
	cancel(over)
	_, err = w.Stat("file-7")
	assert.ErrorIs(t, err, over)
	_, _, err = c.Read(ctx, []string{"nothing"}, nil, nil, true)
	assert.ErrorIs(t, err, over)
}
