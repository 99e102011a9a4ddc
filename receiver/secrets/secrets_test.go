package secrets

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"

	"stoker.io/stoker/test/clientset"
	"stoker.io/stoker/test/program"
)

// cluster is a fake API server that counts the reads of Secrets.
type cluster struct {
	*Cache
	log    program.Log
	mu     sync.Mutex
	reads  int
	takes  time.Duration // how long a read takes
	places []Ref         // what Refs returns
	value  string
	err    error
	broken string // the name of a Secret that cannot be decrypted
	denied string // the name of a Secret that RBAC denies, which needs no read from etcd
}

var webhook = Ref{"plant", "webhook", "secret"}

// newCluster starts a Cache with a fake API server. The function change prepares the cluster before the cache starts.
func newCluster(t *testing.T, change func(*cluster)) *cluster {
	t.Helper()
	c := &cluster{value: "S3CR3T", takes: 10 * time.Millisecond, places: []Ref{webhook, webhook}}
	if change != nil {
		change(c)
	}
	client := clientset.New()
	client.PrependReactor("get", "secrets", func(a clienttesting.Action) (bool, runtime.Object, error) {
		c.mu.Lock()
		c.reads++
		c.mu.Unlock()
		time.Sleep(c.takes)
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.denied != "" && a.(clienttesting.GetAction).GetName() == c.denied {
			return true, nil, errForbidden
		}
		if c.err != nil {
			return true, nil, c.err
		}
		if a.(clienttesting.GetAction).GetName() == c.broken {
			return true, nil, errBroken
		}
		return true, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "webhook"}, Data: map[string][]byte{"secret": []byte(c.value)}}, nil
	})
	c.Cache = New(Config{Client: client, Namespace: "stoker-system", Log: slog.New(slog.NewTextHandler(&c.log, nil)), Refs: func() ([]Ref, bool) {
		c.mu.Lock()
		defer c.mu.Unlock()
		return slices.Clone(c.places), true
	}})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-ended)
	})
	return c
}

// settle waits until the cache has done all reads that are due.
func (c *cluster) settle() { time.Sleep(loopInterval + c.takes) }

func (c *cluster) set(value string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.value, c.err = value, err
}

// names adds a reference.
func (c *cluster) names(p Ref) {
	c.mu.Lock()
	c.places = append([]Ref{p}, c.places...)
	c.mu.Unlock()
	c.Add(p)
}

func (c *cluster) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.reads
}

func (c *cluster) get() string {
	var all []string
	for _, v := range c.Values(webhook) {
		all = append(all, v.Reveal())
	}
	return strings.Join(all, ",")
}

var (
	resource     = schema.GroupResource{Resource: "secrets"}
	errBroken    = apierrors.NewInternalError(errors.New("unable to transform key: no matching prefix found"))
	errForbidden = apierrors.NewForbidden(resource, "webhook", errors.New("no"))
	errMissing   = apierrors.NewNotFound(resource, "webhook")
	errDown      = errors.New("connection refused")
)

func TestSecretReadInterval(t *testing.T) {
	for name, c := range map[string]struct {
		value string
		err   error
		want  string
		fresh time.Duration // pause before the next read
	}{
		"values":             {"S3CR3T-1\nS3CR3T-2\n", nil, "S3CR3T-1,S3CR3T-2", freshTime},
		"empty":              {" \n", nil, "", maxRetryInterval},
		"too many values":    {"1\n2\n3\n4\n5", nil, "", maxRetryInterval},
		"missing":            {"", errMissing, "", maxRetryInterval},
		"forbidden":          {"", errForbidden, "", maxRetryInterval},
		"API server is down": {"", errDown, "", maxRetryInterval},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				v := newCluster(t, func(v *cluster) { v.value, v.err = c.value, c.err })
				assert.True(t, v.Unsure(), "before the first read, the answer is unknown")
				assert.False(t, v.Complete())
				v.settle()
				for range 1000 {
					assert.Equal(t, c.want, v.get())
				}
				assert.True(t, v.Complete())
				assert.LessOrEqual(t, v.count(), 2)
				time.Sleep(time.Minute) // the first retries come quickly, later ones rarely
				before := v.count()
				assert.LessOrEqual(t, before, 10)
				time.Sleep(c.fresh)
				v.settle()
				assert.InDelta(t, before+1, v.count(), 1)
				assert.Equal(t, errors.Is(c.err, errDown), v.Unsure())
				assert.NotContains(t, v.log.String(), "S3CR3T", "C7")
			})
		})
	}
}

