package reconcile

import (
	"context"
	"log/slog"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/injector/lookup"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/internal/metrics"
	"stoker.io/stoker/test/clientset"
)

// of returns a pod with an agent that runs as a ServiceAccount.
func of(account string) *corev1.Pod {
	p := podNamed("gw-"+account, true)
	p.Spec.ServiceAccountName = account
	return p
}

// An account keeps its permissions while its pod is replaced, but not much longer.
func TestUnusedServiceAccountLosesRights(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := clientset.New()
		var log strings.Builder
		u := &Reconciler{Config: Config{Core: client, AutoBind: true, Scope: lookup.Scope{Own: "stoker-system"}, Log: slog.New(slog.NewTextHandler(&log, nil))}, namespaces: map[string]*namespace{}}
		n := u.namespace("plant", nil)
		subjects := func() []string {
			b, err := client.RbacV1().RoleBindings("plant").Get(t.Context(), agentRole, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				return nil
			}
			require.NoError(t, err)
			names := []string{}
			for _, s := range b.Subjects {
				names = append(names, s.Name)
			}
			return names
		}
		bind := func(pods ...*corev1.Pod) { require.NoError(t, u.bind(t.Context(), n, true, pods, time.Now())) }

		bind(of("press"), of("oven"))
		assert.Equal(t, []string{"oven", "press"}, subjects())
		time.Sleep(time.Minute)
		bind(of("press")) // the pod of account oven is being replaced
		assert.Equal(t, []string{"oven", "press"}, subjects())
		time.Sleep(11 * time.Minute)
		bind(of("press"))
		assert.Equal(t, []string{"press"}, subjects())

		for range 5 {
			time.Sleep(4 * time.Minute)
			bind()
		}
		assert.Nil(t, subjects())
		assert.False(t, n.bound, "the namespace must not count as bound")
		var events []string
		for _, m := range regexp.MustCompile(`msg="RoleBinding (\w+)"`).FindAllStringSubmatch(log.String(), -1) {
			events = append(events, m[1])
		}
		assert.Equal(t, []string{"created", "updated", "deleted"}, events)
	})
}

// After a restart, a replica does not know which accounts had pods. It must not revoke permissions before it has watched for a
// while.
func TestNewReplicaRevokesNoRights(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := clientset.New(binding("plant", []string{"oven"}))
		u := &Reconciler{Config: Config{Core: client, AutoBind: true, Log: slog.New(slog.DiscardHandler)}, namespaces: map[string]*namespace{}}
		n := u.namespace("plant", nil)
		get := func() []rbacv1.Subject {
			b, err := client.RbacV1().RoleBindings("plant").Get(t.Context(), agentRole, metav1.GetOptions{})
			require.NoError(t, err)
			return b.Subjects
		}
		require.NoError(t, u.bind(t.Context(), n, true, []*corev1.Pod{of("press")}, time.Now()))
		assert.Equal(t, binding("plant", []string{"oven", "press"}).Subjects, get())
		time.Sleep(15 * time.Minute)
		require.NoError(t, u.bind(t.Context(), n, true, []*corev1.Pod{of("press")}, time.Now()))
		assert.Equal(t, binding("plant", []string{"press"}).Subjects, get())
	})
}

// A list that fails is tried again: only it shows a namespace of which nothing but the RoleBinding is left.
func TestLeftoverRoleBindings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := clientset.New(binding("a", []string{"oven"}), binding("b", []string{"oven"}))
		failures := 3
		client.PrependReactor("list", "rolebindings", func(a clienttesting.Action) (bool, runtime.Object, error) {
			if a.GetNamespace() != "b" || failures == 0 {
				return false, nil, nil
			}
			failures--
			return true, nil, apierrors.NewTooManyRequests("later", 1)
		})
		u, err := New(Config{Core: client, AutoBind: true, Scope: lookup.Scope{Watch: []string{"a", "b"}}, Log: slog.New(slog.DiscardHandler)})
		require.NoError(t, err)
		defer u.queue.ShutDown()
		go u.queueBound(t.Context())
		for _, want := range []string{"a", "b"} { // sequence: b after its list succeeds
			time.Sleep(time.Hour)
			synctest.Wait()
			require.Positive(t, u.queue.Len(), want)
			name, _ := u.queue.Get()
			assert.Equal(t, want, name)
		}
	})
}

