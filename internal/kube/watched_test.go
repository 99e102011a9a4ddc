package kube

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"

	"stoker.io/stoker/api/v1alpha1"
)

// plants returns an API server with one GatewaySync in each of three namespaces. Its label names the namespace.
func plants() *fake.FakeDynamicClient {
	var objects []runtime.Object
	for _, ns := range []string{"a", "b", "c"} {
		u := &unstructured.Unstructured{}
		u.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(v1alpha1.KindGatewaySync))
		u.SetNamespace(ns)
		u.SetName("plant")
		u.SetLabels(map[string]string{"at": ns})
		objects = append(objects, u)
	}
	client := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{GatewaySync.Resource(): v1alpha1.KindGatewaySync + "List"}, objects...)
	client.PrependWatchReactor("*", listFirst)
	return client
}

// run watches until the test ends. It returns when the caches have synced.
func (w *Watched[T]) run(t *testing.T) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	t.Cleanup(func() { stop(); assert.NoError(t, <-done) })
	require.Eventually(t, w.HasSynced, time.Minute, time.Millisecond)
}

func TestTrimmed(t *testing.T) {
	w, err := Watch(plants(), func(c dynamic.Interface, namespace string) *Objects[v1alpha1.GatewaySync] {
		return GatewaySyncs(c, namespace).Trimmed(func(gs *v1alpha1.GatewaySync) { gs.Labels = nil })
	}, []string{"a"}, nil, nil, nil)
	require.NoError(t, err)
	w.run(t)
	gs, err := w.Get("a", "plant")
	require.NoError(t, err)
	assert.Empty(t, gs.Labels, "the cache must keep what trim left")
}

func TestWatchedNamespaces(t *testing.T) {
	only, err := labels.Parse("at in (b, c)")
	require.NoError(t, err)
	for _, c := range []struct {
		name     string
		listed   []string
		selector labels.Selector
		want     []string
	}{
		{"all", nil, nil, []string{"a", "b", "c"}},
		{"selector", nil, only, []string{"b", "c"}},
		{"one namespace", []string{"b"}, nil, []string{"b"}},
		{"listed twice", []string{"b", "a", "b"}, nil, []string{"a", "b"}},
		{"namespaces and selector", []string{"b", "a"}, only, []string{"b"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			changed := make(chan string, 9)
			w, err := Watch(plants(), GatewaySyncs, c.listed, c.selector, func(namespace, _ string) { changed <- namespace }, nil)
			require.NoError(t, err)
			assert.False(t, w.HasSynced(), "no namespace was listed yet")
			w.run(t)
			var seen []string
			for _, gs := range w.List() {
				seen = append(seen, gs.Namespace)
			}
			assert.ElementsMatch(t, c.want, seen)
			for _, ns := range []string{"a", "b", "c"} {
				t.Run(ns, func(t *testing.T) {
					gs, err := w.Get(ns, "plant")
					if !slices.Contains(c.want, ns) {
						assert.ErrorIs(t, err, ErrNotSeen)
						return
					}
					require.NoError(t, err)
					assert.Equal(t, ns, gs.Namespace)
				})
			}
			_, err = w.Get("b", "other")
			assert.ErrorIs(t, err, ErrNotSeen)
			close(changed)
			var reported []string
			for ns := range changed {
				reported = append(reported, ns)
			}
			assert.ElementsMatch(t, c.want, reported, "each namespace is reported once")
		})
	}
}

func TestWatchErrorIsReported(t *testing.T) {
	client, refused := plants(), errors.New("forbidden")
	client.PrependWatchReactor("*", func(clienttesting.Action) (bool, watch.Interface, error) { return true, nil, refused })
	failed := make(chan error, 1)
	w, err := Watch(client, GatewaySyncs, nil, nil, nil, func(err error) {
		select {
		case failed <- err:
		default:
		}
	})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	select {
	case err := <-failed:
		assert.ErrorIs(t, err, refused)
	case <-time.After(time.Minute):
		t.Error("no callback ran")
	}
	assert.False(t, w.HasSynced())
	stop()
	assert.NoError(t, <-done)
}

// Missing permissions in one namespace must not affect the others. Without permissions in any namespace, the caches never sync.
func TestForbiddenNamespacesDoNotBlock(t *testing.T) {
	for name, c := range map[string]struct {
		refused []string
		served  bool
	}{"none": {nil, true}, "one of two": {[]string{"b"}, true}, "all": {[]string{"a", "b"}, false}} {
		t.Run(name, func(t *testing.T) {
			client := plants()
			for _, ns := range c.refused {
				forbidden := apierrors.NewForbidden(GatewaySync.Resource().GroupResource(), "", errors.New("forbidden in "+ns))
				in := func(a clienttesting.Action) bool { return a.GetNamespace() == ns }
				client.PrependReactor("list", "*", func(a clienttesting.Action) (bool, runtime.Object, error) { return in(a), nil, forbidden })
			}
			reported := make(chan error, 100)
			w, err := Watch(client, GatewaySyncs, []string{"a", "b"}, nil, nil, func(err error) {
				if apierrors.IsForbidden(err) {
					reported <- err
				}
			})
			require.NoError(t, err)
			assert.False(t, w.Listed(), "no request was sent yet")
			ctx, stop := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- w.Run(ctx) }()
			if c.served {
				require.Eventually(t, w.Listed, time.Minute, time.Millisecond)
			}
			for range c.refused {
				assert.Error(t, <-reported)
			}
			assert.Equal(t, c.served, w.Listed())
			assert.Equal(t, len(c.refused) == 0, w.HasSynced())
			assert.Equal(t, !slices.Contains(c.refused, "a"), w.Seen("a"))
			stop()
			assert.NoError(t, <-done)
		})
	}
}

