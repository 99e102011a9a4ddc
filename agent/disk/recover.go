package disk

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"stoker.io/stoker/agent/disk/format"
	"stoker.io/stoker/agent/disk/lostfound"
	"stoker.io/stoker/agent/disk/safe"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// recoverer ends a sync that a crash or an error interrupted.
type recoverer struct{ dir *Dir }

// recoverAndClean finishes the run of the journal, if there is one, or rolls back the run of the undo file. Then it clears
// staging. The caller must hold d.writing, and no run may be moving files.
func (d recoverer) recoverAndClean() error {
	if !d.dir.needsRecovery {
		return nil
	}
	for _, name := range []string{journalFile, undoFile} {
		j, err := d.readJournal(name)
		switch {
		case errors.Is(err, safe.ErrDamaged):
			if err := d.abandon(err); err != nil {
				return err
			}
			err = d.dir.vol.SetAside(d.dir.own.Folder, name, err)
		case err == nil && j != nil:
			err = d.replay(j, name)
		}
		if err != nil {
			return err
		}
	}
	if d.dir.own.Has(safe.StagingDir) { // make sure that no power cut brings a journal back without the files that it names
		if err := d.dir.vol.SyncDir(d.dir.own.Folder); err != nil {
			return safe.WriteError(err, "make the end of the last sync durable")
		}
	}
	return d.clean()
}

// replay ends a run from its journal, the file with that name.
func (d recoverer) replay(j *format.Journal, name string) error {
	d.dir.needsRecovery = false // the end of the run must not clean: recoverAndClean does
	defer func() { d.dir.needsRecovery = true }()
	r := &run{Journal: *j, d: d.dir, replayed: true}
	r.init()
	defer r.close()
	err := r.staging.OpenAll(&r.cur, r.Areas, false)
	if safe.NotThere(err) { // removed, or on a volume that is not mounted now; this start cannot recover its files
		if err := d.abandon(safe.Damaged("a staging folder of the journal is missing: %w", err)); err != nil {
			return err
		}
		return d.dir.own.Drop(name)
	}
	if err != nil {
		return fmt.Errorf("cannot recover an interrupted sync: %w", err)
	}
	rec := &Recovery{
		From: r.Base.Commit(), Commit: r.Header.Commit, Ref: r.Header.Ref, Forward: name == journalFile, Counts: (&plan.Changes{List: r.Changes}).Counts(),
	}
	if rec.Forward {
		if !r.StartsOrEndsWith(d.dir.manifest()) {
			d.dir.log.Warn("manifest of interrupted sync lost; comparing every file", "commit", r.Header.Commit.String())
			r.doubtful = true
		}
		res, err := r.finish()
		switch {
		case err != nil && res.Applied:
			return fmt.Errorf("cannot finish an interrupted sync: %w", err)
		case err != nil:
			rec.Forward = false
			d.dir.log.Warn("rolled back an interrupted sync", "commit", r.Header.Commit.String(), "error", err)
		}
	} else if err := (rollback{r}).undo(); err != nil {
		return fmt.Errorf("cannot roll back an interrupted sync: %w", err)
	}
	for i := range r.Changes {
		if format.Moves(r.Changes[i].Op) {
			rec.Paths = append(rec.Paths, r.Changes[i].Path)
		}
	}
	rec.Saved = r.savedEntries()
	d.dir.log.Info("recovered an interrupted sync", "commit", rec.Commit.String(), "forward", rec.Forward, "files", len(rec.Paths))
	d.dir.recovered.Store(rec)
	return nil
}

// abandon gives up a run whose journal or staging cannot be used. Staging may have bytes of the gateway, and it is unknown which:
// abandon moves all of it to lost+found, removes all snapshots and marks the manifest incomplete.
func (d recoverer) abandon(cause error) error {
	d.dir.log.Error("sync not recoverable; saving staging to lost+found", "error", cause)
	areas, err := d.areas()
	if err != nil {
		return err
	}
	if err := d.rescue(areas, "left by an interrupted sync that could not be recovered"); err != nil {
		return err
	}
	if err := d.dir.snapshots.DropAll(); err != nil { // without a complete snapshot of this sync, the older ones cannot be restored
		return err
	}
	return d.markIncomplete()
}

// rescue saves everything in the staging folders of areas to lost+found. The caller empties the folders.
func (d recoverer) rescue(areas []string, reason string) error {
	saver := d.dir.lost.NewSaver(d.dir.lost.NewName(plan.ID{}), plan.ID{})
	cur := safe.Cursor{Top: d.dir.top}
	defer cur.Reset()
	staging := safe.NewStaging(d.dir.own)
	defer staging.Close()
	for _, a := range areas {
		folder, err := staging.Open(&cur, a, false)
		if safe.NotThere(err) {
			continue
		}
		if err != nil {
			return err
		}
		err = saveAll(saver, folder, reason)
		// Unreadable files, or trees beyond the bounds, are not the agent's: set the whole folder aside.
		if errors.Is(err, fs.ErrPermission) || failure.Is(err, v1alpha1.ReasonLimitExceeded) {
			own, oerr := cur.At(strings.TrimPrefix(a+"/"+safe.OwnDir, "/"))
			if oerr != nil {
				return errors.Join(err, oerr)
			}
			err = d.dir.vol.SetAside(own, safe.StagingDir, err)
		}
		if err != nil {
			return err
		}
	}
	return saver.Sync()
}