func TestCorrectedSecret(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newCluster(t, func(v *cluster) { v.err = errForbidden })
		for range 30 {
			assert.Empty(t, v.get())
			time.Sleep(time.Minute / 2)
		}
		said := strings.Count(v.log.String(), "kubectl create rolebinding")
		assert.Equal(t, 2, said, "the command must be logged twice within 15 minutes")
		assert.Contains(t, v.log.String(), "--serviceaccount=stoker-system:stoker-receiver")
		v.set("S3CR3T", nil)
		time.Sleep(maxRetryInterval)
		v.settle()
		assert.Equal(t, "S3CR3T", v.get())
		v.set("other", nil)
		time.Sleep(30 * time.Second) // the delay that docs/how-to/webhooks.md promises
		assert.Equal(t, "other", v.get())
		v.set("", errMissing)
		time.Sleep(freshTime)
		v.settle()
		assert.Empty(t, v.get(), "a deleted Secret must not admit callers")
	})
}

func TestLastValueDuringOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newCluster(t, nil)
		v.settle()
		assert.Equal(t, "S3CR3T", v.get())
		assert.False(t, v.Unsure())
		v.set("", errDown)
		time.Sleep(freshTime)
		v.settle()
		for range 100 {
			assert.Equal(t, "S3CR3T", v.get())
			assert.True(t, v.Unsure(), "during the outage, the value is not certain")
			time.Sleep(time.Second)
		}
		time.Sleep(staleTime)
		v.settle()
		assert.Empty(t, v.get(), "the last value must expire")
		v.set("S3CR3T", nil)
		time.Sleep(unsureTime)
		v.settle()
		assert.Equal(t, "S3CR3T", v.get())
		assert.False(t, v.Unsure())
	})
}

// While the API server cannot answer, the receiver asks senders to retry. A refusal would be final.
func TestAPIServerErrorIsOutage(t *testing.T) {
	for name, err := range map[string]error{
		"etcd timeout":         apierrors.NewServerTimeout(resource, "get", 2),
		"timeout":              apierrors.NewTimeoutError("slow", 1),
		"too many requests":    apierrors.NewTooManyRequestsError("later"),
		"API server starts":    apierrors.NewServiceUnavailable("starting"),
		"internal error":       apierrors.NewInternalError(errors.New("etcd")),
		"token is unknown":     apierrors.NewUnauthorized("who?"),
		"roles are not loaded": errForbidden,
		"broken proxy":         errors.New("malformed HTTP response"),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				v := newCluster(t, nil)
				v.settle()
				v.set("", err)
				time.Sleep(freshTime)
				v.settle()
				assert.Equal(t, "S3CR3T", v.get())
				assert.True(t, v.Unsure())
				v.set("S3CR3T", nil)
				time.Sleep(unsureTime)
				v.settle()
				assert.Equal(t, "S3CR3T", v.get())
				assert.False(t, v.Unsure())
			})
		})
	}
}

// If the encryption key of a Secret is lost, the API server fails for this Secret alone and forever. Others must stay available.
func TestUndecryptableSecret(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newCluster(t, func(c *cluster) {
			c.takes = 0 // the fake client answers one read after the other, so a slow one would delay the next
			c.broken, c.places = "broken", append(c.places, Ref{"other", "broken", "token"})
		})
		v.settle()
		assert.True(t, v.Unsure(), "an unreadable Secret may become readable")
		assert.Equal(t, "S3CR3T", v.get())
		time.Sleep(staleTime + freshTime + unsureTime)
		for range 1000 {
			assert.False(t, v.Unsure())
			time.Sleep(time.Second)
		}
		// An API server that is really away must still be detected.
		v.set("", errDown)
		time.Sleep(freshTime)
		v.settle()
		for range 100 {
			assert.True(t, v.Unsure())
			time.Sleep(time.Second)
		}
		// After a long outage, the state stays unsure for a while.
		time.Sleep(2 * staleTime)
		v.set("S3CR3T", nil)
		time.Sleep(maxRetryInterval)
		v.settle()
		assert.True(t, v.Unsure())
		time.Sleep(staleTime + freshTime + unsureTime)
		assert.False(t, v.Unsure())
	})
}

