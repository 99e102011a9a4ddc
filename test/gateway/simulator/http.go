package simulator

import (
	"fmt"
	"html"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
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

// noRoute answers with the only error that the gateway sends as JSON.
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
