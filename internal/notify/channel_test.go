package notify

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/pem"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/test/clientset"
)

// Each piece of news carries the commit and the text of its own event, whatever the status says when the message is sent.
func TestNewsAreOfTheirOwnEvent(t *testing.T) {
	p := newPlant(t, v1alpha1.AlertWebhook{Type: v1alpha1.AlertWebhookCE, URLSecretRef: ref("events"), Topics: []v1alpha1.AlertTopic{"SyncCompleted"}})
	commit := func(digit string) string { return strings.Repeat(digit, 40) }
	completed := func(digit string) {
		p.ready()
		p.gs.Status.LastGood = &v1alpha1.CommitRecord{Ref: "main", Commit: commit(digit)}
	}
	completed("a")
	p.passes(time.Minute)
	p.receiver.setFault(func(w http.ResponseWriter, _ *http.Request) bool { w.WriteHeader(http.StatusBadGateway); return true })
	completed("b")
	p.passes(time.Minute)
	completed("c")
	p.passes(time.Minute)
	p.breaks() // another commit
	p.gs.Status.LastGood, p.gs.Status.Outcome.Commit = &v1alpha1.CommitRecord{Ref: "main", Commit: commit("c")}, commit("d")
	p.passes(time.Minute)
	p.receiver.setFault(nil)
	got := p.passes(20 * time.Minute)
	require.Len(t, got, 1)
	var e struct {
		Data struct{ Changes []sentChange }
	}
	require.NoError(t, json.Unmarshal([]byte(got[0]), &e))
	assert.Equal(t, []sentChange{{"SyncCompleted", "news", "main", commit("b"), "all gateways run main at bbbbbbb"},
		{"SyncCompleted", "news", "main", commit("c"), "all gateways run main at ccccccc"}}, e.Data.Changes)
}

// The first event of a fleet that the notifier knows is news. What may have happened before is not.
func TestFirstNews(t *testing.T) {
	topics := []v1alpha1.AlertTopic{"Ready", "RefUpdated", "SyncCompleted", "RollbackCompleted"}
	created := func(p *plant) {
		p.gs = p.gs.DeepCopy()
		p.gs.Status = v1alpha1.GatewaySyncStatus{}
	}
	synced := func(p *plant) {
		p.ready()
		p.gs.Status.Target = &v1alpha1.TargetStatus{Ref: "main", Commit: strings.Repeat("a", 40)}
		p.gs.Status.LastGood = &v1alpha1.CommitRecord{Ref: "main", Commit: strings.Repeat("a", 40)}
	}
	rolledBack := func(request string) func(*plant) {
		return func(p *plant) {
			synced(p)
			p.gs.Status.Outcome.Reason, p.gs.Status.Request = v1alpha1.ReasonRolledBack, &v1alpha1.RequestStatus{Over: request}
		}
	}
	away := func(p *plant) {
		p.set(v1alpha1.OutcomeProgressing, metav1.ConditionUnknown, v1alpha1.ReasonAgentsAway, "no agent leads")
	}
	specChanged := func(then func(*plant)) func(*plant) { // by enabling alerting, before the lead has read it
		return func(p *plant) {
			then(p)
			p.gs.Generation = 2
		}
	}
	goesBack := func(p *plant) {
		p.gs.Annotations = map[string]string{v1alpha1.AnnotationRequestedRef: strings.Repeat("a", 40), v1alpha1.AnnotationRequestedUnless: strings.Repeat("b", 40)}
		p.set(v1alpha1.OutcomeProgressing, metav1.ConditionFalse, v1alpha1.ReasonWaitingForGateway, "1 of 3 gateways restarts")
	}
	for name, c := range map[string]struct {
		steps []func(*plant)
		want  []string
	}{
		"a new fleet":                  {[]func(*plant){created, synced}, []string{"Ready RefUpdated SyncCompleted"}},
		"a fleet that is ready":        {[]func(*plant){synced}, nil},
		"a fleet that is rolled back":  {[]func(*plant){rolledBack("1")}, nil},
		"a rollback of an old spec":    {[]func(*plant){specChanged(rolledBack("1")), rolledBack("1")}, []string{"Ready"}},
		"a rollback under way":         {[]func(*plant){goesBack, rolledBack("1")}, []string{"Ready RefUpdated SyncCompleted"}},
		"agents come back":             {[]func(*plant){away, rolledBack("1")}, nil},
		"two rollbacks to one commit":  {[]func(*plant){synced, rolledBack("1"), synced, rolledBack("2")}, []string{"Ready RollbackCompleted", "Ready", "Ready RollbackCompleted"}},
		"agents away after a rollback": {[]func(*plant){synced, rolledBack("1"), away, rolledBack("1")}, []string{"Ready RollbackCompleted", "Ready"}},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlant(t, v1alpha1.AlertWebhook{Type: v1alpha1.AlertWebhookCE, URLSecretRef: ref("events"), Topics: topics})
			var got []string
			for _, step := range c.steps {
				step(p)
				for _, body := range p.passes(10 * time.Minute) {
					var e struct {
						Data struct{ Changes []sentChange }
					}
					require.NoError(t, json.Unmarshal([]byte(body), &e))
					var names []string
					for _, change := range e.Data.Changes {
						names = append(names, change.Topic)
					}
					got = append(got, strings.Join(names, " "))
				}
				p.restart()
			}
			assert.Equal(t, c.want, got)
		})
	}
}

