package simulator

import (
	"encoding/json"
	"io/fs"
	"net/http"
	"path"
	"strings"

	"stoker.io/stoker/test/gateway/simulator/datadir"
	"stoker.io/stoker/test/gateway/simulator/ordered"
)

// getOverview answers with the data of the start page.
func (g *Gateway) getOverview(w http.ResponseWriter, _ *http.Request) {
	g.mu.Lock()
	sessions := len(g.designers)
	g.mu.Unlock()
	writeJSON(w, http.StatusOK, ordered.Object{
		{"name", g.opts.Name}, {"version", g.opts.Version}, {"designerSessions", sessions},
		{"projects", len(g.loadedProjects())},
	})
}

// getOpenAPI answers with the document of the interface, which also needs a token.
func (g *Gateway) getOpenAPI(w http.ResponseWriter, _ *http.Request) {
	paths := ordered.Object{}
	for pattern := range g.apiRoutes() {
		method, p, _ := strings.Cut(pattern, " ")
		p = strings.TrimSpace(p)
		verbs, _ := paths.Get(p)
		known, _ := verbs.(ordered.Object)
		paths = paths.With(p, known.With(strings.ToLower(method), ordered.Object{{"responses", ordered.Object{}}}))
	}
	writeJSON(w, http.StatusOK, ordered.Object{
		{"openapi", "3.0.1"}, {"info", ordered.Object{{"title", "Ignition Gateway"}, {"version", g.opts.Version}}}, {"paths", paths},
	})
}

// getTags exports the tags of a provider from its files.
func (g *Gateway) getTags(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	provider := q.Get("provider")
	if provider == "" || strings.ContainsAny(provider, `/\`) || q.Get("type") != "" && q.Get("type") != "json" {
		htmlError(w, http.StatusBadRequest, "Bad Request")
		return
	}
	tags := ordered.Array{}
	for _, collection := range g.loadedConfig() {
		for _, kind := range []string{"tag-definition", "tag-type-definition"} {
			if kind == "tag-type-definition" && q.Get("includeUdts") != "true" {
				continue
			}
			tags = append(tags, g.tagsBelow(path.Join(collection.Tree.Dir, "ignition", kind, provider, path.Clean("/"+q.Get("path"))))...)
		}
	}
	writeJSON(w, http.StatusOK, ordered.Object{{"name", provider}, {"tagType", "Provider"}, {"tags", tags}})
}

func (g *Gateway) tagsBelow(dir string) ordered.Array {
	var tags ordered.Array
	_ = fs.WalkDir(g.root.FS(), dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || d.Name() != "tags.json" && d.Name() != "udts.json" {
			return nil //nolint:nilerr // a folder that is not there has no tags
		}
		raw, err := datadir.Read(g.root, name)
		if err != nil {
			return nil //nolint:nilerr // gone meanwhile
		}
		if v, err := ordered.Parse(raw); err == nil {
			list, _ := v.(ordered.Array)
			tags = append(tags, list...)
		}
		return nil
	})
	return tags
}

// The routes of the project-scan module. Before 8.3 they need no token.

func (g *Gateway) moduleRoute(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		switch {
		case !g.opts.ScanModule:
			g.noRoute(w, r)
		case g.before83():
			next(w, r)
		default:
			if _, refused := g.authorizeFor(r, false); refused != nil {
				htmlError(w, refused.status, refused.message)
				return
			}
			next(w, r)
		}
	}
}

func (g *Gateway) getModuleSupport(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, ordered.Object{{"supported", true}})
}

func (g *Gateway) postModuleScan(w http.ResponseWriter, r *http.Request) {
	err := g.Scan(kindProjects)
	notify := r.URL.Query().Get("updateDesigners") == "true"
	if notify {
		g.mu.Lock()
		for _, s := range g.designers {
			s.notifications++
		}
		g.mu.Unlock()
	}
	writeJSON(w, http.StatusOK, ordered.Object{{"gatewayProjectScanSuccess", err == nil}, {"sentDesignerUpdateNotification", notify}})
}

// SetPendingRestarts sets the changes that take effect only after a restart. A restart clears the list.
func (g *Gateway) SetPendingRestarts(tasks ...string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.restartTasks = tasks
}

func (g *Gateway) getPending(w http.ResponseWriter, _ *http.Request) {
	g.mu.Lock()
	tasks := ordered.Array{}
	for _, t := range g.restartTasks {
		tasks = append(tasks, t)
	}
	g.mu.Unlock()
	writeJSON(w, http.StatusOK, ordered.Object{{"pending", tasks}})
}

// SetTrialExpired ends or resets the trial.
func (g *Gateway) SetTrialExpired(expired bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.trialOver = expired
}

func (g *Gateway) trialExpired() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.trialOver
}

func (g *Gateway) getTrial(w http.ResponseWriter, _ *http.Request) {
	state, left, expired := "AllInDemo", "7200", g.trialExpired()
	if expired {
		state, left = "NoneInDemo", "0"
	}
	writeJSON(w, http.StatusOK, ordered.Object{
		{"licenseMode", "Trial"}, {"trialState", state}, {"trialSecondsLeft", json.Number(left)}, {"expired", expired}, {"emergency", false},
	})
}
