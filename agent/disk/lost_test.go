package disk

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

func TestConflictGoesToLostAndFoundWithItsStory(t *testing.T) {
	root := seeded(t)
	d := open(t, root, Options{Now: fixed})
	apply(t, d, text(map[string]string{"projects/p/a.json": "1", "projects/p/b.json": "1"}))
	put(t, root, "projects/p/a.json", "gateway a")
	put(t, root, "projects/p/b.json", "gateway b")
	two := text(map[string]string{"projects/p/a.json": "2"})
	res := apply(t, d, two)
	assert.Equal(t, 2, res.Saved)

	lost, err := d.LostAndFound()
	require.NoError(t, err)
	run := "20261120T063000.000Z-" + two.id().Short()
	want := []Lost{
		{When: testTime, Path: "projects/p/a.json", Size: 9, Why: "changed on the gateway, and git has another version", Commit: two.id().String(), File: run + "/projects/p/a.json"},
		{When: testTime, Path: "projects/p/b.json", Size: 9, Why: "not in git", Commit: two.id().String(), File: run + "/projects/p/b.json"},
	}
	assert.Empty(t, cmp.Diff(want, lost))
	assert.Equal(t, want, res.Lost)
	b, err := os.ReadFile(filepath.Join(root, ownDir, lostDir, lost[1].File))
	require.NoError(t, err)
	assert.Equal(t, "gateway b", string(b))
	n, err := d.LostAndFoundBytes()
	require.NoError(t, err)
	assert.Equal(t, int64(18), n)

	put(t, root, "projects/p/a.json", "gateway c") // in the same millisecond
	assert.Equal(t, 1, apply(t, d, text(map[string]string{"projects/p/a.json": "2"})).Saved)
	lost, err = d.LostAndFound()
	require.NoError(t, err)
	require.Len(t, lost, 3)
	assert.Equal(t, run+"-2/projects/p/a.json", lost[2].File)
}

func TestLostAndFoundDropsTheOldestAndNeverTheNewest(t *testing.T) {
	root := seeded(t)
	now := testTime
	o := Options{Now: func() time.Time { return now }, LostFoundMax: 25, LostFoundAge: 24 * time.Hour}
	d := open(t, root, o)
	apply(t, d, text(map[string]string{"projects/p/a": "git"}))
	kept := func() (got []string) {
		lost, err := d.LostAndFound()
		require.NoError(t, err)
		for _, l := range lost {
			b, err := os.ReadFile(filepath.Join(root, ownDir, lostDir, l.File))
			require.NoError(t, err)
			got = append(got, string(b[:1]))
		}
		list, err := os.ReadDir(filepath.Join(root, ownDir, lostDir))
		require.NoError(t, err)
		assert.Len(t, list, 2*len(lost), "a folder and an index each")
		return got
	}
	conflict := func(c string) (Result, error) {
		now = now.Add(time.Hour)
		put(t, root, "projects/p/a", c)
		return tryApply(t, d, text(map[string]string{"projects/p/a": "git " + c[:1]}))
	}
	for _, c := range []string{"1", "2", "3"} {
		_, err := conflict(strings.Repeat(c, 10))
		require.NoError(t, err)
	}
	assert.Equal(t, []string{"2", "3"}, kept(), "25 bytes hold two")

	before := snapshot(t, root)
	_, err := conflict(strings.Repeat("4", 26))
	assert.True(t, failure.Is(err, v1alpha1.ReasonLimitExceeded), "%v", err)
	delete(before, "projects/p/a")
	after := snapshot(t, root)
	assert.Equal(t, "-rw-r--r-- "+strings.Repeat("4", 26), after["projects/p/a"], "refused before anything is touched")
	assert.Equal(t, []string{"2", "3"}, kept())

	_, err = conflict(strings.Repeat("5", 25))
	require.NoError(t, err)
	assert.Equal(t, []string{"5"}, kept())

}

// A clock that jumps ahead makes every run look too old: the newest stays, and so does one whose index is younger than
// its name.
func TestLostAndFoundOutlivesAJumpOfTheClock(t *testing.T) {
	root := seeded(t)
	now := testTime
	o := Options{Now: func() time.Time { return now }, LostFoundAge: 24 * time.Hour}
	d := open(t, root, o)
	apply(t, d, text(map[string]string{"projects/p/a": "git"}))
	for i, c := range []string{"1", "2", "3"} {
		now = testTime.Add(time.Duration(i+1) * time.Hour)
		put(t, root, "projects/p/a", c)
		apply(t, d, text(map[string]string{"projects/p/a": "git " + c}))
	}
	lost, err := d.LostAndFound()
	require.NoError(t, err)
	require.Len(t, lost, 3)
	index := func(i int, at time.Time) {
		run, _, _ := strings.Cut(lost[i].File, "/")
		require.NoError(t, os.Chtimes(filepath.Join(root, ownDir, lostDir, run+indexSuffix), at, at))
	}
	now = testTime.Add(10 * 365 * 24 * time.Hour)
	index(0, testTime)
	index(1, now.Add(-time.Hour))
	index(2, testTime)
	require.NoError(t, d.Close())
	d = open(t, root, o)
	left, err := d.LostAndFound()
	require.NoError(t, err)
	assert.Equal(t, lost[1:], left)
}

// A directory of the gateway's own that the plan knows of goes to lost+found whole.
func TestDirectoryInConflictGoesToLostAndFoundWhole(t *testing.T) {
	root := seeded(t)
	d := open(t, root, Options{})
	put(t, root, "projects/p/a/deep/x", "x")
	put(t, root, "projects/p/a/y", "y")
	want := text(map[string]string{"projects/p/a": "file"})
	ch := planFor(t, d, want)
	ch.List[0].Conflict = true
	s, err := d.Stage(t.Context(), ch, nil, want.source())
	require.NoError(t, err)
	res, err := s.Apply(t.Context(), head(want))
	require.NoError(t, err)
	assert.Equal(t, "file", contents(t, root)["projects/p/a"])
	var got []string
	for _, l := range res.Lost {
		got = append(got, l.Path)
		assert.FileExists(t, filepath.Join(root, ownDir, lostDir, l.File))
	}
	assert.ElementsMatch(t, []string{"projects/p/a/deep/x", "projects/p/a/y"}, got)
	assertNoLeftovers(t, root)
}
