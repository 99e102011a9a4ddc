package status

import (
	"cmp"
	"slices"

	"stoker.io/stoker/api/v1alpha1"
)

// keepAbsent keeps the known gateways while none of them is live: they may restart or be gone for good. Without these rows, waiting
// clients would conclude that there is nothing to wait for.
func (w *writer) keepAbsent() {
	if len(w.rows) > 0 {
		return
	}
	ends := w.Seen
	ends.Pods = nil
	for _, p := range w.Pods {
		if p.Ending {
			p.Ended = false
			ends.Pods = append(ends.Pods, p)
		}
	}
	rows := gateways(&ends)
	a := Absent(w.GatewaySync, w.Ref.Desired.RequestedAt, w.Now)
	if a.Gone(len(w.last.DiscoveredGateways), len(rows)) {
		return
	}
	w.absence = &a
	there := make(map[string]bool, len(rows))
	for i := range rows {
		g := &rows[i]
		g.synced, g.delivered, g.handled = false, false, false
		g.Message, there[g.Name] = "its pod ends", true
		w.leaving = append(w.leaving, g.PodName)
	}
	for i := range w.last.DiscoveredGateways {
		if g := *w.last.DiscoveredGateways[i].DeepCopy(); !there[g.Name] {
			there[g.Name] = true
			g.Message = "its pod is gone"
			rows = append(rows, gateway{DiscoveredGateway: g})
		}
	}
	for i := range rows {
		rows[i].SyncStatus, rows[i].Reason = v1alpha1.GatewayPending, v1alpha1.ReasonAgentsAway
	}
	slices.SortFunc(rows, func(a, b gateway) int { return cmp.Compare(a.Name, b.Name) })
	w.rows = rows
}

// describeAbsent describes the absent gateways.
func (w *writer) describeAbsent() string {
	if len(w.leaving) == 0 {
		return "no gateway runs; the pods that were there are gone"
	}
	return "no gateway runs; terminating pods: " + list(w.leaving)
}

// keepFailureReason keeps the reason of the last failure while a gateway retries, so that only another outcome causes an Event.
func (w *writer) keepFailureReason() {
	a, b := w.last.Target, w.next.Target
	if a == nil || b == nil || a.Ref != b.Ref || a.Commit != b.Commit || w.last.ObservedGeneration != w.GatewaySync.Generation {
		return // it tries something else now
	}
	known := w.lastRows()
	for i := range w.rows {
		g := &w.rows[i]
		was := known[g.Name]
		if was == nil || g.SyncStatus != v1alpha1.GatewaySyncing || g.Reason != v1alpha1.ReasonProgressing || !failed(was) {
			continue
		}
		g.Reason = was.Reason
		if g.Message == "" {
			g.Message = "trying again"
		}
	}
}

// failed reports whether a gateway failed or waits, or retries after that.
func failed(g *v1alpha1.DiscoveredGateway) bool {
	switch g.SyncStatus {
	case v1alpha1.GatewayError, v1alpha1.GatewayHeld, v1alpha1.GatewaySyncing:
		class := g.Reason.Class()
		return g.Reason != "" && !Planned(g.Reason) && class != v1alpha1.ClassDone && class != v1alpha1.ClassWorking
	}
	return false
}

// lastRows returns the rows of the last status by name.
func (w *writer) lastRows() map[string]*v1alpha1.DiscoveredGateway {
	known := make(map[string]*v1alpha1.DiscoveredGateway, len(w.last.DiscoveredGateways))
	for i := range w.last.DiscoveredGateways {
		known[w.last.DiscoveredGateways[i].Name] = &w.last.DiscoveredGateways[i]
	}
	return known
}
