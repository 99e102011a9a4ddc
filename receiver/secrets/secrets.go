// Package secrets reads the Secrets that GatewaySyncs and ConfigSyncs reference, ahead of the requests. No request waits for a read, so the
// duration of a request does not reveal whether a Secret exists.
package secrets

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/internal/secret"
	"stoker.io/stoker/receiver/credential"
)

const (
	// loopInterval is the interval of the loop. freshTime is the pause after a successful read, so that a new value is known
	// within 30 seconds. maxRetryInterval is the longest pause after a failed read. The first pauses are shorter, because the
	// right to read may be granted a moment later.
	loopInterval, freshTime, maxRetryInterval = time.Second, 25 * time.Second, 10 * time.Second
	// staleTime is how long the last value is used while the API server does not answer.
	staleTime = 10 * time.Minute
	// forbiddenGrace is how long the cache keeps the value of a Secret that it may no longer read: a restarted API server
	// forbids everything until it has loaded the roles.
	forbiddenGrace = 20 * time.Second
	// unsureTime is how long the cache is unsure after a read without an answer. The next read comes before its end.
	unsureTime = maxRetryInterval + 2*readTimeout
	// readTimeout limits a read, maxParallel the number of parallel reads, and maxRound the number of reads of a round. New Secrets
	// are read first, but take at most half of a round if others are due.
	readTimeout, maxParallel, maxRound = 3 * time.Second, 8, 32
	// maxEntries bounds the number of Secrets.
	maxEntries = 4096
	// logInterval is how often the same problem of a Secret is logged.
	logInterval = 10 * time.Minute
)

// Account is the ServiceAccount of the receiver.
const Account = "stoker-receiver"

// role is the name of the Role that the chart creates for reading Secrets. An additional Role appends the name of the Secret.
const role = "stoker-receiver-secrets"

// Ref is a key of a Secret.
type Ref struct{ Namespace, Name, Key string }

// Config configures a Cache.
type Config struct {
	Client kube.Core
	// Namespace is the receiver's own, for messages about missing rights.
	Namespace string
	Log       *slog.Logger
	// Refs returns the references to all secrets, or false while they are unknown.
	Refs func() ([]Ref, bool)
	// OnRead, if not nil, is called with the outcome of each read: read, missing, forbidden or failed.
	OnRead func(result string)
}

// Cache reads and caches Secrets.
type Cache struct {
	Config
	woken chan struct{}

	mu          sync.Mutex
	entries     map[Ref]*entry
	unsureUntil time.Time
	answered    time.Time // last answer about any Secret, other than forbidden
	unread      bool      // the cache has not tried yet to read some Secret
	complete    bool      // at some time, the cache had tried to read every Secret
	fullLogged  time.Time
}

type entry struct {
	values           []secret.String
	read             time.Time // when the values were read
	nextRead         time.Time // when to read again
	failedSince      time.Time // when reads began to fail
	failedAloneSince time.Time // when reads began to fail while others succeed
	forbiddenSince   time.Time // when reads began to be forbidden
	lastProblem      string
	problemLogged    time.Time
}

// New returns a Cache. It is empty until Run.
func New(c Config) *Cache {
	if c.OnRead == nil {
		c.OnRead = func(string) {}
	}
	return &Cache{Config: c, woken: make(chan struct{}, 1), entries: map[Ref]*entry{}, unread: true}
}

// Unsure reports whether values may be missing although the Secrets have them: the API server did not answer recently, or a referenced
// Secret has not been read yet. If the API server fails for one Secret only, for example because its encryption key is lost, the cache
// is unsure only for staleTime.
func (v *Cache) Unsure() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.unread || time.Now().Before(v.unsureUntil)
}

// Complete reports whether the cache has tried to read every referenced Secret. Once true, it stays true, even with new references.
func (v *Cache) Complete() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.complete
}

// Values returns the last values of a secret, or none if it cannot be read. The log says why, and what to do.
func (v *Cache) Values(ref Ref) []secret.String {
	v.mu.Lock()
	defer v.mu.Unlock()
	if e := v.entries[ref]; e != nil {
		return e.values
	}
	return nil
}

// Add says that Refs may have a new reference. If the cache lacks it, Run calls Refs and reads its Secret at once.
func (v *Cache) Add(ref Ref) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.entries[ref] == nil {
		v.unread = true
		select {
		case v.woken <- struct{}{}:
		default:
		}
	}
}

// Run reads until ctx is done.
func (v *Cache) Run(ctx context.Context) error {
	ticker := time.NewTicker(loopInterval)
	defer ticker.Stop()
	for {
		for due := v.due(time.Now()); len(due) > 0 && ctx.Err() == nil; due = v.due(time.Now()) {
			var group errgroup.Group
			group.SetLimit(maxParallel)
			for _, ref := range due {
				group.Go(func() error {
					v.refresh(ctx, ref)
					return nil
				})
			}
			_ = group.Wait() // never fails
		}
		select {
		case <-ctx.Done():
			return nil
		case <-v.woken:
		case <-ticker.C:
		}
	}
}

