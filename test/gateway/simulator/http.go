package simulator

import (
	"fmt"
	"html"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"stoker.io/stoker/test/gateway/simulator/ordered"
)

// httpHandler returns the handler of the gateway's http and https ports: it logs each request, applies faults and the
// state, and routes.
func (g *Gateway) httpHandler() http.Handler {
	routes := g.routes()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rec := &recorder{ResponseWriter: w}
		name, _, _ := strings.Cut(r.Header.Get("X-Ignition-API-Token"), ":")
		entry := g.Requests.add(Request{
			At: g.clock.now(), Method: r.Method, Path: r.URL.Path, Query: r.URL.RawQuery, Token: name, TLS: r.TLS != nil,
		})
		defer func() { g.Requests.finish(entry, rec.status) }()
		rec.Header().Set("Date", g.clock.now().UTC().Format(http.TimeFormat))
		if !g.applyFault(rec, r) {
			g.serve(rec, r, routes)
		}
	})
}

// serve answers the public routes in every state, and those below /data only in RUNNING.
func (g *Gateway) serve(w http.ResponseWriter, r *http.Request, routes http.Handler) {
	state, _ := g.State()
	switch {
	case r.URL.Path == "/StatusPing":
		writeJSON(w, http.StatusOK, g.info.statusPing(state))
	case r.URL.Path == "/system/gwinfo":
		w.Header().Set("Content-Type", "text/plain;charset=utf-8")
		fmt.Fprint(w, g.info.gwinfo(state))
	case r.URL.Path == "/welcome":
		w.Header().Set("Content-Type", "text/html;charset=utf-8")
		fmt.Fprint(w, "<!DOCTYPE html><html><head><title>Welcome</title></head><body>Commission this gateway.</body></html>")
	case !strings.HasPrefix(r.URL.Path, "/data/") && r.URL.Path != "/openapi.json":
		htmlError(w, http.StatusNotFound, "Not Found")
	case state == Commissioning:
		http.Redirect(w, r, "/welcome", http.StatusFound)
	case state != Running:
		htmlError(w, http.StatusServiceUnavailable, "Service Unavailable")
	default:
		if g.opts.Unknowns.JSONErrors {
			w = &jsonErrors{ResponseWriter: w, url: r.URL.Path}
		}
		routes.ServeHTTP(w, r)
	}
}

// jsonErrors turns the web server's error pages into JSON.
type jsonErrors struct {
	http.ResponseWriter
	url         string
	discardBody bool
}

func (j *jsonErrors) WriteHeader(status int) {
	if j.discardBody = strings.HasPrefix(j.Header().Get("Content-Type"), "text/html"); !j.discardBody {
		j.ResponseWriter.WriteHeader(status)
		return
	}
	writeJSON(j.ResponseWriter, status, ordered.Object{{"message", http.StatusText(status)}, {"url", j.url}, {"status", strconv.Itoa(status)}})
}

func (j *jsonErrors) Write(p []byte) (int, error) {
	if j.discardBody {
		return len(p), nil
	}
	return j.ResponseWriter.Write(p)
}

// noRoute answers with the only error that the gateway always sends as JSON.
func noRoute(w http.ResponseWriter, r *http.Request) {
	path := strings.TrimPrefix(strings.TrimPrefix(r.URL.Path, "/data"), "/api")
	writeJSON(w, http.StatusNotFound, ordered.Object{
		{"message", "No route match for path: " + path}, {"url", r.URL.Path}, {"status", "404"},
	})
}

// htmlError answers with the error page of the gateway's web server.
func htmlError(w http.ResponseWriter, status int, message string) {
	w.Header().Set("Content-Type", "text/html;charset=iso-8859-1")
	w.WriteHeader(status)
	fmt.Fprintf(w, `<html>
<head>
<meta http-equiv="Content-Type" content="text/html;charset=ISO-8859-1"/>
<title>Error %[1]d %[2]s</title>
</head>
<body><h2>HTTP ERROR %[1]d %[2]s</h2>
<table>
<tr><th>URI:</th><td>/data</td></tr>
<tr><th>STATUS:</th><td>%[1]d</td></tr>
<tr><th>MESSAGE:</th><td>%[2]s</td></tr>
</table>
</body>
</html>
`, status, html.EscapeString(message))
}

