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
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/desiredref"
	"stoker.io/stoker/internal/httpclient"
	"stoker.io/stoker/test/clientset"
	"stoker.io/stoker/test/program"
)

// plant is a GatewaySync with a receiver, and a notifier whose clock the test moves.
type plant struct {
	t        *testing.T
	receiver *receiver
	gs       *v1alpha1.GatewaySync
	now      time.Time
	saved    string
	saves    int
	log      program.Log
	notifier *Notifier
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
	p.notifier = New(Config{Core: clientset.New(p.objects[0]), Client: httpclient.Client{CA: p.objects[0].Data["ca"], Loopback: true, Timeout: 2 * time.Second},
		Settle: time.Minute, Log: slog.New(slog.NewTextHandler(&p.log, nil)), Sent: func(v1alpha1.AlertType, string) {},
		Save: func(_ context.Context, text string) error { p.saved, p.saves = text, p.saves+1; return nil }})
	p.notifier.saved, p.notifier.previous = p.saved, p.notifier.decodeRecord(p.saved)
}

// passes lets time pass and runs one pass of the notifier every ten seconds. It returns what the receiver got.
func (p *plant) passes(d time.Duration) []string {
	p.t.Helper()
	for end := p.now.Add(d); p.now.Before(end); {
		p.now = p.now.Add(10 * time.Second)
		p.gs.Status.ConfirmedAt = &metav1.Time{Time: p.now}
		p.notifier.configure([]*v1alpha1.GatewaySync{p.gs}, true)
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
	gs.Status.ObservedGeneration, gs.Status.ObservedRequest = gs.Generation, desiredref.Key(gs)
	gs.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: ready, Reason: string(reason), Message: message, LastTransitionTime: metav1.NewTime(p.now)}}
	gs.Status.Outcome = &v1alpha1.Outcome{Phase: phase, Ref: "main", Commit: strings.Repeat("a", 40), Total: int32(len(rows)), Reason: reason, Message: message}
	gs.Status.DiscoveredGateways = rows
	p.gs = gs
}

func (p *plant) ready() {
	p.set(v1alpha1.OutcomeSucceeded, metav1.ConditionTrue, v1alpha1.ReasonSynced, "3 of 3 gateways run aaaaaaa")
}

func (p *plant) breaks() {
	p.set(v1alpha1.OutcomeFailed, metav1.ConditionFalse, v1alpha1.ReasonTemplateFailed, "area-4: <!channel> no such field `https://evil.example`",
		v1alpha1.DiscoveredGateway{Name: "area-4", SyncStatus: v1alpha1.GatewayError, Reason: v1alpha1.ReasonTemplateFailed, Message: "no such field"})
}

func TestSlackMessages(t *testing.T) {
	p := newPlant(t, v1alpha1.AlertWebhook{Type: v1alpha1.AlertSlack, URLSecretRef: ref("slack")})
	assert.Empty(t, p.passes(time.Hour), "a healthy fleet must not send messages")
	p.breaks()
	assert.Empty(t, p.passes(50*time.Second), "a problem must settle before it is sent")
	got := p.passes(time.Hour)
	require.Len(t, got, 1, "the start must be sent once")
	assert.JSONEq(t, `{"text": ":red_circle: `+"`plant/line` *NotReady firing*: `TemplateFailed: area-4: &lt;!channel&gt; no such field 'https://evil.example'` next: `the gateways keep what they run; fix the template in git`"+`"}`, got[0])
	p.restart()
	assert.Empty(t, p.passes(time.Hour), "a restart must not repeat messages")
	p.notifier.configure(nil, false)
	assert.Empty(t, p.passes(time.Hour), "a GatewaySync that could not be decoded for a moment must not repeat messages")
	p.ready()
	got = p.passes(time.Hour)
	require.Len(t, got, 1, "the end must be sent once")
	assert.JSONEq(t, `{"text": ":large_green_circle: `+"`plant/line` *NotReady resolved*: `it has ended after 3h1m0s: 3 of 3 gateways run aaaaaaa`"+`"}`, got[0])
	assert.Empty(t, p.saved)
	assert.NotContains(t, p.log.String(), "S3CR3T")
}

