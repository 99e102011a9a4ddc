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
	"stoker.io/stoker/api/v1alpha1/desiredref"
	"stoker.io/stoker/internal/kube"
)

// witness inspects the gateways whenever the status says that all of them are ready, and checks every
// status.
type witness struct {
	*ways
	// client has no rate limit. A shared, limited client would inspect the gateways later than necessary.
	client dynamic.Interface

	mu    sync.Mutex
	was   *v1alpha1.GatewaySyncStatus
	ready []sighting
}

// sighting is what the gateways had while the status said Ready.
type sighting struct {
	commit string
	titles []string
	// exact is whether neither the object nor the target changed between the status and the end of the
	// inspection.
	exact bool
}

func newWitness(w *ways) *witness {
	w.t.Helper()
	client, err := dynamic.NewForConfig(w.Cluster.RESTConfig())
	require.NoError(w.t, err)
	return &witness{ways: w, client: client}
}

// see receives every state of the object.
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
	// The target can only have changed in between if there was a request, because a branch does not move
	// back by itself.
	s.exact = errors.Join(err, errAfter, errNow) == nil && now.ResourceVersion == gs.ResourceVersion &&
		before.Spec.Commit == s.commit && before.Spec.Revision == after.Spec.Revision
	w.ready = append(w.ready, s)
}

// told returns the SyncTarget of the agents.
func (w *witness) told() (*v1alpha1.SyncTarget, error) {
	return kube.SyncTargets(w.client, w.Namespace).Get(w.t.Context(), w.Name)
}

// exact returns the number of inspections without a concurrent change.
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

// verdict checks all observed states against the rules.
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
			continue // the gateways may be ahead of the status, but never behind
		}
		exact++
		for _, title := range s.titles {
			assert.Equal(w.t, w.titles[s.commit], title, "Ready is True although a gateway runs another commit")
		}
	}
	w.t.Logf("%d states, %d statuses written, %d with a request in force, %d with a lapsed one; %d times ready, %d of them compared while nothing changed",
		len(seen), written, overrides, lapses, len(w.ready), exact)
	assert.Positive(w.t, overrides)
	assert.Positive(w.t, lapses)
	assert.Positive(w.t, exact)
}

// follows checks one status against the object that it was computed from, whose version the write carries.
// since are the states of the object from the previous status to this one.
func (w *witness) follows(gs *v1alpha1.GatewaySync, since []v1alpha1.GatewaySync) {
	w.t.Helper()
	st := &gs.Status
	if st.Target == nil {
		return // the first status is written before anything is known
	}
	want, err := desiredref.Of(gs, "")
	require.NoError(w.t, err)
	assert.Equal(w.t, want.Ref, st.Target.Ref, "the target must match desiredref.Of")
	request := v1alpha1.RequestStatus{}
	if st.Request != nil {
		request = *st.Request
	}
	assert.Equal(w.t, v1alpha1.RequestStatus{Over: want.Over, Lapsed: want.Lapsed}, request)
	assert.Equal(w.t, gs.Generation, st.ObservedGeneration)

	// An override names the current request and the current spec, and must not have lapsed before. The
	// object may change between two statuses, which are at least a second apart. A request that was
	// replaced and then repeated in this time counts as a new one.
	if st.Target.Ref != gs.Spec.Git.Ref {
		assert.Equal(w.t, gs.Annotations[v1alpha1.AnnotationRequestedRef], st.Target.Ref)
		assert.Regexp(w.t, "^"+st.Target.Ref+"@"+gs.Spec.Git.Ref+"( |$)", request.Over)
		again := slices.ContainsFunc(since, func(was v1alpha1.GatewaySync) bool {
			return was.Annotations[v1alpha1.AnnotationRequestedRef] != st.Target.Ref
		})
		if !again && len(since) > 0 && since[0].Status.Request != nil && since[0].Status.Request.Lapsed != "" {
			assert.NotEqual(w.t, since[0].Status.Request.Lapsed, request.Over, "a lapsed request must not be in force again")
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
