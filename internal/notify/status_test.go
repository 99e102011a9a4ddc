package notify

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/agent/forge"
	"stoker.io/stoker/agent/forge/forgetest"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/giturl"
	"stoker.io/stoker/internal/httpclient"
	"stoker.io/stoker/internal/request"
)

// newForgePlant returns a plant whose repository is at a fake of a forge.
func newForgePlant(t *testing.T, provider string) (*plant, *forgetest.Fake) {
	t.Helper()
	f := forgetest.Start(t, provider, nil)
	p := newPlant(t, v1alpha1.AlertWebhook{Type: v1alpha1.AlertCommitStatus, IntegrationKeySecretRef: ref("forge")})
	p.objects[0].Data["forge"] = []byte(forgetest.Token + "\n")
	p.receiver.setFault(func(w http.ResponseWriter, r *http.Request) bool { f.Config.Handler.ServeHTTP(w, r); return true })
	p.gs.Spec.Git.Repo = p.receiver.URL + map[string]string{giturl.AzureDevOps: "/plants/line/_git/site"}[provider]
	if provider != giturl.AzureDevOps {
		p.gs.Spec.Git.Repo += "/plants/site.git"
	}
	p.gs.Spec.Bidirectional = &v1alpha1.BidirectionalSpec{Provider: provider}
	if base := map[string]string{giturl.AzureDevOps: "/plants", giturl.Bitbucket: "/2.0"}[provider]; base != "" {
		p.gs.Spec.Bidirectional.APIBaseURL = p.receiver.URL + base
	}
	p.restart()
	p.notifier.Page = "https://stoker.example.com/{namespace}/{name}"
	return p, f
}

// at makes the outcome about another commit.
func (p *plant) at(digit string) *plant {
	p.gs.Status.Outcome.Commit = strings.Repeat(digit, 40)
	return p
}

func (p *plant) progresses() {
	p.set(v1alpha1.OutcomeProgressing, metav1.ConditionFalse, v1alpha1.ReasonProgressing, "1 of 3 gateways runs aaaaaaa")
}

// settled is longer than the Settle of a plant, after which the notifier sends a state.
const settled = 2 * time.Minute

func TestCommitStatus(t *testing.T) {
	for _, provider := range forgetest.Providers {
		t.Run(provider, func(t *testing.T) {
			p, f := newForgePlant(t, provider)
			status := func(digit string) (forge.CommitStatus, int) {
				return f.Status(strings.Repeat(digit, 40), "stoker/plant/line")
			}
			page := "https://stoker.example.com/plant/line"
			p.progresses()
			p.passes(settled)
			got, _ := status("a")
			assert.Equal(t, forge.CommitStatus{State: forge.Pending, Context: "stoker/plant/line", Description: "1 of 3 gateways runs aaaaaaa", URL: page}, got)
			p.progresses()
			p.at("c").passes(settled)
			got, _ = status("a")
			assert.Equal(t, forge.CommitStatus{State: forge.Failure, Context: "stoker/plant/line", Description: "superseded by ccccccc", URL: page}, got)
			p.ready()
			p.passes(settled)
			got, _ = status("a")
			assert.Equal(t, forge.CommitStatus{State: forge.Success, Context: "stoker/plant/line", Description: "3 of 3 gateways run aaaaaaa", URL: page}, got)
			p.breaks()
			p.at("b").passes(settled)
			got, _ = status("b")
			assert.Equal(t, forge.Failure, got.State)
			assert.Contains(t, got.Description, "TemplateFailed: area-4: ")
			got, _ = status("a")
			assert.Equal(t, forge.Success, got.State)
			assert.Len(t, f.Requests(), 6, "each state of a commit is one request")
			p.restart()
			p.passes(time.Hour)
			assert.Len(t, f.Requests(), 6, "idle passes and a restart send nothing")
			assert.NotContains(t, p.log.String(), "failed", "no request may fail")
		})
	}
}

