package ui

import (
	"context"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/hooks/sites"
	"stoker.io/stoker/internal/kube"
)

const (
	// askInterval is how often an API server is asked whether it answers. A watch of one that went silent fails after a minute or later.
	askInterval = 10 * time.Second
	// retryInterval is how often it is asked while it does not answer.
	retryInterval = 3 * time.Second
	// leadsMaxAge is how long a list of SyncTargets is used. Leads renew their locks every few seconds, so a watch would transfer
	// more.
	leadsMaxAge = 3 * time.Second
	// pageWait is how long a page waits for a list of SyncTargets. Then it uses the one before. If the API server does not answer, it is also how
	// long the page of a gateway waits for the agent.
	pageWait = time.Second
	// queryTimeout bounds how long the pages of a gateway and of its files wait for the API server or an agent.
	queryTimeout = 5 * time.Second
)

// site is what the page has read of a cluster, and whether the cluster answers.
type site struct {
	sites.Site
	path    string // before the paths of its pages; "" if there is only one site
	fleets  *kube.Informer[v1alpha1.GatewaySync]
	configs *kube.Informer[v1alpha1.ConfigSync]
	changed func(key string)

	mu         sync.Mutex
	failureErr error     // why the GatewaySyncs cannot be read; nil if they can
	answered   time.Time // when the API server last answered, by the clock of this machine; zero for never
	configErr  error     // why the ConfigSyncs cannot be read; nil if they can

	leadsMu   sync.Mutex
	leads     sites.Leads // Err is context.Canceled until the first list was read
	leadsRead time.Time
	reading   chan struct{} // closed when the list that is being read is there; nil if none is
}

// newSite returns a site. It calls changed with the key of each fleet that changed, or with "" after a change that concerns all pages.
func newSite(from sites.Site, path string, changed func(key string)) (*site, error) {
	x := &site{Site: from, path: path, changed: changed, failureErr: from.Err, leads: sites.Leads{Err: context.Canceled}}
	if from.Err != nil {
		return x, nil //nolint:nilerr // the page shows it
	}
	var err error
	if x.fleets, err = kube.GatewaySyncs(x.Clients.Dynamic, x.Namespace).Informer(nil, x.received); err != nil {
		return nil, err
	}
	if err = x.fleets.OnWatchError(x.watchFailed); err != nil {
		return nil, err
	}
	if x.configs, err = kube.ConfigSyncs(x.Clients.Dynamic, x.Namespace).Informer(nil, func(string, string) { changed(x.key("", "")) }); err != nil {
		return nil, err
	}
	return x, x.configs.OnWatchError(func(error) {}) // keepAsking learns of it
}

// key returns the name of a fleet among those of all sites.
func (x *site) key(namespace, name string) string {
	if x.path == "" {
		return namespace + "/" + name
	}
	return x.path + "/" + namespace + "/" + name
}

// label returns the name of the site on pages; "" if there is only one.
func (x *site) label() string {
	if x.path == "" {
		return ""
	}
	return clean(x.Context, maxWord)
}

// run watches until ctx is done.
func (x *site) run(ctx context.Context) {
	if x.Err != nil {
		return
	}
	var all sync.WaitGroup
	all.Go(func() { x.fleets.Run(ctx) })
	all.Go(func() { x.configs.Run(ctx) })
	all.Go(func() { x.keepAsking(ctx) })
	all.Wait()
}

// watchFailed records an error of the watch.
func (x *site) watchFailed(err error) {
	if !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) { // otherwise the informer lists again
		x.recordAnswer(err)
	}
}

// received records that the API server sent a GatewaySync.
func (x *site) received(namespace, name string) {
	x.mu.Lock()
	x.answered = time.Now()
	x.mu.Unlock()
	x.changed(x.key(namespace, name))
}

