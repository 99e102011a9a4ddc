package propose

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"stoker.io/stoker/agent/forge"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/backoff"
	"stoker.io/stoker/internal/failure"
)

// pulls are the pull requests of a repository.
type pulls struct {
	forge.PullRequests
	branch, base string // without refs/heads/
}

func (s *Settings) pulls() pulls { return pulls{s.Forge, s.Branch, s.BaseBranch} }

// from returns the pull requests from this gateway's branch into any other, without those of forks.
func (p pulls) from(ctx context.Context) ([]forge.PullRequest, error) {
	list, err := p.ByHead(ctx, p.branch, "")
	return slices.DeleteFunc(list, func(pr forge.PullRequest) bool { return pr.Fork || pr.Number <= 0 }), err
}

// numbered returns the pull request with a number, into any branch, or nil if there is none from that branch. The number comes from the record,
// which programs on the gateway can change.
func (p pulls) numbered(ctx context.Context, number int64, branch string) (*forge.PullRequest, error) {
	pr, err := p.Get(ctx, number)
	if failure.Is(err, v1alpha1.ReasonUnsupportedRepository) { // if the forge has the repository, it lacks the pull request
		_, err = p.ByHead(ctx, branch, "")
	}
	if err != nil || pr.Number != number || pr.Branch != branch || pr.Fork {
		return nil, err
	}
	return &pr, nil
}

// current returns the open pull request of this gateway's branch into the base branch, or nil.
func (p pulls) current(ctx context.Context) (*forge.PullRequest, error) {
	list, err := p.from(ctx)
	if i := slices.IndexFunc(list, func(pr forge.PullRequest) bool { return pr.State == forge.Open && pr.Base == p.base }); i >= 0 && err == nil {
		return &list[i], nil
	}
	return nil, err
}

