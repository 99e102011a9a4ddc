// Package memory is an API server in memory, for tests that only read and write objects: it serves the project's kinds and those of
// Kubernetes over HTTP, with versions, conflicts, watches, status subresources, and for the project's kinds generations and defaults. It has no
// authentication, rights, admission, validation, field managers or controllers: applying an object merges it.
// kubetest.Objects starts it for go test -short only, so that the same tests run on a real API server, too.
package memory

import (
	"cmp"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/google/uuid"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

// Server is a running API server.
type Server struct {
	http *httptest.Server
	done chan struct{} // closed by Close

	mu      sync.Mutex
	version int64
	kinds   map[schema.GroupVersionResource]kind
	objects map[schema.GroupVersionResource]map[string]*unstructured.Unstructured // by namespace/name; never modified
	log     []change
	changed chan struct{} // closed and replaced by the next change
}

// kind is what the server knows about a kind.
type kind struct {
	name     string
	own      bool           // a kind of the project
	noStatus bool           // has no status subresource
	schema   map[string]any // of the project's kinds
}

// change is a change of one object from was, nil if the object was created, to is, nil if it was deleted.
type change struct {
	version  int64
	resource schema.GroupVersionResource
	was, is  *unstructured.Unstructured
}

// Start starts a server with the kinds of the CRDs in a folder.
func Start(crds string) (*Server, error) {
	s := &Server{
		done: make(chan struct{}), changed: make(chan struct{}), objects: map[schema.GroupVersionResource]map[string]*unstructured.Unstructured{},
		kinds: map[schema.GroupVersionResource]kind{},
	}
	for gvk := range scheme.Scheme.AllKnownTypes() {
		plural, _ := meta.UnsafeGuessKindToResource(gvk)
		s.kinds[plural] = kind{name: gvk.Kind}
	}
	if err := s.addKinds(crds); err != nil {
		return nil, err
	}
	s.http = httptest.NewServer(s)
	return s, nil
}

// Close ends the server. It must be called only once.
func (s *Server) Close() error {
	close(s.done)
	s.http.CloseClientConnections()
	s.http.Close()
	return nil
}

// RESTConfig returns the configuration of clients.
func (s *Server) RESTConfig() *rest.Config { return &rest.Config{Host: s.http.URL, QPS: -1} }

// request is what a path and its query ask for.
type request struct {
	resource             schema.GroupVersionResource
	kind                 kind
	namespace, name, sub string
	query                map[string][]string
}

func (r request) key() string { return r.namespace + "/" + r.name }

func (r request) get(name string) string {
	if v := r.query[name]; len(v) > 0 {
		return v[0]
	}
	return ""
}

// parse returns the request of a path such as /apis/stoker.io/v1alpha1/namespaces/line/synctargets/site.
func (s *Server) parse(r *http.Request) (request, bool) {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	q := request{query: r.URL.Query()}
	switch {
	case len(parts) >= 3 && parts[0] == "api":
		q.resource.Version, parts = parts[1], parts[2:]
	case len(parts) >= 4 && parts[0] == "apis":
		q.resource.Group, q.resource.Version, parts = parts[1], parts[2], parts[3:]
	default:
		return q, false
	}
	if len(parts) >= 3 && parts[0] == "namespaces" && parts[2] != "status" && parts[2] != "finalize" {
		q.namespace, parts = parts[1], parts[2:]
	}
	q.resource.Resource = parts[0]
	if len(parts) > 1 {
		q.name = parts[1]
	}
	if len(parts) > 2 {
		q.sub = parts[2]
	}
	var known bool
	q.kind, known = s.kinds[q.resource]
	return q, known && len(parts) <= 3 && (q.sub == "" || q.sub == "status")
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	q, known := s.parse(r)
	if !known {
		fail(w, apierrors.NewNotFound(q.resource.GroupResource(), q.name))
		return
	}
	partial := strings.Contains(r.Header.Get("Accept"), "as=PartialObjectMetadata")
	if r.Method == http.MethodGet && q.name == "" && q.get("watch") != "" && q.get("watch") != "false" {
		s.watch(w, r, q, partial)
		return
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, 16<<20))
	if err != nil {
		fail(w, apierrors.NewBadRequest(err.Error()))
		return
	}
	s.mu.Lock()
	o, err := s.do(r, q, body)
	s.mu.Unlock()
	if err != nil {
		fail(w, err)
		return
	}
	code := http.StatusOK
	if r.Method == http.MethodPost {
		code = http.StatusCreated
	}
	reply(w, code, show(o, partial))
}

