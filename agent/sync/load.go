package sync

import (
	"context"
	"errors"
	"fmt"
	"time"

	"stoker.io/stoker/agent/ignition"
	"stoker.io/stoker/agent/unloaded"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// loader makes the gateway load the files on the disk, and verifies that it did.
type loader struct {
	in         *scope
	unloaded   unloaded.Set        // what is not loaded yet
	mismatches unloaded.Mismatches // what the gateway did not show
}

// load makes the gateway load what it has not loaded yet.
func (l *loader) load(ctx context.Context) error {
	if l.in.force {
		l.unloaded.Commit = l.in.task.Commit
		l.requireScans()
	}
	confirmed, err := confirm(ctx, l.in, &l.unloaded)
	switch {
	case err != nil:
		return err
	case l.in.gateway.Gateway == nil:
		l.in.report.Message = join(l.in.report.Message, "files only, no gateway is configured: nothing was scanned or verified")
		return nil
	case !l.in.gateway.hasAPIToken:
		return l.loadWithoutAPIToken(ctx)
	case confirmed:
		return l.recordLoaded() // a user may have removed what the gateway could not load
	}
	if state, err := l.in.gateway.state(ctx); state != running {
		l.in.report.Phase = v1alpha1.GatewayApplied
		return err
	}
	if err := l.in.gateway.readPlatform(ctx); err != nil {
		return err
	}
	if l.in.gateway.legacy() {
		return l.loadLegacy(ctx)
	}
	since := l.in.gateway.clock(ctx, l.in.Now())
	err = l.scanAndVerify(ctx)
	if failure.Is(err, v1alpha1.ReasonVerificationFailed) && len(l.in.report.Scans) == 0 {
		// The gateway started after the files were applied, so nothing was scanned. But the start may have begun before the
		// last file was written: scan everything once.
		l.requireScans()
		err = l.scanAndVerify(ctx)
	}
	if err == nil {
		l.noteProblems(ctx)
		l.notifyDesigners(ctx)
	}
	l.noteErrors(ctx, since) // last, because they are many and a report has room for a few
	if err != nil {
		return l.unconfirmedOutcome(ctx, err)
	}
	return l.recordLoaded()
}

// confirm reports whether the gateway has loaded the files on the disk. It drops from pending what the disk contradicts. Without a
// gateway or an API key it returns true. It returns an error if the gateway has not started yet. It also returns one if nothing is left to
// load, but the gateway does not run and was not seen running since its pod started.
func confirm(ctx context.Context, in *scope, pending *unloaded.Set) (bool, error) {
	if err := pending.DropContradicted(in.dir); err != nil {
		return false, err
	}
	switch {
	case in.gateway.Gateway == nil || !in.gateway.hasAPIToken:
		return true, nil
	case in.task.BeforeStart:
		in.report.Phase = v1alpha1.GatewayApplied
		return false, failure.New(v1alpha1.ReasonWaitingForGateway, "the files of %s are on the disk; the gateway has not started yet", in.task.Commit.Short())
	case !pending.Empty():
		return false, nil
	case in.gateway.seenRunning():
		return true, nil
	}
	err := checkStarted(ctx, in)
	return err == nil, err
}

// loadDiskCommit makes the gateway load the commit on the disk instead of the target. It returns what the gateway still has not loaded.
func loadDiskCommit(ctx context.Context, in *scope, pending unloaded.Set) (unloaded.Set, error) {
	h := in.dir.Manifest().Header()
	ctx, cancel := outlive(ctx, in.Grace)
	defer cancel()
	l := loader{in: in.of(h.Ref, h.Commit), unloaded: pending}
	err := l.load(ctx)
	return l.unloaded, err
}

// requireScans makes the gateway scan everything. A standby node does not scan projects, which the pair copies. It scans
// configuration, which includes what the pair does not copy.
func (l *loader) requireScans() {
	l.unloaded.ScanProjects, l.unloaded.ScanConfig = !l.in.node.Standby(), true
}

func (l *loader) scanAndVerify(ctx context.Context) error {
	if err := l.scan(ctx); err != nil {
		return err
	}
	return l.verify(ctx)
}

// recordLoaded records that the gateway has loaded everything.
func (l *loader) recordLoaded() error {
	l.in.report.Projects = l.unloaded.Projects
	l.unloaded = unloaded.Set{}
	return l.in.unloadedNote.Save(l.unloaded)
}

// unconfirmedOutcome returns the outcome of a delivery that the gateway did not confirm.
func (l *loader) unconfirmedOutcome(ctx context.Context, err error) error {
	if l.in.node.Standby() && failure.Is(err, v1alpha1.ReasonGatewayForbidden) {
		// Whether a node without config access scans is not known. It scans when it becomes active.
		l.in.note("the standby node did not scan: %v", err)
		return nil
	}
	if err = l.handleRefusal(ctx, err); failure.Is(err, v1alpha1.ReasonWaitingForCommissioning) {
		l.in.report.Phase = v1alpha1.GatewayApplied
	}
	return l.notLoadedError(err)
}

// notLoadedError wraps err, because of which the gateway did not load the files on the disk.
func (l *loader) notLoadedError(err error) error {
	return fmt.Errorf("the files of %s are on the disk, but the gateway has not loaded them: %w", l.in.task.Commit.Short(), err)
}

// scan makes the gateway scan what changed. Configuration comes first, because views use its tag providers and connections.
func (l *loader) scan(ctx context.Context) error {
	defer l.in.step("scan")()
	for _, k := range []struct {
		kind   ignition.Kind
		needed *bool
	}{{ignition.ConfigScan, &l.unloaded.ScanConfig}, {ignition.Projects, &l.unloaded.ScanProjects}} {
		if !*k.needed {
			continue
		}
		started := l.in.Now()
		res, err := l.in.gateway.Scan(ctx, k.kind)
		duration := res.Status.Duration
		if err != nil {
			duration = l.in.Now().Sub(started)
		}
		if l.recordScan(k.kind, duration, err); err != nil {
			return err
		}
		*k.needed = false
		if err := l.in.unloadedNote.Save(l.unloaded); err != nil {
			return err
		}
	}
	return nil
}

// recordScan records the outcome of a scan. err is nil if it succeeded.
func (l *loader) recordScan(kind ignition.Kind, duration time.Duration, err error) {
	out := ScanOutcome{Kind: string(kind), Duration: duration}
	if err != nil {
		out.Reason = string(failure.Reason(err, v1alpha1.ReasonScanFailed))
	}
	l.in.report.Scans = append(l.in.report.Scans, out)
}

// checkStarted lets a sync without changes end as Synced only if the gateway runs.
//
// A recreated pod starts its gateway again. If the volume already has the target, that gateway has nothing to load, but
// it may never come up. After the agent has seen it running once, the gateway's own probes are responsible.
func checkStarted(ctx context.Context, in *scope) error {
	if state, err := in.gateway.state(ctx); state != running {
		if failure.Is(err, v1alpha1.ReasonGatewayUnreachable) { // a web server that is coming up can fail in many ways
			err = failure.New(v1alpha1.ReasonWaitingForGateway, "%w", err)
		}
		in.report.Phase = v1alpha1.GatewayApplied
		return fmt.Errorf("%s is on the disk already, and the gateway has not run since its pod started: %w", in.task.Commit.Short(), err)
	}
	return nil
}

// maxNotes bounds the lines of the gateway's log in a report.
const maxNotes = 10

// noteErrors notes the errors in the gateway's log. They do not affect the outcome: a busy gateway always logs some.
func (l *loader) noteErrors(ctx context.Context, since time.Time) {
	lines, err := l.in.gateway.ErrorsSince(ctx, since)
	if err != nil {
		l.in.Log.Debug("gateway log unreadable", "error", err)
		return
	}
	for i, line := range lines {
		if i == maxNotes {
			l.in.note("the gateway logged %d more errors", len(lines)-i)
			return
		}
		l.in.note("the gateway logged: %s: %s", line.Logger, line.Message)
	}
}

// noteProblems notes a mode or name that differs from the profile, an expired trial, and a pending restart.
func (l *loader) noteProblems(ctx context.Context) {
	if info, err := l.in.gateway.identity(ctx); err != nil {
		l.in.Log.Debug("gateway identity unknown", "error", err)
	} else {
		if want := l.in.task.Profile.DeploymentMode; want != "" && info.DeploymentMode != want {
			mode := "no deployment mode"
			if info.DeploymentMode != "" {
				mode = "deployment mode " + info.DeploymentMode
			}
			l.in.note("the gateway runs with %s instead of %q from its annotation, so config/resources/%s is not in effect "+
				"(start the gateway with -Dignition.config.mode=%s)", mode, want, want, want)
		}
		if want := l.in.rules.SystemName.Value; want != "" && info.Name != want {
			l.in.note("the gateway is named %q instead of %q from its annotation system-name: check the name that it is started with", info.Name, want)
		}
	}
	if l.in.gateway.trialExpired(ctx) {
		l.in.note("the gateway's trial has expired, so the synced resources do not run (%s)", trialAdvice)
	}
	pending, err := l.in.gateway.PendingRestarts(ctx)
	if err != nil {
		l.in.Log.Debug("pending restarts unknown", "error", err)
		return
	}
	if len(pending) > 0 {
		l.in.note("the gateway must be restarted for changes to take effect: %s", unloaded.FirstNames(pending))
	}
}

// trialAdvice says what to do about an expired trial.
const trialAdvice = "reset the trial on the gateway's home page, or activate a license"

// loadLegacy makes a gateway before 8.3 load its projects through the project-scan module, if it has one. Such a
// gateway cannot show what it has loaded, so nothing is verified.
func (l *loader) loadLegacy(ctx context.Context) error {
	defer l.in.step("scan")()
	if l.unloaded.ScanConfig {
		l.in.note("Ignition %s keeps its configuration in a database and ignores files below config/", l.in.gateway.platform.Version)
	}
	if l.unloaded.ScanProjects {
		if err := l.scanByModule(ctx); err != nil {
			return l.notLoadedError(err)
		}
	}
	return l.recordLoaded()
}

func (l *loader) scanByModule(ctx context.Context) error {
	started := l.in.Now()
	result, err := l.in.gateway.ScanByModule(ctx, true)
	if errors.Is(err, ignition.ErrNoScanModule) {
		l.in.report.Message = join(l.in.report.Message, fmt.Sprintf(
			"files only: Ignition %s has no scan API, and the project-scan module is not installed; the gateway reads its projects by itself every few minutes", l.in.gateway.platform.Version))
		return nil
	}
	if l.recordScan(ignition.Projects, l.in.Now().Sub(started), err); err != nil {
		return err
	}
	notified := ""
	if result.DesignersNotified {
		notified = " and notified the open Designers"
	}
	l.in.report.Message = join(l.in.report.Message, fmt.Sprintf(
		"the project-scan module scanned%s; Ignition %s cannot show what it loaded, so nothing is verified", notified, l.in.gateway.platform.Version))
	return nil
}

// notifyDesigners lets the project-scan module tell open Designers that the files below them have changed, which the gateway's own scan does
// not. Without the module, or if it fails, the users update their projects themselves: the sync is verified already.
func (l *loader) notifyDesigners(ctx context.Context) {
	if !l.in.report.designersOpen {
		return
	}
	// Without force, because a user may have work that is not saved.
	switch result, err := l.in.gateway.ScanByModule(ctx, false); {
	case errors.Is(err, ignition.ErrNoScanModule):
	case err != nil:
		l.in.note("the project-scan module did not notify the open Designers: %v", err)
	case result.DesignersNotified:
		l.in.note("the project-scan module notified the open Designers")
	}
}

// loadWithoutAPIToken ends a sync without an API key. Only a gateway before 8.3 scans without one.
func (l *loader) loadWithoutAPIToken(ctx context.Context) error {
	if !l.unloaded.Empty() && !l.in.task.BeforeStart {
		if state, _ := l.in.gateway.state(ctx); state == running {
			if err := l.in.gateway.readPlatform(ctx); err != nil {
				return err
			}
		}
		if l.in.gateway.legacy() {
			return l.loadLegacy(ctx)
		}
	}
	l.in.report.Message = join(l.in.report.Message, "files only, spec.gateway.api has no API key: nothing was scanned or verified")
	return nil
}