// saveAll saves everything in a staging folder to lost+found.
func saveAll(saver *lostfound.Saver, staging *safe.Folder, reason string) error {
	list, err := staging.Entries()
	for _, e := range list {
		if err == nil {
			err = saver.Save(staging, e.Name(), safe.StagingDir+"/"+e.Name(), reason)
		}
	}
	return err
}

// reclaim moves old files in the staging folders of areas to lost+found before new ones are staged. Old files are there if an
// interrupted sync was recovered while their volume was not mounted.
func (d recoverer) reclaim(c *safe.Cursor, areas []string) error {
	for _, a := range areas {
		staging, err := c.At(a + "/" + safe.OwnDir + "/" + safe.StagingDir)
		if safe.NotThere(err) {
			continue
		}
		if err != nil {
			return err
		}
		list, err := staging.Entries()
		if err != nil {
			return err
		}
		if len(list) == 0 {
			continue
		}
		d.dir.log.Warn("moving files of an interrupted sync to lost+found", "path", a, "files", len(list))
		if err := d.rescue([]string{a}, "left by an interrupted sync on an unmounted volume"); err != nil {
			return err
		}
		if err := d.cleanArea(c, a); err != nil {
			return err
		}
	}
	return nil
}

// markIncomplete marks the manifest as incomplete, because files may be of another commit than the manifest says.
func (d recoverer) markIncomplete() error {
	m := d.dir.manifest()
	if m.Missing() || !m.Header().Complete {
		return nil
	}
	h := m.Header()
	h.Complete = false
	_, err := d.dir.writeManifest(h, m, format.NoEdits)
	return err
}

// areas returns the directories that may have a staging folder.
func (d recoverer) areas() ([]string, error) {
	areas := []string{""}
	b, err := d.dir.own.Read(areasFile, format.MaxAreas*safe.MaxPath)
	if err != nil && !errors.Is(err, safe.ErrDamaged) {
		return nil, err
	}
	for line := range strings.Lines(string(b)) {
		if a := strings.TrimSuffix(line, "\n"); safe.CheckPath(a) == nil && len(areas) < format.MaxAreas {
			areas = append(areas, a)
		}
	}
	return areas, nil
}

// clean removes the staging folders and other leftovers of a run, and prunes lost+found. There must be no journal, durably.
func (d recoverer) clean() error {
	if !d.dir.needsRecovery {
		return nil
	}
	areas, err := d.areas()
	if err != nil {
		return err
	}
	c := safe.Cursor{Top: d.dir.top}
	defer c.Reset()
	for _, a := range areas {
		if err := d.cleanArea(&c, a); err != nil {
			return safe.WriteError(err, "empty the staging folder below %q", a)
		}
	}
	for _, name := range []string{manifestFile + ".new", journalFile + ".new", areasFile + ".new", areasFile} {
		if _, err := d.dir.own.Lstat(name); err == nil {
			if err := d.dir.vol.Vacate(d.dir.own.Folder, name); err != nil {
				return safe.WriteError(err, "clear %s", d.dir.own.Join(name))
			}
		}
	}
	d.dir.lost.PruneHourly()
	d.dir.needsRecovery = false
	return nil
}

// cleanArea removes the staging folder of an area. In an area other than the data directory, it also removes .stoker, if it is empty.
func (d recoverer) cleanArea(c *safe.Cursor, area string) error {
	if area == "" {
		if _, err := d.dir.own.Lstat(safe.StagingDir); errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return d.dir.vol.ClearTree(d.dir.own.Folder, safe.StagingDir)
	}
	own, err := c.At(area + "/" + safe.OwnDir)
	if safe.NotThere(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := d.dir.vol.ClearTree(own, safe.StagingDir); err != nil {
		return err
	}
	top, err := c.At(area)
	if err == nil {
		err = d.dir.vol.Rmdir(top, safe.OwnDir)
	}
	if safe.NotThere(err) || safe.IsNotEmpty(err) {
		return nil
	}
	return err
}

// readJournal reads a journal, or returns nil if there is none. If the file is not a journal, it returns ErrDamaged,
// and detects that without holding it in memory.
func (d recoverer) readJournal(name string) (*format.Journal, error) {
	f, fi, err := d.dir.own.OpenFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the %s: %w", name, err)
	}
	defer func() { _ = f.Close() }() // opened for reading
	return format.DecodeJournal(f, fi.Size(), d.dir.o.maxJournal())
}