func TestStuckSaysHowContainerEnded(t *testing.T) {
	ended := metav1.NewTime(time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC))
	for name, c := range map[string]struct {
		restarts int32
		last     corev1.ContainerStateTerminated
		want     string
	}{
		"out of memory": {1, corev1.ContainerStateTerminated{ExitCode: 137, Reason: "OOMKilled"}, "container gateway keeps crashing: 1 restart, the last exit was 137 (OOMKilled)"},
		"error":         {4, corev1.ContainerStateTerminated{ExitCode: 1, Reason: "Error"}, "container gateway keeps crashing: 4 restarts, the last exit was 1"},
		"for days":      {37, corev1.ContainerStateTerminated{ExitCode: 0, Reason: "Completed"}, "container gateway keeps crashing: more than 20 restarts, the last exit was 0"},
	} {
		t.Run(name, func(t *testing.T) {
			c.last.StartedAt, c.last.FinishedAt = ended, ended
			p := &corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{
				Name: "gateway", RestartCount: c.restarts, LastTerminationState: corev1.ContainerState{Terminated: &c.last},
				State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}},
			}}}}
			assert.Equal(t, c.want, Stuck(p))
		})
	}
}

// dated is a slow API server whose clock differs from this node's.
type dated struct {
	ahead, takes time.Duration
	date         string // overrides the Date header
}

func (d *dated) RoundTrip(r *http.Request) (*http.Response, error) {
	time.Sleep(d.takes / 2)
	date := d.date
	if date == "" {
		date = time.Now().Add(d.ahead).UTC().Format(http.TimeFormat)
	}
	time.Sleep(d.takes - d.takes/2)
	return &http.Response{StatusCode: http.StatusNotFound, Header: http.Header{"Date": {date}}, Body: io.NopCloser(strings.NewReader("{}")), Request: r}, nil
}

func TestClientsShareRateLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clients, err := ConnectTo(&rest.Config{Host: "http://server.invalid", Transport: &dated{}}, "test")
		require.NoError(t, err)
		others, err := ConnectTo(clients.Config, "test")
		require.NoError(t, err)
		// sequence: the other clients have a limit of their own
		for _, c := range []Clients{clients, others} {
			began := time.Now()
			for range 40 { // 80 requests: a burst of 40, then 20 per second
				_, err := c.Core.CoreV1().Pods("plant").Get(t.Context(), "x", metav1.GetOptions{})
				require.Error(t, err)
				_, err = SyncTargets(c.Dynamic, "plant").Get(t.Context(), "x")
				require.Error(t, err)
			}
			assert.WithinDuration(t, began.Add(2*time.Second), time.Now(), 100*time.Millisecond)
		}
	})
}

func TestServerTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &dated{}
		clients, err := ConnectTo(&rest.Config{Host: "http://server.invalid", Transport: server}, "test")
		require.NoError(t, err)
		ask := func() {
			_, err := clients.Core.CoreV1().Pods("plant").Get(t.Context(), "x", metav1.GetOptions{})
			require.Error(t, err)
			_, err = SyncTargets(clients.Dynamic, "plant").Get(t.Context(), "x")
			require.Error(t, err)
		}
		assert.Equal(t, time.Now(), clients.Now(), "before the first answer, the local clock counts")
		// sequence: each answer changes the clock of the next, and a synctest bubble has no sub-tests
		for _, ahead := range []time.Duration{0, 20 * time.Minute, -20 * time.Minute, 10 * 365 * 24 * time.Hour, 300 * time.Millisecond, 0} {
			server.ahead = ahead
			for range 20 { // at different fractions of a second
				server.takes = 37 * time.Millisecond
				ask()
				time.Sleep(361 * time.Millisecond)
				assert.WithinDuration(t, time.Now().Add(ahead), clients.Now(), time.Second+server.takes, "%s", ahead)
			}
		}
		assert.Equal(t, time.Now(), clients.Now(), "a small difference is not corrected")

		server.ahead = time.Hour
		// sequence: each answer could change the clock of the next, and a synctest bubble has no sub-tests
		for _, c := range []struct {
			takes time.Duration
			date  string
		}{{maxRoundTrip + time.Millisecond, ""}, {0, "soon"}, {0, " "}} {
			server.takes, server.date = c.takes, c.date
			ask()
			assert.Equal(t, time.Now(), clients.Now(), "an answer of %+v must not set the clock", c)
		}
	})
	assert.WithinDuration(t, time.Now(), Clients{}.Now(), time.Minute, "the zero value uses the local clock")
}
