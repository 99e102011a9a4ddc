package sync

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"stoker.io/stoker/agent/disk"
	"stoker.io/stoker/agent/ignition"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// lockHold is how long the gateway keeps the scan lock if the scan that releases it never comes. Only renames happen
// under the lock, so it is normally held far shorter.
const lockHold = 60 * time.Second

// gatewayState is the gateway's state as seen by a ping.
type gatewayState int

const (
	noGateway gatewayState = iota // none is configured
	away                          // the port refuses connections: stopped, or just starting
	busy                          // starting, waiting for commissioning, or unreachable
	running
)

// look returns the gateway's state, and an error with the reason if it is not running.
func (s *run) look(ctx context.Context) (gatewayState, error) {
	if s.conn.Gateway == nil {
		return noGateway, nil
	}
	ping, err := s.conn.Gateway.Ping(ctx)
	switch {
	case err == nil && ping.Running():
		s.sawRunning()
		return running, nil
	case err == nil && ping.Commissioning():
		return busy, failure.New(v1alpha1.ReasonWaitingForCommissioning, "the gateway waits for its commissioning: open it in a browser and finish the first steps")
	case err == nil:
		return busy, failure.New(v1alpha1.ReasonWaitingForGateway, "the gateway is in state %s", ping)
	case errors.Is(err, syscall.ECONNREFUSED):
		return away, failure.New(v1alpha1.ReasonWaitingForGateway, "the gateway is not running: %w", err)
	default:
		// An untrusted certificate or a lost packet does not tell the gateway's state: it may be running.
		return busy, err
	}
}

// ready reports whether files may be written now. A stopped gateway reads its files at its next start, so they may be
// written. A starting gateway is reading them, so ready returns an error. So does an unreachable one, because it may
// run and could not be made to scan. What may be written also depends on the node's place in a redundant pair.
func (s *run) ready(ctx context.Context) error {
	if s.t.BeforeStart {
		s.before = away
		return s.findPlace(ctx, away)
	}
	state, err := s.look(ctx)
	s.before = state
	switch state {
	case busy:
		return err
	case running:
		if err := s.askPlatform(ctx); err != nil {
			return err
		}
	}
	return s.findPlace(ctx, state)
}

// apply makes the staged files live. If git wins and the gateway saved a resource meanwhile, that whole resource must
// be replaced, so apply plans again, once.
func (s *run) apply(ctx context.Context, changes *plan.Changes, staged *disk.Staged) error {
	err := s.write(ctx, changes, staged)
	if foreign, ok := errors.AsType[*disk.ForeignError](err); ok && s.rules.Conflict == plan.GitWins && !s.again {
		s.Log.Info("planned once more", "reason", foreign)
		s.again = true
		notes := s.r.Notes
		s.r.Notes = nil
		err = s.bring(ctx)
		for _, n := range s.r.Notes {
			if !slices.Contains(notes, n) {
				notes = append(notes, n)
			}
		}
		s.r.Notes = notes
	}
	return err
}

// write applies the staged files, under the gateway's scan lock if possible.
func (s *run) write(ctx context.Context, changes *plan.Changes, staged *disk.Staged) error {
	defer s.step("apply")()
	if err := s.sessions(ctx, changes); err != nil {
		return errors.Join(err, staged.Discard())
	}
	before := s.owed
	there, gone, err := s.projects(changes)
	if err == nil {
		s.owed = before.add(changes, there, gone)
		s.owed.Fresh = s.owed.Fresh || s.before == away
		err = s.owed.save(s.dir)
	}
	if err != nil {
		return errors.Join(err, staged.Discard())
	}
	locked := s.lock(ctx, changes)
	applied, err := s.move(ctx, changes, staged)
	if err != nil {
		s.unlock(ctx, locked)
		if !applied {
			s.owed = before
			err = errors.Join(err, before.save(s.dir))
		}
		return err
	}
	if s.t.BeforeStart {
		// The gateway reads everything when it starts; only verification remains.
		s.owed.ScanProjects, s.owed.ScanConfig = false, false
		return s.owed.save(s.dir)
	}
	return nil
}

