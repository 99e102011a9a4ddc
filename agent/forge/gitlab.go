package forge

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// gitLab is GitLab, API version 4. It does not use GitLab's own client, for the same reason as gitHub.
type gitLab struct{ restClient }

type gitLabMergeRequest struct {
	IID           int64  `json:"iid"`
	URL           string `json:"web_url"`
	State         string `json:"state"`
	Title         string `json:"title"`
	Description   string `json:"description"`
	SourceBranch  string `json:"source_branch"`
	TargetBranch  string `json:"target_branch"`
	SHA           string `json:"sha"`
	SourceProject int64  `json:"source_project_id"`
	TargetProject int64  `json:"target_project_id"`
}

// path returns the path of the merge requests, or of an element.
func (g *gitLab) path(elements ...any) string {
	return join("/projects/"+url.PathEscape(g.repo.owner+"/"+g.repo.name)+"/merge_requests", elements...)
}

func (g *gitLab) list(ctx context.Context, state, branch, base string) ([]PullRequest, error) {
	return readPages(MaxListed/perPage, true, all, func(page, size int) ([]PullRequest, error) {
		q := query("state", state, "source_branch", branch, "target_branch", base,
			"order_by", "created_at", "sort", "desc", "per_page", fmt.Sprint(size), "page", fmt.Sprint(page))
		var list []gitLabMergeRequest
		err := g.do(ctx, http.MethodGet, g.path(), q, nil, &list)
		return convertAll(list, (*gitLabMergeRequest).convert), err
	})
}

func (m *gitLabMergeRequest) convert() PullRequest {
	state := Closed
	switch m.State {
	case "opened", "locked":
		state = Open
	case "merged":
		state = Merged
	}
	return PullRequest{
		Number: m.IID, URL: shownURL(m.URL), State: state, Branch: m.SourceBranch, Commit: commitID(m.SHA), Base: m.TargetBranch, Title: m.Title,
		Body: m.Description, Fork: m.SourceProject != m.TargetProject,
	}
}

func (g *gitLab) ByHead(ctx context.Context, branch, base string) ([]PullRequest, error) {
	return g.list(ctx, "all", branch, base)
}

func (g *gitLab) get(ctx context.Context, number int64) (m gitLabMergeRequest, err error) {
	err = g.do(ctx, http.MethodGet, g.path(number), nil, nil, &m)
	return m, err
}

func (g *gitLab) Get(ctx context.Context, number int64) (PullRequest, error) {
	m, err := g.get(ctx, number)
	return m.convert(), err
}

func (g *gitLab) Open(ctx context.Context, base string) ([]PullRequest, error) {
	return g.list(ctx, "opened", "", base)
}

func (g *gitLab) Create(ctx context.Context, d Draft) (PullRequest, error) {
	in := map[string]string{"title": d.Title, "description": d.Body, "source_branch": d.Branch, "target_branch": d.Base}
	if len(d.Labels) > 0 {
		in["labels"] = strings.Join(d.Labels, ",")
	}
	var created gitLabMergeRequest
	if err := g.do(ctx, http.MethodPost, g.path(), nil, in, &created); err != nil {
		return PullRequest{}, err
	}
	return created.convert(), nil
}

func (g *gitLab) Update(ctx context.Context, number int64, title, body string) error {
	return g.do(ctx, http.MethodPut, g.path(number), nil, map[string]string{"title": title, "description": body}, nil)
}

func (g *gitLab) Close(ctx context.Context, number int64, comment string) error {
	if m, err := g.get(ctx, number); err != nil || m.State != "opened" { // one that is locked is being merged
		return err
	}
	err := g.do(ctx, http.MethodPut, g.path(number), nil, map[string]string{"state_event": "close"}, nil)
	if err != nil || comment == "" {
		return err
	}
	return g.do(ctx, http.MethodPost, g.path(number, "notes"), nil, map[string]string{"body": comment}, nil)
}

func (g *gitLab) SetStatus(ctx context.Context, commit string, s CommitStatus) error {
	in := map[string]any{"state": s.State, "name": s.Context, "description": s.Description}
	if s.State == Failure {
		in["state"] = "failed"
	}
	if s.URL != "" {
		in["target_url"] = s.URL
	}
	err := g.do(ctx, http.MethodPost, "/projects/"+url.PathEscape(g.repo.owner+"/"+g.repo.name)+"/statuses/"+url.PathEscape(commit), nil, in, nil)
	switch {
	case !errors.Is(err, ErrExists):
		return err
	case s.State == Pending: // GitLab refuses a state that the status has already
		return nil
	}
	return failure.New(v1alpha1.ReasonPushRejected, "the API at %s does not let the status of a commit become %s", g.repo.api.Host, s.State)
}
