package lead

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/gatewaypod"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/internal/status"
)

// serve starts the watches that only a lead needs, waits for them, and runs a term.
func (l *Lead) serve(ctx context.Context, gs *v1alpha1.GatewaySync, syncs *kube.Informer[v1alpha1.GatewaySync], changed chan struct{}, log *slog.Logger) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := l.awaitCurrent(ctx, syncs); err != nil {
		return err
	}
	s := &apiFleet{Lead: l, uid: gs.UID, syncs: syncs, wake: changed}
	var err error
	s.reportInformer, err = kube.SyncReports(l.Clients.Dynamic, l.Namespace).Informer(func(o *metav1.ListOptions) {
		o.LabelSelector = reportSelector(l.GatewaySync)
	}, func(string, string) { signal(changed) })
	if err != nil {
		return err
	}
	s.podInformer, err = watchPods(l.Clients.Core, l.Namespace, func() { signal(changed) })
	if err != nil {
		return err
	}
	go s.reportInformer.Run(ctx)
	go s.podInformer.RunWithContext(ctx)
	waiting, over := context.WithTimeout(ctx, maxList)
	defer over()
	if !waitUntil(waiting, func() bool { return s.reportInformer.HasSynced() && s.podInformer.HasSynced() }) {
		return fmt.Errorf("SyncReports and pods cannot be listed: does the pods' ServiceAccount have the right? (waited %s)", maxList)
	}
	poll := &poller{connect: l.Connect, store: l.Store}
	defer poll.close()
	t := newTerm(s, poll.poll, l.Metrics, log, l.Now)
	t.eligible, t.rotated, t.stamp = l.Eligible, l.secretChanges.Load, l.Clients.Now
	if l.Store != nil {
		t.subject = l.Store.Subject
	}
	return t.run(ctx)
}

// maxReads is how often a lead reads the GatewaySync, with doubling pauses of up to 16 seconds, until the watch shows the same version.
const maxReads = 5

// awaitCurrent waits until the watch shows the current GatewaySync. The first list of an informer may come from the cache of an API
// server that lags behind. A lead that used it could revert a request that its predecessor has published.
func (l *Lead) awaitCurrent(ctx context.Context, syncs *kube.Informer[v1alpha1.GatewaySync]) error {
	for n := range maxReads {
		asking, cancel := context.WithTimeout(ctx, requestTimeout)
		is, err := versionOf(l.lock.syncs.Get(asking, l.GatewaySync))
		cancel()
		if apierrors.IsNotFound(err) {
			return errGone
		} else if err != nil {
			return err
		}
		waiting, over := context.WithTimeout(ctx, time.Second<<n)
		same := waitUntil(waiting, func() bool {
			seen, err := versionOf(syncs.Get(l.Namespace, l.GatewaySync))
			return err == nil && seen == is
		})
		over()
		if same {
			return nil
		}
	}
	return errWatchStalled
}

func versionOf(gs *v1alpha1.GatewaySync, err error) (string, error) {
	if bad, ok := errors.AsType[*kube.UndecodableError](err); ok {
		return bad.Object.GetResourceVersion(), nil
	}
	if err != nil {
		return "", err
	}
	return gs.ResourceVersion, nil
}

// maxList is how long a lead waits for its lists.
const maxList = time.Minute

// watchPods watches all pods of a namespace. Gateways have a label, but a pod that asks for an agent and has none does not, and
// annotations cannot be selected. Of other pods it keeps little more than the name.
func watchPods(client kube.Core, namespace string, changed func()) (cache.SharedIndexInformer, error) {
	in := cache.NewSharedIndexInformer(kube.ListWatch(client.CoreV1().Pods(namespace), nil, nil), &corev1.Pod{}, 0, cache.Indexers{})
	if err := in.SetTransform(stripped); err != nil {
		return nil, err
	}
	ours := func(obj any) bool {
		if d, ok := obj.(cache.DeletedFinalStateUnknown); ok {
			obj = d.Obj
		}
		p, ok := obj.(*corev1.Pod)
		return ok && len(p.Labels)+len(p.Annotations) > 0
	}
	notify := func(obj any) {
		if ours(obj) {
			changed()
		}
	}
	_, err := in.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: notify, DeleteFunc: notify,
		UpdateFunc: func(was, is any) {
			if ours(was) || ours(is) {
				changed()
			}
		},
	})
	return in, err
}

// apiFleet implements fleet for an API server.
type apiFleet struct {
	*Lead
	uid            types.UID
	syncs          *kube.Informer[v1alpha1.GatewaySync]
	reportInformer *kube.Informer[v1alpha1.SyncReport]
	podInformer    cache.SharedIndexInformer
	wake           chan struct{}

	isSole bool
	soleAt time.Time // when to ask again for isSole
}

var _ fleet = (*apiFleet)(nil)

func (s *apiFleet) changed() <-chan struct{} { return s.wake }

func (s *apiFleet) sync() (*v1alpha1.GatewaySync, error) {
	gs, err := s.syncs.Get(s.Namespace, s.GatewaySync)
	if bad, ok := errors.AsType[*kube.UndecodableError](err); ok {
		gs = metadataAndStatus(bad.Object)
	}
	if gs == nil || gs.UID != s.uid || gs.DeletionTimestamp != nil {
		return nil, errGone
	}
	return gs, err
}

