package simulator

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"stoker.io/stoker/test/gateway/simulator/ordered"
)

// routes returns the routes below /data, most of which need a token.
func (g *Gateway) routes() http.Handler {
	mux := http.NewServeMux()
	for pattern, handle := range g.apiRoutes() {
		mux.HandleFunc(strings.Replace(pattern, "  ", " ", 1), g.requireToken(handle))
	}
	mux.HandleFunc("GET /data/project-scan-endpoint/confirm-support", g.moduleRoute(g.getModuleSupport))
	mux.HandleFunc("POST /data/project-scan-endpoint/scan", g.moduleRoute(g.postModuleScan))
	mux.HandleFunc("/", g.noRoute)
	return mux
}

func (g *Gateway) apiRoutes() map[string]http.HandlerFunc {
	return map[string]http.HandlerFunc{
		"GET  /data/api/v1/scan/{kind}":                              g.getScan,
		"POST /data/api/v1/scan/{kind}":                              g.postScanRoute,
		"GET  /data/api/v1/scan-lock/{kind}":                         g.getLock,
		"POST /data/api/v1/scan-lock/{kind}":                         g.postLock,
		"GET  /data/api/v1/gateway-info":                             g.getInfo,
		"GET  /data/api/v1/redundancy":                               g.getRedundancy,
		"GET  /data/api/v1/designers":                                g.getDesigners,
		"GET  /data/api/v1/designer/{id}":                            g.getDesigner,
		"DELETE /data/api/v1/designer/{id}":                          g.deleteDesigner,
		"GET  /data/api/v1/projects/list":                            g.getProjects,
		"GET  /data/api/v1/projects/names":                           g.getProjectNames,
		"GET  /data/api/v1/projects/find/{name}":                     g.getProject,
		"GET  /data/api/v1/resources/names/{module}/{type}":          g.getResources,
		"GET  /data/api/v1/resources/list/{module}/{type}":           g.getResources,
		"GET  /data/api/v1/resources/find/{module}/{type}/{name...}": g.getResource,
		"GET  /data/api/v1/resources/singleton/{module}/{type}":      g.getResource,
		"GET  /data/api/v1/logs":                                     g.getLogs,
		"GET  /data/api/v1/restart-tasks/pending":                    g.getPending,
		"POST /data/api/v1/restart-tasks/restart":                    g.postRestart,
		"GET  /data/api/v1/mode":                                     g.getModes,
		"GET  /data/api/v1/trial":                                    g.getTrial,
		"GET  /data/api/v1/modules/healthy":                          g.getModules,
		"GET  /data/api/v1/overview":                                 g.getOverview,
		"GET  /data/api/v1/tags/export":                              g.getTags,
		"GET  /data/api/v1/backup":                                   g.getBackup,
		"GET  /openapi.json":                                         g.getOpenAPI,
	}
}

// checkStrict reports whether a request of a scan route has no parameter and no body, or Options.Strict is not set.
// Otherwise it has answered 400.
func (g *Gateway) checkStrict(w http.ResponseWriter, r *http.Request) bool {
	if !g.opts.Strict {
		return true
	}
	var what string
	if r.URL.RawQuery != "" {
		what = fmt.Sprintf("%s %s has the parameters %q: the route takes none", r.Method, r.URL.Path, r.URL.RawQuery)
	} else if n, _ := r.Body.Read(make([]byte, 1)); n > 0 {
		what = fmt.Sprintf("%s %s has a body: the route takes none", r.Method, r.URL.Path)
	}
	if what == "" {
		return true
	}
	g.requests.addViolation(what)
	htmlError(w, http.StatusBadRequest, "Bad Request")
	return false
}

func (g *Gateway) getScan(w http.ResponseWriter, r *http.Request) {
	if kind := r.PathValue("kind"); g.scanState(kind) == nil {
		g.noRoute(w, r)
	} else if g.checkStrict(w, r) {
		scanAnswer(w, g.scanStatus(kind))
	}
}

func (g *Gateway) postScanRoute(w http.ResponseWriter, r *http.Request) {
	kind := r.PathValue("kind")
	switch {
	case g.scanState(kind) == nil:
		g.noRoute(w, r)
	case !g.checkStrict(w, r):
	case !g.membership().access && g.opts.Unknowns.NoScanOnBackup, g.trialExpired() && g.opts.Unknowns.TrialStopsScans:
		htmlError(w, http.StatusForbidden, "Forbidden")
	default:
		_, _ = io.Copy(io.Discard, http.MaxBytesReader(w, r.Body, 1<<20))
		scanAnswer(w, g.postScan(kind))
	}
}

