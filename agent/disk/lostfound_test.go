package disk

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/disk/lostfound"
	"stoker.io/stoker/agent/disk/safe"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

func TestConflictInLostAndFound(t *testing.T) {
	root := seeded(t)
	d := open(t, root, Options{Now: fixed})
	apply(t, d, text(map[string]string{"projects/p/a.json": "1", "projects/p/b.json": "1"}))
	put(t, root, "projects/p/a.json", "gateway a")
	put(t, root, "projects/p/b.json", "gateway b")
	two := text(map[string]string{"projects/p/a.json": "2"})
	res := apply(t, d, two)
	assert.Len(t, res.Saved, 2)

	saved := lost(t, d)
	run := "20261120T063000.000Z-" + two.id().Short()
	want := []Lost{
		{When: testTime, Path: "projects/p/a.json", Size: 9, Reason: "changed on the gateway and in git", Commit: two.id().String(), File: run + "/projects/p/a.json"},
		{When: testTime, Path: "projects/p/b.json", Size: 9, Reason: "not in git", Commit: two.id().String(), File: run + "/projects/p/b.json"},
	}
	assert.Empty(t, cmp.Diff(want, saved))
	assert.Equal(t, want, res.Saved)
	assert.Equal(t, "gateway b", savedContent(t, root, saved[1]))
	n, err := d.LostAndFoundBytes()
	require.NoError(t, err)
	assert.Equal(t, int64(18), n)

	put(t, root, "projects/p/a.json", "gateway c") // in the same millisecond
	assert.Len(t, apply(t, d, text(map[string]string{"projects/p/a.json": "2"})).Saved, 1)
	saved = lost(t, d)
	require.Len(t, saved, 3)
	assert.Equal(t, run+"-2/projects/p/a.json", saved[2].File)
}

func TestLostAndFoundDropsTheOldest(t *testing.T) {
	root := seeded(t)
	now := testTime
	o := Options{Now: func() time.Time { return now }, LostFoundMax: 25, LostFoundAge: 24 * time.Hour}
	d := open(t, root, o)
	apply(t, d, text(map[string]string{"projects/p/a": "git"}))
	kept := func() (got []string) {
		saved := lost(t, d)
		for _, l := range saved {
			got = append(got, savedContent(t, root, l)[:1])
		}
		list, err := os.ReadDir(filepath.Join(root, safe.OwnDir, lostfound.DirName))
		require.NoError(t, err)
		assert.Len(t, list, 2*len(saved), "one directory and one index for each run")
		return got
	}
	conflict := func(c string) (Result, error) {
		now = now.Add(time.Hour)
		put(t, root, "projects/p/a", c)
		return tryApply(t, d, text(map[string]string{"projects/p/a": "git " + c[:1]}))
	}
	for _, c := range []string{"1", "2", "3"} {
		t.Run(c, func(t *testing.T) {
			_, err := conflict(strings.Repeat(c, 10))
			require.NoError(t, err)
		})
	}
	assert.Equal(t, []string{"2", "3"}, kept(), "two versions fit into 25 bytes")

	_, err := conflict(strings.Repeat("4", 26))
	assert.True(t, failure.Is(err, v1alpha1.ReasonLimitExceeded), "%v", err)
	after := readTree(t, root)
	assert.Equal(t, "-rw-r--r-- "+strings.Repeat("4", 26), after["projects/p/a"], "the sync is refused before it changes a file")
	assert.Equal(t, []string{"2", "3"}, kept())

	_, err = conflict(strings.Repeat("5", 25))
	require.NoError(t, err)
	assert.Equal(t, []string{"5"}, kept())
}

