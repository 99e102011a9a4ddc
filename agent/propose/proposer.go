package propose

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"slices"
	"time"

	"stoker.io/stoker/agent/forge"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/api/v1alpha1"
)

// Settings say how a gateway proposes its changes.
type Settings struct {
	Identity
	Branch, BaseBranch string // without refs/heads/
	Debounce           time.Duration
	Labels             []string
	Limits             Limits
	Guard              Guard
	Authors            map[string]string
	Sign               repo.Signer // nil if commits are not signed
	Provider           string      // label of metrics and log lines
	Remote             *repo.Remote
	// Forge opens the pull requests; nil if the branch is enough.
	Forge forge.Forge
	// Problem keeps the agent from proposing, such as a credential that the pod does not mount.
	Problem error
	// Watches reports whether changes at a path in the data directory are proposed.
	Watches func(path string) bool
	// Revert makes git's version replace the changes if their pull request is closed (onClosed: revert).
	Revert bool
}

// Input is what the loop knows in one iteration.
type Input struct {
	Notes Notes
	// Changed are the watched paths that differ from git, sorted.
	Changed []string
	// Saved is when the file system reported a change last, if that was after the comparison before; zero if it did not.
	Saved time.Time
	// Base returns the commit on the disk. It is called only if something has changed or a proposal is under way.
	Base func() (Base, error)
	// Overwrote reports that a sync has written files since the last iteration.
	Overwrote bool
	// Standby reports that the other node of a redundant pair has the files. An open proposal is followed to its end, and nothing else is
	// proposed. That the files are git's again withdraws nothing: the pair has copied them.
	Standby bool
	// Renew asks to close the pull request and to propose again from today's commit, once for each value.
	Renew string
}

// maxWait is how long after the first save a change is proposed even if saving goes on.
const maxWait = 10 * time.Minute

// pollEvery is how often an open pull request is asked for its state.
const pollEvery = 5 * time.Minute

// Proposer follows the proposal of one gateway. One goroutine calls Step. What needs the network runs beside it; Done receives when it
// has ended.
type Proposer struct {
	Log *slog.Logger
	Now func() time.Time
	// Opened is called for each attempt to open a pull request, with "ok" or a reason; it may be nil.
	Opened func(provider, result string)
	// Wait waits for d, or until ctx ends. New sets it; tests replace it.
	Wait func(ctx context.Context, d time.Duration) error

	loaded bool
	rec    record
	status v1alpha1.Proposal

	// seen is the fingerprint of the changed files while they settle.
	seen         string
	first, since time.Time
	built        *Changes // without content between two calls of Step
	builtOf      string   // fingerprint and commit that built is of

	job      *job
	done     chan struct{}
	failures int
	failed   v1alpha1.Proposal // reason and message of the last failure
	due      time.Time         // of the next attempt after a failure
	declined string            // builtOf of changes whose push the server has declined; others are pushed before due
	polls    time.Time         // when the pull request is asked about next
	revert   bool              // onClosed
}

// job is work beside the loop.
type job struct {
	cancel context.CancelFunc
	result chan outcome
}

// outcome changes the record, and may have failed on the way.
type outcome struct {
	apply func(r *record)
	err   error
}

// New returns a Proposer.
func New(log *slog.Logger, now func() time.Time) *Proposer {
	return &Proposer{Log: log, Now: now, Wait: pause, done: make(chan struct{}, 1)}
}

// Done receives when work beside the loop has ended, so that Step has something to do.
func (p *Proposer) Done() <-chan struct{} { return p.done }

// Recall returns the state that the record tells, for the time until the files have been compared.
func (p *Proposer) Recall(n Notes) *v1alpha1.Proposal {
	if !p.loaded {
		rec, err := loadRecord(n)
		if err != nil {
			return nil
		}
		p.rec, p.loaded = rec, true
		p.show()
	}
	if p.status.State == "" {
		return nil
	}
	out := p.status
	return &out
}

// Close ends what runs beside the loop. The next Step, also of another Proposer, continues from the record.
func (p *Proposer) Close() {
	if p.job != nil {
		p.job.cancel()
		<-p.job.result
		p.job = nil
	}
}

// Reset forgets what was read from a data directory that is no longer the one in use.
func (p *Proposer) Reset() {
	p.Close()
	*p = Proposer{Log: p.Log, Now: p.Now, Opened: p.Opened, Wait: p.Wait, done: p.done}
}

// Settled reports whether a repair may undo the changes: they were refused, or their pull request was closed and onClosed asks
// for git's version.
func (p *Proposer) Settled() bool {
	switch p.status.State {
	case v1alpha1.ProposalRefused:
		return true
	case v1alpha1.ProposalClosed:
		return p.revert
	}
	return false
}

// Reverts reports whether git's version replaces the changes because their pull request was closed.
func (p *Proposer) Reverts() bool { return p.revert && p.status.State == v1alpha1.ProposalClosed }

// Ended reports whether the pull request of the changes on the disk was merged or closed.
func (p *Proposer) Ended() bool {
	return p.status.State == v1alpha1.ProposalClosed || p.status.State == v1alpha1.ProposalMerged
}

