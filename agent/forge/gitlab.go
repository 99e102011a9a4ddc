package forge

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
)

// gitLab is GitLab, API version 4. Its own client is not used, for the same reason as that of GitHub.
type gitLab struct {
	rest
	at address
}

type gitLabRequest struct {
	IID         int64  `json:"iid"`
	URL         string `json:"web_url"`
	State       string `json:"state"`
	Title       string `json:"title"`
	Description string `json:"description"`
	Source      string `json:"source_branch"`
	Target      string `json:"target_branch"`
	SHA         string `json:"sha"`
	From        int64  `json:"source_project_id"`
	To          int64  `json:"target_project_id"`
}

func (g *gitLab) path(more ...string) string {
	p := "/projects/" + url.PathEscape(g.at.owner+"/"+g.at.name) + "/merge_requests"
	return strings.Join(append([]string{p}, more...), "/")
}

func (g *gitLab) list(ctx context.Context, q url.Values) ([]PullRequest, error) {
	q.Set("order_by", "created_at")
	q.Set("sort", "desc")
	q.Set("per_page", fmt.Sprint(MaxListed))
	var list []gitLabRequest
	if err := g.do(ctx, http.MethodGet, g.path(), q, nil, &list); err != nil {
		return nil, err
	}
	out := make([]PullRequest, 0, len(list))
	for i := range list {
		out = append(out, list[i].convert())
	}
	return out, nil
}

func (m *gitLabRequest) convert() PullRequest {
	state := Closed
	switch m.State {
	case "opened", "locked":
		state = Open
	case "merged":
		state = Merged
	}
	return PullRequest{
		Number: m.IID, URL: shownURL(m.URL), State: state, Branch: m.Source, Commit: fullID(m.SHA), Base: m.Target, Title: m.Title, Body: m.Description,
		Fork: m.From != m.To,
	}
}

func (g *gitLab) ByHead(ctx context.Context, branch, base string) ([]PullRequest, error) {
	q := url.Values{"state": {"all"}, "source_branch": {branch}}
	if base != "" {
		q.Set("target_branch", base)
	}
	return g.list(ctx, q)
}

func (g *gitLab) Open(ctx context.Context, base string) ([]PullRequest, error) {
	q := url.Values{"state": {"opened"}}
	if base != "" {
		q.Set("target_branch", base)
	}
	return g.list(ctx, q)
}

func (g *gitLab) Create(ctx context.Context, d Draft) (PullRequest, error) {
	in := map[string]string{"title": d.Title, "description": d.Body, "source_branch": d.Branch, "target_branch": d.Base}
	if len(d.Labels) > 0 {
		in["labels"] = strings.Join(d.Labels, ",")
	}
	var made gitLabRequest
	if err := g.do(ctx, http.MethodPost, g.path(), nil, in, &made); err != nil {
		return PullRequest{}, err
	}
	return made.convert(), nil
}

func (g *gitLab) Update(ctx context.Context, number int64, title, body string) error {
	return g.do(ctx, http.MethodPut, g.path(fmt.Sprint(number)), nil, map[string]string{"title": title, "description": body}, nil)
}

func (g *gitLab) Close(ctx context.Context, number int64, comment string) error {
	if comment != "" {
		if err := g.do(ctx, http.MethodPost, g.path(fmt.Sprint(number), "notes"), nil, map[string]string{"body": comment}, nil); err != nil {
			return err
		}
	}
	var now gitLabRequest
	if err := g.do(ctx, http.MethodGet, g.path(fmt.Sprint(number)), nil, nil, &now); err != nil || now.State != "opened" {
		return err
	}
	return g.do(ctx, http.MethodPut, g.path(fmt.Sprint(number)), nil, map[string]string{"state_event": "close"}, nil)
}
