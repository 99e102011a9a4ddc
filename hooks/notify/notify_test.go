package notify

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"io"
	"log/slog"
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
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/desiredref"
	"stoker.io/stoker/internal/outbound"
	"stoker.io/stoker/test/clientset"
	"stoker.io/stoker/test/program"
)

// receiver is a small real receiver of Slack's, PagerDuty's and our own messages, with faults.
type receiver struct {
	*httptest.Server
	mu     sync.Mutex
	fault  func(w http.ResponseWriter, r *http.Request) bool
	bodies []string
	header http.Header
	open   map[string]string // PagerDuty's open incidents by key
}

func newReceiver(t *testing.T) *receiver {
	t.Helper()
	r := &receiver{open: map[string]string{}}
	r.Server = httptest.NewTLSServer(http.HandlerFunc(r.serve))
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) serve(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(io.LimitReader(req.Body, 1<<20))
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

// fails makes the receiver answer with f until it is nil.
func (r *receiver) fails(f func(w http.ResponseWriter, r *http.Request) bool) {
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

// plant is a GatewaySync with a receiver, and a notifier whose clock the test moves.
type plant struct {
	t        *testing.T
	receiver *receiver
	gs       *v1alpha1.GatewaySync
	now      time.Time
	record   string
	saves    int
	log      program.Log
	notifier *Notifier
	first    record
	objects  []*corev1.Secret
}

func ref(key string) *v1alpha1.SecretKeyRef { return &v1alpha1.SecretKeyRef{Name: "alerts", Key: key} }

func newPlant(t *testing.T, hooks ...v1alpha1.AlertWebhook) *plant {
	t.Helper()
	p := &plant{t: t, receiver: newReceiver(t), now: time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC)}
	p.gs = &v1alpha1.GatewaySync{ObjectMeta: metav1.ObjectMeta{Namespace: "plant", Name: "line", UID: types.UID("uid-1"), Generation: 1}}
	p.gs.Spec.Git.Ref = "main"
	p.gs.Spec.Alerting = &v1alpha1.AlertingSpec{Enabled: true, Webhooks: hooks}
	p.objects = []*corev1.Secret{{ObjectMeta: metav1.ObjectMeta{Namespace: "plant", Name: "alerts"}, Data: map[string][]byte{
		"slack": []byte(p.receiver.URL + "/slack?token=S3CR3T-URL\n"), "pagerduty": []byte(p.receiver.URL + "/pagerduty"), "events": []byte(p.receiver.URL + "/events"),
		"teams": []byte(p.receiver.URL + "/teams"), "ca": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: p.receiver.Certificate().Raw}),
		"integration": []byte("key-1"), "signing": []byte("S3CR3T-KEY"), "plain": []byte("http://127.0.0.1/S3CR3T-URL"),
	}}}
	p.ready()
	p.restart()
	return p
}

// restart begins with what the last notifier recorded.
func (p *plant) restart() {
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: p.receiver.Certificate().Raw})
	p.notifier = New(Config{Core: clientset.New(p.objects[0]), Client: outbound.Client{CA: ca, Loopback: true, Timeout: 2 * time.Second},
		Settle: time.Minute, Log: slog.New(slog.NewTextHandler(&p.log, nil)), Sent: func(v1alpha1.AlertType, string) {},
		Save: func(_ context.Context, text string) error { p.record, p.saves = text, p.saves+1; return nil }})
	p.notifier.saved, p.first = p.record, p.notifier.decodeRecord(p.record)
}

// passes lets time pass, with a comparison every ten seconds, and returns what the receiver got.
func (p *plant) passes(d time.Duration) []string {
	p.t.Helper()
	for end := p.now.Add(d); p.now.Before(end); {
		p.now = p.now.Add(10 * time.Second)
		p.gs.Status.ConfirmedAt = &metav1.Time{Time: p.now}
		p.notifier.configure([]*v1alpha1.GatewaySync{p.gs}, p.first)
		p.first = nil
		p.notifier.startDue(p.t.Context(), p.now)
		for p.notifier.total() > 0 {
			p.notifier.finished(<-p.notifier.results, p.now)
		}
		require.NoError(p.t, p.notifier.save(p.t.Context()))
	}
	return p.receiver.got()
}

