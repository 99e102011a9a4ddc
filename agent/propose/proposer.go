package propose

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"slices"
	"time"

	"stoker.io/stoker/agent/decide"
	"stoker.io/stoker/agent/forge"
	"stoker.io/stoker/agent/plan"
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
	// Forge opens the pull requests; nil if the agent only pushes the branch.
	Forge forge.Forge
	// Problem is why the agent cannot propose, such as a credential that the pod does not mount; nil if it can.
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
	// Saved is the time of the last file-system event since the previous comparison; zero if there was none.
	Saved time.Time
	// Base returns what a proposal starts from. Step calls it only if files have changed or a proposal is active.
	Base func() (Base, error)
	// Overwrote reports that a sync has written files since the last iteration.
	Overwrote bool
	// Standby reports that the other node of a redundant pair has the files. Step then follows an open proposal to its end, and proposes
	// nothing else. It does not withdraw a proposal when the files equal git again, because the pair may have copied git's version.
	Standby bool
	// Renew asks to close the pull request and to propose again from the commit that the gateway runs now, once for each value.
	Renew string
}

// maxWait is how long after the first save a change is proposed even if saving goes on.
const maxWait = 10 * time.Minute

// pollEvery is the interval at which the forge is asked for the state of an open pull request.
const pollEvery = 5 * time.Minute

// Proposer follows the proposal of one gateway. Its methods are not safe for concurrent use. What needs the network runs in a goroutine of
// its own, a job; Done receives when the job has ended.
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

	// described are the changed files that status is about, as they were then. standby is that of the last Input.
	described map[string]plan.Stat
	standby   bool
	overwrote bool // a sync has written files, and the record does not have it yet
	restarted bool // no Step has compared the commit of the gateway with the record since the record was loaded

	fingerprint string    // of the changed files, see fingerprint
	stableSince time.Time // when fingerprint last changed
	firstSeen   time.Time // when the first change after the last build was seen
	built       *Changes  // without content between two calls of Step
	builtFrom   string    // the fingerprint and the commit that built was made of

	job         *job
	done        chan struct{}
	failures    int               // in a row
	lastFailure v1alpha1.Proposal // with its reason and message
	nextAttempt time.Time         // after a failure
	declined    string            // builtFrom of the changes whose push the server declined; "" if it declined none
	nextPoll    time.Time
	revert      bool // the spec says onClosed: revert
}

// job is work that runs beside the loop.
type job struct {
	cancel context.CancelFunc
	result chan outcome
}

// outcome is the result of a job: a change of the record, and an error. Both may be set.
type outcome struct {
	apply func(r *record)
	err   error
}

// New returns a Proposer.
func New(log *slog.Logger, now func() time.Time) *Proposer {
	return &Proposer{Log: log, Now: now, Wait: pause, done: make(chan struct{}, 1)}
}

// Done receives when a job has ended, so that Step has something to do.
func (p *Proposer) Done() <-chan struct{} { return p.done }

// Recall returns the recorded state, for the time until the files have been compared; nil if there is none.
func (p *Proposer) Recall(n Notes) *v1alpha1.Proposal {
	if !p.loaded {
		if err := p.load(n); err != nil {
			return nil
		}
		p.setFromRecord()
	}
	return p.shown()
}

// load reads the record.
func (p *Proposer) load(n Notes) error {
	rec, err := loadRecord(n)
	if err == nil {
		p.rec, p.loaded, p.restarted = rec, true, true
	}
	return err
}

// shown returns a copy of the status, or nil if there is nothing to show.
func (p *Proposer) shown() *v1alpha1.Proposal {
	if p.status.State == "" && p.status.Reason == "" {
		return nil
	}
	status := p.status
	return &status
}

// Close stops the running job and drops its result. The next Step, also of another Proposer, continues from what the job had recorded.
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

// Proposal returns how far the proposal is.
func (p *Proposer) Proposal() decide.Proposal {
	return decide.Proposal{State: p.status.State, Revert: p.revert}
}

