package sync

import (
	"context"
	"slices"

	"stoker.io/stoker/agent/plan"
)

// baseline is the state of a gateway with spec.autoRollback before its files changed: before the first change since it last
// loaded all files. It is part of the note about what is not loaded, so it is as durable.
type baseline struct {
	// Snapshot is the one that a rollback restores.
	Snapshot string `json:"snapshot"`
	// Known reports whether the gateway answered. If not, only failed scans count against the sync.
	Known bool `json:"known,omitempty"`
	// Projects and Resources did not match the disk before the sync, so they do not count against it.
	Projects  []string   `json:"projects,omitempty"`
	Resources []configID `json:"resources,omitempty"`
}

// recordBaseline returns the baseline of this sync with its snapshot; nil without spec.autoRollback. If the gateway has not
// loaded the files of an earlier sync, that sync's baseline stays and is extended: both commits are compared with what ran
// before the first.
func (f *files) recordBaseline(ctx context.Context, snapshot string, before unloaded) *baseline {
	h := f.dir.Manifest().Header()
	if len(f.t.Profile.AutoRollback) == 0 || snapshot == "" || h.Commit == f.t.Commit && h.Rules == f.rules.Fingerprint() {
		return before.Baseline
	}
	b := baseline{Snapshot: snapshot, Known: true}
	if earlier := before.Baseline; earlier != nil && f.hasSnapshot(earlier.Snapshot) {
		b = *earlier
	} else {
		before = unloaded{}
	}
	if !b.Known || f.before != running || !f.gateway.hasAPIToken || f.gateway.legacy() {
		b.Known = false
		return &b
	}
	found, err := f.mismatchesBefore(ctx, before)
	if err != nil {
		f.Log.Warn("baseline unknown", "error", err)
		b.Known = false
	}
	b.Projects, b.Resources = union(b.Projects, found.projects), append(slices.Clone(b.Resources), found.resources...)
	return &b
}

// mismatchesBefore compares the gateway with the disk before files change: all that the sync will verify, except what the
// baseline of an earlier sync covers.
func (f *files) mismatchesBefore(ctx context.Context, covered unloaded) (found mismatches, err error) {
	var present, deleted []string
	for _, name := range union(f.unloaded.Projects, f.unloaded.Gone) {
		if slices.Contains(covered.Projects, name) || slices.Contains(covered.Gone, name) {
			continue
		}
		st, err := f.dir.Stat(projectFile(name))
		switch {
		case err != nil:
			return found, err
		case st.Kind == plan.File:
			present = append(present, name)
		default:
			deleted = append(deleted, name)
		}
	}
	projects, err := f.gateway.compareProjects(ctx, present, deleted)
	if err != nil {
		return found, err
	}
	var resources []configID
	for _, r := range f.unloaded.Resources {
		st, err := f.dir.Stat(r.file())
		if err != nil {
			return found, err
		}
		if st.Kind == plan.File && !slices.Contains(covered.Resources, r) {
			resources = append(resources, r)
		}
	}
	missing, err := f.gateway.unlistedResources(ctx, resources)
	return mismatches{projects.names(), missing}, err
}