// Waits that end by themselves or with an approval page no user. A gateway with another problem does, also during such a wait.
func TestPlannedWaits(t *testing.T) {
	for _, reason := range []v1alpha1.Reason{v1alpha1.ReasonMaintenanceWindow, v1alpha1.ReasonApprovalNeeded, v1alpha1.ReasonGateClosed, v1alpha1.ReasonRolloutSoaking,
		v1alpha1.ReasonDesignerSessionActive} {
		for _, phase := range []v1alpha1.OutcomePhase{v1alpha1.OutcomeHeld, v1alpha1.OutcomeProgressing} {
			t.Run(string(reason)+" "+string(phase), func(t *testing.T) {
				p := newPlant(t, v1alpha1.AlertWebhook{Type: v1alpha1.AlertPagerDuty, URLSecretRef: ref("pagerduty"), IntegrationKeySecretRef: ref("integration")})
				waiting := v1alpha1.DiscoveredGateway{Name: "area-1", SyncStatus: v1alpha1.GatewayHeld, Reason: reason, Message: "waits"}
				p.set(phase, metav1.ConditionFalse, reason, "2 of 3 gateways wait", waiting)
				assert.Empty(t, p.passes(time.Hour))
				p.set(phase, metav1.ConditionFalse, reason, "2 of 3 gateways wait", waiting,
					v1alpha1.DiscoveredGateway{Name: "area-2", SyncStatus: v1alpha1.GatewayError, Reason: v1alpha1.ReasonScanFailed, Message: "timeout"})
				p.passes(time.Hour)
				assert.Equal(t, map[string]string{"stoker/uid-1/NotReady/ScanFailed/warning/1": "warning plant/line NotReady firing: area-2 ScanFailed: timeout"}, p.receiver.open)
			})
		}
	}
}