// move checks the Designers once more and renames the files. It runs under the lock.
func (s *run) move(ctx context.Context, changes *plan.Changes, staged *disk.Staged) (applied bool, err error) {
	if s.strict() { // the other policies only need the note that already exists
		if err := s.sessions(ctx, changes); err != nil {
			return false, errors.Join(err, staged.Discard())
		}
	}
	if s.rules.Conflict != plan.GitWins {
		staged.RefuseForeign() // what the gateway writes now is a conflict like any other
	}
	res, err := staged.Apply(ctx, s.header(changes))
	if foreign, ok := errors.AsType[*disk.ForeignError](err); ok && !res.Applied {
		return false, failure.New(v1alpha1.ReasonConflictDetected, "%w; it is planned again", foreign)
	}
	if err != nil {
		return res.Applied, err
	}
	s.held = heldAt{}
	c := changes.Counts()
	s.r.Files = Counts{Added: c.Added, Modified: c.Modified, Deleted: c.Deleted, Kept: c.Kept, Saved: res.Saved}
	s.r.Message = changes.Summary()
	if more := res.Saved - c.Conflicts; more > 0 {
		s.r.Message += fmt.Sprintf("; %d more to lost+found, which the gateway wrote meanwhile", more)
	}
	return true, nil
}

// lock takes the scan lock of each tree that changes. If that fails, the sync continues and notes it: the lock only
// separates the gateway's writes from ours, and the disk package detects writes that slip through.
func (s *run) lock(ctx context.Context, changes *plan.Changes) []ignition.Kind {
	if s.before != running || !s.conn.Token || s.older() {
		return nil
	}
	var locked []ignition.Kind
	projects, config := changes.Touches()
	for _, k := range []struct {
		kind  ignition.Kind
		needs bool
	}{{ignition.ConfigScan, config}, {ignition.Projects, projects}} {
		if !k.needs {
			continue
		}
		if _, err := s.conn.Gateway.Lock(ctx, k.kind, lockHold); err != nil {
			s.note("written without the gateway's %s scan lock: %v", k.kind, err)
			continue
		}
		locked = append(locked, k.kind)
	}
	return locked
}

// unlock releases locks after a failed apply. Only a scan can release a lock; it finds nothing new, because the files
// were rolled back. unlock waits at most Grace; the locks also expire by themselves.
func (s *run) unlock(ctx context.Context, locked []ignition.Kind) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.Grace)
	defer cancel()
	for _, k := range locked {
		if _, err := s.conn.Gateway.Scan(ctx, k); err != nil {
			s.note("the gateway's %s scan lock could not be released and lapses by itself: %v", k, err)
		}
	}
}

// deliver makes the gateway load what is owed to it, verifies that, and reports the node's place.
func (s *run) deliver(ctx context.Context) error {
	if s.force {
		s.owed.Commit, s.owed.ScanProjects, s.owed.ScanConfig = s.t.Commit, !s.standby.on, true
	}
	if err := s.owed.drop(s.dir); err != nil {
		return err
	}
	if err := s.handOver(ctx); err != nil {
		return err
	}
	return s.stand()
}

func (s *run) handOver(ctx context.Context) error {
	switch {
	case s.conn.Gateway == nil:
		s.r.Message = also(s.r.Message, "files only, no gateway is named: nothing was scanned or verified")
		return nil
	case !s.conn.Token:
		return s.withoutToken(ctx)
	case s.t.BeforeStart:
		return s.notStarted()
	case s.owed.empty() && s.ran():
		return nil
	case s.owed.empty():
		return s.awaitStart(ctx)
	}
	if state, err := s.look(ctx); state != running {
		s.r.Phase = Applied
		return err
	}
	if s.platform == (ignition.Platform{}) {
		if err := s.askPlatform(ctx); err != nil {
			return err
		}
	}
	if s.older() {
		return s.handOverOlder(ctx)
	}
	since := s.gatewayClock(ctx)
	err := s.scan(ctx)
	if err == nil {
		err = s.verify(ctx)
	}
	if failure.Is(err, v1alpha1.ReasonVerificationFailed) && len(s.r.Scans) == 0 {
		// A start should have read all files, but may have begun before the last file was written.
		s.owed.ScanProjects, s.owed.ScanConfig = !s.standby.on, true
		if err = s.scan(ctx); err == nil {
			err = s.verify(ctx)
		}
	}
	s.gatewayErrors(ctx, since)
	if err != nil {
		return s.unconfirmed(ctx, err)
	}
	s.remarks(ctx)
	s.r.Projects = s.owed.Projects
	s.owed = owed{}
	return s.owed.save(s.dir)
}

