package wire

import (
	"context"
	"errors"
	"net"
	"time"

	"golang.org/x/crypto/ssh"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/secret"
)

// HostKey is the key that an ssh server presents. Nothing proves that the server is the right one.
type HostKey struct {
	Fingerprint string // such as SHA256:…
	Type        string // such as ssh-ed25519
	Line        string // for known_hosts
}

// HasBuiltInHostKey reports whether the client knows the host keys of an ssh address without a known_hosts file.
func (u URL) HasBuiltInHostKey() bool {
	known, err := parseKnownHosts([]byte(publicHosts), u, "")
	return u.SSH() && err == nil && !known.hasNoKeys()
}

// GetHostKey asks the server of an ssh address for its host key. It sends no credentials.
func GetHostKey(ctx context.Context, u URL, o Options) (HostKey, error) {
	o = o.WithDefaults()
	known := &knownHosts{url: u}
	if known.name = normalName(u); !u.SSH() {
		return HostKey{}, failure.New(v1alpha1.ReasonUnsupportedRepository, "%s is not an ssh address: only ssh has host keys", u)
	}
	address := u.dialAddress()
	conn, err := o.Guard.Dialer(o.Connect).DialContext(ctx, "tcp", address)
	if err != nil {
		return HostKey{}, Explain(ctx, u, err, nil)
	}
	defer func() { _ = conn.Close() }() // the key is read, or the error is known
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	if err := conn.SetDeadline(time.Now().Add(o.Handshake)); err != nil {
		return HostKey{}, Explain(ctx, u, err, nil)
	}
	var found ssh.PublicKey
	errEnough := errors.New("the key is known")
	_, _, _, err = ssh.NewClientConn(conn, address, &ssh.ClientConfig{
		User: defaultSSHUser, ClientVersion: clientVersion, Timeout: o.Handshake, HostKeyAlgorithms: known.algorithms(),
		HostKeyCallback: func(_ string, _ net.Addr, key ssh.PublicKey) error {
			found = key
			return errEnough
		},
	})
	if found == nil {
		return HostKey{}, Explain(ctx, u, err, nil)
	}
	return HostKey{ssh.FingerprintSHA256(found), found.Type(), known.knownHostsLine(found)}, nil
}

// CheckSSHKey returns nil if a private key can be used. An error never contains a part of the key.
func CheckSSHKey(key secret.String) error {
	_, problem := parseSSHKey(key)
	if problem != "" {
		return failure.New(v1alpha1.ReasonAuthFailed, "the ssh key %s", problem)
	}
	return nil
}
