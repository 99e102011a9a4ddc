package propose

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"maps"
	"slices"
	"time"

	"stoker.io/stoker/agent/decide"
	"stoker.io/stoker/agent/forge"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// Settings say how a gateway proposes its changes.
type Settings struct {
	Identity
	Branch, BaseBranch string // without refs/heads/
	Debounce           time.Duration
	Labels             []string
	Limits             Limits
	Guard              Guard
	Authors            map[string]string // git authors by gateway user
	Sign               repo.Signer       // nil if commits are not signed
	Provider           string            // label of metrics
	Remote             *repo.Remote
	// Forge opens the pull requests; nil if the agent only pushes the branch.
	Forge forge.PullRequests
	// Problem is why the agent cannot propose, such as a credential that the pod does not mount; nil if it can.
	Problem error
	// Watches reports whether changes at a path in the data directory are proposed.
	Watches func(path string) bool
	// RepairClosed makes git's version replace the changes if their pull request is closed (onClosed: repair).
	RepairClosed bool
}

// Input is what the loop knows in one iteration.
type Input struct {
	Notes Notes
	// Changed are the watched paths that differ from git, by the last comparison that succeeded. Compared is when that ended.
	Changed  []string
	Compared time.Time
	// Added returns the watched paths that git does not have. Step calls it after some comparisons.
	Added func(Base) ([]string, error)
	// Base returns what a proposal starts from. Step calls it before Added, and if files have changed or a proposal is active.
	Base func() (Base, error)
	// Standby reports that the other node of a redundant pair has the files. Step then follows an open proposal to its end, and proposes
	// nothing else. It does not withdraw a proposal when the files equal git again, because the pair may have copied git's version.
	Standby bool
	// Renew asks to close the pull request and to propose again from the commit that the gateway runs now, once for each value.
	Renew string
}

// pollEvery is the interval at which the forge is asked for the state of an open pull request.
const pollEvery = 5 * time.Minute

// Env is what a Proposer uses of its process.
type Env struct {
	Log *slog.Logger
	Now func() time.Time
	// Opened is called for each attempt to open a pull request, with "ok" or a reason, unless the branch has one already. It may be nil.
	Opened func(provider, result string)
	// Wait waits for d, or until ctx ends. New sets it; tests replace it.
	Wait func(ctx context.Context, d time.Duration) error
}

// Proposer follows the proposal of one gateway. Its methods are not safe for concurrent use. Work that needs the network runs in another
// goroutine; Done receives when it has ended.
type Proposer struct {
	Env
	kept     kept
	seen     seen
	added    []string // new files on the gateway, by the last walk that succeeded
	unwalked error    // why the last walk failed; nil if it succeeded
	schedule decide.Schedule
	wait     waits
	shown    shown
	work     work

	repairClosed bool // the spec says onClosed: repair
	standby      bool // that of the last Input
}

// New returns a Proposer, which the caller closes.
func New(log *slog.Logger, now func() time.Time) *Proposer {
	return &Proposer{Env: Env{Log: log, Now: now, Wait: pause}, work: newWork()}
}

// Done returns a channel that receives when work has ended, so that Step has something to do.
func (p *Proposer) Done() <-chan struct{} { return p.work.done }

// Recall returns the recorded state, for the time until the files have been compared; nil if there is none.
func (p *Proposer) Recall(n Notes) *v1alpha1.Proposal {
	if !p.kept.loaded {
		if err := p.kept.load(n); err != nil {
			return nil
		}
		p.shown.setRecorded(&p.kept.record)
	}
	return p.shown.proposal()
}

// Close stops the running work and drops its result. The next Step, also of another Proposer, continues from what it had recorded.
func (p *Proposer) Close() { p.work.stop() }

// Reset forgets what was read from a data directory that is no longer the one in use.
func (p *Proposer) Reset() {
	p.Close()
	*p = Proposer{Env: p.Env, work: p.work}
}

// FileEvent notes that files may have changed on the gateway.
func (p *Proposer) FileEvent() { p.schedule = p.schedule.Event(p.Now()) }

