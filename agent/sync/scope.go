package sync

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"stoker.io/stoker/agent/decide"
	"stoker.io/stoker/agent/disk"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/redundancy"
	"stoker.io/stoker/agent/unloaded"
)

// scope is what all steps of a sync read. The steps pause and open set the fields from dir on. Later steps set none.
type scope struct {
	*Config
	conn   Connections
	task   Task
	trees  *trees
	report *Report

	dir          *disk.Dir
	readOnly     bool // dir was opened only for this dry run
	unloadedNote *unloaded.Note
	from         plan.ID // the commit in dir before the sync
	rules        plan.Rules
	force        bool // the force-sync request is new
	node         *redundancy.Node
	gateway      *gateway
}

// of returns the scope of a sync to another target.
func (s *scope) of(ref string, commit plan.ID) *scope {
	other := *s
	other.task.Ref, other.task.Commit = ref, commit
	return &other
}

// step starts a step for Report.Steps and the progress display. The returned function ends it.
func (s *scope) step(name string) func() {
	s.Progress(name, 0, 0)
	started := s.Now()
	return func() { s.report.Steps[name] += s.Now().Sub(started) }
}

func (s *scope) note(format string, args ...any) {
	s.report.Notes = append(s.report.Notes, fmt.Sprintf(format, args...))
}

// rulesAt returns the rules for a ref and a commit, which the profile's templates may use, with the gateway's mounts.
func rulesAt(c *Config, t *Task, ref string, commit plan.ID) (plan.Rules, error) {
	f := t.Facts
	f.Ref, f.Commit = ref, commit.String()
	r, err := plan.ParseRules(t.Profile, f, c.Limits)
	if err != nil {
		return r, err
	}
	found, err := disk.Mounts(c.DataDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // opening a missing directory reports it
		return r, err
	}
	r.Mounts = plan.NewMounts(append(found, c.Mounts...))
	return r, nil
}

// describes reports whether a manifest was written for the files of a target under the rules.
func describes(h plan.Header, t *Task, rules plan.Rules) bool {
	sameRef := h.Ref == t.Ref || !rules.DependsOnRef()
	return h.Commit == t.Commit && sameRef && h.Rules == rules.Fingerprint()
}

// filesDone reports whether, by the manifest alone, the target's files are on the disk already. It returns false for a forced sync and a repair.
func (s *scope) filesDone() bool {
	h := s.dir.Manifest().Header()
	return describes(h, &s.task, s.rules) && h.Complete && !s.force && !s.task.Repair
}

// delivery returns what package decide needs to know about this sync.
func (s *scope) delivery() decide.Delivery {
	h := s.dir.Manifest().Header()
	corrected := h.Rules == "" && h.Files > 0 // the volume has files of another commit than the recorded one
	return decide.Delivery{
		First: h.Commit.IsZero(), DryRun: s.task.Profile.DryRun, Repair: s.task.Repair && describes(h, &s.task, s.rules), Rollback: s.task.RequestedRollback,
		Approved: s.task.WindowApproved, Forced: s.force && s.Record.NewForce(s.task.Force), AccessChanged: s.node.AccessChanged(),
		SameCommit: h.Commit == s.task.Commit, SameRules: h.Rules == s.rules.Fingerprint(),
		LacksFiles: (s.task.BeforeStart || s.task.NewVolume) && !h.Complete && !corrected, Recorded: s.Record.Allows(s.task.Commit),
	}
}

// determineAccess determines whether the node of a redundant pair has config access.
func (s *scope) determineAccess(ctx context.Context, state gatewayState) error {
	err := s.node.DetermineAccess(ctx, s.gateway.pairSource(state))
	s.report.Paired = s.node.Paired()
	return err
}

// forceNote is the note with the last force-sync request that was carried out, so that a restart does not repeat it.
const forceNote = "force-sync"

// recordForced records that the force-sync request was carried out.
func (s *scope) recordForced() error {
	if !s.force {
		return nil
	}
	s.Record.Forced(s.task.Force)
	return s.dir.SetNote(forceNote, []byte(s.task.Force))
}

// outlive returns a context that outlives ctx by grace, for the scan that loads the files and releases the scan lock.
func outlive(ctx context.Context, grace time.Duration) (context.Context, context.CancelFunc) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(grace, cancel) })
	return longer, func() { stop(); cancel() }
}

func join(message, more string) string {
	if message == "" || more == "" {
		return message + more
	}
	return message + "; " + more
}
