package request

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/test/cluster/kubetest"
)

// served creates a GatewaySync on an API server.
func served(t *testing.T) (dynamic.Interface, string) {
	t.Helper()
	return servedBy(t, kubetest.Objects(t))
}

func servedBy(t *testing.T, cluster *kubetest.Cluster) (dynamic.Interface, string) {
	t.Helper()
	namespace := cluster.Namespace(t)
	cluster.ApplyYAML(t, namespace, `
apiVersion: stoker.io/v1alpha1
kind: GatewaySync
metadata: {name: plant, annotations: {note: theirs}}
spec: {git: {repo: "https://git.example.com/plant.git", ref: main}}
`)
	client, err := dynamic.NewForConfig(cluster.RESTConfig())
	require.NoError(t, err)
	return client, namespace
}

func TestAPIServerRequestFieldManager(t *testing.T) {
	client, namespace := servedBy(t, kubetest.Control(t))
	s := NewSetter(client, nil)
	answer, err := s.Ask(t.Context(), namespace, "plant", Request{Ref: "v2", By: "cli", ID: "a"})
	require.NoError(t, err)
	require.Equal(t, Set, answer.Outcome)
	gs := answer.GatewaySync()
	assert.Equal(t, "v2", desired(t, gs).Ref)
	assert.Equal(t, "theirs", gs.Annotations["note"])
	assert.EqualValues(t, 1, gs.Generation, "the request must not write the spec")
	var managers []string
	for _, m := range gs.ManagedFields {
		managers = append(managers, m.Manager)
	}
	assert.ElementsMatch(t, []string{"kubetest", FieldManager}, managers)

	version := gs.ResourceVersion
	answer, err = s.Ask(t.Context(), namespace, "plant", Request{Ref: "v2", By: "cli", ID: "a"})
	require.NoError(t, err)
	assert.Equal(t, Unchanged, answer.Outcome)
	assert.Equal(t, version, answer.GatewaySync().ResourceVersion, "a repeated request must not write the object")
}

func TestAPIServerPauseAndResume(t *testing.T) {
	client, namespace := served(t)
	s := NewSetter(client, nil)
	// sequence: each step starts with the state that the last one left
	for _, step := range []struct {
		pause  bool
		want   Outcome
		paused bool
	}{{false, Unchanged, false}, {true, Set, true}, {true, Unchanged, true}, {false, Set, false}, {false, Unchanged, false}} {
		answer, err := s.Pause(t.Context(), namespace, "plant", step.pause)
		require.NoError(t, err)
		assert.Equal(t, step.want, answer.Outcome)
		assert.Equal(t, step.paused, answer.GatewaySync().Paused())
	}
	_, err := s.Pause(t.Context(), namespace, "nobody", true)
	assert.True(t, apierrors.IsNotFound(err))
}

type deciding struct {
	decide func(*v1alpha1.GatewaySync) (Request, string, error)
}

func (d *deciding) Decide(o v1alpha1.Requestable) (Request, string, error) {
	return d.decide(o.(*v1alpha1.GatewaySync))
}

// A team recreates the GatewaySync during a request. A sender authorized for the old object may not know the secret of the new
// one.
func TestAPIServerRequestForReplacedObject(t *testing.T) {
	client, namespace := served(t)
	syncs := client.Resource(kube.GatewaySync.Resource()).Namespace(namespace)
	first, err := syncs.Get(t.Context(), "plant", metav1.GetOptions{})
	require.NoError(t, err)
	recreate := func(*v1alpha1.GatewaySync) (Request, string, error) {
		if now, err := syncs.Get(t.Context(), "plant", metav1.GetOptions{}); err != nil || now.GetUID() != first.GetUID() {
			return Request{Ref: "v2", By: "generic"}, "", err
		}
		next := first.DeepCopy()
		next.SetUID("")
		next.SetResourceVersion("")
		if err := syncs.Delete(t.Context(), "plant", metav1.DeleteOptions{}); err != nil {
			return Request{}, "", err
		}
		_, err := syncs.Create(t.Context(), next, metav1.CreateOptions{})
		return Request{Ref: "v2", By: "generic"}, "", err
	}
	s := NewSetter(client, nil)
	// sequence: the first request replaces the object for the others
	for i, r := range []Request{
		{By: "generic", Decider: &deciding{recreate}},      // replaced during the write
		{Ref: "v2", By: "generic", UID: first.GetUID()},    // replaced before
		{By: "generic", ID: "hint-1", UID: first.GetUID()}, // a hint is refused as well
	} {
		_, err := s.Ask(t.Context(), namespace, "plant", r)
		assert.ErrorIs(t, err, ErrReplaced, i)
		assert.True(t, apierrors.IsNotFound(err), "%d: %v", i, err)
	}
	gs, err := kube.GatewaySyncs(client, namespace).Get(t.Context(), "plant")
	require.NoError(t, err)
	assert.NotEqual(t, first.GetUID(), gs.UID)
	assert.NotContains(t, gs.Annotations, v1alpha1.AnnotationRequestedRef)
	answer, err := s.Ask(t.Context(), namespace, "plant", Request{Ref: "v2", By: "generic", UID: gs.UID})
	require.NoError(t, err)
	assert.Equal(t, Set, answer.Outcome)
}

// Many promotions arrive in any order while a lead writes the status all the time. The newest promotion must win.
func TestAPIServerNewestPromotionWins(t *testing.T) {
	client, namespace := served(t)
	syncs := kube.GatewaySyncs(client, namespace)
	ctx, stop := context.WithCancel(t.Context())
	var lead, setters sync.WaitGroup
	lead.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			patch := fmt.Appendf(nil, `{"status":{"gatewaysReady":"%d/9"}}`, i%9)
			_, _ = syncs.Patch(ctx, "plant", types.MergePatchType, patch, metav1.PatchOptions{FieldManager: "stoker-lead"}, "status") // ends with ctx
		}
	})
	const promotions = 8
	outcomes := make([]Outcome, promotions)
	for i := range promotions {
		setters.Go(func() {
			id := fmt.Sprintf("test.01hz%022d.abcdef0", i)
			for range 20 { // a sender retries
				answer, err := NewSetter(client, nil).Ask(ctx, namespace, "plant", Request{Ref: fmt.Sprintf("v%d", i), By: "kargo", ID: id})
				if err == nil {
					outcomes[i] = answer.Outcome
					return
				}
				assert.True(t, apierrors.IsConflict(err), "%v", err)
			}
		})
	}
	setters.Wait()
	stop()
	lead.Wait()
	gs, err := syncs.Get(t.Context(), "plant")
	require.NoError(t, err)
	assert.Equal(t, fmt.Sprintf("v%d", promotions-1), desired(t, gs).Ref)
	assert.Equal(t, Set, outcomes[promotions-1])
	for i, o := range outcomes {
		assert.Contains(t, []Outcome{Set, Superseded}, o, "promotion %d", i)
	}
}
