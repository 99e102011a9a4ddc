package upkeep

import (
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/injector/lookup"
)

func of(account string) *corev1.Pod {
	p := podNamed("gw-"+account, true)
	p.Spec.ServiceAccountName = account
	return p
}

// An account whose pod is replaced keeps its rights meanwhile; one that nobody uses loses them.
func TestAnAccountThatNobodyUsesLosesItsRightsAfterAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		u := &Upkeep{Config: Config{Core: client, AutoBind: true, Scope: lookup.Scope{Own: "stoker-system"}, Log: slog.New(slog.DiscardHandler)}, namespaces: map[string]*namespace{}}
		n := u.namespace("plant")
		all := []*v1alpha1.GatewaySync{syncOf()}
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
		bind := func(pods ...*corev1.Pod) { require.NoError(t, u.bind(t.Context(), n, all, pods, time.Now())) }

		bind(of("press"), of("oven"))
		assert.Equal(t, []string{"oven", "press"}, subjects())
		time.Sleep(time.Minute)
		bind(of("press")) // the oven's pod is being replaced
		assert.Equal(t, []string{"oven", "press"}, subjects())
		time.Sleep(11 * time.Minute)
		bind(of("press"))
		assert.Equal(t, []string{"press"}, subjects())

		for range 5 {
			time.Sleep(4 * time.Minute)
			bind()
		}
		assert.Nil(t, subjects())
		assert.False(t, n.bound, "and the namespace is forgotten")
	})
}

// A replica that begins does not know who was there: it takes nothing away before it has looked for a while.
func TestAReplicaThatBeginsTakesNoRightsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset(binding("plant", []string{"oven"}))
		u := &Upkeep{Config: Config{Core: client, AutoBind: true, Log: slog.New(slog.DiscardHandler)}, namespaces: map[string]*namespace{}}
		n := u.namespace("plant")
		get := func() []rbacv1.Subject {
			b, err := client.RbacV1().RoleBindings("plant").Get(t.Context(), agentRole, metav1.GetOptions{})
			require.NoError(t, err)
			return b.Subjects
		}
		require.NoError(t, u.bind(t.Context(), n, []*v1alpha1.GatewaySync{syncOf()}, []*corev1.Pod{of("press")}, time.Now()))
		assert.Equal(t, binding("plant", []string{"oven", "press"}).Subjects, get())
		time.Sleep(15 * time.Minute)
		require.NoError(t, u.bind(t.Context(), n, []*v1alpha1.GatewaySync{syncOf()}, []*corev1.Pod{of("press")}, time.Now()))
		assert.Equal(t, binding("plant", []string{"press"}).Subjects, get())
	})
}

func TestWithoutAGatewaySyncNobodyGetsRights(t *testing.T) {
	client := fake.NewClientset()
	u := &Upkeep{Config: Config{Core: client, AutoBind: true, Log: slog.New(slog.DiscardHandler)}, namespaces: map[string]*namespace{}}
	require.NoError(t, u.bind(t.Context(), u.namespace("plant"), nil, []*corev1.Pod{of("press")}, time.Now()))
	list, err := client.RbacV1().RoleBindings("").List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	assert.Empty(t, list.Items)
}
