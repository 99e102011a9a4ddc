package lead

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/client-go/kubernetes/scheme"
	kevents "k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/backoff"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/internal/status"
)

// reportingController is the sender of the Events.
const reportingController = "stoker.io/agent"

// events sends Events. It has its own client, so that many Events do not delay the renewal of the lock.
type events struct {
	broadcaster kevents.EventBroadcaster
	recorder    kevents.EventRecorder
	pending     atomic.Int64 // requests under way
	log         *slog.Logger
}

func newEvents(clients kube.Clients, log *slog.Logger) (*events, error) {
	clients, err := clients.WithRate(5, 25, kube.RequestTimeout)
	if err != nil {
		return nil, err
	}
	e := &events{log: log}
	e.broadcaster = kevents.NewBroadcaster(&sink{&kevents.EventSinkImpl{Interface: clients.Core.EventsV1()}, &e.pending})
	e.recorder = e.broadcaster.NewRecorder(scheme.Scheme, reportingController)
	return e, nil
}

// sink counts the requests that send Events.
type sink struct {
	kevents.EventSink
	pending *atomic.Int64
}

func (s *sink) Create(ctx context.Context, e *eventsv1.Event) (*eventsv1.Event, error) {
	s.pending.Add(1)
	defer s.pending.Add(-1)
	return s.EventSink.Create(ctx, e)
}

// start sends Events until ctx is done.
func (e *events) start(ctx context.Context) {
	ctx = klog.NewContext(ctx, logr.FromSlogHandler(e.log.Handler()))
	if err := e.broadcaster.StartRecordingToSinkWithContext(ctx); err != nil {
		e.log.Error("Events cannot be sent", "error", err) // only after a shutdown
	}
	context.AfterFunc(ctx, e.broadcaster.Shutdown)
}

// flush waits a moment for pending requests.
func (e *events) flush(ctx context.Context) {
	for range 10 {
		if !backoff.Wait(ctx, 20*time.Millisecond) || e.pending.Load() == 0 {
			return
		}
	}
}

// send sends Events about gs and its pods. It does not block.
func (e *events) send(gs *v1alpha1.GatewaySync, list ...status.Event) {
	// The resourceVersion keeps two Events with the same reason apart. Without it, the recorder would only count the second
	// one.
	of := &corev1.ObjectReference{APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.KindGatewaySync, Namespace: gs.Namespace, Name: gs.Name,
		UID: gs.UID, ResourceVersion: gs.ResourceVersion}
	for _, ev := range list {
		regarding, related := of, (*corev1.ObjectReference)(nil)
		if ev.Pod != nil {
			regarding = &corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: ev.Pod.Namespace, Name: ev.Pod.Name, UID: ev.Pod.UID}
			related = of
		}
		kind := corev1.EventTypeNormal
		if ev.Warning {
			kind = corev1.EventTypeWarning
		}
		if related == nil { // a typed nil pointer would not be a nil interface
			e.recorder.Eventf(regarding, nil, kind, ev.Reason, action(ev.Reason), "%s", ev.Note)
			continue
		}
		e.recorder.Eventf(regarding, related, kind, ev.Reason, action(ev.Reason), "%s", ev.Note)
	}
}

func action(reason string) string {
	switch reason {
	case v1alpha1.EventLeadElected:
		return "Elect"
	case v1alpha1.EventRefResolved, v1alpha1.EventRefUpdated, v1alpha1.EventRefResolutionFailed:
		return "Resolve"
	case v1alpha1.EventPRCreated, v1alpha1.EventPRUpdated, v1alpha1.EventPRMerged, v1alpha1.EventPRClosed, v1alpha1.EventChangesRefused:
		return "Propose"
	}
	return "Sync"
}
