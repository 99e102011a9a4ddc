package wire

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"slices"
	"strings"

	"golang.org/x/crypto/ssh"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/secret"
)

// hostKeyNegotiation is the value of ssh.AlgorithmNegotiationError.What for host key algorithms.
const hostKeyNegotiation = "host key"

// signer returns the private key. An error never contains a part of the key.
func (s *sshTransport) signer() (ssh.Signer, error) {
	if s.auth.Key == nil {
		return nil, failure.New(v1alpha1.ReasonAuthFailed,
			"%s is reached over ssh, which needs a private key: set %s.sshKey (a token works only with an https:// address)", s.url, s.auth.field())
	}
	key, err := s.auth.Key()
	if err != nil {
		return nil, failure.New(v1alpha1.ReasonAuthFailed, "the ssh key for %s cannot be read: %w", s.url, err)
	}
	signer, problem := parseSSHKey(key)
	if problem != "" {
		return nil, failure.New(v1alpha1.ReasonAuthFailed, "the ssh key for %s %s", s.url, problem)
	}
	return signer, nil
}

// parseSSHKey reads a private key, or says what is wrong with it.
func parseSSHKey(key secret.String) (_ ssh.Signer, problem string) {
	// OpenSSH's own format needs the newline at the end, which secrets easily lose.
	pem := []byte(key.Reveal() + "\n")
	signer, err := ssh.ParsePrivateKey(pem)
	if err == nil {
		return signer, ""
	}
	if _, locked := errors.AsType[*ssh.PassphraseMissingError](err); locked {
		return nil, "is protected by a passphrase, which the agent cannot enter: use a key without one, such as a read-only deploy key"
	}
	if _, _, _, _, err := ssh.ParseAuthorizedKey(pem); err == nil {
		return nil, "is a public key: put the private key into the Secret, and register the public key at the git host"
	}
	return nil, "is not a private key in PEM or OpenSSH format"
}

// knownHosts returns the host keys that are trusted, or nil if every key is accepted.
func (s *sshTransport) knownHosts() (*knownHosts, error) {
	if s.auth.InsecureIgnoreHostKey {
		return nil, nil
	}
	text, builtIn := []byte(publicHosts), true
	if s.auth.KnownHosts != nil {
		var err error
		if text, err = s.auth.KnownHosts(); err != nil {
			return nil, failure.New(v1alpha1.ReasonHostKeyUnknown,
				"%s.sshKey.knownHosts cannot be read, so no host is trusted: %w", s.auth.field(), err)
		}
		builtIn = false
	}
	known, err := parseKnownHosts(text, s.url, s.auth.field())
	if err != nil {
		return nil, err
	}
	known.builtIn = builtIn
	return known, nil
}

// explainHandshake adds a reason to the error of a handshake. known is nil if every host key is accepted, and accepted is set
// if the host key was accepted. x/crypto has types for few errors. If accepted is set and the connection did not break,
// explainHandshake assumes that the host has refused the client's key.
func (s *sshTransport) explainHandshake(err error, known *knownHosts, accepted bool) error {
	if f, ok := errors.AsType[*failure.Error](err); ok {
		return f
	}
	if n, ok := errors.AsType[*ssh.AlgorithmNegotiationError](err); ok {
		if n.What == hostKeyNegotiation && known != nil && !known.hasNoKeys() {
			return known.mismatch()
		}
		return failure.New(v1alpha1.ReasonUnsupportedRepository,
			"%s and the agent have no ssh algorithm in common: %s; its ssh server is too old or too strict", s.url, failure.Quote(n.Error()))
	}
	if accepted && !isConnectionError(err) {
		return failure.New(v1alpha1.ReasonAuthFailed,
			"%s rejects the ssh key for %s: is its public key a deploy key of this repository (or a key of an account that may read it)?",
			s.url, s.userDescription())
	}
	return fmt.Errorf("the ssh handshake failed: %w", err)
}

// isConnectionError reports whether err means that the connection broke.
func isConnectionError(err error) bool {
	_, network := errors.AsType[net.Error](err)
	return network || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed)
}