func TestCommitStatusIsQuiet(t *testing.T) {
	type step struct {
		name  string
		does  func(p *plant)
		waits time.Duration
		sent  int // requests since the step before
	}
	away := func(p *plant) { p.gs = p.gs.DeepCopy(); p.gs.Status.Outcome.Reason = v1alpha1.ReasonAgentsAway }
	for name, steps := range map[string][]step{
		"a pod restarts": {{"runs", (*plant).ready, settled, 1}, {"follows", (*plant).progresses, time.Hour, 0}, {"runs", (*plant).ready, time.Hour, 0}},
		"flapping": {{"follows", (*plant).progresses, settled, 1}, {"fails", (*plant).breaks, 30 * time.Second, 0}, {"follows", (*plant).progresses, 30 * time.Second, 0},
			{"fails", (*plant).breaks, 30 * time.Second, 0}, {"keeps failing", (*plant).breaks, settled, 1}, {"follows", (*plant).progresses, settled, 1}},
		"fails later":     {{"runs", (*plant).ready, settled, 1}, {"fails", (*plant).breaks, settled, 1}, {"runs", (*plant).ready, settled, 1}},
		"another reason":  {{"fails", (*plant).breaks, settled, 1}, {"fails again", func(p *plant) { p.breaks(); p.gs.Status.Outcome.Reason = v1alpha1.ReasonPatchFailed }, settled, 1}},
		"agents are away": {{"follows", (*plant).progresses, settled, 1}, {"away", away, time.Hour, 0}},
		"no commit":       {{"unknown", func(p *plant) { p.at("") }, time.Hour, 0}, {"not an id", func(p *plant) { p.at("../x") }, time.Hour, 0}},
		"same commit, another address": {{"runs", (*plant).ready, settled, 1}, {"moved", func(p *plant) {
			p.gs = p.gs.DeepCopy()
			p.gs.Spec.Git.Repo = strings.TrimSuffix(p.gs.Spec.Git.Repo, ".git")
		}, settled, 1}},
		"another commit, another address": {{"follows", (*plant).progresses, settled, 1}, {"moved", func(p *plant) {
			p.gs = p.gs.DeepCopy()
			p.gs.Spec.Git.Repo = strings.TrimSuffix(p.gs.Spec.Git.Repo, ".git")
			p.at("b")
		}, settled, 1}},
		"switched off": {{"off", func(p *plant) { p.gs.Spec.Alerting.Enabled = false }, time.Hour, 0}},
		"a new commit every ten seconds": {{"runs", (*plant).ready, settled, 1}, {"pushes", func(p *plant) {
			for i := range 12 { // sequence: commits follow each other
				p.progresses()
				p.at(fmt.Sprintf("%x", i)).passes(10 * time.Second)
			}
		}, settled, 5}}, // three pending ones, a minute apart, and two of them supersede a pending one
	} {
		t.Run(name, func(t *testing.T) {
			p, f := newForgePlant(t, giturl.GitHub)
			sum := 0
			for _, s := range steps { // sequence: each step follows the one before
				s.does(p)
				p.passes(s.waits)
				sum += s.sent
				require.Len(t, f.Requests(), sum, "%s: %s", s.name, &p.log)
			}
		})
	}
}

