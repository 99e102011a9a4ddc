package forgetest

import (
	"net/http"
	"strings"

	"stoker.io/stoker/agent/forge"
)

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
