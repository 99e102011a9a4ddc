package drive

import (
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"stoker.io/stoker/agent/sync"
)

// stuck is how long a turn may take before /healthz says that the process hangs. It is far above the longest sync that
// the limits of the agent allow on slow storage: a restart in the middle of one would only make it longer.
const stuck = time.Hour

// Route is what answers one method and path.
type Route struct {
	Pattern string // as for http.ServeMux
	Serve   http.HandlerFunc
}

// Routes are /healthz, /readyz and /state. They only read, none of them asks git or the gateway, and none of them tells
// the content of a file or a secret.
func (l *Loop) Routes() []Route {
	return []Route{{"GET /healthz", l.healthz}, {"GET /readyz", l.readyz}, {"GET /state", l.serveState}}
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

func (l *Loop) serveState(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	_ = enc.Encode(l.State()) // the reader went away: nobody to tell
}
