package memory

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"
)

// addKinds adds the kinds of the CRDs in a folder.
func (s *Server) addKinds(folder string) error {
	names, err := filepath.Glob(filepath.Join(folder, "*.yaml"))
	if err == nil && len(names) == 0 {
		err = fmt.Errorf("%s has no CRDs", folder)
	}
	if err != nil {
		return err
	}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		var crd struct {
			Spec struct {
				Group    string
				Names    struct{ Plural, Kind string }
				Versions []struct {
					Name         string
					Subresources map[string]any
					Schema       struct{ OpenAPIV3Schema map[string]any }
				}
			}
		}
		if err := yaml.Unmarshal(text, &crd); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		for _, v := range crd.Spec.Versions {
			_, status := v.Subresources["status"]
			s.kinds[schema.GroupVersionResource{Group: crd.Spec.Group, Version: v.Name, Resource: crd.Spec.Names.Plural}] = kind{
				name: crd.Spec.Names.Kind, own: true, noStatus: !status, schema: v.Schema.OpenAPIV3Schema,
			}
		}
	}
	return nil
}

// decode reads an object as JSON or in the binary form of the kinds of Kubernetes.
func decode(body []byte) (*unstructured.Unstructured, error) {
	o := &unstructured.Unstructured{}
	if utiljson.Unmarshal(body, &o.Object) == nil {
		return o, nil
	}
	typed, gvk, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	raw, err := json.Marshal(typed)
	if err == nil {
		err = utiljson.Unmarshal(raw, &o.Object)
	}
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	o.SetGroupVersionKind(*gvk)
	return o, nil
}

// patched returns an object after a patch.
func patched(is *unstructured.Unstructured, contentType string, patch []byte) (*unstructured.Unstructured, error) {
	raw, err := json.Marshal(is.Object)
	if err != nil {
		return nil, err
	}
	switch types.PatchType(contentType) {
	case types.MergePatchType, types.ApplyPatchType:
		raw, err = jsonpatch.MergePatch(raw, patch)
	case types.JSONPatchType:
		var p jsonpatch.Patch
		if p, err = jsonpatch.DecodePatch(patch); err == nil {
			if raw, err = p.Apply(raw); err != nil { // an operation failed, such as a test
				return nil, apierrors.NewGenericServerResponse(422, "patch", schema.GroupResource{Resource: is.GetKind()}, is.GetName(), err.Error(), 0, false)
			}
		}
	case types.StrategicMergePatchType:
		var typed runtime.Object
		if typed, err = scheme.Scheme.New(is.GroupVersionKind()); err == nil {
			raw, err = strategicpatch.StrategicMergePatch(raw, patch, typed)
		}
	default:
		err = fmt.Errorf("patches of type %q are not supported", contentType)
	}
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	o := &unstructured.Unstructured{}
	return o, utiljson.Unmarshal(raw, &o.Object)
}

// fill sets what a value lacks to the defaults of its schema.
func fill(value any, of map[string]any) {
	switch value := value.(type) {
	case map[string]any:
		properties, _ := of["properties"].(map[string]any)
		for name, p := range properties {
			property, _ := p.(map[string]any)
			if d, has := property["default"]; has && value[name] == nil {
				value[name] = runtime.DeepCopyJSONValue(plain(d))
			}
			if value[name] != nil {
				fill(value[name], property)
			}
		}
		if every, ok := of["additionalProperties"].(map[string]any); ok {
			for _, v := range value {
				fill(v, every)
			}
		}
	case []any:
		every, _ := of["items"].(map[string]any)
		for _, v := range value {
			fill(v, every)
		}
	}
}

// plain returns a value of a schema with the types of an object's JSON.
func plain(v any) any {
	raw, err := json.Marshal(v)
	if err != nil {
		return nil
	}
	var out any
	if utiljson.Unmarshal(raw, &out) != nil { // whole numbers as int64
		return nil
	}
	return out
}

// encodeStrings moves the stringData of a Secret to its data.
func encodeStrings(secret map[string]any) {
	texts, _, _ := unstructured.NestedStringMap(secret, "stringData")
	delete(secret, "stringData")
	for name, text := range texts {
		_ = unstructured.SetNestedField(secret, base64.StdEncoding.EncodeToString([]byte(text)), "data", name)
	}
}

// equalSpec reports whether objects differ only in metadata and, unless withStatus is set, in status.
func equalSpec(a, b map[string]any, withStatus bool) bool {
	bare := func(o map[string]any) map[string]any {
		out := map[string]any{}
		for k, v := range o {
			if k != "metadata" && (withStatus || k != "status") {
				out[k] = v
			}
		}
		return out
	}
	return equal(bare(a), bare(b))
}

func equal(a, b map[string]any) bool {
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	return errX == nil && errY == nil && bytes.Equal(x, y)
}

func newUID() types.UID { return types.UID(uuid.NewString()) }

// watch sends changes until the client or the server ends, or timeoutSeconds have passed.
func (s *Server) watch(w http.ResponseWriter, r *http.Request, q request, partial bool) {
	admits, err := s.selected(q)
	if err != nil {
		fail(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	control := http.NewResponseController(w)
	send := func(kind watch.EventType, o runtime.Object) bool {
		raw, err := json.Marshal(map[string]any{"type": kind, "object": show(o, partial)})
		if err != nil {
			return false
		}
		_, err = w.Write(append(raw, '\n'))
		return err == nil
	}
	since, _ := strconv.ParseInt(q.get("resourceVersion"), 10, 64)
	if initial := q.get("sendInitialEvents") == "true"; initial || since == 0 {
		s.mu.Lock()
		since = s.version
		objects := slices.Collect(maps.Values(s.objects[q.resource]))
		s.mu.Unlock()
		for _, o := range objects {
			if admits(o) && !send(watch.Added, o) {
				return
			}
		}
		if initial {
			mark := &unstructured.Unstructured{Object: map[string]any{"apiVersion": q.resource.GroupVersion().String(), "kind": q.kind.name}}
			mark.SetResourceVersion(strconv.FormatInt(since, 10))
			mark.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
			if !send(watch.Bookmark, mark) {
				return
			}
		}
	}
	var timeout <-chan time.Time
	if seconds, err := strconv.Atoi(q.get("timeoutSeconds")); err == nil && seconds > 0 {
		timeout = time.After(time.Duration(seconds) * time.Second)
	}
	for {
		s.mu.Lock()
		first, _ := slices.BinarySearchFunc(s.log, since+1, func(c change, v int64) int { return cmp.Compare(c.version, v) })
		news, changed := s.log[first:], s.changed
		since = s.version
		s.mu.Unlock()
		for _, c := range news {
			if c.resource != q.resource {
				continue
			}
			sent := true
			switch before, after := admits(c.was), admits(c.is); {
			case after && !before:
				sent = send(watch.Added, c.is)
			case after:
				sent = send(watch.Modified, c.is)
			case before && c.is != nil:
				sent = send(watch.Deleted, c.is)
			case before:
				sent = send(watch.Deleted, c.was)
			}
			if !sent {
				return
			}
		}
		if control.Flush() != nil {
			return
		}
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		case <-s.done:
			return
		case <-timeout:
			return
		}
	}
}
