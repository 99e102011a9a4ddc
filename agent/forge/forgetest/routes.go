package forgetest

import (
	"net/http"
	"strings"

	"stoker.io/stoker/agent/forge"
)

func githubRoutes(f *Fake) http.Handler {
	show := func(p *forge.PullRequest) object {
		side := func(branch string) object {
			return object{"label": "plants:" + branch, "ref": branch, "sha": p.Commit, "user": f.template["user"], "repo": object{
				"id": 42, "node_id": "R_42", "name": "site", "full_name": "plants/site", "private": true, "url": p.URL, "html_url": p.URL,
			}}
		}
		o := f.complete(object{
			"number": p.Number, "html_url": p.URL, "state": "open", "title": p.Title, "body": p.Body, "head": side(p.Branch), "base": side(p.Base),
		})
		if p.State != forge.Open {
			o["state"] = "closed"
		}
		if p.State == forge.Merged {
			o["merged_at"] = created
		}
		return o
	}
	m := http.NewServeMux()
	m.HandleFunc("GET /api/v3/repos/plants/site/pulls", func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		reply(w, http.StatusOK, convertAll(f.filter(strings.TrimPrefix(q.Get("head"), "plants:"), q.Get("base"), q.Get("state") != "all"), show))
	})
	m.HandleFunc("POST /api/v3/repos/plants/site/pulls", func(w http.ResponseWriter, r *http.Request) {
		var in struct{ Title, Head, Base, Body string }
		read(r, &in)
		p, ok := f.create(in.Head, in.Base, in.Title, in.Body)
		if !ok {
			reply(w, http.StatusUnprocessableEntity, object{"message": "Validation Failed", "documentation_url": "https://forge.example.com/docs", "errors": []object{
				{"resource": "PullRequest", "code": "custom", "message": "A pull request already exists for plants:x."},
			}})
			return
		}
		reply(w, http.StatusCreated, show(p))
	})
	m.HandleFunc("GET /api/v3/repos/plants/site/pulls/{n}", func(w http.ResponseWriter, r *http.Request) { reply(w, http.StatusOK, show(f.pullRequest(r))) })
	m.HandleFunc("PATCH /api/v3/repos/plants/site/pulls/{n}", func(w http.ResponseWriter, r *http.Request) {
		var in struct{ Title, Body, State *string }
		read(r, &in)
		edit(f.pullRequest(r), in.Title, in.Body, in.State != nil && *in.State == "closed")
		reply(w, http.StatusOK, show(f.pullRequest(r)))
	})
	m.HandleFunc("POST /api/v3/repos/plants/site/issues/{n}/labels", func(w http.ResponseWriter, r *http.Request) {
		var in struct{ Labels []string }
		read(r, &in)
		var labels []object
		for _, l := range in.Labels { // GitHub creates unknown labels
			labels = append(labels, object{"id": 1, "node_id": "LA_1", "url": "https://forge.example.com/l", "name": l, "description": nil, "color": "ededed", "default": false})
		}
		reply(w, http.StatusOK, labels)
	})
	m.HandleFunc("POST /api/v3/repos/plants/site/statuses/{commit}", func(w http.ResponseWriter, r *http.Request) {
		var in struct {
			State, Context, Description string
			URL                         string `json:"target_url"`
		}
		read(r, &in)
		f.setStatus(r, in.State, in.Context, in.Description, in.URL, "pending", "success", "failure")
		reply(w, http.StatusCreated, object{
			"url": "https://forge.example.com/s", "avatar_url": nil, "id": 1, "node_id": "S_1", "state": in.State, "description": in.Description, "target_url": in.URL,
			"context": in.Context, "created_at": created, "updated_at": created, "creator": f.template["user"],
		})
	})
	m.HandleFunc("POST /api/v3/repos/plants/site/issues/{n}/comments", func(w http.ResponseWriter, r *http.Request) {
		p := f.pullRequest(r)
		reply(w, http.StatusCreated, object{
			"id": 1, "node_id": "IC_1", "url": p.URL, "html_url": p.URL, "issue_url": p.URL, "body": "", "user": f.template["user"],
			"created_at": created, "updated_at": created, "author_association": "MEMBER",
		})
	})
	return m
}

// edit changes a pull request. nil means no change.
func edit(p *forge.PullRequest, title, body *string, closes bool) {
	if title != nil {
		p.Title = *title
	}
	if body != nil {
		p.Body = *body
	}
	if closes && p.State == forge.Open {
		p.State = forge.Closed
	}
}

