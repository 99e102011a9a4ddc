package forge

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
)

// bitbucket is Bitbucket Cloud. It has no labels.
type bitbucket struct {
	rest
	at address
}

type bitbucketPullRequest struct {
	ID          int64  `json:"id"`
	Title       string `json:"title"`
	Description string `json:"description"`
	State       string `json:"state"`
	Source      struct {
		Branch     struct{ Name string }
		Commit     struct{ Hash string }
		Repository struct {
			FullName string `json:"full_name"`
		}
	} `json:"source"`
	Destination struct {
		Branch     struct{ Name string }
		Repository struct {
			FullName string `json:"full_name"`
		}
	} `json:"destination"`
	Links struct {
		HTML struct{ Href string }
	} `json:"links"`
}

func (b *bitbucket) path(more ...string) string {
	p := "/repositories/" + url.PathEscape(b.at.owner) + "/" + url.PathEscape(b.at.name) + "/pullrequests"
	for _, m := range more {
		p += "/" + m
	}
	return p
}

func (b *bitbucket) list(ctx context.Context, terms []string, states ...string) ([]PullRequest, error) {
	q := url.Values{"state": states, "sort": {"-created_on"}, "pagelen": {"50"}}
	if len(terms) > 0 {
		q.Set("q", strings.Join(terms, " AND "))
	}
	var page struct {
		Values []bitbucketPullRequest `json:"values"`
	}
	if err := b.do(ctx, http.MethodGet, b.path(), q, nil, &page); err != nil {
		return nil, err
	}
	var out []PullRequest
	for i := range page.Values {
		out = append(out, page.Values[i].convert())
	}
	return out, nil
}

func (p *bitbucketPullRequest) convert() PullRequest {
	state := map[string]State{"OPEN": Open, "MERGED": Merged}[p.State]
	if state == "" {
		state = Closed
	}
	return PullRequest{
		Number: p.ID, URL: shownURL(p.Links.HTML.Href), State: state, Branch: p.Source.Branch.Name, Base: p.Destination.Branch.Name,
		Commit: fullID(p.Source.Commit.Hash), Title: p.Title, Body: p.Description, Fork: p.Source.Repository.FullName != p.Destination.Repository.FullName,
	}
}

// fullID returns s if it is a full commit id, and "" otherwise: Bitbucket returns only the first digits.
func fullID(s string) string {
	if len(s) != 40 {
		return ""
	}
	return s
}

// term is a condition of Bitbucket's query language.
func term(field, value string) string {
	return field + ` = "` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(value) + `"`
}

func (b *bitbucket) ByHead(ctx context.Context, branch, base string) ([]PullRequest, error) {
	terms := []string{term("source.branch.name", branch)}
	if base != "" {
		terms = append(terms, term("destination.branch.name", base))
	}
	return b.list(ctx, terms, "OPEN", "MERGED", "DECLINED", "SUPERSEDED")
}

func (b *bitbucket) Open(ctx context.Context, base string) ([]PullRequest, error) {
	var terms []string
	if base != "" {
		terms = append(terms, term("destination.branch.name", base))
	}
	return b.list(ctx, terms, "OPEN")
}

type bitbucketBranch struct {
	Branch struct {
		Name string `json:"name"`
	} `json:"branch"`
}

func branchNamed(name string) (b bitbucketBranch) {
	b.Branch.Name = name
	return b
}

func (b *bitbucket) Create(ctx context.Context, d Draft) (PullRequest, error) {
	// Bitbucket does not refuse a second pull request from the same branch: it changes the first one instead. So look for an
	// open one first.
	open, err := b.ByHead(ctx, d.Branch, d.Base)
	if err != nil {
		return PullRequest{}, err
	}
	for _, pr := range open {
		if pr.State == Open {
			return PullRequest{}, ErrExists
		}
	}
	var made bitbucketPullRequest
	err = b.do(ctx, http.MethodPost, b.path(), nil, map[string]any{
		"title": d.Title, "description": d.Body, "source": branchNamed(d.Branch), "destination": branchNamed(d.Base),
	}, &made)
	if err != nil {
		return PullRequest{}, err
	}
	out := made.convert()
	if len(d.Labels) > 0 {
		out.Notes = []string{"Bitbucket has no labels"}
	}
	return out, nil
}

func (b *bitbucket) Update(ctx context.Context, number int64, title, body string) error {
	return b.do(ctx, http.MethodPut, b.path(fmt.Sprint(number)), nil, map[string]string{"title": title, "description": body}, nil)
}

func (b *bitbucket) Close(ctx context.Context, number int64, comment string) error {
	if comment != "" {
		in := map[string]any{"content": map[string]string{"raw": comment}}
		if err := b.do(ctx, http.MethodPost, b.path(fmt.Sprint(number), "comments"), nil, in, nil); err != nil {
			return err
		}
	}
	var now bitbucketPullRequest
	if err := b.do(ctx, http.MethodGet, b.path(fmt.Sprint(number)), nil, nil, &now); err != nil || now.State != "OPEN" {
		return err
	}
	return b.do(ctx, http.MethodPost, b.path(fmt.Sprint(number), "decline"), nil, nil, nil)
}