func (p *plant) set(phase v1alpha1.OutcomePhase, ready metav1.ConditionStatus, reason v1alpha1.Reason, message string, rows ...v1alpha1.DiscoveredGateway) {
	gs := p.gs.DeepCopy()
	gs.Status.ObservedGeneration, gs.Status.ObservedRequest = 1, desiredref.Key(gs)
	gs.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: ready, Reason: string(reason), Message: message, LastTransitionTime: metav1.NewTime(p.now)}}
	gs.Status.Outcome = &v1alpha1.Outcome{Phase: phase, Ref: "main", Commit: strings.Repeat("a", 40), Total: int32(len(rows)), Reason: reason, Message: message}
	gs.Status.DiscoveredGateways = rows
	p.gs = gs
}

func (p *plant) ready() {
	p.set(v1alpha1.OutcomeSucceeded, metav1.ConditionTrue, v1alpha1.ReasonSynced, "3 of 3 gateways run aaaaaaa")
}

func (p *plant) fails() {
	p.set(v1alpha1.OutcomeFailed, metav1.ConditionFalse, v1alpha1.ReasonTemplateFailed, "area-4: <!channel> no such field `https://evil.example`",
		v1alpha1.DiscoveredGateway{Name: "area-4", SyncStatus: v1alpha1.GatewayError, Reason: v1alpha1.ReasonTemplateFailed, Message: "no such field"})
}

func TestSlackMessages(t *testing.T) {
	p := newPlant(t, v1alpha1.AlertWebhook{Type: v1alpha1.AlertSlack, URLSecretRef: ref("slack")})
	assert.Empty(t, p.passes(time.Hour), "a healthy fleet must not send messages")
	p.fails()
	assert.Empty(t, p.passes(50*time.Second), "a problem must settle before it is sent")
	got := p.passes(time.Hour)
	require.Len(t, got, 1, "the start must be sent once")
	assert.JSONEq(t, `{"text": ":red_circle: `+"`plant/line` *NotReady firing*: `TemplateFailed: area-4: &lt;!channel&gt; no such field 'https://evil.example'`"+`"}`, got[0])
	p.restart()
	assert.Empty(t, p.passes(time.Hour), "a restart must not repeat messages")
	p.ready()
	got = p.passes(time.Hour)
	require.Len(t, got, 1, "the end must be sent once")
	assert.JSONEq(t, `{"text": ":large_green_circle: `+"`plant/line` *NotReady resolved*: `it has ended after 2h1m0s: 3 of 3 gateways run aaaaaaa`"+`"}`, got[0])
	assert.Empty(t, p.record)
	assert.NotContains(t, p.log.String(), "S3CR3T")
}

func TestTwoEntriesOfOneReceiver(t *testing.T) {
	slack := func(topics ...v1alpha1.AlertTopic) v1alpha1.AlertWebhook {
		return v1alpha1.AlertWebhook{Type: v1alpha1.AlertSlack, URLSecretRef: ref("slack"), Topics: topics}
	}
	p := newPlant(t, slack(), slack("SyncFailed"), slack("NotReady", "SyncHeld"))
	assert.Empty(t, p.passes(time.Hour))
	p.fails()
	got := p.passes(time.Hour)
	require.Len(t, got, 1)
	assert.Contains(t, got[0], "NotReady firing")
	assert.Contains(t, got[0], "SyncFailed firing")
	p.restart()
	assert.Empty(t, p.passes(time.Hour), "a restart must not repeat messages")
}

