package plant

import (
	"github.com/stretchr/testify/require"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/test/cluster/kubetest"
)

// podAccount is the service account of the gateways' pods.
const podAccount = "default"

// Allow creates a service account if needed, and binds it to one of the roles for users (stoker-setter, stoker-view) in
// the plant's namespace.
func (p *Plant) Allow(account, role string) {
	p.t.Helper()
	p.apply("ClusterRole/*")
	_, err := p.Kube.Core.CoreV1().ServiceAccounts(p.Namespace).Create(p.t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: account}}, metav1.CreateOptions{})
	p.requireCreated(err)
	p.bind(role, account)
}

// bind binds an account to a ClusterRole in the plant's namespace, and waits until the binding is effective. The role
// must allow watching GatewaySyncs.
func (p *Plant) bind(role, account string) {
	p.t.Helper()
	_, err := p.Kube.Core.RbacV1().RoleBindings(p.Namespace).Create(p.t.Context(), &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: role + "." + account},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: account, Namespace: p.Namespace}}}, metav1.CreateOptions{})
	p.requireCreated(err)
	p.WaitAllowed(account, authorizationv1.ResourceAttributes{Namespace: p.Namespace, Group: "stoker.io", Resource: "gatewaysyncs", Verb: "watch"})
}

// requireCreated ends the test if a create failed, unless the object existed before.
func (p *Plant) requireCreated(err error) {
	p.t.Helper()
	if !apierrors.IsAlreadyExists(err) {
		require.NoError(p.t, err)
	}
}

// WaitAllowed waits until the API server allows an action to an account of the plant's namespace.
func (p *Plant) WaitAllowed(account string, what authorizationv1.ResourceAttributes) {
	p.t.Helper()
	p.Cluster.WaitAllowed(p.t, p.Namespace, account, what)
}

// Kubeconfig writes a kubeconfig for an account of the plant's namespace and returns its path. If pod is set, the token
// is bound to that pod. The file is removed at the end of the test.
func (p *Plant) Kubeconfig(account, pod string) string {
	p.t.Helper()
	return kubetest.KubeconfigFor(p.t, p.Cluster.As(p.t, p.Namespace, account, pod), p.Namespace)
}
