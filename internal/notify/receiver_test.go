package notify

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"unicode/utf8"
)

// receiver is a fake of Slack, Teams, PagerDuty and a program, which checks the documented format and can fail.
type receiver struct {
	*httptest.Server
	mu     sync.Mutex
	fault  fault
	bodies []string
	header http.Header
	open   map[string]string // PagerDuty's open incidents by key
}

// fault answers a request and returns true, or returns false to let it through.
type fault func(w http.ResponseWriter, r *http.Request) bool

func newReceiver(t *testing.T) *receiver {
	t.Helper()
	r := &receiver{open: map[string]string{}}
	r.Server = httptest.NewTLSServer(http.HandlerFunc(r.serve))
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) serve(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(io.LimitReader(req.Body, 1<<20))
	req.Body = io.NopCloser(bytes.NewReader(body))
	r.mu.Lock()
	fault := r.fault
	r.mu.Unlock()
	if err != nil || req.Method != http.MethodPost || fault != nil && fault(w, req) {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch req.URL.Path {
	case "/slack": // https://docs.slack.dev: a JSON object with text, answered with the text ok
		var m struct{ Text string }
		if json.Unmarshal(body, &m) != nil || m.Text == "" || utf8.RuneCountInString(m.Text) > 4000 || req.Header.Get("Content-Type") != "application/json" {
			http.Error(w, "invalid_payload", http.StatusBadRequest)
			return
		}
	case "/teams": // https://learn.microsoft.com/power-automate/teams: a message with one Adaptive Card
		var m struct {
			Type        string
			Attachments []struct {
				ContentType string
				Content     struct {
					Type, Version string
					Body          []struct{ Type string }
				}
			}
		}
		if json.Unmarshal(body, &m) != nil || m.Type != "message" || len(m.Attachments) != 1 || m.Attachments[0].ContentType != "application/vnd.microsoft.card.adaptive" ||
			m.Attachments[0].Content.Type != "AdaptiveCard" || len(m.Attachments[0].Content.Body) == 0 || len(body) > 28<<10 {
			http.Error(w, "not a card", http.StatusBadRequest)
			return
		}
		w.WriteHeader(http.StatusAccepted)
	case "/pagerduty": // the Events API v2
		var e struct {
			RoutingKey  string `json:"routing_key"`
			DedupKey    string `json:"dedup_key"`
			EventAction string `json:"event_action"`
			Payload     *struct{ Summary, Source, Severity, Component, Class string }
		}
		if json.Unmarshal(body, &e) != nil || e.RoutingKey != "key-1" || e.DedupKey == "" || utf8.RuneCountInString(e.DedupKey) > 255 || len(body) > 512<<10 {
			http.Error(w, `{"status":"invalid event"}`, http.StatusBadRequest)
			return
		}
		switch {
		case e.EventAction == "resolve":
			delete(r.open, e.DedupKey)
		case e.EventAction == "trigger" && e.Payload != nil && e.Payload.Summary != "" && utf8.RuneCountInString(e.Payload.Summary) <= 1024 && e.Payload.Source != "" &&
			slices.Contains([]string{"critical", "error", "warning", "info"}, e.Payload.Severity):
			r.open[e.DedupKey] = e.Payload.Severity + " " + e.Payload.Summary
		default:
			http.Error(w, `{"status":"invalid event"}`, http.StatusBadRequest)
			return
		}
		w.WriteHeader(http.StatusAccepted)
	}
	r.bodies, r.header = append(r.bodies, string(body)), req.Header
}

// setFault makes the receiver answer with f; nil ends that.
func (r *receiver) setFault(f fault) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fault = f
}

// got returns what has arrived since the last call.
func (r *receiver) got() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	b := r.bodies
	r.bodies = nil
	return b
}
