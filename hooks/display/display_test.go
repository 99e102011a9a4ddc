package display

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/agent/audit"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/desiredref"
	"stoker.io/stoker/hooks/agents"
	"stoker.io/stoker/hooks/output"
	"stoker.io/stoker/hooks/sites"
	"stoker.io/stoker/internal/giturl"
	"stoker.io/stoker/internal/kube"
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
		Describe(&b, gs, v, "", onlyBehind)
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

func TestSnapshotColumns(t *testing.T) {
	one := agents.Snapshot{Gateway: "area-4", ID: "area-4-20260212-102000", Commit: plan.ID{1}, To: plan.ID{2}, Files: 3, Bytes: 80, Stored: v1alpha1.StoredBoth}
	two := one
	two.ID, two.Backup = "area-4-20260213-102000", true
	common := []string{"GATEWAY", "SNAPSHOT", "COMMIT", "SYNCED", "FILES", "SIZE"}
	t.Run("on the data volume", func(t *testing.T) {
		r := Snapshots([]agents.Snapshot{one}, false)
		assert.Equal(t, common, r.Head)
		assert.Equal(t, [][]string{{"area-4", one.ID, "0100000", "0200000", "3", "80"}}, r.Rows)
	})
	t.Run("in object storage, with a backup", func(t *testing.T) {
		r := Snapshots([]agents.Snapshot{one, two}, true)
		assert.Equal(t, append(common, "STORED", "BACKUP"), r.Head)
		assert.Equal(t, []string{"both", "-"}, r.Rows[0][6:])
		assert.Equal(t, []string{"both", "yes"}, r.Rows[1][6:])
	})
}

func TestAuditColumns(t *testing.T) {
	for name, c := range map[string]struct {
		request audit.Request
		want    string
	}{
		"no request":             {audit.Request{}, ""},
		"requested":              {audit.Request{By: "kargo", For: "Stage prod"}, "kargo (Stage prod)"},
		"approved":               {audit.Request{ApprovedBy: "prod by ann"}, "approved prod by ann"},
		"requested and approved": {audit.Request{By: "cli", For: "bob", ApprovedBy: "prod by ann"}, "cli (bob); approved prod by ann"},
	} {
		t.Run(name, func(t *testing.T) {
			r := AuditRecords([]audit.Entry{{Request: c.request}}, giturl.Web{})
			assert.Equal(t, "REQUESTED BY", r.Head[5])
			assert.Equal(t, c.want, r.Rows[0][5])
		})
	}
	for want, a := range map[string]audit.Entry{
		"":                      {Projects: 3},
		"line":                  {Projects: 1, ProjectNames: []string{"line"}},
		"a, b and 5 more":       {Projects: 7, ProjectNames: []string{"a", "b", "c"}},
		`a, "b\x1b[2J"`:         {Projects: 1, ProjectNames: []string{"a", "b\x1b[2J"}},
		"the record is foreign": {Projects: -5, ProjectNames: []string{"the record is foreign"}},
	} {
		t.Run(want, func(t *testing.T) {
			a.Diff = "area-4-diff-1.json"
			r := AuditRecords([]audit.Entry{a}, giturl.Web{})
			assert.Equal(t, []string{"PROJECTS", "RESULT", "DIFF"}, r.Head[9:])
			assert.Equal(t, []string{want, "", "area-4-diff-1.json"}, r.Rows[0][9:])
		})
	}
}