// The API server denies a Secret without reading its store, so a denial does not show that the store is available.
func TestForbiddenSecretIsIsolated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newCluster(t, func(c *cluster) {
			c.takes = 0
			c.denied, c.places = "denied", append(c.places, Ref{"other", "denied", "token"})
		})
		v.settle()
		time.Sleep(time.Minute)
		require.False(t, v.Unsure())
		v.set("", apierrors.NewInternalError(errors.New("etcdserver: no leader")))
		time.Sleep(freshTime)
		v.settle()
		for range 2 * int(staleTime/time.Second) {
			require.True(t, v.Unsure(), "an outage of the store concerns every Secret")
			time.Sleep(time.Second)
		}
	})
}

func TestRevokedRightLocksOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newCluster(t, nil)
		v.settle()
		v.set("", errDown)
		time.Sleep(time.Minute)
		v.set("", errForbidden)
		time.Sleep(maxRetryInterval)
		v.settle()
		assert.Equal(t, "S3CR3T", v.get(), "earlier outages must not shorten the use of the last value")
		assert.NotContains(t, v.log.String(), "may not be read")
		time.Sleep(forbiddenGrace + maxRetryInterval)
		v.settle()
		assert.Empty(t, v.get())
		assert.Contains(t, v.log.String(), "may not be read")
		time.Sleep(unsureTime)
		assert.False(t, v.Unsure())
	})
}

func TestNewReferenceIsReadAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newCluster(t, nil)
		v.settle()
		assert.False(t, v.Unsure())
		fresh := Ref{"other", "new", "secret"}
		v.names(fresh)
		assert.True(t, v.Unsure(), "before the first read, the receiver cannot judge callers")
		time.Sleep(2 * v.takes)
		assert.NotEmpty(t, v.Values(fresh))
		assert.False(t, v.Unsure())
		assert.Equal(t, 2, v.count())
	})
}

func TestReadsAreBounded(t *testing.T) {
	var all []Ref
	for i := range maxEntries + 100 {
		all = append(all, Ref{"plant", fmt.Sprintf("%05d", i), "secret"})
	}
	var log bytes.Buffer
	v := New(Config{Log: slog.New(slog.NewTextHandler(&log, nil)), Refs: func() ([]Ref, bool) { return slices.Clone(all), true }})
	now := time.Now()
	for due := v.due(now); len(due) > 0; due = v.due(now) {
		assert.LessOrEqual(t, len(due), maxRound)
		for _, p := range due {
			require.Nil(t, v.entries[p], "no Secret may be read twice in a round")
			v.entries[p] = &entry{nextRead: now.Add(freshTime)}
		}
	}
	assert.Len(t, v.entries, maxEntries)
	assert.Equal(t, 1, strings.Count(log.String(), "too many secrets; some requests are refused"))
	fresh := Ref{"a", "new", "secret"}
	all = append(all[10:maxEntries:maxEntries], fresh)
	due := v.due(now.Add(freshTime))
	assert.Len(t, due, maxRound)
	assert.Equal(t, fresh, due[0], "a new reference must be read first")
	assert.Len(t, v.entries, maxEntries-10, "unreferenced Secrets must be dropped")
}

// One namespace with too many references, or with new ones all the time, does not keep those of others from being read.
func TestNamespacesShareReads(t *testing.T) {
	other := Ref{"z", "webhook", "secret"}
	all := []Ref{other}
	for i := range maxEntries + 100 {
		all = append(all, Ref{"a", fmt.Sprintf("%05d", i), "secret"})
	}
	v := New(Config{Log: slog.New(slog.DiscardHandler), Refs: func() ([]Ref, bool) { return slices.Clone(all), true }})
	now := time.Now()
	assert.Contains(t, v.due(now), other, "the first reference of a namespace comes before the second of another")

	v.entries[other] = &entry{nextRead: now.Add(freshTime)}
	assert.NotContains(t, v.due(now), other, "it is fresh")
	due := v.due(now.Add(freshTime))
	assert.Contains(t, due, other, "new references may not take the whole round")
	assert.Len(t, due, maxRound)
}
