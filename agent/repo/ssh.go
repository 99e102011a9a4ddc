package repo

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"github.com/go-git/go-git/v5/plumbing/format/pktline"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/capability"
	"golang.org/x/crypto/ssh"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// secureShell is the way to a repository behind ssh. It asks nobody but its Auth: no agent, no ~/.ssh, no environment. Each
// question is a connection of its own, as the server's program serves one and ends.
type secureShell struct {
	url  URL
	auth Auth
	opts RemoteOptions
}

func (s *secureShell) close() error { return nil }

func (s *secureShell) advertise(ctx context.Context, x *exchange) (*advert, error) {
	t, err := s.talk(ctx, x)
	if err != nil {
		return nil, err
	}
	defer t.hangUp()
	a, err := t.advertisement()
	if err != nil {
		return nil, err
	}
	_, _ = t.in.Write(pktline.FlushPkt) // the polite end: we want nothing
	return a, nil
}

func (s *secureShell) upload(ctx context.Context, x *exchange, _ *advert, req *packp.UploadPackRequest) (*packp.UploadPackResponse, error) {
	t, err := s.talk(ctx, x)
	if err != nil {
		return nil, err
	}
	res, err := t.request(req)
	if err != nil {
		t.hangUp()
		return nil, err
	}
	return res, nil
}

// talk connects and starts the server's program. Dialling, the handshake and what follows each have their deadline; when
// ctx ends, the connection is cut.
func (s *secureShell) talk(ctx context.Context, x *exchange) (*talk, error) {
	config, hand, err := s.config()
	if err != nil {
		return nil, err
	}
	address := s.url.dialAddress()
	conn, err := (&net.Dialer{Timeout: s.opts.Connect}).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	t := &talk{url: s.url, stop: context.AfterFunc(ctx, func() { _ = conn.Close() }), conn: conn, opts: s.opts}
	if err := conn.SetDeadline(time.Now().Add(s.opts.Handshake)); err != nil {
		t.hangUp()
		return nil, err
	}
	c, channels, requests, err := ssh.NewClientConn(conn, address, config)
	if err != nil {
		t.hangUp()
		return nil, s.explainHandshake(errors.Join(err, hand.refused), hand.known, hand.accepted)
	}
	t.client = ssh.NewClient(c, channels, requests)
	err = t.start(x)
	if err == nil {
		err = conn.SetDeadline(time.Time{})
	}
	if err != nil {
		t.hangUp()
		return nil, err
	}
	return t, nil
}

// handshake is what is learned of the host key on the way.
type handshake struct {
	known    *knownHosts // nil where every key is taken
	accepted bool
	refused  error
}

func (s *secureShell) config() (*ssh.ClientConfig, *handshake, error) {
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

// talk is one run of git-upload-pack at the server.
type talk struct {
	url    URL
	opts   RemoteOptions
	conn   net.Conn
	stop   func() bool
	client *ssh.Client // nil until the handshake is done

	session *ssh.Session
	in      io.WriteCloser
	limit   *body
	out     *bufio.Reader
	said    said
}

func (t *talk) start(x *exchange) error {
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
	t.session.Stderr = &t.said
	limit := min(t.opts.MaxBytes, int64(t.opts.MaxRefs)*refBytes)
	t.limit = &body{ReadCloser: io.NopCloser(out), dog: x.dog, left: limit, limit: limit}
	t.out = bufio.NewReaderSize(t.limit, capsPeek)
	if err := t.session.Start(t.url.command()); err != nil {
		if broken(err) {
			return err
		}
		return failure.New(v1alpha1.ReasonUnsupportedRepository, "%s let us in and does not run git-upload-pack: is it a git host?", t.url)
	}
	return nil
}

// hangUp cuts the connection. It may be called again.
func (t *talk) hangUp() {
	t.stop()
	if t.client != nil {
		_ = t.client.Close()
	}
	_ = t.conn.Close()
}

func (t *talk) advertisement() (*advert, error) {
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
		return &advert{caps: capability.NewList(), refs: &refs{}}, nil
	case err != nil:
		return nil, err
	}
	if caps == nil {
		caps = got.Capabilities
	}
	return &advert{caps: caps, refs: readRefs(got)}, nil
}

// nothing explains a program that ended before it said a word.
func (t *talk) nothing() error {
	if !t.failed() {
		return io.ErrUnexpectedEOF
	}
	return failure.New(v1alpha1.ReasonRefNotFound,
		"there is no repository at %s, or the ssh key may not see it: check git.repo and git.auth; the server says %s", t.url, t.said.quoted())
}

// failed waits for the program's end and reports whether it says that it failed.
func (t *talk) failed() bool {
	defer t.limit.dog.wait()()
	_, failed := errors.AsType[*ssh.ExitError](t.session.Wait())
	return failed
}

// request asks for a pack. The advertisement that comes first here too is that of this very run.
func (t *talk) request(req *packp.UploadPackRequest) (*packp.UploadPackResponse, error) {
	if _, err := t.advertisement(); err != nil {
		return nil, err
	}
	t.limit.left, t.limit.limit = t.opts.MaxBytes, t.opts.MaxBytes
	asked, err := encoded(req)
	if err != nil {
		return nil, err
	}
	unsent := t.send(asked) // a server that refuses hangs up while we still write: what it said counts more
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

// unanswered explains a program that ended without an answer. Older versions of git complain on their standard error.
func (t *talk) unanswered(err error) error {
	if !errors.Is(err, io.EOF) {
		return err
	}
	if t.failed() {
		return &refusedError{t.said.quoted()}
	}
	return io.ErrUnexpectedEOF
}

// encoded is the text of a request: wants, haves and that this is all. It is made before it is sent, so that an error of
// the connection keeps its type.
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

func (t *talk) send(request []byte) error {
	defer t.limit.dog.wait()() // a server that does not read is one that stalls
	if _, err := t.in.Write(request); err != nil {
		return err
	}
	return t.in.Close()
}

// Read implements io.Reader.
func (t *talk) Read(p []byte) (int, error) { return t.out.Read(p) }

// Close implements io.Closer.
func (t *talk) Close() error {
	t.hangUp()
	return nil
}

// said keeps the first words of the server's standard error.
type said struct {
	mu   sync.Mutex
	text []byte
}

// Write implements io.Writer; it takes everything and keeps little.
func (s *said) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.text = append(s.text, p[:min(len(p), maxQuoted+1-min(len(s.text), maxQuoted+1))]...)
	return len(p), nil
}

func (s *said) quoted() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.text) == 0 {
		return "nothing"
	}
	return quoted(string(s.text))
}