// The JSON of each list links to the git host.
func TestHistoryLinks(t *testing.T) {
	web := giturl.WebOf("git@github.com:plants/line.git", "")
	one, two := strings.Repeat("a", 40), strings.Repeat("b", 40)
	from, err := plan.ParseID(one)
	require.NoError(t, err)
	to, err := plan.ParseID(two)
	require.NoError(t, err)
	for want, r := range map[string]*output.Result{
		`"link":"https://github.com/plants/line/commit/` + one + `"`:                  Commits([]v1alpha1.CommitRecord{{Commit: one}}, web),
		`"link":"https://github.com/plants/line/commit/` + two + `"`:                  Syncs([]v1alpha1.SyncRecord{{Commit: two}}, web),
		`"compare":"https://github.com/plants/line/compare/` + one + `..` + two + `"`: AuditRecords([]audit.Entry{{From: from, To: to}}, web),
		`"compare":"https://github.com/plants/line/compare/` + two + `..` + one + `"`: AuditRecords([]audit.Entry{{From: to, To: from}}, web),
	} {
		t.Run(want, func(t *testing.T) {
			text, err := json.Marshal(r.Data)
			require.NoError(t, err)
			assert.Contains(t, string(text), want)
		})
	}
	for name, r := range map[string]*output.Result{"repair": AuditRecords([]audit.Entry{{From: from, To: from}}, web), "first": AuditRecords([]audit.Entry{{To: to}}, web),
		"unknown host": AuditRecords([]audit.Entry{{From: from, To: to}}, giturl.WebOf("/srv/git/line", ""))} {
		t.Run(name, func(t *testing.T) {
			text, err := json.Marshal(r.Data)
			require.NoError(t, err)
			assert.NotContains(t, string(text), "compare")
		})
	}
	text, err := json.Marshal(Commits(nil, web).Data)
	require.NoError(t, err)
	assert.Equal(t, "[]", string(text))
}

var (
	commitA, commitB = strings.Repeat("a", 40), strings.Repeat("b", 40)
	aged             = sites.Leads{Err: assert.AnError} // no SyncTarget was read, so the age of the status says whether an agent leads
)

// fleetOf returns a fleet whose gateways run these commits.
func fleetOf(name string, commits ...string) *v1alpha1.GatewaySync {
	gs := &v1alpha1.GatewaySync{ObjectMeta: metav1.ObjectMeta{Namespace: "plant", Name: name}}
	gs.Status.ConfirmedAt = &metav1.Time{Time: time.Now()}
	gs.Status.ObservedRequest = desiredref.Key(gs)
	gs.Status.Outcome = &v1alpha1.Outcome{Phase: v1alpha1.OutcomeProgressing, Ref: "main", Commit: commitB, Total: int32(len(commits)), Message: "x"}
	for i, c := range commits {
		gs.Status.DiscoveredGateways = append(gs.Status.DiscoveredGateways, v1alpha1.DiscoveredGateway{Name: fmt.Sprint(name, i), SyncStatus: v1alpha1.GatewaySynced, SyncedCommit: c, SyncedRef: "main"})
	}
	return gs
}

func printed(t *testing.T, r *output.Result, format string) string {
	t.Helper()
	var b strings.Builder
	require.NoError(t, r.Print(&b, format))
	return b.String()
}

func TestByCommit(t *testing.T) {
	away := fleetOf("away", commitA, commitA)
	away.Status.ConfirmedAt = &metav1.Time{Time: time.Now().Add(-time.Hour)}
	bare := fleetOf("bare", "", commitB)
	bare.Status.DiscoveredGateways[1].SyncStatus = v1alpha1.GatewayMissingSidecar
	list := []sites.Answer{
		{Site: sites.Site{Context: "north"}, Leads: aged, Fleets: []*v1alpha1.GatewaySync{fleetOf("line", commitB, commitA, commitB, commitB), away}},
		{Site: sites.Site{Context: "south"}, Leads: aged, Fleets: []*v1alpha1.GatewaySync{fleetOf("line", commitA, commitB), bare},
			Undecodable: []*kube.UndecodableError{{Kind: "GatewaySync", Namespace: "plant", Name: "new", Err: assert.AnError}}},
		{Site: sites.Site{Context: "west", Err: assert.AnError}},
	}
	assert.Equal(t, `COMMIT    REF    GATEWAYS   FLEETS
bbbbbbb   main   4          north/plant/line (3), south/plant/line (1)
aaaaaaa   main   2          north/plant/line (1), south/plant/line (1)
unknown   -      2          no agent leads: north/plant/away (2)
unknown   -      1          no agent runs beside the gateway: south/plant/bare (1)
unknown   -      1          no commit was synced yet: south/plant/bare (1)
unknown   -      ?          the GatewaySync cannot be read: south/plant/new
unknown   -      ?          no answer: assert.AnError general error for testing: west
`, printed(t, ByCommit(list, true), output.Table))
	var rows []map[string]any
	require.NoError(t, json.Unmarshal([]byte(printed(t, ByCommit(list, true), output.JSON)), &rows))
	assert.Equal(t, commitB, rows[0]["commit"])
	assert.Nil(t, rows[6]["gateways"], "a number that is not known is not 0")
	assert.Equal(t, commitB+"\n"+commitA+"\n", printed(t, ByCommit(list, true), output.Name))
	assert.Contains(t, printed(t, ByCommit(list[:1], false), output.Table), "  plant/line (3)\n")
}

