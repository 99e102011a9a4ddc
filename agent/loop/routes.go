package loop

import (
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"stoker.io/stoker/agent/disk"
)

// maxIteration is how long an iteration may take before /healthz reports that the process hangs. The longest sync that the
// agent's limits allow on slow storage is far shorter: a restart during a sync would only make it take longer.
const maxIteration = time.Hour

// Route is a handler for one method and path.
type Route struct {
	Pattern string // see http.ServeMux
	Serve   http.HandlerFunc
}

// Routes returns the routes of the agent's HTTP server. Their handlers read only the Loop's state, the audit record, and the
// reports of what syncs changed. They contact neither git nor the gateway, and reveal no file contents or secrets.
func (l *Loop) Routes() []Route {
	h := handlers{l}
	return []Route{{"GET /healthz", h.healthz}, {"GET /readyz", h.readyz}, {"GET /state", h.serveState}, {"GET /state/audit", h.serveAudit}, {"GET /state/diffs/{id}", h.serveDiff}}
}

// Handler returns a handler that serves routes.
func Handler(routes []Route) http.Handler {
	mux := http.NewServeMux()
	for _, r := range routes {
		mux.HandleFunc(r.Pattern, r.Serve)
	}
	return mux
}

// handlers are the HTTP handlers of a Loop.
type handlers struct{ loop *Loop }

func (h handlers) healthz(w http.ResponseWriter, _ *http.Request) {
	if busy := h.loop.state.busy(h.loop.Now()); busy > maxIteration {
		http.Error(w, fmt.Sprintf("the loop has been busy for %s", busy.Round(time.Second)), http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, "ok")
}

func (h handlers) readyz(w http.ResponseWriter, _ *http.Request) {
	s := h.loop.State()
	if !s.Phase.Synced() {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	fmt.Fprintln(w, s.Line())
}

// serveAudit serves the audit record as it is on the data volume.
func (h handlers) serveAudit(w http.ResponseWriter, _ *http.Request) {
	b, err := disk.ReadAudit(h.loop.Engine.DataDir)
	serveRecord(w, "application/jsonl", b, err)
}

// serveDiff serves the report of what a sync changed, as it is on the data volume.
func (h handlers) serveDiff(w http.ResponseWriter, r *http.Request) {
	b, err := disk.ReadDiff(h.loop.Engine.DataDir, r.PathValue("id"))
	if err == nil && b == nil {
		http.NotFound(w, r)
		return
	}
	serveRecord(w, "application/json", b, err)
}

func serveRecord(w http.ResponseWriter, contentType string, b []byte, err error) {
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", contentType)
	_, _ = w.Write(b) // the client may be gone
}

func (h handlers) serveState(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	_ = enc.Encode(h.loop.State()) // the client may be gone
}
