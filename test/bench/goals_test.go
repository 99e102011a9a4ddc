package main

import (
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func settingsFor(t *testing.T, args ...string) settings {
	t.Helper()
	s, err := parse(args, io.Discard, "S,M,L,H")
	require.NoError(t, err)
	return s
}

// large returns a run on L in which the agent takes the given time, memory and bytes of pack for a one-file commit.
func large(agent time.Duration, anon, pack int64) results {
	r := results{}
	r.add("L", "one", once, sample{wall: agent, anon: anon, pack: pack, changed: 5000})
	r.add("L", "one", fetch, sample{wall: 200 * time.Millisecond})
	r.add("L", "one", rsync, sample{wall: 6 * time.Second})
	return r
}

func verdicts(r results, s settings) map[string]string {
	all := map[string]string{}
	for _, g := range r.goals(s) {
		all[strings.TrimPrefix(g.what, "L: one file changed")] = g.verdict
	}
	return all
}

func TestGoals(t *testing.T) {
	s := settingsFor(t, "-sizes", "L")
	const (
		floor  = ", agent --once: at most 1.25 × git fetch alone"
		peer   = ", agent --once: at least 25 times faster than git + checkout + rsync -c"
		memory = ", agent --once: at most 28 MiB of anonymous memory"
		pack   = ": at most 1 kB of pack besides the file"
	)
	want := map[string]string{floor: "met", peer: "met", memory: "met", pack: "met"}
	assert.Equal(t, want, verdicts(large(210*time.Millisecond, 20<<20, 5900), s))
	want[floor], want[peer] = "**missed**", "**missed**"
	assert.Equal(t, want, verdicts(large(260*time.Millisecond, 20<<20, 5900), s))
	want[memory], want[pack] = "**missed**", "**missed**"
	assert.Equal(t, want, verdicts(large(260*time.Millisecond, 29<<20, 6001), s))
}

// verdictOf returns the verdict on the goal whose text contains a phrase.
func verdictOf(t *testing.T, r results, size, phrase string) string {
	t.Helper()
	var found []string
	for _, g := range r.goals(settingsFor(t, "-sizes", size)) {
		if strings.Contains(g.what, phrase) {
			found = append(found, g.verdict)
		}
	}
	require.Len(t, found, 1, phrase)
	return found[0]
}

func TestMissedGoals(t *testing.T) {
	const met, missed = "met", "**missed**"
	for _, c := range []struct {
		name, size, phrase string
		benchCase, who     string
		good, bad          sample
		peerCase, peer     string
		peerSample         sample
	}{
		{name: "durability", size: "M", phrase: "nothing durable", benchCase: "first", who: once,
			good: sample{wall: 1250 * time.Millisecond}, bad: sample{wall: 1260 * time.Millisecond}, peerCase: "first", peer: unsynced, peerSample: sample{wall: time.Second}},
		{name: "a limit on CPU", size: "M", phrase: "Guaranteed", benchCase: "first", who: guaranteed,
			good: sample{wall: 1250 * time.Millisecond}, bad: sample{wall: 1260 * time.Millisecond}, peerCase: "first", peer: once, peerSample: sample{wall: time.Second}},
		{name: "drift", size: "L", phrase: "drift check", benchCase: "drift", who: once, good: sample{wall: 1500 * time.Millisecond}, bad: sample{wall: 1501 * time.Millisecond}},
		{name: "container", size: "H", phrase: "container of 64 MiB", benchCase: "first", who: once, good: sample{anon: 1}, bad: sample{anon: 1, killed: true}},
		{name: "largest file", size: "H", phrase: "largest file", benchCase: "first", who: once, good: sample{anon: 39 << 20}, bad: sample{anon: 40 << 20}},
	} {
		t.Run(c.name, func(t *testing.T) {
			judged := func(s sample) string {
				r := results{}
				r.add(c.size, c.benchCase, c.who, s)
				if c.peer != "" {
					r.add(c.size, c.peerCase, c.peer, c.peerSample)
				}
				return verdictOf(t, r, c.size, c.phrase)
			}
			assert.Equal(t, met, judged(c.good))
			assert.Equal(t, missed, judged(c.bad))
		})
	}
}

func TestKilledContestant(t *testing.T) {
	r := results{}
	r.add("H", "first", rsync, sample{wall: time.Second, killed: true})
	r.add("H", "first", rsync, sample{wall: 5 * time.Second})
	assert.Regexp(t, `\| first sync \| git \+ checkout \+ rsync -c \| killed \(1 of 2\) +\| +\|`, report(t, r, "-sizes", "H"))
}

func report(t *testing.T, r results, args ...string) string {
	t.Helper()
	var out strings.Builder
	require.NoError(t, r.write(&out, settingsFor(t, args...)))
	return out.String()
}

func TestUnmeasuredGoal(t *testing.T) {
	assert.Empty(t, results{}.goals(settingsFor(t)))
}

func TestReportFormat(t *testing.T) {
	r := large(210*time.Millisecond, 20<<20, 5900)
	r.add("L", "one", fetch, sample{wall: 400 * time.Millisecond})
	r.add("L", "one", fetch, sample{wall: 300 * time.Millisecond})
	out := report(t, r, "-sizes", "L", "-cases", "one")
	assert.Regexp(t, `\| one file changed +\| git fetch alone +\| 0\.300 +\| 0\.200 – 0\.400 +\|`, out)
	assert.Regexp(t, `\| L: one file changed, agent --once: at most 1\.25 × git fetch alone +\| 0\.70 × +\| met +\|`, out)
	for line := range strings.Lines(out) {
		if strings.HasPrefix(line, "|") {
			assert.True(t, strings.HasSuffix(line, "|\n"), line)
		}
	}
}

func TestUnknownArguments(t *testing.T) {
	for _, args := range [][]string{{"-sizes", "X"}, {"-cases", "two"}, {"-n", "0"}, {"-n", "10"}} {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			_, err := parse(args, io.Discard, "S,M,L,H")
			assert.Error(t, err)
		})
	}
}

