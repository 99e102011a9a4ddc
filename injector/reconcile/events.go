package reconcile

import (
	"context"
	"crypto/sha256"
	"fmt"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

const (
	reportingController = "stoker.io/injector"
	// maxNote is the API server's limit on the note of an Event, in bytes.
	maxNote = 1024
	// maxEventName leaves room for the hash in the name of an Event.
	maxEventName = 200
)

// podEvent sends an Event about a pod, once for each note.
func (u *Reconciler) podEvent(ctx context.Context, p *corev1.Pod, gs *v1alpha1.GatewaySync, kind, reason, action, note string) error {
	pod := corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: p.Namespace, Name: p.Name, UID: p.UID}
	var related *corev1.ObjectReference
	if gs != nil {
		related = reference(gs)
	}
	return u.send(ctx, &eventsv1.Event{Regarding: pod, Related: related, Type: kind, Reason: reason, Action: action, Note: note})
}

// syncEvent sends an Event about a GatewaySync, once for each pod and note.
func (u *Reconciler) syncEvent(ctx context.Context, gs *v1alpha1.GatewaySync, uid types.UID, name, kind, reason, action, note string) error {
	pod := corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: gs.Namespace, Name: name, UID: uid}
	return u.send(ctx, &eventsv1.Event{Regarding: *reference(gs), Related: &pod, Type: kind, Reason: reason, Action: action, Note: note})
}

func reference(gs *v1alpha1.GatewaySync) *corev1.ObjectReference {
	return &corev1.ObjectReference{APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.KindGatewaySync, Namespace: gs.Namespace, Name: gs.Name, UID: gs.UID}
}

// send sends an Event. The Event's name contains a hash of its content, so that no other replica sends it again.
func (u *Reconciler) send(ctx context.Context, e *eventsv1.Event) error {
	content := string(e.Regarding.UID) + "/" + e.Reason + "/" + e.Note
	if e.Related != nil {
		content += "/" + string(e.Related.UID)
	}
	e.ObjectMeta = metav1.ObjectMeta{Namespace: e.Regarding.Namespace, Name: eventName(e.Regarding.Name, content)}
	key := e.Namespace + "/" + e.Name
	if u.sent.has(key) {
		return nil
	}
	e.EventTime = metav1.NewMicroTime(time.Now())
	e.ReportingController, e.ReportingInstance = reportingController, u.Instance
	e.Note = failure.Cut(e.Note, maxNote)
	_, err := u.Core.EventsV1().Events(e.Namespace).Create(ctx, e, metav1.CreateOptions{FieldManager: fieldManager})
	switch {
	case err == nil, apierrors.IsAlreadyExists(err):
		u.sent.add(key)
		return nil
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return nil
	}
	return fmt.Errorf("event %s of %s %s/%s: %w", e.Reason, e.Regarding.Kind, e.Regarding.Namespace, e.Regarding.Name, err)
}

func eventName(of, key string) string {
	sum := sha256.Sum256([]byte(key))
	return fmt.Sprintf("%s.%x", strings.TrimRight(of[:min(len(of), maxEventName)], "-."), sum[:8])
}

// maxSent bounds the memory of sentEvents. Sending an Event again is harmless: it exists already.
const maxSent = 20000

// sentEvents remembers which Events were sent.
type sentEvents struct {
	mu                sync.Mutex
	current, previous map[string]bool
}

func (s *sentEvents) has(key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current[key] || s.previous[key]
}

func (s *sentEvents) add(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current == nil || len(s.current) >= maxSent/2 {
		s.previous, s.current = s.current, map[string]bool{}
	}
	s.current[key] = true
}