func TestEntriesOfOneReceiver(t *testing.T) {
	slack := func(topics ...v1alpha1.AlertTopic) v1alpha1.AlertWebhook {
		return v1alpha1.AlertWebhook{Type: v1alpha1.AlertSlack, URLSecretRef: ref("slack"), Topics: topics}
	}
	p := newPlant(t, slack(), slack("SyncFailed"), slack("NotReady", "SyncHeld"))
	assert.Empty(t, p.passes(time.Hour))
	p.breaks()
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
		p.breaks()
		assert.Empty(t, p.passes(30*time.Second))
		p.ready()
		assert.Empty(t, p.passes(30*time.Second))
	}
	assert.Zero(t, p.saves, "nothing was sent")
}

// R9: a receiver that has refused a notification gets it once when it accepts messages again.
func TestReceiverFaults(t *testing.T) {
	answers := func(code int) fault {
		return func(w http.ResponseWriter, _ *http.Request) bool { w.WriteHeader(code); return true }
	}
	for name, f := range map[string]fault{
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
		// A handler that returned would send an empty answer, which could arrive before the client gives up.
		"hang": func(_ http.ResponseWriter, r *http.Request) bool { <-r.Context().Done(); panic(http.ErrAbortHandler) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlant(t, v1alpha1.AlertWebhook{Type: v1alpha1.AlertSlack, URLSecretRef: ref("slack")})
			p.receiver.setFault(f)
			p.breaks()
			for range 2 { // sequence: two notifiers fail, one after the other
				p.restart()
				if name == "hang" {
					p.notifier.Client.Timeout = 50 * time.Millisecond
				}
				assert.Empty(t, p.passes(90*time.Second))
			}
			p.receiver.setFault(nil)
			p.notifier.Client.Timeout = 2 * time.Second
			assert.Len(t, p.passes(time.Hour), 1, "the receiver must accept the message once: %s", &p.log)
			assert.Contains(t, p.log.String(), "notification failed; trying again")
			assert.NotContains(t, p.log.String(), "S3CR3T")
		})
	}
}

// Delivery is at least once: if the answer does not say that a receiver has accepted a message, the message is sent again with the same id.
func TestAcceptedMessageAnsweredWithError(t *testing.T) {
	p := newPlant(t, v1alpha1.AlertWebhook{Type: v1alpha1.AlertWebhookCE, URLSecretRef: ref("events"), Topics: []v1alpha1.AlertTopic{"NotReady"}})
	p.receiver.setFault(func(w http.ResponseWriter, r *http.Request) bool {
		body, err := io.ReadAll(r.Body)
		assert.NoError(t, err)
		p.receiver.mu.Lock()
		defer p.receiver.mu.Unlock()
		p.receiver.bodies = append(p.receiver.bodies, string(body)) // the receiver has it, although it answers with an error
		w.WriteHeader(http.StatusInternalServerError)
		return true
	})
	p.breaks()
	got := p.passes(90 * time.Second)
	require.NotEmpty(t, got)
	p.restart()
	p.receiver.setFault(nil)
	again := p.passes(time.Hour)
	require.Len(t, again, 1, "the message must be sent until a receiver says that it has it")
	ids := map[string]bool{}
	// setup: the ids of all messages
	for _, text := range append(got, again...) {
		var e struct{ ID string }
		require.NoError(t, json.Unmarshal([]byte(text), &e))
		ids[e.ID] = true
	}
	assert.Len(t, ids, 1, "a program recognizes a repetition by the id")
}