// Wrote notes that a sync has written files.
func (p *Proposer) Wrote() { p.schedule = p.schedule.Wrote(p.Now()) }

// Proposal returns how far the proposal is.
func (p *Proposer) Proposal() decide.Proposal {
	return decide.Proposal{State: p.shown.now.State, RepairClosed: p.repairClosed}
}

// Describes reports whether the state is about the changes at paths as they are on the disk now, and not only about others or older ones. It
// returns true on the standby node of a redundant pair, which proposes nothing.
func (p *Proposer) Describes(disk plan.State, paths ...string) bool {
	return p.standby || p.seen.describes(disk, paths)
}

// Step does what is due. It returns the state, nil if there is nothing to show, and when to call it again; zero means after the next
// comparison of the files, or when Done receives.
func (p *Proposer) Step(ctx context.Context, s *Settings, in Input) (*v1alpha1.Proposal, time.Time) {
	p.addComparison(&in)
	next, err := p.step(ctx, s, in)
	p.seen.dropContent() // an open proposal holds no content in memory; a running push has its own copy
	if err != nil {
		p.fail(err)
		next = p.schedule.Attempt()
	}
	if p.unwalked != nil && p.shown.now.Reason == "" { // other changes are proposed
		p.shown.now.Reason, p.shown.now.Message = failure.Reason(p.unwalked, v1alpha1.ReasonWriteFailed), oneLine(p.unwalked.Error(), 500)
	}
	return p.shown.proposal(), next
}

// addComparison adds the comparison to the schedule, and new files to in.Changed.
func (p *Proposer) addComparison(in *Input) {
	var walk bool
	p.schedule, walk = p.schedule.Compared(in.Compared, in.Standby)
	if in.Standby {
		p.added, p.unwalked = nil, nil
	}
	if walk {
		if err := p.walk(in); err != nil && !failure.Is(err, v1alpha1.ReasonProgressing) {
			p.Log.Debug("new files not looked for", "error", err)
		}
	}
	changed := slices.Concat(in.Changed, p.added)
	slices.Sort(changed)
	in.Changed = slices.Compact(changed)
}

// walk looks for new files on the gateway.
func (p *Proposer) walk(in *Input) error {
	base, err := in.Base()
	if err != nil {
		return err
	}
	added, err := in.Added(base)
	if p.unwalked = err; err == nil {
		p.added, p.schedule = added, p.schedule.Walked()
	}
	return err
}

// fail shows a failure, and schedules the next attempt.
func (p *Proposer) fail(err error) {
	reason := failure.Reason(err, v1alpha1.ReasonGitUnreachable)
	p.schedule = p.schedule.Failed(p.Now().Add(pauseAfter(err, reason, p.schedule.Failures+1)))
	if reason == v1alpha1.ReasonPushRejected {
		p.schedule = p.schedule.Declined(p.seen.from)
	}
	p.shown.setFailed(p.Log, reason, err)
}

// step is Step without the handling of errors. With an error, the returned time is not used.
func (p *Proposer) step(ctx context.Context, s *Settings, in Input) (time.Time, error) {
	if err := p.kept.load(in.Notes); err != nil {
		return time.Time{}, err
	}
	p.standby = in.Standby
	if err := p.collect(in.Notes); err != nil || p.work.runs() { // while work runs, Done wakes the loop
		return time.Time{}, err
	}
	rec := &p.kept.record
	idle := (len(in.Changed) == 0 || in.Standby) && !rec.active()
	if idle {
		p.forgetChanges()
		p.shown.setRecorded(rec)
	} else {
		p.repairClosed = s.RepairClosed
	}
	if s.Problem != nil { // also before the first change, so that a user learns it in time
		p.shown.setProblem(p.Log, rec, s.Problem)
		idle = true
	}
	if idle {
		return time.Time{}, nil
	}
	if rec.drop(s.Branch) {
		if err := rec.save(in.Notes); err != nil {
			return time.Time{}, err
		}
	}
	base, err := in.Base()
	if err != nil {
		return time.Time{}, err
	}
	if err := p.kept.setCommit(in.Notes, base, in.Changed, p.schedule.Overwrote || in.Standby); err != nil {
		return time.Time{}, err
	}
	p.schedule.Overwrote = false
	return p.move(ctx, s, in, base)
}

