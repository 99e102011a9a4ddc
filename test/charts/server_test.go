package charts

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/restmapper"

	"stoker.io/stoker/test/cluster/kubetest"
)

// The timeout and interval of waits until a change is in force.
const (
	eventually = 2 * time.Minute
	pause      = 50 * time.Millisecond
)

// server is a real API server.
type server struct {
	*kubetest.Cluster
	core    kubernetes.Interface
	dynamic dynamic.Interface
	mapper  *restmapper.DeferredDiscoveryRESTMapper
}

func newServer(t *testing.T, options ...kubetest.Option) *server {
	t.Helper()
	s := &server{Cluster: kubetest.Control(t, options...)}
	s.core = s.Client(t)
	var err error
	s.dynamic, err = dynamic.NewForConfig(s.RESTConfig())
	require.NoError(t, err)
	found, err := discovery.NewDiscoveryClientForConfig(s.RESTConfig())
	require.NoError(t, err)
	s.mapper = restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(found))
	return s
}

// namespaces creates the namespaces that the chart is rendered for.
func (s *server) namespaces(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		_, err := s.core.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		if !apierrors.IsAlreadyExists(err) {
			require.NoError(t, err)
		}
	}
}

// apply sends a server-side apply, like Argo CD or kubectl, with strict field validation.
func (s *server) apply(ctx context.Context, o *object, dryRun bool) (*object, error) {
	kind := o.GroupVersionKind()
	mapping, err := s.mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if meta.IsNoMatchError(err) {
		s.mapper.Reset()
		mapping, err = s.mapper.RESTMapping(kind.GroupKind(), kind.Version)
	}
	if err != nil {
		return nil, err
	}
	var client dynamic.ResourceInterface = s.dynamic.Resource(mapping.Resource)
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		client = s.dynamic.Resource(mapping.Resource).Namespace(o.GetNamespace())
	}
	data, err := json.Marshal(o.Object)
	if err != nil {
		return nil, err
	}
	force := true
	options := metav1.PatchOptions{FieldManager: "argocd-controller", Force: &force, FieldValidation: metav1.FieldValidationStrict}
	if dryRun {
		options.DryRun = []string{metav1.DryRunAll}
	}
	return client.Patch(ctx, o.GetName(), types.ApplyPatchType, data, options)
}

// install applies all objects, starting with CRDs and namespaces, and waits until their rights are in
// force.
func (s *server) install(t *testing.T, all objects) {
	t.Helper()
	// sequence: namespaces and kinds come first
	for _, first := range []bool{true, false} {
		for name, o := range all {
			if _, foreign := other(o); !foreign && first == slices.Contains([]string{"Namespace", "CustomResourceDefinition"}, o.GetKind()) {
				_, err := s.apply(t.Context(), o, false)
				require.NoError(t, err, name)
			}
		}
	}
	s.bound(t, all)
}

// bound waits until the rights of all applied bindings are in force.
func (s *server) bound(t *testing.T, applied objects) {
	t.Helper()
	for name, o := range applied {
		switch o.GetKind() {
		case "RoleBinding", "ClusterRoleBinding":
			var b rbacv1.RoleBinding // a ClusterRoleBinding decodes to the same fields without a namespace
			require.NoError(t, runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &b), name)
			s.inForce(t, &b)
		}
	}
}

// inForce waits until the API server has observed a binding and each rule of its role, a moment after
// storing them.
func (s *server) inForce(t *testing.T, b *rbacv1.RoleBinding) {
	t.Helper()
	rules := s.rulesBy(t, b)
	require.Eventually(t, func() bool {
		for _, who := range b.Subjects {
			for _, r := range rules {
				// Checking one right of a rule is enough, because they take effect together.
				right := &authorizationv1.ResourceAttributes{Namespace: b.Namespace, Group: r.APIGroups[0], Verb: r.Verbs[0]}
				right.Resource, right.Subresource, _ = strings.Cut(r.Resources[0], "/")
				if len(r.ResourceNames) > 0 {
					right.Name = r.ResourceNames[0]
				}
				review, err := s.core.AuthorizationV1().SubjectAccessReviews().Create(t.Context(), &authorizationv1.SubjectAccessReview{
					Spec: authorizationv1.SubjectAccessReviewSpec{User: "system:serviceaccount:" + who.Namespace + ":" + who.Name, ResourceAttributes: right},
				}, metav1.CreateOptions{})
				if err != nil || !review.Status.Allowed {
					return false
				}
			}
		}
		return true
	}, eventually, pause, "%s %s is in force", b.Namespace, b.Name)
}