// scanAnswer answers a scan request. answer is nil if the gateway stopped after serve had found it running.
func scanAnswer(w http.ResponseWriter, answer ordered.Value) {
	if answer == nil {
		htmlError(w, http.StatusServiceUnavailable, "Service Unavailable")
		return
	}
	writeJSON(w, http.StatusOK, answer)
}

func (g *Gateway) getInfo(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, ordered.Object{
		{"name", g.name()}, {"redundancyRole", g.opts.Role}, {"edition", "standard"},
		{"ignitionVersion", g.opts.Version + " (b2026042713)"}, {"deploymentMode", g.opts.Mode},
		{"timeZone", "Coordinated Universal Time"}, {"timeZoneId", "UTC"}, {"allowUnsignedModules", false},
		{"license", ordered.Object{{"mode", "Trial"}}},
	})
}

// name returns the systemName of the configuration, unless the gateway was started with a fixed name [LIVE 8.3.8:
// systemName takes effect after a scan].
func (g *Gateway) name() string {
	if r, _, _ := g.loadedConfig().Effective("ignition/system-properties"); r != nil && !g.opts.FixedName {
		if name, ok := ordered.Dig(r.Config, "systemName").(string); ok && name != "" {
			return name
		}
	}
	return g.opts.Name
}

func (g *Gateway) getRedundancy(w http.ResponseWriter, _ *http.Request) {
	m, activity := g.membership(), "Active"
	if !m.active {
		activity = "Warm"
	}
	writeJSON(w, http.StatusOK, ordered.Object{
		{"role", g.opts.Role}, {"projectState", "Good"}, {"activityLevel", activity}, {"localId", g.opts.Name},
		{"peerConnected", m.peer}, {"peerId", g.opts.Name + "-peer"}, {"hasConfigAccess", m.access},
		{"syncPending", m.pair != nil && m.pair.isPaused()},
		{"failoverPending", false}, {"uptime", json.Number("1000")}, {"lastSyncTimestamp", json.Number("0")},
	})
}

func (g *Gateway) getLogs(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	start, _ := strconv.ParseInt(q.Get("startTime"), 10, 64)
	limit, err := strconv.Atoi(q.Get("limit"))
	if err != nil || limit < 0 {
		limit = 100
	}
	lines := g.logs.since(time.UnixMilli(start), parseLevel(q.Get("minLevel")), q.Get("logger"), limit)
	items := make(ordered.Array, 0, len(lines))
	for _, l := range lines {
		items = append(items, ordered.Object{
			{"timestamp", g.moment(l.at)}, {"loggerName", l.logger}, {"level", l.level.String()}, {"message", l.message},
		})
	}
	writeJSON(w, http.StatusOK, ordered.Object{{"items", items}})
}

func (g *Gateway) postRestart(w http.ResponseWriter, r *http.Request) {
	if r.URL.Query().Get("confirm") != "true" {
		htmlError(w, http.StatusBadRequest, "Bad Request")
		return
	}
	writeJSON(w, http.StatusOK, ordered.Object{{"restarting", true}})
	g.spawn(func() {
		if err := g.Restart(g.opts.StartupDelay); err != nil {
			g.log.Error("the simulated gateway could not restart", "error", err)
		}
	})
}

func (g *Gateway) getModes(w http.ResponseWriter, r *http.Request) {
	items := []ordered.Value{}
	for _, c := range g.loadedConfig() {
		if c.Declared {
			items = append(items, ordered.Object{
				{"name", c.Name}, {"title", c.Title}, {"description", c.Description},
				{"resourceCount", len(c.Tree.Resources)},
			})
		}
	}
	writeList(w, r, items)
}

func (g *Gateway) getModules(w http.ResponseWriter, r *http.Request) {
	ids := []string{"com.inductiveautomation.perspective", "com.inductiveautomation.opcua"}
	items := make([]ordered.Value, 0, len(ids))
	for _, id := range ids {
		items = append(items, ordered.Object{{"id", id}, {"name", id}, {"state", "ACTIVE"}})
	}
	writeList(w, r, items)
}

// moment returns a time as the interface reports it.
func (g *Gateway) moment(t time.Time) ordered.Value {
	if g.opts.Unknowns.TimesAsText && !t.IsZero() {
		return t.UTC().Format(time.RFC3339Nano)
	}
	if t.IsZero() {
		return int64(0)
	}
	return t.UnixMilli()
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
