// Package vault reads the Secrets that GatewaySyncs name, ahead of the requests: none waits for a read, so that its time says
// nothing of what is there.
package vault

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
	"k8s.io/client-go/kubernetes"

	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/internal/secret"
	"stoker.io/stoker/receiver/credential"
)

const (
	// every is how often is looked what is due. freshFor is how long what was read counts, so that a new value is known in
	// half a minute, and retryAfter how long it is at most when nothing could be read: at first less, as the right may come a
	// moment later.
	every, freshFor, retryAfter = time.Second, 25 * time.Second, 10 * time.Second
	// staleFor is how long the last value goes on counting while the API server does not answer.
	staleFor = 10 * time.Minute
	// sureAfter is when it counts that a Secret may not be read which was read before: an API server that has just started
	// refuses everything until it has read the roles.
	sureAfter = 20 * time.Second
	// awayFor is how long after a read that got no answer nobody is told from anybody: longer than until the next one.
	awayFor = retryAfter + 2*readWithin
	// readWithin bounds a read, atOnce how many there are at a time, and round how many before what is new gets its turn.
	readWithin, atOnce, round = 3 * time.Second, 8, 32
	// maxEntries bounds what is read and remembered.
	maxEntries = 4096
	// sayAgain is how often one problem with one Secret is logged.
	sayAgain = 10 * time.Minute
)

// Account is the ServiceAccount that the receiver runs as.
const Account = "stoker-receiver"

// role is how the right to read Secrets is called where the chart gives it. What is to be made beside it has the name of the
// Secret behind.
const role = "stoker-receiver-secrets"

// Place is where a secret is.
type Place struct{ Namespace, Name, Key string }

// Config is what a Vault needs.
type Config struct {
	Client kubernetes.Interface
	// Namespace is the receiver's own, for what is said about missing rights.
	Namespace string
	Log       *slog.Logger
	// Named returns the places of all secrets; false while they are not known.
	Named func() ([]Place, bool)
	// Read, which may be nil, is told the outcome of each read: read, missing, forbidden or failed.
	Read func(result string)
}

// Vault reads Secrets.
type Vault struct {
	Config
	woken chan struct{}

	mu       sync.Mutex
	entries  map[Place]*entry
	away     time.Time
	answered time.Time // when the API server last said something of a Secret
	behind   bool      // something was never read
	complete bool      // and once nothing was
	saidFull time.Time
}

type entry struct {
	values []secret.String
	read   time.Time // when the values were
	until  time.Time // when to read again
	failed time.Time // since when it cannot be read
	alone  time.Time // since when that is so while others are answered
	// refused is since when it may not be read.
	refused time.Time
	said    string
	saidAt  time.Time
}

// New makes a Vault. It holds nothing until it runs.
func New(c Config) *Vault {
	if c.Read == nil {
		c.Read = func(string) {}
	}
	return &Vault{Config: c, woken: make(chan struct{}, 1), entries: map[Place]*entry{}, behind: true}
}

// Unsure reports whether "no values" says nothing: the API server did not answer lately, or a Secret that is named has not
// been read yet. One that it does not answer for while it does for others (it was encrypted with a key that is gone) is
// reason enough for as long as its last value would count, and then its own matter.
func (v *Vault) Unsure() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.behind || time.Now().Before(v.away)
}

// Complete reports whether everything that is named was read once, or cannot be.
func (v *Vault) Complete() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.complete
}

// Values returns the values of a secret as they were read last; none where it cannot be read, which is logged with what to do.
func (v *Vault) Values(p Place) []secret.String {
	v.mu.Lock()
	defer v.mu.Unlock()
	if e := v.entries[p]; e != nil {
		return e.values
	}
	return nil
}

// Wants says that a place is named now. It is read at once where it is new.
func (v *Vault) Wants(p Place) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.entries[p] == nil {
		v.behind = true
		select {
		case v.woken <- struct{}{}:
		default:
		}
	}
}

// Run reads until ctx ends.
func (v *Vault) Run(ctx context.Context) error {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		for due := v.due(time.Now()); len(due) > 0 && ctx.Err() == nil; due = v.due(time.Now()) {
			var group errgroup.Group
			group.SetLimit(atOnce)
			for _, p := range due {
				group.Go(func() error {
					v.refresh(ctx, p)
					return nil
				})
			}
			_ = group.Wait() // none of them fails
		}
		select {
		case <-ctx.Done():
			return nil
		case <-v.woken:
		case <-ticker.C:
		}
	}
}

