package ui

import (
	"context"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/hooks/leads"
	"stoker.io/stoker/internal/kube"
)

const (
	// probeInterval is how often a list is read after a failed watch, because the informer does not report recovery.
	probeInterval = 3 * time.Second
	// leadsMaxAge is how long a list of SyncTargets is used. Leads renew their locks every few seconds, so a watch would transfer
	// more.
	leadsMaxAge = 3 * time.Second
	// queryTimeout bounds how long a page waits for the API server or an agent.
	queryTimeout = 5 * time.Second
)

// watcher holds the GatewaySyncs of the cluster, and notifies subscribers of changes.
type watcher struct {
	clients   kube.Clients
	namespace string // "" for all
	fleets    *kube.Informer[v1alpha1.GatewaySync]

	mu          sync.Mutex
	failureErr  error // of the watch; nil if it works
	failedSince time.Time
	subscribers map[chan struct{}]string // values are fleets, as namespace/name; "" for all

	leadsMu   sync.Mutex
	leads     leads.Leads
	leadsRead time.Time
}

func newWatcher(clients kube.Clients, namespace string) (*watcher, error) {
	w := &watcher{clients: clients, namespace: namespace, subscribers: map[chan struct{}]string{}}
	var err error
	if w.fleets, err = kube.GatewaySyncs(clients.Dynamic, namespace).Informer(nil, w.notify); err != nil {
		return nil, err
	}
	return w, w.fleets.OnWatchError(w.setFailure)
}

// run watches until ctx is done.
func (w *watcher) run(ctx context.Context) {
	var all sync.WaitGroup
	all.Go(func() { w.fleets.Run(ctx) })
	all.Go(func() { w.probe(ctx) })
	all.Wait()
}

// setFailure records an error of the watch.
func (w *watcher) setFailure(err error) {
	if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) { // the informer lists again
		return
	}
	w.mu.Lock()
	first := w.failureErr == nil
	if w.failureErr = err; first {
		w.failedSince = w.clients.Now()
	}
	w.mu.Unlock()
	if first {
		w.notify("", "")
	}
}

// failure returns why and since when the GatewaySyncs cannot be read; nil if they can.
func (w *watcher) failure() (since time.Time, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.failedSince, w.failureErr
}

// probe removes the failure when the GatewaySyncs can be listed again. It returns when ctx is done.
func (w *watcher) probe(ctx context.Context) {
	ticker := time.NewTicker(probeInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if _, err := w.failure(); err == nil {
			continue
		}
		queryCtx, cancel := context.WithTimeout(ctx, queryTimeout)
		_, _, err := kube.GatewaySyncs(w.clients.Dynamic, w.namespace).List(queryCtx, metav1.ListOptions{Limit: 1})
		cancel()
		if err == nil {
			w.mu.Lock()
			w.failureErr = nil
			w.mu.Unlock()
			w.notify("", "")
		}
	}
}

// notify notifies the subscribers of a fleet, or all if the name is "".
func (w *watcher) notify(namespace, name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for ch, follows := range w.subscribers {
		if name != "" && follows != "" && follows != namespace+"/"+name {
			continue
		}
		select {
		case ch <- struct{}{}:
		default: // it has not received the last one yet
		}
	}
}

// subscribe returns a channel that receives a value when a fleet changes, and a function that ends the subscription. The fleet is
// namespace/name, or "" for all. It returns nil if there are too many subscribers.
func (w *watcher) subscribe(fleet string) (<-chan struct{}, func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.subscribers) >= maxStreams {
		return nil, nil
	}
	ch := make(chan struct{}, 1)
	w.subscribers[ch] = fleet
	return ch, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.subscribers, ch)
	}
}

// readLeads returns which fleets have a lead. One request at a time reads the leads; the result is reused for leadsMaxAge.
func (w *watcher) readLeads(ctx context.Context) leads.Leads {
	w.leadsMu.Lock()
	defer w.leadsMu.Unlock()
	if time.Since(w.leadsRead) < leadsMaxAge {
		return w.leads
	}
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	l := leads.Read(ctx, w.clients.Dynamic, w.namespace)
	if l.Err == nil || ctx.Err() == nil { // otherwise the client of the page may be gone, and the next request reads again
		w.leads, w.leadsRead = l, time.Now()
	}
	return l
}
