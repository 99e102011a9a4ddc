package lease

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/kubernetes"

	"stoker.io/stoker/test/clientset"
	"stoker.io/stoker/test/cluster/kubetest"
)

func TestMain(m *testing.M) { kubetest.Main(m) }

// A fake client would not do: it knows no conflicts.
func TestElect(t *testing.T) {
	t.Parallel()
	cluster := kubetest.Control(t)
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
			assert.NoError(t, l.Elect(ctx, func(ctx context.Context) {
				assert.EqualValues(t, 1, leading.Add(1), "one at a time")
				began <- ctx
				<-ctx.Done()
				// What is written at the end is still written by the holder of the Lease.
				assert.NoError(t, l.Write(t.Context(), "stoker.io/sent", "by "+holder, "test"))
				leading.Add(-1)
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
	assert.Equal(t, "by a", text, "the next replica reads what the last one wrote")
	require.ErrorIs(t, a.Write(t.Context(), "stoker.io/sent", "late", "test"), ErrDeposed)
	require.NoError(t, b.Write(t.Context(), "stoker.io/sent", "", "test"))
	text, err = b.Read(t.Context(), "stoker.io/sent")
	require.NoError(t, err)
	assert.Empty(t, text)
	close(stopB)
	within(t, endedB)
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
		require.Fail(t, "nothing happened")
	}
}