func writeJSON(w http.ResponseWriter, status int, doc ordered.Value) {
	w.Header().Set("Content-Type", "application/json;charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(ordered.Compact(doc))
}

// recorder records the status of an answer.
type recorder struct {
	http.ResponseWriter
	status int
}

// WriteHeader implements http.ResponseWriter.
func (r *recorder) WriteHeader(status int) {
	r.status = status
	r.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (r *recorder) Write(p []byte) (int, error) {
	if r.status == 0 {
		r.status = http.StatusOK
	}
	return r.ResponseWriter.Write(p)
}

// Unwrap lets http.ResponseController find the connection.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// reset sends half an answer and breaks the connection.
func reset(w http.ResponseWriter) {
	conn, buf, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler) // also breaks the connection
	}
	defer conn.Close()
	_, _ = buf.WriteString("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 4096\r\n\r\n{\"items\":[")
	_ = buf.Flush()
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // a reset instead of an orderly close
	}
}

// applyFault reports whether a fault has answered the request.
func (g *Gateway) applyFault(w http.ResponseWriter, r *http.Request) bool {
	f, ok := g.Faults.match(r)
	if !ok {
		return false
	}
	if f.After {
		// Do the work and discard the answer.
		g.serve(discard{http.Header{}}, r, g.routes())
	}
	if f.Delay > 0 {
		timer := time.NewTimer(time.Duration(f.Delay))
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-r.Context().Done():
			panic(http.ErrAbortHandler) // an answer could still reach the client, which has given up
		case <-g.run.life.Done():
		}
	}
	switch {
	case f.Reset:
		reset(w)
	case f.Status != 0:
		if f.Location != "" {
			w.Header().Set("Location", f.Location)
		}
		if f.Body == "" {
			htmlError(w, f.Status, http.StatusText(f.Status))
			return true
		}
		w.WriteHeader(f.Status)
		_, _ = io.WriteString(w, f.Body)
	default:
		return f.After // only a delay: the route answers
	}
	return true
}

// discard discards an answer.
type discard struct{ header http.Header }

func (d discard) Header() http.Header         { return d.header }
func (d discard) Write(p []byte) (int, error) { return len(p), nil }
func (d discard) WriteHeader(int)             {}

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

// Request is a request to the gateway. It is counted on arrival, so that a client that has its answer finds it counted.
type Request struct {
	At     time.Time `json:"at"`
	Method string    `json:"method"`
	Path   string    `json:"path"`
	Query  string    `json:"query,omitempty"`
	Status int       `json:"status"` // 0 until it is answered, and after a connection reset
	// Token is the name of the request's token, or "".
	Token string `json:"token,omitempty"`
	TLS   bool   `json:"tls,omitempty"`
}

const maxRequests = 10_000

// RequestLog keeps the newest requests, and counts all.
type RequestLog struct {
	mu         sync.Mutex
	list       []*Request
	counts     map[string]int // by "METHOD /path"
	violations []string
}

func (l *RequestLog) add(r Request) *Request {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.list) >= maxRequests {
		l.list = slices.Clone(l.list[maxRequests/2:])
	}
	l.list = append(l.list, &r)
	route := r.Method + " " + r.Path
	if _, known := l.counts[route]; known || len(l.counts) < maxRequests {
		l.counts[route]++
	}
	return &r
}

func (l *RequestLog) finish(r *Request, status int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r.Status = status
}

func (l *RequestLog) addViolation(what string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.violations) < maxRequests {
		l.violations = append(l.violations, what)
	}
}

// List lists the requests, oldest first; at least the newest 5,000.
func (l *RequestLog) List() []Request {
	l.mu.Lock()
	defer l.mu.Unlock()
	list := make([]Request, 0, len(l.list))
	for _, r := range l.list {
		list = append(list, *r)
	}
	return list
}

// Count returns the number of requests to a route, for example "POST /data/api/v1/scan/projects", whatever was
// answered.
func (l *RequestLog) Count(route string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.counts[route]
}

// Counts returns the number of requests to each route.
func (l *RequestLog) Counts() map[string]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.counts)
}

// Violations lists the requests that Options.Strict refused.
func (l *RequestLog) Violations() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.violations)
}

// Reset drops all requests and violations.
func (l *RequestLog) Reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list, l.counts, l.violations = nil, map[string]int{}, nil
}