// Safe reports whether git has the changes, or will never get them.
func (p *Proposer) Safe() bool {
	switch p.status.State {
	case v1alpha1.ProposalOpen, v1alpha1.ProposalPushed, v1alpha1.ProposalRefused, v1alpha1.ProposalClosed, v1alpha1.ProposalForeign, v1alpha1.ProposalMerged:
		return true
	}
	return false
}

// Step does what is due and returns the state, nil if there is nothing to show, and when to call it again; zero means at the next
// comparison of the files.
func (p *Proposer) Step(ctx context.Context, s *Settings, in Input) (*v1alpha1.Proposal, time.Time) {
	due, err := p.step(ctx, s, in)
	if p.built != nil { // an open proposal takes no memory; a push that runs has its own
		p.built = p.built.withoutContent()
	}
	if err != nil {
		p.fail(err)
		due = p.due
	}
	if p.status.State == "" {
		return nil, due
	}
	out := p.status
	return &out, due
}

func (p *Proposer) step(ctx context.Context, s *Settings, in Input) (time.Time, error) {
	now := p.Now()
	if !p.loaded {
		var err error
		if p.rec, err = loadRecord(in.Notes); err != nil {
			return now.Add(time.Minute), err
		}
		p.loaded = true
	}
	if err := p.collect(in.Notes); err != nil {
		return p.due, err
	}
	if p.job != nil {
		return time.Time{}, nil // Done wakes the loop
	}
	if (in.Overwrote || in.Standby) && p.rec.overwritten(in.Changed) {
		if err := p.rec.save(in.Notes); err != nil {
			return p.due, err
		}
	}
	if (len(in.Changed) == 0 || in.Standby) && !p.rec.active() {
		p.settled()
		p.show()
		return time.Time{}, nil
	}
	p.revert = s.Revert
	if s.Problem != nil {
		return p.due, s.Problem
	}
	if p.rec.active() && p.rec.Branch != s.Branch { // the spec names another branch: the old one is left alone
		p.rec.end("")
	}
	base, err := in.Base()
	if err != nil {
		return p.due, err
	}
	if p.rec.Ending != "" {
		if now.Before(p.due) {
			return p.due, nil
		}
		return p.finish(ctx, s, base, in.Notes, v1alpha1.ProposalState(p.rec.Ending), p.rec.Comment)
	}
	if merged, err := p.merged(base); err != nil || merged {
		if merged {
			p.Log.Info("pull request merged", "url", p.rec.URL, "branch", p.rec.Branch)
			return p.finish(ctx, s, base, in.Notes, v1alpha1.ProposalMerged, "")
		}
		return p.due, err
	}
	if in.Standby {
		p.show()
		return p.poll(ctx, s)
	}
	if in.Renew != "" && in.Renew != p.rec.Renewed {
		p.rec.Renewed, p.rec.Closed = in.Renew, nil
		if err := p.rec.save(in.Notes); err != nil {
			return p.due, err
		}
		if p.rec.active() {
			return p.finish(ctx, s, base, in.Notes, v1alpha1.ProposalWithdrawn, "It is proposed again from the commit that the gateway runs now.")
		}
	}
	return p.follow(ctx, s, in, base)
}

// follow brings the proposal to what is on the disk.
func (p *Proposer) follow(ctx context.Context, s *Settings, in Input, base Base) (time.Time, error) {
	now := p.Now()
	c, wait, err := p.changes(s, in, base)
	if err != nil || !wait.IsZero() {
		return wait, err
	}
	switch {
	case p.rec.active() && p.rec.Merged && (len(c.Files) == 0 || !p.rec.covers(c)): // a reviewer may have changed the files
		return p.finish(ctx, s, base, in.Notes, v1alpha1.ProposalMerged, "")
	case p.rec.active() && p.rec.Merged: // the commit on the disk is older
		p.show()
		return time.Time{}, nil
	case len(c.Refused) > 0:
		p.refused(c)
		return p.poll(ctx, s)
	case len(c.Files) == 0 && p.rec.active() && !p.rec.keeps() && !p.rec.Foreign:
		return p.finish(ctx, s, base, in.Notes, v1alpha1.ProposalWithdrawn, "The change was undone on the gateway.")
	case len(c.Files) == 0 || p.rec.active() && c.Digest == p.rec.Digest && p.rec.Pending.IsZero() && (s.Forge == nil || p.rec.listed()):
		p.show()
		return p.poll(ctx, s)
	case slices.Contains(p.rec.Closed, c.Digest):
		p.status = v1alpha1.Proposal{State: v1alpha1.ProposalClosed, Branch: s.Branch, URL: p.rec.URL, Number: p.rec.Number, Files: int32(len(c.Files)),
			Message: "the pull request with these changes was closed; another change, or --renew, is proposed again"}
		return time.Time{}, nil
	case p.rec.Foreign:
		p.show()
		return p.poll(ctx, s)
	case now.Before(p.due) && (p.declined == "" || p.declined == p.builtOf):
		if p.status.State == v1alpha1.ProposalSettling {
			p.status.State, p.status.Message = v1alpha1.ProposalPushing, "the last attempt failed; the next one is at "+p.due.UTC().Format(time.TimeOnly)
		}
		return p.due, nil
	}
	if at := p.rec.next(now); !at.IsZero() && c.Digest != p.rec.Digest {
		p.status.State, p.status.Message = v1alpha1.ProposalSettling, fmt.Sprintf("%d pushes within an hour: the next one is at %s", maxPushes, at.UTC().Format("15:04"))
		return at, nil
	}
	if c.bare {
		p.builtOf = ""
		return p.follow(ctx, s, in, base)
	}
	p.begin(ctx, s, c, base, in.Notes)
	return time.Time{}, nil
}

