package charts

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"stoker.io/stoker/test/cluster/kubetest"
)

// theirs creates a Secret that Stoker does not own in each namespace.
func theirs(t *testing.T, s *server, namespaces ...string) {
	t.Helper()
	for _, n := range namespaces {
		_, err := s.core.CoreV1().Secrets(n).Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "theirs"}}, metav1.CreateOptions{})
		if !apierrors.IsAlreadyExists(err) {
			require.NoError(t, err)
		}
	}
}

func core(t *testing.T, who *rest.Config) kubernetes.Interface {
	t.Helper()
	client, err := kubernetes.NewForConfig(who)
	require.NoError(t, err)
	return client
}

// verbs maps descriptions to requests.
type verbs map[string]func() error

func (v verbs) allowed(t *testing.T) {
	t.Helper()
	for name, request := range v {
		assert.NoError(t, request(), name)
	}
}

func (v verbs) forbidden(t *testing.T) {
	t.Helper()
	for name, request := range v {
		err := request()
		assert.True(t, apierrors.IsForbidden(err), "%s: %v", name, err)
	}
}

func second[T any](_ T, err error) error { return err }

// C5: An agent can do nothing beyond its rights with the token of its pod.
func TestAgentRights(t *testing.T) {
	t.Parallel()
	p := newPlant(t, installed(t))
	theirs(t, p.server, p.namespace, "default")
	who := p.As(t, p.namespace, "gateway", "line-0")
	ctx, c := t.Context(), core(t, who)
	list, get, create := metav1.ListOptions{}, metav1.GetOptions{}, metav1.CreateOptions{}
	pods := c.CoreV1().Pods(p.namespace)
	verbs{
		"list pods":         func() error { return second(pods.List(ctx, list)) },
		"get own pod":       func() error { return second(pods.Get(ctx, "line-0", get)) },
		"list GatewaySyncs": func() error { return second(p.as(t, who, "gatewaysyncs").List(ctx, list)) },
		"list SyncTargets":  func() error { return second(p.as(t, who, "synctargets").List(ctx, list)) },
		"list SyncReports":  func() error { return second(p.as(t, who, "syncreports").List(ctx, list)) },
	}.allowed(t)
	verbs{
		"get a Secret":    func() error { return second(c.CoreV1().Secrets(p.namespace).Get(ctx, "theirs", get)) },
		"list Secrets":    func() error { return second(c.CoreV1().Secrets(p.namespace).List(ctx, list)) },
		"get a ConfigMap": func() error { return second(c.CoreV1().ConfigMaps(p.namespace).Get(ctx, "kube-root-ca.crt", get)) },
		"list ConfigMaps": func() error { return second(c.CoreV1().ConfigMaps(p.namespace).List(ctx, list)) },
		"list leases":     func() error { return second(c.CoordinationV1().Leases(p.namespace).List(ctx, list)) },
		"create a pod":    func() error { return second(pods.Create(ctx, p.pods[0].DeepCopy(), create)) },
		"label a pod": func() error {
			return second(pods.Patch(ctx, "line-0", types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`), metav1.PatchOptions{}))
		},
		"delete a pod": func() error { return pods.Delete(ctx, "line-1", metav1.DeleteOptions{}) },
		"evict a pod": func() error {
			return pods.EvictV1(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: "line-1"}})
		},
		"list pods elsewhere":  func() error { return second(c.CoreV1().Pods("default").List(ctx, list)) },
		"list pods everywhere": func() error { return second(c.CoreV1().Pods("").List(ctx, list)) },
		"list namespaces":      func() error { return second(c.CoreV1().Namespaces().List(ctx, list)) },
		"bind a role": func() error {
			return second(c.RbacV1().RoleBindings(p.namespace).Create(ctx, binding("x", "stoker-agent"), create))
		},
		"delete a SyncReport":    func() error { return p.as(t, who, "syncreports").Delete(ctx, "line-1", metav1.DeleteOptions{}) },
		"delete a SyncTarget":    func() error { return p.as(t, who, "synctargets").Delete(ctx, "plant", metav1.DeleteOptions{}) },
		"delete a GatewaySync":   func() error { return p.as(t, who, "gatewaysyncs").Delete(ctx, "plant", metav1.DeleteOptions{}) },
		"delete all SyncReports": func() error { return p.as(t, who, "syncreports").DeleteCollection(ctx, metav1.DeleteOptions{}, list) },
	}.forbidden(t)
}

func binding(name, role string) *rbacv1.RoleBinding {
	return &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: "gateway", Namespace: "plant"}},
	}
}

// C5, I2: The injector has the rights that it needs and no others.
func TestInjectorRights(t *testing.T) {
	t.Parallel()
	s := installed(t)
	in := s.Namespace(t)
	theirs(t, s, in, namespace)
	who := s.As(t, namespace, "stoker-injector", "")
	ctx, c := t.Context(), core(t, who)
	list, get, create, patch := metav1.ListOptions{}, metav1.GetOptions{}, metav1.CreateOptions{}, metav1.PatchOptions{}
	_, err := s.core.CoreV1().Pods(in).Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "line-0"},
		Spec: corev1.PodSpec{AutomountServiceAccountToken: new(bool), Containers: []corev1.Container{{Name: "gateway", Image: "gateway"}}}}, create)
	require.NoError(t, err)
	label := []byte(`{"metadata":{"labels":{"a":"b"}}}`)
	configurations := c.AdmissionregistrationV1().MutatingWebhookConfigurations()
	verbs{
		"bind the agents' role": func() error {
			return second(c.RbacV1().RoleBindings(in).Create(ctx, binding("stoker-agent", "stoker-agent"), create))
		},
		"list bindings":          func() error { return second(c.RbacV1().RoleBindings("").List(ctx, list)) },
		"read its configuration": func() error { return second(configurations.Get(ctx, "stoker-injector", get)) },
		"list pods everywhere":   func() error { return second(c.CoreV1().Pods("").List(ctx, list)) },
		"read a namespace":       func() error { return second(c.CoreV1().Namespaces().Get(ctx, in, get)) },
		"list GatewaySyncs":      func() error { return second((&plant{server: s}).as(t, who, "gatewaysyncs").List(ctx, list)) },
		"evict a pod, as a dry run": func() error {
			return c.CoreV1().Pods(in).EvictV1(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: "line-0"}, DeleteOptions: &metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}})
		},
	}.allowed(t)
	verbs{
		"update the binding": func() error {
			return second(c.RbacV1().RoleBindings(in).Update(ctx, binding("stoker-agent", "stoker-agent"), metav1.UpdateOptions{}))
		},
	}.allowed(t)
	other := binding("stoker-agent", "cluster-admin")
	verbs{
		"bind cluster-admin": func() error { return second(c.RbacV1().RoleBindings("default").Create(ctx, other, create)) },
		"bind its own role": func() error {
			return second(c.RbacV1().RoleBindings("default").Create(ctx, binding("stoker-agent", "stoker-edit"), create))
		},
		"bind cluster-wide": func() error {
			return second(c.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "x"}, RoleRef: other.RoleRef}, create))
		},
		"list SyncReports": func() error { return second((&plant{server: s}).as(t, who, "syncreports").List(ctx, list)) },
		"list namespaces":  func() error { return second(c.CoreV1().Namespaces().List(ctx, list)) },
		"patch another binding": func() error {
			return second(c.RbacV1().RoleBindings(in).Patch(ctx, "theirs", types.MergePatchType, label, patch))
		},
		"widen the agents' role": func() error {
			return second(c.RbacV1().ClusterRoles().Patch(ctx, "stoker-agent", types.MergePatchType, label, patch))
		},
		"patch its configuration": func() error {
			return second(configurations.Patch(ctx, "stoker-injector", types.MergePatchType, label, patch))
		},
		"get its certificate": func() error { return second(c.CoreV1().Secrets(namespace).Get(ctx, "stoker-injector-cert", get)) },
		"create the token of another account": func() error {
			return second(c.CoreV1().Secrets(namespace).Create(ctx, tokenSecret("x", "stoker-receiver"), create))
		},
		"get another Secret":      func() error { return second(c.CoreV1().Secrets(namespace).Get(ctx, "theirs", get)) },
		"list Secrets of its own": func() error { return second(c.CoreV1().Secrets(namespace).List(ctx, list)) },
		"get a Secret elsewhere":  func() error { return second(c.CoreV1().Secrets(in).Get(ctx, "theirs", get)) },
		"create a Secret elsewhere": func() error {
			return second(c.CoreV1().Secrets(in).Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "x"}}, create))
		},
		"list ConfigMaps": func() error { return second(c.CoreV1().ConfigMaps(in).List(ctx, list)) },
		"delete a pod":    func() error { return c.CoreV1().Pods(in).Delete(ctx, "line-0", metav1.DeleteOptions{}) },
		"label a pod": func() error {
			return second(c.CoreV1().Pods(in).Patch(ctx, "line-0", types.MergePatchType, label, patch))
		},
		"token of an account": func() error {
			return second(c.CoreV1().ServiceAccounts(in).CreateToken(ctx, "default", nil, create))
		},
		"patch another configuration": func() error { return second(configurations.Patch(ctx, "theirs", types.MergePatchType, label, patch)) },
		"list configurations":         func() error { return second(configurations.List(ctx, list)) },
		"pause a GatewaySync": func() error {
			return second((&plant{server: s, namespace: in}).as(t, who, "gatewaysyncs").Patch(ctx, "plant", types.MergePatchType, []byte(`{"spec":{"paused":true}}`), patch))
		},
	}.forbidden(t)
}

func tokenSecret(name, account string) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{corev1.ServiceAccountNameKey: account}}, Type: corev1.SecretTypeServiceAccountToken}
}

// I12: The account that renews the certificate writes one Secret and one webhook configuration. That Secret cannot become the token of
// another account.
func TestRenewalRights(t *testing.T) {
	t.Parallel()
	s := installed(t)
	theirs(t, s, namespace)
	ctx, c := t.Context(), core(t, s.As(t, namespace, "stoker-certificate", ""))
	list, get, create, patch, update := metav1.ListOptions{}, metav1.GetOptions{}, metav1.CreateOptions{}, metav1.PatchOptions{}, metav1.UpdateOptions{}
	label := []byte(`{"metadata":{"labels":{"a":"b"}}}`)
	configurations, secrets := c.AdmissionregistrationV1().MutatingWebhookConfigurations(), c.CoreV1().Secrets(namespace)
	verbs{
		"patch the configuration": func() error {
			return second(configurations.Patch(ctx, "stoker-injector", types.MergePatchType, label, patch))
		},
		"update the certificate": func() error {
			found, err := secrets.Get(ctx, "stoker-injector-cert", get)
			if err != nil {
				return err
			}
			return second(secrets.Update(ctx, found, update))
		},
	}.allowed(t)
	_, err := secrets.Update(ctx, tokenSecret("stoker-injector-cert", "stoker-injector"), update)
	assert.True(t, apierrors.IsInvalid(err), "%v", err)
	verbs{
		"create a Secret":             func() error { return second(secrets.Create(ctx, tokenSecret("x", "stoker-injector"), create)) },
		"delete the certificate":      func() error { return secrets.Delete(ctx, "stoker-injector-cert", metav1.DeleteOptions{}) },
		"get another Secret":          func() error { return second(secrets.Get(ctx, "theirs", get)) },
		"list Secrets":                func() error { return second(secrets.List(ctx, list)) },
		"list pods":                   func() error { return second(c.CoreV1().Pods(namespace).List(ctx, list)) },
		"patch another configuration": func() error { return second(configurations.Patch(ctx, "theirs", types.MergePatchType, label, patch)) },
		"create a binding": func() error {
			return second(c.RbacV1().RoleBindings(namespace).Create(ctx, binding("stoker-agent", "stoker-agent"), create))
		},
	}.forbidden(t)
}

// C6: With two namespaces listed, a third one is out of reach.
func TestInjectorRightsInOtherNamespaces(t *testing.T) {
	t.Parallel()
	s := newServer(t, kubetest.Private())
	s.namespaces(t, namespace, "north", "south", "east")
	s.install(t, rendered(t, set("watchNamespaces", []any{"north", "south"})))
	ctx, c := t.Context(), core(t, s.As(t, namespace, "stoker-injector", ""))
	list, create := metav1.ListOptions{}, metav1.CreateOptions{}
	in := func(n string) verbs {
		p := &plant{server: s, namespace: n}
		return verbs{
			"list pods":     func() error { return second(c.CoreV1().Pods(n).List(ctx, list)) },
			"list bindings": func() error { return second(c.RbacV1().RoleBindings(n).List(ctx, list)) },
			"bind the agents' role": func() error {
				return second(c.RbacV1().RoleBindings(n).Create(ctx, binding("stoker-agent", "stoker-agent"), create))
			},
			"read the namespace": func() error { return second(c.CoreV1().Namespaces().Get(ctx, n, metav1.GetOptions{})) },
			"list GatewaySyncs": func() error {
				return second(p.as(t, s.As(t, namespace, "stoker-injector", ""), "gatewaysyncs").List(ctx, list))
			},
		}
	}
	in("north").allowed(t)
	in("south").allowed(t)
	in("east").forbidden(t)
	verbs{
		"list pods everywhere":     func() error { return second(c.CoreV1().Pods("").List(ctx, list)) },
		"list bindings everywhere": func() error { return second(c.RbacV1().RoleBindings("").List(ctx, list)) },
		"list namespaces":          func() error { return second(c.CoreV1().Namespaces().List(ctx, list)) },
	}.forbidden(t)
}
