package forge

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
)

const goodToken = "t0ken-0f-tests"

// fake is a small forge: pull requests in memory, in the JSON of one provider. The field names are those of the published APIs.
type fake struct {
	*httptest.Server
	mu       sync.Mutex
	list     []PullRequest
	labels   map[int64][]string
	requests []string
	answer   func(w http.ResponseWriter, r *http.Request) bool // replaces the next answers if it returns true
}

func newFake(t testing.TB, routes func(f *fake) http.Handler, accepts func(r *http.Request) bool) *fake {
	f := &fake{labels: map[int64][]string{}}
	handler := routes(f)
	f.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.requests = append(f.requests, r.Method+" "+r.URL.Path)
		if f.answer != nil && f.answer(w, r) {
			return
		}
		if !accepts(r) {
			reply(w, http.StatusUnauthorized, map[string]string{"message": "Bad credentials"})
			return
		}
		handler.ServeHTTP(w, r)
	}))
	t.Cleanup(f.Close)
	return f
}

func bearer(r *http.Request) bool { return r.Header.Get("Authorization") == "Bearer "+goodToken }

func basic(r *http.Request) bool {
	return r.Header.Get("Authorization") == "Basic "+base64.StdEncoding.EncodeToString([]byte(":"+goodToken))
}

func reply(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	w.Header().Set("Etag", fmt.Sprintf(`"%x"`, len(b)))
	w.WriteHeader(code)
	_, _ = w.Write(b)
}

func read(r *http.Request, v any) {
	if err := json.NewDecoder(r.Body).Decode(v); err != nil {
		panic(err)
	}
}

// create adds a pull request; ok is false if one of the branch is open.
func (f *fake) create(branch, base, title, body string) (*PullRequest, bool) {
	if slices.ContainsFunc(f.list, func(p PullRequest) bool { return p.Branch == branch && p.Base == base && p.State == Open }) {
		return nil, false
	}
	n := int64(len(f.list) + 1)
	f.list = append(f.list, PullRequest{
		Number: n, State: Open, Branch: branch, Base: base, Title: title, Body: body, Commit: strings.Repeat("ab", 20), URL: fmt.Sprintf("https://forge.example.com/pr/%d", n),
	})
	return &f.list[n-1], true
}

// filtered returns the pull requests that match, newest first; "" matches all.
func (f *fake) filtered(branch, base string, keep func(State) bool) []*PullRequest {
	var out []*PullRequest
	for i := range slices.Backward(f.list) {
		p := &f.list[i]
		if (branch == "" || p.Branch == branch) && (base == "" || p.Base == base) && keep(p.State) {
			out = append(out, p)
		}
	}
	return out
}

func (f *fake) at(r *http.Request) *PullRequest {
	var n int
	_, _ = fmt.Sscan(r.PathValue("n"), &n)
	return &f.list[n-1]
}

func all[T any](list []*PullRequest, convert func(*PullRequest) T) []T {
	out := make([]T, 0, len(list))
	for _, p := range list {
		out = append(out, convert(p))
	}
	return out
}

type object = map[string]any

