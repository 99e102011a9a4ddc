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
	s, err := parse(args, io.Discard)
	require.NoError(t, err)
	return s
}

// large is a run on L in which the agent takes the given time and memory for a one-file commit.
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

func TestGoalsAreMetOrMissedByTheirFigures(t *testing.T) {
	s := settingsFor(t, "-sizes", "L")
	const (
		floor  = ", agent --once: at most 1.25 × git fetch alone"
		peer   = ", agent --once: at least 25 times faster than git + checkout + rsync -c"
		memory = ", agent --once: at most 28 MiB of anonymous memory"
		pack   = ": at most 1 kB of pack beside the file"
	)
	want := map[string]string{floor: "met", peer: "met", memory: "met", pack: "met"}
	assert.Equal(t, want, verdicts(large(210*time.Millisecond, 20<<20, 5900), s))
	want[floor], want[peer] = "**missed**", "**missed**"
	assert.Equal(t, want, verdicts(large(260*time.Millisecond, 20<<20, 5900), s))
	want[memory], want[pack] = "**missed**", "**missed**"
	assert.Equal(t, want, verdicts(large(260*time.Millisecond, 29<<20, 6001), s))
}

func TestAGoalWithoutAMeasurementIsLeftOut(t *testing.T) {
	assert.Empty(t, results{}.goals(settingsFor(t)))
}

func TestTheReportIsMarkdownWithMedians(t *testing.T) {
	s := settingsFor(t, "-sizes", "L", "-cases", "one")
	r := large(210*time.Millisecond, 20<<20, 5900)
	r.add("L", "one", fetch, sample{wall: 400 * time.Millisecond})
	r.add("L", "one", fetch, sample{wall: 300 * time.Millisecond})
	var out strings.Builder
	require.NoError(t, r.write(&out, s))
	assert.Regexp(t, `\| one file changed +\| git fetch alone +\| 0\.300 +\| 0\.200 – 0\.400 +\|`, out.String())
	assert.Regexp(t, `\| L: one file changed, agent --once: at most 1\.25 × git fetch alone +\| 0\.70 × +\| met +\|`, out.String())
	for line := range strings.Lines(out.String()) {
		if strings.HasPrefix(line, "|") {
			assert.True(t, strings.HasSuffix(line, "|\n"), line)
		}
	}
}

func TestUnknownNamesOnTheCommandLineAreRefused(t *testing.T) {
	for _, args := range [][]string{{"-sizes", "X"}, {"-cases", "two"}, {"-n", "0"}, {"-n", "10"}} {
		_, err := parse(args, io.Discard)
		assert.Error(t, err, args)
	}
}
