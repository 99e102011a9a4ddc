package forge

import (
	"context"
	"net/http"
	"slices"
	"time"

	sdk "code.gitea.io/sdk/gitea"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// gitea is Gitea and Forgejo.
type gitea struct {
	http *http.Client
	repo address
}

// client returns the client for one call, because the context belongs to the client. With an empty version, the SDK does not ask
// the server for its version.
func (g *gitea) client(ctx context.Context) (*sdk.Client, error) {
	c, err := sdk.NewClient(g.repo.api.String(), sdk.SetHTTPClient(g.http), sdk.SetContext(ctx), sdk.SetGiteaVersion(""))
	if err != nil {
		return nil, failure.New(v1alpha1.ReasonUnsupportedRepository, "the API at %s: %w", g.repo.api.Host, err)
	}
	return c, nil
}

// Bounds of the lists of pull requests. A server may send fewer than perPage in each page (MAX_RESPONSE_ITEMS).
const (
	maxOpenPages   = 100
	maxClosedPages = 10
)

// list returns the pull requests for which keep returns true, newest first, because Gitea cannot filter by branch. It reads at most the given
// number of pages, and the most recently updated pull requests first.
func (g *gitea) list(ctx context.Context, state sdk.StateType, pages int, keep func(PullRequest) bool) ([]PullRequest, error) {
	c, err := g.client(ctx)
	if err != nil {
		return nil, err
	}
	out, err := readPages(pages, false, keep, func(page, size int) ([]PullRequest, error) {
		list, _, err := c.ListRepoPullRequests(g.repo.owner, g.repo.name, sdk.ListPullRequestsOptions{State: state, Sort: "recentupdate", ListOptions: sdk.ListOptions{Page: page, PageSize: size}})
		out := make([]PullRequest, 0, len(list))
		for _, p := range list {
			out = append(out, g.convert(p))
		}
		return out, clientError(err, g.repo.api.Host)
	})
	slices.SortFunc(out, newestFirst)
	return out, err
}

func (g *gitea) convert(p *sdk.PullRequest) PullRequest {
	state := Closed
	switch {
	case p.State == sdk.StateOpen:
		state = Open
	case p.HasMerged:
		state = Merged
	}
	out := PullRequest{Number: p.Index, URL: shownURL(p.HTMLURL), State: state, Title: p.Title, Body: p.Body}
	if p.Head != nil {
		out.Branch, out.Commit = p.Head.Ref, p.Head.Sha
		out.Fork = p.Base != nil && p.Head.RepoID != p.Base.RepoID
		if p.Head.Name != "" && state != Open { // the ref of a branch that is gone is refs/pull/N/head
			out.Branch = p.Head.Name
		}
	}
	if p.Base != nil {
		out.Base = p.Base.Ref
	}
	return out
}

func (g *gitea) ByHead(ctx context.Context, branch, base string) ([]PullRequest, error) {
	keep := func(p PullRequest) bool { return p.Branch == branch && (base == "" || p.Base == base) }
	open, err := g.list(ctx, sdk.StateOpen, maxOpenPages, keep)
	if err != nil {
		return nil, err
	}
	closed, err := g.list(ctx, sdk.StateClosed, maxClosedPages, keep)
	list := append(open, closed...)
	slices.SortFunc(list, newestFirst)
	return list[:min(len(list), MaxListed)], err
}

func newestFirst(a, b PullRequest) int { return int(b.Number - a.Number) }

func (g *gitea) Get(ctx context.Context, number int64) (PullRequest, error) {
	c, err := g.client(ctx)
	if err != nil {
		return PullRequest{}, err
	}
	p, _, err := c.GetPullRequest(g.repo.owner, g.repo.name, number)
	if err != nil {
		return PullRequest{}, clientError(err, g.repo.api.Host)
	}
	return g.convert(p), nil
}

func (g *gitea) Open(ctx context.Context, base string) ([]PullRequest, error) {
	return g.list(ctx, sdk.StateOpen, maxOpenPages, func(p PullRequest) bool { return base == "" || p.Base == base })
}

func (g *gitea) Create(ctx context.Context, d Draft) (PullRequest, error) {
	c, err := g.client(ctx)
	if err != nil {
		return PullRequest{}, err
	}
	ids, notes := g.labels(c, d.Labels)
	p, err := g.create(ctx, c, sdk.CreatePullRequestOption{Head: d.Branch, Base: d.Base, Title: d.Title, Body: d.Body, Labels: ids})
	if err != nil {
		return PullRequest{}, err
	}
	out := g.convert(p)
	out.Notes = notes
	return out, nil
}

// Gitea answers 404 until it has processed the push of the branch, which takes a moment.
const (
	branchTries = 10
	branchPause = 500 * time.Millisecond
)

// create opens a pull request of a branch that may have been pushed just now.
func (g *gitea) create(ctx context.Context, c *sdk.Client, o sdk.CreatePullRequestOption) (*sdk.PullRequest, error) {
	for try := 1; ; try++ {
		p, _, err := c.CreatePullRequest(g.repo.owner, g.repo.name, o)
		if err = clientError(err, g.repo.api.Host); try == branchTries || !failure.Is(err, v1alpha1.ReasonUnsupportedRepository) {
			return p, err
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(branchPause):
		}
	}
}

// maxLabelPages bounds the labels of a repository that are read.
const maxLabelPages = 20

// labels returns the ids of labels, and a note for each that the repository does not have.
func (g *gitea) labels(c *sdk.Client, names []string) (ids []int64, notes []string) {
	if len(names) == 0 {
		return nil, nil
	}
	var list []*sdk.Label
	for n := range maxLabelPages {
		page, _, err := c.ListRepoLabels(g.repo.owner, g.repo.name, sdk.ListLabelsOptions{ListOptions: sdk.ListOptions{Page: n + 1, PageSize: 50}})
		if err != nil {
			return nil, []string{"labels not set: " + clientError(err, g.repo.api.Host).Error()}
		}
		if list = append(list, page...); len(page) == 0 {
			break
		}
	}
	for _, name := range names {
		i := slices.IndexFunc(list, func(l *sdk.Label) bool { return l.Name == name })
		if i < 0 {
			notes = append(notes, "the repository has no label "+failure.Quote(name))
			continue
		}
		ids = append(ids, list[i].ID)
	}
	return ids, notes
}

func (g *gitea) Update(ctx context.Context, number int64, title, body string) error {
	c, err := g.client(ctx)
	if err != nil {
		return err
	}
	_, _, err = c.EditPullRequest(g.repo.owner, g.repo.name, number, sdk.EditPullRequestOption{Title: title, Body: &body})
	return clientError(err, g.repo.api.Host)
}

func (g *gitea) Close(ctx context.Context, number int64, comment string) error {
	if p, err := g.Get(ctx, number); err != nil || p.State != Open {
		return err
	}
	c, err := g.client(ctx)
	if err != nil {
		return err
	}
	state := sdk.StateClosed
	_, _, err = c.EditPullRequest(g.repo.owner, g.repo.name, number, sdk.EditPullRequestOption{State: &state})
	if err == nil && comment != "" {
		_, _, err = c.CreateIssueComment(g.repo.owner, g.repo.name, number, sdk.CreateIssueCommentOption{Body: comment})
	}
	return clientError(err, g.repo.api.Host)
}

func (g *gitea) SetStatus(ctx context.Context, commit string, s CommitStatus) error {
	c, err := g.client(ctx)
	if err != nil {
		return err
	}
	_, _, err = c.CreateStatus(g.repo.owner, g.repo.name, commit, sdk.CreateStatusOption{
		State: sdk.StatusState(s.State), Context: s.Context, Description: s.Description, TargetURL: s.URL,
	})
	return clientError(err, g.repo.api.Host)
}
