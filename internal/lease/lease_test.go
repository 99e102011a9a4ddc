package lease

import (
	"cmp"
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	clienttesting "k8s.io/client-go/testing"

	"stoker.io/stoker/test/clientset"
	"stoker.io/stoker/test/cluster/kubetest"
)

func TestMain(m *testing.M) { kubetest.Main(m) }

// TestElect needs an API server, because a fake client reports no conflicts.
func TestElect(t *testing.T) {
	t.Parallel()
	cluster := kubetest.Objects(t)
	namespace := cluster.Namespace(t)
	client, err := kubernetes.NewForConfig(cluster.RESTConfig())
	require.NoError(t, err)
	var leading atomic.Int32
	replica := func(holder string) (l Lease, stop, ended chan struct{}, began chan context.Context) {
		l = Lease{Client: client, Namespace: namespace, Name: "one", Holder: holder}
		stop, ended, began = make(chan struct{}), make(chan struct{}), make(chan context.Context, 1)
		ctx, cancel := context.WithCancel(t.Context())
		t.Cleanup(cancel)
		go func() { <-stop; cancel() }()
		go func() {
			defer close(ended)
			assert.NoError(t, l.Elect(ctx, func(ctx context.Context) error {
				assert.EqualValues(t, 1, leading.Add(1), "only one replica may lead at a time")
				began <- ctx
				<-ctx.Done()
				// What is written at the end is still written by the holder of the Lease.
				assert.NoError(t, l.Write(t.Context(), "stoker.io/sent", "by "+holder, "test"))
				leading.Add(-1)
				return nil
			}))
		}()
		return l, stop, ended, began
	}
	a, stopA, endedA, beganA := replica("a")
	within(t, beganA)
	b, stopB, endedB, beganB := replica("b")
	require.ErrorIs(t, b.Write(t.Context(), "stoker.io/sent", "by b", "test"), ErrDeposed)
	close(stopA)
	within(t, endedA)
	within(t, beganB)
	text, err := b.Read(t.Context(), "stoker.io/sent")
	require.NoError(t, err)
	assert.Equal(t, "by a", text, "the record must survive the change of the leader")
	require.ErrorIs(t, a.Write(t.Context(), "stoker.io/sent", "late", "test"), ErrDeposed)
	require.NoError(t, b.Write(t.Context(), "stoker.io/sent", "", "test"))
	text, err = b.Read(t.Context(), "stoker.io/sent")
	require.NoError(t, err)
	assert.Empty(t, text)
	close(stopB)
	within(t, endedB)
}

// A holder whose work has ended must release the Lease, because otherwise no other replica could work.
func TestElectReleasesWhenWorkEnds(t *testing.T) {
	t.Parallel()
	broke := errors.New("the work broke")
	for name, returned := range map[string]error{"with an error": broke, "without an error": nil} {
		t.Run(name, func(t *testing.T) {
			client := clientset.New()
			own := Lease{Client: client, Namespace: "stoker-system", Name: "one", Holder: "a"}
			err := own.Elect(t.Context(), func(context.Context) error { return returned })
			require.ErrorIs(t, err, cmp.Or(returned, errReturned))
			is, err := client.CoordinationV1().Leases(own.Namespace).Get(t.Context(), own.Name, metav1.GetOptions{})
			require.NoError(t, err)
			assert.Empty(t, *is.Spec.HolderIdentity, "the Lease must be released")
		})
	}
}

// The elector starts the work in a goroutine, and may release the Lease before it runs.
func TestElectCanceledWhileAcquiring(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := clientset.New()
		ctx, cancel := context.WithCancel(t.Context())
		client.PrependReactor("create", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
			cancel()
			return false, nil, nil
		})
		own := Lease{Client: client, Namespace: "stoker-system", Name: "one", Holder: "a"}
		var led atomic.Bool
		require.NoError(t, own.Elect(ctx, func(context.Context) error { led.Store(true); return nil }))
		synctest.Wait()
		assert.False(t, led.Load(), "the work begins although the Lease is released")
		is, err := client.CoordinationV1().Leases(own.Namespace).Get(t.Context(), own.Name, metav1.GetOptions{})
		require.NoError(t, err)
		assert.Empty(t, *is.Spec.HolderIdentity)
	})
}

func TestReadWithoutLease(t *testing.T) {
	text, err := Lease{Client: clientset.New(), Namespace: "stoker-system", Name: "none"}.Read(t.Context(), "stoker.io/sent")
	require.NoError(t, err)
	assert.Empty(t, text)
}

func within[T any](t *testing.T, c <-chan T) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(time.Minute):
		require.Fail(t, "no signal within a minute")
	}
}
