package sync

import (
	"context"
	"fmt"
	"time"

	"stoker.io/stoker/agent/ignition"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// loader makes the gateway load the files on the disk, and verifies that it did.
type loader struct {
	*job
}

// load makes the gateway load what it has not loaded yet.
func (l *loader) load(ctx context.Context) error {
	if l.force {
		l.unloaded.Commit, l.unloaded.ScanProjects, l.unloaded.ScanConfig = l.t.Commit, !l.node.Standby(), true
	}
	if err := l.unloaded.drop(l.dir); err != nil {
		return err
	}
	switch {
	case l.gateway.Gateway == nil:
		l.r.Message = join(l.r.Message, "files only, no gateway is configured: nothing was scanned or verified")
		return nil
	case !l.gateway.token:
		return l.withoutToken(ctx)
	case l.t.BeforeStart:
		return l.notStarted()
	case l.unloaded.empty() && l.gateway.seenRunning():
		return nil
	case l.unloaded.empty():
		return l.awaitStart(ctx)
	}
	if state, err := l.gateway.state(ctx); state != running {
		l.r.Phase = Applied
		return err
	}
	if err := l.gateway.readPlatform(ctx); err != nil {
		return err
	}
	if l.gateway.legacy() {
		return l.loadLegacy(ctx)
	}
	since := l.gateway.clock(ctx, l.Now())
	err := l.scan(ctx)
	if err == nil {
		err = l.verify(ctx)
	}
	if failure.Is(err, v1alpha1.ReasonVerificationFailed) && len(l.r.Scans) == 0 {
		// A start should have read all files, but may have begun before the last file was written.
		l.unloaded.ScanProjects, l.unloaded.ScanConfig = !l.node.Standby(), true
		if err = l.scan(ctx); err == nil {
			err = l.verify(ctx)
		}
	}
	if err == nil {
		l.noteProblems(ctx)
	}
	l.noteErrors(ctx, since) // last, because they are many and a report has room for a few
	if err != nil {
		return l.unconfirmed(ctx, err)
	}
	return l.loaded()
}

// loaded records that the gateway has loaded everything.
func (l *loader) loaded() error {
	l.r.Projects = l.unloaded.Projects
	l.unloaded = unloaded{}
	return l.unloaded.save(l.dir)
}

// notStarted is the outcome if the files are written before the gateway starts.
func (j *job) notStarted() error {
	j.r.Phase = Applied
	return failure.New(v1alpha1.ReasonWaitingForGateway, "the files of %s are on the disk; the gateway has not started yet", j.t.Commit.Short())
}

// unconfirmed returns the outcome of a delivery that the gateway did not confirm.
func (l *loader) unconfirmed(ctx context.Context, err error) error {
	if l.node.Standby() && failure.Is(err, v1alpha1.ReasonGatewayForbidden) {
		// It is not known whether a node without config access scans. Its files matter when it becomes active, and it
		// is scanned then.
		l.note("the standby node did not scan: %v", err)
		return nil
	}
	if err = l.refused(ctx, err); failure.Is(err, v1alpha1.ReasonWaitingForCommissioning) {
		l.r.Phase = Applied
	}
	return l.undelivered(err)
}

// undelivered wraps an error for files that are on the disk and that the gateway did not load.
func (l *loader) undelivered(err error) error {
	return fmt.Errorf("the files of %s are on the disk, but the gateway has not loaded them: %w", l.t.Commit.Short(), err)
}

// scan scans what changed. Configuration comes first, because views use its tag providers and connections.
func (l *loader) scan(ctx context.Context) error {
	defer l.step("scan")()
	for _, k := range []struct {
		kind   ignition.Kind
		needed *bool
	}{{ignition.ConfigScan, &l.unloaded.ScanConfig}, {ignition.Projects, &l.unloaded.ScanProjects}} {
		if !*k.needed {
			continue
		}
		started := l.Now()
		res, err := l.gateway.Scan(ctx, k.kind)
		out := ScanOutcome{Kind: string(k.kind), Duration: res.Status.Duration}
		if err != nil {
			out.Reason = string(failure.Reason(err, v1alpha1.ReasonScanFailed))
			out.Duration = l.Now().Sub(started)
		}
		l.r.Scans = append(l.r.Scans, out)
		if err != nil {
			return err
		}
		*k.needed = false
		if err := l.unloaded.save(l.dir); err != nil {
			return err
		}
	}
	return nil
}

// awaitStart ends a sync without changes for a gateway that has not been seen running since its start.
//
// A recreated pod starts its gateway again. If the volume already has the target, that gateway has nothing to load, but
// it may never come up. So the sync reports Synced only after it has seen the gateway running once. After that, the
// gateway's own probes are responsible.
func (j *job) awaitStart(ctx context.Context) error {
	if state, err := j.gateway.state(ctx); state != running {
		if failure.Is(err, v1alpha1.ReasonGatewayUnreachable) && !ignition.Untrusted(err) { // a web server that is coming up can fail in many ways
			err = failure.New(v1alpha1.ReasonWaitingForGateway, "%w", err)
		}
		j.r.Phase = Applied
		return fmt.Errorf("%s is on the disk already, and the gateway has not run since its pod started: %w", j.t.Commit.Short(), err)
	}
	return nil
}

// maxNotes bounds the lines of the gateway's log in a report.
const maxNotes = 10

// noteErrors adds the gateway's log errors since then as notes. They do not affect the outcome, because a busy
// gateway always logs.
func (l *loader) noteErrors(ctx context.Context, since time.Time) {
	lines, err := l.gateway.ErrorsSince(ctx, since)
	if err != nil {
		l.Log.Debug("gateway log unreadable", "error", err)
		return
	}
	for i, line := range lines {
		if i == maxNotes {
			l.note("the gateway logged %d more errors", len(lines)-i)
			return
		}
		l.note("the gateway logged: %s: %s", line.Logger, line.Message)
	}
}

// noteProblems notes problems of a gateway that did load its files: another mode or name than the profile says, an
// expired trial, or a pending restart.
func (l *loader) noteProblems(ctx context.Context) {
	if info, ok := l.gateway.identity(ctx); ok {
		if want := l.t.Profile.DeploymentMode; want != "" && info.DeploymentMode != want {
			is := "no deployment mode"
			if info.DeploymentMode != "" {
				is = "deployment mode " + info.DeploymentMode
			}
			l.note("the gateway runs with %s instead of %q from its annotation, so config/resources/%s is not in effect "+
				"(start the gateway with -Dignition.config.mode=%s)", is, want, want, want)
		}
		if want := l.rules.SystemName.Value; want != "" && info.Name != want {
			l.note("the gateway is named %q instead of %q from its annotation system-name: check the name that it is started with", info.Name, want)
		}
	}
	if l.gateway.trialExpired(ctx) {
		l.note("the gateway's trial has expired, so the synced resources do not run (%s)", newTrial)
	}
	pending, err := l.gateway.PendingRestarts(ctx)
	if err != nil {
		l.Log.Debug("pending restarts unknown", "error", err)
		return
	}
	if len(pending) > 0 {
		l.note("the gateway must be restarted for changes to take effect: %s", some(pending))
	}
}

// newTrial is what helps a gateway without a license.
const newTrial = "reset the trial on the gateway's home page, or activate a license"