func gitlabRoutes(f *Fake) http.Handler {
	show := func(p *forge.PullRequest) object {
		return f.complete(object{
			"iid": p.Number, "web_url": p.URL, "state": map[forge.State]string{forge.Open: "opened", forge.Merged: "merged", forge.Closed: "closed"}[p.State],
			"title": p.Title, "description": p.Body, "source_branch": p.Branch, "target_branch": p.Base, "sha": p.Commit,
		})
	}
	const base = "/api/v4/projects/plants%2Fsite/merge_requests"
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if commit, ok := strings.CutPrefix(r.URL.EscapedPath(), "/api/v4/projects/plants%2Fsite/statuses/"); ok && r.Method == http.MethodPost {
			r.SetPathValue("commit", commit)
			var in struct {
				State, Name, Description string
				URL                      string `json:"target_url"`
			}
			read(r, &in)
			if !f.setStatus(r, in.State, in.Name, in.Description, in.URL, "pending", "success", "failed") {
				reply(w, http.StatusBadRequest, object{"message": `Cannot transition status via :enqueue from :pending (Reason(s): Status cannot transition via "enqueue")`})
				return
			}
			reply(w, http.StatusCreated, object{
				"id": 1, "sha": commit, "ref": "main", "status": in.State, "name": in.Name, "target_url": in.URL, "description": in.Description, "created_at": created, "started_at": nil,
				"finished_at": nil, "allow_failure": false, "coverage": nil, "pipeline_id": 1, "author": f.template["author"],
			})
			return
		}
		rest, ok := strings.CutPrefix(r.URL.EscapedPath(), base)
		if !ok {
			f.replyError(w, http.StatusNotFound, "404 Project Not Found")
			return
		}
		number, notes, _ := strings.Cut(strings.TrimPrefix(rest, "/"), "/")
		r.SetPathValue("n", number)
		switch {
		case rest == "" && r.Method == http.MethodGet:
			q := r.URL.Query()
			reply(w, http.StatusOK, convertAll(f.filter(q.Get("source_branch"), q.Get("target_branch"), q.Get("state") != "all"), show))
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
			reply(w, http.StatusCreated, object{
				"id": 1, "body": "", "author": f.template["author"], "created_at": created, "updated_at": created, "system": false, "noteable_id": 1001, //nolint:misspell // GitLab's word
				"noteable_type": "MergeRequest", "noteable_iid": f.pullRequest(r).Number, //nolint:misspell // GitLab's word
			})
		case r.Method == http.MethodGet:
			reply(w, http.StatusOK, show(f.pullRequest(r)))
		default:
			var in struct {
				Title, Description *string
				Event              string `json:"state_event"`
			}
			read(r, &in)
			edit(f.pullRequest(r), in.Title, in.Description, in.Event == "close")
			reply(w, http.StatusOK, show(f.pullRequest(r)))
		}
	})
}

