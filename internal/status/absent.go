package status

import (
	"cmp"
	"slices"

	"stoker.io/stoker/api/v1alpha1"
)

// away is why no gateway of a fleet is live.
type away struct {
	Absence
	// ending are the terminating pods.
	ending []string
}

func (a *away) describe() string {
	if len(a.ending) == 0 {
		return "no gateway runs; the pods that were there are gone"
	}
	return "no gateway runs; terminating pods: " + list(a.ending)
}

// absentGateways returns the known gateways while none of them is live: they may restart or be gone for good. Without these
// rows, waiting clients would conclude that there is nothing to wait for. It returns nil if the gateways are gone for good.
func absentGateways(s *Seen) (fleet, *away) {
	ends := *s
	ends.Pods = nil
	for _, p := range s.Pods {
		if p.Ending {
			p.Ended = false
			ends.Pods = append(ends.Pods, p)
		}
	}
	rows, last := gateways(&ends, false), s.GatewaySync.Status.DiscoveredGateways
	a := &away{Absence: Absent(s.GatewaySync, s.Ref.Desired.RequestedAt, s.Now)}
	if a.Gone(len(last), len(rows)) {
		return nil, nil
	}
	there := make(map[string]bool, len(rows))
	for i := range rows {
		g := &rows[i]
		g.synced, g.delivered, g.handled = false, false, false
		g.Message, there[g.Name] = "its pod ends", true
		a.ending = append(a.ending, g.PodName)
	}
	for i := range last {
		if g := *last[i].DeepCopy(); !there[g.Name] {
			there[g.Name] = true
			g.Message = "its pod is gone"
			rows = append(rows, gateway{DiscoveredGateway: g})
		}
	}
	for i := range rows {
		rows[i].SyncStatus, rows[i].Reason = v1alpha1.GatewayPending, v1alpha1.ReasonAgentsAway
	}
	slices.SortFunc(rows, func(a, b gateway) int { return cmp.Compare(a.Name, b.Name) })
	return rows, a
}
