package queue

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/request"
)

// book records what the queue carries out, and when.
type book struct {
	mu    sync.Mutex
	took  time.Duration // per request
	fails error
	pages []page
}

type page struct {
	key   Key
	r     request.Request
	began time.Time
}

func (b *book) do(ctx context.Context, key Key, r request.Request) (request.Answer, error) {
	b.mu.Lock()
	b.pages = append(b.pages, page{key, r, time.Now()})
	n, took, fails := len(b.pages), b.took, b.fails
	b.mu.Unlock()
	select {
	case <-time.After(took):
	case <-ctx.Done():
		return request.Answer{}, ctx.Err()
	}
	return request.Answer{Outcome: request.Set, At: fmt.Sprint(n)}, fails
}

func (b *book) page(n int) page {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.pages[n-1]
}

func (b *book) requests() (list []request.Request) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, p := range b.pages {
		list = append(list, p.r)
	}
	return list
}

var plant = Key{Namespace: "plant", Name: "line"}

// pushed returns a hint of GitHub: a request that only asks for a poll of git.
func pushed(id string) request.Request { return request.Request{By: "github", ID: id} }

func TestHintsDuringWorkAreCoalesced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &book{took: 20 * time.Millisecond}
		q := New(Config{Do: b.do})
		var all sync.WaitGroup
		for i := range 1000 {
			all.Go(func() {
				time.Sleep(time.Duration(i) * 10 * time.Microsecond)
				came := time.Now()
				answer, err := q.Ask(t.Context(), plant, pushed(fmt.Sprint(i)))
				assert.NoError(t, err)
				var n int
				_, err = fmt.Sscan(answer.At, &n)
				assert.NoError(t, err)
				assert.False(t, b.page(n).began.Before(came), "the work that answers a hint must begin after it")
			})
		}
		all.Wait()
		q.Close()
		assert.Equal(t, []request.Request{pushed("0"), {By: "github"}}, b.requests(), "the hints after the first must be coalesced into one without id")
		assert.GreaterOrEqual(t, b.pages[1].began.Sub(b.pages[0].began), q.Pace)
	})
}

// While hints keep coming, at most four a second are carried out.
func TestHintRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &book{}
		q := New(Config{Do: b.do})
		for range 1000 {
			go func() { _, _ = q.Ask(t.Context(), plant, pushed("x")) }()
			time.Sleep(10 * time.Millisecond)
		}
		q.Close()
		assert.LessOrEqual(t, len(b.pages), 10*4+5, "at most four hints a second")
		assert.GreaterOrEqual(t, len(b.pages), 35)
	})
	synctest.Test(t, func(t *testing.T) {
		b := &book{}
		q := New(Config{Do: b.do})
		for range 3 { // after an idle second, the queue starts the next request immediately
			began := time.Now()
			_, err := q.Ask(t.Context(), plant, pushed("x"))
			require.NoError(t, err)
			assert.Zero(t, time.Since(began))
			time.Sleep(time.Second)
		}
		q.mu.Lock()
		assert.Empty(t, q.objects, "an idle queue must hold no object")
		assert.Zero(t, q.busy)
		q.mu.Unlock()
		q.Close()
	})
}

func TestRefRequestsKeepOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &book{took: 10 * time.Millisecond}
		q := New(Config{Do: b.do, Pace: time.Minute, MaxPace: time.Minute})
		_, err := q.Ask(t.Context(), plant, pushed("a"))
		require.NoError(t, err)
		var all sync.WaitGroup
		ask := func(r request.Request) {
			all.Go(func() { _, err := q.Ask(t.Context(), plant, r); assert.NoError(t, err) })
			synctest.Wait()
		}
		v := func(ref string) request.Request { return request.Request{By: "kargo", Ref: ref} }
		began := time.Now()
		ask(pushed("b"))
		for _, ref := range []string{"v1", "v2", "v2", "v3", "v2"} {
			ask(v(ref))
		}
		ask(request.Request{By: "cli", Force: true})
		for len(b.requests()) < 6 {
			time.Sleep(time.Millisecond)
		}
		assert.Less(t, time.Since(began), time.Second)
		all.Wait()
		assert.Equal(t, []request.Request{pushed("a"), v("v1"), v("v2"), v("v3"), v("v2"), {By: "cli", Force: true}, pushed("b")}, b.requests())
		q.Close()
	})
}