func TestFlappingIsNotReported(t *testing.T) {
	p := newPlant(t, v1alpha1.AlertWebhook{Type: v1alpha1.AlertSlack, URLSecretRef: ref("slack")})
	for range 20 {
		p.fails()
		assert.Empty(t, p.passes(30*time.Second))
		p.ready()
		assert.Empty(t, p.passes(30*time.Second))
	}
	assert.Zero(t, p.saves, "nothing was sent")
}

// R9: whatever a receiver does, it gets each notification once.
func TestReceiverFaults(t *testing.T) {
	answers := func(code int) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, _ *http.Request) bool { w.WriteHeader(code); return true }
	}
	for name, fault := range map[string]func(http.ResponseWriter, *http.Request) bool{
		"server error": answers(http.StatusInternalServerError),
		"gone":         answers(http.StatusGone),
		"throttled": func(w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("Retry-After", "30")
			w.WriteHeader(http.StatusTooManyRequests)
			return true
		},
		"redirect": func(w http.ResponseWriter, r *http.Request) bool {
			http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
			return true
		},
		// A handler that returned would still send an empty answer to the client that gives up, and sometimes in time.
		"hang": func(_ http.ResponseWriter, r *http.Request) bool { <-r.Context().Done(); panic(http.ErrAbortHandler) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlant(t, v1alpha1.AlertWebhook{Type: v1alpha1.AlertSlack, URLSecretRef: ref("slack")})
			p.receiver.fails(fault)
			p.fails()
			assert.Empty(t, p.passes(90*time.Second))
			p.restart()
			assert.Empty(t, p.passes(90*time.Second))
			p.receiver.fails(nil)
			assert.Len(t, p.passes(time.Hour), 1, "the message must be delivered exactly once: %s", &p.log)
			assert.Contains(t, p.log.String(), "notification failed; trying again")
			assert.NotContains(t, p.log.String(), "S3CR3T")
		})
	}
}

func TestPagerDutyIncidents(t *testing.T) {
	p := newPlant(t, v1alpha1.AlertWebhook{Type: v1alpha1.AlertPagerDuty, URLSecretRef: ref("pagerduty"), IntegrationKeySecretRef: ref("integration"),
		Topics: []v1alpha1.AlertTopic{"NotReady", "SyncFailed"}})
	p.fails()
	assert.Len(t, p.passes(2*time.Minute), 2)
	assert.Equal(t, map[string]string{
		"stoker/uid-1/NotReady/TemplateFailed":   "error plant/line NotReady firing: TemplateFailed: area-4: <!channel> no such field `https://evil.example`",
		"stoker/uid-1/SyncFailed/TemplateFailed": "error plant/line SyncFailed firing: area-4 TemplateFailed: no such field",
	}, p.receiver.open)

	calls := 0
	p.receiver.fails(func(w http.ResponseWriter, _ *http.Request) bool { // takes the first of two
		if calls++; calls != 2 {
			return false
		}
		w.WriteHeader(http.StatusInternalServerError)
		return true
	})
	p.ready()
	assert.Len(t, p.passes(10*time.Minute), 2, "accepted messages must not be sent again")
	assert.Empty(t, p.receiver.open)
}

