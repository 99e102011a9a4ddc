// Package ui serves read-only pages that show which gateways are behind, why, and what to do about it. It runs on the user's own
// machine with the rights of the user's kubeconfig: there is no login, and no new component in a cluster. Nothing that it
// serves changes an object.
//
// Pages are complete without JavaScript. A small script keeps an open page current: when the server sends an event, the script
// loads the same address again and takes over the differences. For each site, which is a context of the kubeconfig, the server
// watches the GatewaySyncs and ConfigSyncs, and asks every ten seconds whether the API server answers. While an API server
// does not answer, pages show what was last read of it, marked as not confirmed. Then the pages of fleets do not wait for it, and the page of a
// gateway waits at most a second for the agent.
//
// The content of objects and the answers of agents may be hostile. html/template escapes them, clean removes control characters
// and cuts them, and every list has a bound. The pages show what is in GatewaySyncs, SyncTargets, SyncReports, ConfigSyncs and pods, and what
// agents return: state, audit records and the text of files. They never show a Secret.
package ui

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/subtle"
	"embed"
	"fmt"
	"html/template"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"stoker.io/stoker/docs"
	"stoker.io/stoker/hooks/sites"
	"stoker.io/stoker/internal/serve"
)

//go:embed pages assets
var files embed.FS

const (
	maxFleets  = 500  // on one page
	maxStreams = 32   // open pages that receive events
	maxQuery   = 2048 // bytes
)

// Options configure a Server.
type Options struct {
	Sites   []sites.Site // at least one, each with another context
	Version string
	// Manual returns the web address of a page of the documentation, such as docs/how-to/troubleshooting.md#heading.
	Manual func(document string) string
	// Opened is called after a browser has used the token of URL, which then returns a new one; nil for no call.
	Opened func()
}

// Server serves the pages. It is an http.Handler.
type Server struct {
	Options
	sites   []*site
	hub     *hub
	advisor *advisor
	pages   map[string]*template.Template
	mux     *serve.Mux
	done    chan struct{} // closed when the context of Run is done

	cookie string
	mu     sync.Mutex
	token  string // for one use
}

// New returns a Server. Run starts it.
func New(o Options) (*Server, error) {
	s := &Server{Options: o, hub: &hub{subscribers: map[chan struct{}]string{}}, advisor: newAdvisor(docs.Troubleshooting, o.Manual), pages: map[string]*template.Template{},
		done: make(chan struct{}), token: rand.Text(), cookie: rand.Text()}
	for _, from := range o.Sites {
		path := ""
		if len(o.Sites) > 1 {
			path = "/sites/" + url.PathEscape(from.Context)
		}
		x, err := newSite(from, path, s.hub.notify)
		if err != nil {
			return nil, err
		}
		s.sites = append(s.sites, x)
	}
	base, err := template.New("base.html").Funcs(templateFuncs).ParseFS(files, "pages/base.html")
	if err != nil {
		return nil, err
	}
	for _, name := range []string{"fleets", "fleet", "gateway", "sync", "text", "reason", "problem"} {
		page, err := template.Must(base.Clone()).ParseFS(files, "pages/"+name+".html")
		if err != nil {
			return nil, err
		}
		s.pages[name] = page
	}
	assets, err := fs.Sub(files, "assets")
	if err != nil {
		return nil, err
	}
	s.mux = serve.NewMux(map[string]http.HandlerFunc{
		"GET /{$}":                                            s.serveFleets,
		"GET /fleets/{namespace}/{name}":                      s.serveFleet,
		"GET /fleets/{namespace}/{name}/gateway":              s.serveGateway,
		"GET /fleets/{namespace}/{name}/sync":                 s.serveSync,
		"GET /fleets/{namespace}/{name}/text":                 s.serveText,
		"GET /sites/{site}/fleets/{namespace}/{name}":         s.serveFleet,
		"GET /sites/{site}/fleets/{namespace}/{name}/gateway": s.serveGateway,
		"GET /sites/{site}/fleets/{namespace}/{name}/sync":    s.serveSync,
		"GET /sites/{site}/fleets/{namespace}/{name}/text":    s.serveText,
		"GET /reasons/{reason}":                               s.serveReason,
		"GET /live":                                           s.serveLive,
		"GET /assets/{file}":                                  http.StripPrefix("/assets/", http.FileServerFS(assets)).ServeHTTP,
		"GET /": func(w http.ResponseWriter, _ *http.Request) {
			s.writeProblem(w, http.StatusNotFound, "There is no such page", "")
		},
	})
	return s, nil
}