// A state that gets worse is sent again, and one that changes otherwise is not.
func TestWorseStates(t *testing.T) {
	pagerDuty := v1alpha1.AlertWebhook{Type: v1alpha1.AlertPagerDuty, URLSecretRef: ref("pagerduty"), IntegrationKeySecretRef: ref("integration")}
	p := newPlant(t, pagerDuty, v1alpha1.AlertWebhook{Type: v1alpha1.AlertSlack, URLSecretRef: ref("slack")})
	row := func(name string, state v1alpha1.GatewaySyncState, reason v1alpha1.Reason) v1alpha1.DiscoveredGateway {
		return v1alpha1.DiscoveredGateway{Name: name, SyncStatus: state, Reason: reason}
	}
	conflict := func() {
		p.set(v1alpha1.OutcomeHeld, metav1.ConditionFalse, v1alpha1.ReasonConflictDetected, "area-1: edited", row("area-1", v1alpha1.GatewayHeld, v1alpha1.ReasonConflictDetected))
	}
	conflict()
	assert.Len(t, p.passes(time.Hour), 2)
	assert.Equal(t, map[string]string{"stoker/uid-1/NotReady/ConflictDetected/warning/1": "warning plant/line NotReady firing: ConflictDetected: area-1: edited"}, p.receiver.open)
	p.restart()
	failing := func(n int) {
		rows := []v1alpha1.DiscoveredGateway{row("area-1", v1alpha1.GatewayHeld, v1alpha1.ReasonConflictDetected)}
		for i := range n {
			rows = append(rows, row("line-"+strconv.Itoa(i), v1alpha1.GatewayError, v1alpha1.ReasonScanFailed))
		}
		p.set(v1alpha1.OutcomeFailed, metav1.ConditionFalse, v1alpha1.ReasonScanFailed, strconv.Itoa(n)+" gateways fail", rows...)
	}
	failing(2)
	assert.Len(t, p.passes(time.Hour), 3, "trigger and resolve for PagerDuty, and a message for Slack")
	assert.Equal(t, map[string]string{"stoker/uid-1/NotReady/ScanFailed/error/2": "error plant/line NotReady firing: ScanFailed: 2 gateways fail"}, p.receiver.open)
	failing(3)
	assert.Empty(t, p.passes(time.Hour), "one more gateway is no news")
	failing(4)
	assert.Len(t, p.passes(time.Hour), 3, "twice as many are")
	assert.Equal(t, map[string]string{"stoker/uid-1/NotReady/ScanFailed/error/4": "error plant/line NotReady firing: ScanFailed: 4 gateways fail"}, p.receiver.open)
	conflict()
	assert.Empty(t, p.passes(time.Hour), "it got better")
	failing(2)
	assert.Len(t, p.passes(time.Hour), 0, "known already")
	p.ready()
	assert.Len(t, p.passes(time.Hour), 2)
	assert.Empty(t, p.receiver.open)
}

// PagerDuty notifies no user of a change of an open incident, so a state that gets more severe by the same reason replaces it.
func TestMoreSevereByTheSameReason(t *testing.T) {
	p := newPlant(t, v1alpha1.AlertWebhook{Type: v1alpha1.AlertPagerDuty, URLSecretRef: ref("pagerduty"), IntegrationKeySecretRef: ref("integration")})
	row := v1alpha1.DiscoveredGateway{Name: "area-1", SyncStatus: v1alpha1.GatewayError, Reason: v1alpha1.ReasonScanFailed}
	p.set(v1alpha1.OutcomeHeld, metav1.ConditionFalse, v1alpha1.ReasonScanFailed, "timeout", row)
	p.passes(time.Hour)
	assert.Equal(t, map[string]string{"stoker/uid-1/NotReady/ScanFailed/warning/1": "warning plant/line NotReady firing: ScanFailed: timeout"}, p.receiver.open)
	p.restart()
	p.set(v1alpha1.OutcomeFailed, metav1.ConditionFalse, v1alpha1.ReasonScanFailed, "timeout", row)
	p.passes(time.Hour)
	assert.Equal(t, map[string]string{"stoker/uid-1/NotReady/ScanFailed/error/1": "error plant/line NotReady firing: ScanFailed: timeout"}, p.receiver.open)
	p.ready()
	p.passes(time.Hour)
	assert.Empty(t, p.receiver.open)
}

