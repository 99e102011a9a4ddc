package memory

import (
	"cmp"
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
)

// watch sends changes until the client or the server ends.
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
