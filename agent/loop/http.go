package loop

import (
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"stoker.io/stoker/agent/disk"
	"stoker.io/stoker/agent/sync"
)

// stuck is how long an iteration may take before /healthz reports that the process hangs. It is far above the longest
// sync that the agent's limits allow on slow storage, because a restart during a sync only makes it take longer.
const stuck = time.Hour

// Route is a handler for one method and path.
type Route struct {
	Pattern string // see http.ServeMux
	Serve   http.HandlerFunc
}

// Routes returns /healthz, /readyz and /state. They only read the Loop's state: they contact neither git nor the
// gateway, and reveal no file contents or secrets.
func (l *Loop) Routes() []Route {
	return []Route{{"GET /healthz", l.healthz}, {"GET /readyz", l.readyz}, {"GET /state", l.serveState}, {"GET /state/audit", l.serveAudit}, {"GET /state/diffs/{id}", l.serveDiff}}
}

// Handler serves routes.
func Handler(routes []Route) http.Handler {
	mux := http.NewServeMux()
	for _, r := range routes {
		mux.HandleFunc(r.Pattern, r.Serve)
	}
	return mux
}

func (l *Loop) healthz(w http.ResponseWriter, _ *http.Request) {
	if busy := l.state.busy(l.Now()); busy > stuck {
		http.Error(w, fmt.Sprintf("the loop has been busy for %s", busy.Round(time.Second)), http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, "ok")
}

func (l *Loop) readyz(w http.ResponseWriter, _ *http.Request) {
	s := l.State()
	if s.Phase != sync.Synced && s.Phase != sync.Standby {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	fmt.Fprintln(w, s.Line())
}

// serveAudit serves the audit record as it is on the data volume.
func (l *Loop) serveAudit(w http.ResponseWriter, _ *http.Request) {
	b, err := disk.ReadAudit(l.Engine.DataDir)
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "application/jsonl")
	_, _ = w.Write(b) // the client may be gone
}

// serveDiff serves the report of what a sync changed, as it is on the data volume.
func (l *Loop) serveDiff(w http.ResponseWriter, r *http.Request) {
	b, err := disk.ReadDiff(l.Engine.DataDir, r.PathValue("id"))
	switch {
	case err != nil:
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	case b == nil:
		http.NotFound(w, r)
	default:
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(b) // the client may be gone
	}
}

func (l *Loop) serveState(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	_ = enc.Encode(l.State()) // the client may be gone
}
