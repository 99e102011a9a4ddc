package gitserver

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/crypto/ssh"
)

// SSHOptions configure an SSHServer.
type SSHOptions struct {
	// HostKeys are the server's keys; by default it has a new Ed25519 key.
	HostKeys []ssh.Signer
	// Users are the accepted public keys by user name; nil accepts every key of every user.
	Users map[string]ssh.PublicKey
	// Config are additional git settings of the server: {"uploadpack.allowFilter", "true"}.
	Config [][2]string
	// Pushes makes the server accept pushes. By default it refuses them, like a git host does for a deploy key that may only read.
	Pushes bool
	// StallHello makes the server send nothing; the connection stays open.
	StallHello bool
	// StallAfter stops sending after so many bytes of git's output; 0 means never.
	StallAfter int64
	// Refuse makes the server advertise its refs, refuse with this message and hang up, without reading the request.
	Refuse string
	// RefuseOnStderr sends the message on standard error, like older versions of git, instead of in an ERR line.
	RefuseOnStderr bool
}

// SSHServer serves bare repositories over ssh on loopback. It runs git upload-pack or git
// receive-pack for the path in the command.
type SSHServer struct {
	root     string
	listener net.Listener
	keys     []ssh.Signer
	running  sync.WaitGroup

	mu         sync.Mutex
	opts       SSHOptions
	conns      map[net.Conn]bool
	closed     bool
	commands   []string
	loginUsers []string
}

// StartSSH serves the bare repositories below root on a free port of the loopback interface.
func StartSSH(root string, opts SSHOptions) (*SSHServer, error) {
	if len(opts.HostKeys) == 0 {
		key, _, err := NewSSHKey()
		if err != nil {
			return nil, err
		}
		opts.HostKeys = []ssh.Signer{key}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("ssh server: %w", err)
	}
	s := &SSHServer{root: root, listener: l, keys: opts.HostKeys, opts: opts, conns: map[net.Conn]bool{}}
	s.running.Go(s.accept)
	return s, nil
}

// NewSSHKey returns a new Ed25519 key, also as PEM text.
func NewSSHKey() (ssh.Signer, string, error) {
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, "", fmt.Errorf("ssh key: %w", err)
	}
	signer, err := ssh.NewSignerFromKey(private)
	if err != nil {
		return nil, "", fmt.Errorf("ssh key: %w", err)
	}
	block, err := ssh.MarshalPrivateKey(private, "")
	if err != nil {
		return nil, "", fmt.Errorf("ssh key: %w", err)
	}
	return signer, string(pem.EncodeToMemory(block)), nil
}

// URL returns the address of a repository.
func (s *SSHServer) URL(user, repo string) string {
	return "ssh://" + user + "@" + s.Addr() + "/" + repo
}

// Addr returns host and port.
func (s *SSHServer) Addr() string { return s.listener.Addr().String() }

// KnownHosts returns the server's known_hosts lines.
func (s *SSHServer) KnownHosts() string {
	var b strings.Builder
	for _, k := range s.keys {
		host, port, _ := net.SplitHostPort(s.Addr())
		fmt.Fprintf(&b, "[%s]:%s %s", host, port, ssh.MarshalAuthorizedKey(k.PublicKey()))
	}
	return b.String()
}

// Set replaces the options except for the host keys, from the next connection on.
func (s *SSHServer) Set(opts SSHOptions) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.opts = opts
}

// Commands returns the requested commands, oldest first.
func (s *SSHServer) Commands() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.commands)
}

// Users returns the user names of login attempts, oldest first.
func (s *SSHServer) Users() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.loginUsers)
}

// Close cuts all connections and waits until they are not served any more. It may be called twice.
func (s *SSHServer) Close() error {
	s.mu.Lock()
	again := s.closed
	s.closed = true
	for c := range s.conns {
		_ = c.Close()
	}
	s.mu.Unlock()
	var err error
	if !again {
		err = s.listener.Close()
	}
	s.running.Wait()
	return err
}

func (s *SSHServer) accept() {
	for {
		c, err := s.listener.Accept()
		if err != nil {
			return
		}
		s.mu.Lock()
		if s.closed {
			s.mu.Unlock()
			_ = c.Close()
			return
		}
		s.conns[c] = true
		opts := s.opts
		s.running.Go(func() { s.serve(c, opts) })
		s.mu.Unlock()
	}
}

