// Package apply reads, dry-runs, applies and deletes the objects of a ConfigSync with the rights of the caller, and looks at their
// health. A Client returns the errors of the API server as they are, and these may quote values of Secrets. Before a caller shows such an
// error, it passes it to Explain, Redact or RedactRemoval.
package apply

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/backoff"
	"stoker.io/stoker/internal/configsync/manifest"
	"stoker.io/stoker/internal/configsync/plan"
	"stoker.io/stoker/internal/failure"
)

// Client reads and writes objects of any kind. It is safe for concurrent use.
type Client struct {
	objects dynamic.Interface
	kinds   *kindList
	mapper  *restmapper.DeferredDiscoveryRESTMapper
	// namespace of the ConfigSync, for objects that name none.
	namespace string
	// force takes fields from other managers.
	force bool
}

// New returns a client. It sends nothing yet.
func New(objects dynamic.Interface, kinds discovery.DiscoveryInterface, cs *v1alpha1.ConfigSync) *Client {
	list := &kindList{CachedDiscoveryInterface: memory.NewMemCacheClient(kinds)}
	return &Client{
		objects: objects, kinds: list, mapper: restmapper.NewDeferredDiscoveryRESTMapper(list),
		namespace: cs.Namespace, force: cs.Spec.Apply.ConflictPolicy != v1alpha1.ConfigHold,
	}
}

// Refresh discards the cached list of the kinds that the cluster serves.
func (c *Client) Refresh() { c.mapper.Reset() }

// ResolveNamespace sets the namespace in which an object is applied: its own, that of the ConfigSync, or none for a cluster-scoped kind.
// The reason of the error is KindUnknown if the cluster does not serve the kind, or cannot say whether it does.
func (c *Client) ResolveNamespace(o manifest.Object) error {
	m, err := c.mapping(o.ID(), o.GroupVersionKind().Version)
	switch {
	case err != nil:
		return err
	case m.Scope.Name() != meta.RESTScopeNameNamespace:
		o.SetNamespace("")
	case o.GetNamespace() == "":
		o.SetNamespace(c.namespace)
	}
	return nil
}

func (c *Client) mapping(id manifest.ID, versions ...string) (*meta.RESTMapping, error) {
	m, err := c.mapper.RESTMapping(schema.GroupKind{Group: id.Group, Kind: id.Kind}, versions...)
	switch {
	case apierrors.IsUnauthorized(err):
		return nil, failure.New(v1alpha1.ReasonApplyForbidden, "the API server does not accept the credentials: replace those of the kubeconfig")
	case !meta.IsNoMatchError(err):
		return m, err
	}
	if err := c.kinds.check(id.Group); err != nil {
		return nil, failure.New(v1alpha1.ReasonKindUnknown, "the API server cannot say whether it serves %s: %w", failure.Quote(id.Type()), err)
	}
	version := ""
	if len(versions) > 0 {
		version = " in version " + failure.Quote(versions[0])
	}
	return nil, failure.New(v1alpha1.ReasonKindUnknown, "the cluster does not serve %s%s: install its CustomResourceDefinition, or correct apiVersion and kind",
		failure.Quote(id.Type()), version)
}

// errIncomplete means that the API server could not list the kinds of a group.
var errIncomplete = errors.New("its list of kinds is incomplete, check the APIService of the group")

// kindList is the list of the kinds that the API server serves. It keeps the error of the list that the mapper uses: the mapper ignores
// the error, and takes the kinds of a group that could not be listed for kinds that do not exist.
type kindList struct {
	discovery.CachedDiscoveryInterface
	err atomic.Pointer[error]
}

func (k *kindList) ServerGroupsAndResources() ([]*metav1.APIGroup, []*metav1.APIResourceList, error) {
	groups, kinds, err := k.CachedDiscoveryInterface.ServerGroupsAndResources()
	k.err.Store(&err)
	return groups, kinds, err
}

