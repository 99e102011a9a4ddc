package wire

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-git/go-git/v5/plumbing/format/pktline"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/capability"
	"golang.org/x/crypto/ssh"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// sshTransport is the transport over ssh. It uses nothing but its Auth: no ssh agent, no ~/.ssh, no environment. Each request has
// a connection of its own, because a program of git serves one request and ends.
type sshTransport struct {
	url  URL
	auth Auth
	opts Options
}

func (s *sshTransport) close() error { return nil }

func (s *sshTransport) advertise(ctx context.Context, x *exchange) (*advertisement, error) {
	t, err := s.connect(ctx, x)
	if err != nil {
		return nil, err
	}
	defer t.close()
	a, err := t.advertisement()
	if err != nil {
		return nil, err
	}
	_, _ = t.in.Write(pktline.FlushPkt) // ends the session without a request
	return a, nil
}

func (s *sshTransport) upload(ctx context.Context, x *exchange, _ *advertisement, req *packp.UploadPackRequest) (*packp.UploadPackResponse, error) {
	t, err := s.connect(ctx, x)
	if err != nil {
		return nil, err
	}
	res, err := t.request(req)
	if err != nil {
		t.close()
		return nil, err
	}
	return res, nil
}

func (s *sshTransport) push(ctx context.Context, x *exchange, request func(*advertisement) (*updateRequest, error)) (io.ReadCloser, error) {
	t, err := s.connect(ctx, x)
	if err != nil {
		return nil, err
	}
	if err := t.update(request); err != nil {
		t.close()
		return nil, err
	}
	return t, nil
}

// connect connects and starts the program of x's service on the server. Dialing, the handshake and the session have a deadline each. When ctx
// ends, the connection is closed.
func (s *sshTransport) connect(ctx context.Context, x *exchange) (*sshSession, error) {
	config, hand, err := s.config()
	if err != nil {
		return nil, err
	}
	address := s.url.dialAddress()
	conn, err := (&net.Dialer{Timeout: s.opts.Connect}).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	t := &sshSession{url: s.url, auth: s.auth, service: x.service, stop: context.AfterFunc(ctx, func() { _ = conn.Close() }), conn: conn, opts: s.opts}
	if err := conn.SetDeadline(time.Now().Add(s.opts.Handshake)); err != nil {
		t.close()
		return nil, err
	}
	c, channels, requests, err := ssh.NewClientConn(conn, address, config)
	if err != nil {
		t.close()
		return nil, s.explainHandshake(errors.Join(err, hand.refused), hand.known, hand.accepted)
	}
	t.client = ssh.NewClient(c, channels, requests)
	err = t.start(x)
	if err == nil {
		err = conn.SetDeadline(time.Time{})
	}
	if err != nil {
		t.close()
		return nil, err
	}
	return t, nil
}

// handshake notes the judgment of the host key.
type handshake struct {
	known    *knownHosts // nil if every key is accepted
	accepted bool
	refused  error
}

func (s *sshTransport) config() (*ssh.ClientConfig, *handshake, error) {
	signer, err := s.signer()
	if err != nil {
		return nil, nil, err
	}
	algorithms, check, known, err := s.trust()
	if err != nil {
		return nil, nil, err
	}
	h := &handshake{known: known}
	return &ssh.ClientConfig{
		User:              s.url.sshLogin(),
		Auth:              []ssh.AuthMethod{ssh.PublicKeys(signer)},
		HostKeyAlgorithms: algorithms,
		Timeout:           s.opts.Handshake,
		ClientVersion:     "SSH-2.0-stoker",
		HostKeyCallback: func(name string, remote net.Addr, key ssh.PublicKey) error {
			h.refused = check(name, remote, key)
			h.accepted = h.refused == nil
			return h.refused
		},
	}, h, nil
}

// sshSession is one run of a service's program on the server.
type sshSession struct {
	url     URL
	auth    Auth
	service service
	opts    Options
	conn    net.Conn
	stop    func() bool
	client  *ssh.Client // nil before the end of the handshake

	session *ssh.Session
	in      io.WriteCloser
	limit   *body
	out     *bufio.Reader
	stderr  textBuffer
}

func (t *sshSession) start(x *exchange) error {
	var err error
	if t.session, err = t.client.NewSession(); err != nil {
		return err
	}
	if t.in, err = t.session.StdinPipe(); err != nil {
		return err
	}
	out, err := t.session.StdoutPipe()
	if err != nil {
		return err
	}
	t.session.Stderr = &t.stderr
	limit := min(t.opts.MaxBytes, int64(t.opts.MaxRefs)*refBytes)
	t.limit = &body{ReadCloser: io.NopCloser(out), dog: x.dog, left: limit, limit: limit}
	t.out = bufio.NewReaderSize(t.limit, capsPeek)
	if err := t.session.Start(t.url.command(t.service)); err != nil {
		if broken(err) {
			return err
		}
		return failure.New(v1alpha1.ReasonUnsupportedRepository, "%s let us in and does not run %s: is it a git host?", t.url, t.service)
	}
	return nil
}

// close closes the connection. It may be called again.
func (t *sshSession) close() {
	t.stop()
	if t.client != nil {
		_ = t.client.Close()
	}
	_ = t.conn.Close()
}

