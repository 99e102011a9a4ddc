package kube

import (
	"errors"
	"net"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"

	"stoker.io/stoker/api/v1alpha1"
)

func target(ref, version string) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"format": int64(1), "minFormat": int64(1), "ref": ref}}}
	u.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(v1alpha1.KindSyncTarget))
	u.SetNamespace("plant")
	u.SetName("line")
	u.SetResourceVersion(version)
	return u
}

// away is an API server that may refuse connections.
type away struct {
	*fake.FakeDynamicClient
	refuses atomic.Bool
	tries   atomic.Int32
	watches chan *watch.FakeWatcher
}

func newAway(objects ...runtime.Object) *away {
	a := &away{watches: make(chan *watch.FakeWatcher, 10)}
	a.FakeDynamicClient = fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(),
		map[schema.GroupVersionResource]string{SyncTarget.Resource(): "SyncTargetList"}, objects...)
	refused := func() error {
		a.tries.Add(1)
		if a.refuses.Load() {
			return &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
		}
		return nil
	}
	a.PrependReactor("list", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
		err := refused()
		return err != nil, nil, err
	})
	a.PrependWatchReactor("*", func(action clienttesting.Action) (bool, watch.Interface, error) {
		if err := refused(); err != nil {
			return true, nil, err
		}
		if w, ok := action.(clienttesting.WatchActionImpl); ok && w.ListOptions.SendInitialEvents != nil {
			return true, nil, apierrors.NewInvalid(schema.GroupKind{}, "", nil) // an API server that lists before it watches
		}
		w := watch.NewFake()
		a.watches <- w
		return true, w, nil
	})
	return a
}

func TestAnInformerIsBackSoonAfterTheAPIServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAway(target("main", "1"))
		a.refuses.Store(true)
		in, err := SyncTargets(a, "plant").Informer(nil, 0, nil)
		require.NoError(t, err)
		told := 0
		require.NoError(t, in.OnWatchError(func(err error) {
			if errors.Is(err, syscall.ECONNREFUSED) {
				told++
			}
		}))
		go in.Run(t.Context())

		for _, c := range []struct {
			name string
			seen func() bool
			back func()
		}{
			{"the first list", in.HasSynced, func() {}},
			{"a watch that ended", func() bool {
				st, err := in.Get("plant", "line")
				return err == nil && st.Spec.Ref == "release"
			}, func() { (<-a.watches).Modify(target("release", "2")) }},
		} {
			a.refuses.Store(true)
			before := a.tries.Load()
			if c.name != "the first list" {
				(<-a.watches).Stop()
			}
			time.Sleep(10 * time.Minute)
			assert.False(t, c.seen(), c.name)
			tries := a.tries.Load() - before
			assert.Greater(t, tries, int32(30), "%s: it is tried all the time", c.name)
			assert.Less(t, tries, int32(150), "%s: and not all too often", c.name)
			a.refuses.Store(false)
			began := time.Now()
			go c.back()
			for !c.seen() && time.Since(began) < time.Hour {
				time.Sleep(100 * time.Millisecond)
			}
			assert.Less(t, time.Since(began), 2*mostPause+time.Second, c.name)
		}
		assert.Greater(t, told, 60, "each failure is told")
	})
}

func TestWhatTheAPIServerAnswersIsNotTriedAgainHere(t *testing.T) {
	calls, told := 0, 0
	tell := func(error) { told++ }
	_, err := patiently(t.Context(), tell, func() (int, error) {
		calls++
		return 0, apierrors.NewForbidden(SyncTarget.Resource().GroupResource(), "line", errors.New("no"))
	})
	assert.True(t, apierrors.IsForbidden(err))
	assert.Equal(t, 1, calls)
	_, err = patiently(t.Context(), tell, func() (int, error) {
		return 0, apierrors.FromObject(&metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonExpired})
	})
	assert.True(t, apierrors.IsResourceExpired(err))
	assert.Equal(t, 2, told)
}