// C17: the address of the repository is chosen by a user of the namespace. No error contains the token.
func TestCommitStatusRefusals(t *testing.T) {
	for name, c := range map[string]struct {
		change func(p *plant)
		want   string
	}{
		"plain HTTP":      {func(p *plant) { p.gs.Spec.Git.Repo = "http://git.example.com/plants/site" }, "spec.git.repo is http://"},
		"unknown host":    {func(p *plant) { p.gs.Spec.Bidirectional = nil }, "set spec.bidirectional.provider"},
		"no forge":        {func(p *plant) { p.gs.Spec.Bidirectional.Provider = forge.NoForge }, "set spec.bidirectional.provider"},
		"plain HTTP API":  {func(p *plant) { p.gs.Spec.Bidirectional.APIBaseURL = "http://git.example.com" }, "spec.bidirectional.apiBaseURL is not https://"},
		"loopback":        {func(p *plant) { p.notifier.Client.Loopback = false }, "a loopback address"},
		"metadata":        {func(p *plant) { p.gs.Spec.Bidirectional.APIBaseURL = "https://169.254.169.254/x" }, "a link-local address"},
		"wrong token":     {func(p *plant) { p.objects[0].Data["forge"] = []byte("S3CR3T-TOKEN"); p.restart() }, "rejects the token (HTTP 401)"},
		"no token":        {func(p *plant) { p.gs.Spec.Alerting.Webhooks[0].IntegrationKeySecretRef.Key = "none" }, "the key none of the Secret alerts must have"},
		"bad certificate": {func(p *plant) { p.notifier.Client = httpclient.Client{Loopback: true} }, "cannot be reached"},
		"redirect": {func(p *plant) {
			p.receiver.setFault(func(w http.ResponseWriter, r *http.Request) bool {
				http.Redirect(w, r, "https://evil.example/", http.StatusTemporaryRedirect)
				return true
			})
		}, "redirects to another host"},
		"throttled": {func(p *plant) {
			p.receiver.setFault(func(w http.ResponseWriter, _ *http.Request) bool {
				w.Header().Set("Retry-After", "1800")
				w.WriteHeader(http.StatusTooManyRequests)
				return true
			})
		}, "limits the rate of requests"},
	} {
		t.Run(name, func(t *testing.T) {
			p, f := newForgePlant(t, giturl.GitHub)
			c.change(p)
			p.passes(10 * time.Minute)
			assert.Contains(t, p.log.String(), c.want)
			assert.NotContains(t, p.log.String(), "S3CR3T")
			assert.NotContains(t, p.log.String(), forgetest.Token)
			assert.Less(t, strings.Count(p.log.String(), "notification failed"), 12, "the retries must become rarer")
			if name == "throttled" {
				assert.Equal(t, 1, strings.Count(p.log.String(), "notification failed"))
			}
			_, set := f.Status(strings.Repeat("a", 40), "stoker/plant/line")
			assert.Zero(t, set)
		})
	}
}

func TestCommitStatusBounds(t *testing.T) {
	p := newPlant(t)
	assert.Equal(t, "stoker/north/plant/line", (&Notifier{Config: Config{Cluster: "north"}}).statusContext(p.gs))
	p.gs.Name = strings.Repeat("n", 253)
	assert.Len(t, p.notifier.statusContext(p.gs), forge.MaxContext)
	other := p.gs.DeepCopy()
	other.Name = strings.Repeat("n", 252) + "m"
	assert.NotEqual(t, p.notifier.statusContext(p.gs), p.notifier.statusContext(other))
	p.notifier.Page = "https://stoker.example.com/{name}"
	assert.Empty(t, p.notifier.statusPage(p.gs))
	p.set(v1alpha1.OutcomeFailed, metav1.ConditionFalse, v1alpha1.ReasonTemplateFailed, strings.Repeat("語\n", 500))
	c, ok := statusOf(newInput(p.gs, p.now))
	require.True(t, ok)
	assert.LessOrEqual(t, len(c.Text), forge.MaxDescription)
	assert.NotContains(t, c.Text, "\n")
	for phase, want := range map[request.Phase]forge.CommitState{request.Progressing: forge.Pending, request.Held: forge.Pending, request.Paused: forge.Pending, request.Succeeded: forge.Success, request.Failed: forge.Failure} {
		t.Run(string(phase), func(t *testing.T) {
			c, _ := statusOf(input{GatewaySync: p.gs, verdict: request.Verdict{Phase: phase, Commit: strings.Repeat("a", 40)}})
			assert.Equal(t, State(want), c.State)
		})
	}
}

func TestValidate(t *testing.T) {
	for page, ok := range map[string]bool{
		"": true, "https://grafana.example.com/d/stoker?var-namespace={namespace}&var-name={name}": true, "javascript:alert(1)": false, "https://": false, "https://u:p@x/": false,
		"https://x/<": false, "https://x/a|b": false, "https://x/a b": false, "https://x/" + strings.Repeat("a", 300): false,
	} {
		t.Run(page, func(t *testing.T) { assert.Equal(t, ok, Config{Page: page, Cluster: "north 1"}.Validate() == nil) })
	}
}