// do carries out a request other than a watch.
func (s *Server) do(r *http.Request, q request, body []byte) (runtime.Object, error) {
	if r.Method == http.MethodGet && q.name == "" {
		return s.list(q)
	}
	if r.Method == http.MethodPost && q.name == "" {
		return s.create(q, body)
	}
	is := s.objects[q.resource][q.key()]
	if is == nil && types.PatchType(r.Header.Get("Content-Type")) == types.ApplyPatchType {
		return s.create(q, body)
	}
	if is == nil {
		return nil, apierrors.NewNotFound(q.resource.GroupResource(), q.name)
	}
	switch r.Method {
	case http.MethodGet:
		return is, nil
	case http.MethodPut:
		want, err := decode(body)
		if err != nil {
			return nil, err
		}
		return s.update(q, is, want)
	case http.MethodPatch:
		want, err := patched(is, r.Header.Get("Content-Type"), body)
		if err != nil {
			return nil, err
		}
		return s.update(q, is, want)
	case http.MethodDelete:
		return s.delete(q, is, body)
	}
	return nil, apierrors.NewMethodNotSupported(q.resource.GroupResource(), r.Method)
}

func (s *Server) selected(q request) (func(*unstructured.Unstructured) bool, error) {
	byLabel, err := labels.Parse(q.get("labelSelector"))
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	byField, err := fields.ParseSelector(q.get("fieldSelector"))
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	return func(o *unstructured.Unstructured) bool {
		if o == nil || q.namespace != "" && o.GetNamespace() != q.namespace {
			return false
		}
		known := fields.Set{"metadata.name": o.GetName(), "metadata.namespace": o.GetNamespace()}
		known["spec.nodeName"], _, _ = unstructured.NestedString(o.Object, "spec", "nodeName")
		return byLabel.Matches(labels.Set(o.GetLabels())) && byField.Matches(known)
	}, nil
}

func (s *Server) list(q request) (runtime.Object, error) {
	admits, err := s.selected(q)
	if err != nil {
		return nil, err
	}
	list := &unstructured.UnstructuredList{Object: map[string]any{
		"apiVersion": q.resource.GroupVersion().String(), "kind": q.kind.name + "List", "metadata": map[string]any{"resourceVersion": strconv.FormatInt(s.version, 10)},
	}}
	for _, key := range slices.Sorted(maps.Keys(s.objects[q.resource])) {
		if o := s.objects[q.resource][key]; admits(o) {
			list.Items = append(list.Items, *o)
		}
	}
	return list, nil
}

func (s *Server) create(q request, body []byte) (runtime.Object, error) {
	o, err := decode(body)
	if err != nil {
		return nil, err
	}
	o.SetNamespace(q.namespace)
	if o.GetName() == "" && o.GetGenerateName() != "" {
		o.SetName(o.GetGenerateName() + uuid.NewString()[:5])
	}
	if o.GetName() == "" {
		return nil, apierrors.NewBadRequest("the object has no name")
	}
	q.name = o.GetName()
	if s.objects[q.resource][q.key()] != nil {
		return nil, apierrors.NewAlreadyExists(q.resource.GroupResource(), q.name)
	}
	o.SetUID(newUID())
	o.SetCreationTimestamp(metav1.Now().Rfc3339Copy())
	o.SetManagedFields(nil)
	if q.kind.own {
		o.SetGeneration(1)
		if !q.kind.noStatus {
			delete(o.Object, "status")
		}
	}
	fill(o.Object, q.kind.schema)
	switch q.resource.Resource {
	case "pods":
		o.Object["status"] = map[string]any{"phase": "Pending"}
	case "namespaces":
		o.Object["status"] = map[string]any{"phase": "Active"}
	case "secrets":
		encodeStrings(o.Object)
	}
	return s.put(q, nil, o), nil
}

// update makes want the content of an object, or its status.
func (s *Server) update(q request, is, want *unstructured.Unstructured) (runtime.Object, error) {
	if v := want.GetResourceVersion(); v != "" && v != is.GetResourceVersion() {
		return nil, apierrors.NewConflict(q.resource.GroupResource(), q.name, errors.New("the object has been modified; please apply your changes to the latest version and try again"))
	}
	if uid := want.GetUID(); q.sub == "" && uid != "" && uid != is.GetUID() {
		return nil, apierrors.NewInvalid(schema.GroupKind{Group: q.resource.Group, Kind: q.kind.name}, q.name,
			field.ErrorList{field.Invalid(field.NewPath("metadata", "uid"), uid, "field is immutable")})
	}
	o := want.DeepCopy()
	if q.sub == "status" {
		o = is.DeepCopy()
		if status, ok := want.Object["status"]; ok {
			o.Object["status"] = runtime.DeepCopyJSONValue(status)
		} else {
			delete(o.Object, "status")
		}
	} else if !q.kind.noStatus && (q.kind.own || q.resource.Resource == "pods") {
		if status, ok := is.Object["status"]; ok {
			o.Object["status"] = runtime.DeepCopyJSONValue(status)
		} else {
			delete(o.Object, "status")
		}
	}
	o.SetNamespace(is.GetNamespace())
	o.SetName(is.GetName())
	o.SetUID(is.GetUID())
	o.SetCreationTimestamp(is.GetCreationTimestamp())
	o.SetDeletionTimestamp(is.GetDeletionTimestamp())
	o.SetResourceVersion(is.GetResourceVersion())
	o.SetManagedFields(nil)
	fill(o.Object, q.kind.schema)
	if q.resource.Resource == "secrets" {
		encodeStrings(o.Object)
	}
	if q.kind.own {
		o.SetGeneration(is.GetGeneration())
		if !equalSpec(is.Object, o.Object, q.kind.noStatus) {
			o.SetGeneration(is.GetGeneration() + 1)
		}
	}
	if equal(is.Object, o.Object) {
		return is, nil
	}
	if o.GetDeletionTimestamp() != nil && len(o.GetFinalizers()) == 0 {
		return s.put(q, is, nil), nil
	}
	return s.put(q, is, o), nil
}