func TestPagerDutyIncidents(t *testing.T) {
	p := newPlant(t, v1alpha1.AlertWebhook{Type: v1alpha1.AlertPagerDuty, URLSecretRef: ref("pagerduty"), IntegrationKeySecretRef: ref("integration"),
		Topics: []v1alpha1.AlertTopic{"NotReady", "SyncFailed"}})
	p.breaks()
	assert.Len(t, p.passes(2*time.Minute), 2)
	assert.Equal(t, map[string]string{
		"stoker/uid-1/NotReady/TemplateFailed/error/1":   "error plant/line NotReady firing: TemplateFailed: area-4: <!channel> no such field `https://evil.example`",
		"stoker/uid-1/SyncFailed/TemplateFailed/error/1": "error plant/line SyncFailed firing: area-4 TemplateFailed: no such field",
	}, p.receiver.open)

	calls := 0
	p.receiver.setFault(func(w http.ResponseWriter, _ *http.Request) bool { // refuses only the second event
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
	for name, text := range map[string]string{"long": strings.Repeat("x", 5000), "wide": strings.Repeat("語", 3000), "escaped": strings.Repeat("<&>", 2000), "invalid UTF-8": strings.Repeat("\xff", 4000)} {
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
}

// After an outage of the receiver, more changes wait than a message has room for.
func TestManyChangesInOneMessage(t *testing.T) {
	hook := v1alpha1.AlertWebhook{Type: v1alpha1.AlertSlack, URLSecretRef: ref("slack")}
	p := newPlant(t, hook)
	accepted, err := p.notifier.deliver(t.Context(), p.gs, &hook, slices.Repeat([]change{{Topic: "SyncCompleted", State: News, Text: strings.Repeat("x", maxText)}}, 60), p.now)
	require.NoError(t, err)
	assert.Len(t, accepted, maxChanges, "the others follow with the next message")
}

// A text is never cut within an escaped character.
func TestCutEscaped(t *testing.T) {
	for n := 3; n < 15; n++ {
		t.Run(strconv.Itoa(n), func(t *testing.T) {
			cut := cutEscaped("ab&lt;cd&gt;ef", n)
			assert.LessOrEqual(t, len(cut), n)
			assert.NotRegexp(t, `&[^;]*$`, cut)
		})
	}
}

// The notifier sends nothing before the time that the receiver names.
func TestRetryAfter(t *testing.T) {
	p := newPlant(t, v1alpha1.AlertWebhook{Type: v1alpha1.AlertPagerDuty, URLSecretRef: ref("pagerduty"), IntegrationKeySecretRef: ref("integration")})
	tries := 0
	p.receiver.setFault(func(w http.ResponseWriter, _ *http.Request) bool {
		tries++
		w.Header().Set("Retry-After", "1800")
		w.WriteHeader(http.StatusTooManyRequests)
		return true
	})
	p.breaks()
	p.passes(31 * time.Minute)
	assert.Equal(t, 1, tries)
	p.passes(time.Minute)
	assert.Equal(t, 2, tries)
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

func TestOldEventsAreDropped(t *testing.T) {
	p := newPlant(t, v1alpha1.AlertWebhook{Type: v1alpha1.AlertSlack, URLSecretRef: ref("slack"), Topics: []v1alpha1.AlertTopic{"Ready"}})
	p.passes(time.Minute)
	p.receiver.setFault(func(w http.ResponseWriter, _ *http.Request) bool { w.WriteHeader(http.StatusBadGateway); return true })
	p.now = p.now.Add(time.Minute)
	p.ready()
	p.passes(2 * time.Hour)
	p.receiver.setFault(nil)
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
			p.breaks()
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
		"scan":       {"ScanFailed", v1alpha1.DiscoveredGateway{Name: "a", Reason: v1alpha1.ReasonScanFailed, Message: "x\ny"}, "a ScanFailed: x y"},
		"rolledBack": {"AutoRollbackPerformed", v1alpha1.DiscoveredGateway{Name: "a", Reason: v1alpha1.ReasonRolledBack}, "a RolledBack"},
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
	assert.Less(t, len(text), 256<<10, "Kubernetes limits all annotations of an object to this")
	assert.Greater(t, len(n.decodeRecord(text)), 3000)
	assert.Equal(t, other.sent, n.decodeRecord(text)["z"], "a namespace with many receivers must not push out another one")
	assert.Empty(t, n.decodeRecord("{"), "an invalid record must be dropped")
}
