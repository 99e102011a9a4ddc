package lease

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	clienttesting "k8s.io/client-go/testing"

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

// In fake time, so with a fake client: no request is in flight when time passes.
func TestElectionTimes(t *testing.T) {
	t.Parallel()
	const name = "one"
	electing := func(t *testing.T, client kubernetes.Interface, holder string, lead func(context.Context)) {
		t.Helper()
		go func() {
			assert.NoError(t, Lease{Client: client, Namespace: "stoker-system", Name: name, Holder: holder}.Elect(t.Context(), lead))
		}()
	}
	untilDone := func(began *time.Time) func(context.Context) {
		return func(ctx context.Context) { *began = time.Now(); <-ctx.Done() }
	}
	t.Run("a holder that renews keeps the Lease", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			client := clientset.New()
			var a, b time.Time
			electing(t, client, "a", untilDone(&a))
			synctest.Wait()
			electing(t, client, "b", untilDone(&b))
			time.Sleep(10 * leaseFor)
			synctest.Wait()
			assert.NotZero(t, a)
			assert.Zero(t, b)
		})
	})
	t.Run("a holder that stopped is replaced", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			hourAhead := metav1.NewMicroTime(began.Add(time.Hour)) // by its clock, which does not count
			client := clientset.New(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "stoker-system", Name: name}, Spec: coordinationv1.LeaseSpec{
				HolderIdentity: new("a"), LeaseDurationSeconds: new(int32(15)), RenewTime: &hourAhead, LeaseTransitions: new(int32(3))}})
			var b time.Time
			electing(t, client, "b", untilDone(&b))
			time.Sleep(10 * leaseFor)
			synctest.Wait()
			assert.GreaterOrEqual(t, b.Sub(began), leaseFor)
			assert.Less(t, b.Sub(began), leaseFor+2*retryEvery)
			is, err := client.CoordinationV1().Leases("stoker-system").Get(t.Context(), name, metav1.GetOptions{})
			require.NoError(t, err)
			assert.Equal(t, "b", *is.Spec.HolderIdentity)
			assert.EqualValues(t, 4, *is.Spec.LeaseTransitions)
		})
	})
	t.Run("a holder that cannot renew stops before another begins", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			client := clientset.New()
			var cut atomic.Bool
			cutOff := clientset.New()
			cutOff.Tracker = client.Tracker
			cutOff.ReactionChain = client.ReactionChain
			cutOff.PrependReactor("*", "leases", func(clienttesting.Action) (bool, runtime.Object, error) { return cut.Load(), nil, assert.AnError })
			var ended, a, b time.Time
			electing(t, cutOff, "a", func(ctx context.Context) { untilDone(&a)(ctx); ended = time.Now() })
			synctest.Wait()
			electing(t, client, "b", untilDone(&b))
			time.Sleep(time.Minute)
			cut.Store(true)
			cutAt := time.Now()
			time.Sleep(time.Minute)
			synctest.Wait()
			assert.NotZero(t, ended)
			assert.Less(t, ended.Sub(cutAt), renewWithin+retryEvery)
			assert.Greater(t, b, ended)
		})
	})
	t.Run("a lead that returns is called again", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			calls := 0
			electing(t, clientset.New(), "a", func(ctx context.Context) {
				if calls++; calls > 1 {
					<-ctx.Done()
				}
			})
			time.Sleep(2 * retryEvery)
			synctest.Wait()
			assert.Equal(t, 2, calls)
		})
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
		require.Fail(t, "nothing happened")
	}
}
