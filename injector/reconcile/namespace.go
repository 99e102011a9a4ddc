package reconcile

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/gatewaypod"
	"stoker.io/stoker/injector/inject"
	"stoker.io/stoker/internal/kube"
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

	decided   map[types.UID]verdict
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

// maxValue is more than the length of any value of an annotation that has an effect here: true, and the name of a GatewaySync.
const maxValue = 256

// slim is a transform for an informer. It saves memory, because a user may create pods with large annotations and many labels: of most
// pods it keeps only the name and whether they terminate, and of the others only what the reconciler reads. It replaces Status.Message
// with why the pod is stuck. client-go calls it again with its own results.
func slim(obj any) (any, error) {
	p, ok := obj.(*corev1.Pod)
	if !ok || len(p.Spec.Containers) == 0 { // a result of slim: every pod of an API server has containers
		return obj, nil
	}
	s := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: p.Namespace, Name: p.Name, UID: p.UID, ResourceVersion: p.ResourceVersion,
		DeletionTimestamp: p.DeletionTimestamp, // a terminating pod does not count, even if it asks for an agent
	}}
	for _, name := range []string{v1alpha1.AnnotationInject, v1alpha1.AnnotationCRName} {
		if value, ok := gatewaypod.Annotation(p.Annotations, name); ok {
			metav1.SetMetaDataAnnotation(&s.ObjectMeta, name, strings.Clone(value[:min(len(value), maxValue)]))
		}
	}
	for _, name := range []string{v1alpha1.LabelInjection, v1alpha1.LabelCRName} {
		if value, ok := p.Labels[name]; ok {
			metav1.SetMetaDataLabel(&s.ObjectMeta, name, value)
		}
	}
	if inject.Has(p) && !inject.Foreign(p) { // for the reconciler, a pod with another program's agent has none
		s.Spec.InitContainers = []corev1.Container{{Name: inject.Container}}
	}
	if !isRelevant(s) {
		s.Annotations, s.Labels = nil, nil
		return s, nil
	}
	s.CreationTimestamp = p.CreationTimestamp
	if c := metav1.GetControllerOfNoCopy(p); c != nil {
		s.OwnerReferences = []metav1.OwnerReference{*c}
	}
	if hash, ok := p.Labels[appsv1.DefaultDeploymentUniqueLabelKey]; ok {
		metav1.SetMetaDataLabel(&s.ObjectMeta, appsv1.DefaultDeploymentUniqueLabelKey, hash)
	}
	s.Spec.ServiceAccountName = p.Spec.ServiceAccountName
	if status := agentStatus(p); status != nil && inject.Has(s) {
		kept := corev1.ContainerStatus{Name: status.Name, Started: status.Started}
		if status.State.Waiting != nil {
			kept.State.Waiting = &corev1.ContainerStateWaiting{Reason: status.State.Waiting.Reason}
		}
		for _, ended := range []*corev1.ContainerStateTerminated{status.State.Terminated, status.LastTerminationState.Terminated} {
			if ended != nil && ended.ExitCode == gatewaypod.ExitRestartGateway && !startedAfter(p, ended.FinishedAt) {
				kept.LastTerminationState.Terminated = &corev1.ContainerStateTerminated{ExitCode: ended.ExitCode}
			}
		}
		s.Status.InitContainerStatuses = []corev1.ContainerStatus{kept}
	}
	s.Status.Message = kube.Stuck(p)
	return s, nil
}

// startedAfter reports whether a container of the pod was started after a time: then the gateway did not wait for the eviction.
func startedAfter(p *corev1.Pod, at metav1.Time) bool {
	return slices.ContainsFunc(p.Status.ContainerStatuses, func(c corev1.ContainerStatus) bool {
		return c.State.Running != nil && at.Before(&c.State.Running.StartedAt)
	})
}

// needsGatewayRestart reports whether the agent of a pod has ended because its gateway has to start once more: see
// gatewaypod.ExitRestartGateway. p must be a result of slim.
func needsGatewayRestart(p *corev1.Pod) bool {
	status := agentStatus(p)
	return status != nil && status.LastTerminationState.Terminated != nil
}

// requestsAgent reports whether a pod asks for an agent.
func requestsAgent(p *corev1.Pod) bool {
	return inject.Requested(p.Annotations) && p.Labels[v1alpha1.LabelInjection] != "disabled"
}

// isRelevant reports whether a pod asks for an agent, or has one.
func isRelevant(p *corev1.Pod) bool { return requestsAgent(p) || inject.Has(p) }

// belongs reports whether a pod is a gateway of gs, by the injector's label or because it asks for it.
func belongs(p *corev1.Pod, gs *v1alpha1.GatewaySync, all inject.Candidates) bool {
	if label, ok := p.Labels[v1alpha1.LabelCRName]; ok {
		return label == gs.Name
	}
	if !requestsAgent(p) {
		return false
	}
	chosen, _ := inject.Choose(p, all)
	return chosen == gs
}

// podWatch watches the pods of one namespace or of all.
type podWatch struct {
	namespace string // "" for all
	informer  cache.SharedIndexInformer
	forbidden atomic.Bool // set once the API server forbids listing
}

// watchPods returns a podWatch. It calls changed with each changed pod that asks for an agent or has one, and failed with the error of
// each failed list or watch.
func watchPods(client kube.Core, namespace string, changed func(*corev1.Pod), failed func(error)) (*podWatch, error) {
	w := &podWatch{namespace: namespace}
	living := func(o *metav1.ListOptions) {
		o.FieldSelector = "status.phase!=" + string(corev1.PodSucceeded) + ",status.phase!=" + string(corev1.PodFailed)
	}
	onError := func(err error) {
		failed(err)
		if apierrors.IsForbidden(err) {
			w.forbidden.Store(true)
		}
	}
	w.informer = cache.NewSharedIndexInformer(kube.ListWatch(client.CoreV1().Pods(namespace), living, onError), &corev1.Pod{}, 0,
		cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	if err := w.informer.SetTransform(slim); err != nil {
		return nil, err
	}
	// ListWatch reports failed attempts already.
	if err := w.informer.SetWatchErrorHandlerWithContext(func(context.Context, *cache.Reflector, error) {}); err != nil {
		return nil, err
	}
	notify := func(obj any) {
		if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
			obj = gone.Obj
		}
		if p, ok := obj.(*corev1.Pod); ok && isRelevant(p) {
			changed(p)
		}
	}
	_, err := w.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: notify, DeleteFunc: notify, UpdateFunc: func(_, now any) { notify(now) },
	})
	return w, err
}

// listedOrForbidden reports whether the first list is complete, or the API server forbids it in this namespace. Missing rights in one
// namespace must not stop the others.
func (w *podWatch) listedOrForbidden() bool {
	return w.informer.HasSynced() || w.namespace != "" && w.forbidden.Load()
}

// hasSynced reports whether the pods and GatewaySyncs of a namespace are known.
func (u *Reconciler) hasSynced(namespace string) bool {
	if !u.Find.Seen(namespace) {
		return false
	}
	for _, w := range u.pods {
		if w.namespace == "" || w.namespace == namespace {
			return w.informer.HasSynced()
		}
	}
	return false
}
