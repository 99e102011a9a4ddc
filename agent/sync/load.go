package sync

import (
	"context"
	"errors"
	"fmt"
	"time"

	"stoker.io/stoker/agent/ignition"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// loader makes the gateway load the files on the disk, and verifies that it did.
type loader struct{ *job }

// load makes the gateway load what it has not loaded yet.
func (l loader) load(ctx context.Context) error {
	if l.force {
		l.unloaded.Commit = l.t.Commit
		l.requireScans()
	}
	confirmed, err := l.confirmed(ctx)
	switch {
	case err != nil:
		return err
	case l.gateway.Gateway == nil:
		l.r.Message = join(l.r.Message, "files only, no gateway is configured: nothing was scanned or verified")
		return nil
	case !l.gateway.hasAPIToken:
		return l.loadWithoutAPIToken(ctx)
	case confirmed:
		return l.recordLoaded() // a user may have removed what the gateway could not load
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
	err = l.scanAndVerify(ctx)
	if failure.Is(err, v1alpha1.ReasonVerificationFailed) && len(l.r.Scans) == 0 {
		// The gateway started after the files were applied, so nothing was scanned. But the start may have begun before the
		// last file was written: scan everything once.
		l.requireScans()
		err = l.scanAndVerify(ctx)
	}
	if err == nil {
		l.noteProblems(ctx)
	}
	l.noteErrors(ctx, since) // last, because they are many and a report has room for a few
	if err != nil {
		return l.unconfirmedOutcome(ctx, err)
	}
	return l.recordLoaded()
}

// confirmed reports whether the gateway has loaded the files on the disk. Without a gateway or an API token it returns true. It
// returns an error if the gateway has not started yet, and if nothing is left to scan but the agent has not seen the gateway
// running since its pod started.
func (j *job) confirmed(ctx context.Context) (bool, error) {
	if err := j.unloaded.dropContradicted(j.dir); err != nil {
		return false, err
	}
	switch {
	case j.gateway.Gateway == nil || !j.gateway.hasAPIToken:
		return true, nil
	case j.t.BeforeStart:
		return false, j.reportNotStarted()
	case !j.unloaded.empty():
		return false, nil
	case j.gateway.seenRunning():
		return true, nil
	}
	err := j.checkStarted(ctx)
	return err == nil, err
}

// loadDiskCommit makes the gateway load the commit on the disk instead of the target.
func (j *job) loadDiskCommit(ctx context.Context) error {
	target, h := j.t.Target, j.dir.Manifest().Header()
	j.t.Ref, j.t.Commit = h.Ref, h.Commit
	defer func() { j.t.Target = target }()
	ctx, cancel := outlive(ctx, j.Grace)
	defer cancel()
	return loader{j}.load(ctx)
}

// requireScans makes the gateway scan everything. A standby node does not scan projects, which the pair copies. It scans
// configuration, which includes what the pair does not copy.
func (l loader) requireScans() {
	l.unloaded.ScanProjects, l.unloaded.ScanConfig = !l.node.Standby(), true
}

func (l loader) scanAndVerify(ctx context.Context) error {
	if err := l.scan(ctx); err != nil {
		return err
	}
	return l.verify(ctx)
}

// recordLoaded records that the gateway has loaded everything.
func (l loader) recordLoaded() error {
	l.r.Projects = l.unloaded.Projects
	l.unloaded = unloaded{}
	return l.unloaded.save(l.dir)
}

// reportNotStarted ends a sync that wrote the files before the gateway starts.
func (j *job) reportNotStarted() error {
	j.r.Phase = Applied
	return failure.New(v1alpha1.ReasonWaitingForGateway, "the files of %s are on the disk; the gateway has not started yet", j.t.Commit.Short())
}

// unconfirmedOutcome returns the outcome of a delivery that the gateway did not confirm.
func (l loader) unconfirmedOutcome(ctx context.Context, err error) error {
	if l.node.Standby() && failure.Is(err, v1alpha1.ReasonGatewayForbidden) {
		// Whether a node without config access scans is not known. It scans when it becomes active.
		l.note("the standby node did not scan: %v", err)
		return nil
	}
	if err = l.handleRefusal(ctx, err); failure.Is(err, v1alpha1.ReasonWaitingForCommissioning) {
		l.r.Phase = Applied
	}
	return l.notLoadedError(err)
}

// notLoadedError wraps err, because of which the gateway did not load the files on the disk.
func (l loader) notLoadedError(err error) error {
	return fmt.Errorf("the files of %s are on the disk, but the gateway has not loaded them: %w", l.t.Commit.Short(), err)
}

// scan scans what changed. Configuration comes first, because views use its tag providers and connections.
func (l loader) scan(ctx context.Context) error {
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
		duration := res.Status.Duration
		if err != nil {
			duration = l.Now().Sub(started)
		}
		if l.recordScan(k.kind, duration, err); err != nil {
			return err
		}
		*k.needed = false
		if err := l.unloaded.save(l.dir); err != nil {
			return err
		}
	}
	return nil
}

// recordScan records the outcome of a scan. err is nil if it succeeded.
func (l loader) recordScan(kind ignition.Kind, duration time.Duration, err error) {
	out := ScanOutcome{Kind: string(kind), Duration: duration}
	if err != nil {
		out.Reason = string(failure.Reason(err, v1alpha1.ReasonScanFailed))
	}
	l.r.Scans = append(l.r.Scans, out)
}

// checkStarted lets a sync without changes end as Synced only if the gateway runs.
//
// A recreated pod starts its gateway again. If the volume already has the target, that gateway has nothing to load, but
// it may never come up. After the agent has seen it running once, the gateway's own probes are responsible.
func (j *job) checkStarted(ctx context.Context) error {
	if state, err := j.gateway.state(ctx); state != running {
		if failure.Is(err, v1alpha1.ReasonGatewayUnreachable) { // a web server that is coming up can fail in many ways
			err = failure.New(v1alpha1.ReasonWaitingForGateway, "%w", err)
		}
		j.r.Phase = Applied
		return fmt.Errorf("%s is on the disk already, and the gateway has not run since its pod started: %w", j.t.Commit.Short(), err)
	}
	return nil
}

// maxNotes bounds the lines of the gateway's log in a report.
const maxNotes = 10

// noteErrors notes the errors in the gateway's log. They do not affect the outcome: a busy gateway always logs some.
func (l loader) noteErrors(ctx context.Context, since time.Time) {
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

// noteProblems notes another mode or name than the profile says, an expired trial, and a pending restart.
func (l loader) noteProblems(ctx context.Context) {
	if info, ok := l.gateway.identity(ctx); ok {
		if want := l.t.Profile.DeploymentMode; want != "" && info.DeploymentMode != want {
			mode := "no deployment mode"
			if info.DeploymentMode != "" {
				mode = "deployment mode " + info.DeploymentMode
			}
			l.note("the gateway runs with %s instead of %q from its annotation, so config/resources/%s is not in effect "+
				"(start the gateway with -Dignition.config.mode=%s)", mode, want, want, want)
		}
		if want := l.rules.SystemName.Value; want != "" && info.Name != want {
			l.note("the gateway is named %q instead of %q from its annotation system-name: check the name that it is started with", info.Name, want)
		}
	}
	if l.gateway.trialExpired(ctx) {
		l.note("the gateway's trial has expired, so the synced resources do not run (%s)", trialAdvice)
	}
	pending, err := l.gateway.PendingRestarts(ctx)
	if err != nil {
		l.Log.Debug("pending restarts unknown", "error", err)
		return
	}
	if len(pending) > 0 {
		l.note("the gateway must be restarted for changes to take effect: %s", firstNames(pending))
	}
}

// trialAdvice says what to do about an expired trial.
const trialAdvice = "reset the trial on the gateway's home page, or activate a license"

// loadLegacy makes a gateway before 8.3 load its projects through the project-scan module, if it has one. Such a
// gateway cannot show what it has loaded, so nothing is verified.
func (l loader) loadLegacy(ctx context.Context) error {
	defer l.step("scan")()
	if l.unloaded.ScanConfig {
		l.note("Ignition %s keeps its configuration in a database and ignores files below config/", l.gateway.platform.Version)
	}
	if l.unloaded.ScanProjects {
		if err := l.scanByModule(ctx); err != nil {
			return l.notLoadedError(err)
		}
	}
	return l.recordLoaded()
}

func (l loader) scanByModule(ctx context.Context) error {
	started := l.Now()
	result, err := l.gateway.ScanByModule(ctx)
	if errors.Is(err, ignition.ErrNoScanModule) {
		l.r.Message = join(l.r.Message, fmt.Sprintf(
			"files only: Ignition %s has no scan API, and the project-scan module is not installed; the gateway reads its projects by itself every few minutes", l.gateway.platform.Version))
		return nil
	}
	if l.recordScan(ignition.Projects, l.Now().Sub(started), err); err != nil {
		return err
	}
	notified := ""
	if result.DesignersNotified {
		notified = " and notified the open Designers"
	}
	l.r.Message = join(l.r.Message, fmt.Sprintf(
		"the project-scan module scanned%s; Ignition %s cannot show what it loaded, so nothing is verified", notified, l.gateway.platform.Version))
	return nil
}

// loadWithoutAPIToken ends a sync without an API token. Only a gateway before 8.3 scans without one.
func (l loader) loadWithoutAPIToken(ctx context.Context) error {
	if !l.unloaded.empty() && !l.t.BeforeStart {
		if state, _ := l.gateway.state(ctx); state == running {
			if err := l.gateway.readPlatform(ctx); err != nil {
				return err
			}
		}
		if l.gateway.legacy() {
			return l.loadLegacy(ctx)
		}
	}
	l.r.Message = join(l.r.Message, "files only, spec.gateway.api has no API token: nothing was scanned or verified")
	return nil
}