// Run watches the clusters until ctx is done. Call it once.
func (s *Server) Run(ctx context.Context) {
	context.AfterFunc(ctx, func() { close(s.done) }) // also if Run ends before ctx, because no site leads to a cluster
	var all sync.WaitGroup
	for _, x := range s.sites {
		all.Go(func() { x.run(ctx) })
	}
	all.Wait()
}

// URL returns the URL that opens a page, with a token that can be used once, because a browser keeps the URL in its history. addr is
// the address that the server listens on.
func (s *Server) URL(addr, path string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return (&url.URL{Scheme: "http", Host: addr, Path: path, RawQuery: url.Values{"token": {s.token}}.Encode()}).String()
}

// equalSecrets compares two secrets in constant time.
func equalSecrets(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }

// redeem reports whether a token is valid, and replaces it if it is.
func (s *Server) redeem(token string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !equalSecrets(token, s.token) {
		return false
	}
	s.token = rand.Text()
	return true
}

// policy lets a page load files of the server and nothing else: no inline script or style, no frame around it, and no script may
// turn a string into HTML (trusted types).
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; " +
	"base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// ServeHTTP implements http.Handler. It serves only GET and HEAD requests that have the session cookie and whose Host header
// names this machine. The check of Host prevents DNS rebinding: a web site whose name resolves to 127.0.0.1 gets nothing. For a GET
// with the token in the query, it sets the cookie. It redirects a request with cookie and token to the same page without a token.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	for name, value := range map[string]string{
		"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cache-Control": "no-store",
		"Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Resource-Policy": "same-origin", "X-Frame-Options": "DENY",
	} {
		w.Header().Set(name, value)
	}
	switch {
	case !isThisMachine(r.Host):
		http.Error(w, "This page is served to 127.0.0.1 and localhost only.", http.StatusMisdirectedRequest)
		return
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "This page is read-only.", http.StatusMethodNotAllowed)
		return
	case len(r.URL.RawQuery) > maxQuery || len(r.URL.Path) > maxQuery:
		http.Error(w, "The address is too long.", http.StatusRequestURITooLong)
		return
	}
	name := "stoker-ui-" + port(r.Host) // browsers share cookies between all ports of a host, so the name contains the port
	c, err := r.Cookie(name)
	known := err == nil && equalSecrets(c.Value, s.cookie)
	token := r.URL.Query().Get("token")
	if !known && r.Method == http.MethodGet && s.redeem(token) {
		// Not SameSite=Strict: a file and a link of another site may open the page, which only shows something.
		http.SetCookie(w, &http.Cookie{Name: name, Value: s.cookie, Path: "/", HttpOnly: true, SameSite: http.SameSiteLaxMode})
		known = true
		if s.Opened != nil {
			s.Opened()
		}
	}
	switch {
	case !known && token != "":
		http.Error(w, "This address was used before. 'stoker ui' has printed a new one.", http.StatusUnauthorized)
		return
	case !known:
		http.Error(w, "Open the address that 'stoker ui' has printed: it contains a token for this page.", http.StatusUnauthorized)
		return
	case token != "":
		query := r.URL.Query()
		query.Del("token")
		to := url.URL{Path: "/" + strings.TrimLeft(r.URL.Path, "/\\"), RawQuery: query.Encode()}
		http.Redirect(w, r, to.String(), http.StatusSeeOther)
		return
	}
	s.mux.ServeHTTP(w, r)
}

// isThisMachine reports whether the Host header of a request names this machine, with any port: it may be the port of a tunnel.
func isThisMachine(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	return host == "127.0.0.1" || host == "localhost" || host == "::1" || host == "[::1]"
}

func port(host string) string {
	_, port, err := net.SplitHostPort(host)
	if err != nil {
		return "80"
	}
	return port
}

// frame is what all pages have in common.
type frame struct {
	Title     string
	Scope     string // the namespaces that the page is about, or the number of sites
	Context   string
	Version   string
	Trail     []crumb
	Live      string // address of the events; "" if the page never changes
	Link      string // says whether the page is current, in its corner; "" if the page never changes
	Now       moment
	Notices   []notice
	Namespace string
}

// crumb is a link to a parent page.
type crumb struct{ Text, Path string }

// notice says what the page cannot show, and what the user can do.
type notice struct {
	Tone        tone
	Title, Text string
}

