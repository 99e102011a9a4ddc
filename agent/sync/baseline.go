package sync

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"stoker.io/stoker/agent/ignition"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// baseline is what a gateway that may go back by itself had before the first file moved since it last confirmed its files. It is part of
// the note about what is not loaded, so it is as durable.
type baseline struct {
	// Snapshot is the one to go back to.
	Snapshot string `json:"snapshot"`
	// Known reports whether the gateway could be asked. If not, only scans that fail count against the sync.
	Known bool `json:"known,omitempty"`
	// Projects and Resources are those that the gateway showed wrongly already. The sync is not to blame for them.
	Projects  []string   `json:"projects,omitempty"`
	Resources []configID `json:"resources,omitempty"`
}

// recordBaseline records what the gateway does not show as the files on the disk are, and the snapshot of this sync. What an earlier sync
// recorded that the gateway has not confirmed yet stays: a second commit is judged by what ran before the first.
func (f *files) recordBaseline(ctx context.Context, snapshot string, before unloaded) *baseline {
	h := f.dir.Manifest().Header()
	if len(f.t.Profile.AutoRollback) == 0 || snapshot == "" || h.Commit == f.t.Commit && h.Rules == f.rules.Fingerprint() {
		return before.Baseline
	}
	b := baseline{Snapshot: snapshot, Known: true}
	if was := before.Baseline; was != nil && f.hasSnapshot(was.Snapshot) {
		b = *was
	} else {
		before = unloaded{}
	}
	if !b.Known || f.before != running || !f.gateway.token || f.gateway.legacy() {
		b.Known = false
		return &b
	}
	projects, resources, err := f.wrongNow(ctx, before)
	if err != nil {
		f.Log.Warn("baseline unknown", "error", err)
		b.Known = false
	}
	b.Projects, b.Resources = union(b.Projects, projects), append(slices.Clone(b.Resources), resources...)
	return &b
}

// wrongNow returns what the gateway shows wrongly before the sync, of what it has to show after it and was not judged before.
func (f *files) wrongNow(ctx context.Context, judged unloaded) (projects []string, resources []configID, err error) {
	var there, gone []string
	for _, name := range union(f.unloaded.Projects, f.unloaded.Gone) {
		if slices.Contains(judged.Projects, name) || slices.Contains(judged.Gone, name) {
			continue
		}
		st, err := f.dir.Stat(projectFile(name))
		switch {
		case err != nil:
			return nil, nil, err
		case st.Kind == plan.File:
			there = append(there, name)
		default:
			gone = append(gone, name)
		}
	}
	shown, err := f.compareProjects(ctx, there, gone)
	if err != nil {
		return nil, nil, err
	}
	var listed []configID
	for _, r := range f.unloaded.Resources {
		st, err := f.dir.Stat(r.file())
		if err != nil {
			return nil, nil, err
		}
		if st.Kind == plan.File && !slices.Contains(judged.Resources, r) {
			listed = append(listed, r)
		}
	}
	resources, err = f.unlisted(ctx, listed)
	return shown.names(), resources, err
}

func (j *job) hasSnapshot(id string) bool {
	list, err := j.dir.ListSnapshots()
	if err != nil {
		j.Log.Warn("snapshots unreadable", "error", err)
	}
	for i := range list {
		if list[i].ID == id {
			return true
		}
	}
	return false
}

const (
	// patience is how long a gateway gets to load the files before it goes back.
	patience = 30 * time.Second
	// scanFailures is how many scans have to fail within scanWindow.
	scanFailures = 3
	scanWindow   = 2 * time.Minute
	// tryAgain is the pause between the attempts meanwhile.
	tryAgain = 9 * time.Second
)

// failing are the failures in a row of one commit that count against it. A restart of the agent forgets them, which only takes longer.
type failing struct {
	commit plan.ID
	since  time.Time
	scans  []time.Time // the last scanFailures
}

// long reports whether the failures are enough to go back.
func (f *failing) long(trigger v1alpha1.AutoRollbackTrigger, now time.Time) bool {
	if now.Sub(f.since) < patience {
		return false
	}
	return trigger != v1alpha1.TriggerScanFailure || len(f.scans) == scanFailures && now.Sub(f.scans[0]) <= scanWindow
}