// Kargo later queries the progress of its promotion by id. If the queue dropped the id, the receiver would report the promotion as
// unknown.
func TestHintWithOrderedIDStaysAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &book{took: time.Second}
		q := New(Config{Do: b.do, MaxWaiting: 3})
		var all sync.WaitGroup
		ask := func(r request.Request) {
			all.Go(func() { _, err := q.Ask(t.Context(), plant, r); assert.NoError(t, err) })
			synctest.Wait()
		}
		promoted := func(n int) request.Request {
			return request.Request{By: "kargo", ID: fmt.Sprintf("test.01hz%022d.abcdef0", n)}
		}
		ask(pushed("a")) // in progress
		for _, r := range []request.Request{pushed("b"), promoted(1), pushed("c"), promoted(2), promoted(1)} {
			ask(r)
		}
		_, err := q.Ask(t.Context(), plant, promoted(3))
		assert.ErrorIs(t, err, ErrCrowded, "the queue of an object must be bounded")
		ask(pushed("d"))
		all.Wait()
		assert.Equal(t, []request.Request{pushed("a"), {By: "github"}, promoted(1), promoted(2)}, b.requests())
		q.Close()
	})
}

// A request authorized for one object must not apply to a new object with the same name.
func TestRequestsForReplacedObject(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &book{took: time.Second}
		q := New(Config{Do: b.do})
		var all sync.WaitGroup
		of := func(uid types.UID, r request.Request) request.Request { r.UID = uid; return r }
		tag := func(uid types.UID, n string) request.Request {
			return of(uid, request.Request{By: "gitea", Ref: "v" + n, Follows: true, Decider: &numbers{n}})
		}
		v := request.Request{By: "cli", Ref: "v9"}
		asked := []request.Request{of("old", pushed("a")), of("old", v), of("new", v), tag("old", "2"), tag("new", "4"), of("old", pushed("b")), of("new", pushed("c"))}
		for _, r := range asked {
			all.Go(func() { _, err := q.Ask(t.Context(), plant, r); assert.NoError(t, err) })
			synctest.Wait()
		}
		all.Wait()
		assert.ElementsMatch(t, asked, b.requests())
		q.Close()
	})
}

// numbers is a Joiner that collects lists. The list "alone" cannot be joined, and is not deferrable.
type numbers struct{ list string }

func (n *numbers) Deferrable() bool { return n.list != "alone" }

func (n *numbers) Decide(v1alpha1.Requestable) (request.Request, string, error) {
	return request.Request{}, n.list, nil
}

func (n *numbers) Join(other request.Decider) (request.Decider, bool) {
	o, ok := other.(*numbers)
	if !ok || o.list == "alone" {
		return nil, false
	}
	return &numbers{n.list + o.list}, true
}

func TestFollowedTagsAreJoined(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &book{took: time.Second}
		q := New(Config{Do: b.do, MaxWaiting: 5})
		var all sync.WaitGroup
		ask := func(r request.Request) {
			all.Go(func() { _, err := q.Ask(t.Context(), plant, r); assert.NoError(t, err) })
			synctest.Wait()
		}
		tag := func(id, n string) request.Request {
			return request.Request{By: "gitea", Ref: "v" + n, ID: id, Follows: true, Decider: &numbers{n}}
		}
		ask(tag("a", "1")) // in progress, and not joinable
		for n := range 40 {
			ask(tag(fmt.Sprint("b", n), "2"))
		}
		ask(pushed("h"))
		ask(tag("c", "3"))
		ask(request.Request{By: "kargo", Ref: "main", ID: "p"})
		ask(tag("d", "4"))
		ask(tag("e", "alone"))
		_, err := q.Ask(t.Context(), plant, request.Request{By: "kargo", Ref: "more", ID: "q"})
		assert.ErrorIs(t, err, ErrCrowded)
		all.Wait()
		q.Close()
		var seen []string
		for _, r := range b.requests() {
			said := r.ID + ":" + r.Ref
			if r.Decider != nil {
				_, list, _ := r.Decider.Decide(nil)
				said = r.ID + ":" + list
			}
			seen = append(seen, said)
		}
		assert.Equal(t, []string{"a:1", ":" + strings.Repeat("2", 40) + "3", "h:", "p:main", "d:4", "e:alone"}, seen)
	})
}

func TestRepeatedRefIsPaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &book{}
		q := New(Config{Do: b.do})
		v1, v2 := request.Request{By: "generic", Ref: "v1"}, request.Request{By: "generic", Ref: "v2"}
		for range 1000 {
			go func() { _, _ = q.Ask(t.Context(), plant, v1) }()
			time.Sleep(time.Millisecond)
		}
		assert.LessOrEqual(t, len(b.requests()), 10)
		go func() { _, _ = q.Ask(t.Context(), plant, v1) }()
		synctest.Wait()
		_, err := q.Ask(t.Context(), plant, v2)
		require.NoError(t, err)
		requests := b.requests()
		assert.Equal(t, v2, requests[len(requests)-1], "the last request must be carried out last")
		assert.Equal(t, v1, requests[len(requests)-2])
		q.Close()
		assert.Equal(t, requests, b.requests())
	})
}

func TestQueueLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &book{took: time.Second}
		q := New(Config{Do: b.do, MaxObjects: 3, MaxWaiting: 2, MaxParallel: 2})
		var all sync.WaitGroup
		for i := range 3 {
			all.Go(func() {
				_, err := q.Ask(t.Context(), Key{Namespace: "plant", Name: fmt.Sprint(i)}, pushed("a"))
				assert.NoError(t, err)
			})
		}
		synctest.Wait()
		assert.Len(t, b.requests(), 2, "the number of requests at a time must be bounded")
		_, err := q.Ask(t.Context(), Key{Namespace: "plant", Name: "4"}, pushed("a"))
		assert.ErrorIs(t, err, ErrFull)
		for i := range 2 {
			all.Go(func() {
				_, err := q.Ask(t.Context(), Key{Namespace: "plant", Name: "0"}, request.Request{Ref: fmt.Sprint(i)})
				assert.NoError(t, err)
			})
		}
		synctest.Wait()
		_, err = q.Ask(t.Context(), Key{Namespace: "plant", Name: "0"}, request.Request{Ref: "more"})
		assert.ErrorIs(t, err, ErrCrowded)
		all.Go(func() {
			_, err := q.Ask(t.Context(), Key{Namespace: "plant", Name: "0"}, pushed("hint"))
			assert.NoError(t, err)
		})
		all.Wait()
		_, err = q.Ask(t.Context(), Key{Namespace: "plant", Name: "4"}, pushed("a"))
		assert.NoError(t, err, "the queue must accept requests again")
		q.Close()
	})
}

func TestAbandonedHintIsCarriedOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &book{took: 50 * time.Millisecond}
		q := New(Config{Do: b.do, Pace: time.Hour, MaxPace: time.Hour})
		_, err := q.Ask(t.Context(), plant, pushed("a"))
		require.NoError(t, err)
		ctx, leave := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer leave()
		_, err = q.Ask(ctx, plant, request.Request{Ref: "v1"})
		assert.ErrorIs(t, err, context.DeadlineExceeded)
		_, err = q.Ask(ctx, plant, pushed("b"))
		assert.ErrorIs(t, err, context.DeadlineExceeded)
		began := time.Now()
		q.Close() // carries out delayed requests immediately
		assert.Less(t, time.Since(began), time.Second)
		assert.Equal(t, []request.Request{pushed("a"), {Ref: "v1"}, pushed("b")}, b.requests())
		_, err = q.Ask(t.Context(), plant, pushed("c"))
		assert.ErrorIs(t, err, ErrClosed)
		q.Close()
	})
}