// If an answer is lost, an incident may be open or not. None stays open that nothing resolves, and none is missing.
func TestPagerDutyAnswersAreLost(t *testing.T) {
	fails := func(p *plant, reason v1alpha1.Reason, phase v1alpha1.OutcomePhase) {
		p.set(phase, metav1.ConditionFalse, reason, "area-1", v1alpha1.DiscoveredGateway{Name: "area-1", SyncStatus: v1alpha1.GatewayHeld, Reason: reason})
	}
	// lost makes the receiver take each message without an answer.
	lost := func(p *plant) {
		again := false
		p.receiver.setFault(func(_ http.ResponseWriter, r *http.Request) bool {
			if again {
				return false
			}
			again = true
			p.receiver.serve(httptest.NewRecorder(), r)
			again = false
			panic(http.ErrAbortHandler)
		})
	}
	open := func(p *plant) []string { return slices.Sorted(maps.Keys(p.receiver.open)) }
	for name, steps := range map[string]func(t *testing.T, p *plant){
		"the state ends before the next attempt": func(_ *testing.T, p *plant) {
			lost(p)
			p.breaks()
			p.passes(time.Minute + 20*time.Second)
		},
		"another reason before the next attempt": func(t *testing.T, p *plant) {
			fails(p, v1alpha1.ReasonConflictDetected, v1alpha1.OutcomeHeld)
			p.passes(settled)
			p.receiver.setFault(func(w http.ResponseWriter, r *http.Request) bool {
				body, err := io.ReadAll(r.Body)
				assert.NoError(t, err)
				if bytes.Contains(body, []byte("resolve")) {
					w.WriteHeader(http.StatusTooManyRequests)
				}
				return bytes.Contains(body, []byte("resolve"))
			})
			p.breaks()
			p.passes(settled)
			require.Equal(t, []string{"stoker/uid-1/NotReady/ConflictDetected/warning/1", "stoker/uid-1/NotReady/TemplateFailed/error/1"}, open(p))
			p.receiver.setFault(nil)
			fails(p, v1alpha1.ReasonAgentsAway, v1alpha1.OutcomeFailed)
			p.restart()
			p.passes(20 * time.Minute)
			assert.Equal(t, []string{"stoker/uid-1/NotReady/AgentsAway/critical/1"}, open(p))
		},
		"the state begins again": func(t *testing.T, p *plant) {
			p.breaks()
			p.passes(settled)
			lost(p)
			p.ready()
			p.passes(time.Minute + 20*time.Second)
			assert.Empty(t, open(p))
			p.receiver.setFault(nil)
			p.breaks()
			p.passes(20 * time.Minute)
			assert.Equal(t, []string{"stoker/uid-1/NotReady/TemplateFailed/error/1"}, open(p))
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlant(t, v1alpha1.AlertWebhook{Type: v1alpha1.AlertPagerDuty, URLSecretRef: ref("pagerduty"), IntegrationKeySecretRef: ref("integration")})
			steps(t, p)
			require.NotEmpty(t, open(p))
			p.receiver.setFault(nil)
			p.ready()
			p.passes(20 * time.Minute)
			assert.Empty(t, open(p))
			assert.Empty(t, p.saved)
		})
	}
}

// A message says when the state began, also if the notifier started later. A state that the notifier saw not to hold began after that.
func TestSince(t *testing.T) {
	for name, seen := range map[string]bool{"before the first pass": false, "after the first pass": true} {
		t.Run(name, func(t *testing.T) {
			p := newPlant(t, v1alpha1.AlertWebhook{Type: v1alpha1.AlertWebhookCE, URLSecretRef: ref("events")})
			if seen {
				p.set(v1alpha1.OutcomeHeld, metav1.ConditionFalse, v1alpha1.ReasonMaintenanceWindow, "waits")
				p.passes(time.Hour)
			}
			want := p.now.Add(10 * time.Second) // the next pass, which sees the state first
			began := p.now.Add(-time.Hour)
			p.breaks()
			p.gs.Status.Conditions[0].LastTransitionTime = metav1.NewTime(began)
			if !seen {
				want = began
			}
			got := p.passes(5 * time.Minute)
			require.Len(t, got, 1)
			assert.Contains(t, got[0], `"since":"`+want.UTC().Format(time.RFC3339)+`"`)
		})
	}
}

