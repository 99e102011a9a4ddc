package reconcile

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	"stoker.io/stoker/internal/lease"
)

const (
	// annotationEvicted of the Lease records evictions until the successor, the pod that replaces the evicted one, has started.
	annotationEvicted = "stoker.io/evicted"
	// recordLifetime is how long a successor is expected. After that, the owner is assumed to be deleted or scaled down on
	// purpose, and no pod from the time of the eviction is still young enough to be evicted.
	recordLifetime = time.Hour
	// maxEvicted bounds the records, so that the annotation does not exceed the limit of an object.
	maxEvicted = 500
	// loadInterval is the pause between attempts to read the records.
	loadInterval = time.Second
)

var errFull = fmt.Errorf("no more pods are evicted until the successors of %d evicted pods have started", maxEvicted)

// eviction is the eviction of a pod whose successor has not started yet.
type eviction struct {
	Namespace   string    `json:"namespace"`
	GatewaySync string    `json:"gatewaySync"`
	Pod         string    `json:"pod"`
	UID         types.UID `json:"uid"`
	Owner       types.UID `json:"owner"`
	// By is the owner's kind and name, for messages.
	By string `json:"by"`
	// Deployment is the name of the owner's Deployment, or "".
	Deployment string `json:"deployment,omitempty"`
	// Newest is when the youngest pod of the owner, or of its Deployment, was created. Successors are younger.
	Newest metav1.Time `json:"newest"`
	At     metav1.Time `json:"at"`
	// Recreated means that a successor existed but did not start.
	Recreated bool `json:"recreated,omitempty"`
}

// evictionStore records evictions, at most one for each GatewaySync, before they happen. It stores them in the Lease: the next replica
// reads them, and a replica that lost the Lease can no longer write.
type evictionStore struct {
	lease lease.Lease
	now   func() time.Time

	mu      sync.Mutex
	evicted map[types.UID]eviction // by GatewaySync
}

// load reads the records of the previous replica. It retries until it succeeds or ctx is done.
func (l *evictionStore) load(ctx context.Context, log *slog.Logger) {
	_ = wait.PollUntilContextCancel(ctx, loadInterval, true, func(ctx context.Context) (bool, error) {
		text, err := l.lease.Read(ctx, annotationEvicted)
		if err != nil {
			log.Warn("reading the Lease failed", "error", err)
			return false, nil
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		l.evicted = map[types.UID]eviction{}
		if text != "" {
			if err := json.Unmarshal([]byte(text), &l.evicted); err != nil {
				log.Error("dropping invalid eviction records", "annotation", annotationEvicted, "error", err)
				l.evicted = map[types.UID]eviction{}
			}
		}
		return true, nil
	}) // the caller checks ctx
}

// of returns the recorded eviction of a GatewaySync, and whether there is one.
func (l *evictionStore) of(gs types.UID) (eviction, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e, ok := l.evicted[gs]
	return e, ok && l.now().Sub(e.At.Time) < recordLifetime
}

func (l *evictionStore) put(ctx context.Context, gs types.UID, e eviction) error {
	return l.write(ctx, func(all map[types.UID]eviction) error {
		if _, ok := all[gs]; !ok && len(all) >= maxEvicted {
			return errFull
		}
		all[gs] = e
		return nil
	})
}

func (l *evictionStore) drop(ctx context.Context, gs types.UID) error {
	return l.write(ctx, func(all map[types.UID]eviction) error {
		delete(all, gs)
		return nil
	})
}

func (l *evictionStore) write(ctx context.Context, change func(map[types.UID]eviction) error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	next := maps.Clone(l.evicted)
	maps.DeleteFunc(next, func(_ types.UID, e eviction) bool { return l.now().Sub(e.At.Time) >= recordLifetime })
	if err := change(next); err != nil {
		return err
	}
	text, err := json.Marshal(next)
	if err != nil {
		return err
	}
	if len(next) == 0 {
		text = nil
	}
	if err := l.lease.Write(ctx, annotationEvicted, string(text), fieldManager); err != nil {
		return fmt.Errorf("record the eviction: %w", err)
	}
	l.evicted = next
	return nil
}