func githubRoutes(f *fake) http.Handler {
	show := func(p *PullRequest) object {
		o := object{
			"number": p.Number, "html_url": p.URL, "state": "open", "title": p.Title, "body": p.Body, "merged_at": nil,
			"head": object{"ref": p.Branch, "sha": p.Commit, "repo": object{"full_name": "plants/site"}}, "base": object{"ref": p.Base},
		}
		if p.State != Open {
			o["state"] = "closed"
		}
		if p.State == Merged {
			o["merged_at"] = "2026-01-02T03:04:05Z"
		}
		return o
	}
	m := http.NewServeMux()
	m.HandleFunc("GET /api/v3/repos/plants/site/pulls", func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		state := q.Get("state")
		reply(w, http.StatusOK, all(f.filtered(strings.TrimPrefix(q.Get("head"), "plants:"), q.Get("base"), func(s State) bool { return state == "all" || s == Open }), show))
	})
	m.HandleFunc("POST /api/v3/repos/plants/site/pulls", func(w http.ResponseWriter, r *http.Request) {
		var in struct{ Title, Head, Base, Body string }
		read(r, &in)
		p, ok := f.create(in.Head, in.Base, in.Title, in.Body)
		if !ok {
			reply(w, http.StatusUnprocessableEntity, object{"message": "Validation Failed", "errors": []object{{"message": "A pull request already exists for plants:x."}}})
			return
		}
		reply(w, http.StatusCreated, show(p))
	})
	m.HandleFunc("GET /api/v3/repos/plants/site/pulls/{n}", func(w http.ResponseWriter, r *http.Request) { reply(w, http.StatusOK, show(f.at(r))) })
	m.HandleFunc("PATCH /api/v3/repos/plants/site/pulls/{n}", func(w http.ResponseWriter, r *http.Request) {
		var in struct{ Title, Body, State *string }
		read(r, &in)
		edit(f.at(r), in.Title, in.Body, in.State != nil && *in.State == "closed")
		reply(w, http.StatusOK, show(f.at(r)))
	})
	m.HandleFunc("POST /api/v3/repos/plants/site/issues/{n}/labels", func(w http.ResponseWriter, r *http.Request) {
		var in any
		read(r, &in)
		reply(w, http.StatusOK, []object{})
	})
	m.HandleFunc("POST /api/v3/repos/plants/site/issues/{n}/comments", func(w http.ResponseWriter, _ *http.Request) { reply(w, http.StatusCreated, object{}) })
	return m
}

func edit(p *PullRequest, title, body *string, closes bool) {
	if title != nil {
		p.Title = *title
	}
	if body != nil {
		p.Body = *body
	}
	if closes && p.State == Open {
		p.State = Closed
	}
}

func gitlabRoutes(f *fake) http.Handler {
	show := func(p *PullRequest) object {
		return object{
			"id": 1000 + p.Number, "iid": p.Number, "web_url": p.URL, "state": map[State]string{Open: "opened", Merged: "merged", Closed: "closed"}[p.State],
			"title": p.Title, "description": p.Body, "source_branch": p.Branch, "target_branch": p.Base, "sha": p.Commit, "source_project_id": 7, "target_project_id": 7,
		}
	}
	const base = "/api/v4/projects/plants%2Fsite/merge_requests"
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rest, ok := strings.CutPrefix(r.URL.EscapedPath(), base)
		if !ok {
			reply(w, http.StatusNotFound, object{"message": "404 Project Not Found"})
			return
		}
		number, notes, _ := strings.Cut(strings.TrimPrefix(rest, "/"), "/")
		r.SetPathValue("n", number)
		switch {
		case rest == "" && r.Method == http.MethodGet:
			q := r.URL.Query()
			reply(w, http.StatusOK, all(f.filtered(q.Get("source_branch"), q.Get("target_branch"), func(s State) bool { return q.Get("state") == "all" || s == Open }), show))
		case rest == "" && r.Method == http.MethodPost:
			var in struct {
				Title, Description, Labels string
				Source                     string `json:"source_branch"`
				Target                     string `json:"target_branch"`
			}
			read(r, &in)
			p, ok := f.create(in.Source, in.Target, in.Title, in.Description)
			if !ok {
				reply(w, http.StatusConflict, object{"message": []string{"Another open merge request already exists for this source branch: !1"}})
				return
			}
			reply(w, http.StatusCreated, show(p))
		case notes == "notes":
			reply(w, http.StatusCreated, object{"id": 1})
		case r.Method == http.MethodGet:
			reply(w, http.StatusOK, show(f.at(r)))
		default:
			var in struct {
				Title, Description *string
				Event              string `json:"state_event"`
			}
			read(r, &in)
			edit(f.at(r), in.Title, in.Description, in.Event == "close")
			reply(w, http.StatusOK, show(f.at(r)))
		}
	})
}