func (s *Server) delete(q request, is *unstructured.Unstructured, body []byte) (runtime.Object, error) {
	var o metav1.DeleteOptions
	if len(body) > 0 {
		if _, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, &schema.GroupVersionKind{Version: "v1", Kind: "DeleteOptions"}, &o); err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
	}
	if p := o.Preconditions; p != nil && (p.UID != nil && *p.UID != is.GetUID() || p.ResourceVersion != nil && *p.ResourceVersion != is.GetResourceVersion()) {
		return nil, apierrors.NewConflict(q.resource.GroupResource(), q.name, errors.New("precondition failed"))
	}
	if slices.Contains(o.DryRun, metav1.DryRunAll) {
		return is, nil
	}
	node, _, _ := unstructured.NestedString(is.Object, "spec", "nodeName")
	waits := q.resource.Resource == "pods" && node != "" && (o.GracePeriodSeconds == nil || *o.GracePeriodSeconds > 0)
	if len(is.GetFinalizers()) > 0 || waits {
		if is.GetDeletionTimestamp() != nil {
			return is, nil
		}
		ending := is.DeepCopy()
		now := metav1.Now().Rfc3339Copy()
		ending.SetDeletionTimestamp(&now)
		return s.put(q, is, ending), nil
	}
	if q.resource.Resource == "namespaces" {
		for resource, objects := range s.objects {
			for _, o := range objects {
				if o.GetNamespace() == q.name {
					s.put(request{resource: resource, namespace: q.name, name: o.GetName()}, o, nil)
				}
			}
		}
	}
	return s.put(q, is, nil), nil
}

// put replaces the object was by is, with a new version. Without is, put removes the object. It returns the object for the answer. A dry run
// changes nothing.
func (s *Server) put(q request, was, is *unstructured.Unstructured) runtime.Object {
	if dry := q.get("dryRun"); dry != "" {
		return cmp.Or(is, was)
	}
	s.version++
	if s.objects[q.resource] == nil {
		s.objects[q.resource] = map[string]*unstructured.Unstructured{}
	}
	if is != nil {
		is.SetResourceVersion(strconv.FormatInt(s.version, 10))
		s.objects[q.resource][q.key()] = is
	} else {
		delete(s.objects[q.resource], q.key())
		was = was.DeepCopy()
		was.SetResourceVersion(strconv.FormatInt(s.version, 10))
	}
	s.log = append(s.log, change{s.version, q.resource, was, is})
	close(s.changed)
	s.changed = make(chan struct{})
	return cmp.Or(is, was)
}

// show returns an object, or only its metadata if the client asked for that.
func show(o runtime.Object, partial bool) any {
	if !partial {
		return o
	}
	metadata := func(u *unstructured.Unstructured) map[string]any {
		return map[string]any{"apiVersion": metav1.SchemeGroupVersion.String(), "kind": "PartialObjectMetadata", "metadata": u.Object["metadata"]}
	}
	switch o := o.(type) {
	case *unstructured.Unstructured:
		return metadata(o)
	case *unstructured.UnstructuredList:
		items := []any{}
		for i := range o.Items {
			items = append(items, metadata(&o.Items[i]))
		}
		return map[string]any{"apiVersion": metav1.SchemeGroupVersion.String(), "kind": "PartialObjectMetadataList", "metadata": o.Object["metadata"], "items": items}
	}
	return o
}

func reply(w http.ResponseWriter, code int, o any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(o)
}

func fail(w http.ResponseWriter, err error) {
	status, ok := errors.AsType[*apierrors.StatusError](err)
	if !ok {
		status = apierrors.NewInternalError(err)
	}
	answer := status.ErrStatus
	answer.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
	reply(w, int(answer.Code), answer)
}
