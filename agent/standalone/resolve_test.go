package standalone

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/loop"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/test/gitserver"
)

// clocked replaces the clock of a desk. The result advances it until every poll is due, and returns the Decision that follows.
func clocked(d *desk) (later func() loop.Decision) {
	now := time.Now()
	d.loop.Now = func() time.Time { return now }
	return func() loop.Decision {
		now = now.Add(time.Hour)
		return d.loop.Decide(d.t.Context(), false)
	}
}

func requireOrder(t *testing.T, w loop.Decision, ref, commit string) {
	t.Helper()
	require.Empty(t, w.Problems)
	require.Equal(t, ref, w.Order.Ref)
	require.Equal(t, commit, w.Order.Commit.String())
}

// requireMoved requires that the agent follows no ref, and stays at commit.
func requireMoved(t *testing.T, w loop.Decision, commit string) {
	t.Helper()
	require.Len(t, w.Problems, 1)
	require.Equal(t, v1alpha1.ReasonRefMoved, w.Problems[0].Reason)
	require.Equal(t, commit, w.Order.Commit.String())
}

func rollbackTo(commit, unless string) string {
	return fmt.Sprintf("stoker.io/requested-ref: %q, stoker.io/requested-unless: %q", commit, unless)
}

func requestAt(ref, commit string) string {
	return fmt.Sprintf("stoker.io/requested-ref: %q, stoker.io/requested-commit: %q", ref, commit)
}

func TestRollbackEndsWhenSpecRefMoves(t *testing.T) {
	d := newDesk(t)
	later := clocked(d)
	first := d.repo.Commit("first", gitserver.Write("a/x", "1"))
	second := d.repo.Commit("second", gitserver.Write("a/x", "2"))
	requireOrder(t, d.saved("", "main", "", ""), "main", second)

	requireOrder(t, d.saved(rollbackTo(first, second), "main", "", ""), first, first)
	requireOrder(t, later(), first, first)
	third := d.repo.Commit("third", gitserver.Write("a/x", "3"))
	requireOrder(t, later(), "main", third)
	d.repo.ForcePush(second)
	requireOrder(t, later(), "main", second) // a lapsed request stays lapsed
}

func TestRollbackWithMissingSpecRef(t *testing.T) {
	d := newDesk(t)
	later := clocked(d)
	first := d.repo.Commit("first", gitserver.Write("a/x", "1"))
	second := d.repo.Commit("second", gitserver.Write("a/x", "2"))
	third := d.repo.Commit("third", gitserver.Write("a/x", "3"))
	requireOrder(t, d.saved(rollbackTo(first, second), "release", "", ""), first, first)
	d.repo.Branch("release", second)
	requireOrder(t, later(), first, first)
	d.repo.DeleteBranch("release")
	requireOrder(t, later(), first, first)
	d.repo.Branch("release", third)
	requireOrder(t, later(), "release", third)
}

// A rollback from one commit to another depends on no ref that can move.
func TestRollbackFromCommitIsNotPolled(t *testing.T) {
	d := newDesk(t)
	clocked(d)
	first := d.repo.Commit("first", gitserver.Write("a/x", "1"))
	second := d.repo.Commit("second", gitserver.Write("a/x", "2"))
	w := d.saved(rollbackTo(first, second), second, "", "")
	requireOrder(t, w, first, first)
	assert.Greater(t, w.Due.Sub(d.loop.Now()), 365*24*time.Hour)
}

func TestRefusedRequestStaysRefused(t *testing.T) {
	d := newDesk(t)
	later := clocked(d)
	first := d.repo.Commit("first", gitserver.Write("a/x", "1"))
	requireOrder(t, d.saved("", "main", "", ""), "main", first)
	w := d.saved(requestAt("v2", first), "main", "", "")
	require.Len(t, w.Problems, 1)
	require.Equal(t, v1alpha1.ReasonRefNotFound, w.Problems[0].Reason, "v2 may be pushed later")

	second := d.repo.Commit("second", gitserver.Write("a/x", "2"))
	d.repo.Branch("v2", second)
	requireMoved(t, later(), first)
	d.repo.Branch("v2", first)
	w = later()
	requireMoved(t, w, first)
	assert.Equal(t, "main", w.Order.Ref, "the refused ref is not followed, even if it returns")
	requireMoved(t, d.saved(requestAt("v2", first), "main", "", ", prune: mirror"), first)
	requireOrder(t, d.saved(requestAt("v2", first)+", stoker.io/requested-over: v2@main again", "main", "", ""), "v2", first)
}

func TestRefThatMovesAfterRequest(t *testing.T) {
	d := newDesk(t)
	later := clocked(d)
	first := d.repo.Commit("first", gitserver.Write("a/x", "1"))
	second := d.repo.Commit("second", gitserver.Write("a/x", "2"))
	d.repo.Branch("v2", first)
	requireOrder(t, d.saved(requestAt("v2", first), "main", "", ""), "v2", first)
	d.repo.Branch("v2", second)
	requireMoved(t, later(), first)
	d.repo.Branch("v2", first)
	requireOrder(t, later(), "v2", first)
}
