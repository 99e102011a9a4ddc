package forge

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
)

// azure is Azure DevOps.
type azure struct{ restClient }

const (
	azureVersion = "7.1"
	branchPrefix = "refs/heads/"
)

type azurePullRequest struct {
	ID          int64  `json:"pullRequestId"`
	Status      string `json:"status"`
	Title       string `json:"title"`
	Description string `json:"description"`
	Source      string `json:"sourceRefName"`
	Target      string `json:"targetRefName"`
	Last        *struct {
		ID string `json:"commitId"`
	} `json:"lastMergeSourceCommit"`
	Fork *struct {
		Name string `json:"name"`
	} `json:"forkSource"`
}

// path returns the path of the pull requests, or of an element.
func (a *azure) path(elements ...any) string {
	return join("/"+url.PathEscape(a.repo.project)+"/_apis/git/repositories/"+url.PathEscape(a.repo.name)+"/pullrequests", elements...)
}

// send is do with a query that has only the version of the API.
func (a *azure) send(ctx context.Context, method, path string, in, out any) error {
	return a.do(ctx, method, path, query("api-version", azureVersion), in, out)
}

func (a *azure) list(ctx context.Context, status, branch, base string) ([]PullRequest, error) {
	q := query("api-version", azureVersion, "searchCriteria.status", status, "$top", fmt.Sprint(MaxListed))
	if branch != "" {
		q.Set("searchCriteria.sourceRefName", branchPrefix+branch)
	}
	if base != "" {
		q.Set("searchCriteria.targetRefName", branchPrefix+base)
	}
	var page struct {
		Value []azurePullRequest `json:"value"`
	}
	if err := a.do(ctx, http.MethodGet, a.path(), q, nil, &page); err != nil {
		return nil, err
	}
	return convertAll(page.Value, a.convert), nil
}

func (a *azure) convert(p *azurePullRequest) PullRequest {
	state := map[string]State{"active": Open, "completed": Merged}[p.Status]
	if state == "" {
		state = Closed
	}
	out := PullRequest{
		Number: p.ID, State: state, Branch: strings.TrimPrefix(p.Source, branchPrefix), Base: strings.TrimPrefix(p.Target, branchPrefix),
		Title: p.Title, Body: p.Description, Fork: p.Fork != nil,
	}
	// The API returns its own URL of the pull request. Users need the URL of the web page.
	out.URL = shownURL(a.repo.api.JoinPath(a.repo.project, "_git", a.repo.name, "pullrequest", fmt.Sprint(p.ID)).String())
	if p.Last != nil {
		out.Commit = commitID(p.Last.ID)
	}
	return out
}

func (a *azure) ByHead(ctx context.Context, branch, base string) ([]PullRequest, error) {
	return a.list(ctx, "all", branch, base)
}

func (a *azure) Get(ctx context.Context, number int64) (PullRequest, error) {
	var p azurePullRequest
	err := a.send(ctx, http.MethodGet, a.path(number), nil, &p)
	return a.convert(&p), err
}

func (a *azure) Open(ctx context.Context, base string) ([]PullRequest, error) {
	return a.list(ctx, "active", "", base)
}

func (a *azure) Create(ctx context.Context, d Draft) (PullRequest, error) {
	in := map[string]any{
		"sourceRefName": branchPrefix + d.Branch, "targetRefName": branchPrefix + d.Base, "title": d.Title, "description": d.Body,
	}
	if len(d.Labels) > 0 {
		labels := make([]map[string]string, 0, len(d.Labels))
		for _, l := range d.Labels {
			labels = append(labels, map[string]string{"name": l})
		}
		in["labels"] = labels
	}
	var created azurePullRequest
	if err := a.send(ctx, http.MethodPost, a.path(), in, &created); err != nil {
		return PullRequest{}, err
	}
	return a.convert(&created), nil
}

func (a *azure) Update(ctx context.Context, number int64, title, body string) error {
	return a.send(ctx, http.MethodPatch, a.path(number), map[string]string{"title": title, "description": body}, nil)
}

func (a *azure) Close(ctx context.Context, number int64, comment string) error {
	if p, err := a.Get(ctx, number); err != nil || p.State != Open {
		return err
	}
	err := a.send(ctx, http.MethodPatch, a.path(number), map[string]string{"status": "abandoned"}, nil)
	if err != nil || comment == "" {
		return err
	}
	in := map[string]any{"comments": []map[string]any{{"parentCommentId": 0, "content": comment, "commentType": "text"}}, "status": "active"}
	return a.send(ctx, http.MethodPost, a.path(number, "threads"), in, nil)
}

func (a *azure) SetStatus(ctx context.Context, commit string, s CommitStatus) error {
	genre, name, found := strings.Cut(s.Context, "/")
	if !found {
		genre, name = "", s.Context
	}
	in := map[string]any{
		"state": map[CommitState]string{Pending: "pending", Success: "succeeded", Failure: "failed"}[s.State], "description": s.Description,
		"context": map[string]string{"genre": genre, "name": name},
	}
	if s.URL != "" {
		in["targetUrl"] = s.URL
	}
	return a.send(ctx, http.MethodPost, "/"+url.PathEscape(a.repo.project)+"/_apis/git/repositories/"+url.PathEscape(a.repo.name)+"/commits/"+url.PathEscape(commit)+"/statuses", in, nil)
}
