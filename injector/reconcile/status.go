package reconcile

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/injector/inject"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/internal/status"
)

// writeStatus writes the status of a GatewaySync without a live lead. The status has one writer at a time: the lead or, if there
// is none, the reconciler. The resourceVersion prevents the reconciler from overwriting a lead that starts at this moment.
func (u *Reconciler) writeStatus(ctx context.Context, n *namespace, gs *v1alpha1.GatewaySync, pods podIndex, now time.Time) error {
	lock := n.locks[gs.UID]
	defer func() { n.locks[gs.UID] = lock }()
	if gs.DeletionTimestamp != nil || now.Before(lock.nextRead) {
		return nil
	}
	target, err := kube.SyncTargets(u.Dynamic, gs.Namespace).Get(ctx, gs.Name)
	undecodable, ok := errors.AsType[*kube.UndecodableError](err)
	switch {
	case apierrors.IsNotFound(err):
		target = nil
	case ok:
		target = undecodable.Target()
	case err != nil:
		return fmt.Errorf("SyncTarget %s/%s: %w", gs.Namespace, gs.Name, err)
	}
	if !lock.free(target, now) {
		lock.leadMissing = false
		return nil
	}
	next := leaderless(gs, pods, u.Now())
	ready := meta.FindStatusCondition(next.Conditions, v1alpha1.ConditionReady)
	lock.leadMissing = ready.Reason != string(v1alpha1.ReasonNoGateways)
	if equality.Semantic.DeepEqual(next, &gs.Status) {
		return nil
	}
	change, err := kube.StatusDifference(&gs.Status, next)
	if err != nil {
		return err
	}
	patch, err := kube.StatusPatch(gs, change)
	if err != nil {
		return err
	}
	_, err = kube.GatewaySyncs(u.Dynamic, gs.Namespace).Patch(ctx, gs.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: fieldManager}, "status")
	switch {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return nil // it was written since; the informer will report it
	case err != nil:
		return fmt.Errorf("status of GatewaySync %s/%s: %w", gs.Namespace, gs.Name, err)
	}
	u.Log.Info("status of GatewaySync without lead", "namespace", gs.Namespace, "gatewaysync", gs.Name, "reason", ready.Reason, "message", ready.Message)
	return nil
}

// leaderless returns the status of a GatewaySync without a lead.
func leaderless(gs *v1alpha1.GatewaySync, pods podIndex, now time.Time) *v1alpha1.GatewaySyncStatus {
	l := status.Leaderless{GatewaySync: gs, Awaited: pods.missingSuccessor, Unclaimed: pods.unclaimed, Now: now}
	add := func(list []*corev1.Pod, ending bool) {
		for _, p := range list {
			l.Pods = append(l.Pods, status.Pod{Namespace: p.Namespace, Name: p.Name, UID: p.UID, Agent: inject.Has(p), Ended: ending, Ending: ending,
				Stuck: cmp.Or(pods.whyNoAgent[p.UID], p.Status.Message)})
		}
	}
	add(pods.live, false)
	add(pods.ending, true)
	slices.SortFunc(l.Pods, func(a, b status.Pod) int { return strings.Compare(a.Name, b.Name) })
	return status.WithoutLead(l)
}

// maxUnclaimed bounds the names in a message.
const maxUnclaimed = 5

// podIndex has the pods that ask for an agent or have one, live and terminating.
type podIndex struct {
	live, ending []*corev1.Pod
	// missingSuccessor is why an evicted pod has no successor; empty if none is missing.
	missingSuccessor string
	// whyNoAgent is why pods have no agent, and unclaimed why pods that name no GatewaySync belong to none; empty if there are none.
	whyNoAgent map[types.UID]string
	unclaimed  string
}

// of returns the pods that are gateways of gs, and why other pods belong to no GatewaySync.
func (t podIndex) of(gs *v1alpha1.GatewaySync, all inject.Candidates) podIndex {
	mine := func(pods []*corev1.Pod) (out []*corev1.Pod) {
		for _, p := range pods {
			if belongs(p, gs, all) {
				out = append(out, p)
			}
		}
		return out
	}
	return podIndex{live: mine(t.live), ending: mine(t.ending), unclaimed: t.ambiguous(all)}
}

// ambiguous returns why pods that name no GatewaySync belong to none of several, or "".
func (t podIndex) ambiguous(all inject.Candidates) string {
	var names []string
	why := ""
	for _, p := range t.live {
		if p.Labels[v1alpha1.LabelCRName] != "" || inject.Has(p) {
			continue
		}
		if _, decision := inject.Choose(p, all); decision.Reason == v1alpha1.ReasonGatewaySyncAmbiguous {
			names, why = append(names, p.Name), decision.Message
		}
	}
	if why == "" {
		return ""
	}
	slices.Sort(names)
	return fmt.Sprintf("no agent in pods %s: %s", strings.Join(names[:min(len(names), maxUnclaimed)], ", "), why)
}

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

// lockReadInterval is how often a lock that is being renewed is read.
const lockReadInterval = time.Minute

// lock is the last seen state of a lead's lock. Its times are from our clock, because that of another pod may be wrong.
type lock struct {
	holder, renewed string
	since           time.Time // when this state was first seen
	nextRead        time.Time // when to read the SyncTarget again; zero to read it in every iteration
	leadMissing     bool      // no agent leads, although there are gateways
}

// free updates the lock by the SyncTarget t, sets nextRead, and reports whether no agent leads at the time now: there is no holder, or
// the holder has not renewed the lock within its duration. A released lock counts as free only after LeadDuration, because
// another agent usually takes it at once.
func (l *lock) free(t *v1alpha1.SyncTarget, now time.Time) bool {
	if t == nil {
		*l = lock{}
		return true
	}
	lead := t.Spec.Lead
	if lead.Holder == "" {
		if l.holder != "" || l.since.IsZero() {
			*l = lock{since: now}
		}
		return l.expired(v1alpha1.LeadDuration, now)
	}
	renewed := ""
	if lead.Renewed != nil {
		renewed = lead.Renewed.UTC().Format(time.RFC3339Nano)
	}
	holds := lead.ValidFor()
	if l.holder != lead.Holder || l.renewed != renewed {
		first := l.holder == ""
		*l = lock{holder: lead.Holder, renewed: renewed, since: now, nextRead: now.Add(lockReadInterval)}
		if first {
			l.nextRead = now.Add(holds + holds/3) // nothing is known about this lock yet
		}
		return false
	}
	return l.expired(holds, now)
}

// expired reports whether the state is older than d, and sets nextRead.
func (l *lock) expired(d time.Duration, now time.Time) bool {
	if now.Sub(l.since) > d {
		l.nextRead = time.Time{}
		return true
	}
	l.nextRead = l.since.Add(d + time.Second)
	return false
}