// Describes reports whether the state is about the changes at paths as they are on the disk now, and not only about others or older ones. On
// the standby node of a redundant pair, which proposes nothing, it is about all changes.
func (p *Proposer) Describes(disk plan.State, paths ...string) bool {
	return p.standby || !slices.ContainsFunc(paths, func(path string) bool {
		was, known := p.described[path]
		if !known {
			return true
		}
		now, err := disk.Stat(path)
		return err != nil || now != was
	})
}

// Step does what is due. It returns the state, nil if there is nothing to show, and when to call it again; zero means after the next
// comparison of the files, or when Done receives.
func (p *Proposer) Step(ctx context.Context, s *Settings, in Input) (*v1alpha1.Proposal, time.Time) {
	next, err := p.step(ctx, s, in)
	if p.built != nil { // an open proposal holds no content in memory; a running push has its own copy
		p.built = p.built.withoutContent()
	}
	if err != nil {
		p.setFailed(err)
		next = p.nextAttempt
	}
	return p.shown(), next
}

// step is Step without the handling of errors. With an error, the returned time is not used.
func (p *Proposer) step(ctx context.Context, s *Settings, in Input) (time.Time, error) {
	if !p.loaded {
		if err := p.load(in.Notes); err != nil {
			return time.Time{}, err
		}
	}
	p.standby, p.overwrote = in.Standby, p.overwrote || in.Overwrote
	if err := p.collect(in.Notes); err != nil || p.job != nil { // while a job runs, Done wakes the loop
		return time.Time{}, err
	}
	if (p.overwrote || in.Standby) && p.rec.markOverwritten(in.Changed) {
		if err := p.rec.save(in.Notes); err != nil {
			return time.Time{}, err
		}
	}
	overwrote := p.overwrote
	p.overwrote = false
	idle := (len(in.Changed) == 0 || in.Standby) && !p.rec.active()
	if idle {
		p.forgetChanges()
		p.setFromRecord()
	} else {
		p.revert = s.Revert
	}
	if s.Problem != nil { // also before the first change, so that a user learns it in time
		p.setProblem(s.Problem)
		idle = true
	}
	if idle {
		return time.Time{}, nil
	}
	if p.rec.drop(s.Branch) {
		if err := p.rec.save(in.Notes); err != nil {
			return time.Time{}, err
		}
	}
	base, err := in.Base()
	if err != nil {
		return time.Time{}, err
	}
	if err := p.recordCommit(in, base.Commit, overwrote); err != nil {
		return time.Time{}, err
	}
	if p.rec.FinalState != "" {
		if p.Now().Before(p.nextAttempt) {
			return p.nextAttempt, nil
		}
		return p.finish(ctx, s, base, in.Notes, p.rec.FinalState, p.rec.Comment)
	}
	if merged, err := p.merged(base); err != nil {
		return time.Time{}, err
	} else if merged {
		p.Log.Info("pull request merged", "url", p.rec.URL, "branch", p.rec.Branch)
		return p.finish(ctx, s, base, in.Notes, v1alpha1.ProposalMerged, "")
	}
	if in.Standby {
		p.setFromRecord()
		return p.poll(ctx, s)
	}
	if in.Renew != "" && in.Renew != p.rec.Renewed {
		p.rec.Renewed, p.rec.Closed = in.Renew, nil
		if err := p.rec.save(in.Notes); err != nil {
			return time.Time{}, err
		}
		if p.rec.active() {
			return p.finish(ctx, s, base, in.Notes, v1alpha1.ProposalWithdrawn, "It is proposed again from the commit that the gateway runs now.")
		}
	}
	return p.follow(ctx, s, in, base)
}