// check returns an errIncomplete if the list lacks the kinds of a group, for example because the extension that serves them does not answer.
func (k *kindList) check(group string) error {
	err := k.err.Load()
	if err == nil || *err == nil {
		return nil
	}
	failed, partial := discovery.GroupDiscoveryFailedErrorGroups(*err)
	if !partial {
		return fmt.Errorf("%w: %w", errIncomplete, *err)
	}
	for gv, err := range failed {
		if gv.Group == group {
			return fmt.Errorf("%w: %w", errIncomplete, err)
		}
	}
	return nil
}

// resource returns access to the objects of a mapping.
func (c *Client) resource(m *meta.RESTMapping, namespace string) dynamic.ResourceInterface {
	if m.Scope.Name() == meta.RESTScopeNameNamespace {
		return c.objects.Resource(m.Resource).Namespace(namespace)
	}
	return c.objects.Resource(m.Resource)
}

// resourceOf returns access to an object of the commit.
func (c *Client) resourceOf(o manifest.Object) (dynamic.ResourceInterface, error) {
	m, err := c.mapping(o.ID(), o.GroupVersionKind().Version)
	if err != nil {
		return nil, err
	}
	return c.resource(m, o.GetNamespace()), nil
}

// Get reads the live version of an object of the commit, or returns nil if there is none.
func (c *Client) Get(ctx context.Context, o manifest.Object) (*unstructured.Unstructured, error) {
	r, err := c.resourceOf(o)
	if err != nil {
		return nil, err
	}
	return ignoreNotFound(r.Get(ctx, o.GetName(), metav1.GetOptions{}))
}

// GetEntry reads an object of the inventory, or returns nil if there is none, or if the cluster no longer serves its kind. The reason of
// the error is KindUnknown if the API server cannot say whether it serves the kind: the object may exist.
func (c *Client) GetEntry(ctx context.Context, e manifest.Entry) (*unstructured.Unstructured, error) {
	m, err := c.mapping(e.ID)
	if failure.Is(err, v1alpha1.ReasonKindUnknown) && !errors.Is(err, errIncomplete) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return ignoreNotFound(c.resource(m, e.Namespace).Get(ctx, e.Name, metav1.GetOptions{}))
}

func ignoreNotFound(u *unstructured.Unstructured, err error) (*unstructured.Unstructured, error) {
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return u, err
}

// DryRun returns the object that Apply would produce. It changes nothing.
func (c *Client) DryRun(ctx context.Context, o manifest.Object) (*unstructured.Unstructured, error) {
	return c.apply(ctx, o, metav1.DryRunAll)
}

// noVersion is a resource version that no object has. The API server ignores it when it creates an object.
const noVersion = "1"

// Apply applies an object by server-side apply and returns the result. live is the version that was planned, or nil if there was none.
// If the object has another UID, or exists although live is nil, the API server refuses it as a conflict or as invalid.
func (c *Client) Apply(ctx context.Context, o manifest.Object, live *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	o.Unstructured = o.DeepCopy()
	if live == nil {
		o.SetResourceVersion(noVersion)
	} else {
		o.SetUID(live.GetUID())
	}
	return c.apply(ctx, o)
}

func (c *Client) apply(ctx context.Context, o manifest.Object, dryRun ...string) (*unstructured.Unstructured, error) {
	r, err := c.resourceOf(o)
	if err != nil {
		return nil, err
	}
	options := metav1.ApplyOptions{FieldManager: plan.FieldManager, Force: c.force, DryRun: dryRun}
	done, err := r.Apply(ctx, o.GetName(), o.Unstructured, options)
	if isUntyped(err) && backoff.Wait(ctx, untypedRetryDelay) { // it may also be a temporary failure of the API server
		done, err = r.Apply(ctx, o.GetName(), o.Unstructured, options)
	}
	return done, err
}

// DryRunRemoval returns a live object without the extras of plan.Extras, with the defaults that the API server sets then. It changes nothing.
func (c *Client) DryRunRemoval(ctx context.Context, live *unstructured.Unstructured, extras []fieldpath.Path) (*unstructured.Unstructured, error) {
	patch, err := plan.RemovalPatch(live, extras)
	if err != nil {
		return nil, err
	}
	return c.Patch(ctx, live, patch, metav1.DryRunAll)
}

