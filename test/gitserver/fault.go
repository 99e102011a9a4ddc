package gitserver

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Fault is a failure that the server injects into its answers. It applies to every request unless For, On or Times narrow
// it:
//
//	srv.Inject(gitserver.Status(503).For("site.git").On(gitserver.UploadPack).Times(2))
type Fault struct {
	repo    string
	service Service
	times   int // remaining requests; 0 means unlimited
	hit     bool

	status     int
	retryAfter time.Duration
	redirect   string
	truncate   *int64 // bytes of the body before the end; nil means no end
	stall      *int64 // bytes of the body before the stall; nil means no stall
	rate       int64  // bytes per second; 0 means no limit
	rewrite    func([]byte) []byte
}

// Truncate cuts the connection after n bytes of the answer's body.
func Truncate(n int64) Fault { return Fault{truncate: &n} }

// Stall stops after n bytes of the answer's body and keeps the connection open until the client or the server closes
// it.
func Stall(n int64) Fault { return Fault{stall: &n} }

// Slow limits the answer's body to bytesPerSecond.
func Slow(bytesPerSecond int64) Fault { return Fault{rate: bytesPerSecond} }

// Status answers with an HTTP status without running git.
func Status(code int) Fault { return Fault{status: code} }

// Throttle answers 429 with a Retry-After header, which is rounded down to whole seconds.
func Throttle(retryAfter time.Duration) Fault {
	return Fault{status: http.StatusTooManyRequests, retryAfter: retryAfter}
}

// Redirect redirects to the same path on another server. base is its address, as returned by Server.URL(""), such as
// "http://127.0.0.1:4242".
func Redirect(base string) Fault { return Fault{status: http.StatusFound, redirect: base} }

// Rewrite replaces the body of an answer by change(body), for example by text that git would never send.
func Rewrite(change func(body []byte) []byte) Fault { return Fault{rewrite: change} }

// For narrows the fault to one repository.
func (f Fault) For(repo string) Fault { f.repo = repo; return f }

// On narrows the fault to one service.
func (f Fault) On(service Service) Fault { f.service = service; return f }

// Times ends the fault after n matching requests.
func (f Fault) Times(n int) Fault { f.times = n; return f }

// Inject adds a fault, from the next request on. All faults that match a request apply to it and count it; of several
// statuses, the first one wins, and of several limits of one kind, the last one. The returned function removes the fault. Close fails if no
// request has matched it, because then the test has shown nothing.
func (s *Server) Inject(fault Fault) (remove func()) {
	f := &fault
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults, s.injected = append(s.faults, f), append(s.injected, f)
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
	var matching, active []*Fault
	for _, f := range s.faults {
		if f.repo != "" && f.repo != repo || f.service != "" && f.service != service {
			active = append(active, f)
			continue
		}
		matching, f.hit = append(matching, f), true
		if f.times != 1 {
			active = append(active, f)
		}
		f.times = max(0, f.times-1)
	}
	s.faults = active
	return matching
}

// checkFaults returns an error if a fault matched no request.
func (s *Server) checkFaults() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.injected {
		if !f.hit {
			return fmt.Errorf("no request matched the fault %+v", *f)
		}
	}
	return nil
}

// answerFault answers the request if a fault replaces git's answer, and reports whether it did.
func answerFault(w http.ResponseWriter, r *http.Request, faults []*Fault) bool {
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

// newLimitWriter returns a writer to w with the speed and length limits of the faults, or w if there are none.
func newLimitWriter(ctx context.Context, w flushWriter, faults []*Fault) io.Writer {
	limited := &limitWriter{ctx: ctx, w: w}
	for _, f := range faults {
		if f.truncate != nil {
			limited.truncate = f.truncate
		}
		if f.stall != nil {
			limited.stall = f.stall
		}
		if f.rate > 0 {
			limited.rate = f.rate
		}
	}
	if limited.truncate == nil && limited.stall == nil && limited.rate == 0 {
		return w
	}
	return limited
}

type flushWriter interface {
	io.Writer
	http.Flusher
}

// limitWriter applies the limits of a Fault to the body of an answer.
type limitWriter struct {
	ctx             context.Context
	w               flushWriter
	truncate, stall *int64
	rate, written   int64
}

// Write writes p subject to the limits. If the answer must end, Write panics with http.ErrAbortHandler, which cuts the
// connection.
func (s *limitWriter) Write(p []byte) (int, error) {
	total := len(p)
	for {
		s.checkEnd()
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
			s.wait(time.After(time.Duration(n) * time.Second / time.Duration(s.rate)))
		}
	}
}

// next returns how many of the next n bytes to write in one piece.
func (s *limitWriter) next(n int64) int64 {
	for _, end := range []*int64{s.truncate, s.stall} {
		if end != nil {
			n = min(n, *end-s.written)
		}
	}
	if s.rate > 0 {
		n = min(n, max(1, s.rate/20)) // twenty pieces per second
	}
	return n
}

// checkEnd stalls or cuts the answer if it has reached its limit.
func (s *limitWriter) checkEnd() {
	if s.stall != nil && s.written >= *s.stall {
		s.w.Flush()
		s.wait(nil)
	}
	if s.truncate != nil && s.written >= *s.truncate {
		s.w.Flush()
		panic(http.ErrAbortHandler)
	}
}

// wait returns when the timer fires; a nil timer never fires. It aborts the answer if the client leaves or the server is
// closed.
func (s *limitWriter) wait(timer <-chan time.Time) {
	select {
	case <-timer:
	case <-s.ctx.Done():
		panic(http.ErrAbortHandler)
	}
}

