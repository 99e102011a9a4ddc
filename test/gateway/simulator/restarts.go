package simulator

import (
	"encoding/json"
	"net/http"
	"sync"
	"sync/atomic"

	"stoker.io/stoker/test/gateway/simulator/ordered"
)

// Restarts are the changes that take effect only after a restart.
type Restarts struct {
	restart func() // restarts the gateway in the background
	mu      sync.Mutex
	tasks   []string
}

// SetPending sets the changes that take effect only after a restart. A restart clears the list.
func (p *Restarts) SetPending(tasks ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tasks = tasks
}

func (p *Restarts) clear() { p.SetPending() }

// getPending answers the pending changes.
func (p *Restarts) getPending(w http.ResponseWriter, _ *http.Request) {
	p.mu.Lock()
	tasks := ordered.Array{}
	for _, t := range p.tasks {
		tasks = append(tasks, t)
	}
	p.mu.Unlock()
	writeJSON(w, http.StatusOK, ordered.Object{{"pending", tasks}})
}

// post restarts the gateway.
func (p *Restarts) post(w http.ResponseWriter, r *http.Request) {
	if r.URL.Query().Get("confirm") != "true" {
		htmlError(w, http.StatusBadRequest, "Bad Request")
		return
	}
	writeJSON(w, http.StatusOK, ordered.Object{{"restarting", true}})
	p.restart()
}

// Trial is the trial of a gateway without license.
type Trial struct{ expired atomic.Bool }

// SetExpired ends or resets the trial.
func (t *Trial) SetExpired(expired bool) {
	t.expired.Store(expired)
}

func (t *Trial) isExpired() bool { return t.expired.Load() }

// get answers the state of the trial.
func (t *Trial) get(w http.ResponseWriter, _ *http.Request) {
	state, left, expired := "AllInDemo", "7200", t.isExpired()
	if expired {
		state, left = "NoneInDemo", "0"
	}
	writeJSON(w, http.StatusOK, ordered.Object{
		{"licenseMode", "Trial"}, {"trialState", state}, {"trialSecondsLeft", json.Number(left)}, {"expired", expired}, {"emergency", false},
	})
}
