package kube

import (
	"context"
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/discovery"
	admissionregistrationv1 "k8s.io/client-go/kubernetes/typed/admissionregistration/v1"
	appsv1 "k8s.io/client-go/kubernetes/typed/apps/v1"
	authenticationv1 "k8s.io/client-go/kubernetes/typed/authentication/v1"
	authorizationv1 "k8s.io/client-go/kubernetes/typed/authorization/v1"
	batchv1 "k8s.io/client-go/kubernetes/typed/batch/v1"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	eventsv1 "k8s.io/client-go/kubernetes/typed/events/v1"
	policyv1 "k8s.io/client-go/kubernetes/typed/policy/v1"
	rbacv1 "k8s.io/client-go/kubernetes/typed/rbac/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/pager"
)

// Core has the clients of the API groups that the programs use. client-go's kubernetes.Interface, which implements it, has one for every
// group of Kubernetes, and they make each program five megabytes larger.
type Core interface {
	Discovery() discovery.DiscoveryInterfaces
	AdmissionregistrationV1() admissionregistrationv1.AdmissionregistrationV1Interface
	AppsV1() appsv1.AppsV1Interface
	AuthenticationV1() authenticationv1.AuthenticationV1Interface
	AuthorizationV1() authorizationv1.AuthorizationV1Interface
	BatchV1() batchv1.BatchV1Interface
	CoordinationV1() coordinationv1.CoordinationV1Interface
	CoreV1() corev1.CoreV1Interface
	EventsV1() eventsv1.EventsV1Interface
	PolicyV1() policyv1.PolicyV1Interface
	RbacV1() rbacv1.RbacV1Interface
}

// core implements Core.
type core struct {
	discovery             *discovery.DiscoveryClient
	admissionregistration *admissionregistrationv1.AdmissionregistrationV1Client
	apps                  *appsv1.AppsV1Client
	authentication        *authenticationv1.AuthenticationV1Client
	authorization         *authorizationv1.AuthorizationV1Client
	batch                 *batchv1.BatchV1Client
	coordination          *coordinationv1.CoordinationV1Client
	core                  *corev1.CoreV1Client
	events                *eventsv1.EventsV1Client
	policy                *policyv1.PolicyV1Client
	rbac                  *rbacv1.RbacV1Client
}

// newCore returns clients that share the connections of client, and the rate limit of config if its RateLimiter is set.
func newCore(config *rest.Config, client *http.Client) (*core, error) {
	c := &core{}
	for _, err := range []error{
		connectGroup(&c.discovery, discovery.NewDiscoveryClientForConfigAndClient, config, client),
		connectGroup(&c.admissionregistration, admissionregistrationv1.NewForConfigAndClient, config, client),
		connectGroup(&c.apps, appsv1.NewForConfigAndClient, config, client),
		connectGroup(&c.authentication, authenticationv1.NewForConfigAndClient, config, client),
		connectGroup(&c.authorization, authorizationv1.NewForConfigAndClient, config, client),
		connectGroup(&c.batch, batchv1.NewForConfigAndClient, config, client),
		connectGroup(&c.coordination, coordinationv1.NewForConfigAndClient, config, client),
		connectGroup(&c.core, corev1.NewForConfigAndClient, config, client),
		connectGroup(&c.events, eventsv1.NewForConfigAndClient, config, client),
		connectGroup(&c.policy, policyv1.NewForConfigAndClient, config, client),
		connectGroup(&c.rbac, rbacv1.NewForConfigAndClient, config, client),
	} {
		if err != nil {
			return nil, err
		}
	}
	return c, nil
}

// connectGroup sets *to to the client of one API group.
func connectGroup[C any](to **C, connect func(*rest.Config, *http.Client) (*C, error), config *rest.Config, client *http.Client) (err error) {
	*to, err = connect(config, client)
	return err
}

func (c *core) Discovery() discovery.DiscoveryInterfaces { return c.discovery }
func (c *core) AdmissionregistrationV1() admissionregistrationv1.AdmissionregistrationV1Interface {
	return c.admissionregistration
}
func (c *core) AppsV1() appsv1.AppsV1Interface { return c.apps }
func (c *core) AuthenticationV1() authenticationv1.AuthenticationV1Interface {
	return c.authentication
}
func (c *core) AuthorizationV1() authorizationv1.AuthorizationV1Interface { return c.authorization }
func (c *core) BatchV1() batchv1.BatchV1Interface                         { return c.batch }
func (c *core) CoordinationV1() coordinationv1.CoordinationV1Interface    { return c.coordination }
func (c *core) CoreV1() corev1.CoreV1Interface                            { return c.core }
func (c *core) EventsV1() eventsv1.EventsV1Interface                      { return c.events }
func (c *core) PolicyV1() policyv1.PolicyV1Interface                      { return c.policy }
func (c *core) RbacV1() rbacv1.RbacV1Interface                            { return c.rbac }

// ListAll returns all objects that opts select. It reads them in pages.
func ListAll[T any, L runtime.Object](ctx context.Context, list func(context.Context, metav1.ListOptions) (L, error), opts metav1.ListOptions) ([]*T, error) {
	pages := pager.New(func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) { return list(ctx, opts) })
	var all []*T
	err := pages.EachListItem(ctx, opts, func(o runtime.Object) error {
		all = append(all, any(o).(*T))
		return nil
	})
	return all, err
}
