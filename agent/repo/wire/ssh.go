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

// clientVersion is how the client introduces itself to ssh servers.
const clientVersion = "SSH-2.0-stoker"

// sshTransport is the transport over ssh. It uses only its Auth: no ssh agent, no ~/.ssh, no environment. Each request uses a new
// connection, because git's programs end after one request.
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
	_, _ = t.in.Write(pktline.FlushPkt) // ends the program without a request
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

// connect connects and starts the program of x's service. Options.Connect limits dialing; Options.Handshake limits the rest. When
// ctx ends, the connection is closed.
func (s *sshTransport) connect(ctx context.Context, x *exchange) (*sshSession, error) {
	config, hostKey, err := s.config()
	if err != nil {
		return nil, err
	}
	address := s.url.dialAddress()
	conn, err := s.opts.Guard.Dialer(s.opts.Connect).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	t := &sshSession{sshTransport: s, service: x.service, conn: conn, stop: context.AfterFunc(ctx, func() { _ = conn.Close() })}
	if err := conn.SetDeadline(time.Now().Add(s.opts.Handshake)); err != nil {
		t.close()
		return nil, err
	}
	c, channels, requests, err := ssh.NewClientConn(conn, address, config)
	if err != nil {
		t.close()
		return nil, s.explainHandshake(errors.Join(err, hostKey.refused), hostKey.knownHosts, hostKey.accepted)
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

// hostKeyResult is the result of the check of a host key.
type hostKeyResult struct {
	knownHosts *knownHosts // nil if every key is accepted
	accepted   bool
	refused    error
}

// config returns the configuration of a connection. The handshake sets the hostKeyResult.
func (s *sshTransport) config() (*ssh.ClientConfig, *hostKeyResult, error) {
	signer, err := s.signer()
	if err != nil {
		return nil, nil, err
	}
	known, err := s.knownHosts()
	if err != nil {
		return nil, nil, err
	}
	var algorithms []string // nil for the default
	check := func(string, net.Addr, ssh.PublicKey) error { return nil }
	if known != nil {
		algorithms, check = known.algorithms(), known.callback
	}
	h := &hostKeyResult{knownHosts: known}
	return &ssh.ClientConfig{
		User:              s.url.sshLogin(),
		Auth:              []ssh.AuthMethod{ssh.PublicKeys(signer)},
		HostKeyAlgorithms: algorithms,
		Timeout:           s.opts.Handshake,
		ClientVersion:     clientVersion,
		HostKeyCallback: func(name string, remote net.Addr, key ssh.PublicKey) error {
			h.refused = check(name, remote, key)
			h.accepted = h.refused == nil
			return h.refused
		},
	}, h, nil
}

// sshSession is one run of a service's program on the server.
type sshSession struct {
	*sshTransport
	service service
	conn    net.Conn
	stop    func() bool // no longer close conn when the context ends
	client  *ssh.Client // nil before the end of the handshake

	session *ssh.Session
	in      io.WriteCloser // standard input of the program
	limit   *receivedBody  // below out
	out     *bufio.Reader  // standard output
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
	t.limit = &receivedBody{ReadCloser: io.NopCloser(out), x: x, remaining: limit, limit: limit}
	t.out = bufio.NewReaderSize(t.limit, capsPeek)
	if err := t.session.Start(t.url.command(t.service)); err != nil {
		if isConnectionError(err) {
			return err
		}
		return failure.New(v1alpha1.ReasonUnsupportedRepository, "%s accepts the login but does not run %s: is it a git host?", t.url, t.service)
	}
	return nil
}

// close closes the connection. Further calls do nothing.
func (t *sshSession) close() {
	t.stop()
	if t.client != nil {
		_ = t.client.Close()
	}
	_ = t.conn.Close()
}

// advertisement reads the advertisement with which the program starts.
func (t *sshSession) advertisement() (*advertisement, error) {
	caps, err := peekCapabilities(t.out, t.url, failure.Quote)
	if err != nil {
		return nil, err
	}
	got := packp.NewAdvRefs()
	err = got.Decode(t.out)
	switch {
	case errors.Is(err, packp.ErrEmptyInput):
		return nil, t.noOutputError()
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

// noOutputError returns the error for a program that ended without an advertisement.
func (t *sshSession) noOutputError() error {
	if !t.exitedWithError() {
		return io.ErrUnexpectedEOF
	}
	if t.service == receivePack {
		return failure.New(v1alpha1.ReasonAuthFailed,
			"the ssh key may not push to %s: it needs write access (%s.sshKey); the server says %s", t.url, t.auth.field(), t.stderr.quoted())
	}
	return failure.New(v1alpha1.ReasonRefNotFound,
		"there is no repository at %s, or the ssh key may not see it: check git.repo and %s; the server says %s", t.url, t.auth.field(), t.stderr.quoted())
}

// exitedWithError waits for the end of the program and reports whether its exit code is an error.
func (t *sshSession) exitedWithError() bool {
	defer t.limit.x.dog.startWait()()
	_, failed := errors.AsType[*ssh.ExitError](t.session.Wait())
	return failed
}

// request requests a pack.
func (t *sshSession) request(req *packp.UploadPackRequest) (*packp.UploadPackResponse, error) {
	if _, err := t.advertisement(); err != nil {
		return nil, err
	}
	head := min(t.opts.MaxBytes, maxNegotiation)
	t.limit.remaining, t.limit.limit = head, head
	encoded, err := encodeRequest(req)
	if err != nil {
		return nil, err
	}
	sendErr := t.send(encoded) // a server may refuse and close the connection before it has read all: prefer its answer
	if err := peekRefusal(t.out, failure.Quote); err != nil {
		return nil, err
	}
	if _, err := t.out.Peek(1); err != nil {
		return nil, t.noAnswerError(cmp.Or(sendErr, err))
	}
	res := packp.NewUploadPackResponse(req)
	if err := res.Decode(t); err != nil {
		return nil, err
	}
	t.limit.raise(t.opts.MaxBytes)
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
	t.limit.remaining, t.limit.limit = maxReport, maxReport
	sendErr := t.send(append([][]byte{u.head}, u.pack...)...) // a server may refuse before it has read all: prefer its answer
	if err := peekRefusal(t.out, failure.Quote); err != nil {
		return err
	}
	if _, err := t.out.Peek(1); err != nil {
		err = t.noAnswerError(cmp.Or(sendErr, err))
		if refused, ok := errors.AsType[*refusedError](err); ok {
			return &abortError{refused.text} // such as a full disk: the server did not decline the update
		}
		return err
	}
	return nil
}

// noAnswerError returns the error for a program that ended without an answer, or for the failure err of the connection. Older
// versions of git write a refusal to their standard error.
func (t *sshSession) noAnswerError(err error) error {
	if !errors.Is(err, io.EOF) {
		return err
	}
	if t.exitedWithError() {
		return &refusedError{t.stderr.quoted()}
	}
	return io.ErrUnexpectedEOF
}

// encodeRequest returns the bytes of a request: wants, haves and "done".
func encodeRequest(req *packp.UploadPackRequest) ([]byte, error) {
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

// send writes a request and closes the standard input of the program.
func (t *sshSession) send(request ...[]byte) error {
	defer t.limit.x.dog.startWait()() // a server that does not read has stalled
	for _, part := range request {
		for chunk := range slices.Chunk(part, sshChunk) {
			n, err := t.in.Write(chunk)
			t.limit.x.dog.progress.Add(int64(n))
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

// textBuffer keeps the first bytes of a text of the server. Several goroutines may use it.
type textBuffer struct {
	limit int // in bytes; 0 means as much as is quoted

	mu   sync.Mutex
	text []byte
}

// Write implements io.Writer. It never fails.
func (s *textBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.text = append(s.text, p[:min(len(p), cmp.Or(s.limit, failure.MaxQuoted+1)-len(s.text))]...)
	return len(p), nil
}

// String returns the text without white space around it. It is not safe to print.
func (s *textBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.TrimSpace(string(s.text))
}

// quoted returns the text in a form that is safe to print, without quotes if it is empty.
func (s *textBuffer) quoted() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.text) == 0 {
		return "nothing"
	}
	return failure.Quote(string(s.text))
}