// due drops Secrets that are no longer referenced and returns those to read now: new ones first, but they take at most half of a round if others
// are due. If there are too many, each namespace keeps its first ones, so one namespace cannot displace the Secrets of the others.
func (v *Cache) due(now time.Time) []Ref {
	named, ok := v.Refs()
	v.mu.Lock()
	defer v.mu.Unlock()
	if !ok {
		return nil
	}
	slices.SortFunc(named, func(a, b Ref) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Key, b.Key))
	})
	named = slices.Compact(named)
	rank := make(map[Ref]int, len(named)) // within its namespace
	for i, ref := range named {
		if i > 0 && named[i-1].Namespace == ref.Namespace {
			rank[ref] = rank[named[i-1]] + 1
		}
	}
	slices.SortStableFunc(named, func(a, b Ref) int { return cmp.Compare(rank[a], rank[b]) })
	if len(named) > maxEntries {
		if now.Sub(v.fullLogged) >= logInterval {
			v.fullLogged = now
			v.Log.Error("too many secrets; some requests are refused", "named", len(named), "read", maxEntries)
		}
		named = named[:maxEntries]
	}
	kept := make(map[Ref]*entry, len(named))
	var unread, due []Ref
	for _, ref := range named {
		switch e := v.entries[ref]; {
		case e == nil:
			unread = append(unread, ref)
		case !now.Before(e.nextRead):
			due = append(due, ref)
			fallthrough
		default:
			kept[ref] = e
		}
	}
	v.entries, v.unread, v.complete = kept, len(unread) > 0, v.complete || len(unread) == 0
	slices.SortFunc(due, func(a, b Ref) int { return kept[a].nextRead.Compare(kept[b].nextRead) })
	round := append(unread[:min(len(unread), maxRound-min(len(due), maxRound/2))], due...)
	return round[:min(len(round), maxRound)]
}

func (v *Cache) refresh(ctx context.Context, ref Ref) {
	within, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	values, err := v.get(within, ref)
	if ctx.Err() != nil {
		return
	}
	now := time.Now()
	v.mu.Lock()
	defer v.mu.Unlock()
	e := v.entries[ref]
	if e == nil {
		e = &entry{}
		v.entries[ref] = e
	}
	if err == nil {
		*e = entry{values: values, read: now, nextRead: now.Add(freshTime)}
		v.answered = now
		v.OnRead("read")
		return
	}
	if e.failedSince.IsZero() {
		e.failedSince = now
	}
	e.nextRead = now.Add(min(max(now.Sub(e.failedSince), loopInterval), maxRetryInterval))
	result := outcome(err)
	v.OnRead(result)
	switch {
	case result == "forbidden": // the API server decides this without its store
		e.failedAloneSince = time.Time{}
	case result != "failed":
		v.answered, e.failedAloneSince = now, time.Time{}
	case now.Sub(v.answered) >= freshTime+unsureTime: // no Secret gets an answer
		e.failedAloneSince = time.Time{}
	case e.failedAloneSince.IsZero():
		e.failedAloneSince = now
	}
	switch {
	case result != "forbidden":
		e.forbiddenSince = time.Time{}
	case e.forbiddenSince.IsZero():
		e.forbiddenSince = now
	}
	switch {
	case result == "failed":
		if e.failedAloneSince.IsZero() || now.Sub(e.failedAloneSince) < staleTime {
			v.unsureUntil = now.Add(unsureTime)
		}
		if now.Sub(e.read) > staleTime {
			e.values = nil
		}
	case result == "forbidden" && e.values != nil && now.Sub(e.forbiddenSince) < forbiddenGrace:
		v.unsureUntil = now.Add(unsureTime)
		return
	default:
		e.values = nil
	}
	v.logProblem(ref, e, err, now)
}

// outcome classifies an unsuccessful read. The outcome is "failed" if the API server said nothing about the Secret, for example because
// it rejected the receiver's token.
func outcome(err error) string {
	switch {
	case isContentError(err):
		return "missing"
	case apierrors.IsForbidden(err):
		return "forbidden"
	case kube.Transient(err), apierrors.IsUnauthorized(err):
		return "failed"
	}
	return "missing"
}

// contentError means that a Secret exists but has no usable value.
type contentError struct{ text string }

func (e *contentError) Error() string { return e.text }

func isContentError(err error) bool {
	_, ok := errors.AsType[*contentError](err)
	return ok
}

func (v *Cache) get(ctx context.Context, ref Ref) ([]secret.String, error) {
	s, err := v.Client.CoreV1().Secrets(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return valuesOf(s, ref)
}

func valuesOf(s *corev1.Secret, ref Ref) ([]secret.String, error) {
	content, ok := s.Data[ref.Key]
	if !ok {
		return nil, &contentError{fmt.Sprintf("it has no key %s", ref.Key)}
	}
	values, ok := credential.Values(content)
	switch {
	case !ok:
		return nil, &contentError{fmt.Sprintf("its key %s has more than %d lines: a secret has one value per line", ref.Key, credential.MaxValues)}
	case len(values) == 0:
		return nil, &contentError{fmt.Sprintf("its key %s is empty: an empty secret would admit every caller", ref.Key)}
	}
	return values, nil
}

// logProblem logs a problem once, and again after logInterval.
func (v *Cache) logProblem(ref Ref, e *entry, err error, now time.Time) {
	what := err.Error()
	if what == e.lastProblem && now.Sub(e.problemLogged) < logInterval {
		return
	}
	e.lastProblem, e.problemLogged = what, now
	args := []any{"namespace", ref.Namespace, "secret", ref.Name, "key", ref.Key, "error", what}
	if apierrors.IsForbidden(err) {
		v.Log.Error("secret may not be read; requests are refused", append(args, "do", GrantCommand(ref, v.Namespace, Account))...)
		return
	}
	v.Log.Error("secret cannot be used; requests are refused", args...)
}

// GrantCommand returns the command that grants a ServiceAccount the right to read a Secret.
func GrantCommand(ref Ref, namespace, account string) string {
	own := role + "-" + ref.Name
	return fmt.Sprintf("kubectl create role %s -n %s --verb=get --resource=secrets --resource-name=%s && kubectl create rolebinding %s -n %s --role=%s --serviceaccount=%s:%s",
		own, ref.Namespace, ref.Name, own, ref.Namespace, own, namespace, account)
}
