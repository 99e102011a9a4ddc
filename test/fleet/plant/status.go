package plant

import (
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/kube"
)

func (p *Plant) syncs() *kube.Objects[v1alpha1.GatewaySync] {
	return kube.GatewaySyncs(p.Kube.Dynamic, p.Namespace)
}

// GatewaySync returns the current object, or an empty one if it cannot be read.
func (p *Plant) GatewaySync() *v1alpha1.GatewaySync {
	gs, err := p.syncs().Get(p.t.Context(), p.Name)
	if err != nil {
		return &v1alpha1.GatewaySync{}
	}
	return gs
}

// Status returns the current status, or an empty one if it cannot be read.
func (p *Plant) Status() *v1alpha1.GatewaySyncStatus { return &p.GatewaySync().Status }

// Target returns the current SyncTarget spec, or an empty one if it cannot be read.
func (p *Plant) Target() v1alpha1.SyncTargetSpec {
	t, err := kube.SyncTargets(p.Kube.Dynamic, p.Namespace).Get(p.t.Context(), p.Name)
	if err != nil {
		return v1alpha1.SyncTargetSpec{}
	}
	return t.Spec
}

// Lead returns the gateway whose agent leads, or nil.
func (p *Plant) Lead() *Gateway {
	name, _, _ := strings.Cut(p.Target().Lead.Holder, "_")
	for _, g := range p.Gateways() {
		if g.Name == name {
			return g
		}
	}
	return nil
}

// Watch records every state of the GatewaySync from now on, including the current one; seen returns them. It passes each
// state to the functions before it records it.
func (p *Plant) Watch(functions ...func(*v1alpha1.GatewaySync)) (seen func() []v1alpha1.GatewaySync) {
	p.t.Helper()
	resource, selector := p.Kube.Dynamic.Resource(kube.GatewaySync.Resource()).Namespace(p.Namespace), fields.OneTermEqualSelector("metadata.name", p.Name).String()
	current, err := resource.List(p.t.Context(), metav1.ListOptions{FieldSelector: selector})
	require.NoError(p.t, err)
	require.Len(p.t, current.Items, 1)
	// Without a version, the watch might begin with an older state.
	w, err := resource.Watch(p.t.Context(), metav1.ListOptions{FieldSelector: selector, ResourceVersion: current.GetResourceVersion()})
	require.NoError(p.t, err)
	var mu sync.Mutex
	var all []v1alpha1.GatewaySync
	record := func(object any) {
		data, err := json.Marshal(object)
		var gs v1alpha1.GatewaySync
		if err == nil && json.Unmarshal(data, &gs) == nil {
			for _, f := range functions {
				f(&gs)
			}
			mu.Lock()
			all = append(all, gs)
			mu.Unlock()
		}
	}
	record(&current.Items[0])
	done := make(chan struct{})
	p.t.Cleanup(func() { w.Stop(); <-done })
	go func() {
		defer close(done)
		for e := range w.ResultChan() {
			record(e.Object)
		}
	}()
	return func() []v1alpha1.GatewaySync {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(all)
	}
}

// Converges waits until all gateways run the commit whose project has this title, and the status reports that.
func (p *Plant) Converges(title, commit string) {
	p.t.Helper()
	p.Eventually(title+" everywhere", func() bool {
		for _, g := range p.Gateways() {
			if g.Title() != title {
				return false
			}
		}
		return p.Ready(commit)
	})
}

// Ready reports whether the status reports that all gateways run a commit.
func (p *Plant) Ready(commit string) bool {
	st := p.Status()
	return meta.IsStatusConditionTrue(st.Conditions, v1alpha1.ConditionReady) && st.LastGood != nil && st.LastGood.Commit == commit
}

// Eventually waits until ok returns true. After Liveness it ends the test, and shows what and the status.
func (p *Plant) Eventually(what string, ok func() bool) {
	p.t.Helper()
	deadline := time.Now().Add(Liveness)
	for !ok() {
		if time.Now().After(deadline) {
			st, err := json.MarshalIndent(p.Status(), "", "  ")
			require.NoError(p.t, err)
			p.t.Fatalf("never: %s\n%s", what, st)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