// blame records a failure of the target's files, and returns what it is of spec.autoRollback.triggers: "" if the commit is not to blame,
// or if that is not certain yet.
func (j *job) blame(ctx context.Context, err error) v1alpha1.AutoRollbackTrigger {
	trigger := j.trigger(err)
	if trigger != "" {
		if state, _ := j.gateway.state(ctx); state != running { // it stops or starts, and may be the reason
			trigger = ""
		}
	}
	if trigger == "" {
		j.failing = failing{}
		return ""
	}
	now := j.Now()
	if j.failing.commit != j.t.Commit || now.Before(j.failing.since) {
		j.failing = failing{commit: j.t.Commit, since: now}
	}
	if trigger == v1alpha1.TriggerScanFailure {
		j.failing.scans = append(j.failing.scans, now)
		j.failing.scans = j.failing.scans[max(0, len(j.failing.scans)-scanFailures):]
	}
	if !j.failing.long(trigger, now) {
		j.r.Again = now.Add(tryAgain)
		return ""
	}
	return trigger
}

// trigger returns what a failure to load the target is of spec.autoRollback.triggers, or "". An unreachable gateway, a token that is refused
// and a lock that another client holds are no reason to go back, nor is what was wrong before the sync. A rollback that an operator requested
// is not undone.
func (j *job) trigger(err error) v1alpha1.AutoRollbackTrigger {
	b := j.unloaded.Baseline
	if b == nil || j.resumes || j.t.Rollback || j.node.Standby() {
		return ""
	}
	var found []v1alpha1.AutoRollbackTrigger
	switch {
	case failure.Is(err, v1alpha1.ReasonScanFailed) && !ignition.Refused(err):
		found = append(found, v1alpha1.TriggerScanFailure)
	case failure.Is(err, v1alpha1.ReasonVerificationFailed) && b.Known:
		if slices.ContainsFunc(j.wrong.projects, func(name string) bool { return !slices.Contains(b.Projects, name) && j.enabled(name) }) {
			found = append(found, v1alpha1.TriggerProjectLoadError)
		}
		if slices.ContainsFunc(j.wrong.resources, func(r configID) bool { return !slices.Contains(b.Resources, r) }) {
			found = append(found, v1alpha1.TriggerConfigError)
		}
	}
	for _, t := range found {
		if slices.Contains(j.t.Profile.AutoRollback, t) {
			return t
		}
	}
	return ""
}

// maxProjectFile bounds a project.json, which has a few lines.
const maxProjectFile = 64 << 10

// enabled reports whether a project is not disabled by its own file.
func (j *job) enabled(name string) bool {
	var doc struct {
		Enabled *bool `json:"enabled"`
	}
	raw, err := j.dir.Read(projectFile(name), maxProjectFile)
	return err != nil || json.Unmarshal(raw, &doc) != nil || doc.Enabled == nil || *doc.Enabled
}

func projectFile(name string) string { return "projects/" + name + "/project.json" }

// goBack brings the gateway back by itself if the target is to blame for err, the failure to load it. It does so once for each commit: the
// note stays when the commit is no longer held off, and no request makes it forget.
func (j *job) goBack(ctx context.Context, err error) error {
	trigger := j.blame(ctx, err)
	if trigger == "" {
		return err
	}
	n, nerr := j.loadRestored()
	if nerr != nil {
		return nerr
	}
	if n.Tried == j.t.Commit {
		j.note("the gateway went back from %s by itself before and does so only once; stoker snapshots lists what it can be brought back to", j.t.Commit.Short())
		return err
	}
	snapshot := j.unloaded.Baseline.Snapshot
	if !j.hasSnapshot(snapshot) {
		j.note("the gateway cannot go back by itself: its snapshot %s is gone; keep more with spec.snapshots", snapshot)
		return err
	}
	j.Log.Warn("automatic rollback", "trigger", trigger, "commit", j.t.Commit.String(), "snapshot", snapshot, "error", err)
	n = j.restoreNow(snapshot, false)
	n.Trigger, n.Why, n.Tried = trigger, line(strings.TrimSpace(err.Error()), maxWhy), j.t.Commit
	if err := n.save(j.dir); err != nil {
		return err
	}
	j.failing = failing{}
	return j.takeBack(ctx, n)
}

// maxWhy bounds the reason of an automatic rollback in the note.
const maxWhy = 300