// A restore replaces a directory only if lost+found can hold all its files.
func TestLostAndFoundLimitCountsDirectories(t *testing.T) {
	for name, tt := range map[string]struct {
		size int // of one file; the other has 13 bytes
		fits bool
	}{"fits": {12, true}, "too large": {13, false}} {
		t.Run(name, func(t *testing.T) {
			root := seeded(t)
			d := open(t, root, Options{Now: fixed, LostFoundMax: 25})
			syncTo(t, d, text(map[string]string{"projects/p/a": "git", "projects/p/b": "git"}), anySnapshots)
			syncTo(t, d, text(map[string]string{"projects/p/b": "git"}), anySnapshots)
			user := []string{strings.Repeat("1", tt.size), strings.Repeat("2", 13)}
			put(t, root, "projects/p/a/1", user[0])
			put(t, root, "projects/p/a/deep/2", user[1])
			_, err := takeBack(t, d, ids(t, d)[0], nil)
			if tt.fits {
				require.NoError(t, err)
				assert.Equal(t, "git", contents(t, root)["projects/p/a"])
			} else {
				require.True(t, failure.Is(err, v1alpha1.ReasonLimitExceeded), "%v", err)
				assert.Equal(t, user[0], contents(t, root)["projects/p/a/1"])
			}
			all := everything(t, root)
			assert.True(t, all[user[0]] && all[user[1]])
		})
	}
}

// lostClock saves versions of one file at given times and sets the mtime of each index to that time.
type lostClock struct {
	t    *testing.T
	root string
	now  time.Time
	d    *Dir
}

func newLostClock(t *testing.T) *lostClock {
	c := &lostClock{t: t, root: seeded(t), now: testTime}
	c.restart()
	apply(t, c.d, text(map[string]string{"projects/p/a": "git"}))
	return c
}

func (c *lostClock) restart() {
	if c.d != nil {
		require.NoError(c.t, c.d.Close())
	}
	c.d = open(c.t, c.root, Options{Now: func() time.Time { return c.now }, LostFoundAge: 30 * 24 * time.Hour})
}

func (c *lostClock) save(content string, at time.Time) {
	c.now = at
	before := c.runs()
	put(c.t, c.root, "projects/p/a", content)
	apply(c.t, c.d, text(map[string]string{"projects/p/a": "git " + content}))
	for _, run := range c.runs() {
		if !slices.Contains(before, run) {
			require.NoError(c.t, os.Chtimes(filepath.Join(c.root, safe.OwnDir, lostfound.DirName, run+".jsonl"), at, at))
		}
	}
}

func (c *lostClock) runs() (runs []string) {
	lost, err := c.d.LostAndFound()
	require.NoError(c.t, err)
	for _, l := range lost {
		run, _, _ := strings.Cut(l.File, "/")
		runs = append(runs, run)
	}
	return runs
}

func (c *lostClock) kept() (contents []string) {
	for _, run := range c.runs() {
		b, err := os.ReadFile(filepath.Join(c.root, safe.OwnDir, lostfound.DirName, run, "projects/p/a"))
		require.NoError(c.t, err)
		contents = append(contents, string(b))
	}
	return contents
}

const day = 24 * time.Hour

// A node without a battery-backed clock shows an old time until it is synchronized. Files saved before that must be kept as long as
// all others.
func TestLostAndFoundWithLateClock(t *testing.T) {
	c := newLostClock(t)
	c.save("a day of work", testTime.Add(-40*day))
	c.save("other work", testTime)
	assert.Equal(t, []string{"a day of work", "other work"}, c.kept())
	for _, later := range []time.Duration{time.Hour, day, 29 * day} {
		c.now = testTime.Add(later)
		c.restart()
		assert.Equal(t, []string{"a day of work", "other work"}, c.kept(), later)
	}
	c.save("more work", testTime.Add(31*day))
	assert.Equal(t, []string{"other work", "more work"}, c.kept())
}

// F28: a run that a program of the gateway dates to the future protects nothing, and goes first.
func TestLostAndFoundFromTheFuture(t *testing.T) {
	c := newLostClock(t)
	c.save("a day of work", testTime)
	forged := filepath.Join(c.root, safe.OwnDir, lostfound.DirName, "99991231T235959.000Z-0000000")
	require.NoError(t, os.MkdirAll(forged, 0o700))
	large, err := os.Create(filepath.Join(forged, "large"))
	require.NoError(t, err)
	require.NoError(t, large.Truncate(1<<30))
	require.NoError(t, large.Close())
	c.now = testTime.Add(day)
	c.restart()
	assert.Equal(t, []string{"a day of work"}, c.kept())
	assert.NoDirExists(t, forged)
}

