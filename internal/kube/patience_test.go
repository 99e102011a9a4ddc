package kube

import (
	"context"
	"errors"
	"fmt"
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
	u := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"format": int64(1), "ref": ref}}}
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
	says    error        // the error while refusing; nil refuses the connection
	slow    atomic.Int64 // how long opening a watch takes
	busy    atomic.Int32 // the number of watches to refuse
	tries   atomic.Int32
	lists   atomic.Int32 // the number of lists answered
	asked   atomic.Value // the minimum version that the last list requested
	watches chan *watch.FakeWatcher
}

func newAway(objects ...runtime.Object) *away {
	a := &away{watches: make(chan *watch.FakeWatcher, 10)}
	a.FakeDynamicClient = fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(),
		map[schema.GroupVersionResource]string{SyncTarget.Resource(): "SyncTargetList"}, objects...)
	refused := func() error {
		a.tries.Add(1)
		if a.refuses.Load() && a.says != nil {
			return a.says
		}
		if a.refuses.Load() {
			return &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
		}
		return nil
	}
	a.PrependReactor("list", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		err := refused()
		if err == nil {
			a.asked.Store(action.(clienttesting.ListActionImpl).ListOptions.ResourceVersion)
			a.lists.Add(1)
		}
		return err != nil, nil, err
	})
	a.PrependWatchReactor("*", func(action clienttesting.Action) (bool, watch.Interface, error) {
		if err := refused(); err != nil {
			return true, nil, err
		}
		if asked, _, err := listFirst(action); asked {
			return true, nil, err
		}
		time.Sleep(time.Duration(a.slow.Load()))
		if a.busy.Add(-1) >= 0 {
			return true, nil, apierrors.NewTooManyRequests("later", 0)
		}
		w := watch.NewFake()
		a.watches <- w
		return true, w, nil
	})
	return a
}

// listFirst refuses watches that send initial events, like an API server that supports only list and watch.
func listFirst(action clienttesting.Action) (bool, watch.Interface, error) {
	w, ok := action.(clienttesting.WatchActionImpl)
	return ok && w.ListOptions.SendInitialEvents != nil, nil, apierrors.NewInvalid(schema.GroupKind{}, "", nil)
}

func TestTransientAPIErrors(t *testing.T) {
	syncs := schema.GroupResource{Group: v1alpha1.GroupVersion.Group, Resource: GatewaySync.Plural}
	for _, err := range []error{
		&net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}, context.DeadlineExceeded, apierrors.NewInternalError(errors.New("etcd")),
		apierrors.NewServiceUnavailable("starting"), apierrors.NewTooManyRequests("later", 1), apierrors.NewTimeoutError("slow", 1), apierrors.NewServerTimeout(syncs, "get", 1),
	} {
		t.Run(err.Error(), func(t *testing.T) {
			assert.True(t, Transient(err), "%v", err)
			assert.True(t, Transient(fmt.Errorf("read it: %w", err)), "%v", err)
		})
	}
	for _, err := range []error{
		apierrors.NewNotFound(syncs, "plant"), apierrors.NewForbidden(syncs, "plant", nil), apierrors.NewUnauthorized("who?"), apierrors.NewBadRequest("no"),
		apierrors.NewConflict(syncs, "plant", nil), &UndecodableError{Err: errors.New("a list instead of a string")},
	} {
		t.Run(err.Error(), func(t *testing.T) {
			assert.False(t, Transient(err), "%v", err)
			assert.False(t, Transient(fmt.Errorf("read it: %w", err)), "%v", err)
		})
	}
	assert.False(t, Transient(nil))
}

func TestInformerAfterOutage(t *testing.T) {
	for _, says := range []error{nil, apierrors.NewServiceUnavailable("etcd is away"), apierrors.NewInternalError(errors.New("etcdserver: no leader")), apierrors.NewTimeoutError("etcd", 1)} {
		t.Run(fmt.Sprint(says), func(t *testing.T) { recovers(t, says) })
	}
}

// recovers checks that an informer is up to date soon after an outage during which the API server answers with says.
func recovers(t *testing.T, says error) {
	synctest.Test(t, func(t *testing.T) {
		a := newAway(target("main", "1"))
		a.says = says
		a.refuses.Store(true)
		in, err := SyncTargets(a, "plant").Informer(nil, nil)
		require.NoError(t, err)
		reported := 0
		require.NoError(t, in.OnWatchError(func(err error) {
			if says == nil && errors.Is(err, syscall.ECONNREFUSED) || says != nil && errors.Is(err, says) {
				reported++
			}
		}))
		go in.Run(t.Context())

		// sequence: the second outage ends the watch of the first, and a synctest bubble has no sub-tests
		for _, c := range []struct {
			name string
			seen func() bool
			back func()
		}{
			{"first list", in.HasSynced, func() {}},
			{"ended watch", func() bool {
				st, err := in.Get("plant", "line")
				return err == nil && st.Spec.Ref == "release"
			}, func() { (<-a.watches).Modify(target("release", "2")) }},
		} {
			a.refuses.Store(true)
			before := a.tries.Load()
			if c.name != "first list" {
				(<-a.watches).Stop()
			}
			time.Sleep(10 * time.Minute)
			assert.False(t, c.seen(), c.name)
			tries := a.tries.Load() - before
			assert.Greater(t, tries, int32(30), "%s: the retries stopped", c.name)
			assert.Less(t, tries, int32(150), "%s: too many retries", c.name)
			a.refuses.Store(false)
			began := time.Now()
			go c.back()
			for !c.seen() && time.Since(began) < time.Hour {
				time.Sleep(100 * time.Millisecond)
			}
			assert.Less(t, time.Since(began), 2*maxPause+time.Second, c.name)
		}
		assert.Greater(t, reported, 60, "each failure is reported")
	})
}

