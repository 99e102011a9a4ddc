package repo

import (
	"context"
	"iter"
	"slices"
	"strings"

	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/capability"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// Refs is what a repository has at one moment: one advertisement, which answers any number of questions.
type Refs struct {
	url URL
	all *refs
}

// Refs asks for all refs.
func (r *Remote) Refs(ctx context.Context) (*Refs, error) {
	all, err := r.source.refs(ctx)
	if err != nil {
		return nil, err
	}
	return &Refs{r.url, all}, nil
}

// Resolve finds the commit that a ref stands for. The id of a commit stands for itself; whether the repository has it is
// not known here.
func (a *Refs) Resolve(ref Ref) (Resolution, error) {
	if id, ok := ref.Commit(); ok {
		return Resolution{Commit: id}, nil
	}
	if ref.IsZero() {
		return Resolution{}, failure.New(v1alpha1.ReasonRefNotFound, "git.ref is empty: give a branch, a tag or a commit id")
	}
	return a.all.resolve(a.url, ref)
}

// All gives the full names of all refs with their commits, in no order. HEAD is left out.
func (a *Refs) All() iter.Seq2[string, plan.ID] {
	return func(yield func(string, plan.ID) bool) {
		for name, id := range a.all.byName {
			if to, ok := a.all.peeled[name]; ok {
				id = to
			}
			if name != headName && !yield(name, id) {
				return
			}
		}
	}
}

// histories are how many commits deep a commit is looked for behind the tips of refs; the last is all that is looked at.
var histories = [...]int{1024, 65536}

// maxReachTips is from how many refs a commit is looked for.
const maxReachTips = 5000

// Reaches reports whether commit is what one of the named refs points to, or among the ancestors of it. Hosts also serve
// commits of forks by their id, so that a commit that can be fetched says nothing. Only commits are asked for, no trees;
// from a server that cannot leave out trees the history comes with its files, which is looked through less far. It goes to the
// store's directory for as long as it is looked through, beside a Fetch that may take longer.
//
// The error says why it cannot be told: the history is too long, or too large.
func (s *Store) Reaches(ctx context.Context, r *Remote, a *Refs, names []string, commit plan.ID) (bool, error) {
	var tips []plan.ID
	for _, name := range slices.Sorted(slices.Values(names)) {
		if found, ok := a.all.lookup(name); ok && found.Commit == commit {
			return true, nil
		}
		// As it is advertised: servers do not count what an annotated tag points to.
		if id, ok := a.all.byName[name]; ok && !slices.Contains(tips, id) && len(tips) < maxReachTips {
			tips = append(tips, id)
		}
	}
	if len(tips) == 0 {
		return false, nil
	}
	if err := s.looking.take(ctx); err != nil {
		return false, err
	}
	defer s.looking.give()
	if last := &s.unreached; last.remote == r && last.commit == commit && slices.Equal(last.tips, tips) {
		return false, last.err
	}
	f, err := s.begin(r, commit, "")
	if err != nil {
		return false, err
	}
	defer f.end()
	f.cap = r.opts.SearchBytes
	found, err := r.source.reaches(ctx, f, tips)
	if !found && (err == nil || failure.Is(err, v1alpha1.ReasonRefNotAllowed)) {
		s.unreached = unreached{r, commit, tips, err}
	}
	return found, err
}

// unreached is the answer of a Reaches that did not find its commit. It costs the most, and stands while no ref moves.
type unreached struct {
	remote *Remote
	commit plan.ID
	tips   []plan.ID
	err    error
}

func (w *smart) reaches(ctx context.Context, f *fetch, tips []plan.ID) (bool, error) {
	ctx, dog, stop := watch(ctx, w.opts.Total, w.opts.StallBytes, w.opts.StallWindow)
	defer stop()
	a, err := w.advertised(ctx, dog)
	if err != nil {
		return false, err
	}
	defer w.last.put(a)
	depths := histories[:]
	if !a.caps.Supports(capability.Filter) {
		depths = deeper[:]
	}
	if !a.caps.Supports(capability.Shallow) {
		depths = []int{0}
	}
	for _, depth := range depths {
		found, whole, err := w.behind(ctx, dog, a, f, step{want: tips[0], more: tips[1:], depth: depth})
		if f.stats.Bytes >= f.cap {
			return false, failure.New(v1alpha1.ReasonRefNotAllowed,
				"whether commit %s belongs to an allowed ref of %s cannot be told within %d bytes of history: ask for a branch or a tag, or set uploadpack.allowFilter on the server",
				f.commit, w.url, f.cap)
		}
		if found || whole || err != nil {
			return found, err
		}
	}
	return false, failure.New(v1alpha1.ReasonRefNotAllowed,
		"commit %s is not among the last %d commits of the allowed refs of %s: ask for a branch or a tag", f.commit, depths[len(depths)-1], w.url)
}

// behind looks for the commit of f among those that a step brings.
func (w *smart) behind(ctx context.Context, dog *watchdog, a *advert, f *fetch, s step) (found, whole bool, err error) {
	req := a.request(s)
	if a.caps.Supports(capability.Filter) {
		_ = req.Capabilities.Set(capability.Filter) // fails for arguments only
		req.Filter = packp.FilterTreeDepth(0)
	}
	x := &exchange{dog: dog}
	in, whole, err := w.exchange(ctx, x, a, f, req)
	secrets, known := x.outcome()
	if known != nil {
		err = known
	}
	if err != nil {
		err = explain(ctx, w.url, err, secrets)
		if refused(err) {
			err = failure.New(v1alpha1.ReasonGitUnreachable, "%s does not send its history: %w", w.url, foreign(err, secrets))
		}
		return false, false, err
	}
	defer f.drop(in)
	p, err := openPack(f.root, in.temp)
	if err != nil {
		return false, false, err
	}
	defer p.release()
	_, found, err = p.find(f.commit)
	return found, whole, err
}

// reaches walks the history, as far as the repository has it.
func (l *local) reaches(ctx context.Context, f *fetch, tips []plan.ID) (bool, error) {
	from, err := l.objects(ctx, f.store.limits, small)
	if err != nil {
		return false, err
	}
	defer from.close()
	seen := map[plan.ID]bool{}
	open := slices.Clone(tips)
	for n := 0; len(open) > 0; n++ {
		if ctx.Err() != nil {
			return false, explain(ctx, l.url, ctx.Err(), nil)
		}
		if n > histories[len(histories)-1] {
			return false, failure.New(v1alpha1.ReasonRefNotAllowed,
				"commit %s is not among %d commits of the allowed refs of %s: ask for a branch or a tag", f.commit, n, l.url)
		}
		id := open[0]
		open = open[1:]
		if id, err = from.peel(id); err == nil && id == f.commit {
			return true, nil
		}
		var up []plan.ID
		if err == nil {
			up, err = from.parents(id)
		}
		if IsNotFound(err) && !failure.Is(err, v1alpha1.ReasonGitUnreachable) {
			continue // a shallow clone ends here
		}
		if err != nil {
			return false, l.explain(ctx, err)
		}
		for _, p := range up {
			if !seen[p] {
				seen[p] = true
				open = append(open, p)
			}
		}
	}
	return false, nil
}

// parents reads the parents of a commit, which stand right behind its tree; what is no commit has none.
func (o *objects) parents(commit plan.ID) ([]plan.ID, error) {
	if s, err := o.find(commit); err != nil || s.kind != kindCommit {
		return nil, err
	}
	b, err := o.read(commit, kindCommit)
	if err != nil {
		return nil, err
	}
	var ids []plan.ID
	for line := range strings.Lines(string(b)) {
		parent, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "parent ")
		if !ok {
			if strings.HasPrefix(line, "tree ") {
				continue
			}
			break
		}
		id, err := plan.ParseID(parent)
		if err != nil {
			return nil, corrupt("a parent of commit %s is no id", commit)
		}
		ids = append(ids, id)
	}
	return ids, nil
}
