//go:build linux

package e2e

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/kube"
)

// watcher sees every status of every GatewaySync and compares it with the gateways.
type watcher struct {
	*world
	mu       sync.Mutex
	plants   map[string]*plant // by namespace
	wrong    []string
	statuses int
	asked    int // number of gateways compared
	asking   sync.WaitGroup
}

func startWatcher(t *testing.T, w *world) *watcher {
	watcher := &watcher{world: w, plants: map[string]*plant{}}
	ctx, stop := context.WithCancel(w.ctx)
	factory := dynamicinformer.NewDynamicSharedInformerFactory(w.dynamic, 0)
	informer := factory.ForResource(kube.GatewaySync.Resource()).Informer()
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(now any) { watcher.saw(ctx, now) },
		UpdateFunc: func(_, now any) { watcher.saw(ctx, now) },
	})
	require.NoError(t, err)
	factory.Start(ctx.Done())
	t.Cleanup(func() {
		stop()
		factory.Shutdown()
		watcher.asking.Wait()
		w.say("%d statuses seen, %d of them compared with the gateways", watcher.statuses, watcher.asked)
		assert.Empty(t, watcher.wrong, "a status contradicted the gateways")
		if os.Getenv(envE2E) != "some" { // one scenario may have no gateway
			assert.NotZero(t, watcher.statuses)
			assert.NotZero(t, watcher.asked)
		}
	})
	return watcher
}

func (w *watcher) add(p *plant) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.plants[p.namespace] = p
}

func (w *watcher) blame(gs *v1alpha1.GatewaySync, format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.wrong = append(w.wrong, fmt.Sprintf("%s at %s: %s\n   %s", gs.Namespace, gs.ResourceVersion, fmt.Sprintf(format, args...), describe(gs)))
}

func (w *watcher) saw(ctx context.Context, now any) {
	u, ok := now.(*unstructured.Unstructured)
	if !ok {
		return
	}
	gs := new(v1alpha1.GatewaySync)
	err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, gs)
	w.mu.Lock()
	p := w.plants[u.GetNamespace()]
	w.statuses++
	w.mu.Unlock()
	switch {
	case err != nil:
		w.blame(&v1alpha1.GatewaySync{ObjectMeta: metav1.ObjectMeta{Namespace: u.GetNamespace()}}, "the status cannot be read: %v", err)
	case p != nil:
		w.judge(gs)
		w.asking.Go(func() { w.ask(ctx, p, gs) })
	}
}

// judge checks the invariants of a status that hold whatever the gateways do.
func (w *watcher) judge(gs *v1alpha1.GatewaySync) {
	seen := map[string]bool{}
	for _, c := range gs.Status.Conditions {
		if seen[c.Type] {
			w.blame(gs, "two conditions %s", c.Type)
		}
		seen[c.Type] = true
		if c.ObservedGeneration > gs.Generation {
			w.blame(gs, "%s has generation %d, but the newest is %d", c.Type, c.ObservedGeneration, gs.Generation)
		}
	}
	if !isTrue(gs, v1alpha1.ConditionReady) {
		return
	}
	if isTrue(gs, v1alpha1.ConditionStalled) {
		w.blame(gs, "Ready and Stalled")
	}
	if gs.Status.Target == nil || gs.Status.Target.Commit == "" {
		return // paused, or no request yet: no gateway and no commit
	}
	if n := len(gs.Status.DiscoveredGateways); n > 0 && gs.Status.GatewaysReady != fmt.Sprintf("%d/%d", n, n) {
		w.blame(gs, "Ready, with %s gateways of %d", gs.Status.GatewaysReady, n)
	}
	for _, g := range gs.Status.DiscoveredGateways {
		if g.SyncedCommit != gs.Status.Target.Commit || !slices.Contains([]v1alpha1.GatewaySyncState{v1alpha1.GatewaySynced, v1alpha1.GatewayStandby}, g.SyncStatus) {
			w.blame(gs, "Ready, and %s is %s at %.7s", g.Name, g.SyncStatus, g.SyncedCommit)
		}
	}
}

func isTrue(gs *v1alpha1.GatewaySync, kind string) bool {
	c := condition(gs, kind)
	return c != nil && c.Status == metav1.ConditionTrue
}

// settled is the age at which the lead must know a pod.
const settled = 30 * time.Second

// ask asks the gateways what they have loaded. They may be ahead of the status, but never behind.
func (w *watcher) ask(ctx context.Context, p *plant, gs *v1alpha1.GatewaySync) {
	began := time.Now()
	pods, err := w.client.CoreV1().Pods(p.namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return // the API server is unavailable; the next status arrives when it is back
	}
	byPod := map[string]v1alpha1.DiscoveredGateway{}
	for _, g := range gs.Status.DiscoveredGateways {
		byPod[g.PodName] = g
	}
	for i := range pods.Items {
		pod := &pods.Items[i]
		row, listed := byPod[pod.Name]
		said := row.SyncedCommit
		if isTrue(gs, v1alpha1.ConditionReady) && gs.Status.Target != nil && len(gs.Status.DiscoveredGateways) > 0 {
			said = gs.Status.Target.Commit
			listed = listed || began.Sub(pod.CreationTimestamp.Time) > settled
		}
		// A gateway that starts loads files that were written before; until then its row is Applied and
		// Ready is not True. The row of a standby node describes its files, which the other node copies
		// and tells it to load.
		loads := row.SyncStatus != v1alpha1.GatewayStandby && (row.SyncStatus == v1alpha1.GatewaySynced || isTrue(gs, v1alpha1.ConditionReady))
		if !listed || !loads || said == "" || pod.DeletionTimestamp != nil || !isReady(pod) {
			continue
		}
		digest, err := p.loaded(ctx, pod.Name)
		if err != nil {
			continue // the pod has been deleted meanwhile
		}
		w.mu.Lock()
		w.asked++
		w.mu.Unlock()
		if has := p.running(digest); has < p.order(said) && !w.wentBack(ctx, p, gs) {
			w.blame(gs, "%s has commit %d, counted from 0, and the status speaks of %d", pod.Name, has, p.order(said))
		}
	}
}

// wentBack reports whether older commits are requested in this plant and the request has changed since
// this status. The change may be in the same object or in a later one. The rows of single gateways may
// then name the previous commit.
func (w *watcher) wentBack(ctx context.Context, p *plant, gs *v1alpha1.GatewaySync) bool {
	p.mu.Lock()
	older, restores := p.requestsOlder, p.restores
	p.mu.Unlock()
	if restores { // a gateway is back a moment before the lead knows it
		return true
	}
	if !older || !isTrue(gs, v1alpha1.ConditionReady) {
		return older
	}
	asked := v1alpha1.AnnotationRequestedAt
	if gs.Status.Target == nil || gs.Status.Target.RequestedAt != gs.Annotations[asked] {
		return true
	}
	now, err := p.syncs().Get(ctx, gs.Name)
	return err != nil || now.Generation != gs.Generation || now.Annotations[asked] != gs.Annotations[asked]
}
