package forge

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// bitbucket is Bitbucket Cloud. It has no labels.
type bitbucket struct{ restClient }

type bitbucketPullRequest struct {
	ID          int64         `json:"id"`
	Title       string        `json:"title"`
	Description string        `json:"description"`
	State       string        `json:"state"`
	Source      bitbucketSide `json:"source"`
	Destination bitbucketSide `json:"destination"`
	Links       struct {
		HTML struct{ Href string }
	} `json:"links"`
}

// bitbucketSide is the source or the destination of a pull request.
type bitbucketSide struct {
	Branch     struct{ Name string }
	Commit     struct{ Hash string }
	Repository struct {
		FullName string `json:"full_name"`
	}
}

// path returns the path of the pull requests, or of an element.
func (b *bitbucket) path(elements ...any) string {
	return join("/repositories/"+url.PathEscape(b.repo.owner)+"/"+url.PathEscape(b.repo.name)+"/pullrequests", elements...)
}

func (b *bitbucket) list(ctx context.Context, branch, base string, states ...string) ([]PullRequest, error) {
	var conditions []string
	if branch != "" {
		conditions = append(conditions, equals("source.branch.name", branch))
	}
	if base != "" {
		conditions = append(conditions, equals("destination.branch.name", base))
	}
	q := query("q", strings.Join(conditions, " AND "), "sort", "-created_on", "pagelen", "50")
	q["state"] = states
	var page struct {
		Values []bitbucketPullRequest `json:"values"`
	}
	if err := b.do(ctx, http.MethodGet, b.path(), q, nil, &page); err != nil {
		return nil, err
	}
	return convertAll(page.Values, (*bitbucketPullRequest).convert), nil
}

func (p *bitbucketPullRequest) convert() PullRequest {
	state := map[string]State{"OPEN": Open, "MERGED": Merged}[p.State]
	if state == "" {
		state = Closed
	}
	return PullRequest{
		Number: p.ID, URL: shownURL(p.Links.HTML.Href), State: state, Branch: p.Source.Branch.Name, Base: p.Destination.Branch.Name,
		Commit: commitID(p.Source.Commit.Hash), Title: p.Title, Body: p.Description, Fork: p.Source.Repository.FullName != p.Destination.Repository.FullName,
	}
}

// equals returns a condition of Bitbucket's query language.
func equals(field, value string) string {
	return field + ` = "` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(value) + `"`
}

func (b *bitbucket) ByHead(ctx context.Context, branch, base string) ([]PullRequest, error) {
	return b.list(ctx, branch, base, "OPEN", "MERGED", "DECLINED", "SUPERSEDED")
}

func (b *bitbucket) Get(ctx context.Context, number int64) (PullRequest, error) {
	var p bitbucketPullRequest
	err := b.do(ctx, http.MethodGet, b.path(number), nil, nil, &p)
	return p.convert(), err
}

func (b *bitbucket) Open(ctx context.Context, base string) ([]PullRequest, error) {
	return b.list(ctx, "", base, "OPEN")
}

func (b *bitbucket) Create(ctx context.Context, d Draft) (PullRequest, error) {
	// Bitbucket does not refuse a second pull request from the same branch: it changes the first one. So look for an open one.
	list, err := b.ByHead(ctx, d.Branch, d.Base)
	if err != nil {
		return PullRequest{}, err
	}
	if slices.ContainsFunc(list, func(p PullRequest) bool { return p.State == Open }) {
		return PullRequest{}, ErrExists
	}
	branch := func(name string) any { return map[string]any{"branch": map[string]string{"name": name}} }
	var created bitbucketPullRequest
	err = b.do(ctx, http.MethodPost, b.path(), nil, map[string]any{
		"title": d.Title, "description": d.Body, "source": branch(d.Branch), "destination": branch(d.Base),
	}, &created)
	if err != nil {
		return PullRequest{}, err
	}
	out := created.convert()
	if len(d.Labels) > 0 {
		out.Notes = []string{"Bitbucket has no labels"}
	}
	return out, nil
}

func (b *bitbucket) Update(ctx context.Context, number int64, title, body string) error {
	return b.do(ctx, http.MethodPut, b.path(number), nil, map[string]string{"title": title, "description": body}, nil)
}

func (b *bitbucket) Close(ctx context.Context, number int64, comment string) error {
	if p, err := b.Get(ctx, number); err != nil || p.State != Open {
		return err
	}
	err := b.do(ctx, http.MethodPost, b.path(number, "decline"), nil, nil, nil)
	if err != nil || comment == "" {
		return err
	}
	return b.do(ctx, http.MethodPost, b.path(number, "comments"), nil, map[string]any{"content": map[string]string{"raw": comment}}, nil)
}

// maxBitbucketKey is the maximum length of the key of a status.
const maxBitbucketKey = 40

func (b *bitbucket) SetStatus(ctx context.Context, commit string, s CommitStatus) error {
	key := s.Context
	if len(key) > maxBitbucketKey {
		sum := sha256.Sum256([]byte(key))
		key = hex.EncodeToString(sum[:maxBitbucketKey/2])
	}
	page := s.URL
	if page == "" { // Bitbucket requires one
		page = (&url.URL{Scheme: "https", Host: "bitbucket.org", Path: "/" + b.repo.owner + "/" + b.repo.name + "/commits/" + commit}).String()
	}
	return b.do(ctx, http.MethodPost, "/repositories/"+url.PathEscape(b.repo.owner)+"/"+url.PathEscape(b.repo.name)+"/commit/"+url.PathEscape(commit)+"/statuses/build", nil, map[string]any{
		"key": key, "name": s.Context, "description": s.Description, "url": page,
		"state": map[CommitState]string{Pending: "INPROGRESS", Success: "SUCCESSFUL", Failure: "FAILED"}[s.State],
	}, nil)
}