// If the store of the API server was restored from a backup, a watch from a later version receives no events. So an interrupted
// watch must start with a new list.
func TestInterruptedWatchRelists(t *testing.T) {
	for _, c := range []struct {
		name  string
		away  func(*away)
		lists int32
	}{
		{name: "watch ended normally", away: func(*away) {}},
		{name: "API server unavailable", lists: 1, away: func(a *away) {
			a.refuses.Store(true)
			time.AfterFunc(time.Minute, func() { a.refuses.Store(false) })
		}},
		{name: "API server unavailable during a retry of client-go", lists: 1, away: func(a *away) {
			a.slow.Store(int64(maxResumeTime + time.Second))
			time.AfterFunc(maxResumeTime, func() { a.slow.Store(0) })
		}},
		{name: "API server unavailable after the start of the next watch", lists: 1, away: func(a *away) {
			first := <-a.watches
			first.Stop()
			(<-a.watches).Stop()
			a.watches <- first
		}},
		{name: "API server busy", lists: 1, away: func(a *away) { a.busy.Store(1) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := newAway(target("new", "500"))
				in, err := SyncTargets(a, "plant").Informer(nil, nil)
				require.NoError(t, err)
				go in.Run(t.Context())
				synctest.Wait()
				require.True(t, in.HasSynced())
				require.EqualValues(t, 1, a.lists.Load())
				assert.Equal(t, "0", a.asked.Load(), "the first list may come from the cache of the API server")

				require.NoError(t, a.Tracker().Update(SyncTarget.Resource(), target("old", "100"), "plant"))
				time.Sleep(time.Minute)
				c.away(a)
				(<-a.watches).Stop()
				time.Sleep(2 * time.Minute)
				st, err := in.Get("plant", "line")
				require.NoError(t, err)
				assert.Equal(t, []string{"new", "old"}[c.lists], st.Spec.Ref)
				assert.Equal(t, 1+c.lists, a.lists.Load())
				assert.Equal(t, []string{"0", ""}[c.lists], a.asked.Load(), "a list after an outage must not name a version that the API server may have dropped")
			})
		})
	}
}

func TestBusyAPIServerIsRelistedOnce(t *testing.T) {
	for name, given := range map[string]func(*away){
		"slow": func(a *away) { a.slow.Store(int64(maxResumeTime + time.Second)) },
		"busy": func(a *away) { a.busy.Store(1 << 20) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := newAway(target("main", "1"))
				in, err := SyncTargets(a, "plant").Informer(nil, nil)
				require.NoError(t, err)
				go in.Run(t.Context())
				synctest.Wait()
				given(a)
				time.Sleep(time.Minute)
				(<-a.watches).Stop()
				time.Sleep(time.Hour)
				require.EqualValues(t, 2, a.lists.Load())
				assert.Less(t, a.tries.Load(), int32(500))
				a.busy.Store(0)
				time.Sleep(2 * time.Minute)
				w := <-a.watches
				for w.IsStopped() {
					w = <-a.watches
				}
				go w.Modify(target("release", "2"))
				time.Sleep(time.Minute)
				st, err := in.Get("plant", "line")
				require.NoError(t, err)
				assert.Equal(t, "release", st.Spec.Ref, "the watch must continue")
				assert.EqualValues(t, 2, a.lists.Load())
			})
		})
	}
}

func TestAPIErrorsAreNotRetried(t *testing.T) {
	calls, reported := 0, 0
	tell := func(error) { reported++ }
	_, err := retry(t.Context(), tell, func() (int, error) {
		calls++
		return 0, apierrors.NewForbidden(SyncTarget.Resource().GroupResource(), "line", errors.New("no"))
	})
	assert.True(t, apierrors.IsForbidden(err))
	assert.Equal(t, 1, calls)
	_, err = retry(t.Context(), tell, func() (int, error) {
		return 0, apierrors.FromObject(&metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonExpired})
	})
	assert.True(t, apierrors.IsResourceExpired(err))
	assert.Equal(t, 2, reported)
}
