package ui

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/hooks/ui/uitest"
	"stoker.io/stoker/internal/status"
)

// row returns a gateway that does not run the commit.
func row(name string, state v1alpha1.GatewaySyncState, reason v1alpha1.Reason) v1alpha1.DiscoveredGateway {
	return v1alpha1.DiscoveredGateway{Name: name, PodName: name, SyncStatus: state, Reason: reason, SyncedCommit: uitest.Old}
}

// The state of a fleet speaks of the same cause as its message, whichever gateways there are beside it.
func TestStateMatchesMessage(t *testing.T) {
	s, gs, now := thousand(t)
	retry := row("a", v1alpha1.GatewayError, v1alpha1.ReasonScanFailed)
	held := row("b", v1alpha1.GatewayHeld, v1alpha1.ReasonConflictDetected)
	closed := row("c", v1alpha1.GatewayHeld, v1alpha1.ReasonGateClosed)
	working := row("d", v1alpha1.GatewaySyncing, v1alpha1.ReasonProgressing)
	window := row("e", v1alpha1.GatewayHeld, v1alpha1.ReasonMaintenanceWindow)
	approval := row("f", v1alpha1.GatewayHeld, v1alpha1.ReasonApprovalNeeded)
	for name, c := range map[string]struct {
		rows            []v1alpha1.DiscoveredGateway
		phase           v1alpha1.OutcomePhase
		rollout         v1alpha1.RolloutPhase
		reason          v1alpha1.Reason
		state           chip
		behind, waiting int
	}{
		"error":                 {[]v1alpha1.DiscoveredGateway{working, retry}, v1alpha1.OutcomeProgressing, "", v1alpha1.ReasonScanFailed, chip{toneFail, "Error"}, 2, 0},
		"held beside an error":  {[]v1alpha1.DiscoveredGateway{retry, held}, v1alpha1.OutcomeProgressing, "", v1alpha1.ReasonConflictDetected, chip{toneHeld, "Held"}, 2, 0},
		"held":                  {[]v1alpha1.DiscoveredGateway{held}, v1alpha1.OutcomeHeld, "", v1alpha1.ReasonConflictDetected, chip{toneHeld, "Held"}, 1, 0},
		"working":               {[]v1alpha1.DiscoveredGateway{working}, v1alpha1.OutcomeProgressing, "", v1alpha1.ReasonProgressing, chip{toneBusy, "Updating"}, 1, 0},
		"healthy soak":          {[]v1alpha1.DiscoveredGateway{closed}, v1alpha1.OutcomeProgressing, v1alpha1.RolloutSoaking, v1alpha1.ReasonRolloutSoaking, waiting, 0, 1},
		"rollout goes on":       {[]v1alpha1.DiscoveredGateway{working, closed}, v1alpha1.OutcomeProgressing, v1alpha1.RolloutProgressing, v1alpha1.ReasonProgressing, chip{toneBusy, "Updating"}, 1, 1},
		"approval":              {[]v1alpha1.DiscoveredGateway{approval, closed}, v1alpha1.OutcomeHeld, v1alpha1.RolloutWaiting, v1alpha1.ReasonApprovalNeeded, chip{toneHeld, "Held"}, 2, 0},
		"aborted":               {[]v1alpha1.DiscoveredGateway{closed}, v1alpha1.OutcomeFailed, v1alpha1.RolloutAborted, v1alpha1.ReasonCanaryStageFailed, failed, 1, 0},
		"maintenance window":    {[]v1alpha1.DiscoveredGateway{window}, v1alpha1.OutcomeHeld, "", v1alpha1.ReasonMaintenanceWindow, waiting, 0, 1},
		"error before a window": {[]v1alpha1.DiscoveredGateway{window, retry}, v1alpha1.OutcomeProgressing, "", v1alpha1.ReasonScanFailed, chip{toneFail, "Error"}, 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			gs := gs.DeepCopy()
			gs.Status.DiscoveredGateways = c.rows
			gs.Status.Outcome = &v1alpha1.Outcome{Phase: c.phase, Ref: "main", Commit: uitest.Target, Total: int32(len(c.rows)), Reason: c.reason, Message: "x"}
			if c.rollout != "" {
				gs.Status.Rollout = &v1alpha1.RolloutStatus{Phase: c.rollout, Commit: uitest.Target}
			}
			f := s.newFleet(s.sites[0], gs, nil, "", now)
			assert.Equal(t, c.state, f.State)
			assert.Equal(t, []int{c.behind, c.waiting, 0}, []int{f.Behind, f.Waiting, f.Unknown})
			weights := make([]int, len(f.Groups))
			for i, g := range f.Groups {
				weights[i] = -status.Weight(v1alpha1.Reason(g.Advice.Reason))
			}
			assert.True(t, slices.IsSorted(weights), "%+v", f.Groups)
		})
	}
}

