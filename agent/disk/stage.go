package disk

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"sync"

	"stoker.io/stoker/agent/disk/format"
	"stoker.io/stoker/agent/disk/safe"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// Source writes the bytes that git wants at c.Path. If it fails, the error of Stage wraps its error.
type Source func(w io.Writer, c plan.Change) error

// Staged is a plan with staged bytes. The caller must call Apply or Discard.
type Staged struct {
	d    *Dir
	run  *run
	done bool
}

// Stage writes the bytes of all Create and Update changes beside the live files, on the same mounts, and makes them
// durable. The gateway does not see them. Stage calls src in the order of order(c.ID), or of the paths if order is nil. With an
// order, src may call only the methods of plan.State on the Dir, because Stage may write files while src reads the next.
// src must write content with the change's blob id. After an error, or if ctx is done, Stage discards what it wrote. If it stages
// bytes, it discards those of an earlier Staged that was not applied.
func (d *Dir) Stage(ctx context.Context, changes *plan.Changes, order func(plan.ID) int64, src Source) (*Staged, error) {
	d.writing.Lock()
	defer d.writing.Unlock()
	if d.o.ReadOnly {
		return nil, ErrReadOnly
	}
	if err := d.CheckOpen(); err != nil {
		return nil, err
	}
	if err := (recoverer{d}).recoverAndClean(); err != nil {
		return nil, err
	}
	r, err := newRun(d, changes)
	if err != nil {
		return nil, err
	}
	s := &Staged{d: d, run: r}
	if !slices.ContainsFunc(r.Changes, func(c plan.Change) bool { return format.Moves(c.Op) }) {
		return s, nil
	}
	if d.staged != nil {
		d.staged.done = true // recoverAndClean has cleared its bytes
		d.staged.run.close()
	}
	d.needsRecovery, d.staged = true, s
	if err := (stager{r}).stage(ctx, order, src); err != nil {
		r.close()
		return nil, errors.Join(err, recoverer{d}.recoverAndClean())
	}
	return s, nil
}

// Discard drops the staged bytes. After Apply or Discard, it does nothing.
func (s *Staged) Discard() error {
	s.d.writing.Lock()
	defer s.d.writing.Unlock()
	if s.done {
		return nil
	}
	return s.discard()
}

func (s *Staged) discard() error {
	s.done = true
	s.run.close()
	return recoverer{s.d}.recoverAndClean()
}

// newRun makes a run of changes, and checks their paths and their order.
func newRun(d *Dir, changes *plan.Changes) (*run, error) {
	r := &run{d: d, Journal: format.Journal{
		Areas: []string{""}, Changes: changes.List, Signed: changes.Signed, Slots: make([]format.Slot, len(changes.List)),
	}}
	r.init()
	for i := range r.Changes {
		c := &r.Changes[i]
		if err := safe.CheckPath(c.Path); err != nil {
			return nil, fmt.Errorf("invalid path in the plan: %w", err)
		}
		if i > 0 && c.Path <= r.Changes[i-1].Path {
			return nil, fmt.Errorf("the plan is not sorted at %q", c.Path)
		}
	}
	r.LostFolder = d.lost.NewName(changes.To)
	return r, nil
}

// stager prepares the steps of a run and writes the wanted bytes.
type stager struct{ run *run }

func (r stager) stage(ctx context.Context, order func(plan.ID) int64, src Source) error {
	attrs, err := r.layOut()
	if err != nil {
		return err
	}
	if err := r.checkLostFound(); err != nil {
		return err
	}
	if size, limit := r.run.Size(), r.run.d.o.maxJournal(); size > limit {
		return failure.New(v1alpha1.ReasonLimitExceeded, "this sync needs %d bytes of memory, more than the %d that recovery may use; raise the limit max-files, or sync in two commits", size, limit)
	}
	if err := r.makeAreas(); err != nil {
		return err
	}
	var writes []int32
	for i := range r.run.Changes {
		if format.Writes(r.run.Changes[i].Op) {
			writes = append(writes, int32(i))
		}
	}
	if order != nil {
		slices.SortStableFunc(writes, func(a, b int32) int {
			return cmp.Compare(order(r.run.Changes[a].ID), order(r.run.Changes[b].ID))
		})
	}
	syncEach := !safe.HaveSyncfs || len(writes) <= r.run.d.o.FsyncFiles
	if !syncEach {
		if err := r.selectTrees(); err != nil {
			return safe.WriteError(err, "open the parents of new directories")
		}
	}
	w := writer{
		stager: r, attrs: attrs, src: src, syncEach: syncEach, making: &sync.Mutex{}, cur: safe.Cursor{Top: r.run.d.top}, buf: r.run.buf,
	}
	if order != nil && !syncEach && runtime.GOMAXPROCS(0) > 1 {
		err = w.writeAhead(ctx, writes)
	} else {
		err = w.writeAll(ctx, writes)
	}
	if err != nil {
		return err
	}
	syncArea := r.run.d.vol.SyncFS
	if syncEach {
		syncArea = r.run.d.vol.SyncDir
	}
	for _, a := range r.run.Areas {
		if err := syncArea(r.run.staging.In(a)); err != nil {
			return safe.WriteError(err, "sync staged files to disk")
		}
	}
	return nil
}

// makeAreas makes and opens the staging folder of each area. It first records the areas other than the data directory, and moves to
// lost+found what an interrupted sync left in them.
func (r stager) makeAreas() error {
	if others := r.run.Areas[1:]; len(others) > 0 {
		if err := r.run.d.own.WriteBytes(areasFile, []byte(strings.Join(others, "\n")+"\n")); err != nil {
			return err
		}
		if err := (recoverer{r.run.d}).reclaim(&r.run.cur, others); err != nil {
			return safe.WriteError(err, "empty the staging folders of other volumes")
		}
	}
	return r.run.staging.OpenAll(&r.run.cur, r.run.Areas, true)
}
