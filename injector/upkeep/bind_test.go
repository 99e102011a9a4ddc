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

func TestWhereTheNamespaceRulesInjectionOutOnlyAgentsThatAreThereGetRights(t *testing.T) {
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
		"no label":                      {nil, false, []string{"asks", "has"}},
		"disabled":                      {map[string]string{labelInjection: "disabled"}, false, []string{"has"}},
		"a label is asked for":          {nil, true, []string{"has"}},
		"a label is asked for, and set": {map[string]string{labelInjection: "enabled"}, true, []string{"asks", "has"}},
	} {
		client := fake.NewClientset(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "plant", Labels: c.labels}})
		u := &Upkeep{Config: Config{Core: client, AutoBind: true, RequireLabel: c.required, Log: slog.New(slog.DiscardHandler)}, namespaces: map[string]*namespace{}}
		all := []*v1alpha1.GatewaySync{syncOf()}
		require.NoError(t, u.bind(t.Context(), u.namespace("plant"), all, []*corev1.Pod{asks(), of("has")}, time.Now()))
		b, err := client.RbacV1().RoleBindings("plant").Get(t.Context(), agentRole, metav1.GetOptions{})
		require.NoError(t, err, name)
		assert.Equal(t, binding("plant", c.want).Subjects, b.Subjects, name)
	}
	// What cannot be read is no consent, and keeps nothing from the others.
	client := fake.NewClientset()
	u := &Upkeep{Config: Config{Core: client, AutoBind: true, Log: slog.New(slog.DiscardHandler)}, namespaces: map[string]*namespace{}}
	err := u.bind(t.Context(), u.namespace("plant"), []*v1alpha1.GatewaySync{syncOf()}, []*corev1.Pod{asks(), of("has")}, time.Now())
	require.ErrorContains(t, err, "labels of namespace plant")
	b, err := client.RbacV1().RoleBindings("plant").Get(t.Context(), agentRole, metav1.GetOptions{})
	require.NoError(t, err)
	assert.Equal(t, binding("plant", []string{"has"}).Subjects, b.Subjects)
}

func TestWithoutAGatewaySyncNobodyGetsRights(t *testing.T) {
	client := fake.NewClientset()
	u := &Upkeep{Config: Config{Core: client, AutoBind: true, Log: slog.New(slog.DiscardHandler)}, namespaces: map[string]*namespace{}}
	require.NoError(t, u.bind(t.Context(), u.namespace("plant"), nil, []*corev1.Pod{of("press")}, time.Now()))
	list, err := client.RbacV1().RoleBindings("").List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	assert.Empty(t, list.Items)
}