// Gateways whose commit is not known count as neither synced nor behind. The time since which they are behind stays.
func TestUnknownGateways(t *testing.T) {
	s, gs, now := thousand(t)
	hours := now.Add(-3 * time.Hour).Truncate(time.Second)
	gs.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionAllGatewaysSynced, Status: metav1.ConditionFalse, LastTransitionTime: metav1.Time{Time: hours}}}
	known := s.newFleet(s.sites[0], gs, nil, "", now)
	assert.Equal(t, []int{100, 0, 0}, []int{known.Behind, known.Waiting, known.Unknown})
	assert.Equal(t, hours, known.Since.at)
	for name, f := range map[string]fleet{
		"silent lead": s.newFleet(s.sites[0], gs, &v1alpha1.SyncTarget{}, "", now),
		"outage":      s.newFleet(s.sites[0], gs, nil, "GatewaySyncs cannot be read", now),
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, []int{0, 0, 0, 1000}, []int{f.Synced, f.Behind, f.Waiting, f.Unknown})
			assert.Equal(t, unconfirmed, f.State)
			assert.Equal(t, hours, f.Since.at)
			assert.False(t, slices.ContainsFunc(f.Gateways, func(g gateway) bool { return g.State != unconfirmed || g.Behind || !g.Unknown }))
		})
	}
}

// Times are in the zone of the reader.
func TestTimesAreLocal(t *testing.T) {
	old := time.Local
	defer func() { time.Local = old }()
	time.Local = time.FixedZone("CET", 3600)
	m := moment{at: time.Date(2026, 11, 24, 23, 30, 0, 0, time.UTC)}
	assert.Equal(t, "2026-11-25 00:30:00 CET", m.Exact())
	assert.Equal(t, "2026-11-24T23:30:00Z", m.Machine())
}

func TestConditionsThatReportProblems(t *testing.T) {
	s, gs, now := thousand(t)
	for name, c := range map[string]struct {
		kind   string
		status metav1.ConditionStatus
		want   bool
	}{
		"a problem":            {v1alpha1.ConditionRefResolved, metav1.ConditionFalse, true},
		"no problem":           {v1alpha1.ConditionRefResolved, metav1.ConditionTrue, false},
		"not known yet":        {v1alpha1.ConditionSSHHostKeyVerification, metav1.ConditionUnknown, false},
		"stalled":              {v1alpha1.ConditionStalled, metav1.ConditionTrue, true},
		"shown by the summary": {v1alpha1.ConditionReady, metav1.ConditionFalse, false},
		"of another program":   {"example.com/Degraded", metav1.ConditionFalse, false},
	} {
		t.Run(name, func(t *testing.T) {
			gs := gs.DeepCopy()
			gs.Status.Conditions = []metav1.Condition{{Type: c.kind, Status: c.status, Reason: string(v1alpha1.ReasonRefNotFound), Message: "x"}}
			list := s.conditions(s.newFleet(s.sites[0], gs, nil, "", now), moment{now, now})
			assert.Len(t, list, map[bool]int{true: 1}[c.want])
		})
	}
}

func TestPageNumbers(t *testing.T) {
	for wanted, first := range map[string]int{"": 1, "x": 1, "0": 1, "-1": 1, "-99999999999999999999": 1, "2": 101, "3": 201, "4": 201, "99999999999999999999": 201} {
		t.Run(wanted, func(t *testing.T) {
			p := fleetPage{Rows: make([]gateway, 250)}
			p.paginate(wanted)
			assert.True(t, strings.HasPrefix(p.Range, strconv.Itoa(first)+" to "), p.Range)
		})
	}
}
