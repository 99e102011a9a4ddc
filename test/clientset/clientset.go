// Package clientset is a fake of the API server for unit tests. client-go has one, too, in k8s.io/client-go/kubernetes/fake. It
// imports a fake of every API group: half a minute of CPU time to compile, for a few groups that our code uses.
package clientset

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/discovery"
	fakediscovery "k8s.io/client-go/discovery/fake"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	admissionregistrationv1 "k8s.io/client-go/kubernetes/typed/admissionregistration/v1"
	fakeadmissionregistrationv1 "k8s.io/client-go/kubernetes/typed/admissionregistration/v1/fake"
	appsv1 "k8s.io/client-go/kubernetes/typed/apps/v1"
	fakeappsv1 "k8s.io/client-go/kubernetes/typed/apps/v1/fake"
	authorizationv1 "k8s.io/client-go/kubernetes/typed/authorization/v1"
	fakeauthorizationv1 "k8s.io/client-go/kubernetes/typed/authorization/v1/fake"
	batchv1 "k8s.io/client-go/kubernetes/typed/batch/v1"
	fakebatchv1 "k8s.io/client-go/kubernetes/typed/batch/v1/fake"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	fakecoordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1/fake"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	fakecorev1 "k8s.io/client-go/kubernetes/typed/core/v1/fake"
	eventsv1 "k8s.io/client-go/kubernetes/typed/events/v1"
	fakeeventsv1 "k8s.io/client-go/kubernetes/typed/events/v1/fake"
	policyv1 "k8s.io/client-go/kubernetes/typed/policy/v1"
	fakepolicyv1 "k8s.io/client-go/kubernetes/typed/policy/v1/fake"
	rbacv1 "k8s.io/client-go/kubernetes/typed/rbac/v1"
	fakerbacv1 "k8s.io/client-go/kubernetes/typed/rbac/v1/fake"
	clienttesting "k8s.io/client-go/testing"
)

// Fake is a client of an API server that stores objects as they are, without validation, defaults, conflicts or field managers.
//
// It has only the API groups of the methods below. A call of any other group panics with a nil dereference. To add a group, copy
// one of the methods: each returns client-go's own fake of its group.
type Fake struct {
	kubernetes.Interface // nil: the methods of groups that are missing
	clienttesting.Fake
	// Tracker holds the objects. Reactors read them here, because a call of the client in a reactor waits for itself.
	Tracker clienttesting.ObjectTracker
}

// New returns a client of an API server that has the objects.
func New(objects ...runtime.Object) *Fake {
	f := &Fake{Tracker: clienttesting.NewObjectTracker(scheme.Scheme, scheme.Codecs.UniversalDecoder())}
	for _, o := range objects {
		if err := f.Tracker.Add(o); err != nil {
			panic(err)
		}
	}
	f.AddReactor("*", "*", clienttesting.ObjectReaction(f.Tracker))
	f.AddWatchReactor("*", func(a clienttesting.Action) (bool, watch.Interface, error) {
		var options metav1.ListOptions
		if w, ok := a.(clienttesting.WatchActionImpl); ok {
			options = w.ListOptions
		}
		w, err := f.Tracker.Watch(a.GetResource(), a.GetNamespace(), options)
		return err == nil, w, err
	})
	return f
}

// Discovery returns the client of the kinds that the API server has: those in Resources.
func (f *Fake) Discovery() discovery.DiscoveryInterfaces {
	return &fakediscovery.FakeDiscovery{Fake: &f.Fake}
}

// AdmissionregistrationV1 returns the client of admissionregistration.k8s.io/v1.
func (f *Fake) AdmissionregistrationV1() admissionregistrationv1.AdmissionregistrationV1Interface {
	return &fakeadmissionregistrationv1.FakeAdmissionregistrationV1{Fake: &f.Fake}
}

// AppsV1 returns the client of apps/v1.
func (f *Fake) AppsV1() appsv1.AppsV1Interface { return &fakeappsv1.FakeAppsV1{Fake: &f.Fake} }

// AuthorizationV1 returns the client of authorization.k8s.io/v1.
func (f *Fake) AuthorizationV1() authorizationv1.AuthorizationV1Interface {
	return &fakeauthorizationv1.FakeAuthorizationV1{Fake: &f.Fake}
}

// BatchV1 returns the client of batch/v1.
func (f *Fake) BatchV1() batchv1.BatchV1Interface { return &fakebatchv1.FakeBatchV1{Fake: &f.Fake} }

// CoordinationV1 returns the client of coordination.k8s.io/v1.
func (f *Fake) CoordinationV1() coordinationv1.CoordinationV1Interface {
	return &fakecoordinationv1.FakeCoordinationV1{Fake: &f.Fake}
}

// CoreV1 returns the client of v1.
func (f *Fake) CoreV1() corev1.CoreV1Interface { return &fakecorev1.FakeCoreV1{Fake: &f.Fake} }

// EventsV1 returns the client of events.k8s.io/v1.
func (f *Fake) EventsV1() eventsv1.EventsV1Interface {
	return &fakeeventsv1.FakeEventsV1{Fake: &f.Fake}
}

// PolicyV1 returns the client of policy/v1.
func (f *Fake) PolicyV1() policyv1.PolicyV1Interface {
	return &fakepolicyv1.FakePolicyV1{Fake: &f.Fake}
}

// RbacV1 returns the client of rbac.authorization.k8s.io/v1.
func (f *Fake) RbacV1() rbacv1.RbacV1Interface { return &fakerbacv1.FakeRbacV1{Fake: &f.Fake} }