// recordCommit records the commit that the gateway runs. If the gateway got another one while the agent was stopped, or just before, a
// sync has written files that this Proposer was not told of.
func (p *Proposer) recordCommit(in Input, commit plan.ID, overwrote bool) error {
	restarted := p.restarted
	p.restarted = false
	if !p.rec.active() || p.rec.Commit == commit || !restarted && !overwrote {
		return nil
	}
	if restarted && !p.rec.Commit.IsZero() {
		p.rec.markOverwritten(in.Changed)
	}
	p.rec.Commit = commit
	return p.rec.save(in.Notes)
}

// follow moves the proposal to what is on the disk: it pushes the changes, withdraws the proposal, or polls the forge.
func (p *Proposer) follow(ctx context.Context, s *Settings, in Input, base Base) (time.Time, error) {
	now := p.Now()
	c, seen, wait, err := p.changes(s, in, base)
	if err != nil || !wait.IsZero() {
		return wait, err
	}
	p.described = seen
	active := p.rec.active()
	switch {
	case active && p.rec.Merged:
		if len(c.Files) == 0 || !p.rec.covers(c) { // the gateway has the merge; a reviewer may have changed the files before
			return p.finish(ctx, s, base, in.Notes, v1alpha1.ProposalMerged, "")
		}
		p.setFromRecord() // the commit on the disk is older than the merge
		return time.Time{}, nil
	case len(c.Refused) > 0:
		p.setRefused(c)
		return p.poll(ctx, s)
	case len(c.Files) == 0 && active && !p.rec.hasOverwritten() && !p.rec.Foreign:
		return p.finish(ctx, s, base, in.Notes, v1alpha1.ProposalWithdrawn, "The change was undone on the gateway.")
	case len(c.Files) == 0 || p.upToDate(s, c):
		p.setFromRecord()
		return p.poll(ctx, s)
	case slices.Contains(p.rec.Closed, c.Digest):
		p.setState(s, v1alpha1.ProposalClosed, len(c.Files), "the pull request with these changes was closed; another change, or --renew, is proposed again")
		return time.Time{}, nil
	case p.rec.Foreign:
		p.setFromRecord()
		return p.poll(ctx, s)
	case now.Before(p.nextAttempt) && (p.declined == "" || p.declined == p.builtFrom):
		// Changes other than those that the server declined do not wait.
		if p.status.State != v1alpha1.ProposalPushing && p.status.State != v1alpha1.ProposalForeign {
			p.status.State = v1alpha1.ProposalPushing
			p.status.Message = "the last attempt failed; the next one is at " + p.nextAttempt.UTC().Format(time.TimeOnly)
		}
		return p.nextAttempt, nil
	}
	if at := p.rec.nextPush(now); !at.IsZero() && c.Digest != p.rec.Digest {
		p.status.State = v1alpha1.ProposalSettling
		p.status.Message = fmt.Sprintf("%d pushes within an hour: the next one is at %s", maxPushes, at.UTC().Format("15:04"))
		return at, nil
	}
	if c.bare { // an earlier Step dropped the content: build the same changes again
		p.builtFrom = ""
		return p.follow(ctx, s, in, base)
	}
	p.begin(ctx, s, c, base, in.Notes)
	return time.Time{}, nil
}

// upToDate reports whether the branch, and the pull request if there is a forge, show the changes.
func (p *Proposer) upToDate(s *Settings, c *Changes) bool {
	return p.rec.active() && c.Digest == p.rec.Digest && p.rec.Pending.IsZero() && (s.Forge == nil || p.rec.listed())
}

// setState sets the status to a state of the changes on the disk.
func (p *Proposer) setState(s *Settings, state v1alpha1.ProposalState, files int, message string) {
	p.status = v1alpha1.Proposal{State: state, Branch: s.Branch, URL: p.rec.URL, Number: p.rec.Number, Files: int32(files), Message: message}
}

