package request

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/desiredref"
	"stoker.io/stoker/internal/kube"
)

// done returns a fleet of three that runs commit A for the request t1.
func done() *v1alpha1.GatewaySync {
	gs := plant("main")
	gs.Generation = 4
	gs.Annotations = map[string]string{v1alpha1.AnnotationRequestedAt: "t1"}
	st := &gs.Status
	st.ConfirmedAt = &metav1.Time{Time: noon}
	st.Target = &v1alpha1.TargetStatus{Ref: "main", Commit: commitA, RequestedAt: "t1"}
	for i := range 3 {
		st.DiscoveredGateways = append(st.DiscoveredGateways, v1alpha1.DiscoveredGateway{
			Name: fmt.Sprintf("line-%d", i), PodName: fmt.Sprintf("pod-%d", i), SyncStatus: v1alpha1.GatewaySynced, Reason: v1alpha1.ReasonSynced, SyncedCommit: commitA,
		})
	}
	return answered(gs, v1alpha1.Outcome{Phase: v1alpha1.OutcomeSucceeded, Ref: "main", Commit: commitA, Total: 3, Synced: 3, Reason: v1alpha1.ReasonSynced, Message: "all 3 gateways run main at aaaaaaa"})
}

// answered gives gs an outcome that describes its current spec and request.
func answered(gs *v1alpha1.GatewaySync, o v1alpha1.Outcome) *v1alpha1.GatewaySync {
	gs.Status.ObservedGeneration, gs.Status.ObservedRequest, gs.Status.Outcome = gs.Generation, desiredref.Key(gs), &o
	return gs
}

// P4: an outcome that says Succeeded counts only for the current spec and request.
func TestReadCurrentOutcomeOnly(t *testing.T) {
	require.Equal(t, Succeeded, Read(done(), "main", nil, noon).Phase)
	for name, c := range map[string]struct {
		change func(*v1alpha1.GatewaySync)
		says   string
	}{
		"no outcome":       {func(gs *v1alpha1.GatewaySync) { gs.Status.Outcome = nil }, "neither an agent nor the injector"},
		"another spec":     {func(gs *v1alpha1.GatewaySync) { gs.Generation++ }, "generation 5"},
		"a new poll":       {func(gs *v1alpha1.GatewaySync) { gs.Annotations[v1alpha1.AnnotationRequestedAt] = "t2" }, "the request"},
		"another request":  {func(gs *v1alpha1.GatewaySync) { gs.Annotations[v1alpha1.AnnotationRequestedRef] = "main" }, "the request"},
		"a commit":         {func(gs *v1alpha1.GatewaySync) { gs.Annotations[v1alpha1.AnnotationRequestedCommit] = commitB }, "the request"},
		"a condition":      {func(gs *v1alpha1.GatewaySync) { gs.Annotations[v1alpha1.AnnotationRequestedUnless] = commitB }, "the request"},
		"another override": {func(gs *v1alpha1.GatewaySync) { gs.Annotations[v1alpha1.AnnotationRequestedOver] = "v2@main" }, "the request"},
		"a pause":          {func(gs *v1alpha1.GatewaySync) { gs.Annotations[v1alpha1.AnnotationPaused] = "true" }, "the request"},
		"no request":       {func(gs *v1alpha1.GatewaySync) { gs.Annotations = nil }, "the request"},
	} {
		t.Run(name, func(t *testing.T) {
			gs := done()
			c.change(gs)
			v := Read(gs, "", nil, noon)
			assert.Equal(t, Progressing, v.Phase)
			assert.Equal(t, v1alpha1.ReasonWaitingForLead, v.Reason)
			assert.Contains(t, v.Message, c.says)
			assert.Equal(t, Count{Total: 3}, v.Gateways)
		})
	}
}