// Whatever gateways report, a message has the size that Slack and PagerDuty document, and says of each change at least what it is about.
func TestDocumentedLimits(t *testing.T) {
	for name, text := range map[string]string{"long": strings.Repeat("x", 5000), "wide": strings.Repeat("語", 3000), "escaped": strings.Repeat("<&>", 2000), "broken": strings.Repeat("\xff", 4000)} {
		for _, kind := range []v1alpha1.AlertType{v1alpha1.AlertSlack, v1alpha1.AlertPagerDuty} {
			t.Run(name+" "+string(kind), func(t *testing.T) {
				topics := []v1alpha1.AlertTopic{"NotReady", "SyncFailed", "ScanFailed", "GatewayFilesModified", "RefResolutionFailed"}
				hook := v1alpha1.AlertWebhook{Type: kind, URLSecretRef: ref(string(kind)), Topics: topics}
				if kind == v1alpha1.AlertPagerDuty {
					hook.IntegrationKeySecretRef = ref("integration")
				}
				p := newPlant(t, hook)
				p.gs.Name, p.gs.Namespace = strings.Repeat("n", 253), "plant"
				var rows []v1alpha1.DiscoveredGateway
				for i := range 2000 {
					rows = append(rows, v1alpha1.DiscoveredGateway{Name: strings.Repeat("g", 240) + strconv.Itoa(i), SyncStatus: v1alpha1.GatewayError, Reason: v1alpha1.ReasonScanFailed, Message: text, Drift: 7})
				}
				p.set(v1alpha1.OutcomeFailed, metav1.ConditionFalse, v1alpha1.ReasonScanFailed, text, rows...)
				p.gs.Status.Conditions = append(p.gs.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionRefResolved, Status: metav1.ConditionFalse, Reason: "RefNotFound", Message: text})
				got := strings.Join(p.passes(2*time.Minute), "")
				assert.NotContains(t, p.log.String(), "notification failed", "the receiver must accept the message")
				for _, w := range topics {
					assert.Contains(t, got, string(w)+" firing")
				}
			})
		}
	}
	t.Run("cut escape", func(t *testing.T) {
		for n := range 12 {
			cut := cutEscaped("ab&lt;cd&gt;ef", n+3)
			assert.LessOrEqual(t, len(cut), n+3)
			assert.NotRegexp(t, `&[^;]*$`, cut)
		}
	})
}

// The notifier sends nothing before the time that the receiver names.
func TestRetryAfter(t *testing.T) {
	p := newPlant(t, v1alpha1.AlertWebhook{Type: v1alpha1.AlertPagerDuty, URLSecretRef: ref("pagerduty"), IntegrationKeySecretRef: ref("integration")})
	tries := 0
	p.receiver.fails(func(w http.ResponseWriter, _ *http.Request) bool {
		tries++
		w.Header().Set("Retry-After", "1800")
		w.WriteHeader(http.StatusTooManyRequests)
		return true
	})
	p.fails()
	p.passes(31 * time.Minute)
	assert.Equal(t, 1, tries)
	p.passes(time.Minute)
	assert.Equal(t, 2, tries)

	now := time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC)
	for value, want := range map[string]time.Duration{"30": 30 * time.Second, "": 0, "-5": 0, "soon": 0, "99999": time.Hour, "99999999999999": 0,
		"Wed, 25 Nov 2026 12:02:00 GMT": 2 * time.Minute, "Wed, 25 Nov 2026 11:00:00 GMT": 0, "Thu, 26 Nov 2026 12:00:00 GMT": time.Hour} {
		t.Run(value, func(t *testing.T) { assert.Equal(t, want, retryAfter(value, now)) })
	}
}

// sentChange is a change in a CloudEvent.
type sentChange struct{ Topic, State, Ref, Commit, Message string }

