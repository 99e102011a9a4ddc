package fields

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"

	"stoker.io/stoker/internal/kube"
)

// object is an object of the API.
type object = map[string]any

// apiServer is a small API server without a network, so that it works in virtual time, too. It stores objects as they are, and records every
// write, except of Events, with its user and parameters. It detects no conflicts, and knows no owners of fields and no defaults.
type apiServer struct {
	mu       sync.Mutex
	objects  map[string]object // by path
	version  int
	changed  chan struct{} // closed by the next change
	requests []string
	// onWrite is called with each object that is written; it may be nil.
	onWrite func(path string, o object)
}

func newAPI() *apiServer {
	return &apiServer{objects: map[string]object{}, changed: make(chan struct{})}
}

// put stores an object at a path such as /api/v1/namespaces/site/secrets/a.
func (s *apiServer) put(t *testing.T, path string, o any) {
	t.Helper()
	text, err := json.Marshal(o)
	require.NoError(t, err)
	var stored object
	require.NoError(t, json.Unmarshal(text, &stored))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.store(path, stored)
}

func (s *apiServer) store(path string, o object) {
	s.version++
	for plural, kind := range map[string]string{"gatewaysyncs": "GatewaySync", "configsyncs": "ConfigSync", "synctargets": "SyncTarget", "syncreports": "SyncReport"} {
		if strings.Contains(path, "/"+plural+"/") {
			o["kind"], o["apiVersion"] = kind, "stoker.io/v1alpha1"
		}
	}
	m, _ := o["metadata"].(object)
	if m == nil {
		m = object{}
	}
	m["name"], m["resourceVersion"] = path[strings.LastIndex(path, "/")+1:], strconv.Itoa(s.version)
	if _, rest, ok := strings.Cut(path, "/namespaces/"); ok {
		m["namespace"], _, _ = strings.Cut(rest, "/")
	}
	if m["uid"] == nil {
		m["uid"] = "uid-" + fmt.Sprint(m["name"])
	}
	if m["generation"] == nil {
		m["generation"] = 1
	}
	o["metadata"], s.objects[path] = m, o
	close(s.changed)
	s.changed = make(chan struct{})
}

// clients returns clients of the server.
func (s *apiServer) clients(t *testing.T) kube.Clients {
	t.Helper()
	c, err := kube.ConnectTo(&rest.Config{Host: "http://api", Transport: s, WarningHandler: rest.NoWarnings{}}, "test")
	require.NoError(t, err)
	return c
}

// RoundTrip implements http.RoundTripper.
func (s *apiServer) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(r.Context())
	body, w := io.Pipe()
	answer := &response{header: http.Header{"Content-Type": {"application/json"}}, pipe: w, ready: make(chan struct{})}
	go func() {
		defer cancel()
		s.ServeHTTP(answer, r.WithContext(ctx))
		answer.WriteHeader(http.StatusOK)
		_ = w.Close()
	}()
	select {
	case <-answer.ready:
		return &http.Response{Status: http.StatusText(answer.code), StatusCode: answer.code, Header: answer.header, Request: r, ContentLength: -1, Proto: "HTTP/1.1", ProtoMajor: 1,
			ProtoMinor: 1, Body: closer{body, cancel}}, nil
	case <-r.Context().Done():
		cancel()
		_ = body.Close()
		return nil, r.Context().Err()
	}
}

// response is the answer to a request.
type response struct {
	header http.Header
	pipe   *io.PipeWriter
	code   int
	once   sync.Once
	ready  chan struct{}
}

func (r *response) Header() http.Header { return r.header }
func (r *response) WriteHeader(code int) {
	r.once.Do(func() { r.code = code; close(r.ready) })
}
func (r *response) Write(p []byte) (int, error) {
	r.WriteHeader(http.StatusOK)
	return r.pipe.Write(p)
}

type closer struct {
	*io.PipeReader
	cancel context.CancelFunc
}

func (c closer) Close() error {
	c.cancel()
	return c.PipeReader.Close()
}

func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var body []byte
	if r.Body != nil {
		body, _ = io.ReadAll(r.Body)
	}
	user := r.Header.Get("Impersonate-User")
	path, sub := r.URL.Path, ""
	if strings.HasSuffix(path, "/status") {
		path, sub = strings.TrimSuffix(path, "/status"), " status"
	}
	q := r.URL.Query()
	if r.Method != http.MethodGet && !strings.Contains(path, "/events") {
		s.mu.Lock()
		s.requests = append(s.requests, fmt.Sprintf("%s %s%s dryRun=%s force=%s as %q", r.Method, path, sub, q.Get("dryRun"), q.Get("force"), user))
		s.mu.Unlock()
	}
	switch {
	case discovery[path] != "":
		_, _ = io.WriteString(w, discovery[path])
	case strings.HasSuffix(path, "/selfsubjectreviews"):
		writeJSON(w, http.StatusCreated, object{"kind": "SelfSubjectReview", "apiVersion": "authentication.k8s.io/v1", "status": object{"userInfo": object{"username": user}}})
	case strings.Contains(path, "/events"):
		writeJSON(w, http.StatusCreated, object{"kind": "Event", "apiVersion": "events.k8s.io/v1"})
	case q.Get("watch") != "":
		s.watch(w, r, path)
	case r.Method == http.MethodGet && isList(path):
		writeJSON(w, http.StatusOK, s.list(path, q.Get("labelSelector")))
	default:
		s.serveObject(w, r, path, body)
	}
}