// move makes the moves that the schedule asks for.
func (p *Proposer) move(ctx context.Context, s *Settings, in Input, base Base) (time.Time, error) {
	rec := &p.kept.record
	x := decide.ProposalSituation{
		Now: p.Now(), Debounce: s.Debounce, Standby: in.Standby, Renew: in.Renew != "" && in.Renew != rec.Renewed, Changed: len(in.Changed) > 0,
		Active: rec.active(), Ends: rec.FinalState, Merged: rec.Merged, Foreign: rec.Foreign, Replaced: rec.hasOverwritten(),
		Published: rec.Number != 0 && s.Forge != nil || (rec.Foreign || s.Forge == nil) && rec.Tip != plan.ID{}, Pushes: rec.Pushes,
	}
	if !x.Changed && !x.Standby {
		p.forgetChanges()
	}
	var err error
	if x.Ends == "" {
		if x.InGit, err = rec.inGit(base); err != nil {
			return time.Time{}, err
		}
	}
	c := &Changes{}
	for {
		m := p.schedule.Move(x)
		switch m.Do {
		case decide.Look:
			files, err := p.seen.look(base, in.Changed)
			if err != nil {
				return time.Time{}, err
			}
			p.schedule = p.schedule.LookedAt(files, x.Now)
			x.Looked, x.Read = true, p.seen.isRead()
		case decide.Read:
			switch err := p.seen.read(base, in.Changed, s); {
			case errors.Is(err, errChanging):
				p.schedule = p.schedule.ChangedWhileRead()
				return x.Now.Add(s.Debounce), nil
			case err != nil:
				return time.Time{}, err
			}
			p.schedule, x.Read = p.schedule.WasRead(), true
		case decide.Renew:
			rec.Renewed, rec.Closed = in.Renew, nil
			if x.Active {
				return time.Time{}, p.end(ctx, s, base, in.Notes, m)
			}
			if err := rec.save(in.Notes); err != nil {
				return time.Time{}, err
			}
			x.Renew = false
		case decide.Push:
			if !c.contentDropped {
				p.push(ctx, s, c, base, in.Notes)
				return time.Time{}, nil
			}
			x.Read = false // an earlier Step dropped the content: read the same changes again
		case decide.End:
			if x.InGit {
				p.Log.Info("pull request merged", "url", rec.URL, "branch", rec.Branch)
			}
			return time.Time{}, p.end(ctx, s, base, in.Notes, m)
		default:
			p.shown.set(p.Log, s, rec, c, len(in.Changed), m)
			if m.Poll {
				p.poll(ctx, s, base)
			}
			return m.At, nil
		}
		if x.Read {
			c = rec.withOverwritten(s, base, p.seen.built)
			p.seen.describe()
			setChanges(&x, s, rec, c, p.seen.from)
		}
	}
}

// setChanges completes x with changes that were read.
func setChanges(x *decide.ProposalSituation, s *Settings, rec *record, c *Changes, from string) {
	x.Files, x.Changes, x.Refused = len(c.Files), from, len(c.Refused) > 0
	x.Covered, x.Pushed, x.Closed = rec.covers(c), c.Digest == rec.Digest, slices.Contains(rec.Closed, c.Digest)
	x.Open = x.Active && x.Pushed && rec.Pending.IsZero() && (s.Forge == nil || rec.published())
}

// forgetChanges forgets changes that are gone.
func (p *Proposer) forgetChanges() { p.seen, p.schedule = seen{}, p.schedule.ChangesGone() }

// collect takes the outcome of the work if it has ended.
func (p *Proposer) collect(notes Notes) error {
	o, ended := p.work.take()
	if !ended {
		return nil
	}
	if o.apply != nil {
		o.apply(&p.kept.record)
		if err := p.kept.save(notes); err != nil {
			return err
		}
	}
	if o.err != nil {
		return o.err
	}
	p.schedule = p.schedule.Succeeded(p.Now().Add(jitter(pollEvery, p.kept.Branch)))
	p.shown.failure = v1alpha1.Proposal{}
	p.shown.setRecorded(&p.kept.record)
	return nil
}