// withChange returns the oldest open pull request of another branch whose tip is a commit of an agent with the same change, or nil. It skips
// the one with the number except. The text of a pull request alone proves nothing, because users can write it.
func (w *publisher) withChange(ctx context.Context, except int64) (*forge.PullRequest, error) {
	list, err := w.pulls.Open(ctx, w.pulls.base)
	if err != nil && !failure.Is(err, v1alpha1.ReasonLimitExceeded) { // long texts of others must not keep this gateway from proposing
		return nil, err
	}
	slices.SortFunc(list, func(a, b forge.PullRequest) int { return cmp.Compare(a.Number, b.Number) })
	for _, pr := range list {
		if pr.Number <= 0 || pr.Number == except || pr.Fork || pr.Branch == w.pulls.branch || digestOf(pr.Body) != w.changes.Digest {
			continue
		}
		tip, err := branch{remote: w.settings.Remote, ref: "refs/heads/" + pr.Branch}.tip(ctx)
		var text []byte
		if err == nil && !tip.IsZero() {
			text, err = w.base.CommitText(ctx, tip)
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if err != nil { // a branch of another user must not keep this gateway from proposing
			w.Log.Debug("tip of another pull request unreadable", "number", pr.Number, "error", err)
			continue
		}
		if readTrailers(text).change == w.changes.Digest {
			return &pr, nil
		}
	}
	return nil, nil
}

// retract closes a pull request of this gateway. It removes the digest from the text first: other gateways with the same change then see
// that no reviewer closed the pull request, and propose the change themselves.
func (p pulls) retract(ctx context.Context, pr *forge.PullRequest, why string) error {
	if err := p.Update(ctx, pr.Number, pr.Title, why); err != nil {
		return err
	}
	return p.Close(ctx, pr.Number, why)
}

// publisher opens and updates the pull request of changes that were pushed.
type publisher struct {
	Env
	pulls    pulls
	settings *Settings
	changes  *Changes
	base     Base
	notes    Notes
}

// publish brings the pull request up to date. The record is durable before each step that others can see.
func (w *publisher) publish(ctx context.Context, rec record) (record, error) {
	var err error
	if rec.Number > 0 {
		rec, err = w.update(ctx, rec) // forgets the number if the pull request has ended without the last push
	}
	if err == nil && rec.Number == 0 {
		rec, err = w.open(ctx, rec)
	}
	return rec, err
}

// update updates the text of the pull request. If the pull request was merged with the last push, update records that. If it has ended
// otherwise, update forgets its number, because the commits pushed since need another one.
func (w *publisher) update(ctx context.Context, rec record) (record, error) {
	if rec.Shared || rec.TextDigest == rec.Digest {
		return rec, nil
	}
	pr, err := w.pulls.numbered(ctx, rec.Number, w.settings.Branch)
	switch {
	case err != nil:
		return rec, err
	case pr != nil && pr.State == forge.Merged && pr.Base == w.settings.BaseBranch && names(pr.Commit, rec.Tip):
		rec.Merged = true
	case pr == nil || pr.State != forge.Open:
		rec.Number, rec.URL = 0, ""
		return rec, nil
	case pr.Base != w.settings.BaseBranch:
		rec.withdrawFor(w.settings.BaseBranch)
		return rec, rec.save(w.notes)
	default:
		joined, rec, err := w.yield(ctx, rec, pr)
		if err != nil || joined {
			return rec, err
		}
		if err := w.pulls.Update(ctx, pr.Number, subject(w.settings.Identity, w.changes), body(w.settings.Identity, w.changes, w.base.Commit)); err != nil {
			return rec, err
		}
	}
	rec.TextDigest = rec.Digest
	return rec, rec.save(w.notes)
}

// open opens the pull request, or adopts one that is open: of this branch, or of another gateway with the same change. It records the
// number only after the last check, so an attempt that ends between creation and check is repeated.
func (w *publisher) open(ctx context.Context, rec record) (record, error) {
	pr, err := w.pulls.current(ctx)
	if err != nil {
		return rec, err
	}
	result := "adopted"
	if pr == nil {
		if err := w.Wait(ctx, openDelay(w.settings.String())); err != nil {
			return rec, err
		}
		if other, err := w.withChange(ctx, 0); err != nil {
			return rec, err
		} else if other != nil {
			return w.join(ctx, rec, other)
		}
		if pr, result, err = w.create(ctx); err != nil {
			return rec, err
		}
	}
	if joined, rec, err := w.yield(ctx, rec, pr); err != nil || joined {
		return rec, err
	}
	if rec, err = w.adopt(rec, pr, result); err != nil {
		return rec, err
	}
	if result == "created" {
		rec.TextDigest = rec.Digest
	}
	return w.update(ctx, rec)
}

// create opens a pull request and returns it with the result "created". If the branch already has one, it returns that and "adopted".
func (w *publisher) create(ctx context.Context) (*forge.PullRequest, string, error) {
	pr, err := w.pulls.Create(ctx, forge.Draft{
		Branch: w.settings.Branch, Base: w.settings.BaseBranch, Labels: w.settings.Labels, Title: subject(w.settings.Identity, w.changes), Body: body(w.settings.Identity, w.changes, w.base.Commit),
	})
	if errors.Is(err, forge.ErrExists) {
		existing, err := w.pulls.current(ctx)
		if err == nil && existing != nil {
			return existing, "adopted", nil
		}
		return nil, "", errors.Join(forge.ErrExists, err)
	}
	if w.Opened != nil {
		result := v1alpha1.Reason("ok")
		if err != nil {
			result = failure.Reason(err, v1alpha1.ReasonGitUnreachable)
		}
		w.Opened(w.settings.Provider, string(result))
	}
	if err != nil {
		return nil, "", err
	}
	if pr.Number <= 0 {
		return nil, "", failure.New(v1alpha1.ReasonGitUnreachable, "the forge did not say which pull request it opened")
	}
	for _, n := range pr.Notes {
		w.Log.Warn("pull request note", "url", pr.URL, "note", n)
	}
	return &pr, "created", nil
}

// yield closes the pull request of this gateway if another gateway has an older one with the same change, and reports whether it did.
func (w *publisher) yield(ctx context.Context, rec record, pr *forge.PullRequest) (bool, record, error) {
	other, err := w.withChange(ctx, pr.Number)
	if err != nil || other == nil || other.Number > pr.Number {
		return false, rec, err
	}
	if err := w.pulls.retract(ctx, pr, "The same change is proposed by another gateway."); err != nil {
		return false, rec, err
	}
	rec, err = w.join(ctx, rec, other)
	return true, rec, err
}

// adopt records a pull request as that of this proposal.
func (w *publisher) adopt(rec record, pr *forge.PullRequest, result string) (record, error) {
	rec.Number, rec.URL = pr.Number, oneLine(pr.URL, 512)
	w.Log.Info("pull request "+result, "number", pr.Number, "url", pr.URL)
	return rec, rec.save(w.notes)
}

// join follows the pull request of another gateway, and deletes the branch of this one.
func (w *publisher) join(ctx context.Context, rec record, other *forge.PullRequest) (record, error) {
	tip := rec.Tip
	rec.Shared, rec.Head, rec.Tip, rec.LastTip = true, other.Branch, plan.ID{}, tip // if the branch stays now, the next push may delete it
	rec, err := w.adopt(rec, other, "shared")
	if err != nil {
		return rec, err
	}
	if err := w.settings.branch().delete(ctx, tip); !repo.IsStale(err) {
		return rec, err
	}
	return rec, nil
}

// maxOpenDelay is the longest delay before a gateway opens a pull request, so that another gateway with the same change can be first.
const maxOpenDelay = 15 * time.Second

// openDelay returns the delay of a gateway, which is always the same: jitter adds up to a fifth of its argument.
func openDelay(name string) time.Duration { return jitter(5*maxOpenDelay, name) - 5*maxOpenDelay }

// work runs one job at a time beside the loop.
type work struct {
	cancel context.CancelFunc // nil if no job runs
	result chan outcome
	done   chan struct{}
}

// outcome is the result of a job: a change of the record, and an error. Both may be set.
type outcome struct {
	apply func(r *record)
	err   error
}

func newWork() work { return work{done: make(chan struct{}, 1)} }

func (w *work) runs() bool { return w.cancel != nil }

// start runs f. No other job may run.
func (w *work) start(ctx context.Context, f func(ctx context.Context) outcome) {
	ctx, w.cancel = context.WithCancel(ctx)
	w.result = make(chan outcome, 1)
	result, done := w.result, w.done
	go func() {
		result <- f(ctx)
		select {
		case done <- struct{}{}:
		default:
		}
	}()
}

// take returns the outcome of a job that has ended.
func (w *work) take() (o outcome, ended bool) {
	if !w.runs() {
		return outcome{}, false
	}
	select {
	case o = <-w.result:
	default:
		return outcome{}, false
	}
	w.cancel()
	w.cancel = nil
	return o, true
}

// stop stops the job and drops its outcome.
func (w *work) stop() {
	if w.runs() {
		w.cancel()
		<-w.result
		w.cancel = nil
	}
}

// pause waits for d, or until ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	if !backoff.Wait(ctx, d) {
		return context.Cause(ctx)
	}
	return nil
}
