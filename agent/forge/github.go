package forge

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
)

// gitHub is GitHub, API version 2022-11-28. It does not use GitHub's own client: with it and that of GitLab, the agent would be
// larger by a seventh, for a few requests each.
type gitHub struct{ restClient }

type gitHubPullRequest struct {
	Number   int64   `json:"number"`
	URL      string  `json:"html_url"`
	State    string  `json:"state"`
	MergedAt *string `json:"merged_at"`
	Title    string  `json:"title"`
	Body     string  `json:"body"`
	Head     gitHubSide
	Base     gitHubSide
}

// gitHubSide is the head or the base of a pull request.
type gitHubSide struct {
	Ref  string
	SHA  string
	Repo struct { // empty if the fork was deleted
		FullName string `json:"full_name"`
	}
}

// path returns the path of a collection, such as pulls, or of an element.
func (g *gitHub) path(elements ...any) string {
	return join("/repos/"+url.PathEscape(g.repo.owner)+"/"+url.PathEscape(g.repo.name), elements...)
}

func (g *gitHub) list(ctx context.Context, state, head, base string) ([]PullRequest, error) {
	return readPages(MaxListed/perPage, true, all, func(page, size int) ([]PullRequest, error) {
		q := query("state", state, "head", head, "base", base, "sort", "created", "direction", "desc", "per_page", fmt.Sprint(size), "page", fmt.Sprint(page))
		var list []gitHubPullRequest
		err := g.do(ctx, http.MethodGet, g.path("pulls"), q, nil, &list)
		return convertAll(list, (*gitHubPullRequest).convert), err
	})
}

func (p *gitHubPullRequest) convert() PullRequest {
	state := Closed
	switch {
	case p.State == "open":
		state = Open
	case p.MergedAt != nil:
		state = Merged
	}
	return PullRequest{
		Number: p.Number, URL: shownURL(p.URL), State: state, Branch: p.Head.Ref, Commit: commitID(p.Head.SHA), Base: p.Base.Ref, Title: p.Title, Body: p.Body,
		Fork: p.Head.Repo != p.Base.Repo, // git.repo may have the former name of the repository
	}
}

func (g *gitHub) ByHead(ctx context.Context, branch, base string) ([]PullRequest, error) {
	return g.list(ctx, "all", g.repo.owner+":"+branch, base)
}

func (g *gitHub) Get(ctx context.Context, number int64) (PullRequest, error) {
	var p gitHubPullRequest
	err := g.do(ctx, http.MethodGet, g.path("pulls", number), nil, nil, &p)
	return p.convert(), err
}

func (g *gitHub) Open(ctx context.Context, base string) ([]PullRequest, error) {
	return g.list(ctx, "open", "", base)
}

func (g *gitHub) Create(ctx context.Context, d Draft) (PullRequest, error) {
	var created gitHubPullRequest
	in := map[string]string{"title": d.Title, "head": d.Branch, "base": d.Base, "body": d.Body}
	if err := g.do(ctx, http.MethodPost, g.path("pulls"), nil, in, &created); err != nil {
		return PullRequest{}, err
	}
	out := created.convert()
	if len(d.Labels) > 0 {
		if err := g.do(ctx, http.MethodPost, g.path("issues", out.Number, "labels"), nil, map[string]any{"labels": d.Labels}, nil); err != nil {
			out.Notes = append(out.Notes, "labels not set: "+err.Error())
		}
	}
	return out, nil
}

func (g *gitHub) Update(ctx context.Context, number int64, title, body string) error {
	return g.do(ctx, http.MethodPatch, g.path("pulls", number), nil, map[string]string{"title": title, "body": body}, nil)
}

func (g *gitHub) Close(ctx context.Context, number int64, comment string) error {
	if p, err := g.Get(ctx, number); err != nil || p.State != Open {
		return err
	}
	err := g.do(ctx, http.MethodPatch, g.path("pulls", number), nil, map[string]string{"state": "closed"}, nil)
	if err != nil || comment == "" {
		return err
	}
	return g.do(ctx, http.MethodPost, g.path("issues", number, "comments"), nil, map[string]string{"body": comment}, nil)
}

func (g *gitHub) SetStatus(ctx context.Context, commit string, s CommitStatus) error {
	in := map[string]any{"state": s.State, "context": s.Context, "description": s.Description}
	if s.URL != "" {
		in["target_url"] = s.URL
	}
	return g.do(ctx, http.MethodPost, g.path("statuses", url.PathEscape(commit)), nil, in, nil)
}