// led returns the SyncTarget of a lead. The API server recorded the last renewal of the lock at the given time before noon.
func led(ago time.Duration) *v1alpha1.SyncTarget {
	t := &v1alpha1.SyncTarget{}
	// The clock of the lead's node must not matter.
	t.Spec.Lead = v1alpha1.LeadRecord{Holder: "line-0_1", DurationSeconds: 15, Renewed: &metav1.MicroTime{Time: noon.Add(-time.Hour)}}
	t.ManagedFields = []metav1.ManagedFieldsEntry{
		{Manager: "stoker-agent", Time: &metav1.Time{Time: noon.Add(-ago)}, FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:lead":{"f:renewed":{}}}}`)},
		{Manager: "kubectl", Time: &metav1.Time{Time: noon}, FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:labels":{}}}`)},
	}
	return t
}

// P6: the outcome reports success, but no agent runs that would correct it.
func TestReadWithoutLead(t *testing.T) {
	released := led(time.Second)
	released.Spec.Lead.Holder = ""
	for name, c := range map[string]struct {
		confirmed time.Duration // how long before noon an agent confirmed the status
		target    *v1alpha1.SyncTarget
		done      bool
	}{
		"lock unread, young status":     {v1alpha1.ConfirmedFor, nil, true},
		"lock unread, old status":       {v1alpha1.ConfirmedFor + time.Second, nil, false},
		"lock renewed":                  {time.Minute, led(14 * time.Second), true},
		"lock renewed, old status":      {time.Hour, led(0), false},
		"lock expired":                  {time.Minute, led(16 * time.Second), false},
		"lock released":                 {time.Second, released, false},
		"no SyncTarget":                 {time.Second, &v1alpha1.SyncTarget{}, false},
		"clock of the lead ahead":       {-v1alpha1.ConfirmedFor, nil, true},
		"status from the future":        {-v1alpha1.ConfirmedFor - time.Second, nil, false},
		"status from the far future":    {-70000 * time.Hour, led(0), false},
		"lock from the future":          {time.Minute, led(-time.Hour), false},
		"no SyncTarget, failed outcome": {time.Hour, &v1alpha1.SyncTarget{}, false},
	} {
		t.Run(name, func(t *testing.T) {
			gs := done()
			gs.Status.ConfirmedAt = &metav1.Time{Time: noon.Add(-c.confirmed)}
			if strings.Contains(name, "failed") {
				gs.Status.Outcome.Phase = v1alpha1.OutcomeFailed
				assert.Equal(t, Failed, Read(gs, "main", c.target, noon).Phase, "a failed outcome is final")
				return
			}
			v := Read(gs, "main", c.target, noon)
			if c.done {
				assert.Equal(t, Succeeded, v.Phase)
				return
			}
			assert.Equal(t, Progressing, v.Phase)
			assert.Equal(t, v1alpha1.ReasonAgentsAway, v.Reason)
			assert.Equal(t, Count{Total: 3}, v.Gateways)
			assert.Empty(t, v.Behind, "outdated rows must not be listed")
			if c.confirmed < 0 {
				assert.Contains(t, v.Message, "no agent leads, so", "since when is not known")
				assert.Zero(t, v.Since)
			} else {
				assert.Contains(t, v.Message, "no agent leads since 20")
				assert.False(t, v.Since.After(noon))
			}
		})
	}
}

func TestReadListsGatewaysThatAreBehind(t *testing.T) {
	gs := done()
	rows := gs.Status.DiscoveredGateways
	rows[0].SyncStatus = v1alpha1.GatewayStandby
	rows[1].SyncedCommit = commitB
	rows[2].SyncStatus, rows[2].Reason, rows[2].Message = v1alpha1.GatewayHeld, v1alpha1.ReasonDesignerSessionActive, "admin works"
	gs.Status.Outcome.Phase, gs.Status.Outcome.Synced = v1alpha1.OutcomeHeld, 1
	v := Read(gs, "", nil, noon)
	assert.Equal(t, Held, v.Phase)
	require.Len(t, v.Behind, 2)
	assert.Equal(t, "line-1 (pod pod-1) Synced", v.Behind[0].String())
	assert.Equal(t, "line-2 (pod pod-2) Held/DesignerSessionActive: admin works", v.Behind[1].String())
}

func TestReadSuperseded(t *testing.T) {
	gs := done()
	v := Read(gs, "v1", nil, noon)
	assert.Equal(t, Overtaken, v.Phase)
	assert.Equal(t, "the desired ref is main (spec.git.ref) and no longer v1", v.Message)
	gs.Annotations[v1alpha1.AnnotationRequestedRef], gs.Annotations[v1alpha1.AnnotationRequestedFor] = "v2", "stage prod"
	gs.Annotations[v1alpha1.AnnotationRequestedBy] = "kargo"
	answered(gs, v1alpha1.Outcome{Phase: v1alpha1.OutcomeSucceeded, Ref: "v2", Commit: commitA})
	assert.Equal(t, "the desired ref is v2 (requested by kargo for stage prod) and no longer main", Read(gs, "main", nil, noon).Message)
	assert.Equal(t, Succeeded, Read(gs, "v2", nil, noon).Phase)

	t.Run("lead has not read the request", func(t *testing.T) {
		gs := gs.DeepCopy()
		gs.Annotations[v1alpha1.AnnotationRequestedRef] = "v3"
		assert.Equal(t, Overtaken, Read(gs, "v2", nil, noon).Phase)
		assert.Equal(t, Progressing, Read(gs, "v3", nil, noon).Phase)
	})
	t.Run("the request has no valid ref", func(t *testing.T) {
		answered(gs, v1alpha1.Outcome{Phase: v1alpha1.OutcomeFailed, Reason: v1alpha1.ReasonRefNotFound})
		assert.Equal(t, Failed, Read(gs, "main", nil, noon).Phase)
	})
}

func TestReadCommitOfRequest(t *testing.T) {
	for name, c := range map[string]struct {
		ref, commit string
		annotations map[string]string
	}{
		"requested commit": {"v2", "", map[string]string{v1alpha1.AnnotationRequestedRef: "v2", v1alpha1.AnnotationRequestedCommit: commitA}},
		"requested ref":    {"v2", commitA, map[string]string{v1alpha1.AnnotationRequestedRef: "v2"}},
		"commit":           {commitA, "", map[string]string{v1alpha1.AnnotationRequestedRef: commitA}},
		"spec":             {"main", commitA, nil},
	} {
		t.Run(name, func(t *testing.T) {
			gs := done()
			gs.Annotations = c.annotations
			answered(gs, v1alpha1.Outcome{Phase: v1alpha1.OutcomeSucceeded, Ref: c.ref, Commit: c.commit})
			v := Read(gs, "", nil, noon)
			assert.Equal(t, Succeeded, At(gs, v, "").Phase)
			assert.Equal(t, Succeeded, At(gs, v, strings.ToUpper(commitA)).Phase)
			v = At(gs, v, commitB)
			assert.Equal(t, Overtaken, v.Phase)
			assert.Contains(t, v.Message, " and no longer bbbbbbb")
		})
	}
	t.Run("not observed", func(t *testing.T) {
		gs := done()
		gs.Annotations[v1alpha1.AnnotationRequestedRef], gs.Annotations[v1alpha1.AnnotationRequestedCommit] = "v2", commitB
		assert.Equal(t, Overtaken, At(gs, Read(gs, "", nil, noon), commitA).Phase)
		assert.Equal(t, Progressing, At(gs, Read(gs, "", nil, noon), commitB).Phase)
	})
}

func TestReadLock(t *testing.T) {
	lock := func(holder string) runtime.Object {
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": v1alpha1.GroupVersion.String(), "kind": kube.SyncTarget.Name, "metadata": map[string]any{"name": "plant", "namespace": "line"},
			"spec": map[string]any{"lead": map[string]any{"holder": holder, "durationSeconds": int64(15), "renewed": time.Now().UTC().Format(metav1.RFC3339Micro)}},
		}}
	}
	kinds := map[schema.GroupVersionResource]string{kube.SyncTarget.Resource(): kube.SyncTarget.Name + "List"}
	client := func(list ...runtime.Object) *fake.FakeDynamicClient {
		return fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), kinds, list...)
	}
	fleet := func(phase v1alpha1.OutcomePhase) *v1alpha1.GatewaySync {
		gs := done()
		gs.Namespace, gs.Status.ConfirmedAt, gs.Status.Outcome.Phase = "line", &metav1.Time{Time: time.Now()}, phase
		return gs
	}
	for name, c := range map[string]struct {
		phase v1alpha1.OutcomePhase
		there []runtime.Object
		want  Phase
		asked int // requests to the API server
	}{
		"an agent leads":    {v1alpha1.OutcomeSucceeded, []runtime.Object{lock("line-0_1")}, Succeeded, 1},
		"no agent leads":    {v1alpha1.OutcomeSucceeded, []runtime.Object{lock("")}, Progressing, 1},
		"no agent ever led": {v1alpha1.OutcomeSucceeded, nil, Progressing, 1},
		"not done":          {v1alpha1.OutcomeProgressing, nil, Progressing, 0},
		"failed":            {v1alpha1.OutcomeFailed, nil, Failed, 0},
	} {
		t.Run(name, func(t *testing.T) {
			client := client(c.there...)
			v, err := ReadWithLock(t.Context(), kube.Clients{Dynamic: client}, fleet(c.phase), "main")
			require.NoError(t, err)
			assert.Equal(t, c.want, v.Phase, v.Message)
			assert.Len(t, client.Actions(), c.asked)
		})
	}
	t.Run("the lock cannot be read", func(t *testing.T) {
		client := client()
		client.PrependReactor("get", "*", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, errors.New("no") })
		v, err := ReadWithLock(t.Context(), kube.Clients{Dynamic: client}, fleet(v1alpha1.OutcomeSucceeded), "main")
		assert.Equal(t, Succeeded, v.Phase, "without the lock, the age of the status decides")
		assert.ErrorContains(t, err, "the SyncTarget cannot be read")
	})
}

