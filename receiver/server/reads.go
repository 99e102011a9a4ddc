package server

import (
	"context"
	"sync"
	"time"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/receiver/queue"
)

// observation is an object as the API server has it, and the SyncTarget of a GatewaySync that has succeeded; nil if it is not known.
type observation struct {
	object v1alpha1.Requestable
	target *v1alpha1.SyncTarget
	err    error
}

// sharedReads reads an object once for all callers that wait for it. A caller never gets a read that began before its call. After a
// read of an object there is a pause, so that many calls for one object do not delay the reads of others.
type sharedReads struct {
	read  func(context.Context, queue.Key) observation
	slots chan struct{} // of reads at the same time

	closing chan struct{}
	workers sync.WaitGroup

	mu      sync.Mutex
	objects map[queue.Key]*objectReads
}

// objectReads has the state of one object. It exists while a read is due, runs, or was made a moment ago.
type objectReads struct{ next *pendingRead }

type pendingRead struct {
	done chan struct{}
	seen observation
}

const (
	// firstReadPause and maxReadPause bound the pause after a read of an object. It doubles while there are calls.
	firstReadPause, maxReadPause = 50 * time.Millisecond, 500 * time.Millisecond
	// maxReads is the number of reads at the same time.
	maxReads = 8
)

func newSharedReads(read func(context.Context, queue.Key) observation) *sharedReads {
	return &sharedReads{read: read, slots: make(chan struct{}, maxReads), closing: make(chan struct{}), objects: map[queue.Key]*objectReads{}}
}

// get returns the object of key as it is now, or the error of the read or of ctx.
func (s *sharedReads) get(ctx context.Context, key queue.Key) observation {
	s.mu.Lock()
	reads := s.objects[key]
	if reads == nil {
		reads = &objectReads{}
		s.objects[key] = reads
		s.workers.Go(func() { s.serve(key, reads) })
	}
	if reads.next == nil {
		reads.next = &pendingRead{done: make(chan struct{})}
	}
	next := reads.next
	s.mu.Unlock()
	select {
	case <-next.done:
		return next.seen
	case <-ctx.Done():
		return observation{err: ctx.Err()}
	}
}

// serve makes the reads of one object until there are no more calls.
func (s *sharedReads) serve(key queue.Key, reads *objectReads) {
	for pause := firstReadPause; ; pause = min(2*pause, maxReadPause) {
		s.mu.Lock()
		next := reads.next
		reads.next = nil
		if next == nil {
			delete(s.objects, key)
		}
		s.mu.Unlock()
		if next == nil {
			return
		}
		s.slots <- struct{}{} // the wait is bounded, because every holder has a deadline
		ctx, cancel := context.WithTimeout(context.Background(), readTimeout)
		next.seen = s.read(ctx, key)
		cancel()
		<-s.slots
		close(next.done)
		select {
		case <-time.After(pause):
		case <-s.closing:
		}
	}
}

// close waits for the reads. No caller may be left.
func (s *sharedReads) close() {
	close(s.closing)
	s.workers.Wait()
}
