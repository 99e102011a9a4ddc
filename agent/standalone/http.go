package standalone

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

// Handler serves /healthz, /readyz and /state. They only read, and none of them asks git or the gateway.
func (l *Loop) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		if busy := l.state.busy(l.Now()); busy > stuck {
			http.Error(w, fmt.Sprintf("the loop has been busy for %s", busy.Round(time.Second)), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		s := l.State()
		if s.Phase != sync.Synced && s.Phase != sync.Standby {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		fmt.Fprintln(w, s.Line())
	})
	mux.HandleFunc("GET /state", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		_ = enc.Encode(l.State()) // the reader went away: nobody to tell
	})
	return mux
}
