package simulator

import (
	"net/http"
	"slices"
	"strconv"
	"strings"

	"stoker.io/stoker/test/gateway/simulator/ordered"
)

// routes returns the routes below /data, most of which need a token.
func (g *Gateway) routes() http.Handler {
	mux := http.NewServeMux()
	for pattern, handle := range g.apiRoutes() {
		mux.HandleFunc(strings.Replace(pattern, "  ", " ", 1), g.auth.requireToken(handle))
	}
	module := scanModule{opts: g.opts, auth: g.auth, scans: g.Scans, designers: g.Designers}
	mux.HandleFunc("GET /data/project-scan-endpoint/confirm-support", module.guard(module.getSupport))
	mux.HandleFunc("POST /data/project-scan-endpoint/scan", module.guard(module.post))
	mux.HandleFunc("/", noRoute)
	return mux
}

func (g *Gateway) apiRoutes() map[string]http.HandlerFunc {
	loaded := listings{opts: g.opts, data: g.Data}
	return map[string]http.HandlerFunc{
		"GET  /data/api/v1/scan/{kind}":                              g.Scans.get,
		"POST /data/api/v1/scan/{kind}":                              g.Scans.post,
		"GET  /data/api/v1/scan-lock/{kind}":                         g.Locks.get,
		"POST /data/api/v1/scan-lock/{kind}":                         g.Locks.post,
		"GET  /data/api/v1/gateway-info":                             g.info.getInfo,
		"GET  /data/api/v1/redundancy":                               g.info.getRedundancy,
		"GET  /data/api/v1/designers":                                g.Designers.list,
		"GET  /data/api/v1/designer/{id}":                            g.Designers.get,
		"DELETE /data/api/v1/designer/{id}":                          g.Designers.delete,
		"GET  /data/api/v1/projects/list":                            loaded.getProjects,
		"GET  /data/api/v1/projects/names":                           loaded.getProjectNames,
		"GET  /data/api/v1/projects/find/{name}":                     loaded.getProject,
		"GET  /data/api/v1/resources/names/{module}/{type}":          loaded.getResources,
		"GET  /data/api/v1/resources/list/{module}/{type}":           loaded.getResources,
		"GET  /data/api/v1/resources/find/{module}/{type}/{name...}": loaded.getResource,
		"GET  /data/api/v1/resources/singleton/{module}/{type}":      loaded.getResource,
		"GET  /data/api/v1/logs":                                     g.Logs.get,
		"GET  /data/api/v1/restart-tasks/pending":                    g.Restarts.getPending,
		"POST /data/api/v1/restart-tasks/restart":                    g.Restarts.post,
		"GET  /data/api/v1/mode":                                     loaded.getModes,
		"GET  /data/api/v1/trial":                                    g.Trial.get,
		"GET  /data/api/v1/modules/healthy":                          g.info.getModules,
		"GET  /data/api/v1/overview":                                 g.info.getOverview,
		"GET  /data/api/v1/tags/export":                              loaded.getTags,
		"GET  /data/api/v1/backup":                                   loaded.getBackup,
		"GET  /openapi.json":                                         g.getOpenAPI,
	}
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

// writeList answers a page of a list: limit (default 100), offset, search by name.
func writeList(w http.ResponseWriter, r *http.Request, all []ordered.Value) {
	q := r.URL.Query()
	number := func(key string, def int) int {
		if n, err := strconv.Atoi(q.Get(key)); err == nil && n >= 0 {
			return n
		}
		return def
	}
	limit, offset := number("limit", 100), number("offset", 0)
	matching := slices.DeleteFunc(slices.Clone(all), func(v ordered.Value) bool {
		name, _ := ordered.Dig(v, "name").(string)
		return !strings.Contains(name, q.Get("search"))
	})
	page := ordered.Array{}
	if offset < len(matching) {
		page = matching[offset:min(len(matching), offset+min(limit, len(matching)))]
	}
	writeJSON(w, http.StatusOK, ordered.Object{
		{"items", page},
		{"metadata", ordered.Object{{"total", len(all)}, {"matching", len(matching)}, {"limit", limit}, {"offset", offset}}},
	})
}
