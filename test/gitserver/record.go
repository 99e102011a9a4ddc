package gitserver

import (
	"bufio"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// Service is the git service of a request.
type Service string

// The services.
const (
	// Advertisement is the list of refs, which is the cost of a poll. In protocol v2 it takes two requests.
	Advertisement Service = "advertisement"
	// UploadPack is a fetch.
	UploadPack Service = "upload-pack"
	// PushAdvertisement is the list of refs before a push.
	PushAdvertisement Service = "push advertisement"
	// ReceivePack is a push.
	ReceivePack Service = "receive-pack"
	// Other is anything else; git answers it with an error.
	Other Service = "other"
)

// Request is one entry of the server's log.
type Request struct {
	Method, Path string
	Repo         string // below the root
	Service      Service
	// Authorization reports whether the request had credentials, and User is their name (basic auth).
	Authorization bool
	User          string
	Status        int   // 0 if the connection was cut before the answer
	In, Out       int64 // bytes of the two bodies, as sent
	Pack          int64 // bytes of pack data in Out, without the framing
	Duration      time.Duration
	Backend       string // git's standard error
}

// Stats are the totals of the log.
type Stats struct {
	Requests, Advertisements, UploadPacks int
	// PackBytes is the size of the packs sent.
	PackBytes int64
	// Out is the size of all answers.
	Out int64
}

// Requests returns the log since the start or the last Forget, oldest first. A request is logged when its answer begins, and its entry counts
// each byte before the client gets it. Backend is set when the request ends.
func (s *Server) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]Request, 0, len(s.log))
	for _, r := range s.log {
		list = append(list, *r)
	}
	return list
}

// Stats returns the totals since the start or the last Forget.
func (s *Server) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	var sum Stats
	for _, r := range s.log {
		sum.Requests++
		switch r.Service {
		case Advertisement:
			sum.Advertisements++
		case UploadPack:
			sum.UploadPacks++
		}
		sum.PackBytes += r.Pack
		sum.Out += r.Out
	}
	return sum
}

// Forget clears the log. Requests in flight are not logged later, because their clients may already have the answers.
func (s *Server) Forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.log = nil
	s.logClears++
}

// maxLog is the maximum length of the log, so that an agent in an endless loop does not use up the memory of its test.
const maxLog = 100_000

// publish updates the entry of a request in the log. The first call adds it, unless the log was cleared since the request began.
func (rec *recorder) publish() {
	r, s := rec.Request, rec.server
	r.In, r.Duration = rec.in.Load(), time.Since(rec.began)
	if rec.Service == UploadPack {
		r.Pack = rec.pack.bytes
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if rec.entry == nil && rec.logClears == s.logClears && len(s.log) < maxLog {
		rec.entry = &Request{}
		s.log = append(s.log, rec.entry)
	}
	if rec.entry != nil {
		*rec.entry = r
	}
}

// classify returns the repository and service of a request.
func classify(r *http.Request) (repo string, service Service) {
	path := strings.TrimPrefix(r.URL.Path, "/")
	if repo, ok := strings.CutSuffix(path, "/info/refs"); ok && r.URL.Query().Get("service") == "git-upload-pack" {
		return repo, Advertisement
	}
	if repo, ok := strings.CutSuffix(path, "/info/refs"); ok && r.URL.Query().Get("service") == "git-receive-pack" {
		return repo, PushAdvertisement
	}
	if repo, ok := strings.CutSuffix(path, "/git-receive-pack"); ok {
		return repo, ReceivePack
	}
	if repo, ok := strings.CutSuffix(path, "/git-upload-pack"); ok {
		if isLsRefs(r) {
			return repo, Advertisement
		}
		return repo, UploadPack
	}
	repo, _, _ = strings.Cut(path, "/")
	return repo, Other
}

// isLsRefs reports whether a request is the ls-refs command of protocol v2 and not a fetch. It does not consume the body.
func isLsRefs(r *http.Request) bool {
	const command = "command=ls-refs"
	body := bufio.NewReader(r.Body)
	head, _ := body.Peek(len("0014") + len(command)) // a shorter body is not ls-refs
	r.Body = &peekedBody{body, r.Body}
	return strings.HasSuffix(string(head), command)
}

// peekedBody is a request body that was partly read ahead.
type peekedBody struct {
	io.Reader
	io.Closer
}

// recorder records a request and its answer.
type recorder struct {
	http.ResponseWriter
	Request
	server    *Server
	logClears int      // of the server when the request began
	entry     *Request // in the log of the server, guarded by server.mu; nil before publish
	in        atomic.Int64
	pack      packCounter
	began     time.Time
}

func (s *Server) newRecorder(w http.ResponseWriter, r *http.Request, logClears int) *recorder {
	rec := &recorder{ResponseWriter: w, server: s, logClears: logClears, began: time.Now()}
	rec.Method, rec.Path = r.Method, r.URL.Path
	rec.Authorization = r.Header.Get("Authorization") != ""
	rec.User, _, _ = r.BasicAuth()
	r.Body = &countingBody{ReadCloser: r.Body, n: &rec.in}
	rec.Repo, rec.Service = classify(r)
	return rec
}

func (rec *recorder) WriteHeader(status int) {
	rec.Status = status
	rec.publish()
	rec.ResponseWriter.WriteHeader(status)
}

func (rec *recorder) Write(p []byte) (int, error) {
	if rec.Status == 0 {
		rec.Status = http.StatusOK
	}
	rec.Out += int64(len(p))
	if rec.Service == UploadPack {
		rec.pack.count(p)
	}
	rec.publish() // first, because a client may use its answer before Write returns
	return rec.ResponseWriter.Write(p)
}

func (rec *recorder) Flush() { _ = http.NewResponseController(rec.ResponseWriter).Flush() }

type countingBody struct {
	io.ReadCloser
	n *atomic.Int64
}

func (c *countingBody) Read(p []byte) (int, error) {
	n, err := c.ReadCloser.Read(p)
	c.n.Add(int64(n))
	return n, err
}

// packCounter counts the pack data in the answer of an upload-pack: the payload of side band 1, or everything from the
// first "PACK" if the client asked for no side band.
type packCounter struct {
	bytes     int64
	size      []byte // of the next packet: up to four hex digits
	remaining int    // bytes of this packet
	atBand    bool   // the next byte is the first one of its packet
	isPack    bool   // this packet is on band 1
	raw       bool   // everything that follows is pack data
}

func (c *packCounter) count(p []byte) {
	for len(p) > 0 {
		switch {
		case c.raw:
			c.bytes += int64(len(p))
			return
		case c.remaining > 0:
			p = c.payload(p)
		default:
			n := min(4-len(c.size), len(p))
			c.size, p = append(c.size, p[:n]...), p[n:]
			if len(c.size) == 4 {
				c.beginPacket()
			}
		}
	}
}

func (c *packCounter) beginPacket() {
	head := string(c.size)
	c.size = c.size[:0]
	if head == "PACK" {
		c.raw, c.bytes = true, c.bytes+4
		return
	}
	size, err := strconv.ParseUint(head, 16, 16)
	if err != nil || size <= 4 {
		return // flush and delimiter packets have no payload
	}
	c.remaining, c.atBand = int(size)-4, true
}

func (c *packCounter) payload(p []byte) []byte {
	n := min(c.remaining, len(p))
	if c.atBand {
		c.atBand, c.isPack = false, p[0] == 1
		if c.isPack {
			c.bytes-- // the band number
		}
	}
	if c.isPack {
		c.bytes += int64(n)
	}
	c.remaining -= n
	return p[n:]
}