func (s *SSHServer) serve(c net.Conn, opts SSHOptions) {
	defer func() {
		s.mu.Lock()
		delete(s.conns, c)
		s.mu.Unlock()
		_ = c.Close()
	}()
	if opts.StallHello {
		_, _ = io.Copy(io.Discard, c)
		return
	}
	config := &ssh.ServerConfig{PublicKeyCallback: func(meta ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
		s.mu.Lock()
		s.loginUsers = append(s.loginUsers, meta.User())
		s.mu.Unlock()
		if want, ok := opts.Users[meta.User()]; opts.Users != nil && (!ok || string(want.Marshal()) != string(key.Marshal())) {
			return nil, fmt.Errorf("unknown key of user %q", meta.User())
		}
		return &ssh.Permissions{}, nil
	}}
	for _, k := range s.keys {
		config.AddHostKey(k)
	}
	conn, channels, requests, err := ssh.NewServerConn(c, config)
	if err != nil {
		return
	}
	defer func() { _ = conn.Close() }()
	go ssh.DiscardRequests(requests)
	disconnected := make(chan struct{})
	s.running.Go(func() {
		_ = conn.Wait()
		close(disconnected)
	})
	for offer := range channels {
		if offer.ChannelType() != "session" {
			_ = offer.Reject(ssh.UnknownChannelType, "sessions only")
			continue
		}
		channel, requests, err := offer.Accept()
		if err != nil {
			return
		}
		s.session(channel, requests, opts, disconnected)
	}
}

// session serves the first command of a session, and refuses all other requests.
func (s *SSHServer) session(channel ssh.Channel, requests <-chan *ssh.Request, opts SSHOptions, disconnected <-chan struct{}) {
	defer func() { _ = channel.Close() }()
	for r := range requests {
		var exec struct{ Command string }
		if r.Type != "exec" || ssh.Unmarshal(r.Payload, &exec) != nil {
			_ = r.Reply(false, nil)
			continue
		}
		s.mu.Lock()
		s.commands = append(s.commands, exec.Command)
		s.mu.Unlock()
		program, quoted, ok := strings.Cut(exec.Command, " ")
		pushes := program == "git-receive-pack"
		ok = ok && (pushes || program == "git-upload-pack")
		_ = r.Reply(ok, nil)
		if !ok {
			return
		}
		go ssh.DiscardRequests(requests)
		var code uint32 = 1
		if pushes && !opts.Pushes {
			_, _ = io.WriteString(channel.Stderr(), "ERROR: The key you are authenticating with has been marked as read only.\n")
		} else {
			code = s.run(channel, strings.TrimPrefix(program, "git-"), unquote(quoted), opts, disconnected)
		}
		_, _ = channel.SendRequest("exit-status", false, ssh.Marshal(struct{ Code uint32 }{code}))
		return
	}
}

// unquote reverses shell quoting, as far as git uses it.
func unquote(s string) string {
	return strings.NewReplacer(`'\''`, "'", `'\!'`, "!").Replace(strings.TrimSuffix(strings.TrimPrefix(s, "'"), "'"))
}

// run runs git for the path in a command and returns its exit status.
func (s *SSHServer) run(channel ssh.Channel, program, path string, opts SSHOptions, disconnected <-chan struct{}) uint32 {
	args := []string{program}
	if opts.Refuse != "" {
		args = append(args, "--advertise-refs")
	}
	cmd := exec.Command("git", append(args, "--", filepath.Join(s.root, filepath.Join("/", filepath.FromSlash(path))))...)
	settings := append([][2]string{{"safe.directory", "*"}}, opts.Config...)
	cmd.Env = append(Env(), configEnv(settings...)...)
	cmd.Stdout, cmd.Stderr = io.Writer(channel), channel.Stderr()
	if opts.Refuse != "" {
		return advertiseAndRefuse(cmd, channel, opts)
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		return 1
	}
	if opts.StallAfter > 0 {
		cmd.Stdout = &stallingWriter{w: channel, remaining: opts.StallAfter, disconnected: disconnected}
	}
	if err := cmd.Start(); err != nil {
		return 1
	}
	go func() { // ends with the channel, at the latest when the server closes
		_, _ = io.Copy(in, channel)
		_ = in.Close()
	}()
	if err := cmd.Wait(); err != nil {
		return 128
	}
	return 0
}

// advertiseAndRefuse lets git advertise its refs, refuses the request with opts.Refuse, and returns the exit status.
func advertiseAndRefuse(refs *exec.Cmd, channel ssh.Channel, opts SSHOptions) uint32 {
	if err := refs.Run(); err != nil {
		return 1
	}
	var err error
	if opts.RefuseOnStderr {
		_, err = io.WriteString(channel.Stderr(), "fatal: "+opts.Refuse+"\n")
	} else {
		_, err = fmt.Fprintf(channel, "%04xERR %s", 8+len(opts.Refuse), opts.Refuse)
	}
	if err != nil {
		return 1
	}
	return 128
}

// stallingWriter blocks after the remaining bytes until the connection closes.
type stallingWriter struct {
	w            io.Writer
	remaining    int64
	disconnected <-chan struct{}
}

func (s *stallingWriter) Write(p []byte) (int, error) {
	n := min(int64(len(p)), s.remaining)
	s.remaining -= n
	if _, err := s.w.Write(p[:n]); err != nil || n == int64(len(p)) {
		return len(p), err
	}
	<-s.disconnected
	return 0, io.ErrClosedPipe
}