func TestTeamsAndPrivateAuthority(t *testing.T) {
	p := newPlant(t, v1alpha1.AlertWebhook{Type: v1alpha1.AlertTeams, URLSecretRef: ref("teams"), CASecretRef: ref("ca")})
	p.notifier.Client.CA = nil
	p.breaks()
	got := p.passes(10 * time.Minute)
	require.Len(t, got, 1, "%s", &p.log)
	assert.Contains(t, got[0], `{"text":"TemplateFailed: area-4: \u003c!channel\u003e no such field`)
}

// Messages wait for the answers to earlier ones, of which more than one may arrive in a second.
func TestAnswersAreTakenTogether(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	waiting := -1
	n := New(Config{Load: func(context.Context) (string, error) { return "", nil }})
	n.List = func() ([]*v1alpha1.GatewaySync, bool) { waiting = n.total(); stop(); return nil, true }
	for range 3 {
		n.sending["plant"]++
		n.results <- result{channel: newChannel(nil), namespace: "plant"}
	}
	require.NoError(t, n.Run(ctx))
	assert.Zero(t, waiting)
}

// R10: a receiver that does not answer delays no message to another one.
func TestSlowReceiver(t *testing.T) {
	slow, quick := newPlant(t, v1alpha1.AlertWebhook{Type: v1alpha1.AlertSlack, URLSecretRef: ref("slack")}), newReceiver(t)
	arrived, release := make(chan struct{}), make(chan struct{})
	slow.receiver.setFault(func(http.ResponseWriter, *http.Request) bool { close(arrived); <-release; return false })
	slow.set(v1alpha1.OutcomeHeld, metav1.ConditionFalse, v1alpha1.ReasonConflictDetected, "edited", v1alpha1.DiscoveredGateway{Name: "area-4", SyncStatus: v1alpha1.GatewayHeld})
	clock := func() time.Time { return time.Now().Add(time.Hour) } // of the API server, ahead of that of this node
	slow.gs.Status.ConfirmedAt = &metav1.Time{Time: clock()}
	other := slow.gs.DeepCopy()
	other.Namespace, other.UID = "other", "uid-2"
	secret := slow.objects[0].DeepCopy()
	secret.Namespace, secret.Data = "other", map[string][]byte{"slack": []byte(quick.URL + "/slack")}
	list := []*v1alpha1.GatewaySync{slow.gs}
	var mu sync.Mutex
	changed, sent := make(chan struct{}, 1), make(chan string, 2)
	n := slow.notifier
	n.Core, n.Client.Timeout, n.Settle, n.Changed, n.Now = clientset.New(slow.objects[0], secret), time.Minute, 0, changed, clock
	n.Client.CA = append(n.Client.CA, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: quick.Certificate().Raw})...)
	n.Load = func(context.Context) (string, error) { return "", nil }
	n.List = func() ([]*v1alpha1.GatewaySync, bool) { mu.Lock(); defer mu.Unlock(); return list, true }
	n.Sent = func(_ v1alpha1.AlertType, result string) { sent <- result }
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- n.Run(ctx) }()
	<-arrived
	mu.Lock()
	list = append(list, other)
	mu.Unlock()
	changed <- struct{}{}
	assert.Equal(t, "sent", <-sent)
	if got := quick.got(); assert.Len(t, got, 1) {
		assert.Contains(t, got[0], "ConflictDetected: edited")
	}
	stop() // the message on its way is recorded
	close(release)
	require.NoError(t, <-ended)
	assert.Len(t, n.decodeRecord(slow.saved), 2)
}

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
