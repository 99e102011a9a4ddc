package lookup

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/kube"
)

func object(name string, spec map[string]any) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{"spec": spec}}
	u.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(v1alpha1.KindGatewaySync))
	u.SetNamespace("plant")
	u.SetName(name)
	return u
}

// C2: an undecodable GatewaySync affects only itself. The receiver refuses its senders and must report the error to the operator.
func TestServedGatewaySyncs(t *testing.T) {
	client := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{kube.GatewaySync.Resource(): v1alpha1.KindGatewaySync + "List", kube.ConfigSync.Resource(): v1alpha1.KindConfigSync + "List"},
		object("line", map[string]any{"git": map[string]any{"ref": "main"}}),
		object("closed", map[string]any{"webhook": map[string]any{"enabled": false}}),
		object("broken", map[string]any{"git": "main"}))
	client.PrependWatchReactor("*", func(action clienttesting.Action) (bool, watch.Interface, error) { // force list and watch
		w, ok := action.(clienttesting.WatchActionImpl)
		return ok && w.ListOptions.SendInitialEvents != nil, nil, apierrors.NewInvalid(schema.GroupKind{}, "", nil)
	})
	changed, unreadable := make(chan string, 9), make(chan *kube.UndecodableError, 9)
	l, err := New(client, nil, nil, Callbacks{
		Changed:    func(o v1alpha1.Requestable) { changed <- o.GetName() },
		Unreadable: func(err *kube.UndecodableError) { unreadable <- err },
		Failed:     func(error) {},
	})
	require.NoError(t, err)
	assert.True(t, l.NotSynced(kube.GatewaySync, "plant"))
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx) }()
	require.Eventually(t, l.Listed, time.Minute, time.Millisecond)
	assert.False(t, l.NotSynced(kube.GatewaySync, "plant"))
	stop()
	require.NoError(t, <-done)
	for name, served := range map[string]bool{"line": true, "closed": false, "broken": false, "nobody": false} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, served, l.Get(kube.GatewaySync, "plant", name) != nil)
		})
	}
	require.Len(t, l.List(), 1)
	close(changed)
	close(unreadable)
	var names []string
	for name := range changed {
		names = append(names, name)
	}
	assert.Equal(t, []string{"line"}, names)
	bad := <-unreadable
	require.NotNil(t, bad)
	assert.Equal(t, "broken", bad.Name)
	assert.ErrorContains(t, bad, "git")
	assert.Nil(t, <-unreadable, "once")
}