// A thousand fleets, and names that control a terminal, do not spoil a row.
func TestByCommitBounds(t *testing.T) {
	a := sites.Answer{Site: sites.Site{Context: "nor\x1b[2Jth"}, Leads: aged}
	for i := range 1000 { // setup: one commit in many fleets
		gs := fleetOf(fmt.Sprint("f", i), commitA)
		gs.Status.DiscoveredGateways[0].SyncedRef = fmt.Sprint("v", i)
		a.Fleets = append(a.Fleets, gs)
	}
	evil := fleetOf("evil", "\x1b[31m\u202e"+strings.Repeat("x", 1000))
	a.Fleets = append(a.Fleets, evil)
	text := printed(t, ByCommit([]sites.Answer{a}, true), output.Table)
	assert.Contains(t, text, " and 994 more\n")
	assert.NotContains(t, text, "\x1b")
	assert.NotContains(t, text, "\u202e")
	assert.Less(t, len(text), 2000)
}

func TestSites(t *testing.T) {
	cs := &v1alpha1.ConfigSync{ObjectMeta: metav1.ObjectMeta{Namespace: "plant", Name: "config"}}
	cs.Status = v1alpha1.ConfigSyncStatus{ObservedRequest: desiredref.Key(cs), Outcome: &v1alpha1.Outcome{}, SourceRevision: commitA, SourceRevisionShort: commitA[:7], TargetsReady: "3/4", Conditions: []metav1.Condition{
		{Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: "ApplyForbidden", Message: "x is\nforbidden\x1b[2J", LastTransitionTime: metav1.NewTime(time.Now().Add(-5 * time.Minute))}}}
	list := []sites.Answer{
		{Site: sites.Site{Context: "north"}, Leads: aged, Fleets: []*v1alpha1.GatewaySync{fleetOf("line", commitB)}, ConfigSyncs: []*v1alpha1.ConfigSync{cs}},
		{Site: sites.Site{Context: "west", Namespace: "plant", Err: assert.AnError}},
	}
	for name, c := range map[string]struct {
		r    *output.Result
		want []string
	}{
		"several": {Sites(list, true, true), []string{"SITE    NAMESPACE   NAME ", "north   plant       line ", "west    plant       -      -      -         -          Unknown   -           -     no answer: assert.AnError",
			"\n\nSITE    NAMESPACE   CONFIGSYNC   COMMIT    OBJECTS   READY   REASON           SINCE   STATUS\nnorth   plant       config       aaaaaaa   3/4       False   ApplyForbidden   5m", "x is forbidden?[2J"}},
		"one":   {Sites(list[:1], false, false), []string{"NAME   REF ", "\nline ", "\nconfig "}},
		"named": {DescribeSites([]sites.Answer{list[0].Named("line"), list[1].Named("line")}, false), []string{"Site:        north\nName:        plant/line\n", "\n\nSite:        west\nUnknown:     no answer: "}},
	} {
		t.Run(name, func(t *testing.T) {
			text := printed(t, c.r, output.Table)
			for _, want := range c.want {
				assert.Contains(t, text, want)
			}
		})
	}
	var data struct{ Sites []map[string]any }
	require.NoError(t, json.Unmarshal([]byte(printed(t, Sites(list, true, true), output.JSON)), &data))
	assert.Equal(t, "line", data.Sites[0]["fleets"].([]any)[0].(map[string]any)["name"])
	assert.Nil(t, data.Sites[1]["fleets"], "the fleets of a site that does not answer are not an empty list")
	assert.Contains(t, data.Sites[1]["error"], "no answer")
}