// P6: a success needs a lead that confirms it, also if the rest of a forged outcome is odd.
func TestReadForgedSuccess(t *testing.T) {
	for name, forge := range map[string]func(*v1alpha1.Outcome){
		"no gateways":       func(o *v1alpha1.Outcome) { o.Total, o.Synced = 0, 0 },
		"negative":          func(o *v1alpha1.Outcome) { o.Total = -1 },
		"without an agent":  func(o *v1alpha1.Outcome) { o.Reason = v1alpha1.ReasonAgentsAway },
		"without a gateway": func(o *v1alpha1.Outcome) { o.Total, o.Reason = 0, v1alpha1.ReasonNoGateways },
	} {
		t.Run(name, func(t *testing.T) {
			gs := done()
			forge(gs.Status.Outcome)
			assert.Equal(t, Progressing, Read(gs, "main", &v1alpha1.SyncTarget{}, noon).Phase, "no agent has the lock")
			gs.Status.ConfirmedAt = &metav1.Time{Time: noon.Add(-time.Hour)}
			assert.Equal(t, Progressing, Read(gs, "main", nil, noon).Phase, "the status is old")
		})
	}
}

// Read must return a valid verdict for any object.
func FuzzRead(f *testing.F) {
	for _, gs := range []*v1alpha1.GatewaySync{done(), plant("main"), failing()} {
		raw, err := json.Marshal(gs)
		require.NoError(f, err)
		f.Add(raw, "main", "")
		f.Add(raw, "", "a b")
	}
	f.Fuzz(func(t *testing.T, raw []byte, ref, requested string) {
		gs := &v1alpha1.GatewaySync{}
		if json.Unmarshal(raw, gs) != nil {
			return
		}
		if requested != "" {
			gs.Annotations = map[string]string{v1alpha1.AnnotationRequestedRef: requested}
		}
		v := Read(gs, ref, nil, noon)
		if v.Phase == Succeeded {
			require.True(t, desiredref.Current(gs))
			require.True(t, gs.Status.Confirmed(noon))
		}
		_, _, _ = rollback(gs, ref, noon) // must not panic
	})
}
