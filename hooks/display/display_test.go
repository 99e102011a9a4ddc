package display

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/desiredref"
	"stoker.io/stoker/internal/request"
)

// A fleet of a thousand shows the reasons first, then the gateways that are behind.
func TestDescribeThousandGateways(t *testing.T) {
	gs := &v1alpha1.GatewaySync{ObjectMeta: metav1.ObjectMeta{Namespace: "plant", Name: "site"}}
	for i := range 1000 { // setup: three are behind
		g := v1alpha1.DiscoveredGateway{Name: fmt.Sprintf("site-%03d", i), SyncStatus: v1alpha1.GatewaySynced, Reason: v1alpha1.ReasonSynced, SyncedCommit: "b"}
		switch i {
		case 500:
			g.SyncStatus, g.Reason, g.SyncedCommit = v1alpha1.GatewaySyncing, v1alpha1.ReasonProgressing, "a"
		case 600, 700:
			g.SyncStatus, g.Reason, g.SyncedCommit = v1alpha1.GatewayHeld, v1alpha1.ReasonMassDeletion, "a"
		}
		gs.Status.DiscoveredGateways = append(gs.Status.DiscoveredGateways, g)
	}
	describe := func(v request.Verdict, onlyBehind bool) string {
		var b strings.Builder
		Describe(&b, gs, v, onlyBehind)
		return b.String()
	}
	v := request.Verdict{Phase: request.Progressing, Commit: "b", Gateways: request.Count{Total: 1000, Synced: 997}}
	all := describe(v, false)
	last := -1
	for _, want := range []string{"Gateways:    997 of 1000 run it\n", "Behind:      2 MassDeletion: this needs a user: confirm the deletion", "Behind:      1 Progressing: ",
		"\nsite-600 ", "\nsite-700 ", "\nsite-500 ", "\nsite-000 "} { // sequence: their order
		at := strings.Index(all, want)
		assert.Greater(t, at, last, "%q", want)
		last = at
	}
	assert.Equal(t, 1000, strings.Count(all, "\nsite-"))
	assert.Equal(t, 3, strings.Count(describe(v, true), "\nsite-"))

	unknown := describe(request.Verdict{Phase: request.Progressing, Reason: v1alpha1.ReasonAgentsAway, Gateways: request.Count{Total: 1000}}, false)
	assert.Contains(t, unknown, "what 1000 run is not known; below is what they reported last")
	assert.Contains(t, unknown, "Next:        the gateways keep running")
	assert.NotContains(t, unknown, "Behind:")
}

// The condition Ready of a status counts only for the spec and the request that it describes.
func TestListFollowsVerdict(t *testing.T) {
	ready := metav1.Condition{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: "Synced", Message: "line0 runs main"}
	for name, c := range map[string]struct {
		change func(*v1alpha1.GatewaySync)
		want   []string
	}{
		"current": {func(*v1alpha1.GatewaySync) {}, []string{"line", "main", "bbbbbbb", "1/1", "True"}},
		"newer request": {func(gs *v1alpha1.GatewaySync) {
			gs.Annotations = map[string]string{v1alpha1.AnnotationRequestedRef: "v2"}
		}, []string{"line", "v2", "", "0/1", "Unknown"}},
		"newer spec": {func(gs *v1alpha1.GatewaySync) { gs.Generation++ }, []string{"line", "main", "", "0/1", "Unknown"}},
		"not polled yet": {func(gs *v1alpha1.GatewaySync) {
			*gs.Status.Outcome = v1alpha1.Outcome{Phase: v1alpha1.OutcomeProgressing, Ref: "v2", Reason: v1alpha1.ReasonWaitingForLead, Total: 1}
		}, []string{"line", "v2", "", "0/1", "Unknown"}},
		"not handled yet": {func(gs *v1alpha1.GatewaySync) {
			gs.Status.Outcome.Phase, gs.Status.Outcome.Reason = v1alpha1.OutcomeProgressing, v1alpha1.ReasonProgressing
		}, []string{"line", "main", "bbbbbbb", "1/1", "False"}},
		"failed": {func(gs *v1alpha1.GatewaySync) { gs.Status.Outcome.Phase = v1alpha1.OutcomeFailed }, []string{"line", "main", "bbbbbbb", "1/1", "False"}},
		"paused": {func(gs *v1alpha1.GatewaySync) { gs.Status.Outcome.Phase = v1alpha1.OutcomePaused }, []string{"line", "main", "bbbbbbb", "1/1", "True"}},
		"paused, behind": {func(gs *v1alpha1.GatewaySync) {
			gs.Status.Outcome.Phase, gs.Status.Outcome.Synced = v1alpha1.OutcomePaused, 0
		}, []string{"line", "main", "bbbbbbb", "0/1", "False"}},
		"no lead":   {func(gs *v1alpha1.GatewaySync) { gs.Status.ConfirmedAt = nil }, []string{"line", "main", "bbbbbbb", "0/1", "Unknown"}},
		"no status": {func(gs *v1alpha1.GatewaySync) { gs.Status = v1alpha1.GatewaySyncStatus{} }, []string{"line", "main", "", "", "Unknown"}},
	} {
		t.Run(name, func(t *testing.T) {
			gs := fleetOf("line", commitB)
			gs.Spec.Git.Ref, gs.Status.GatewaysReady, gs.Status.Conditions = "main", "1/1", []metav1.Condition{ready}
			gs.Status.ObservedRequest = desiredref.Key(gs)
			gs.Status.Outcome.Phase, gs.Status.Outcome.Synced = v1alpha1.OutcomeSucceeded, 1
			c.change(gs)
			assert.Equal(t, c.want, listCells(gs, nil, time.Now())[:5])
		})
	}
}

