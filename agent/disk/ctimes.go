package disk

import (
	"iter"
	"time"

	"stoker.io/stoker/agent/disk/format"
	"stoker.io/stoker/agent/plan"
)

// cycle is the time in which Drift reads every file once. A day is not a multiple of it, so that an agent that is stopped at the
// same hour each day does not skip the same files each time.
const cycle = 11 * time.Hour

// knownCtimes is what Drift remembers for the next call: the ctime of each file that matched the manifest. A file with the same
// ctime counts as unchanged.
type knownCtimes struct {
	manifest *format.Manifest
	ctimes   []int64   // one for each file of manifest, in its order; 0 if the next comparison has to read the file
	at       time.Time // of the last comparison
}

// reader returns a ctimeReader for the next comparison.
func (c knownCtimes) reader() *ctimeReader {
	r := &ctimeReader{ctimes: c.ctimes, stop: func() {}}
	if c.manifest != nil {
		r.next, r.stop = iter.Pull2(c.manifest.All(""))
		r.advance()
	}
	return r
}

// ctimeReader looks up the ctimes of a comparison. Lookups must be in the order of paths.
type ctimeReader struct {
	next   func() (plan.Owned, error, bool)
	stop   func()
	ctimes []int64 // of rec and the records after it
	rec    plan.Owned
}

func (r *ctimeReader) advance() {
	rec, err, ok := r.next()
	if r.rec = rec; !ok || err != nil {
		r.ctimes = nil
	}
}

// ctimeOf returns the ctime of a record's file. It returns false unless the last comparison had exactly this record.
func (r *ctimeReader) ctimeOf(rec plan.Owned) (int64, bool) {
	for len(r.ctimes) > 0 && r.rec.Path < rec.Path {
		r.ctimes = r.ctimes[1:]
		r.advance()
	}
	if len(r.ctimes) == 0 || r.rec != rec {
		return 0, false
	}
	return r.ctimes[0], true
}

// shareToRead selects the files that a comparison at time to has to read if the last one was at time from. The selected share of
// the n files equals the share of the cycle that has elapsed. Which files these are depends only on the clock, so that a
// restarted agent continues the cycle. If from is zero or not before to, it selects no files: the share begins with the next
// comparison.
func shareToRead(n int, from, to time.Time) func(i int) bool {
	if from.IsZero() || !to.After(from) {
		return func(int) bool { return false }
	}
	if to.Sub(from) >= cycle {
		return func(int) bool { return true }
	}
	// position counts the files that all cycles up to t read.
	position := func(t time.Time) int {
		cycles, rest := t.UnixNano()/int64(cycle), t.UnixNano()%int64(cycle)
		return int(cycles)*n + int(float64(n)*float64(rest)/float64(cycle))
	}
	first, end := position(from), position(to)
	return func(i int) bool { return (i+n-first%n)%n < end-first }
}