func TestMissedGoalsOfSafeChanges(t *testing.T) {
	for name, c := range map[string]struct {
		change func(results, *safeFigures)
		missed string
	}{
		"all goals met": {func(results, *safeFigures) {}, ""},
		"slow snapshot": {func(r results, _ *safeFigures) {
			r[key{"M", "one", withSnapshots}] = []sample{{apply: 9 * time.Millisecond}, {apply: 9 * time.Millisecond}}
		}, "one file changed"},
		"snapshot with high CPU use": {func(r results, _ *safeFigures) {
			r[key{"M", "hundred", withSnapshots}] = []sample{{cpu: 106 * time.Millisecond}}
		}, "hundred files changed"},
		"slow restore": {func(r results, _ *safeFigures) {
			r[key{"M", "few", withSnapshots}] = []sample{{wall: 501 * time.Millisecond}}
		}, "restore of hundred files"},
		"slow restore of all files": {func(r results, _ *safeFigures) {
			r[key{"M", "all", withSnapshots}] = []sample{{wall: 7 * time.Second, anon: 1}}
		}, "restore of all files: at most 6 s"},
		"restore of all files with much memory": {func(r results, _ *safeFigures) {
			r[key{"M", "all", withSnapshots}] = []sample{{wall: time.Second, anon: 2}}
		}, "restore of all files: at most the anonymous memory"},
		"not measured":             {func(r results, _ *safeFigures) { delete(r, key{"M", "few", withSnapshots}) }, "restore of hundred files"},
		"request during a restore": {func(_ results, f *safeFigures) { f.requests = 1 }, "restores: no request"},
		"large snapshots":          {func(_ results, f *safeFigures) { f.snapshots = 5*(100+snapshotNotes) + 51 }, "5 snapshots of one file"},
		"snapshots while disabled": {func(_ results, f *safeFigures) { f.left = []string{"a"} }, "nothing enabled"},
		"large agent":              {func(_ results, f *safeFigures) { f.binary = maxAgent + 1 }, "the agent"},
	} {
		t.Run(name, func(t *testing.T) {
			r := results{}
			for _, who := range []string{withSnapshots, withoutSnapshots} {
				r.add("M", "first", who, sample{anon: 1})
				r.add("M", "one", who, sample{apply: 5 * time.Millisecond})
				r.add("M", "hundred", who, sample{cpu: 100 * time.Millisecond})
			}
			r.add("M", "few", withSnapshots, sample{wall: 100 * time.Millisecond})
			r.add("M", "all", withSnapshots, sample{wall: time.Second, anon: 1})
			f := &safeFigures{snapshots: 5*100 + 50, manifest: 100, changed: 50}
			c.change(r, f)
			var missed []string
			for _, g := range safeGoals(settingsFor(t, "-sizes", "M"), r, map[string]*safeFigures{"M": f}) {
				if g.verdict != "met" {
					missed = append(missed, g.what)
				}
			}
			if c.missed == "" {
				assert.Empty(t, missed)
				return
			}
			require.Len(t, missed, 1)
			assert.Contains(t, missed[0], "M: "+c.missed)
		})
	}
}

// A row of the agent that takes more than a half longer than on the page fails the run, whatever the speed of the machine is.
func TestSlowerThanThePage(t *testing.T) {
	page := `### L: 100000 files
| one file changed | agent --once              | 0.200 | |
| one file changed | git + checkout + rsync -c | 6.000 | |
| one file changed | git fetch alone           | 0.200 | |
`
	for name, c := range map[string]struct {
		agent   time.Duration
		machine float64
		rounds  string
		fails   bool
	}{
		"equal":                    {200 * time.Millisecond, 1, "3", false},
		"slower":                   {320 * time.Millisecond, 1, "3", true},
		"slow machine":             {580 * time.Millisecond, 2, "3", false},
		"slower on a slow machine": {640 * time.Millisecond, 2, "3", true},
		"one round":                {320 * time.Millisecond, 1, "1", false},
	} {
		t.Run(name, func(t *testing.T) {
			r := results{}
			r.add("L", "one", once, sample{wall: c.agent})
			r.add("L", "one", fetch, sample{wall: time.Duration(c.machine * float64(200*time.Millisecond))})
			r.add("L", "one", rsync, sample{wall: time.Duration(c.machine * float64(6*time.Second))})
			var out strings.Builder
			err := r.compare(&out, page, settingsFor(t, "-sizes", "L", "-n", c.rounds))
			if !c.fails {
				assert.NoError(t, err)
				assert.Empty(t, out.String())
				return
			}
			assert.ErrorIs(t, err, errSlower)
			assert.Contains(t, out.String(), "| L    | one file changed | agent --once |")
			assert.Contains(t, out.String(), "| 1.6 ×")
		})
	}
	figures, err := readFigures()
	require.NoError(t, err)
	assert.NotEmpty(t, tables(figures)["M"]["one file changed"], "the page must have tables that the bench can read")
}