// due forgets what is no longer named, and returns what to read now: what was never read comes first.
func (v *Vault) due(now time.Time) []Place {
	named, ok := v.Named()
	v.mu.Lock()
	defer v.mu.Unlock()
	if !ok {
		return nil
	}
	slices.SortFunc(named, func(a, b Place) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Key, b.Key))
	})
	named = slices.Compact(named)
	if len(named) > maxEntries {
		if now.Sub(v.saidFull) >= sayAgain {
			v.saidFull = now
			v.Log.Error("more secrets are named than are read; requests for the others are refused: serve fewer namespaces", "named", len(named), "read", maxEntries)
		}
		named = named[:maxEntries]
	}
	kept := make(map[Place]*entry, len(named))
	var unread, due []Place
	for _, p := range named {
		switch e := v.entries[p]; {
		case e == nil:
			unread = append(unread, p)
		case !now.Before(e.until):
			due = append(due, p)
			fallthrough
		default:
			kept[p] = e
		}
	}
	v.entries, v.behind, v.complete = kept, len(unread) > 0, v.complete || len(unread) == 0
	if len(unread) < round {
		slices.SortFunc(due, func(a, b Place) int { return kept[a].until.Compare(kept[b].until) })
		unread = append(unread, due...)
	}
	return unread[:min(len(unread), round)]
}

func (v *Vault) refresh(ctx context.Context, p Place) {
	within, cancel := context.WithTimeout(ctx, readWithin)
	defer cancel()
	values, err := v.get(within, p)
	if ctx.Err() != nil {
		return
	}
	now := time.Now()
	v.mu.Lock()
	defer v.mu.Unlock()
	e := v.entries[p]
	if e == nil {
		e = &entry{}
		v.entries[p] = e
	}
	if err == nil {
		*e = entry{values: values, read: now, until: now.Add(freshFor)}
		v.answered = now
		v.Read("read")
		return
	}
	if e.failed.IsZero() {
		e.failed = now
	}
	e.until = now.Add(min(max(now.Sub(e.failed), every), retryAfter))
	result := outcome(err)
	v.Read(result)
	switch {
	case result == "forbidden": // which is known without the store that all the others come from
		e.alone = time.Time{}
	case result != "failed":
		v.answered, e.alone = now, time.Time{}
	case now.Sub(v.answered) >= freshFor+awayFor: // it does not answer for any
		e.alone = time.Time{}
	case e.alone.IsZero():
		e.alone = now
	}
	switch {
	case result != "forbidden":
		e.refused = time.Time{}
	case e.refused.IsZero():
		e.refused = now
	}
	switch {
	case result == "failed":
		if e.alone.IsZero() || now.Sub(e.alone) < staleFor {
			v.away = now.Add(awayFor)
		}
		if now.Sub(e.read) > staleFor {
			e.values = nil
		}
	case result == "forbidden" && e.values != nil && now.Sub(e.refused) < sureAfter:
		v.away = now.Add(awayFor)
		return
	default:
		e.values = nil
	}
	v.say(p, e, err, now)
}

// outcome is how a read ended that brought nothing: failed where the API server said nothing of the Secret. It does so, too,
// where it does not know this program's token, which is the same for all Secrets.
func outcome(err error) string {
	switch {
	case isOurs(err):
		return "missing"
	case apierrors.IsForbidden(err):
		return "forbidden"
	case kube.Passing(err), apierrors.IsUnauthorized(err):
		return "failed"
	}
	return "missing"
}

// contentError is a Secret that is there and has no usable value.
type contentError struct{ text string }

func (e *contentError) Error() string { return e.text }

func isOurs(err error) bool {
	_, ok := errors.AsType[*contentError](err)
	return ok
}

func (v *Vault) get(ctx context.Context, p Place) ([]secret.String, error) {
	s, err := v.Client.CoreV1().Secrets(p.Namespace).Get(ctx, p.Name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return valuesOf(s, p)
}

func valuesOf(s *corev1.Secret, p Place) ([]secret.String, error) {
	content, ok := s.Data[p.Key]
	if !ok {
		return nil, &contentError{fmt.Sprintf("it has no key %s", p.Key)}
	}
	values, ok := credential.Values(content)
	switch {
	case !ok:
		return nil, &contentError{fmt.Sprintf("its key %s has more than %d lines: a secret has one value a line", p.Key, credential.MaxValues)}
	case len(values) == 0:
		return nil, &contentError{fmt.Sprintf("its key %s is empty: an empty secret would let anybody in", p.Key)}
	}
	return values, nil
}

// say logs a problem once, and again after a while.
func (v *Vault) say(p Place, e *entry, err error, now time.Time) {
	what := err.Error()
	if what == e.said && now.Sub(e.saidAt) < sayAgain {
		return
	}
	e.said, e.saidAt = what, now
	args := []any{"namespace", p.Namespace, "secret", p.Name, "key", p.Key, "error", what}
	if apierrors.IsForbidden(err) {
		v.Log.Error("this secret may not be read, so that requests are refused: give the right to read it", append(args, "do", v.grant(p))...)
		return
	}
	v.Log.Error("this secret cannot be used, so that requests are refused", args...)
}

// grant is how the right to read a Secret is given.
func (v *Vault) grant(p Place) string {
	own := role + "-" + p.Name
	return fmt.Sprintf("kubectl create role %s -n %s --verb=get --resource=secrets --resource-name=%s && kubectl create rolebinding %s -n %s --role=%s --serviceaccount=%s:%s",
		own, p.Namespace, p.Name, own, p.Namespace, own, v.Namespace, Account)
}
