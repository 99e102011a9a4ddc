package lead

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/kube"
)

// A pod without an agent that names no GatewaySync belongs to the only one. An API server that does not answer must not hide it.
func TestSoleGatewaySync(t *testing.T) {
	other := siteAt("6")
	other.SetName("other")
	client := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(),
		map[schema.GroupVersionResource]string{kube.GatewaySync.Resource(): v1alpha1.KindGatewaySync + "List"}, siteAt("5"))
	busy, asked := false, 0
	client.PrependReactor("list", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
		asked++
		return busy, nil, apierrors.NewTooManyRequests("try again", 1)
	})
	pods := cache.NewSharedIndexInformer(&cache.ListWatch{}, &corev1.Pod{}, 0, cache.Indexers{})
	require.NoError(t, pods.GetStore().Add(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "plant", Name: "gw-0", Annotations: map[string]string{v1alpha1.AnnotationInject: "true"},
	}}))
	now := time.Now()
	s := &served{
		Lead:        &Lead{Config: Config{Now: func() time.Time { return now }}, lock: &lock{syncs: kube.GatewaySyncs(client, "plant")}},
		podInformer: pods,
	}
	// sequence: each step follows the one before
	for i, step := range []struct {
		busy  bool
		after time.Duration
		two   bool
		sole  bool
		asked int
	}{
		{busy: true, sole: true, asked: 1},
		{busy: true, after: time.Second, sole: true},
		{busy: true, after: soleRetry, sole: true, asked: 1},
		{after: soleRetry, sole: true, asked: 1},
		{busy: true, after: soleCached - time.Second, sole: true},
		{busy: true, after: time.Second, sole: true, asked: 1},
		{after: soleRetry, two: true, asked: 1},
		{busy: true, after: soleCached, two: true, asked: 1},
		{busy: true, after: soleRetry, two: true, asked: 1},
	} {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			now, busy, asked = now.Add(step.after), step.busy, 0
			if _, err := client.Tracker().Get(kube.GatewaySync.Resource(), "plant", "other"); step.two && err != nil {
				require.NoError(t, client.Tracker().Add(other))
			}
			assert.Equal(t, step.sole, s.sole(t.Context()))
			assert.Equal(t, step.asked, asked)
		})
	}
}