// recordAnswer records whether the API server answered a request for GatewaySyncs, and how.
func (x *site) recordAnswer(err error) {
	x.mu.Lock()
	changed := (x.failureErr == nil) != (err == nil)
	if x.failureErr = err; err == nil {
		x.answered = time.Now()
	}
	x.mu.Unlock()
	if changed {
		x.changed("")
	}
}

// failure returns why the GatewaySyncs cannot be read, nil if they can, and when the API server last answered.
func (x *site) failure() (answered time.Time, err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.answered, x.failureErr
}

// keepAsking asks the API server whether it answers, until ctx is done. An informer reports neither a recovery nor a server that accepts
// connections and is silent. One request at a time is open: a program of the kubeconfig that gets credentials may run for any time.
func (x *site) keepAsking(ctx context.Context) {
	answers := make(chan error, 1)
	open := false
	for {
		if !open {
			open = true
			go func() { answers <- x.ask(ctx) }()
		}
		late := time.NewTimer(sites.Deadline)
		select {
		case <-ctx.Done():
		case err := <-answers:
			open = false
			x.recordAnswer(err)
		case <-late.C:
			x.recordAnswer(context.DeadlineExceeded)
		}
		late.Stop()
		if !x.pause(ctx) {
			return
		}
	}
}

// pause waits until the API server is to be asked again. It returns false once ctx is done.
func (x *site) pause(ctx context.Context) bool {
	ticker := time.NewTicker(retryInterval)
	defer ticker.Stop()
	for began := time.Now(); ; {
		select {
		case <-ctx.Done():
			return false
		case <-ticker.C:
		}
		if _, err := x.failure(); err != nil || time.Since(began) >= askInterval-retryInterval/2 {
			return true
		}
	}
}

// ask lists objects with a name that none has: the answer shows that the API server, its etcd, the credentials and the rights work, and is small.
func (x *site) ask(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, sites.Deadline)
	defer cancel()
	none := metav1.ListOptions{Limit: 1, FieldSelector: "metadata.name=stoker-ui-asks"}
	_, _, err := kube.GatewaySyncs(x.Clients.Dynamic, x.Namespace).List(ctx, none)
	if err != nil {
		return err
	}
	_, _, errConfigs := kube.ConfigSyncs(x.Clients.Dynamic, x.Namespace).List(ctx, none)
	if apierrors.IsNotFound(errConfigs) { // the kind is not installed
		errConfigs = nil
	}
	x.mu.Lock()
	changed := (x.configErr == nil) != (errConfigs == nil)
	x.configErr = errConfigs
	x.mu.Unlock()
	if changed {
		x.changed(x.key("", ""))
	}
	return nil
}

// readLeads returns which fleets have a lead. The list is shared by all pages and reused for leadsMaxAge. A page waits for it at most for
// pageWait, and not at all while the API server does not answer.
func (x *site) readLeads(ctx context.Context) sites.Leads {
	_, err := x.failure()
	x.leadsMu.Lock()
	if err != nil || time.Since(x.leadsRead) < leadsMaxAge {
		defer x.leadsMu.Unlock()
		return x.leads
	}
	if x.reading == nil {
		x.reading = make(chan struct{})
		go x.refreshLeads(x.reading)
	}
	reading := x.reading
	x.leadsMu.Unlock()
	timer := time.NewTimer(pageWait)
	defer timer.Stop()
	select {
	case <-reading:
	case <-ctx.Done():
	case <-timer.C:
	}
	x.leadsMu.Lock()
	defer x.leadsMu.Unlock()
	return x.leads
}

// refreshLeads reads the leads and closes done.
func (x *site) refreshLeads(done chan<- struct{}) {
	ctx, cancel := context.WithTimeout(context.Background(), sites.Deadline) // the page that asked first may be closed before the others
	defer cancel()
	l := sites.ReadLeads(ctx, x.Clients.Dynamic, x.Namespace)
	x.leadsMu.Lock()
	x.leads, x.leadsRead, x.reading = l, time.Now(), nil
	x.leadsMu.Unlock()
	close(done)
}