// userDescription describes the user of the login. It does not repeat the user of the address, which may be a misplaced token.
func (s *sshTransport) userDescription() string {
	if s.url.sshLogin() == defaultSSHUser {
		return "the user git"
	}
	return "the user that git.repo names"
}

const (
	sshPort        = "22"
	defaultSSHUser = "git" // if the address has no user
	maxSSHUser     = 64    // bytes
)

// parseSSH reads ssh://user@host:port/path. As in git, a path that starts with ~ is relative to a home directory.
func parseSSH(s string) (URL, error) {
	p, err := parseAddress(s)
	if err != nil {
		return URL{}, err
	}
	u := URL{scheme: "ssh", host: canonicalHost("ssh", p), path: strings.TrimRight(p.Path, "/")}
	if strings.HasPrefix(u.path, "/~") {
		u.path = u.path[1:]
	}
	if u.path == "" {
		return URL{}, badURL("it names no repository: add a path after the host")
	}
	if p.User == nil {
		return u, nil
	}
	if _, ok := p.User.Password(); ok {
		return URL{}, badURL("it contains a password, which ssh does not use: set a private key in git.auth.sshKey, and treat the password as compromised")
	}
	return u.withUser(p.User.Username())
}

// parseSCP reads the form user@host:path. For other text without a scheme, it returns an error that says what is wrong.
func parseSCP(s string) (URL, error) {
	if strings.Contains(s, "::") && !strings.Contains(s, "[") {
		return URL{}, badURL("remote helpers (name::address) are never run: use https:// or an absolute directory")
	}
	user, rest, hasUser := strings.Cut(s, "@")
	if !hasUser {
		user, rest = "", s
	}
	host, path, ok := strings.Cut(rest, ":")
	if strings.HasPrefix(rest, "[") {
		host, path, ok = strings.Cut(rest[1:], "]:")
	}
	switch {
	case !ok || strings.Contains(host, "/"):
		return URL{}, badURL("it is neither https:// nor ssh:// nor user@host:path nor the absolute path of a directory (relative paths are not supported)")
	case slices.Contains([]string{"https", "http", "ssh", "file", "git", "ftp"}, strings.ToLower(host)):
		return URL{}, badURL("two slashes are missing after the colon")
	case !validHost(host):
		return URL{}, badURL("its host is not a host name")
	case path == "" || strings.HasPrefix(path, "-") || strings.HasPrefix(path, ":") || strings.Trim(path, "/") == "":
		return URL{}, badURL("what follows the colon is not the path of a repository")
	case strings.Contains(path, "@"): // a user could not see which @ ends the user name
		return URL{}, badURL("its path has an @: write it as ssh://user@host/path")
	}
	u := URL{scheme: "ssh", host: bracketIPv6(strings.ToLower(host)), path: strings.TrimRight(path, "/")}
	if strings.HasPrefix(u.path, "/~") {
		u.path = u.path[1:]
	}
	if !hasUser {
		return u, nil
	}
	return u.withUser(user)
}

// withUser returns u with a user. It refuses names that a shell or an option parser could misread.
func (u URL) withUser(name string) (URL, error) {
	ok := name != "" && len(name) <= maxSSHUser && name[0] != '-' && name[0] != '.'
	for _, c := range []byte(name) {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', strings.IndexByte("-_.+~", c) >= 0:
		default:
			ok = false
		}
	}
	if !ok {
		return URL{}, badURL("its user name is not valid: use at most %d letters, digits and -_.+~, and begin with neither - nor .", maxSSHUser)
	}
	u.setLogin(name, "")
	return u, nil
}

// sshLogin returns the user of an ssh address, or defaultSSHUser if the address names no user.
func (u URL) sshLogin() string {
	if name, _ := u.credentials(); name != "" {
		return name
	}
	return defaultSSHUser
}

// dialAddress returns the host and the port of an ssh address.
func (u URL) dialAddress() string {
	h := url.URL{Host: u.host}
	return net.JoinHostPort(h.Hostname(), cmp.Or(h.Port(), sshPort))
}

// command returns the command line that starts a service. It quotes the path for a shell: within single quotes, only the quote is
// special, and ! for csh.
func (u URL) command(s service) string {
	return s.String() + " '" + strings.NewReplacer("'", `'\''`, "!", `'\!'`).Replace(u.path) + "'"
}
