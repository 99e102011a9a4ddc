package disk

import (
	"fmt"
	"iter"
	"strings"
	"time"

	"stoker.io/stoker/agent/disk/format"
	"stoker.io/stoker/agent/disk/safe"
	"stoker.io/stoker/agent/ignition/resource"
	"stoker.io/stoker/agent/plan"
)

// ForeignError means that the gateway wrote files between the plan and their replacement. Either the caller does not
// want such files replaced (see RefuseForeign), or they belong to a resource of which the run replaces only a part (see
// foreignCheck.torn). The next plan treats these files as conflicts.
type ForeignError struct {
	Paths []string // sorted
}

func (e *ForeignError) Error() string {
	shown, more := e.Paths, ""
	if len(shown) > 3 {
		shown, more = shown[:3], fmt.Sprintf(" and %d more", len(e.Paths)-3)
	}
	return fmt.Sprintf("the gateway wrote %s%s during the sync; the sync was rolled back", strings.Join(shown, ", "), more)
}

// RefuseForeign makes Apply roll back and return a *ForeignError if it replaced or removed something that the plan did
// not see, other than the gateway's own rewriting. This also applies to recovery. Without it, such files go to
// lost+found and the sync continues. It must be called before Apply.
func (s *Staged) RefuseForeign() {
	s.d.writing.Lock()
	defer s.d.writing.Unlock()
	s.run.RefuseForeign = true
}

// foreignCheck compares what a run displaced with what the plan saw.
type foreignCheck struct{ run *run }

// check returns a *ForeignError for the files that the gateway wrote after the plan.
func (r foreignCheck) check() error {
	// If the new manifest is already in place, the run was checked before the crash.
	if r.run.replayed && format.BaseOf(r.run.d.manifest()) != r.run.Base {
		return nil
	}
	f := &ForeignError{}
	for i := range r.run.Changes {
		if !format.Moves(r.run.Changes[i].Op) {
			continue
		}
		name, err := r.run.displacedName(i)
		if err != nil {
			return err
		}
		if name == "" {
			continue
		}
		foreign, err := r.torn(i, name)
		if err == nil && !foreign && r.run.RefuseForeign {
			foreign, err = r.foreign(i, name)
		}
		if err != nil {
			return err
		}
		if foreign {
			f.Paths = append(f.Paths, r.run.Changes[i].Path)
		}
	}
	if len(f.Paths) > 0 {
		return f
	}
	return nil
}

// foreign reports whether a displaced file is neither what the plan saw, nor what git wants, nor rewritten by the gateway itself.
func (r foreignCheck) foreign(i int, name string) (bool, error) {
	c, stg := &r.run.Changes[i], r.run.stagingOf(i)
	fi, err := stg.Lstat(name)
	if err != nil {
		return false, err
	}
	switch safe.KindOf(fi.Mode()) {
	case plan.File:
		id, err := r.run.hash(stg, name)
		if err != nil || format.Writes(c.Op) && id == c.ID || c.Found.Kind == plan.File && id == c.FoundID && !id.IsZero() {
			return false, err
		}
		return !r.rewritten(i, stg, name, id), nil
	case c.Found.Kind: // a directory or a link, as the plan saw it
		return false, nil
	case plan.Dir:
		_, reason, err := r.run.reasonToSave(i, name)
		return reason != "", err // an empty directory has nothing to keep
	}
	return true, nil
}

// torn reports whether the run would leave a resource half from git and half from a Designer: the displaced file belongs to a
// resource that was saved on the gateway since the plan, and the run does not replace its resource.json. The gateway might
// compare only the resource.json and keep the version that it has loaded, and no later check would see the difference. After the
// run is undone, the next plan replaces the whole resource.
func (r foreignCheck) torn(i int, name string) (bool, error) {
	c, stg := &r.run.Changes[i], r.run.stagingOf(i)
	fi, err := stg.Lstat(name)
	if err != nil || safe.KindOf(fi.Mode()) != plan.File {
		return false, err
	}
	if now := safe.StatOf(fi); now.Size == c.Found.Size && now.Mtime == c.Found.Mtime {
		return false, nil
	}
	dir, _ := safe.Split(c.Path)
	saved, err := r.savedSince(dir + "/" + resource.File)
	if err != nil || !saved {
		return false, err
	}
	id, err := r.run.hash(stg, name)
	return id.IsZero() || id != c.FoundID && id != c.ID, err
}

// savedSince reports whether an owned file that the run leaves in place, unchanged or adopted, has other bytes than the plan saw.
func (r foreignCheck) savedSince(path string) (bool, error) {
	seen, known, err := r.run.d.manifest().Get(path)
	if i := r.run.Find(path); i >= 0 {
		c := &r.run.Changes[i]
		seen, known, err = plan.Owned{Have: c.FoundID, Size: c.Found.Size, Mtime: c.Found.Mtime}, c.Op == plan.Adopt, nil
	}
	if err != nil || !known {
		return false, err
	}
	st, err := r.run.d.Stat(path)
	if err != nil || st.Kind != plan.File || st.Size == seen.Size && st.Mtime == seen.Mtime {
		return false, err
	}
	id, err := r.run.d.BlobID(path)
	return id != seen.Have, err
}

// rewritten reports whether the gateway only rewrote the file, so that Drift would adopt it.
func (r foreignCheck) rewritten(i int, folder *safe.Folder, name string, id plan.ID) bool {
	rec, owned, err := r.run.d.manifest().Get(r.run.Changes[i].Path)
	return err == nil && owned && r.run.d.rewritten(folder, name, rec, id)
}

// cycle is the time in which Drift reads every file once. A day is not a multiple of it, so that an agent that is stopped at the
// same hour each day does not skip the same files each time.
const cycle = 11 * time.Hour

// knownCtimes is what Drift remembers for the next call: the ctime of each file that matched the manifest. A file with the same
// ctime has not changed since.
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