func (t *sshSession) advertisement() (*advertisement, error) {
	caps, err := peekCapabilities(t.out, t.url)
	if err != nil {
		return nil, err
	}
	got := packp.NewAdvRefs()
	err = got.Decode(t.out)
	switch {
	case errors.Is(err, packp.ErrEmptyInput):
		return nil, t.nothing()
	case errors.Is(err, packp.ErrEmptyAdvRefs), err == nil && got.IsEmpty():
		if caps == nil {
			caps = capability.NewList()
		}
		return &advertisement{caps: caps, refs: &Refs{}}, nil
	case err != nil:
		return nil, err
	}
	if caps == nil {
		caps = got.Capabilities
	}
	return &advertisement{caps: caps, refs: readRefs(got)}, nil
}

// nothing returns the error for a program that ended without output.
func (t *sshSession) nothing() error {
	if !t.failed() {
		return io.ErrUnexpectedEOF
	}
	if t.service == receivePack {
		return failure.New(v1alpha1.ReasonAuthFailed,
			"the ssh key may not push to %s: it needs write access (%s.sshKey); the server says %s", t.url, t.auth.field(), t.stderr.quoted())
	}
	return failure.New(v1alpha1.ReasonRefNotFound,
		"there is no repository at %s, or the ssh key may not see it: check git.repo and %s; the server says %s", t.url, t.auth.field(), t.stderr.quoted())
}

// failed waits for the end of the program and reports whether it exited with an error.
func (t *sshSession) failed() bool {
	defer t.limit.dog.wait()()
	_, failed := errors.AsType[*ssh.ExitError](t.session.Wait())
	return failed
}

// request asks for a pack. This run of the program sends its advertisement first, too.
func (t *sshSession) request(req *packp.UploadPackRequest) (*packp.UploadPackResponse, error) {
	if _, err := t.advertisement(); err != nil {
		return nil, err
	}
	t.limit.left, t.limit.limit = t.opts.MaxBytes, t.opts.MaxBytes
	asked, err := encoded(req)
	if err != nil {
		return nil, err
	}
	unsent := t.send(asked) // a server that refuses closes the connection during the write: its answer counts more
	if err := peekRefusal(t.out); err != nil {
		return nil, err
	}
	if _, err := t.out.Peek(1); err != nil {
		return nil, t.unanswered(cmp.Or(unsent, err))
	}
	res := packp.NewUploadPackResponse(req)
	if err := res.Decode(t); err != nil {
		return nil, err
	}
	return res, nil
}

// update sends a push. The caller reads the answer.
func (t *sshSession) update(request func(*advertisement) (*updateRequest, error)) error {
	a, err := t.advertisement()
	if err != nil {
		return err
	}
	u, err := request(a)
	if err != nil {
		return err
	}
	t.limit.left, t.limit.limit = maxReport, maxReport
	unsent := t.send(u.head, u.pack) // as in request
	if err := peekRefusal(t.out); err != nil {
		return err
	}
	if _, err := t.out.Peek(1); err != nil {
		err = t.unanswered(cmp.Or(unsent, err))
		if refused, ok := errors.AsType[*refusedError](err); ok {
			return &gaveUpError{refused.words} // such as a full disk: nothing was declined
		}
		return err
	}
	return nil
}

// unanswered returns the error for a program that ended without an answer. Older versions of git report on their standard error.
func (t *sshSession) unanswered(err error) error {
	if !errors.Is(err, io.EOF) {
		return err
	}
	if t.failed() {
		return &refusedError{t.stderr.quoted()}
	}
	return io.ErrUnexpectedEOF
}

// encoded returns the bytes of a request: wants, haves and "done". They are encoded before they are sent, so that an error of the
// connection keeps its type.
func encoded(req *packp.UploadPackRequest) ([]byte, error) {
	var b bytes.Buffer
	if err := req.Validate(); err != nil {
		return nil, err
	}
	if err := req.UploadRequest.Encode(&b); err != nil {
		return nil, err
	}
	if err := req.UploadHaves.Encode(&b, true); err != nil {
		return nil, err
	}
	err := pktline.NewEncoder(&b).Encodef("done\n")
	return b.Bytes(), err
}

func (t *sshSession) send(request ...[]byte) error {
	defer t.limit.dog.wait()() // a server that does not read stalls
	for _, part := range request {
		for chunk := range slices.Chunk(part, sshChunk) {
			n, err := t.in.Write(chunk)
			t.limit.dog.arrived.Add(int64(n))
			if err != nil {
				return err
			}
		}
	}
	return t.in.Close()
}

// sshChunk is how many bytes of a request are written at once, so that the watchdog sees progress.
const sshChunk = 32 << 10

// Read implements io.Reader.
func (t *sshSession) Read(p []byte) (int, error) { return t.out.Read(p) }

// Close implements io.Closer.
func (t *sshSession) Close() error {
	t.close()
	return nil
}

// textBuffer keeps the first bytes of what a server says to the user.
type textBuffer struct {
	mu   sync.Mutex
	text []byte
}

// Write implements io.Writer. It accepts everything and keeps little.
func (s *textBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.text = append(s.text, p[:min(len(p), failure.MaxQuoted+1-min(len(s.text), failure.MaxQuoted+1))]...)
	return len(p), nil
}

// String returns the text without white space around it. It is not safe to print.
func (s *textBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.TrimSpace(string(s.text))
}

func (s *textBuffer) quoted() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.text) == 0 {
		return "nothing"
	}
	return failure.Quote(string(s.text))
}