// The advice of a message is wrapped, and not cut at the edge of the screen.
func TestWrap(t *testing.T) {
	text := "Ready:       False, MassDeletion: would delete 214 of 530 owned files; to confirm: stoker sync line --confirm-deletion=8a9ef4f"
	lines := wrap(text, 60)
	assert.Equal(t, []string{
		"Ready:       False, MassDeletion: would delete 214 of 530",
		"             owned files; to confirm: stoker sync line",
		"             --confirm-deletion=8a9ef4f",
	}, lines)
	assert.Equal(t, []string{"short"}, wrap("short", 60))
	long := "Name:        " + strings.Repeat("x", 100)
	assert.Equal(t, []string{long}, wrap(long, 60))
	assert.Equal(t, []string{text}, wrap(text, 20), "a narrow screen")
}

// A sync that wrote the files before the gateway started succeeded.
func TestResultOfSync(t *testing.T) {
	for name, c := range map[string]struct {
		reason v1alpha1.Reason
		wrote  bool
		want   string
	}{
		"before the start": {v1alpha1.ReasonWaitingForGateway, true, "Written"},
		"nothing written":  {v1alpha1.ReasonWaitingForGateway, false, "WaitingForGateway"},
		"failed":           {v1alpha1.ReasonScanFailed, true, "ScanFailed"},
		"done":             {v1alpha1.ReasonSynced, true, "Synced"},
	} {
		t.Run(name, func(t *testing.T) { assert.Equal(t, c.want, Result(c.reason, c.wrote)) })
	}
}

func TestViewerOnTerminal(t *testing.T) {
	gs := &v1alpha1.GatewaySync{ObjectMeta: metav1.ObjectMeta{Namespace: "plant", Name: "line"}}
	for i := range 50 { // setup: the last two are behind
		g := v1alpha1.DiscoveredGateway{Name: fmt.Sprintf("area-%02d", i), SyncStatus: v1alpha1.GatewaySynced, Reason: v1alpha1.ReasonSynced}
		if i > 47 {
			g.SyncStatus, g.Reason, g.Message = v1alpha1.GatewayHeld, v1alpha1.ReasonDesignerSessionActive, "ann edits "+strings.Repeat("view ", 40)
		}
		gs.Status.DiscoveredGateways = append(gs.Status.DiscoveredGateways, g)
	}
	draw := func(env map[string]string) string {
		var out strings.Builder
		l := &Viewer{w: &out, terminal: true, colors: allowsColors(func(name string) string { return env[name] })}
		l.Show(gs, request.Verdict{Phase: request.Held})
		l.Show(gs, request.Verdict{Phase: request.Held})
		return out.String()
	}
	plain := draw(map[string]string{"NO_COLOR": "1"})
	assert.Equal(t, 1, strings.Count(plain, "\x1b[H\x1b[J"), "an unchanged status must not be drawn again at once")
	lines := strings.Split(strings.TrimPrefix(plain, "\x1b[H\x1b[J"), "\n")
	assert.Len(t, lines, 24, "the output must fit on the screen")
	assert.NotContains(t, strings.TrimPrefix(plain, "\x1b[H\x1b[J"), "\x1b")
	for _, line := range lines { // sequence: one screen
		assert.LessOrEqual(t, len([]rune(line)), 80)
	}
	assert.Less(t, strings.Index(plain, "area-48"), strings.Index(plain, "area-00"), "gateways that are behind must come first")
	assert.Contains(t, plain, "more lines: stoker status line shows all")
	assert.NotContains(t, draw(map[string]string{"TERM": "dumb"}), "\x1b[33m")
	bright := draw(nil)
	assert.Contains(t, bright, "area-49   \x1b[33mHeld\x1b[0m     DesignerSessionActive")
	assert.Contains(t, bright, "area-00   \x1b[32mSynced\x1b[0m")
}