// changes returns the changes on the disk, and the changed files. If they have not been stable for Debounce yet, it returns when to call it
// again instead.
func (p *Proposer) changes(s *Settings, in Input, base Base) (*Changes, map[string]plan.Stat, time.Time, error) {
	now := p.Now()
	if len(in.Changed) == 0 {
		p.forgetChanges()
		return &Changes{}, nil, time.Time{}, nil
	}
	seen, current, err := fingerprint(base.State, in.Changed)
	if err != nil {
		return nil, nil, time.Time{}, err
	}
	if current != p.fingerprint {
		p.fingerprint, p.stableSince = current, now
		if !in.Saved.IsZero() && in.Saved.Before(now) { // the comparison noticed the change only later
			p.stableSince = in.Saved
		}
		if p.firstSeen.IsZero() {
			p.firstSeen = now
		}
	}
	from := current + " " + base.Commit.String()
	if p.builtFrom == from {
		return p.withOverwritten(s, base, p.built), seen, time.Time{}, nil
	}
	ready := p.stableSince.Add(s.Debounce)
	if last := p.firstSeen.Add(maxWait); last.Before(ready) {
		ready = last
	}
	if now.Before(ready) {
		n := len(in.Changed)
		p.setState(s, v1alpha1.ProposalSettling, n, fmt.Sprintf("%d changed files; waiting until nothing changes for %s", n, s.Debounce))
		return nil, nil, ready, nil
	}
	c, err := Build(base, in.Changed, s.Limits, s.Guard)
	if errors.Is(err, errChanging) {
		p.fingerprint = ""
		return nil, nil, now.Add(s.Debounce), nil
	}
	if err != nil {
		return nil, nil, time.Time{}, err
	}
	p.built, p.builtFrom, p.firstSeen = c, from, time.Time{}
	return p.withOverwritten(s, base, c), seen, time.Time{}, nil
}

// fingerprint returns the Stat of files, and a hash over them in hexadecimal digits. It changes if one of them is written.
func fingerprint(state plan.State, paths []string) (map[string]plan.Stat, string, error) {
	h, seen := fnv.New128a(), make(map[string]plan.Stat, len(paths))
	for _, p := range paths {
		st, err := state.Stat(p)
		if err != nil {
			return nil, "", err
		}
		seen[p] = st
		fmt.Fprintf(h, "%q %+v\n", p, st)
	}
	return seen, hex.EncodeToString(h.Sum(nil)), nil
}

// forgetChanges forgets changes that are gone.
func (p *Proposer) forgetChanges() {
	p.fingerprint, p.firstSeen, p.stableSince, p.built, p.builtFrom, p.described = "", time.Time{}, time.Time{}, nil, "", nil
}

// begin starts a push of changes, or continues one that was interrupted.
func (p *Proposer) begin(ctx context.Context, s *Settings, c *Changes, base Base, notes Notes) {
	p.setState(s, v1alpha1.ProposalPushing, len(c.Files), "pushing")
	rec := p.rec.clone()
	w := &push{s: s, c: c, built: p.built, base: base, notes: notes, log: p.Log, now: p.Now, opened: p.Opened, wait: p.Wait}
	p.start(ctx, func(ctx context.Context) outcome { return w.run(ctx, rec) })
}

// start runs f as the job.
func (p *Proposer) start(ctx context.Context, f func(ctx context.Context) outcome) {
	ctx, cancel := context.WithCancel(ctx)
	j := &job{cancel: cancel, result: make(chan outcome, 1)}
	p.job = j
	go func() {
		j.result <- f(ctx)
		select {
		case p.done <- struct{}{}:
		default:
		}
	}()
}

// collect takes the outcome of the job if it has ended.
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
	p.failures, p.nextAttempt, p.declined, p.nextPoll = 0, time.Time{}, "", p.Now().Add(jitter(pollEvery, p.rec.Branch))
	p.setFromRecord()
	return nil
}

// jitter returns d plus up to a fifth of it, always the same for a name, so that many gateways do not send requests at the same time.
func jitter(d time.Duration, name string) time.Duration {
	h := fnv.New32a()
	_, _ = h.Write([]byte(name))
	return d + d/5*time.Duration(h.Sum32()%100)/100
}
