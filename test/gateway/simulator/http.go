package simulator

import (
	"context"
	"fmt"
	"html"
	"net"
	"net/http"
	"strconv"
	"strings"

	"stoker.io/stoker/test/gateway/simulator/ordered"
)

// httpHandler returns the handler of the gateway's http and https ports: it logs each request, applies faults and the
// state, and routes.
func (g *Gateway) httpHandler() http.Handler {
	routes := g.routes()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rec := &recorder{ResponseWriter: w}
		name, _, _ := strings.Cut(r.Header.Get("X-Ignition-API-Token"), ":")
		entry := g.requests.add(Request{
			At: g.now(), Method: r.Method, Path: r.URL.Path, Query: r.URL.RawQuery, Token: name, TLS: r.TLS != nil,
		})
		defer func() { g.requests.finish(entry, rec.status) }()
		rec.Header().Set("Date", g.now().UTC().Format(http.TimeFormat))
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
		writeJSON(w, http.StatusOK, g.statusPing(state))
	case r.URL.Path == "/system/gwinfo":
		w.Header().Set("Content-Type", "text/plain;charset=utf-8")
		fmt.Fprint(w, g.gwinfo(state))
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

func (g *Gateway) statusPing(s State) ordered.Value {
	if s == Starting && g.opts.Unknowns.OtherStates {
		return ordered.Object{{"state", "INITIALIZING"}}
	}
	if s == Commissioning {
		return ordered.Object{{"state", string(Running)}, {"details", string(Commissioning)}}
	}
	return ordered.Object{{"state", string(s)}}
}

// gwinfo returns the text that the vendor's health checks read.
func (g *Gateway) gwinfo(s State) string {
	status := string(s)
	if s == Commissioning {
		status = "NEEDS_COMMISSIONING"
	}
	node := "Active"
	if !g.membership().active {
		node = "Warm"
	}
	return strings.Join([]string{
		"ContextStatus=" + status, "PlatformName=" + g.opts.Name, "Version=" + g.opts.Version, "PlatformEdition=standard",
		"RedundancyStatus=" + g.opts.Role, "RedundantState=Good", "RedundantNodeActiveStatus=" + node,
	}, ";")
}

// before83 reports whether the version is older than 8.3.
func (g *Gateway) before83() bool {
	parts := strings.SplitN(g.opts.Version, ".", 3)
	if len(parts) < 2 {
		return false
	}
	major, _ := strconv.Atoi(parts[0])
	minor, _ := strconv.Atoi(parts[1])
	return major < 8 || major == 8 && minor < 3
}

type tokenKey struct{}

// tokenOf returns the token of an authorized request.
func tokenOf(r *http.Request) token {
	t, _ := r.Context().Value(tokenKey{}).(token)
	return t
}

// requireToken requires a token with the right permission.
func (g *Gateway) requireToken(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if g.before83() {
			g.noRoute(w, r)
			return
		}
		t, refused := g.authorize(r)
		if refused != nil && r.URL.Path == "/openapi.json" && g.opts.Unknowns.OpenAPIIs403 {
			refused = &refusal{http.StatusForbidden, "Forbidden"}
		}
		if refused != nil {
			htmlError(w, refused.status, refused.message)
			return
		}
		next(w, r.WithContext(context.WithValue(r.Context(), tokenKey{}, t)))
	}
}

// noRoute answers with the only error that the gateway sends as JSON.
func (g *Gateway) noRoute(w http.ResponseWriter, r *http.Request) {
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