// notStarted is the outcome if the files are written before the gateway starts.
func (s *run) notStarted() error {
	s.r.Phase = Applied
	return failure.New(v1alpha1.ReasonWaitingForGateway, "the files of %s are on the disk; the gateway has not started yet", s.t.Commit.Short())
}

// unconfirmed returns the outcome of a delivery that the gateway did not confirm.
func (s *run) unconfirmed(ctx context.Context, err error) error {
	if s.standby.on && failure.Is(err, v1alpha1.ReasonGatewayForbidden) {
		// It is not known whether a node without config access scans. Its files matter when it becomes active, and it
		// is scanned then.
		s.note("a node on standby does not scan: %v", err)
		return nil
	}
	if err = s.refused(ctx, err); failure.Is(err, v1alpha1.ReasonWaitingForCommissioning) {
		s.r.Phase = Applied
	}
	return s.undelivered(err)
}

// undelivered wraps an error for files that are on the disk and that the gateway did not load.
func (s *run) undelivered(err error) error {
	return fmt.Errorf("the files of %s are on the disk, but the gateway has not taken them: %w", s.t.Commit.Short(), err)
}

// scan scans what changed. Configuration comes first, because views use its tag providers and connections.
func (s *run) scan(ctx context.Context) error {
	defer s.step("scan")()
	for _, k := range []struct {
		kind ignition.Kind
		owes *bool
	}{{ignition.ConfigScan, &s.owed.ScanConfig}, {ignition.Projects, &s.owed.ScanProjects}} {
		if !*k.owes {
			continue
		}
		started := s.Now()
		res, err := s.conn.Gateway.Scan(ctx, k.kind)
		out := ScanOutcome{Kind: string(k.kind), Duration: res.Status.Duration}
		if err != nil {
			out.Reason = string(failure.Reason(err, v1alpha1.ReasonScanFailed))
			out.Duration = s.Now().Sub(started)
		}
		s.r.Scans = append(s.r.Scans, out)
		if err != nil {
			return err
		}
		*k.owes = false
		if err := s.owed.save(s.dir); err != nil {
			return err
		}
	}
	return nil
}

// gatewayClock returns the gateway's time, for reading its log; our clock may differ.
func (s *run) gatewayClock(ctx context.Context) time.Time {
	if p, err := s.conn.Gateway.Ping(ctx); err == nil && !p.Date.IsZero() {
		return p.Date
	}
	return s.Now()
}

// maxNotes bounds the lines of the gateway's log in a report.
const maxNotes = 10

// gatewayErrors adds the gateway's log errors since then as notes. They do not affect the outcome, because a busy
// gateway always logs.
func (s *run) gatewayErrors(ctx context.Context, since time.Time) {
	lines, err := s.conn.Gateway.ErrorsSince(ctx, since)
	if err != nil {
		s.Log.Debug("the gateway's log is not readable", "error", err)
		return
	}
	for i, l := range lines {
		if i == maxNotes {
			s.note("the gateway logged %d more errors", len(lines)-i)
			return
		}
		s.note("the gateway logged: %s: %s", l.Logger, l.Message)
	}
}

func (s *run) note(format string, args ...any) {
	s.r.Notes = append(s.r.Notes, fmt.Sprintf(format, args...))
}

func also(message, more string) string {
	if message == "" {
		return more
	}
	return message + "; " + more
}