// A message says which cluster it is about, what to do, and where to look.
func TestMessagesHelp(t *testing.T) {
	for kind, want := range map[v1alpha1.AlertType][]string{
		v1alpha1.AlertSlack: {"`north plant/line` *NotReady firing*: `MassDeletion: area-1: 9 files` next: `this needs a user: ", "; now: stoker sync line --namespace plant --confirm-deletion=COMMIT` ",
			"<https://stoker.example.com/plant/line|page> <https://github.com/plants/site/commit/" + strings.Repeat("a", 40) + "|aaaaaaa>"},
		v1alpha1.AlertPagerDuty: {`"links":[{"href":"https://stoker.example.com/plant/line","text":"page"},{"href":"https://github.com/plants/site/commit/aa`, `"source":"north plant/line"`},
		v1alpha1.AlertTeams:     {`"north plant/line NotReady firing: "`, `--confirm-deletion=COMMIT"`, `"actions":[{"title":"page","type":"Action.OpenUrl","url":"https://stoker.example.com/plant/line"}`},
		v1alpha1.AlertWebhookCE: {`"cluster":"north","namespace":"plant"`, `"page":"https://stoker.example.com/plant/line"`, `"link":"https://github.com/plants/site/commit/aa`, `"next":"this needs a user`},
	} {
		t.Run(string(kind), func(t *testing.T) {
			key := map[v1alpha1.AlertType]string{v1alpha1.AlertWebhookCE: "events"}[kind]
			if key == "" {
				key = string(kind)
			}
			hook := v1alpha1.AlertWebhook{Type: kind, URLSecretRef: ref(key)}
			if kind == v1alpha1.AlertPagerDuty {
				hook.IntegrationKeySecretRef = ref("integration")
			}
			p := newPlant(t, hook)
			p.notifier.Cluster, p.notifier.Page = "north", "https://stoker.example.com/{namespace}/{name}"
			p.gs.Spec.Git.Repo = "git@github.com:plants/site.git"
			p.set(v1alpha1.OutcomeHeld, metav1.ConditionFalse, v1alpha1.ReasonMassDeletion, "area-1: 9 files",
				v1alpha1.DiscoveredGateway{Name: "area-1", SyncStatus: v1alpha1.GatewayHeld, Reason: v1alpha1.ReasonMassDeletion})
			got := p.passes(settled)
			require.Len(t, got, 1, p.log.String())
			text := strings.NewReplacer(`\u003c`, "<", `\u003e`, ">").Replace(got[0])
			for _, w := range want { // sequence: parts of one message
				assert.Contains(t, text, w)
			}
		})
	}
}

// A status does not say since when a fleet is paused: its condition Ready may have its status from before the pause.
func TestPausedForLong(t *testing.T) {
	for name, c := range map[string]struct {
		phase   v1alpha1.OutcomePhase
		ready   metav1.ConditionStatus
		message string
	}{
		"target runs": {v1alpha1.OutcomeSucceeded, metav1.ConditionTrue, "3 of 3 gateways run aaaaaaa; paused"},
		"behind":      {v1alpha1.OutcomePaused, metav1.ConditionFalse, "paused; 2 of 3 gateways run aaaaaaa"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlant(t, v1alpha1.AlertWebhook{Type: v1alpha1.AlertSlack, URLSecretRef: ref("slack"), Topics: []v1alpha1.AlertTopic{"PausedForLong"}})
			p.set(c.phase, c.ready, v1alpha1.ReasonPaused, c.message)
			p.gs.Status.Conditions[0].LastTransitionTime = metav1.NewTime(p.now.Add(-48 * time.Hour))
			assert.Empty(t, p.passes(time.Hour))
			p.gs.Spec.Paused = true
			assert.Empty(t, p.passes(23*time.Hour), "a pause of less than a day is not news")
			p.restart()
			got := p.passes(3 * time.Hour)
			require.Len(t, got, 1)
			assert.Contains(t, got[0], "*PausedForLong firing*: `paused since 2026-11-25T13:00:10Z: "+c.message+"` next: ")
			p.gs.Spec.Paused = false
			p.ready()
			assert.Len(t, p.passes(time.Hour), 1)
			assert.Empty(t, p.saved)
		})
	}
}