func bitbucketRoutes(f *fake) http.Handler {
	show := func(p *PullRequest) object {
		repository := object{"full_name": "plants/site"}
		return object{
			"id": p.Number, "title": p.Title, "description": p.Body, "state": map[State]string{Open: "OPEN", Merged: "MERGED", Closed: "DECLINED"}[p.State],
			"source":      object{"branch": object{"name": p.Branch}, "commit": object{"hash": p.Commit[:12]}, "repository": repository},
			"destination": object{"branch": object{"name": p.Base}, "repository": repository}, "links": object{"html": object{"href": p.URL}},
		}
	}
	m := http.NewServeMux()
	m.HandleFunc("GET /2.0/repositories/plants/site/pullrequests", func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		value := func(field string) string {
			_, rest, _ := strings.Cut(q.Get("q"), field+` = "`)
			v, _, _ := strings.Cut(rest, `"`)
			return v
		}
		states := q["state"]
		list := f.filtered(value("source.branch.name"), value("destination.branch.name"), func(s State) bool { return s == Open || len(states) > 1 })
		reply(w, http.StatusOK, object{"values": all(list, show)})
	})
	m.HandleFunc("POST /2.0/repositories/plants/site/pullrequests", func(w http.ResponseWriter, r *http.Request) {
		var in struct {
			Title, Description  string
			Source, Destination struct{ Branch struct{ Name string } }
		}
		read(r, &in)
		p, _ := f.create(in.Source.Branch.Name, in.Destination.Branch.Name, in.Title, in.Description)
		reply(w, http.StatusCreated, show(p))
	})
	m.HandleFunc("GET /2.0/repositories/plants/site/pullrequests/{n}", func(w http.ResponseWriter, r *http.Request) { reply(w, http.StatusOK, show(f.at(r))) })
	m.HandleFunc("PUT /2.0/repositories/plants/site/pullrequests/{n}", func(w http.ResponseWriter, r *http.Request) {
		var in struct{ Title, Description *string }
		read(r, &in)
		edit(f.at(r), in.Title, in.Description, false)
		reply(w, http.StatusOK, show(f.at(r)))
	})
	m.HandleFunc("POST /2.0/repositories/plants/site/pullrequests/{n}/decline", func(w http.ResponseWriter, r *http.Request) {
		edit(f.at(r), nil, nil, true)
		reply(w, http.StatusOK, show(f.at(r)))
	})
	m.HandleFunc("POST /2.0/repositories/plants/site/pullrequests/{n}/comments", func(w http.ResponseWriter, _ *http.Request) { reply(w, http.StatusCreated, object{}) })
	return m
}

func azureRoutes(f *fake) http.Handler {
	show := func(p *PullRequest) object {
		return object{
			"pullRequestId": p.Number, "status": map[State]string{Open: "active", Merged: "completed", Closed: "abandoned"}[p.State], "title": p.Title, "description": p.Body,
			"sourceRefName": "refs/heads/" + p.Branch, "targetRefName": "refs/heads/" + p.Base, "lastMergeSourceCommit": object{"commitId": p.Commit},
		}
	}
	const base = "/plants/line/_apis/git/repositories/site/pullrequests"
	m := http.NewServeMux()
	m.HandleFunc("GET "+base, func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		short := func(k string) string { return strings.TrimPrefix(q.Get("searchCriteria."+k), "refs/heads/") }
		reply(w, http.StatusOK, object{"value": all(f.filtered(short("sourceRefName"), short("targetRefName"), func(s State) bool { return s == Open || short("status") == "all" }), show)})
	})
	m.HandleFunc("POST "+base, func(w http.ResponseWriter, r *http.Request) {
		var in struct{ SourceRefName, TargetRefName, Title, Description string }
		read(r, &in)
		p, ok := f.create(strings.TrimPrefix(in.SourceRefName, "refs/heads/"), strings.TrimPrefix(in.TargetRefName, "refs/heads/"), in.Title, in.Description)
		if !ok {
			reply(w, http.StatusConflict, object{"message": "TF401179: An active pull request for the source and target branch already exists."})
			return
		}
		reply(w, http.StatusCreated, show(p))
	})
	m.HandleFunc("GET "+base+"/{n}", func(w http.ResponseWriter, r *http.Request) { reply(w, http.StatusOK, show(f.at(r))) })
	m.HandleFunc("PATCH "+base+"/{n}", func(w http.ResponseWriter, r *http.Request) {
		var in struct{ Title, Description, Status *string }
		read(r, &in)
		edit(f.at(r), in.Title, in.Description, in.Status != nil && *in.Status == "abandoned")
		reply(w, http.StatusOK, show(f.at(r)))
	})
	m.HandleFunc("POST "+base+"/{n}/threads", func(w http.ResponseWriter, _ *http.Request) { reply(w, http.StatusOK, object{}) })
	return m
}
