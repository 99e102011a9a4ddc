package fleet

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"time"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/test/gitserver"
)

// window is what happened between two moments.
type window struct {
	took     time.Duration // the whole window
	verified time.Duration // of a sync: until the last status reported it
	each     map[*agent]counts
	leads    map[*agent]bool // the leads at its beginning
	handed   bool            // the leads changed
	git      gitserver.Stats
	cpu      time.Duration // of this process
}

// mark is a moment.
type mark struct {
	at    time.Time
	each  map[*agent]counts
	leads map[*agent]bool
	git   gitserver.Stats
	cpu   time.Duration
}

func (y *yard) mark() mark {
	m := mark{at: time.Now(), each: map[*agent]counts{}, leads: y.leads(), git: y.git.Stats(), cpu: used()}
	for _, a := range y.agents {
		m.each[a] = a.traffic.counts()
	}
	return m
}

func (y *yard) since(was mark) window {
	is := y.mark()
	w := window{took: is.at.Sub(was.at), each: map[*agent]counts{}, leads: was.leads, handed: !maps.Equal(was.leads, is.leads), cpu: is.cpu - was.cpu}
	for a, c := range is.each {
		w.each[a] = c.since(was.each[a])
	}
	w.git = gitserver.Stats{Requests: is.git.Requests - was.git.Requests, Advertisements: is.git.Advertisements - was.git.Advertisements,
		UploadPacks: is.git.UploadPacks - was.git.UploadPacks, PackBytes: is.git.PackBytes - was.git.PackBytes, Out: is.git.Out - was.git.Out}
	return w
}

// used returns the CPU time of this process.
func used() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// resident returns the memory of this process after it returned what it can; 0 if the system does not report it.
func resident() int64 {
	debug.FreeOSMemory()
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	if fields := strings.Fields(string(b)); len(fields) > 1 {
		if pages, err := strconv.ParseInt(fields[1], 10, 64); err == nil {
			return pages * int64(os.Getpagesize())
		}
	}
	return 0
}

// result has all measurements of a size.
type result struct {
	size       size
	first      window // from the start of all agents
	syncs      []window
	idle       window
	handover   window // from the end of all leads; verified: until others lead
	memory     int64  // bytes per agent
	goroutines int    // per agent
}

// locking has the requests of a lead's lock: it reads and writes the SyncTarget as long as it leads.
var locking = map[string]bool{"get synctargets": true, "update synctargets": true}

// confirming is the write by which a lead confirms a status.
const confirming = "patch gatewaysyncs/status"

// confirmed returns how many confirmations a GatewaySync may have in the window.
func (w window) confirmed() int { return int(w.took/v1alpha1.ConfirmEvery) + 1 }

// busy counts the requests other than watches, locks and confirmations.
func (w window) busy() (n int) {
	for _, c := range w.each {
		for what, times := range c.requests {
			if !locking[what] && what != confirming && !strings.HasPrefix(what, watching+" ") {
				n += times
			}
		}
	}
	return n
}

const (
	// calm is how long nothing must happen before and after a sync.
	calm = 3 * time.Second
	// calmWithin bounds the wait for that.
	calmWithin = 2 * time.Minute
)