func (s *apiFleet) reports() ([]*v1alpha1.SyncReport, map[string]error) {
	unreadable := map[string]error{}
	for _, bad := range s.reportInformer.Undecodable() {
		unreadable[bad.Name] = bad
	}
	return s.reportInformer.List(), unreadable
}

func (s *apiFleet) pods() []status.Pod {
	var list []status.Pod
	for _, obj := range s.podInformer.GetStore().List() {
		p, ok := obj.(*corev1.Pod)
		if !ok || len(p.Labels)+len(p.Annotations) == 0 {
			continue
		}
		list = append(list, podOf(p))
	}
	return list
}

const (
	// soleCached is how long the result of sole is cached.
	soleCached = 5 * time.Minute
	// soleRetry is the pause after a query that failed.
	soleRetry = 10 * time.Second
)

// sole implements fleet. It queries the API server rarely, and only if a pod does not name its GatewaySync. If a query fails, the last answer
// stays. Before the first answer, the GatewaySync counts as the only one: a pod that may belong to it must not vanish from the status.
func (s *apiFleet) sole(ctx context.Context) bool {
	nameless := false
	for _, p := range s.pods() {
		nameless = nameless || p.Nameless()
	}
	if !nameless {
		return false
	}
	if now := s.Now(); !now.Before(s.soleAt) {
		first := s.soleAt.IsZero()
		ctx, cancel := context.WithTimeout(ctx, requestTimeout)
		defer cancel()
		list, undecodable, err := s.lock.syncs.List(ctx, metav1.ListOptions{Limit: 2})
		if err == nil {
			s.isSole, s.soleAt = len(list)+len(undecodable) == 1, now.Add(soleCached)
		} else {
			s.isSole, s.soleAt = s.isSole || first, now.Add(soleRetry)
		}
	}
	return s.isSole
}

func (s *apiFleet) target() v1alpha1.SyncTargetSpec { return s.lock.spec() }

func (s *apiFleet) writeTarget(ctx context.Context, change func(*v1alpha1.SyncTargetSpec)) error {
	return s.lock.write(ctx, change)
}

func (s *apiFleet) readTarget(ctx context.Context) error { return s.lock.read(ctx) }

func (s *apiFleet) writeStatus(ctx context.Context, gs *v1alpha1.GatewaySync, change map[string]any) (*v1alpha1.GatewaySync, error) {
	patch, err := kube.StatusPatch(gs, change)
	if err != nil {
		return nil, err
	}
	ctx, cancel, err := s.lock.confirm(ctx)
	if err != nil {
		return nil, err
	}
	defer cancel()
	return s.lock.syncs.Patch(ctx, gs.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: statusManager}, "status")
}

func (s *apiFleet) sendEvents(gs *v1alpha1.GatewaySync, events []status.Event) {
	s.events.send(gs, events...)
}

// stripped is the transform of the informer. It keeps only what the lead needs, because the namespace may have many other pods.
func stripped(obj any) (any, error) {
	p, ok := obj.(*corev1.Pod)
	if !ok {
		return obj, nil
	}
	s := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: p.Namespace, Name: p.Name, UID: p.UID, ResourceVersion: p.ResourceVersion, DeletionTimestamp: p.DeletionTimestamp,
		Labels: only(p.Labels, v1alpha1.LabelCRName, v1alpha1.LabelInjection, "app.kubernetes.io/name", "app.kubernetes.io/instance",
			"apps.kubernetes.io/pod-index", "statefulset.kubernetes.io/pod-name"),
		Annotations: only(p.Annotations, gatewaypod.Prefix, gatewaypod.OlderPrefix),
	}}
	s.Status.Phase = p.Status.Phase
	if len(s.Labels)+len(s.Annotations) == 0 {
		return s, nil // not a gateway
	}
	if why := kube.Stuck(p); why != kube.Pending { // the time before a pod's first report needs no message
		s.Status.Message = why
	}
	for _, containers := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range containers {
			if containers[i].Name == gatewaypod.AgentContainer && !gatewaypod.IsForeignAgent(&containers[i]) {
				s.Spec.Containers = []corev1.Container{{Name: gatewaypod.AgentContainer}}
			}
		}
	}
	return s, nil
}

func only(from map[string]string, prefixes ...string) map[string]string {
	var to map[string]string
	for k, v := range from {
		for _, p := range prefixes {
			if strings.HasPrefix(k, p) {
				if to == nil {
					to = map[string]string{}
				}
				to[k] = v
				break
			}
		}
	}
	return to
}

// podOf converts a pod. Agent and Stuck are right only if stripped has reduced the pod.
func podOf(p *corev1.Pod) status.Pod {
	over := p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
	return status.Pod{
		Namespace: p.Namespace, Name: p.Name, UID: p.UID, Labels: p.Labels, Annotations: p.Annotations,
		Agent: len(p.Spec.Containers) > 0,
		Ended: p.DeletionTimestamp != nil || over, Ending: p.DeletionTimestamp != nil && !over, Stuck: p.Status.Message,
	}
}
