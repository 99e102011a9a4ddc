// Package kube connects to the API server: clients, caches, and typed access to the kinds of stoker.io. The typed access uses the
// dynamic client and decodes objects one by one, so that a field of a wrong type affects only its own object. A typed list would
// fail as a whole.
package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	kjson "sigs.k8s.io/json"

	"stoker.io/stoker/api/v1alpha1"
)

// Kind is the name of a kind and of its resource.
type Kind struct {
	Name, Plural string
}

// The kinds of stoker.io.
var (
	GatewaySync = Kind{v1alpha1.KindGatewaySync, "gatewaysyncs"}
	SyncTarget  = Kind{v1alpha1.KindSyncTarget, "synctargets"}
	SyncReport  = Kind{v1alpha1.KindSyncReport, "syncreports"}
	ConfigSync  = Kind{v1alpha1.KindConfigSync, "configsyncs"}
)

// Resource returns the group, version and resource of the kind.
func (k Kind) Resource() schema.GroupVersionResource {
	return v1alpha1.GroupVersion.WithResource(k.Plural)
}

// Objects reads and writes the objects of one kind in one namespace, as *T. An empty namespace means all namespaces, for
// reading only.
type Objects[T any] struct {
	kind   Kind
	client dynamic.ResourceInterface
	trim   func(*T)
}

// Trimmed returns access whose informers call trim with each object, so that they keep only what the caller reads. It may be called from
// several goroutines.
func (o *Objects[T]) Trimmed(trim func(*T)) *Objects[T] {
	return &Objects[T]{kind: o.kind, client: o.client, trim: trim}
}

// GatewaySyncs returns access to the GatewaySyncs of a namespace.
func GatewaySyncs(c dynamic.Interface, namespace string) *Objects[v1alpha1.GatewaySync] {
	return objects[v1alpha1.GatewaySync](c, GatewaySync, namespace)
}

// SyncTargets returns access to the SyncTargets of a namespace.
func SyncTargets(c dynamic.Interface, namespace string) *Objects[v1alpha1.SyncTarget] {
	return objects[v1alpha1.SyncTarget](c, SyncTarget, namespace)
}

// SyncReports returns access to the SyncReports of a namespace.
func SyncReports(c dynamic.Interface, namespace string) *Objects[v1alpha1.SyncReport] {
	return objects[v1alpha1.SyncReport](c, SyncReport, namespace)
}

// ConfigSyncs returns access to the ConfigSyncs of a namespace.
func ConfigSyncs(c dynamic.Interface, namespace string) *Objects[v1alpha1.ConfigSync] {
	return objects[v1alpha1.ConfigSync](c, ConfigSync, namespace)
}

func objects[T any](c dynamic.Interface, k Kind, namespace string) *Objects[T] {
	r := c.Resource(k.Resource())
	if namespace == "" {
		return &Objects[T]{kind: k, client: r}
	}
	return &Objects[T]{kind: k, client: r.Namespace(namespace)}
}

// UndecodableError means that the API server holds an object that this version cannot decode.
type UndecodableError struct {
	Kind, Namespace, Name string
	Err                   error
	// Object is what the API server sent. Callers must not change it.
	Object *unstructured.Unstructured
}

func (e *UndecodableError) Error() string {
	return fmt.Sprintf("%s %s/%s cannot be read: %v", e.Kind, e.Namespace, e.Name, e.Err)
}

func (e *UndecodableError) Unwrap() error { return e.Err }

// Target returns a SyncTarget for an undecodable one. An unknown agent holds its lock, because a newer agent may have written the
// object. Each new resourceVersion renews the lock. After MaxLeadDuration without a new one, the SyncTarget may be replaced.
func (e *UndecodableError) Target() *v1alpha1.SyncTarget {
	t := &v1alpha1.SyncTarget{}
	t.Namespace, t.Name, t.UID, t.ResourceVersion = e.Namespace, e.Name, e.Object.GetUID(), e.Object.GetResourceVersion()
	t.Spec.Lead.Holder = "unreadable at " + t.ResourceVersion
	t.Spec.Lead.DurationSeconds = int32(v1alpha1.MaxLeadDuration.Seconds())
	return t
}

func (o *Objects[T]) decode(u *unstructured.Unstructured) (*T, error) {
	data, err := json.Marshal(u.Object)
	if err != nil {
		return nil, err
	}
	t := new(T)
	if err := kjson.UnmarshalCaseSensitivePreserveInts(data, t); err != nil {
		return nil, &UndecodableError{o.kind.Name, u.GetNamespace(), u.GetName(), err, u}
	}
	return t, nil
}

func (o *Objects[T]) encode(t *T) (*unstructured.Unstructured, error) {
	m, err := runtime.DefaultUnstructuredConverter.ToUnstructured(t)
	if err != nil {
		return nil, err
	}
	u := &unstructured.Unstructured{Object: m}
	u.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(o.kind.Name))
	unstructured.RemoveNestedField(u.Object, "metadata", "creationTimestamp")
	return u, nil
}

func (o *Objects[T]) decoded(u *unstructured.Unstructured, err error) (*T, error) {
	if err != nil {
		return nil, err
	}
	return o.decode(u)
}

// Get reads one object. The error is the API server's or an *UndecodableError.
func (o *Objects[T]) Get(ctx context.Context, name string) (*T, error) {
	return o.decoded(o.client.Get(ctx, name, metav1.GetOptions{}))
}

// List reads all objects that opts select. It leaves out those that cannot be decoded and returns their errors in undecodable.
func (o *Objects[T]) List(ctx context.Context, opts metav1.ListOptions) (list []*T, undecodable []*UndecodableError, err error) {
	l, err := o.client.List(ctx, opts)
	if err != nil {
		return nil, nil, err
	}
	for i := range l.Items {
		t, err := o.decode(&l.Items[i])
		if bad, ok := errors.AsType[*UndecodableError](err); ok {
			undecodable = append(undecodable, bad)
			continue
		} else if err != nil {
			return nil, nil, err
		}
		list = append(list, t)
	}
	return list, undecodable, nil
}

// Create makes a new object.
func (o *Objects[T]) Create(ctx context.Context, t *T, opts metav1.CreateOptions) (*T, error) {
	u, err := o.encode(t)
	if err != nil {
		return nil, err
	}
	return o.decoded(o.client.Create(ctx, u, opts))
}

// Update replaces an object. If t has a resourceVersion, the update fails once another client has written the object. sub names
// a subresource, such as "status".
func (o *Objects[T]) Update(ctx context.Context, t *T, opts metav1.UpdateOptions, sub ...string) (*T, error) {
	u, err := o.encode(t)
	if err != nil {
		return nil, err
	}
	return o.decoded(o.client.Update(ctx, u, opts, sub...))
}

// Patch applies a patch to an object.
func (o *Objects[T]) Patch(ctx context.Context, name string, kind types.PatchType, patch []byte, opts metav1.PatchOptions, sub ...string) (*T, error) {
	return o.decoded(o.client.Patch(ctx, name, kind, patch, opts, sub...))
}

// Delete removes an object.
func (o *Objects[T]) Delete(ctx context.Context, name string, opts metav1.DeleteOptions) error {
	return o.client.Delete(ctx, name, opts)
}
