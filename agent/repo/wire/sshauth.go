package wire

import (
	"errors"
	"fmt"
	"io"
	"net"

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

// CheckSSHKey returns nil if a private key can be used. An error never contains a part of the key.
func CheckSSHKey(key secret.String) error {
	_, problem := parseSSHKey(key)
	if problem != "" {
		return failure.New(v1alpha1.ReasonAuthFailed, "the ssh key %s", problem)
	}
	return nil
}
