package forge

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
)

// gitHub is GitHub, API version 2022-11-28. Its own client is not used: with it and that of GitLab, the agent would be larger by a seventh,
// for five requests each.
type gitHub struct {
	rest
	at address
}

type gitHubRequest struct {
	Number   int64   `json:"number"`
	URL      string  `json:"html_url"`
	State    string  `json:"state"`
	MergedAt *string `json:"merged_at"`
	Title    string  `json:"title"`
	Body     string  `json:"body"`
	Head     struct {
		Ref  string `json:"ref"`
		SHA  string `json:"sha"`
		Repo *struct {
			FullName string `json:"full_name"`
		} `json:"repo"`
	} `json:"head"`
	Base struct {
		Ref string `json:"ref"`
	} `json:"base"`
}

func (g *gitHub) path(kind string, more ...string) string {
	return strings.Join(append([]string{"/repos/" + url.PathEscape(g.at.owner) + "/" + url.PathEscape(g.at.name) + "/" + kind}, more...), "/")
}

func (g *gitHub) list(ctx context.Context, q url.Values) ([]PullRequest, error) {
	q.Set("sort", "created")
	q.Set("direction", "desc")
	q.Set("per_page", fmt.Sprint(MaxListed))
	var list []gitHubRequest
	if err := g.do(ctx, http.MethodGet, g.path("pulls"), q, nil, &list); err != nil {
		return nil, err
	}
	out := make([]PullRequest, 0, len(list))
	for i := range list {
		out = append(out, g.convert(&list[i]))
	}
	return out, nil
}

func (g *gitHub) convert(p *gitHubRequest) PullRequest {
	state := Closed
	switch {
	case p.State == "open":
		state = Open
	case p.MergedAt != nil:
		state = Merged
	}
	return PullRequest{
		Number: p.Number, URL: shownURL(p.URL), State: state, Branch: p.Head.Ref, Commit: fullID(p.Head.SHA), Base: p.Base.Ref, Title: p.Title, Body: p.Body,
		Fork: p.Head.Repo == nil || !strings.EqualFold(p.Head.Repo.FullName, g.at.owner+"/"+g.at.name),
	}
}

func (g *gitHub) ByHead(ctx context.Context, branch, base string) ([]PullRequest, error) {
	q := url.Values{"state": {"all"}, "head": {g.at.owner + ":" + branch}}
	if base != "" {
		q.Set("base", base)
	}
	return g.list(ctx, q)
}

func (g *gitHub) Open(ctx context.Context, base string) ([]PullRequest, error) {
	q := url.Values{"state": {"open"}}
	if base != "" {
		q.Set("base", base)
	}
	return g.list(ctx, q)
}

func (g *gitHub) Create(ctx context.Context, d Draft) (PullRequest, error) {
	var made gitHubRequest
	in := map[string]string{"title": d.Title, "head": d.Branch, "base": d.Base, "body": d.Body}
	if err := g.do(ctx, http.MethodPost, g.path("pulls"), nil, in, &made); err != nil {
		return PullRequest{}, err
	}
	out := g.convert(&made)
	if len(d.Labels) > 0 {
		if err := g.do(ctx, http.MethodPost, g.path("issues", fmt.Sprint(out.Number), "labels"), nil, map[string]any{"labels": d.Labels}, nil); err != nil {
			out.Notes = append(out.Notes, "labels not set: "+err.Error())
		}
	}
	return out, nil
}

func (g *gitHub) Update(ctx context.Context, number int64, title, body string) error {
	return g.do(ctx, http.MethodPatch, g.path("pulls", fmt.Sprint(number)), nil, map[string]string{"title": title, "body": body}, nil)
}

func (g *gitHub) Close(ctx context.Context, number int64, comment string) error {
	if comment != "" {
		if err := g.do(ctx, http.MethodPost, g.path("issues", fmt.Sprint(number), "comments"), nil, map[string]string{"body": comment}, nil); err != nil {
			return err
		}
	}
	var now gitHubRequest
	if err := g.do(ctx, http.MethodGet, g.path("pulls", fmt.Sprint(number)), nil, nil, &now); err != nil || now.State != "open" {
		return err
	}
	return g.do(ctx, http.MethodPatch, g.path("pulls", fmt.Sprint(number)), nil, map[string]string{"state": "closed"}, nil)
}