// discovery has the answers about the kinds that a ConfigSync may apply here. The server stores objects of other kinds, too.
var discovery = map[string]string{
	"/api":  `{"kind":"APIVersions","versions":["v1"]}`,
	"/apis": `{"kind":"APIGroupList","apiVersion":"v1","groups":[]}`,
	"/api/v1": `{"kind":"APIResourceList","groupVersion":"v1","resources":[{"name":"configmaps","namespaced":true,"kind":"ConfigMap","verbs":["list","patch","get"]},
		{"name":"secrets","namespaced":true,"kind":"Secret","verbs":["list","patch","get"]}]}`,
}

func writeJSON(w http.ResponseWriter, code int, v any) {
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(v)
}

// isList reports whether a path names a collection.
func isList(path string) bool {
	_, in, namespaced := strings.Cut(path, "/namespaces/")
	if namespaced {
		return strings.Count(in, "/") == 1
	}
	return !strings.Contains(path, "/namespaces")
}

// list returns the objects of a collection, in all namespaces if the path has none.
func (s *apiServer) list(path, selector string) object {
	s.mu.Lock()
	defer s.mu.Unlock()
	items := []any{}
	for _, name := range slices.Sorted(maps.Keys(s.objects)) {
		if inList(name, path) && selected(s.objects[name], selector) {
			items = append(items, s.objects[name])
		}
	}
	kind := map[string]string{"pods": "PodList", "secrets": "SecretList", "configmaps": "ConfigMapList"}[path[strings.LastIndex(path, "/")+1:]]
	api := "v1"
	if kind == "" {
		kind, api = "List", "stoker.io/v1alpha1"
	}
	return object{"kind": kind, "apiVersion": api, "metadata": object{"resourceVersion": strconv.Itoa(s.version)}, "items": items}
}

func inList(name, list string) bool {
	if strings.Contains(list, "/namespaces/") {
		return strings.HasPrefix(name, list+"/")
	}
	i := strings.LastIndex(list, "/")
	return strings.HasPrefix(name, list[:i]+"/namespaces/") && strings.Contains(name, list[i:]+"/")
}

func selected(o object, selector string) bool {
	key, value, ok := strings.Cut(selector, "=")
	labels, _ := o["metadata"].(object)["labels"].(object)
	return !ok || labels[key] == value
}

// watch sends the objects of a collection, if the client asks for them, and then those that change. It does not report deletions.
func (s *apiServer) watch(w http.ResponseWriter, r *http.Request, path string) {
	w.WriteHeader(http.StatusOK)
	if f, ok := w.(http.Flusher); ok {
		f.Flush()
	}
	sent := map[string]any{}
	initial := r.URL.Query().Get("sendInitialEvents") == "true"
	first := true
	for {
		s.mu.Lock()
		changed, version := s.changed, s.version
		var lines []object
		for name, o := range s.objects {
			v := o["metadata"].(object)["resourceVersion"]
			if !inList(name, path) || sent[name] == v || !selected(o, r.URL.Query().Get("labelSelector")) {
				continue
			}
			kind := "MODIFIED"
			if sent[name] == nil {
				kind = "ADDED"
			}
			if sent[name] = v; !first || initial {
				lines = append(lines, object{"type": kind, "object": clone(o)})
			}
		}
		s.mu.Unlock()
		if first && initial {
			lines = append(lines, object{"type": "BOOKMARK", "object": object{"kind": "GatewaySync", "apiVersion": "stoker.io/v1alpha1", "metadata": object{
				"resourceVersion": strconv.Itoa(version), "annotations": object{"k8s.io/initial-events-end": "true"}}}})
		}
		first = false
		for _, line := range lines {
			if json.NewEncoder(w).Encode(line) != nil {
				return
			}
		}
		select {
		case <-r.Context().Done():
			return
		case <-changed:
		}
	}
}

func clone(o object) object {
	text, _ := json.Marshal(o)
	var c object
	_ = json.Unmarshal(text, &c)
	return c
}

// serveObject reads or writes one object. A patch is merged, whatever its type is.
func (s *apiServer) serveObject(w http.ResponseWriter, r *http.Request, path string, body []byte) {
	var given object
	_ = json.Unmarshal(body, &given)
	if r.Method == http.MethodPost {
		m, _ := given["metadata"].(object)
		path += "/" + fmt.Sprint(m["name"])
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	o, found := s.objects[path]
	apply := strings.Contains(r.Header.Get("Content-Type"), "apply-patch")
	if !found && r.Method != http.MethodPost && (r.Method != http.MethodPatch || !apply) {
		writeJSON(w, http.StatusNotFound, object{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404, "message": path + " not found"})
		return
	}
	dry := r.URL.Query().Get("dryRun") != ""
	switch r.Method {
	case http.MethodGet:
	case http.MethodDelete:
		if !dry {
			delete(s.objects, path)
			s.version++
			close(s.changed)
			s.changed = make(chan struct{})
		}
	case http.MethodPatch:
		o = clone(o)
		if o == nil {
			o = object{}
		}
		merge(o, given)
	default:
		o = given
	}
	if r.Method != http.MethodGet && r.Method != http.MethodDelete && !dry {
		if s.store(path, o); s.onWrite != nil {
			s.onWrite(path, o)
		}
	}
	writeJSON(w, http.StatusOK, o)
}

// merge applies a merge patch.
func merge(into, change object) {
	for k, v := range change {
		inner, isObject := v.(object)
		old, wasObject := into[k].(object)
		switch {
		case v == nil:
			delete(into, k)
		case isObject && wasObject:
			merge(old, inner)
		default:
			into[k] = v
		}
	}
}

// taken returns the writes since the last call.
func (s *apiServer) taken() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	text := strings.Join(s.requests, "\n")
	s.requests = nil
	return text
}

// all returns copies of the objects by path.
func (s *apiServer) all() map[string]object {
	s.mu.Lock()
	defer s.mu.Unlock()
	copies := map[string]object{}
	for path, o := range s.objects {
		copies[path] = clone(o)
	}
	return copies
}