// rulesBy returns the rules of the bound role.
func (s *server) rulesBy(t *testing.T, b *rbacv1.RoleBinding) []rbacv1.PolicyRule {
	t.Helper()
	if b.RoleRef.Kind == "Role" {
		role, err := s.core.RbacV1().Roles(b.Namespace).Get(t.Context(), b.RoleRef.Name, metav1.GetOptions{})
		require.NoError(t, err, b.Name)
		return role.Rules
	}
	role, err := s.core.RbacV1().ClusterRoles().Get(t.Context(), b.RoleRef.Name, metav1.GetOptions{})
	require.NoError(t, err, b.Name)
	return role.Rules
}

var installing sync.Once

// installed returns the server that tests share, with the chart installed with default values and in
// force.
func installed(t *testing.T) *server {
	t.Helper()
	s := newServer(t, kubetest.Controllers())
	installing.Do(func() {
		s.namespaces(t, namespace)
		s.install(t, rendered(t, nil))
		plant := s.Namespace(t)
		require.Eventually(t, func() bool {
			_, err := s.core.CoreV1().Pods(plant).Create(t.Context(), plainPod(requires, nil), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			return err != nil && strings.Contains(err.Error(), "require.pods.stoker.io")
		}, eventually, pause, "the API server has heard of the webhook configuration")
	})
	return s
}

func TestAPIServerAcceptsChart(t *testing.T) {
	t.Parallel()
	s := installed(t)
	s.namespaces(t, "north", "south", "ignition", "line", "other", "plant", "argocd", "gitops")
	// Most objects are the same with most values, so each is sent once.
	sent := map[string]bool{}
	check := func(t *testing.T, all objects) {
		taken := 0
		for name, o := range all {
			if _, foreign := other(o); foreign {
				continue
			}
			taken++
			if text := mustJSON(t, o.Object); !sent[text] {
				_, err := s.apply(t.Context(), o, true)
				sent[text] = assert.NoError(t, err, name)
			}
		}
		assert.Greater(t, taken, 10)
	}
	t.Run("defaults", func(t *testing.T) { check(t, rendered(t, nil)) })
	for _, c := range valueCases {
		t.Run(c.path, func(t *testing.T) { check(t, rendered(t, c.values())) })
	}
	t.Run("all of the receiver", func(t *testing.T) {
		all := rendered(t, with(onIngress, onTLS, onNetworking, set("webhookReceiver.installSecret.name", "everybody"), set("watchNamespaces", []any{"north"})))
		check(t, all)
		look(t, all, receiver, pod+"/volumes/certificate/secret/secretName", "stoker-receiver-cert")
		look(t, all, receiver, pod+"/volumes/install-secret/secret/secretName", "everybody")
	})
	for _, overlay := range []string{"cluster", "namespaced"} {
		t.Run(overlay, func(t *testing.T) { check(t, kustomized(t, filepath.Join(kustomizeDir, "overlays", overlay))) })
	}
	t.Run("components", func(t *testing.T) {
		check(t, kustomized(t, withComponents(t, "../../crd, ../../base", "cert-manager", "monitoring", "receiver", "receiver-ingress", "receiver-network-policy",
			"receiver-secrets", "receiver-monitoring", "hooks", "kargo", "kargo/analysis")))
	})
	t.Run("helm test", func(t *testing.T) {
		accounts(t, s, namespace, "stoker-receiver", "stoker-check") // the dry run does not create them
		for setting, v := range map[string]values{"defaults": on, "TLS": onTLS} {
			t.Run(setting, func(t *testing.T) {
				r, err := install(t, v)
				require.NoError(t, err)
				require.Len(t, r.Hooks, 7, "two pods, and an account with its rights")
				for _, hook := range r.Hooks {
					for name, o := range parse(t, []byte(hook.Manifest)) {
						_, err := s.apply(t.Context(), o, true)
						assert.NoError(t, err, name)
					}
				}
			})
		}
	})
}

// A field that the API server defaults would be a permanent difference to git, and Argo CD would report
// OutOfSync.
func TestWebhookConfigurationHasNoDefaults(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	o := rendered(t, nil)[webhooks]
	live, err := s.apply(t.Context(), o, true)
	require.NoError(t, err)
	assert.Equal(t, o.Object["webhooks"], live.Object["webhooks"])
}

// The injector writes caBundle to the live object. Applying the same manifest, or that of the next
// version, must keep it.
func TestCABundleSurvivesApply(t *testing.T) {
	t.Parallel()
	s := installed(t)
	configurations := s.core.AdmissionregistrationV1().MutatingWebhookConfigurations()
	const name = "stoker-injector-of-another-test"
	first := rendered(t, nil)[webhooks].DeepCopy()
	first.SetName(name)
	_, err := s.apply(t.Context(), first, false)
	require.NoError(t, err)
	t.Cleanup(func() {
		assert.NoError(t, configurations.Delete(context.WithoutCancel(t.Context()), name, metav1.DeleteOptions{}))
	})
	_, err = configurations.Patch(t.Context(), name, types.StrategicMergePatchType, caBundle(t), metav1.PatchOptions{FieldManager: "stoker-injector"})
	require.NoError(t, err)
	next := rendered(t, set("webhook.timeoutSeconds", 3))[webhooks].DeepCopy()
	next.SetName(name)
	_, err = s.apply(t.Context(), next, false)
	require.NoError(t, err)
	live, err := configurations.Get(t.Context(), name, metav1.GetOptions{})
	require.NoError(t, err)
	for _, w := range live.Webhooks {
		assert.NotEmpty(t, w.ClientConfig.CABundle, w.Name)
		assert.EqualValues(t, 3, *w.TimeoutSeconds, w.Name)
	}
}

// caBundle returns the injector's patch of its webhook configuration with a CA made for the test.
func caBundle(t *testing.T) []byte {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	c := &x509.Certificate{SerialNumber: big.NewInt(1), IsCA: true, BasicConstraintsValid: true, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	require.NoError(t, err)
	authority := base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	return fmt.Appendf(nil, `{"webhooks":[{"name":"pods.stoker.io","clientConfig":{"caBundle":%[1]q}},{"name":"require.pods.stoker.io","clientConfig":{"caBundle":%[1]q}}]}`, authority)
}

// requires requests an agent and forbids the pod to start without one.
var requires = map[string]string{"stoker.io/inject": "true", "stoker.io/require": "true"}

func plainPod(annotations, labels map[string]string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "p-", Annotations: annotations, Labels: labels},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "gateway", Image: "gateway"}}},
	}
}

