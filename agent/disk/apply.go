package disk

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"stoker.io/stoker/agent/disk/format"
	"stoker.io/stoker/agent/plan"
)

// Result describes what an Apply did.
type Result struct {
	Created, Updated, Deleted, Adopted, Released, Kept int
	// Saved counts the entries that went to lost+found; Lost describes them.
	Saved int
	Lost  []Lost
	// Applied reports whether the new files are live. If Apply returns an error and Applied is true, some of them may be
	// live: the next Open or Stage finishes or rolls back the sync.
	Applied bool
}

// Apply makes the staged files live, removes deleted ones, and writes the manifest with header; Apply sets
// header.Files. If there is nothing to do it writes nothing.
//
// If ctx is done before the first file moves, Apply discards the stage. After that it ignores ctx: it is short, and
// either finishes or, after an error, rolls back.
func (s *Staged) Apply(ctx context.Context, header plan.Header) (Result, error) {
	d, r := s.d, s.run
	d.work.Lock()
	defer d.work.Unlock()
	if s.done {
		return Result{}, errors.New("the staged changes were already applied or discarded")
	}
	if err := ctx.Err(); err != nil {
		return Result{}, errors.Join(err, s.discard())
	}
	if err := d.Current(); err != nil {
		return Result{}, errors.Join(err, s.discard())
	}
	r.Header = header
	if len(r.Tasks) == 0 {
		s.done = true
		r.close()
		err := r.recordOnly()
		return r.result(err == nil), err
	}
	s.done = true
	defer r.close()
	r.Base = format.BaseOf(d.manifest())
	written, err := d.own.Write(journalFile, r.Encode)
	switch {
	case err == nil:
		return r.finish()
	case written: // the journal may not be durable; nothing has moved, so rolling back only drops it
		return r.takeBack(err)
	default:
		return Result{}, errors.Join(err, (recovery{d}).recoverAndClean())
	}
}

// finish completes a run that has a journal, and rolls it back after an error.
func (r *run) finish() (Result, error) {
	err := mover{r}.move()
	if err == nil {
		err = foreignCheck{r}.check()
	}
	if err == nil {
		err = r.keepDisplaced()
	}
	if err == nil {
		err = r.syncNames()
	}
	committed := false
	if err == nil {
		committed, err = r.commit()
	}
	switch {
	case err == nil:
		if err := (recovery{r.d}).recoverAndClean(); err != nil {
			r.d.log.Warn("cannot clean up after the sync", "error", err)
		}
		if r.retain.Count > 0 {
			if err := r.d.snapshots.Prune(r.retain); err != nil {
				r.d.log.Warn("cannot prune snapshots", "error", err)
			}
		}
		return r.result(true), nil
	case committed:
		return r.result(true), fmt.Errorf("the new files are live, but the end of the sync could not be recorded; the agent retries: %w", err)
	}
	return r.takeBack(err)
}

// takeBack rolls back a failed run.
func (r *run) takeBack(cause error) (Result, error) {
	if err := (rollback{r}).undo(); err != nil {
		return Result{Applied: true}, fmt.Errorf("%w; the rollback failed and is retried: %w", cause, err)
	}
	return Result{}, errors.Join(cause, (recovery{r.d}).recoverAndClean())
}

func (r *run) result(applied bool) Result {
	res := Result{Applied: applied, Saved: len(r.saved()), Lost: r.saved()}
	for i := range r.Changes {
		switch r.Changes[i].Op {
		case plan.Create:
			res.Created++
		case plan.Update:
			res.Updated++
		case plan.Delete:
			res.Deleted++
		case plan.Adopt:
			res.Adopted++
		case plan.Release:
			res.Released++
		case plan.Keep:
			res.Kept++
		}
	}
	return res
}

// commit writes the manifest, which is the point of no return, and removes the journal.
func (r *run) commit() (committed bool, err error) {
	h := r.Header
	h.Complete = h.Complete && !r.doubtful
	if committed, err = r.rewrite(h); err != nil {
		return committed, err
	}
	return true, r.d.own.Drop(journalFile)
}

// rewrite writes the manifest that the run ends with.
func (r *run) rewrite(h plan.Header) (renamed bool, err error) {
	if r.From == "" {
		return r.d.rewrite(h, r.d.manifest(), r.Edits())
	}
	then, err := r.d.snapshots.Manifest(r.From)
	if err != nil {
		return false, err
	}
	renamed, err = r.d.rewrite(h, then, r.Edits())
	return renamed, errors.Join(err, then.Close())
}

// recordOnly writes the manifest of a run that moves no file, if anything in it changes.
func (r *run) recordOnly() error {
	if r.From == "" {
		if same, err := r.sameRecords(); err != nil || same {
			return err
		}
	}
	_, err := r.rewrite(r.Header)
	return err
}

func (r *run) sameRecords() (bool, error) {
	h, old := r.Header, r.d.manifest()
	h.Files = old.Header().Files
	if old.Missing() || !sameHeader(h, old.Header()) {
		return false, nil
	}
	next := r.Edits()
	for e, ok := next(); ok; e, ok = next() {
		rec, had, err := old.Lookup(e.Rec.Path)
		if err != nil {
			return false, err
		}
		was := &rec
		if !had {
			was = nil
		}
		if now, has := e.Apply(was); has != had || has && now != rec {
			return false, nil
		}
	}
	return true, nil
}

func sameHeader(a, b plan.Header) bool {
	return a.Ref == b.Ref && a.Commit == b.Commit && a.Rules == b.Rules && a.Files == b.Files &&
		a.Complete == b.Complete && slices.Equal(a.Mappings, b.Mappings)
}