// changes returns the changes on the disk, or when to look again if they are not settled yet.
func (p *Proposer) changes(s *Settings, in Input, base Base) (*Changes, time.Time, error) {
	now := p.Now()
	if len(in.Changed) == 0 {
		p.settled()
		return &Changes{}, time.Time{}, nil
	}
	seen, err := fingerprint(base.State, in.Changed)
	if err != nil {
		return nil, now.Add(time.Second), err
	}
	if seen != p.seen {
		p.seen, p.since = seen, now
		if !in.Saved.IsZero() && in.Saved.Before(now) {
			p.since = in.Saved // the comparison came later
		}
		if p.first.IsZero() {
			p.first = now
		}
	}
	of := seen + base.Commit.String()
	if p.builtOf == of {
		return p.keep(s, base, p.built), time.Time{}, nil
	}
	ready := p.since.Add(s.Debounce)
	if last := p.first.Add(maxWait); last.Before(ready) {
		ready = last
	}
	if now.Before(ready) {
		p.status = v1alpha1.Proposal{State: v1alpha1.ProposalSettling, Branch: s.Branch, URL: p.rec.URL, Number: p.rec.Number, Files: int32(len(in.Changed)),
			Message: fmt.Sprintf("%d changed files; waiting until nothing changes for %s", len(in.Changed), s.Debounce)}
		return nil, ready, nil
	}
	c, err := Build(base, in.Changed, s.Limits, s.Guard)
	if errors.Is(err, errChanging) {
		p.seen = ""
		return nil, now.Add(s.Debounce), nil
	}
	if err != nil {
		return nil, time.Time{}, err
	}
	p.built, p.builtOf, p.first = c, of, time.Time{}
	return p.keep(s, base, c), time.Time{}, nil
}

// settled forgets changes that are gone.
func (p *Proposer) settled() {
	p.seen, p.first, p.since, p.built, p.builtOf = "", time.Time{}, time.Time{}, nil, ""
}

// begin starts a push of changes, or continues one that was interrupted.
func (p *Proposer) begin(ctx context.Context, s *Settings, c *Changes, base Base, notes Notes) {
	p.status = v1alpha1.Proposal{State: v1alpha1.ProposalPushing, Branch: s.Branch, URL: p.rec.URL, Number: p.rec.Number, Files: int32(len(c.Files)), Message: "pushing"}
	rec := p.rec.clone()
	w := &push{s: s, c: c, built: p.built, base: base, notes: notes, log: p.Log, now: p.Now, opened: p.Opened, wait: p.Wait}
	p.start(ctx, func(ctx context.Context) outcome { return w.run(ctx, rec) })
}

// start runs f beside the loop.
func (p *Proposer) start(ctx context.Context, f func(ctx context.Context) outcome) {
	ctx, cancel := context.WithCancel(ctx)
	p.job = &job{cancel: cancel, result: make(chan outcome, 1)}
	j := p.job
	go func() {
		j.result <- f(ctx)
		select {
		case p.done <- struct{}{}:
		default:
		}
	}()
}

// collect takes over the result of a job that has ended.
func (p *Proposer) collect(notes Notes) error {
	if p.job == nil {
		return nil
	}
	var o outcome
	select {
	case o = <-p.job.result:
	default:
		return nil
	}
	p.job.cancel()
	p.job = nil
	if o.apply != nil {
		o.apply(&p.rec)
		if err := p.rec.save(notes); err != nil {
			return err
		}
	}
	if o.err != nil {
		return o.err
	}
	p.failures, p.due, p.declined, p.polls = 0, time.Time{}, "", p.Now().Add(jitter(pollEvery, p.rec.Branch))
	p.show()
	return nil
}

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

func branchRef(name string) string { return "refs/heads/" + name }

// jitter spreads what many gateways do by up to a fifth, the same for each name.
func jitter(d time.Duration, name string) time.Duration {
	h := fnv.New32a()
	_, _ = h.Write([]byte(name))
	return d + d/5*time.Duration(h.Sum32()%100)/100
}

// packOf returns the pack of a draft, and releases the draft.
func packOf(d *repo.Draft) ([]byte, error) {
	var b bytes.Buffer
	b.Grow(int(d.PackBound())) // what is not written takes no memory
	err := d.WritePack(&b)
	return b.Bytes(), err
}