// Feature is an optional feature that some git hosts lack.
type Feature uint8

// The features.
const (
	// Thin is packs with deltas against objects that the client has.
	Thin Feature = 1 << iota
	// Shallow is depth and shallow boundaries.
	Shallow
	// Filter is a partial clone (filter=blob:none).
	Filter
	// SHAWants is a fetch of a commit that is not the tip of a branch or tag.
	SHAWants
	// SingleAck is a fetch without multi_ack_detailed, which Azure DevOps treats as an error.
	SingleAck
)

// Refuse makes the server lack these features, from the next request on: it does not advertise them, speaks only
// protocol v0, and rejects clients that use them anyway. Without arguments it supports all features again.
func (s *Server) Refuse(features ...Feature) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refuse = 0
	for _, f := range features {
		s.refuse |= f
	}
}

// capabilities returns the names by which protocol v0 advertises the refused features.
func (f Feature) capabilities() []string {
	var words []string
	for _, c := range []struct {
		feature Feature
		words   []string
	}{
		{Thin, []string{"thin-pack"}},
		{Shallow, []string{"shallow", "deepen-since", "deepen-not", "deepen-relative"}},
		{Filter, []string{"filter"}},
		{SHAWants, []string{"allow-tip-sha1-in-want", "allow-reachable-sha1-in-want"}},
	} {
		if f&c.feature != 0 {
			words = append(words, c.words...)
		}
	}
	return words
}

// strip removes the refused capabilities from a ref advertisement.
func (f Feature) strip(advertisement []byte) []byte {
	var out bytes.Buffer
	for line := range pktLines(advertisement) {
		if line == nil {
			out.WriteString("0000")
			continue
		}
		refPart, caps, found := bytes.Cut(line, []byte{0})
		if !found {
			out.Write(pktLine(string(line)))
			continue
		}
		supported := slices.DeleteFunc(strings.Fields(string(caps)), func(c string) bool {
			return slices.Contains(f.capabilities(), c)
		})
		out.Write(pktLine(string(refPart) + "\x00" + strings.Join(supported, " ") + "\n"))
	}
	return out.Bytes()
}

// maxRequest is the maximum size of an upload-pack request, which has wants and haves, in bytes.
const maxRequest = 16 << 20

// checkUploadPack returns the body of an upload-pack request. It removes thin-pack if that is refused, because git clients
// request it unconditionally. If the request needs another refused feature, it returns the error message of a server that
// lacks the feature. It leaves Filter to git, which refuses it by its configuration.
func (s *Server) checkUploadPack(r *http.Request, repo string, refuse Feature) (body *bytes.Reader, complaint string, err error) {
	raw := io.Reader(r.Body)
	if r.Header.Get("Content-Encoding") == "gzip" {
		if raw, err = gzip.NewReader(r.Body); err != nil {
			return nil, "", fmt.Errorf("request body: %w", err)
		}
	}
	whole, err := io.ReadAll(io.LimitReader(raw, maxRequest+1))
	if err != nil {
		return nil, "", fmt.Errorf("request body: %w", err)
	}
	if len(whole) > maxRequest {
		return nil, "", errors.New("request body: too long")
	}
	var tips map[string]bool
	if refuse&SHAWants != 0 {
		if tips, err = s.tips(r.Context(), repo); err != nil {
			return nil, "", err
		}
	}
	var out bytes.Buffer
	first := true
	for line := range pktLines(whole) {
		if line == nil {
			out.WriteString("0000")
			continue
		}
		text := string(line)
		if refuse&SingleAck != 0 && first && !strings.Contains(text, " multi_ack_detailed") {
			return nil, "multi_ack_detailed is required", nil
		}
		first = false
		word, rest, _ := strings.Cut(text, " ")
		switch {
		case refuse&Shallow != 0 && (word == "shallow" || strings.HasPrefix(word, "deepen")):
			return nil, "shallow is not supported", nil
		case word == "want":
			id, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
			if tips != nil && !tips[id] {
				return nil, "not our ref " + id, nil
			}
			if refuse&Thin != 0 {
				text = strings.Replace(text, " thin-pack", "", 1)
			}
		}
		out.Write(pktLine(text))
	}
	return bytes.NewReader(out.Bytes()), "", nil
}

// tips returns the objects that a repository advertises.
func (s *Server) tips(ctx context.Context, repo string) (map[string]bool, error) {
	cmd := exec.CommandContext(ctx, "git", "-C", filepath.Join(s.root, filepath.FromSlash(repo)), "show-ref", "--head", "--dereference")
	cmd.Env = append(Env(), configEnv([2]string{"safe.directory", "*"})...)
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("list the refs of %s: %w", repo, err)
	}
	tips := map[string]bool{}
	for line := range strings.Lines(string(out)) {
		id, _, _ := strings.Cut(line, " ")
		tips[id] = true
	}
	return tips, nil
}

// pktLine frames a line of git's protocol.
func pktLine(line string) []byte { return fmt.Appendf(nil, "%04x%s", len(line)+4, line) }

// pktLines yields the lines of a protocol message; nil is a flush packet. It ends with the message, or at the first
// invalid packet.
func pktLines(message []byte) func(yield func([]byte) bool) {
	return func(yield func([]byte) bool) {
		for len(message) >= 4 {
			size, err := strconv.ParseUint(string(message[:4]), 16, 16)
			if err != nil || size != 0 && size < 4 || int(size) > len(message) {
				return
			}
			if size == 0 {
				message = message[4:]
				if !yield(nil) {
					return
				}
				continue
			}
			line := message[4:size]
			message = message[size:]
			if !yield(line) {
				return
			}
		}
	}
}
