package disk

import (
	"stoker.io/stoker/agent/disk/format"
	"stoker.io/stoker/agent/disk/safe"
	"stoker.io/stoker/agent/disk/snapshot"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// checkLostFound refuses a run whose conflicts alone exceed lost+found, because pruning would remove what the run just saved.
func (r stager) checkLostFound() error {
	var sum int64
	for i := range r.run.Changes {
		c := &r.run.Changes[i]
		if !c.Conflict || !format.Moves(c.Op) {
			continue
		}
		if c.Found.Kind != plan.Dir {
			sum += c.Found.Size
			continue
		}
		for f, err := range r.run.d.Walk(c.Path) {
			var st plan.Stat // Walk sets only the kind
			if err == nil {
				st, err = r.run.d.Stat(f.Path)
			}
			if err != nil {
				return err
			}
			sum += st.Size
		}
	}
	if limit := r.run.d.o.LostFoundMax; sum > limit {
		return failure.New(v1alpha1.ReasonLimitExceeded, "this sync replaces %d bytes of files that are not in git, and lost+found may hold %d; raise --max-lost-found, or commit or remove those files first", sum, limit)
	}
	return nil
}

// keepDisplaced gives the files that the run displaced a second name in lost+found, if reasonToSave returns a reason, and another one
// in the snapshot of the run, if it takes one. They also stay in staging, so that the run can be rolled back.
func (r *run) keepDisplaced() error {
	if r.replayed {
		if err := r.d.lost.Drop(r.LostFolder); err != nil {
			return safe.WriteError(err, "clear lost+found")
		}
	}
	var shot *snapshot.Saver
	if r.hasSnapshot() {
		var err error
		if shot, err = r.d.snapshots.NewSaver(r.Snapshot, r.replayed); err != nil {
			return err
		}
		defer shot.Close()
	}
	r.saver = r.d.lost.NewSaver(r.LostFolder, r.Header.Commit)
	for _, step := range r.Steps {
		if step.Kind != format.StepWrite && step.Kind != format.StepRemove {
			continue
		}
		i := int(step.Index)
		name, err := r.displacedName(i)
		if err != nil {
			return err
		}
		id, err := r.save(i, name)
		if err == nil && shot != nil && name != "" {
			err = shot.Save(r.stagingOf(i), name, i, id, r.Changes[i].Found.Size)
		}
		if err != nil {
			return err
		}
	}
	if err := r.saver.Sync(); err != nil {
		return err
	}
	if !r.hasSnapshot() { // also if it became doubtful meanwhile
		return nil
	}
	return shot.Complete(r.d.manifest().Header(), r.Header.Commit)
}

// hasSnapshot reports whether the run takes a snapshot. A doubtful run takes none, because it does not know what it displaced.
func (r *run) hasSnapshot() bool { return r.Snapshot != "" && !r.doubtful }

// dropSnapshots removes the snapshots that can no longer be restored after a run that took none itself: restoring a snapshot undoes every
// sync since, and each of these needs a snapshot. If the run restored a snapshot, that one and older ones stay: the files are again what they
// were before the sync of that snapshot.
func (r *run) dropSnapshots() error {
	switch {
	case r.hasSnapshot():
		return nil
	case r.Restores != "":
		return r.d.snapshots.DropNewer(r.Restores)
	}
	return r.d.snapshots.DropAll()
}

// saveIfLost is save for callers that do not need the id.
func (r *run) saveIfLost(i int, name string) error {
	_, err := r.save(i, name)
	return err
}

// save gives a displaced file in staging a second name in lost+found if reasonToSave returns a reason. It returns the blob id of
// the file, or the null id if name is "", not a file, unreadable or too large.
func (r *run) save(i int, name string) (plan.ID, error) {
	if name == "" {
		return plan.ID{}, nil
	}
	id, reason, err := r.reasonToSave(i, name)
	if err != nil || reason == "" {
		return id, err
	}
	return id, r.saver.Save(r.stagingOf(i), name, r.Changes[i].Path, reason)
}

// reasonToSave returns why a displaced entry must be kept. It returns "" for an empty directory, for the content that git wants
// there, and for content that the plan saw and did not call a conflict. reasonToSave also returns the id of a file.
func (r *run) reasonToSave(i int, name string) (id plan.ID, reason string, err error) {
	c, stg := &r.Changes[i], r.stagingOf(i)
	fi, err := stg.Lstat(name)
	if err != nil {
		return id, "", err
	}
	switch safe.KindOf(fi.Mode()) {
	case plan.Dir:
		first, err := safe.FirstFile(stg, name)
		if err != nil || first == "" {
			return id, "", err
		}
		return id, "directory on the gateway, file in git", nil
	case plan.File:
		id, err := r.hash(stg, name)
		switch {
		case err != nil:
			return id, "", err
		case format.Writes(c.Op) && id == c.ID:
			return id, "", nil
		case c.Conflict && c.Op == plan.Delete:
			return id, "not in git", nil
		case c.Conflict:
			return id, "changed on the gateway and in git", nil
		case c.Found.Kind == plan.File && id == c.FoundID && !id.IsZero():
			return id, "", nil
		}
		return id, "written by the gateway during the sync", nil
	default:
		return id, "neither file nor directory", nil
	}
}

// occupied returns the error for a file in place of a directory with files.
func occupied(path, first string) error {
	return failure.New(v1alpha1.ReasonPathCollision, "git has a file at %s, but the gateway has a directory with files of its own there (%s); move them away", path, first)
}
