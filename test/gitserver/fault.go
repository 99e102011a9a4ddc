package gitserver

import (
	"context"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Fault is a failure that the server injects into its answers. It applies to every request unless narrowed by For, On and Times:
//
//	srv.Inject(gitserver.Status(503).For("site.git").On(gitserver.UploadPack).Times(2))
type Fault struct {
	repo    string
	service Service
	times   int // remaining requests; 0 means no end

	status     int
	retryAfter time.Duration
	redirect   string
	truncate   int64 // bytes of the answer's body; -1 means all
	stall      int64 // as truncate
	rate       int64 // bytes per second; 0 means no limit
	rewrite    func([]byte) []byte
}

// Truncate cuts the connection after n bytes of the answer's body.
func Truncate(n int64) Fault { return Fault{truncate: n, stall: -1} }

// Stall stops after n bytes of the answer's body and keeps the connection open until the client or the server closes
// it.
func Stall(n int64) Fault { return Fault{truncate: -1, stall: n} }

// Slow limits the answer's body to bytesPerSecond.
func Slow(bytesPerSecond int64) Fault { return Fault{truncate: -1, stall: -1, rate: bytesPerSecond} }

// Status answers with an HTTP status without running git.
func Status(code int) Fault { return Fault{truncate: -1, stall: -1, status: code} }

// Throttle answers 429 with a Retry-After header in whole seconds.
func Throttle(retryAfter time.Duration) Fault {
	return Fault{truncate: -1, stall: -1, status: http.StatusTooManyRequests, retryAfter: retryAfter}
}

// Redirect redirects to the same path on another server. base is its address, as returned by Server.URL(""), such as
// "http://127.0.0.1:4242".
func Redirect(base string) Fault {
	return Fault{truncate: -1, stall: -1, status: http.StatusFound, redirect: base}
}

// Rewrite changes the body of an answer, which is held in memory, to something that git would never send.
func Rewrite(change func(body []byte) []byte) Fault {
	return Fault{truncate: -1, stall: -1, rewrite: change}
}

// For narrows the fault to one repository.
func (f Fault) For(repo string) Fault { f.repo = repo; return f }

// On narrows the fault to one service.
func (f Fault) On(service Service) Fault { f.service = service; return f }

// Times ends the fault after n matching requests.
func (f Fault) Times(n int) Fault { f.times = n; return f }

// Inject adds a fault, from the next request on. Faults accumulate. The returned function removes this one.
func (s *Server) Inject(fault Fault) (remove func()) {
	f := &fault
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = append(s.faults, f)
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.faults = slices.DeleteFunc(s.faults, func(other *Fault) bool { return other == f })
	}
}

// Heal removes all faults and refusals. Auth stays.
func (s *Server) Heal() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults, s.refuse = nil, 0
}

// takeFaults returns the faults that match a request and counts them down. The caller holds s.mu.
func (s *Server) takeFaults(repo string, service Service) []*Fault {
	var met []*Fault
	s.faults = slices.DeleteFunc(s.faults, func(f *Fault) bool {
		if f.repo != "" && f.repo != repo || f.service != "" && f.service != service {
			return false
		}
		met = append(met, f)
		f.times--
		return f.times == 0
	})
	return met
}

// answerInstead answers the request if a fault replaces git's answer.
func answerInstead(w http.ResponseWriter, r *http.Request, faults []*Fault) bool {
	for _, f := range faults {
		switch {
		case f.redirect != "":
			http.Redirect(w, r, strings.TrimSuffix(f.redirect, "/")+r.URL.RequestURI(), f.status)
		case f.status != 0:
			if f.retryAfter > 0 {
				w.Header().Set("Retry-After", strconv.Itoa(int(f.retryAfter/time.Second)))
			}
			if f.status == http.StatusUnauthorized {
				w.Header().Set("WWW-Authenticate", `Basic realm="git"`)
			}
			http.Error(w, http.StatusText(f.status), f.status)
		default:
			continue
		}
		return true
	}
	return false
}

func rewritesOf(faults []*Fault) []func([]byte) []byte {
	var rewrites []func([]byte) []byte
	for _, f := range faults {
		if f.rewrite != nil {
			rewrites = append(rewrites, f.rewrite)
		}
	}
	return rewrites
}

// shape returns a writer with the speed and length limits of the faults.
func shape(ctx context.Context, w flushWriter, faults []*Fault) io.Writer {
	shaped := &shapedWriter{ctx: ctx, w: w, truncate: -1, stall: -1}
	for _, f := range faults {
		if f.truncate >= 0 {
			shaped.truncate = f.truncate
		}
		if f.stall >= 0 {
			shaped.stall = f.stall
		}
		if f.rate > 0 {
			shaped.rate = f.rate
		}
	}
	if shaped.truncate < 0 && shaped.stall < 0 && shaped.rate == 0 {
		return w
	}
	return shaped
}

type flushWriter interface {
	io.Writer
	http.Flusher
}

type shapedWriter struct {
	ctx                            context.Context
	w                              flushWriter
	truncate, stall, rate, written int64
}

// Write writes p subject to the limits. If the answer must end, it panics with http.ErrAbortHandler, which cuts the
// connection.
func (s *shapedWriter) Write(p []byte) (int, error) {
	total := len(p)
	for {
		s.endHere()
		if len(p) == 0 {
			return total, nil
		}
		n := s.next(int64(len(p)))
		if _, err := s.w.Write(p[:n]); err != nil {
			return total - len(p), err
		}
		s.written += n
		p = p[n:]
		if s.rate > 0 {
			s.w.Flush()
			s.wait(time.NewTimer(time.Duration(n) * time.Second / time.Duration(s.rate)).C)
		}
	}
}

// next returns how many of the next n bytes to write in one piece.
func (s *shapedWriter) next(n int64) int64 {
	for _, end := range []int64{s.truncate, s.stall} {
		if end >= 0 {
			n = min(n, end-s.written)
		}
	}
	if s.rate > 0 {
		n = min(n, max(1, s.rate/20)) // twenty pieces per second
	}
	return n
}

func (s *shapedWriter) endHere() {
	if s.stall >= 0 && s.written >= s.stall {
		s.w.Flush()
		s.wait(nil)
	}
	if s.truncate >= 0 && s.written >= s.truncate {
		s.w.Flush()
		panic(http.ErrAbortHandler)
	}
}

// wait returns when the timer fires. It aborts the answer if the client or the server goes away.
func (s *shapedWriter) wait(timer <-chan time.Time) {
	select {
	case <-timer:
	case <-s.ctx.Done():
		panic(http.ErrAbortHandler)
	}
}