// push starts a push of changes, or continues one that was interrupted.
func (p *Proposer) push(ctx context.Context, s *Settings, c *Changes, base Base, notes Notes) {
	p.shown.setState(s, &p.kept.record, v1alpha1.ProposalPushing, len(c.Files), "pushing")
	rec := p.kept.clone()
	w := &push{settings: s, changes: c, built: p.seen.built, base: base, notes: notes, Env: p.Env}
	p.work.start(ctx, func(ctx context.Context) outcome { return w.run(ctx, rec) })
}

// end ends the proposal. It first closes the pull request and deletes the branch, and tries that until it succeeds.
func (p *Proposer) end(ctx context.Context, s *Settings, base Base, notes Notes, m decide.Move) error {
	if p.kept.FinalState == "" {
		p.kept.FinalState, p.kept.Comment = m.State, m.Comment
	}
	if err := p.kept.save(notes); err != nil {
		return err
	}
	p.forgetChanges()
	p.shown.setRecorded(&p.kept.record)
	rec := p.kept.clone()
	p.work.start(ctx, func(ctx context.Context) outcome {
		if err := remove(ctx, s.branch(), s.pulls(), base, rec); err != nil {
			return outcome{err: err}
		}
		return outcome{apply: func(r *record) { r.end(r.FinalState) }}
	})
	return nil
}

// jitter returns d plus up to a fifth of it, always the same for a name, so that many gateways do not send requests at the same time.
func jitter(d time.Duration, name string) time.Duration {
	h := fnv.New32a()
	_, _ = h.Write([]byte(name))
	return d + d/5*time.Duration(h.Sum32()%100)/100
}

// seen is what was seen of the changed files on the disk.
type seen struct {
	files map[string]plan.Stat // at the last look
	at    string               // hash of files and of the commit that the gateway had
	built *Changes             // what the last Build found, without content between two calls of Step
	from  string               // the value of at for which built was made
	// described are the files that the state is about, with the others of their resources: a sync replaces those together.
	described map[string]plan.Stat
}

// look looks at the changed files without reading them. It returns a hash that changes if one of them is written.
func (v *seen) look(base Base, paths []string) (string, error) {
	h, files := fnv.New128a(), make(map[string]plan.Stat, len(paths))
	for _, p := range paths {
		st, err := base.State.Stat(p)
		if err != nil {
			return "", err
		}
		files[p] = st
		fmt.Fprintf(h, "%q %+v\n", p, st)
	}
	hash := hex.EncodeToString(h.Sum(nil))
	v.files, v.at = files, hash+" "+base.Commit.String()
	return hash, nil
}

// isRead reports whether read has read what look has seen.
func (v *seen) isRead() bool { return v.from == v.at }

// read reads the files that look has seen.
func (v *seen) read(base Base, paths []string, s *Settings) error {
	c, err := Build(base, paths, s.Limits, s.Guard)
	if err == nil {
		v.built, v.from = c, v.at
	}
	return err
}

// describe records that the state is about the files that look has seen and read has read.
func (v *seen) describe() {
	v.described = maps.Clone(v.built.stats)
	maps.Copy(v.described, v.files)
}

// dropContent drops the content of the files.
func (v *seen) dropContent() {
	if v.built != nil {
		v.built = v.built.withoutContent()
	}
}

// withoutContent returns a copy of c without the content that only a push needs.
func (c *Changes) withoutContent() *Changes {
	return &Changes{Files: c.Files, Refused: c.Refused, Digest: c.Digest, stats: c.stats, contentDropped: true}
}

// describes reports whether the state is about the changes at paths as they are on the disk now.
func (v *seen) describes(disk plan.State, paths []string) bool {
	return !slices.ContainsFunc(paths, func(path string) bool {
		was, known := v.described[path]
		if !known {
			return true
		}
		now, err := disk.Stat(path)
		return err != nil || now != was
	})
}
