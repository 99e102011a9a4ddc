package lead

import (
	"testing"
	"testing/synctest"
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

func siteAt(version string) *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(v1alpha1.KindGatewaySync))
	u.SetNamespace("plant")
	u.SetName("site")
	u.SetResourceVersion(version)
	return u
}

// With several API servers, one may lag in lists and watches, but a get by name returns the latest version.
func TestLeadStartsWithExistingObject(t *testing.T) {
	for _, c := range []struct {
		name  string
		is    string // "" if it does not exist
		comes []string
		after time.Duration
		err   error
		asked int
	}{
		{name: "current watch", is: "5", asked: 1},
		{name: "watch two versions behind", is: "7", comes: []string{"6", "7"}, after: 1400 * time.Millisecond, asked: 2},
		{name: "silent watch", is: "7", after: (1<<maxReads - 1) * time.Second, err: errDeaf, asked: maxReads},
		{name: "deleted object", err: errGone, asked: 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(),
					map[schema.GroupVersionResource]string{kube.GatewaySync.Resource(): v1alpha1.KindGatewaySync + "List"}, siteAt("5"))
				asked := 0
				client.PrependReactor("get", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
					asked++
					if c.is == "" {
						return true, nil, apierrors.NewNotFound(kube.GatewaySync.Resource().GroupResource(), "site")
					}
					return true, siteAt(c.is), nil
				})
				client.PrependWatchReactor("*", func(action clienttesting.Action) (bool, watch.Interface, error) {
					if w, ok := action.(clienttesting.WatchActionImpl); ok && w.ListOptions.SendInitialEvents != nil {
						return true, nil, apierrors.NewInvalid(schema.GroupKind{}, "", nil)
					}
					w := watch.NewFake()
					go func() {
						for _, version := range c.comes {
							time.Sleep(700 * time.Millisecond)
							w.Modify(siteAt(version))
						}
					}()
					return true, w, nil
				})
				l := &Lead{Config: Config{Namespace: "plant", GatewaySync: "site"}, lock: &lock{syncs: kube.GatewaySyncs(client, "plant")}}
				in, err := l.lock.syncs.Informer(nil, nil)
				require.NoError(t, err)
				go in.Run(t.Context())
				synctest.Wait()
				require.True(t, in.HasSynced())

				began := time.Now()
				assert.ErrorIs(t, l.awaitCurrent(t.Context(), in), c.err)
				assert.InDelta(t, c.after, time.Since(began), float64(100*time.Millisecond))
				assert.Equal(t, c.asked, asked)
			})
		})
	}
}