// The API server is away for fifteen seconds, and all callers get an error after nine. The queue must then drop their refs,
// because another replica may have written newer ones.
func TestAbandonedRefIsNotWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var mu sync.Mutex
		var written []string
		q := New(Config{Do: func(ctx context.Context, key Key, r request.Request) (request.Answer, error) {
			if wait := 15*time.Second - time.Since(began); wait > 0 {
				select {
				case <-ctx.Done():
					return request.Answer{}, ctx.Err()
				case <-time.After(wait):
				}
			}
			mu.Lock()
			defer mu.Unlock()
			written = append(written, key.Name+" "+r.ID)
			return request.Answer{Outcome: request.Set}, nil
		}})
		var all sync.WaitGroup
		ask := func(name string, r request.Request) {
			all.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), 9*time.Second)
				defer cancel()
				_, err := q.Ask(ctx, Key{Namespace: "plant", Name: name}, r)
				assert.Error(t, err, "%s %s", name, r.ID)
				assert.LessOrEqual(t, time.Since(began), 9*time.Second)
			})
			synctest.Wait()
		}
		for i := range 3 {
			ask("line", request.Request{Ref: fmt.Sprint("v1.", i), By: "generic", ID: fmt.Sprint("build-", i)})
		}
		ask("line", request.Request{By: "cli", ID: "forced", Force: true})
		ask("line", request.Request{Ref: "v1", By: "gitea", ID: "tag", Follows: true, Decider: &numbers{"2"}})
		ask("line", request.Request{Ref: "v1", By: "gitea", ID: "downgrades", Follows: true, Decider: &numbers{"alone"}})
		ask("line", pushed("push"))
		for i := range 20 { // more than the queue works on at once
			ask(fmt.Sprint("cell-", i), request.Request{Ref: "v1", By: "generic", ID: fmt.Sprint("build-", i)})
		}
		all.Wait()
		time.Sleep(time.Minute)
		mu.Lock()
		assert.Equal(t, []string{"line tag", "line push"}, written, "requests that are safe late must be carried out")
		mu.Unlock()

		answer, err := q.Ask(t.Context(), plant, request.Request{Ref: "v2", By: "generic", ID: "build-9"})
		require.NoError(t, err)
		assert.Equal(t, request.Set, answer.Outcome)
		q.Close()
	})
}

// A caller that has already waited for something else has less time left.
func TestNoWriteAfterDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &book{took: 5 * time.Second}
		q := New(Config{Do: b.do})
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		began := time.Now()
		_, err := q.Ask(ctx, plant, request.Request{Ref: "v1"})
		assert.ErrorIs(t, err, context.DeadlineExceeded)
		assert.Equal(t, 2*time.Second, time.Since(began))
		q.Close()
		assert.Equal(t, 2*time.Second, time.Since(began), "Close must wait only until the deadline")
		assert.Equal(t, []request.Request{{Ref: "v1"}}, b.requests())
	})
}

func TestDisconnectDoesNotCancelRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &book{took: 5 * time.Second}
		q := New(Config{Do: b.do})
		ctx, disconnect := context.WithCancel(t.Context())
		disconnect()
		_, err := q.Ask(ctx, plant, request.Request{Ref: "v2"})
		assert.ErrorIs(t, err, context.Canceled)
		synctest.Wait()
		assert.Equal(t, []request.Request{{Ref: "v2"}}, b.requests())
		time.Sleep(time.Minute)
		q.Close()
	})
}

func TestFailureReachesAllCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		down := errors.New("down")
		b := &book{fails: down, took: time.Millisecond}
		q := New(Config{Do: b.do, Timeout: time.Second})
		var all sync.WaitGroup
		for i := range 10 {
			all.Go(func() { _, err := q.Ask(t.Context(), plant, pushed(fmt.Sprint(i))); assert.ErrorIs(t, err, down) })
		}
		all.Wait()
		assert.LessOrEqual(t, len(b.requests()), 2)
		q.Close()
	})
}

func TestTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &book{took: time.Hour}
		q := New(Config{Do: b.do, Timeout: time.Second})
		began := time.Now()
		_, err := q.Ask(t.Context(), plant, request.Request{Ref: "v1"})
		assert.ErrorIs(t, err, context.DeadlineExceeded)
		assert.Equal(t, time.Second, time.Since(began))
		q.Close()
	})
}
