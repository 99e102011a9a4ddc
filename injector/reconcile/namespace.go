package reconcile

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/injector/inject"
)

// namespace is the state of a namespace while this replica runs the reconciler. The next replica reconstructs it, except for restarted.
// Only the worker of the namespace uses it, except for the fields that Reconciler.mu guards.
type namespace struct {
	name  string
	since time.Time // when it was first checked

	bound    bool                 // the RoleBinding exists, or may exist
	accounts map[string]time.Time // ServiceAccounts and when they were last in use
	checked  time.Time            // when the RoleBinding was last verified
	subjects []string             // the subjects that it had then
	// foreignLogged means that the log says that the RoleBinding belongs to another manager.
	foreignLogged bool

	syncs map[types.UID]bool // the GatewaySyncs of the last check that found any

	decided   map[types.UID]verdict   // pods: why they have no agent
	restarted map[string]time.Time    // names of pods and volumes that were evicted because their gateways had to start once more
	endTimes  map[types.UID]time.Time // evicted pods: when they should end, or when their successor was last seen
	locks     map[types.UID]lock      // by GatewaySync
	// whyNoAgent has the pods without an agent and why they have none, as of this check.
	whyNoAgent map[types.UID]string

	// Guarded by Reconciler.mu: pods without an agent by reason, and GatewaySyncs without agents, or whose repair is stopped.
	podsWithoutAgent map[v1alpha1.Reason]int
	withoutAgents    []types.NamespacedName
	repairStopped    int

	exclusion  string    // why the namespace's labels disable injection
	excludedAt time.Time // when they were read
}

// namespace returns the state of a namespace with these GatewaySyncs. If none of them is known, the namespace may have been deleted and
// created again, so nothing of the earlier one, such as its RoleBinding, counts.
func (u *Reconciler) namespace(name string, syncs map[types.UID]bool) *namespace {
	u.mu.Lock()
	defer u.mu.Unlock()
	n, ok := u.namespaces[name]
	if ok && len(n.syncs) > 0 && len(syncs) > 0 {
		ok = false
		for uid := range syncs {
			ok = ok || n.syncs[uid]
		}
	}
	if !ok {
		// There may be a RoleBinding from an earlier replica.
		n = &namespace{name: name, since: time.Now(), bound: u.AutoBind, accounts: map[string]time.Time{}, decided: map[types.UID]verdict{},
			restarted: map[string]time.Time{}, endTimes: map[types.UID]time.Time{}, locks: map[types.UID]lock{}}
		u.namespaces[name] = n
	}
	if len(syncs) > 0 {
		n.syncs = syncs
	}
	return n
}

// uidsOf returns the UIDs of GatewaySyncs, including those that cannot be decoded.
func uidsOf(all inject.Candidates) map[types.UID]bool {
	uids := map[types.UID]bool{}
	for _, gs := range all.Readable {
		uids[gs.UID] = true
	}
	for _, bad := range all.Unreadable {
		uids[bad.Object.GetUID()] = true
	}
	return uids
}

func (u *Reconciler) forget(name string) {
	u.mu.Lock()
	delete(u.namespaces, name)
	u.mu.Unlock()
	u.reportMetrics()
}

// recordFleets records the GatewaySyncs of a namespace that have no agents, or whose repair is stopped, for reportMetrics.
func (u *Reconciler) recordFleets(n *namespace, replacements map[string]replacement) {
	u.mu.Lock()
	defer u.mu.Unlock()
	n.withoutAgents, n.repairStopped = nil, 0
	for _, gs := range u.Find.In(n.name).Readable {
		if n.locks[gs.UID].leadMissing {
			n.withoutAgents = append(n.withoutAgents, types.NamespacedName{Namespace: gs.Namespace, Name: gs.Name})
		}
	}
	for _, t := range replacements {
		if t.repairStopped {
			n.repairStopped++
		}
	}
}

// reportMetrics sets the metrics to the sums over all namespaces.
func (u *Reconciler) reportMetrics() {
	u.mu.Lock()
	defer u.mu.Unlock()
	sum, stopped := map[v1alpha1.Reason]int{}, 0
	var withoutAgents []types.NamespacedName
	for _, n := range u.namespaces {
		withoutAgents, stopped = append(withoutAgents, n.withoutAgents...), stopped+n.repairStopped
		for reason, pods := range n.podsWithoutAgent {
			sum[reason] += pods
		}
	}
	u.Metrics.SetPodsWithoutAgent(sum)
	u.Metrics.SetFleets(withoutAgents, stopped)
}

// recentlyRestarted reports whether a pod with this name or volume was evicted because its gateway had to start once more.
func (n *namespace) recentlyRestarted(name string, now time.Time) bool {
	at, ok := n.restarted[name]
	return ok && now.Sub(at) < keyRestartPause
}

// tidy removes the state of objects that do not exist any more.
func (n *namespace) tidy(all []*v1alpha1.GatewaySync, pods []*corev1.Pod, now time.Time) {
	for uid := range n.decided {
		if !slices.ContainsFunc(pods, func(p *corev1.Pod) bool { return p.UID == uid }) {
			delete(n.decided, uid)
		}
	}
	for uid, at := range n.endTimes {
		if now.Sub(at) > recordLifetime {
			delete(n.endTimes, uid)
		}
	}
	for name, at := range n.restarted {
		if now.Sub(at) > keyRestartPause {
			delete(n.restarted, name)
		}
	}
	for uid := range n.locks {
		if !slices.ContainsFunc(all, func(gs *v1alpha1.GatewaySync) bool { return gs.UID == uid }) {
			delete(n.locks, uid)
		}
	}
}

// labelsCachedFor is how long the labels of a namespace are cached.
const labelsCachedFor = time.Minute

// excluded returns why pods of a namespace get no agent, or "" if they may. Labels are read only if a pod lacks an agent.
func (u *Reconciler) excluded(ctx context.Context, n *namespace, now time.Time) (string, error) {
	if why := u.Scope.Excluded(n.name); why != "" {
		return why, nil
	}
	if now.Sub(n.excludedAt) > labelsCachedFor {
		object, err := u.Core.CoreV1().Namespaces().Get(ctx, n.name, metav1.GetOptions{})
		if err != nil {
			return "", fmt.Errorf("labels of namespace %s: %w", n.name, err)
		}
		n.exclusion, n.excludedAt = "", now
		switch value := object.Labels[v1alpha1.LabelInjection]; {
		case value == "disabled":
			n.exclusion = "namespace " + n.name + " has the label " + v1alpha1.LabelInjection + "=disabled: remove it"
		case u.RequireLabel && value != "enabled":
			n.exclusion = "namespace " + n.name + " lacks the label " + v1alpha1.LabelInjection + "=enabled, which this installation requires: add it"
		}
	}
	return n.exclusion, nil
}