// Patch sends a JSON patch of a live object.
func (c *Client) Patch(ctx context.Context, live *unstructured.Unstructured, patch []byte, dryRun ...string) (*unstructured.Unstructured, error) {
	m, err := c.mapping(manifest.IDOf(live), live.GroupVersionKind().Version)
	if err != nil {
		return nil, err
	}
	return c.resource(m, live.GetNamespace()).Patch(ctx, live.GetName(), types.JSONPatchType, patch, metav1.PatchOptions{FieldManager: plan.FieldManager, DryRun: dryRun})
}

// untypedRetryDelay is the pause before the retry of an apply that failed without a reason.
const untypedRetryDelay = time.Second

// isUntyped reports whether the API server answered with code 500 and no reason. Server-side apply answers so if an object does not fit
// the schema of its kind.
func isUntyped(err error) bool {
	status := apierrors.APIStatus(nil)
	return errors.As(err, &status) && status.Status().Code == http.StatusInternalServerError && status.Status().Reason == metav1.StatusReasonUnknown
}

// Delete deletes an object, and does nothing if it does not exist. It fails with a conflict if the object is not exactly as live. With
// metav1.DryRunAll it only returns the error that it would return.
func (c *Client) Delete(ctx context.Context, live *unstructured.Unstructured, dryRun ...string) error {
	id := manifest.IDOf(live)
	m, err := c.mapping(id, live.GroupVersionKind().Version)
	if err != nil {
		return err
	}
	uid, version, background := live.GetUID(), live.GetResourceVersion(), metav1.DeletePropagationBackground
	err = c.resource(m, id.Namespace).Delete(ctx, id.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &uid, ResourceVersion: &version}, PropagationPolicy: &background, DryRun: dryRun,
	})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// Redact adds the object to the error of a request. If the object may hold values of Secrets, the result does not show the text of err,
// but errors.Is and errors.As still find err.
func Redact(o manifest.Object, err error) error {
	if !o.Confidential() {
		return fmt.Errorf("%s: %w", o.ID(), err)
	}
	return RedactRemoval(o.ID(), err)
}

// RedactRemoval is Redact for an object that the commit does not have. It never shows the text of err, because the inventory does not say
// whether the object may hold values of Secrets.
func RedactRemoval(id manifest.ID, err error) error {
	return &redactedError{id.String() + ": " + redactedText(err), err}
}

type redactedError struct {
	text string
	err  error
}

func (q *redactedError) Error() string { return q.text }

func (q *redactedError) Unwrap() error { return q.err }

// IsRefusal reports whether an error means that the API server, or this package, rejects the object. Other errors, such as timeouts, may be
// temporary.
func IsRefusal(err error) bool {
	status := apierrors.APIStatus(nil)
	if _, ok := errors.AsType[*failure.Error](err); ok {
		return true
	}
	return isUntyped(err) || errors.As(err, &status) && !apierrors.IsServerTimeout(err) && !apierrors.IsTooManyRequests(err) && !apierrors.IsServiceUnavailable(err) &&
		!apierrors.IsInternalError(err) && !apierrors.IsTimeout(err) && !apierrors.IsUnauthorized(err)
}

// Health is the health of an object.
type Health struct {
	Healthy bool
	// Failed means that waiting does not help.
	Failed bool
	// Message says what is missing.
	Message string
}

// HealthOf returns the health of a live object by the rules of kstatus. A kind without a status is healthy once it exists.
func HealthOf(live *unstructured.Unstructured) (h Health) {
	defer func() { // a status that a foreign controller wrote may make kstatus panic
		if r := recover(); r != nil {
			h = Health{Message: "its status cannot be read"}
		}
	}()
	result, err := status.Compute(live)
	switch {
	case err != nil:
		return Health{Message: "its status cannot be read"}
	case result.Status == status.CurrentStatus:
		return Health{Healthy: true}
	}
	return Health{Failed: result.Status == status.FailedStatus, Message: oneLine(fmt.Sprintf("%s: %s", result.Status, result.Message))}
}
