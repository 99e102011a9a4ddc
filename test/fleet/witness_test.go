package fleet

import (
	"errors"
	"reflect"
	"slices"
	"sync"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/dynamic"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/kube"
)

// witness looks at the gateways whenever the status says that all of them are ready, and judges every status that was
// written.
type witness struct {
	*ways
	// client is its own and has no limit: with that of the others it would look later than it has to.
	client dynamic.Interface

	mu    sync.Mutex
	was   *v1alpha1.GatewaySyncStatus
	ready []sighting
}

// sighting is what was on the gateways while the status said Ready.
type sighting struct {
	commit string
	titles []string
	// exact: neither the object nor what the agents were told changed from the status until the gateways had been looked at.
	exact bool
}

func newWitness(w *ways) *witness {
	w.t.Helper()
	client, err := dynamic.NewForConfig(w.Cluster.RESTConfig())
	require.NoError(w.t, err)
	return &witness{ways: w, client: client}
}

// see is shown every state of the object.
func (w *witness) see(gs *v1alpha1.GatewaySync) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.was != nil && reflect.DeepEqual(w.was, &gs.Status) {
		return
	}
	w.was = gs.Status.DeepCopy()
	if !meta.IsStatusConditionTrue(gs.Status.Conditions, v1alpha1.ConditionReady) || gs.Status.Target == nil {
		return
	}
	s := sighting{commit: gs.Status.Target.Commit}
	before, err := w.told()
	for _, g := range w.Gateways() {
		s.titles = append(s.titles, g.Title())
	}
	after, errAfter := w.told()
	now, errNow := kube.GatewaySyncs(w.client, w.Namespace).Get(w.t.Context(), w.Name)
	// The target may have been another one in between only if somebody asked for that: a branch does not go back by itself.
	s.exact = errors.Join(err, errAfter, errNow) == nil && now.ResourceVersion == gs.ResourceVersion &&
		before.Spec.Commit == s.commit && before.Spec.Revision == after.Spec.Revision
	w.ready = append(w.ready, s)
}

// told is what the agents are told.
func (w *witness) told() (*v1alpha1.SyncTarget, error) {
	return kube.SyncTargets(w.client, w.Namespace).Get(w.t.Context(), w.Name)
}

// exact is how often it has looked while nothing changed.
func (w *witness) exact() (times int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.ready {
		if s.exact {
			times++
		}
	}
	return times
}

// verdict holds all that was seen to the rules.
func (w *witness) verdict(seen []v1alpha1.GatewaySync) {
	w.t.Helper()
	written, overrides, lapses := 0, 0, 0
	last := 0
	for i := range seen {
		gs := &seen[i]
		if i == 0 || !reflect.DeepEqual(gs.Status, seen[i-1].Status) {
			w.follows(gs, seen[last:i])
			last = i
			written++
			if t := gs.Status.Target; t != nil && t.Ref != gs.Spec.Git.Ref {
				overrides++
			}
			if r := gs.Status.Request; r != nil && r.Lapsed != "" {
				lapses++
			}
		}
	}
	exact := 0
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.ready {
		if !s.exact {
			continue // the gateways may be ahead of the status, and are never behind it
		}
		exact++
		for _, title := range s.titles {
			assert.Equal(w.t, w.titles[s.commit], title, "Ready is true, and a gateway runs something else")
		}
	}
	w.t.Logf("%d states, %d statuses written, %d with a request in force, %d with one that had lapsed; %d times ready, %d of them looked at while nothing changed",
		len(seen), written, overrides, lapses, len(w.ready), exact)
	assert.Positive(w.t, overrides)
	assert.Positive(w.t, lapses)
	assert.Positive(w.t, exact)
}

// follows judges one status beside the object it was written for (a write carries the version that was summed up) and the
// states of the object since the status before it, with that.
func (w *witness) follows(gs *v1alpha1.GatewaySync, since []v1alpha1.GatewaySync) {
	w.t.Helper()
	st := &gs.Status
	if st.Target == nil {
		return // the first one is written before anything is known
	}
	want, err := v1alpha1.DesiredRef(gs, "")
	require.NoError(w.t, err)
	assert.Equal(w.t, want.Ref, st.Target.Ref, "the target is what the pure function says of the object")
	request := v1alpha1.RequestStatus{}
	if st.Request != nil {
		request = *st.Request
	}
	assert.Equal(w.t, v1alpha1.RequestStatus{Over: want.Over, Lapsed: want.Lapsed}, request)
	assert.Equal(w.t, gs.Generation, st.ObservedGeneration)

	// The same in words: an override names today's request and today's spec, and is not one that was dead before. A status is
	// written once a second at most: who asked for something else in between, and then for the same again, has asked anew.
	if st.Target.Ref != gs.Spec.Git.Ref {
		assert.Equal(w.t, gs.Annotations[v1alpha1.AnnotationRequestedRef], st.Target.Ref)
		assert.Regexp(w.t, "^"+st.Target.Ref+"@"+gs.Spec.Git.Ref+"( |$)", request.Over)
		anew := slices.ContainsFunc(since, func(was v1alpha1.GatewaySync) bool {
			return was.Annotations[v1alpha1.AnnotationRequestedRef] != st.Target.Ref
		})
		if !anew && len(since) > 0 && since[0].Status.Request != nil && since[0].Status.Request.Lapsed != "" {
			assert.NotEqual(w.t, since[0].Status.Request.Lapsed, request.Over, "a request that had lapsed is in force again")
		}
	}
	if !meta.IsStatusConditionTrue(st.Conditions, v1alpha1.ConditionReady) {
		return
	}
	for _, row := range st.DiscoveredGateways {
		assert.Equal(w.t, st.Target.Commit, row.SyncedCommit, "%s is behind, and Ready is true", row.Name)
	}
	assert.Len(w.t, st.DiscoveredGateways, len(w.Gateways()))
}
