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

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/desiredref"
	"stoker.io/stoker/hooks/leads"
	"stoker.io/stoker/hooks/output"
	"stoker.io/stoker/hooks/sites"
	"stoker.io/stoker/internal/kube"
)

var (
	commitA, commitB = strings.Repeat("a", 40), strings.Repeat("b", 40)
	aged             = leads.Leads{Err: assert.AnError} // the age of the status decides
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