// A run that cannot be read completely, here because it is too deep, neither hides the size of the others nor stops their removal.
func TestLostAndFoundWithUnreadableRun(t *testing.T) {
	c := newLostClock(t)
	c.save("old", testTime)
	deep := "20261120T070000.000Z-0000000/a" + strings.Repeat("/b", safe.MaxDepth+1)
	require.NoError(t, os.MkdirAll(filepath.Join(c.root, safe.OwnDir, lostfound.DirName, deep), 0o700))
	c.save("new", testTime.Add(time.Hour))
	n, err := c.d.LostAndFoundBytes()
	require.NoError(t, err)
	assert.Equal(t, int64(len("old")+len("new")), n)
	for _, at := range []time.Duration{31 * day, 62 * day} {
		c.now = testTime.Add(at)
		c.restart()
	}
	assert.NotContains(t, c.runs(), "20261120T063000.000Z-"+text(map[string]string{"projects/p/a": "git old"}).id().Short())
}

// If the clock jumps ahead, everything looks too old. Nothing may be removed then, nor after the clock is corrected.
func TestLostAndFoundWithClockJump(t *testing.T) {
	c := newLostClock(t)
	for i, content := range []string{"1", "2", "3"} {
		c.save(content, testTime.Add(time.Duration(i)*time.Hour))
	}
	c.now = testTime.Add(3650 * day)
	c.restart()
	assert.Equal(t, []string{"1", "2", "3"}, c.kept())
	c.now = testTime.Add(3 * day)
	c.restart()
	c.now = testTime.Add(32 * day)
	c.restart()
	assert.Equal(t, []string{"1", "2", "3"}, c.kept())
	c.now = testTime.Add(34 * day)
	c.restart()
	assert.Equal(t, []string{"3"}, c.kept(), "the newest run is kept")
}

// Lost+found drops a run after about twice LostFoundAge: at a start, at a sync, and even if the run has no index.
func TestLostAndFoundDropsExpired(t *testing.T) {
	for name, next := range map[string]func(*lostClock){
		"at a start": (*lostClock).restart,
		"at a sync":  func(c *lostClock) { c.save("at "+c.now.Format(time.DateOnly), c.now) },
		"no index": func(c *lostClock) {
			run := filepath.Join(c.root, safe.OwnDir, lostfound.DirName, "20261120T063000.000Z-"+strings.Repeat("0", 7))
			if c.now.Sub(testTime) < 32*day {
				require.NoError(c.t, os.MkdirAll(run, 0o700))
				require.NoError(c.t, os.Chtimes(run, testTime, testTime))
			}
			c.restart()
			if c.now.Sub(testTime) < 62*day {
				assert.DirExists(c.t, run)
			} else {
				assert.NoDirExists(c.t, run)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newLostClock(t)
			c.save("old", testTime)
			c.save("new", testTime.Add(time.Hour))
			for _, at := range []time.Duration{29 * day, 31 * day, 60 * day} {
				c.now = testTime.Add(at)
				next(c)
				assert.Contains(t, c.kept(), "old", at)
			}
			c.now = testTime.Add(62 * day)
			next(c)
			assert.NotContains(t, c.kept(), "old")
			assert.NotEmpty(t, c.kept())
		})
	}
}

// A directory of the gateway that is a conflict in the plan goes to lost+found with all its files.
func TestConflictingDirectoryGoesToLostAndFound(t *testing.T) {
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
	for _, l := range res.Saved {
		got = append(got, l.Path)
		assert.FileExists(t, filepath.Join(root, safe.OwnDir, lostfound.DirName, l.File))
	}
	assert.ElementsMatch(t, []string{"projects/p/a/deep/x", "projects/p/a/y"}, got)
	assertNoLeftovers(t, root)
}
