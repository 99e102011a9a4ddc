package sync

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"stoker.io/stoker/agent/audit"
	"stoker.io/stoker/agent/decide"
	"stoker.io/stoker/agent/disk"
	"stoker.io/stoker/agent/ignition"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/unloaded"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// autoRollback rolls back a gateway that cannot load the target, if spec.autoRollback says so.
type autoRollback struct {
	restorer   *restorer
	failures   *decide.Failures
	resumes    bool                // the target is only what is on the disk, because git was not asked yet
	mismatches unloaded.Mismatches // of the failed load
}

// run rolls back if the target is the cause of err, the failure to load it. Otherwise it returns err. It does not roll
// back from the same commit twice in a row: the note keeps the commit even when it is no longer blocked, and no request
// removes it. Only a damaged note loses it.
func (j autoRollback) run(ctx context.Context, err error) (rolledBack bool, _ error) {
	in := j.restorer.in
	trigger := j.confirmTrigger(ctx, err)
	if trigger == "" {
		return false, err
	}
	n, _, noteErr := j.restorer.loadNote()
	if noteErr != nil {
		return false, noteErr
	}
	if n.RolledBackFrom == in.task.Commit {
		in.note("the gateway was already rolled back automatically from %s, which happens only once per commit; stoker snapshots lists what it can be brought back to", in.task.Commit.Short())
		return false, err
	}
	snapshot := j.restorer.unloaded.Baseline.Snapshot
	if !in.hasSnapshot(snapshot) {
		in.note("the gateway cannot be rolled back automatically: its snapshot %s is gone; keep more with spec.snapshots", snapshot)
		return false, err
	}
	in.Log.Warn("automatic rollback", "trigger", trigger, "commit", in.task.Commit.String(), "snapshot", snapshot, "error", err)
	n = n.RestoreOf(snapshot, j.restorer.asked())
	n.Trigger, n.Cause, n.RolledBackFrom = trigger, audit.Line(strings.TrimSpace(err.Error()), maxCause), in.task.Commit
	if err := saveNote(in.dir, n); err != nil {
		return false, err
	}
	*j.failures = decide.Failures{}
	_, err = j.restorer.restore(ctx, n)
	return true, err
}

// maxCause bounds the cause of an automatic rollback in the note, in bytes.
const maxCause = 300

// confirmTrigger records a failure to load the target, and returns its trigger once the failures suffice; "" if the target is not the cause,
// or if that is not certain yet.
func (j autoRollback) confirmTrigger(ctx context.Context, err error) v1alpha1.AutoRollbackTrigger {
	in := j.restorer.in
	l := decide.LoadFailure{
		Target: in.task.Commit, Symptoms: j.symptoms(err), Triggers: in.task.Profile.AutoRollback, HasBaseline: j.restorer.unloaded.Baseline != nil,
		Requested: in.task.RequestedRollback, Resumes: j.resumes, Standby: in.node.Standby(), Now: in.Now(),
	}
	if l.HasBaseline && len(l.Symptoms) > 0 {
		state, _ := in.gateway.state(ctx)
		l.Running = state == running
	}
	var due v1alpha1.AutoRollbackTrigger
	var retry time.Time
	if *j.failures, due, retry = j.failures.Add(l); !retry.IsZero() {
		in.report.RetryAt = retry
	}
	return due
}

// symptoms returns the triggers that a failure to load the target matches.
func (j autoRollback) symptoms(err error) (found []v1alpha1.AutoRollbackTrigger) {
	b := j.restorer.unloaded.Baseline
	if b == nil {
		return nil
	}
	switch {
	case failure.Is(err, v1alpha1.ReasonScanFailed) && !ignition.Refused(err):
		found = append(found, v1alpha1.TriggerScanFailure)
	case failure.Is(err, v1alpha1.ReasonVerificationFailed) && b.Known:
		if slices.ContainsFunc(j.mismatches.Projects, func(name string) bool {
			return !slices.Contains(b.Projects, name) && projectEnabled(j.restorer.in.dir, name)
		}) {
			found = append(found, v1alpha1.TriggerProjectLoadError)
		}
		if slices.ContainsFunc(j.mismatches.Resources, func(r unloaded.Resource) bool { return !slices.Contains(b.Resources, r) }) {
			found = append(found, v1alpha1.TriggerConfigError)
		}
	}
	return found
}

// maxProjectFile bounds a project.json in bytes. It has a few lines.
const maxProjectFile = 64 << 10

// projectEnabled reports whether a project is not disabled by its own project.json.
func projectEnabled(d *disk.Dir, name string) bool {
	var doc struct {
		Enabled *bool `json:"enabled"`
	}
	raw, err := d.Read(unloaded.ProjectFile(name), maxProjectFile)
	return err != nil || json.Unmarshal(raw, &doc) != nil || doc.Enabled == nil || *doc.Enabled
}

// nextBaseline returns the baseline of this sync with its snapshot. Without spec.autoRollback or a snapshot, and for the commit that the manifest
// already has, it returns the baseline of before. If the gateway has not loaded the files of an earlier sync, that sync's baseline stays and is
// extended: both commits are compared with what ran before the first.
func (a *applier) nextBaseline(ctx context.Context, snapshot string, before unloaded.Set) *unloaded.Baseline {
	h := a.in.dir.Manifest().Header()
	if len(a.in.task.Profile.AutoRollback) == 0 || snapshot == "" || h.Commit == a.in.task.Commit && h.Rules == a.in.rules.Fingerprint() {
		return before.Baseline
	}
	b := unloaded.Baseline{Snapshot: snapshot, Known: true}
	if earlier := before.Baseline; earlier != nil && a.in.hasSnapshot(earlier.Snapshot) {
		b = *earlier
	} else {
		before = unloaded.Set{}
	}
	if !b.Known || a.guard.state != running || !a.in.gateway.hasAPIToken || a.in.gateway.legacy() {
		b.Known = false
		return &b
	}
	found, err := a.mismatchesBefore(ctx, before)
	if err != nil {
		a.in.Log.Warn("baseline unknown", "error", err)
		b.Known = false
	}
	b.Projects, b.Resources = unloaded.Union(b.Projects, found.Projects), append(slices.Clone(b.Resources), found.Resources...)
	return &b
}

// mismatchesBefore returns what this sync will verify and the gateway does not show even before files change. It leaves out what an
// earlier baseline covers.
func (a *applier) mismatchesBefore(ctx context.Context, covered unloaded.Set) (found unloaded.Mismatches, err error) {
	ctx, cancel := withVerifyTime(ctx)
	defer cancel()
	var present, deleted []string
	for _, name := range unloaded.Union(a.unloaded.Projects, a.unloaded.Deleted) {
		if slices.Contains(covered.Projects, name) || slices.Contains(covered.Deleted, name) {
			continue
		}
		st, err := a.in.dir.Stat(unloaded.ProjectFile(name))
		switch {
		case err != nil:
			return found, err
		case st.Kind == plan.File:
			present = append(present, name)
		default:
			deleted = append(deleted, name)
		}
	}
	projects, err := unloaded.CompareProjects(ctx, a.in.gateway, present, deleted)
	if err != nil {
		return found, err
	}
	var resources []unloaded.Resource
	for _, r := range a.unloaded.Resources {
		st, err := a.in.dir.Stat(r.File())
		if err != nil {
			return found, err
		}
		if st.Kind == plan.File && !slices.Contains(covered.Resources, r) {
			resources = append(resources, r)
		}
	}
	missing, err := a.in.gateway.unlistedResources(ctx, resources)
	return unloaded.Mismatches{Projects: projects.Names(), Resources: missing}, err
}
