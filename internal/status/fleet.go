package status

import (
	"fmt"
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/gatewaypod"
	"stoker.io/stoker/internal/failure"
)

// fleet is the gateways of a GatewaySync, sorted by name.
type fleet []gateway

// synced returns how many gateways run the target.
func (rows fleet) synced() (n int) {
	for i := range rows {
		if rows[i].synced {
			n++
		}
	}
	return n
}

// allHandled reports whether every gateway has handled the target's request.
func (rows fleet) allHandled() bool {
	return !slices.ContainsFunc(rows, func(g gateway) bool { return !g.handled })
}

// states returns the numbers of gateways by state.
func (rows fleet) states() map[v1alpha1.GatewaySyncState]int {
	states := map[v1alpha1.GatewaySyncState]int{}
	for i := range rows {
		states[rows[i].SyncStatus]++
	}
	return states
}

// drifted returns how many gateways have files that changed since they were written.
func (rows fleet) drifted() (n int) {
	for i := range rows {
		if rows[i].Drift > 0 {
			n++
		}
	}
	return n
}

// podsWithoutAgent returns the pods whose rows say that they have no agent.
func (rows fleet) podsWithoutAgent() (names []string) {
	for i := range rows {
		if g := &rows[i]; g.SyncStatus == v1alpha1.GatewayMissingSidecar {
			names = append(names, g.PodName)
		}
	}
	return names
}

// worst returns the gateway with the highest rank, and how many others have a rank. Gateways for which ranked is false do not
// count.
func (rows fleet) worst(rank func(*gateway) (n int, ranked bool)) (worst *gateway, others int) {
	highest := 0
	for i := range rows {
		switch n, ranked := rank(&rows[i]); {
		case !ranked:
		case worst == nil:
			worst, highest = &rows[i], n
		case n > highest:
			worst, highest, others = &rows[i], n, others+1
		default:
			others++
		}
	}
	return worst, others
}

// describeSynced says that every gateway runs a target.
func (rows fleet) describeSynced(target string) string {
	if len(rows) == 1 {
		return gatewaypod.GatewayLabel(rows[0].Name, rows[0].PodName) + " runs " + target
	}
	return fmt.Sprintf("all %d gateways run %s", len(rows), target)
}

// countSynced says how many gateways run a target.
func (rows fleet) countSynced(target string) string {
	return fmt.Sprintf("%d of %d gateways run %s", rows.synced(), len(rows), target)
}

// behind returns the verdict of a fleet with gateways that do not run a target: the reason with the highest weight.
func (rows fleet) behind(target string) verdict {
	worst, others := rows.worst(func(g *gateway) (int, bool) { return Weight(g.Reason), !g.synced })
	message := rows.countSynced(target) + "; " + gatewaypod.GatewayLabel(worst.Name, worst.PodName)
	if worst.Message != "" {
		message += ": " + failure.Cut(worst.Message, maxMessage/2)
	}
	if others > 0 {
		message += fmt.Sprintf("; %d more", others)
	}
	reason := worst.Reason
	if reason == "" || worst.Reason.Class() == v1alpha1.ClassDone && !waitsForSetting(reason) {
		reason = v1alpha1.ReasonProgressing
	}
	return verdict{metav1.ConditionFalse, reason, message, nameWithReason(worst.Name, reason, others)}
}

// waitsForSetting reports whether a gateway with this reason stays behind until a user changes a setting: paused, or a dry run.
func waitsForSetting(r v1alpha1.Reason) bool {
	return r == v1alpha1.ReasonPaused || r == v1alpha1.ReasonDryRun
}

// planned reports whether a gateway or a fleet with this reason waits for a time that the spec names, for the rollout, or for an approval
// (CausePlan). While nothing else is missing, no deadline runs. WaitsAsPlanned is narrower.
func planned(r v1alpha1.Reason) bool { return r.Cause() == v1alpha1.CausePlan }

// WaitsAsPlanned reports whether a gateway or a fleet with this reason waits only for what comes without a person: a maintenance window, the
// time or health check after a stage, or its turn in a rollout that neither waits for an approval nor has failed.
func WaitsAsPlanned(r v1alpha1.Reason, rollout *v1alpha1.RolloutStatus) bool {
	switch r {
	case v1alpha1.ReasonMaintenanceWindow, v1alpha1.ReasonRolloutSoaking:
		return true
	case v1alpha1.ReasonGateClosed:
		return rollout == nil || rollout.Phase != v1alpha1.RolloutWaiting && rollout.Phase != v1alpha1.RolloutAborted
	}
	return false
}

// The weights of reasons of gateways that are not synced, from the lowest. Those that need an operator are the highest, and above all a pod
// without its agent: nothing else reaches that gateway.
const (
	weightPlanned = iota // explains a fleet only if nothing else is missing
	weightWindow         // above other planned waits: a gateway reports it only after the rollout has let it go on
	weightWorking
	weightResting
	weightRetry
	weightHeld
	weightStalled
	weightNotInjected
)

// Weight returns how urgent a reason is. Of the gateways that are behind, the one with the highest weight explains the fleet.
func Weight(r v1alpha1.Reason) int {
	switch {
	case r == v1alpha1.ReasonMaintenanceWindow:
		return weightWindow
	case planned(r):
		return weightPlanned
	case waitsForSetting(r):
		return weightResting
	}
	switch r.Class() {
	case v1alpha1.ClassStalled:
		return weightStalled
	case v1alpha1.ClassHeld:
		return weightHeld
	case v1alpha1.ClassNotInjected:
		return weightNotInjected
	case v1alpha1.ClassRetry:
		return weightRetry
	default:
		return weightWorking
	}
}

// profileError returns why the profiles that the gateways use are flawed, or nil. A flawed profile that no gateway uses may be
// work in progress, so it does not make the spec invalid.
func (rows fleet) profileError(flawed map[string]error) error {
	used := map[string]bool{}
	for i := range rows {
		used[rows[i].profile()] = true
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(flawed)) {
		if used[name] {
			errs = append(errs, flawed[name])
		}
	}
	if len(errs) == 0 {
		return nil
	}
	return failure.New(v1alpha1.ReasonProfilesInvalid, "%w", utilerrors.NewAggregate(errs))
}

// keepFailureReasons keeps the reason of the last failure while a gateway retries the same target, so that only another outcome
// causes an Event.
func (rows fleet) keepFailureReasons(last *v1alpha1.GatewaySyncStatus) {
	known := rowsByName(last)
	for i := range rows {
		g := &rows[i]
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

// failed reports whether a gateway failed or is held, other than by a pause, a dry run or a planned wait, or retries after that.
func failed(g *v1alpha1.DiscoveredGateway) bool {
	switch g.SyncStatus {
	case v1alpha1.GatewayError, v1alpha1.GatewayHeld, v1alpha1.GatewaySyncing:
		class := g.Reason.Class()
		return g.Reason != "" && !planned(g.Reason) && class != v1alpha1.ClassDone && class != v1alpha1.ClassWorking
	}
	return false
}

// rowsByName returns the rows of a status by the names of their gateways.
func rowsByName(st *v1alpha1.GatewaySyncStatus) map[string]*v1alpha1.DiscoveredGateway {
	known := make(map[string]*v1alpha1.DiscoveredGateway, len(st.DiscoveredGateways))
	for i := range st.DiscoveredGateways {
		known[st.DiscoveredGateways[i].Name] = &st.DiscoveredGateways[i]
	}
	return known
}
