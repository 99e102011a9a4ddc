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

// Fault is a way to fail. It applies to every request until it is narrowed by For, On and Times:
//
//	srv.Inject(gitserver.Status(503).For("site.git").On(gitserver.UploadPack).Times(2))
type Fault struct {
	repo    string
	service Service
	times   int // requests left; 0 means no end

	status     int
	retryAfter time.Duration
	redirect   string
	truncate   int64 // bytes of the answer's body; -1 means all
	stall      int64 // the same
	rate       int64 // bytes a second; 0 means no limit
	rewrite    func([]byte) []byte
}

// Truncate cuts the connection after n bytes of the answer's body.
func Truncate(n int64) Fault { return Fault{truncate: n, stall: -1} }

// Stall stops after n bytes of the answer's body and keeps the connection open until the client or the server goes away.
func Stall(n int64) Fault { return Fault{truncate: -1, stall: n} }

// Slow limits the answer's body to bytesPerSecond.
func Slow(bytesPerSecond int64) Fault { return Fault{truncate: -1, stall: -1, rate: bytesPerSecond} }

// Status answers with an HTTP status and no git at all.
func Status(code int) Fault { return Fault{truncate: -1, stall: -1, status: code} }

// Throttle answers 429 and asks the client to come back later; the header has whole seconds.
func Throttle(retryAfter time.Duration) Fault {
	return Fault{truncate: -1, stall: -1, status: http.StatusTooManyRequests, retryAfter: retryAfter}
}

// Redirect sends the client to the same path at another server, whose address base is ("http://127.0.0.1:4242", as
// Server.URL("") gives it).
func Redirect(base string) Fault {
	return Fault{truncate: -1, stall: -1, status: http.StatusFound, redirect: base}
}

// Rewrite changes the body of an answer, which is held in memory for it: for what git would never say.
func Rewrite(change func(body []byte) []byte) Fault {
	return Fault{truncate: -1, stall: -1, rewrite: change}
}

// For narrows the fault to one repository.
func (f Fault) For(repo string) Fault { f.repo = repo; return f }

// On narrows the fault to one service.
func (f Fault) On(service Service) Fault { f.service = service; return f }

// Times ends the fault after n requests that it met.
func (f Fault) Times(n int) Fault { f.times = n; return f }

// Inject makes the server fail in this way too, from the next request on. Faults add up. The returned function takes
// this one back.
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

// Heal takes back all faults and refusals. Auth stays as it is.
func (s *Server) Heal() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults, s.refuse = nil, 0
}

// takeFaults returns the faults that meet a request and counts them down. The caller holds s.mu.
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

// answerInstead answers where a fault leaves nothing to do for git.
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

// shape returns a writer that is as slow and as short as the faults want it.
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

// Write passes p on in the shape of the faults. Where the answer has to end it panics with http.ErrAbortHandler, which
// is how a handler cuts a connection.
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

// next returns how many of the next n bytes go out in one piece.
func (s *shapedWriter) next(n int64) int64 {
	for _, end := range []int64{s.truncate, s.stall} {
		if end >= 0 {
			n = min(n, end-s.written)
		}
	}
	if s.rate > 0 {
		n = min(n, max(1, s.rate/20)) // twenty pieces a second
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

// wait returns when the timer fires, and aborts the answer when the client or the server goes away.
func (s *shapedWriter) wait(timer <-chan time.Time) {
	select {
	case <-timer:
	case <-s.ctx.Done():
		panic(http.ErrAbortHandler)
	}
}