func TestRightsInDisabledNamespace(t *testing.T) {
	asks := func() *corev1.Pod {
		p := podNamed("gw-asks", false)
		p.Spec.ServiceAccountName = "asks"
		return p
	}
	for name, c := range map[string]struct {
		labels   map[string]string
		required bool
		want     []string
	}{
		"no label":               {nil, false, []string{"asks", "has"}},
		"disabled":               {map[string]string{v1alpha1.LabelInjection: "disabled"}, false, []string{"has"}},
		"label required":         {nil, true, []string{"has"}},
		"label required and set": {map[string]string{v1alpha1.LabelInjection: "enabled"}, true, []string{"asks", "has"}},
	} {
		t.Run(name, func(t *testing.T) {
			client := clientset.New(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "plant", Labels: c.labels}})
			u := &Reconciler{Config: Config{Core: client, AutoBind: true, RequireLabel: c.required, Log: slog.New(slog.DiscardHandler)}, namespaces: map[string]*namespace{}}
			require.NoError(t, u.bind(t.Context(), u.namespace("plant", nil), true, []*corev1.Pod{asks(), of("has")}, time.Now()))
			b, err := client.RbacV1().RoleBindings("plant").Get(t.Context(), agentRole, metav1.GetOptions{})
			require.NoError(t, err)
			assert.Equal(t, binding("plant", c.want).Subjects, b.Subjects)
		})
	}
	// Labels that cannot be read give no consent, but the other accounts must still be bound.
	client := clientset.New()
	u := &Reconciler{Config: Config{Core: client, AutoBind: true, Log: slog.New(slog.DiscardHandler)}, namespaces: map[string]*namespace{}}
	err := u.bind(t.Context(), u.namespace("plant", nil), true, []*corev1.Pod{asks(), of("has")}, time.Now())
	require.ErrorContains(t, err, "labels of namespace plant")
	b, err := client.RbacV1().RoleBindings("plant").Get(t.Context(), agentRole, metav1.GetOptions{})
	require.NoError(t, err)
	assert.Equal(t, binding("plant", []string{"has"}).Subjects, b.Subjects)
}

func TestNoRightsWithoutGatewaySync(t *testing.T) {
	client := clientset.New()
	u := &Reconciler{Config: Config{Core: client, AutoBind: true, Log: slog.New(slog.DiscardHandler)}, namespaces: map[string]*namespace{}}
	require.NoError(t, u.bind(t.Context(), u.namespace("plant", nil), false, []*corev1.Pod{of("press")}, time.Now()))
	list, err := client.RbacV1().RoleBindings("").List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	assert.Empty(t, list.Items)
}

// If this version cannot decode a GatewaySync, its agents keep their permissions, because only they can report the error.
func TestUndecodableGatewaySyncKeepsRights(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		unreadable := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"paused": "perhaps"}}}
		unreadable.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(v1alpha1.KindGatewaySync))
		unreadable.SetNamespace("plant")
		unreadable.SetName("line")
		syncs := kube.GatewaySync.Resource()
		client := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{syncs: v1alpha1.KindGatewaySync + "List"}, unreadable)
		listFirst := func(action clienttesting.Action) (bool, watch.Interface, error) {
			w, ok := action.(clienttesting.WatchActionImpl)
			return ok && w.ListOptions.SendInitialEvents != nil, nil, apierrors.NewInvalid(schema.GroupKind{}, "", nil)
		}
		client.PrependWatchReactor("*", listFirst)
		core := clientset.New(of("press"))
		core.PrependWatchReactor("*", listFirst)
		scope := lookup.Scope{Own: "stoker-system"}
		find, err := lookup.New(client, scope, nil, slog.New(slog.DiscardHandler))
		require.NoError(t, err)
		u, err := New(Config{Core: core, Find: find, Scope: scope, AutoBind: true, Repair: RepairReport, Metrics: metrics.NewInjector(prometheus.NewRegistry(), "test"),
			Log: slog.New(slog.DiscardHandler), Now: time.Now})
		require.NoError(t, err)
		ctx, stop := context.WithCancel(t.Context())
		defer u.queue.ShutDown()
		defer stop()
		go func() { _ = find.Run(ctx) }()
		for _, w := range u.pods {
			go w.informer.RunWithContext(ctx)
		}
		subjects := func() []rbacv1.Subject {
			time.Sleep(time.Minute)
			_, err := u.reconcile(ctx, "plant")
			require.NoError(t, err)
			b, err := core.RbacV1().RoleBindings("plant").Get(ctx, agentRole, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				return nil
			}
			require.NoError(t, err)
			return b.Subjects
		}
		for range 20 {
			require.Equal(t, binding("plant", []string{"press"}).Subjects, subjects())
		}
		require.NoError(t, client.Resource(syncs).Namespace("plant").Delete(ctx, "line", metav1.DeleteOptions{}))
		for range 20 {
			subjects()
		}
		require.Empty(t, subjects(), "the subjects must be removed with the last GatewaySync")
	})
}

// A namespace that was deleted and created again gets its RoleBinding at once: what the reconciler knows of the earlier one does not count.
func TestRecreatedNamespaceGetsRights(t *testing.T) {
	client := clientset.New()
	u := &Reconciler{Config: Config{Core: client, AutoBind: true, Log: slog.New(slog.DiscardHandler)}, namespaces: map[string]*namespace{}}
	bind := func(uid types.UID) {
		require.NoError(t, u.bind(t.Context(), u.namespace("plant", map[types.UID]bool{uid: true}), true, []*corev1.Pod{of("press")}, time.Now()))
	}
	bind("first")
	require.NoError(t, client.RbacV1().RoleBindings("plant").Delete(t.Context(), agentRole, metav1.DeleteOptions{})) // with the namespace
	u.namespace("plant", nil)                                                                                        // nothing exists for a moment
	bind("second")
	b, err := client.RbacV1().RoleBindings("plant").Get(t.Context(), agentRole, metav1.GetOptions{})
	require.NoError(t, err)
	assert.Equal(t, binding("plant", []string{"press"}).Subjects, b.Subjects)
}