// newFrame returns the frame of a page about a site, or about all sites if x is nil.
func (s *Server) newFrame(x *site, title string, trail ...crumb) frame {
	if x == nil && len(s.sites) == 1 {
		x = s.sites[0]
	}
	if x == nil {
		now := time.Now()
		return frame{Title: title, Scope: counted(len(s.sites), "site"), Version: s.Version, Trail: trail, Now: moment{now, now}}
	}
	scope := "namespace " + x.Namespace
	if x.Namespace == "" {
		scope = "all namespaces"
	}
	if x.path != "" && len(trail) > 0 {
		trail = slices.Insert(trail, 1, crumb{clean(x.Context, 100), sitePath(x)})
	}
	now := x.Clients.Now()
	return frame{Title: title, Scope: scope, Context: clean(x.Context, 100), Version: s.Version, Trail: trail, Now: moment{now, now}, Namespace: x.Namespace}
}

// sitePath returns the address of the list of the fleets of a site.
func sitePath(x *site) string {
	if x.path == "" {
		return "/"
	}
	return "/?" + url.Values{"site": {x.Context}}.Encode()
}

// follow makes the page follow changes. live is the address of the events, and lost says which API server does not answer, or is "".
func (f *frame) follow(live, lost string) {
	f.Live, f.Link = live, "Live, read-only"
	if lost != "" {
		f.Link = "Not live: " + lost
	}
}

// writePage executes the template of a page and writes the result.
func (s *Server) writePage(w http.ResponseWriter, status int, page string, data any) {
	var b bytes.Buffer
	if err := s.pages[page].ExecuteTemplate(&b, "base.html", data); err != nil {
		http.Error(w, "The page cannot be shown: "+err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(b.Bytes()) // the client may be gone
}

// writeProblem writes an error page with a title and a text.
func (s *Server) writeProblem(w http.ResponseWriter, status int, title, text string) {
	s.writePage(w, status, "problem", struct {
		frame
		Text string
	}{s.newFrame(nil, title, crumb{"Fleets", "/"}), text})
}

var templateFuncs = template.FuncMap{
	"number": number, "sentence": sentence, "breakable": breakable, "counted": counted, "cell": func(s string) string { return clean(s, maxCell) },
	"pick": func(one, many string, n int) string { return map[bool]string{true: one, false: many}[n == 1] },
}

const (
	// minEventInterval is the shortest time between two events, so that a fleet that always changes does not keep the browser busy.
	minEventInterval = time.Second
	// maxEventInterval is the longest time between two events: relative times grow, and an absent lead changes no object.
	maxEventInterval = 30 * time.Second
)

// serveLive sends an event when the page must be loaded again.
func (s *Server) serveLive(w http.ResponseWriter, r *http.Request) {
	changes, end := s.hub.subscribe(r.URL.Query().Get("fleet"))
	if changes == nil {
		http.Error(w, "Too many pages are open: close some.", http.StatusServiceUnavailable)
		return
	}
	defer end()
	if r.Method == http.MethodHead {
		return
	}
	control := http.NewResponseController(w)
	w.Header().Set("Content-Type", "text/event-stream")
	for n := 0; ; n++ {
		if control.SetWriteDeadline(time.Now().Add(maxEventInterval)) != nil {
			return
		}
		event := "changed"
		if n == 0 {
			event = "open"
		}
		if _, err := fmt.Fprintf(w, "retry: 2000\nevent: %s\ndata: %d\n\n", event, n); err != nil || control.Flush() != nil {
			return
		}
		if !s.wait(r, minEventInterval, nil) || !s.wait(r, maxEventInterval-minEventInterval, changes) {
			return
		}
	}
}

// wait waits for a change, for at most d. It returns false if the client or the server ends.
func (s *Server) wait(r *http.Request, d time.Duration, changes <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-r.Context().Done():
		return false
	case <-s.done:
		return false
	case <-timer.C:
	case <-changes:
	}
	return true
}

// hub notifies open pages of changes.
type hub struct {
	mu          sync.Mutex
	subscribers map[chan struct{}]string // values are keys of fleets; "" for all
}

// notify notifies the subscribers of a fleet and those of all fleets, or every subscriber if the key is "".
func (h *hub) notify(key string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for ch, follows := range h.subscribers {
		if key != "" && follows != "" && follows != key {
			continue
		}
		select {
		case ch <- struct{}{}:
		default: // it has not received the last one yet
		}
	}
}

// subscribe returns a channel that receives a value when a fleet changes, and a function that ends the subscription. The key is that of the
// fleet, or "" for all. It returns nil if there are too many subscribers.
func (h *hub) subscribe(key string) (<-chan struct{}, func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.subscribers) >= maxStreams {
		return nil, nil
	}
	ch := make(chan struct{}, 1)
	h.subscribers[ch] = key
	return ch, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.subscribers, ch)
	}
}
