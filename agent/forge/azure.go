package forge

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
)

// azure is Azure DevOps, API version 7.1.
type azure struct {
	rest
	at address
}

// maxAzureBody is the maximum length of a description, in characters.
const maxAzureBody = 4000

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

func (a *azure) path(more ...string) string {
	p := "/" + url.PathEscape(a.at.project) + "/_apis/git/repositories/" + url.PathEscape(a.at.name) + "/pullrequests"
	for _, m := range more {
		p += "/" + m
	}
	return p
}

func version(q url.Values) url.Values {
	q.Set("api-version", "7.1")
	return q
}

func (a *azure) list(ctx context.Context, status, branch, base string) ([]PullRequest, error) {
	q := url.Values{"searchCriteria.status": {status}, "$top": {fmt.Sprint(MaxListed)}}
	if branch != "" {
		q.Set("searchCriteria.sourceRefName", "refs/heads/"+branch)
	}
	if base != "" {
		q.Set("searchCriteria.targetRefName", "refs/heads/"+base)
	}
	var page struct {
		Value []azurePullRequest `json:"value"`
	}
	if err := a.do(ctx, http.MethodGet, a.path(), version(q), nil, &page); err != nil {
		return nil, err
	}
	var out []PullRequest
	for i := range page.Value {
		out = append(out, a.convert(&page.Value[i]))
	}
	return out, nil
}

func (a *azure) convert(p *azurePullRequest) PullRequest {
	state := map[string]State{"active": Open, "completed": Merged}[p.Status]
	if state == "" {
		state = Closed
	}
	out := PullRequest{
		Number: p.ID, State: state, Branch: strings.TrimPrefix(p.Source, "refs/heads/"), Base: strings.TrimPrefix(p.Target, "refs/heads/"),
		Title: p.Title, Body: p.Description, Fork: p.Fork != nil,
	}
	// The API returns its own URL of the pull request. Users need the URL of the web page.
	web := *a.at.api
	out.URL = shownURL(web.JoinPath(a.at.project, "_git", a.at.name, "pullrequest", fmt.Sprint(p.ID)).String())
	if p.Last != nil {
		out.Commit = fullID(p.Last.ID)
	}
	return out
}

func (a *azure) ByHead(ctx context.Context, branch, base string) ([]PullRequest, error) {
	return a.list(ctx, "all", branch, base)
}

func (a *azure) Open(ctx context.Context, base string) ([]PullRequest, error) {
	return a.list(ctx, "active", "", base)
}

func (a *azure) Create(ctx context.Context, d Draft) (PullRequest, error) {
	in := map[string]any{"sourceRefName": "refs/heads/" + d.Branch, "targetRefName": "refs/heads/" + d.Base, "title": d.Title, "description": bounded(d.Body)}
	if len(d.Labels) > 0 {
		labels := make([]map[string]string, 0, len(d.Labels))
		for _, l := range d.Labels {
			labels = append(labels, map[string]string{"name": l})
		}
		in["labels"] = labels
	}
	var made azurePullRequest
	if err := a.do(ctx, http.MethodPost, a.path(), version(url.Values{}), in, &made); err != nil {
		return PullRequest{}, err
	}
	return a.convert(&made), nil
}

func bounded(body string) string {
	if r := []rune(body); len(r) > maxAzureBody {
		return string(r[:maxAzureBody])
	}
	return body
}

func (a *azure) Update(ctx context.Context, number int64, title, body string) error {
	return a.do(ctx, http.MethodPatch, a.path(fmt.Sprint(number)), version(url.Values{}), map[string]string{"title": title, "description": bounded(body)}, nil)
}

func (a *azure) Close(ctx context.Context, number int64, comment string) error {
	if comment != "" {
		in := map[string]any{"comments": []map[string]any{{"parentCommentId": 0, "content": comment, "commentType": "text"}}, "status": "active"}
		if err := a.do(ctx, http.MethodPost, a.path(fmt.Sprint(number), "threads"), version(url.Values{}), in, nil); err != nil {
			return err
		}
	}
	var now azurePullRequest
	if err := a.do(ctx, http.MethodGet, a.path(fmt.Sprint(number)), version(url.Values{}), nil, &now); err != nil || now.Status != "active" {
		return err
	}
	return a.do(ctx, http.MethodPatch, a.path(fmt.Sprint(number)), version(url.Values{}), map[string]string{"status": "abandoned"}, nil)
}