// I2: If the injector is unavailable, pods start, except those that require an agent.
func TestPodsStartWithoutInjector(t *testing.T) {
	t.Parallel()
	s := installed(t)
	plant := s.Namespace(t)
	accounts(t, s, namespace, "default")
	create := func(namespace string, p *corev1.Pod) error {
		began := time.Now()
		_, err := s.core.CoreV1().Pods(namespace).Create(t.Context(), p, metav1.CreateOptions{})
		assert.Less(t, time.Since(began), 20*time.Second)
		return err
	}
	inject := map[string]string{"stoker.io/inject": "true"}
	older := map[string]string{"ignition-sync.io/inject": "true", "ignition-sync.io/require": "true"}
	assert.NoError(t, create(plant, plainPod(nil, nil)), "a pod that asks for nothing")
	assert.NoError(t, create(plant, plainPod(inject, nil)), "an annotated pod")
	for name, annotations := range map[string]map[string]string{"this prefix": requires, "the older prefix": older} {
		err := create(plant, plainPod(annotations, nil))
		require.Error(t, err, name)
		assert.ErrorContains(t, err, "require.pods.stoker.io", name)
	}
	assert.NoError(t, create(plant, plainPod(requires, map[string]string{"stoker.io/injection": "disabled"})), "a pod that opts out")
	assert.NoError(t, create(namespace, plainPod(requires, nil)), "a pod of the injector's own namespace")
	_, err := s.core.CoreV1().Namespaces().Patch(t.Context(), plant, types.MergePatchType, []byte(`{"metadata":{"labels":{"stoker.io/injection":"disabled"}}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	require.Eventually(t, func() bool { return create(plant, plainPod(requires, nil)) == nil }, eventually, pause, "a namespace that opts out")
}

func accounts(t *testing.T, s *server, namespace string, names ...string) {
	t.Helper()
	for _, name := range names {
		_, err := s.core.CoreV1().ServiceAccounts(namespace).Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		if !apierrors.IsAlreadyExists(err) {
			require.NoError(t, err)
		}
	}
}

// The API server type-checks the expressions of a policy and reports the result in its status.
func TestPolicyFieldsExist(t *testing.T) {
	t.Parallel()
	s := installed(t)
	policies := s.core.AdmissionregistrationV1().ValidatingAdmissionPolicies()
	for _, name := range []string{"stoker-syncreports", "stoker-synctargets", "stoker-gatewaysyncs", "stoker-approvals", "stoker-rolebindings"} {
		t.Run(name, func(t *testing.T) {
			var p *admissionv1.ValidatingAdmissionPolicy
			require.Eventually(t, func() bool {
				var err error
				p, err = policies.Get(t.Context(), name, metav1.GetOptions{})
				return err == nil && p.Status.ObservedGeneration == p.Generation && p.Status.TypeChecking != nil
			}, eventually, pause)
			assert.Empty(t, p.Status.TypeChecking.ExpressionWarnings)
		})
	}
}