func bitbucketRoutes(f *Fake) http.Handler {
	show := func(p *forge.PullRequest) object {
		repository := object{"type": "repository", "full_name": "plants/site"}
		return f.complete(object{
			"id": p.Number, "title": p.Title, "description": p.Body, "state": map[forge.State]string{forge.Open: "OPEN", forge.Merged: "MERGED", forge.Closed: "DECLINED"}[p.State],
			"source":      object{"branch": object{"name": p.Branch}, "commit": object{"type": "commit", "hash": p.Commit[:12]}, "repository": repository},
			"destination": object{"branch": object{"name": p.Base}, "repository": repository}, "links": object{"html": object{"href": p.URL}},
		})
	}
	m := http.NewServeMux()
	m.HandleFunc("GET /2.0/repositories/plants/site/pullrequests", func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		value := func(field string) string {
			_, rest, _ := strings.Cut(q.Get("q"), field+` = "`)
			v, _, _ := strings.Cut(rest, `"`)
			return v
		}
		list := f.filter(value("source.branch.name"), value("destination.branch.name"), len(q["state"]) == 1)
		reply(w, http.StatusOK, object{"values": convertAll(list, show)})
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
	m.HandleFunc("GET /2.0/repositories/plants/site/pullrequests/{n}", func(w http.ResponseWriter, r *http.Request) { reply(w, http.StatusOK, show(f.pullRequest(r))) })
	m.HandleFunc("PUT /2.0/repositories/plants/site/pullrequests/{n}", func(w http.ResponseWriter, r *http.Request) {
		var in struct{ Title, Description *string }
		read(r, &in)
		edit(f.pullRequest(r), in.Title, in.Description, false)
		reply(w, http.StatusOK, show(f.pullRequest(r)))
	})
	m.HandleFunc("POST /2.0/repositories/plants/site/pullrequests/{n}/decline", func(w http.ResponseWriter, r *http.Request) {
		edit(f.pullRequest(r), nil, nil, true)
		reply(w, http.StatusOK, show(f.pullRequest(r)))
	})
	m.HandleFunc("POST /2.0/repositories/plants/site/commit/{commit}/statuses/build", func(w http.ResponseWriter, r *http.Request) {
		var in struct{ Key, State, Name, Description, URL string }
		read(r, &in)
		f.setStatus(r, in.State, in.Name, in.Description, in.URL, "INPROGRESS", "SUCCESSFUL", "FAILED")
		reply(w, http.StatusCreated, object{"type": "build", "key": in.Key, "state": in.State, "name": in.Name, "description": in.Description, "url": in.URL, "created_on": created})
	})
	m.HandleFunc("POST /2.0/repositories/plants/site/pullrequests/{n}/comments", func(w http.ResponseWriter, _ *http.Request) {
		reply(w, http.StatusCreated, object{"type": "pullrequest_comment", "id": 1, "created_on": created})
	})
	return m
}

func azureRoutes(f *Fake) http.Handler {
	show := func(p *forge.PullRequest) object {
		return f.complete(object{
			"pullRequestId": p.Number, "status": map[forge.State]string{forge.Open: "active", forge.Merged: "completed", forge.Closed: "abandoned"}[p.State], "title": p.Title, "description": p.Body,
			"sourceRefName": "refs/heads/" + p.Branch, "targetRefName": "refs/heads/" + p.Base, "lastMergeSourceCommit": object{"commitId": p.Commit},
		})
	}
	const base = "/plants/line/_apis/git/repositories/site/pullrequests"
	m := http.NewServeMux()
	m.HandleFunc("GET "+base, func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		short := func(k string) string { return strings.TrimPrefix(q.Get("searchCriteria."+k), "refs/heads/") }
		list := convertAll(f.filter(short("sourceRefName"), short("targetRefName"), short("status") != "all"), func(p *forge.PullRequest) object {
			shorter := *p
			shorter.Body = p.Body[:min(len(p.Body), 400)] // as documented for lists
			return show(&shorter)
		})
		reply(w, http.StatusOK, object{"value": list, "count": len(list)})
	})
	m.HandleFunc("POST "+base, func(w http.ResponseWriter, r *http.Request) {
		var in struct{ SourceRefName, TargetRefName, Title, Description string }
		read(r, &in)
		p, ok := f.create(strings.TrimPrefix(in.SourceRefName, "refs/heads/"), strings.TrimPrefix(in.TargetRefName, "refs/heads/"), in.Title, in.Description)
		if !ok {
			f.replyError(w, http.StatusConflict, "TF401179: An active pull request for the source and target branch already exists.")
			return
		}
		reply(w, http.StatusCreated, show(p))
	})
	m.HandleFunc("GET "+base+"/{n}", func(w http.ResponseWriter, r *http.Request) { reply(w, http.StatusOK, show(f.pullRequest(r))) })
	m.HandleFunc("PATCH "+base+"/{n}", func(w http.ResponseWriter, r *http.Request) {
		var in struct{ Title, Description, Status *string }
		read(r, &in)
		edit(f.pullRequest(r), in.Title, in.Description, in.Status != nil && *in.Status == "abandoned")
		reply(w, http.StatusOK, show(f.pullRequest(r)))
	})
	m.HandleFunc("POST /plants/line/_apis/git/repositories/site/commits/{commit}/statuses", func(w http.ResponseWriter, r *http.Request) {
		var in struct {
			State, Description, TargetURL string
			Context                       struct{ Genre, Name string }
		}
		read(r, &in)
		f.setStatus(r, in.State, in.Context.Genre+"/"+in.Context.Name, in.Description, in.TargetURL, "pending", "succeeded", "failed")
		reply(w, http.StatusCreated, object{"id": 1, "state": in.State, "description": in.Description, "context": object{"genre": in.Context.Genre, "name": in.Context.Name}, "creationDate": created, "targetUrl": in.TargetURL})
	})
	m.HandleFunc("POST "+base+"/{n}/threads", func(w http.ResponseWriter, _ *http.Request) {
		reply(w, http.StatusOK, object{"id": 1, "status": "active", "comments": []object{{"id": 1, "content": "", "commentType": "text"}}})
	})
	return m
}
