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
	Saved []Lost // what went to lost+found
	// Applied is true after success. If Apply returns an error, Applied means that some or all of the new files may be live: the
	// next Open or Stage finishes or rolls back the sync. Without Applied, none is live.
	Applied bool
	// Committed is true if all new files are live, and the manifest has them. Applied without Committed may be a mixture of two commits.
	Committed bool
}

// Apply makes the staged files live, removes deleted ones, and writes the manifest with header. It ignores header.Files, because
// the manifest counts its files itself. If there is nothing to do, it writes nothing.
//
// If ctx is done when Apply begins, Apply discards the stage. After that, Apply ignores ctx: it is short, and either finishes or,
// after an error, rolls back. A second call is an error.
func (s *Staged) Apply(ctx context.Context, header plan.Header) (Result, error) {
	d, r := s.d, s.run
	d.writing.Lock()
	defer d.writing.Unlock()
	if s.done {
		return Result{}, errors.New("the staged changes were already applied or discarded")
	}
	err := ctx.Err()
	if err == nil {
		err = d.CheckOpen()
	}
	if err != nil {
		return Result{}, errors.Join(err, s.discard())
	}
	s.done = true
	defer r.close()
	r.Header = header
	if m := d.manifest(); r.Restores != "" && !m.Missing() && !m.Header().Complete {
		r.Header.Complete = false // unlike a full plan, a restore does not compare all files
	}
	if !s.Moves() {
		err := r.recordOnly()
		return Result{Applied: err == nil, Committed: err == nil}, err
	}
	r.Base = format.BaseOf(d.manifest())
	written, err := d.own.Write(journalFile, r.Encode)
	switch {
	case err == nil:
		return r.finish()
	case written: // the journal is in place, but may not be durable; nothing has moved, so rolling back only drops it
		return r.abort(err)
	default:
		return Result{}, errors.Join(err, recoverer{d}.recoverAndClean())
	}
}

// finish completes a run that has a journal, and rolls it back after an error.
func (r *run) finish() (Result, error) {
	committed, err := r.moveAndCommit()
	switch {
	case err == nil:
		if err := (recoverer{r.d}).clean(); err != nil {
			r.d.log.Warn("cannot clean up after the sync", "error", err)
		}
		if r.snapshots.Keep > 0 {
			if err := r.d.snapshots.Prune(r.snapshots); err != nil {
				r.d.log.Warn("cannot prune snapshots", "error", err)
			}
		}
		return Result{Applied: true, Committed: true, Saved: r.savedEntries()}, nil
	case committed:
		return Result{Applied: true, Committed: true, Saved: r.savedEntries()}, fmt.Errorf("the new files are live, but the end of the sync could not be recorded; the agent retries: %w", err)
	}
	return r.abort(err)
}

// moveAndCommit moves the files, checks and saves what they displaced, and commits. committed reports whether the new manifest is
// in place.
func (r *run) moveAndCommit() (committed bool, err error) {
	for _, phase := range []func() error{mover{r}.move, foreignCheck{r}.check, r.keepDisplaced, r.syncNames} {
		if err := phase(); err != nil {
			return false, err
		}
	}
	return r.commit()
}

// commit writes the manifest, which is the point of no return, and removes the journal. In between, it removes the snapshots that
// can no longer be restored: not before, because the run may still be rolled back, and not later, because a crash must not leave
// them.
func (r *run) commit() (committed bool, err error) {
	h := r.Header
	h.Complete = h.Complete && !r.doubtful // an incomplete manifest makes the next plan a full one
	if committed, err = r.writeManifest(h); err != nil {
		return committed, err
	}
	if err := r.dropSnapshots(); err != nil {
		return true, err
	}
	return true, r.d.own.Drop(journalFile)
}

// abort rolls back a failed run.
func (r *run) abort(cause error) (Result, error) {
	if err := (rollback{r}).undo(); err != nil {
		return Result{Applied: true}, fmt.Errorf("%w; the rollback failed and is retried: %w", cause, err)
	}
	return Result{}, errors.Join(cause, recoverer{r.d}.recoverAndClean())
}

// writeManifest writes the manifest that the run ends with.
func (r *run) writeManifest(h plan.Header) (renamed bool, err error) {
	if r.Restores == "" {
		return r.d.writeManifest(h, r.d.manifest(), r.Edits())
	}
	old, err := r.d.snapshots.Manifest(r.Restores)
	if err != nil {
		return false, err
	}
	renamed, err = r.d.writeManifest(h, old, r.Edits())
	return renamed, errors.Join(err, old.Close())
}

// recordOnly writes the manifest of a run that moves no file, if anything in it changes.
func (r *run) recordOnly() error {
	if r.Restores == "" {
		if same, err := keepsManifest(r.d.manifest(), r.Header, r.Edits()); err != nil || same {
			return err
		}
	}
	_, err := r.writeManifest(r.Header)
	return err
}

// keepsManifest reports whether the edits and the header leave m unchanged.
func keepsManifest(m *format.Manifest, h plan.Header, edits format.Edits) (bool, error) {
	if m.Missing() || !sameHeader(h, m.Header()) {
		return false, nil
	}
	for e := range edits {
		old, had, err := m.Lookup(e.Rec.Path)
		if err != nil {
			return false, err
		}
		before := &old
		if !had {
			before = nil
		}
		if after, has := e.Apply(before); has != had || has && after != old {
			return false, nil
		}
	}
	return true, nil
}

// sameHeader reports whether two headers are equal apart from Files and Earlier.
func sameHeader(a, b plan.Header) bool {
	return a.Ref == b.Ref && a.Commit == b.Commit && a.Rules == b.Rules && a.Complete == b.Complete && slices.Equal(a.Mappings, b.Mappings)
}