// settle waits until only locks are renewed for as long as calm.
func (y *yard) settle(ctx context.Context, calm time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, calmWithin)
	defer cancel()
	was, since := y.mark(), time.Now()
	for time.Since(since) < calm {
		if err := sleep(ctx, calm/10); err != nil {
			w := y.since(was)
			return fmt.Errorf("the fleet does not come to rest within %s: %w: %v", calmWithin, err, w.sum(everybody).requests)
		}
		if y.since(was).busy() > 0 {
			was, since = y.mark(), time.Now()
		}
	}
	return nil
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// measure starts a fleet and measures the first sync, an idle time, and a number of syncs of one changed file.
func (y *yard) measure(ctx context.Context, of size, rounds int, idle, within time.Duration) (r result, err error) {
	r.size = of
	memory, goroutines, began := resident(), runtime.NumGoroutine(), y.empty()
	if err := y.start(ctx); err != nil {
		return r, err
	}
	if err := y.bounded(ctx, within, y.repo.Head(), ""); err != nil {
		return r, err
	}
	verified := time.Since(began.at)
	if err := y.settle(ctx, calm); err != nil {
		return r, err
	}
	r.first = y.since(began)
	r.first.verified = verified
	r.memory, r.goroutines = (resident()-memory)/int64(of.total()), (runtime.NumGoroutine()-goroutines)/of.total()
	quiet := y.mark()
	if err := sleep(ctx, idle); err != nil {
		return r, err
	}
	r.idle = y.since(quiet)
	for n := range rounds {
		w, err := y.round(ctx, n+1, within)
		if err != nil {
			return r, fmt.Errorf("sync %d: %w", n+1, err)
		}
		r.syncs = append(r.syncs, w)
	}
	if of.agents > 1 {
		r.handover, err = y.handover(ctx, within)
	}
	return r, err
}

// handover ends all leads in good order, like deleted pods, and waits until others lead.
func (y *yard) handover(ctx context.Context, within time.Duration) (window, error) {
	began := y.mark()
	for a := range began.leads {
		a.resign()
	}
	ctx, cancel := context.WithTimeoutCause(ctx, within, errors.New("too slow"))
	defer cancel()
	for taken := false; !taken; {
		if err := sleep(ctx, 10*time.Millisecond); err != nil {
			return window{}, fmt.Errorf("others do not lead: %w", err)
		}
		now := y.leads()
		taken = len(now) == len(y.sites)
		for a := range began.leads {
			taken = taken && !now[a]
		}
	}
	led := time.Since(began.at)
	if err := y.settle(ctx, calm); err != nil {
		return window{}, err
	}
	w := y.since(began)
	w.verified = led
	return w, nil
}

// empty returns the mark before any agent runs.
func (y *yard) empty() mark {
	return mark{at: time.Now(), each: map[*agent]counts{}, leads: map[*agent]bool{}, git: y.git.Stats(), cpu: used()}
}

// round measures one sync: a commit, and the annotation that requests it.
func (y *yard) round(ctx context.Context, n int, within time.Duration) (window, error) {
	commit, err := y.commit(n)
	if err != nil {
		return window{}, err
	}
	began := y.mark()
	request := time.Now().UTC().Format(time.RFC3339Nano)
	if err := y.ask(ctx, request); err != nil {
		return window{}, err
	}
	if err := y.bounded(ctx, within, commit, request); err != nil {
		return window{}, err
	}
	verified := time.Since(began.at)
	if err := y.settle(ctx, calm); err != nil {
		return window{}, err
	}
	w := y.since(began)
	w.verified = verified
	return w, nil
}

func (y *yard) bounded(ctx context.Context, within time.Duration, commit, request string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, within, errors.New("too slow"))
	defer cancel()
	return y.verified(ctx, commit, request)
}

// who selects agents.
type who func(w window, a *agent) bool

func everybody(window, *agent) bool     { return true }
func followers(w window, a *agent) bool { return !w.leads[a] }
func leaders(w window, a *agent) bool   { return w.leads[a] }
func (w window) number(of who) (n int) {
	for a := range w.each {
		if of(w, a) {
			n++
		}
	}
	return n
}

// sum adds up the counts of the selected agents.
func (w window) sum(of who) counts {
	s := counts{requests: map[string]int{}, refused: map[string]int{}, events: map[string]int{}}
	for a, c := range w.each {
		if !of(w, a) {
			continue
		}
		for _, m := range []struct{ to, from map[string]int }{{s.requests, c.requests}, {s.refused, c.refused}, {s.events, c.events}} {
			for k, n := range m.from {
				m.to[k] += n
			}
		}
		s.in, s.out = s.in+c.in, s.out+c.out
	}
	return s
}