func TestCloudEvents(t *testing.T) {
	p := newPlant(t, v1alpha1.AlertWebhook{Type: v1alpha1.AlertWebhookCE, URLSecretRef: ref("events"), SigningSecretRef: ref("signing"),
		Topics: []v1alpha1.AlertTopic{"SyncFailed", "SyncCompleted", "RefUpdated"}})
	p.gs.Status.LastGood = &v1alpha1.CommitRecord{Ref: "main", Commit: strings.Repeat("b", 40)}
	p.gs.Status.Target = &v1alpha1.TargetStatus{Ref: "main", Commit: strings.Repeat("b", 40)}
	assert.Empty(t, p.passes(time.Hour), "earlier events must not be sent")
	p.restart()
	assert.Empty(t, p.passes(time.Hour))

	good, target := *p.gs.Status.LastGood, *p.gs.Status.Target
	p.ready()
	good.Commit, target.Commit = strings.Repeat("a", 40), strings.Repeat("a", 40)
	p.gs.Status.LastGood, p.gs.Status.Target = &good, &target
	got := p.passes(time.Hour)
	require.Len(t, got, 1, "simultaneous changes must be one message")
	var e struct {
		SpecVersion, ID, Source, Type, DataContentType string
		Time                                           time.Time
		Data                                           struct {
			Namespace, GatewaySync string
			Changes                []sentChange
		}
	}
	require.NoError(t, json.Unmarshal([]byte(got[0]), &e))
	assert.Equal(t, []string{"1.0", "/apis/stoker.io/v1alpha1/namespaces/plant/gatewaysyncs/line", "io.stoker.gatewaysync", "application/json"},
		[]string{e.SpecVersion, e.Source, e.Type, e.DataContentType})
	assert.NotEmpty(t, e.ID)
	assert.Equal(t, []sentChange{{"SyncCompleted", "news", "main", strings.Repeat("a", 40), "all gateways run main at aaaaaaa"},
		{"RefUpdated", "news", "main", strings.Repeat("a", 40), "main is at aaaaaaa (spec.git.ref)"}}, e.Data.Changes)
	mac := hmac.New(sha256.New, []byte("S3CR3T-KEY"))
	mac.Write([]byte(got[0]))
	assert.Equal(t, "sha256="+hex.EncodeToString(mac.Sum(nil)), p.receiver.header.Get("X-Hub-Signature-256"), "the signature must be valid")
}

// Each item carries the commit and the text of its own event, whatever the status says when the message is sent.
func TestNewsAreOfTheirOwnEvent(t *testing.T) {
	p := newPlant(t, v1alpha1.AlertWebhook{Type: v1alpha1.AlertWebhookCE, URLSecretRef: ref("events"), Topics: []v1alpha1.AlertTopic{"SyncCompleted"}})
	commit := func(digit string) string { return strings.Repeat(digit, 40) }
	completed := func(digit string) {
		p.ready()
		p.gs.Status.LastGood = &v1alpha1.CommitRecord{Ref: "main", Commit: commit(digit)}
	}
	completed("a")
	p.passes(time.Minute)
	p.receiver.fails(func(w http.ResponseWriter, _ *http.Request) bool { w.WriteHeader(http.StatusBadGateway); return true })
	completed("b")
	p.passes(time.Minute)
	completed("c")
	p.passes(time.Minute)
	p.fails() // another commit
	p.gs.Status.LastGood, p.gs.Status.Outcome.Commit = &v1alpha1.CommitRecord{Ref: "main", Commit: commit("c")}, commit("d")
	p.passes(time.Minute)
	p.receiver.fails(nil)
	got := p.passes(20 * time.Minute)
	require.Len(t, got, 1)
	var e struct {
		Data struct{ Changes []sentChange }
	}
	require.NoError(t, json.Unmarshal([]byte(got[0]), &e))
	assert.Equal(t, []sentChange{{"SyncCompleted", "news", "main", commit("b"), "all gateways run main at bbbbbbb"},
		{"SyncCompleted", "news", "main", commit("c"), "all gateways run main at ccccccc"}}, e.Data.Changes)
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
				assert.Equal(t, map[string]string{"stoker/uid-1/NotReady/ScanFailed": "warning plant/line NotReady firing: area-2 ScanFailed: timeout"}, p.receiver.open)
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
	assert.Equal(t, map[string]string{"stoker/uid-1/NotReady/ConflictDetected": "warning plant/line NotReady firing: ConflictDetected: area-1: edited"}, p.receiver.open)
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
	assert.Equal(t, map[string]string{"stoker/uid-1/NotReady/ScanFailed": "error plant/line NotReady firing: ScanFailed: 2 gateways fail"}, p.receiver.open)
	failing(3)
	assert.Empty(t, p.passes(time.Hour), "one more gateway is no news")
	failing(4)
	assert.Len(t, p.passes(time.Hour), 2, "twice as many are")
	conflict()
	assert.Empty(t, p.passes(time.Hour), "it got better")
	failing(2)
	assert.Len(t, p.passes(time.Hour), 0, "known already")
	p.ready()
	assert.Len(t, p.passes(time.Hour), 2)
	assert.Empty(t, p.receiver.open)
}

// A message says when the state began, also if the notifier started later. A state that the notifier saw not to hold began after that.
func TestSince(t *testing.T) {
	for name, seen := range map[string]bool{"before the first look": false, "after the first look": true} {
		t.Run(name, func(t *testing.T) {
			p := newPlant(t, v1alpha1.AlertWebhook{Type: v1alpha1.AlertWebhookCE, URLSecretRef: ref("events")})
			if seen {
				p.set(v1alpha1.OutcomeHeld, metav1.ConditionFalse, v1alpha1.ReasonMaintenanceWindow, "waits")
				p.passes(time.Hour)
			}
			want := p.now.Add(10 * time.Second)
			began := p.now.Add(-time.Hour)
			p.fails()
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
	p.fails()
	got := p.passes(10 * time.Minute)
	require.Len(t, got, 1, "%s", &p.log)
	assert.Contains(t, got[0], `{"text":"TemplateFailed: area-4: \u003c!channel\u003e no such field`)
}

// R10: a receiver that does not answer delays no message to another one.
func TestSlowReceiver(t *testing.T) {
	slow, quick := newPlant(t, v1alpha1.AlertWebhook{Type: v1alpha1.AlertSlack, URLSecretRef: ref("slack")}), newReceiver(t)
	arrived, release := make(chan struct{}), make(chan struct{})
	slow.receiver.fails(func(http.ResponseWriter, *http.Request) bool { close(arrived); <-release; return false })
	slow.fails()
	slow.gs.Status.ConfirmedAt = &metav1.Time{Time: time.Now()}
	other := slow.gs.DeepCopy()
	other.Namespace, other.UID = "other", "uid-2"
	secret := slow.objects[0].DeepCopy()
	secret.Namespace, secret.Data = "other", map[string][]byte{"slack": []byte(quick.URL + "/slack")}
	list := []*v1alpha1.GatewaySync{slow.gs}
	var mu sync.Mutex
	changed, sent := make(chan struct{}, 1), make(chan string, 2)
	n := slow.notifier
	n.Core, n.Client.Timeout, n.Settle, n.Changed = clientset.New(slow.objects[0], secret), time.Minute, 0, changed
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
	assert.Len(t, quick.got(), 1)
	stop() // the message on its way is recorded
	close(release)
	require.NoError(t, <-ended)
	assert.Len(t, n.decodeRecord(slow.record), 2)
}

func TestOldEventsAreDropped(t *testing.T) {
	p := newPlant(t, v1alpha1.AlertWebhook{Type: v1alpha1.AlertSlack, URLSecretRef: ref("slack"), Topics: []v1alpha1.AlertTopic{"Ready"}})
	p.passes(time.Minute)
	p.receiver.fails(func(w http.ResponseWriter, _ *http.Request) bool { w.WriteHeader(http.StatusBadGateway); return true })
	p.now = p.now.Add(time.Minute)
	p.ready()
	p.passes(2 * time.Hour)
	p.receiver.fails(nil)
	assert.Empty(t, p.passes(time.Hour), "old events must be dropped")
}

func TestRateIsBounded(t *testing.T) {
	p := newPlant(t, v1alpha1.AlertWebhook{Type: v1alpha1.AlertSlack, URLSecretRef: ref("slack"), Topics: []v1alpha1.AlertTopic{"Ready"}})
	p.passes(time.Minute)
	n := 0
	for range 60 {
		p.ready()
		n += len(p.passes(10 * time.Second))
	}
	assert.LessOrEqual(t, n, 11, "at most one message a minute")
	assert.GreaterOrEqual(t, n, 9)
}

func TestRefusedSecrets(t *testing.T) {
	for name, c := range map[string]struct{ key, want string }{
		"plain HTTP":  {"plain", "the Secret does not contain an https URL"},
		"missing key": {"absent", "the key absent of the Secret alerts must have 1 to 4096 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlant(t, v1alpha1.AlertWebhook{Type: v1alpha1.AlertSlack, URLSecretRef: ref(c.key)})
			p.fails()
			assert.Empty(t, p.passes(10*time.Minute))
			assert.Contains(t, p.log.String(), c.want)
			assert.NotContains(t, p.log.String(), "S3CR3T")
			assert.Less(t, strings.Count(p.log.String(), "notification failed"), 12, "the retries must become rarer")
		})
	}
}

func TestAlertTopics(t *testing.T) {
	for _, name := range v1alpha1.AlertTopics() {
		t.Run(string(name), func(t *testing.T) {
			w, ok := topicOf(name)
			require.True(t, ok)
			assert.NotEqual(t, w.state == nil, w.event == nil, "a topic must be either a state or an event")
		})
	}
}

func TestStatesOfGateways(t *testing.T) {
	at := metav1.Now()
	for name, c := range map[string]struct {
		topic v1alpha1.AlertTopic
		row   v1alpha1.DiscoveredGateway
		want  string
	}{
		"held":       {"SyncHeld", v1alpha1.DiscoveredGateway{Name: "a", SyncStatus: v1alpha1.GatewayHeld, Reason: v1alpha1.ReasonMassDeletion}, "a MassDeletion"},
		"paused":     {"SyncHeld", v1alpha1.DiscoveredGateway{Name: "a", SyncStatus: v1alpha1.GatewayHeld, Reason: v1alpha1.ReasonPaused}, ""},
		"drift":      {"GatewayFilesModified", v1alpha1.DiscoveredGateway{Name: "a", Drift: 3}, "a (3 changed on the gateway)"},
		"synonym":    {"ScanFailure", v1alpha1.DiscoveredGateway{Name: "a", Reason: v1alpha1.ReasonScanFailed, Message: "x\ny"}, "a ScanFailed: x y"},
		"rolledBack": {"AutoRollback", v1alpha1.DiscoveredGateway{Name: "a", Reason: v1alpha1.ReasonRolledBack}, "a RolledBack"},
	} {
		t.Run(name, func(t *testing.T) {
			w, ok := topicOf(c.topic)
			require.True(t, ok)
			gs := &v1alpha1.GatewaySync{}
			gs.Status.DiscoveredGateways = []v1alpha1.DiscoveredGateway{c.row}
			assert.Equal(t, c.want, w.state(newInput(gs, at.Time)).text)
		})
	}
	gs := &v1alpha1.GatewaySync{}
	for i := range 1000 {
		gs.Status.DiscoveredGateways = append(gs.Status.DiscoveredGateways, v1alpha1.DiscoveredGateway{Name: strconv.Itoa(i), SyncStatus: v1alpha1.GatewayError})
	}
	w, _ := topicOf("SyncFailed")
	assert.True(t, strings.HasSuffix(w.state(newInput(gs, at.Time)).text, "and 990 more"))
}

// R10: the record of one namespace has its share of the Lease.
func TestRecordIsBounded(t *testing.T) {
	n := New(Config{Log: slog.New(slog.DiscardHandler)})
	for i := range 10_000 {
		n.channels[strconv.Itoa(i)] = &channel{gs: &v1alpha1.GatewaySync{}, sent: map[v1alpha1.AlertTopic]string{"NotReady": "2026-11-25T12:00:00Z"}}
	}
	other := &channel{gs: &v1alpha1.GatewaySync{ObjectMeta: metav1.ObjectMeta{Namespace: "other"}}, sent: map[v1alpha1.AlertTopic]string{"NotReady": "2026-11-25T12:00:00Z"}}
	n.channels["z"] = other // the greatest key
	text := n.encodeRecord()
	assert.Less(t, len(text), 256<<10)
	assert.Greater(t, len(n.decodeRecord(text)), 3000)
	assert.Equal(t, other.sent, n.decodeRecord(text)["z"], "a namespace with many receivers must not push out another one")
	assert.Empty(t, n.decodeRecord("{"), "an invalid record must be dropped")
}
