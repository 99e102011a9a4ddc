package wire

import (
	"bufio"
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha1"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

const (
	maxKnownHosts = 1 << 20 // bytes: the maximum size of a Secret
	maxShownKey   = 4 << 10 // bytes of a known_hosts line in a message
)

// knownHosts has the keys of a known_hosts file that matter for one host.
//
// The parser of x/crypto/ssh/knownhosts is not usable here: it reads only named files, refuses the whole file for one unreadable
// line, does not match patterns of ports, accepts the key of an authority as a plain host key, does not return the algorithms to
// offer, and takes exponential time for some patterns.
type knownHosts struct {
	url         URL
	field       string // of the spec, for errors
	name        string // of the host in known_hosts: host, or [host]:port
	builtIn     bool   // the keys are those of publicHosts
	trusted     []ssh.PublicKey
	authorities []ssh.PublicKey
	revoked     []ssh.PublicKey // by the lines of all hosts, because another machine may have such a key
	skipped     []int           // numbers of lines that cannot be read
}

// parseKnownHosts reads the lines for the host of u. Like OpenSSH, it skips a line that it cannot read. If such a line starts with a
// marker, parseKnownHosts fails, because the line may revoke a key. It also skips a line with a certificate in place of a key. auth is the
// field of the spec that errors name.
func parseKnownHosts(text []byte, u URL, auth string) (*knownHosts, error) {
	field := auth + ".sshKey.knownHosts"
	if len(text) > maxKnownHosts {
		return nil, failure.New(v1alpha1.ReasonHostKeyUnknown, "%s has more than %d bytes; nothing is trusted", field, maxKnownHosts)
	}
	k := &knownHosts{url: u, field: field, name: normalName(u)}
	lines := bufio.NewScanner(bytes.NewReader(bytes.TrimPrefix(text, []byte("\ufeff")))) // editors of Windows write one
	lines.Buffer(nil, maxKnownHosts+1)
	for n := 1; lines.Scan(); n++ {
		line := bytes.TrimSpace(lines.Bytes())
		if len(line) == 0 || line[0] == '#' {
			continue
		}
		marker, hosts, key, _, _, err := ssh.ParseKnownHosts(line)
		invalid := err != nil || isCertificate(key.Type())
		switch {
		case invalid && line[0] == '@', !invalid && marker != "" && marker != "revoked" && marker != "cert-authority":
			return nil, failure.New(v1alpha1.ReasonHostKeyUnknown,
				"line %d of %s starts with a marker and cannot be read; no host is trusted until you correct it", n, field)
		case invalid:
			k.skipped = append(k.skipped, n)
		case marker == "revoked":
			k.revoked = append(k.revoked, key)
		case !matchesHost(hosts, k.name):
		case marker == "cert-authority":
			k.authorities = append(k.authorities, key)
		default:
			k.trusted = append(k.trusted, key)
		}
	}
	return k, lines.Err()
}

// normalName returns the name of a host in known_hosts.
func normalName(u URL) string { return knownhosts.Normalize(u.dialAddress()) }

// hasNoKeys reports whether the file trusts no key for the host.
func (k *knownHosts) hasNoKeys() bool { return len(k.trusted)+len(k.authorities) == 0 }

// algorithms lists the algorithms of the trusted keys. If the client offered others, a server with several keys could show an
// unknown one. RSA keys must sign with SHA-2.
func (k *knownHosts) algorithms() []string {
	if k.hasNoKeys() { // the key of the server is refused, but the error shows its fingerprint
		return slices.DeleteFunc(slices.Clone(ssh.SupportedAlgorithms().HostKeys), isCertificate)
	}
	var out []string
	add := func(names ...string) {
		for _, n := range names {
			if !slices.Contains(out, n) {
				out = append(out, n)
			}
		}
	}
	if len(k.authorities) > 0 {
		add(slices.DeleteFunc(slices.Clone(ssh.SupportedAlgorithms().HostKeys), func(n string) bool { return !isCertificate(n) })...)
	}
	for _, key := range k.trusted {
		if key.Type() == ssh.KeyAlgoRSA {
			add(ssh.KeyAlgoRSASHA512, ssh.KeyAlgoRSASHA256)
			continue
		}
		add(key.Type())
	}
	return out
}

func isCertificate(algorithm string) bool { return strings.Contains(algorithm, "-cert-") }

// callback is the ssh.HostKeyCallback. Its errors have a reason.
func (k *knownHosts) callback(address string, remote net.Addr, key ssh.PublicKey) error {
	c := ssh.CertChecker{
		IsHostAuthority: func(authority ssh.PublicKey, _ string) bool { return containsKey(k.authorities, authority) },
		IsRevoked: func(cert *ssh.Certificate) bool {
			return containsKey(k.revoked, cert.Key) || containsKey(k.revoked, cert.SignatureKey)
		},
		HostKeyFallback: func(_ string, _ net.Addr, key ssh.PublicKey) error { return k.check(key) },
	}
	err := c.CheckHostKey(address, remote, key)
	if _, ours := err.(*failure.Error); err == nil || ours { //nolint:errorlint // CheckHostKey returns the error of check unwrapped
		return err
	}
	return failure.New(v1alpha1.ReasonHostKeyMismatch,
		"%s presents an invalid host certificate (%s); nothing was sent to it", k.url, failure.Quote(err.Error()))
}

// check returns nil if a key that is not a certificate is trusted.
func (k *knownHosts) check(key ssh.PublicKey) error {
	shown := ssh.FingerprintSHA256(key) + " (" + key.Type() + ")"
	switch {
	case containsKey(k.revoked, key):
		return failure.New(v1alpha1.ReasonHostKeyMismatch,
			"%s presents the host key %s, which %s revokes; nothing was sent to it", k.url, shown, k.field)
	case containsKey(k.trusted, key):
		return nil
	case k.hasNoKeys():
		return failure.New(v1alpha1.ReasonHostKeyUnknown,
			"the ssh host key of %s is unknown: it presents %s%s. Compare it with the key that the host's owner publishes; if they match, add this line to %s: %s",
			k.url, shown, k.hint(), k.field, k.knownHostsLine(key))
	}
	return failure.New(v1alpha1.ReasonHostKeyMismatch,
		"%s presents the host key %s, but the known keys are %s: either its owner has changed the key, or another machine answers in its place; nothing was sent to it%s",
		k.url, shown, k.fingerprints(), k.remedy())
}

// mismatch returns the error for a server that has no key of a known type.
func (k *knownHosts) mismatch() error {
	return failure.New(v1alpha1.ReasonHostKeyMismatch,
		"%s presents no host key of a known type: the known keys are %s; nothing was sent to it%s", k.url, k.fingerprints(), k.remedy())
}

func (k *knownHosts) hint() string {
	switch {
	case k.builtIn:
		return ", and it is not one of the public hosts whose keys are built in"
	case len(k.skipped) > 0:
		return fmt.Sprintf(" (line %d of %s cannot be read)", k.skipped[0], k.field)
	}
	return ", and " + k.field + " has no line for " + k.name
}

func (k *knownHosts) remedy() string {
	if k.builtIn {
		return ". If the owner has published a new key, set it in " + k.field
	}
	return ". If the owner has published the new key, add it to " + k.field
}

// knownHostsLine returns the line that a user can add to known_hosts.
func (k *knownHosts) knownHostsLine(key ssh.PublicKey) string {
	s := knownhosts.Line([]string{k.name}, key)
	if len(s) > maxShownKey {
		return "(the key is too long to be shown here)"
	}
	return s
}

const maxFingerprints = 8 // in a message

func (k *knownHosts) fingerprints() string {
	var out []string
	for _, key := range k.trusted {
		out = append(out, ssh.FingerprintSHA256(key)+" ("+key.Type()+")")
	}
	for _, key := range k.authorities {
		out = append(out, "certificates of "+ssh.FingerprintSHA256(key))
	}
	if len(out) > maxFingerprints {
		out = append(out[:maxFingerprints], "…")
	}
	return strings.Join(out, ", ")
}

func containsKey(keys []ssh.PublicKey, key ssh.PublicKey) bool {
	return slices.ContainsFunc(keys, func(k ssh.PublicKey) bool { return bytes.Equal(k.Marshal(), key.Marshal()) })
}

// matchesHost reports whether the patterns of a line match name. A pattern has * and ?, or is the salted hash of a name. A
// matching pattern with ! excludes name.
func matchesHost(patterns []string, name string) bool {
	found := false
	for _, p := range patterns {
		p, negated := strings.CutPrefix(p, "!")
		if strings.HasPrefix(p, "|") && !negated {
			found = found || matchesHash(p, name)
			continue
		}
		if !matchesPattern(strings.ToLower(p), name) {
			continue
		}
		if negated {
			return false
		}
		found = true
	}
	return found
}

// matchesHash compares name with |1|salt|hash, which is an HMAC-SHA1.
func matchesHash(pattern, name string) bool {
	parts := strings.Split(pattern, "|")
	if len(parts) != 4 || parts[1] != "1" {
		return false
	}
	salt, err := base64.StdEncoding.DecodeString(parts[2])
	if err != nil {
		return false
	}
	want, err := base64.StdEncoding.DecodeString(parts[3])
	if err != nil {
		return false
	}
	mac := hmac.New(sha1.New, salt)
	_, _ = mac.Write([]byte(name))
	return hmac.Equal(mac.Sum(nil), want)
}

// matchesPattern reports whether a pattern with * and ? matches s. The time is at most proportional to the product of both
// lengths.
func matchesPattern(pattern, s string) bool {
	star, mark := -1, 0
	i, j := 0, 0
	for j < len(s) {
		switch {
		case i < len(pattern) && pattern[i] == '*':
			star, mark = i, j
			i++
		case i < len(pattern) && (pattern[i] == '?' || pattern[i] == s[j]):
			i++
			j++
		case star >= 0:
			mark++
			i, j = star+1, mark
		default:
			return false
		}
	}
	return strings.Trim(pattern[i:], "*") == ""
}

// publicHosts has the ssh host keys of the public git hosts, in the form of known_hosts. The client trusts them if
// Auth.KnownHosts is nil. TestBuiltInHostKeys compares them with the fingerprints that the owners publish:
//
//   - github.com: docs.github.com, "GitHub's SSH key fingerprints"; also at port 443 of ssh.github.com
//   - gitlab.com: docs.gitlab.com, "GitLab.com settings"; also at port 443 of altssh.gitlab.com
//   - bitbucket.org: support.atlassian.com, "Configure SSH and two-step verification"; also at port 443 of
//     altssh.bitbucket.org. The RSA key is the one since June 2023
//   - Azure DevOps: learn.microsoft.com, "Use SSH key authentication"
const publicHosts = `
github.com,[ssh.github.com]:443 ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl
github.com,[ssh.github.com]:443 ecdsa-sha2-nistp256 AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAIbmlzdHAyNTYAAABBBEmKSENjQEezOmxkZMy7opKgwFB9nkt5YRrYMjNuG5N87uRgg6CLrbo5wAdT/y6v0mKV0U2w0WZ2YB/++Tpockg=
github.com,[ssh.github.com]:443 ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAABgQCj7ndNxQowgcQnjshcLrqPEiiphnt+VTTvDP6mHBL9j1aNUkY4Ue1gvwnGLVlOhGeYrnZaMgRK6+PKCUXaDbC7qtbW8gIkhL7aGCsOr/C56SJMy/BCZfxd1nWzAOxSDPgVsmerOBYfNqltV9/hWCqBywINIR+5dIg6JTJ72pcEpEjcYgXkE2YEFXV1JHnsKgbLWNlhScqb2UmyRkQyytRLtL+38TGxkxCflmO+5Z8CSSNY7GidjMIZ7Q4zMjA2n1nGrlTDkzwDCsw+wqFPGQA179cnfGWOWRVruj16z6XyvxvjJwbz0wQZ75XK5tKSb7FNyeIEs4TT4jk+S4dhPeAUC5y+bDYirYgM4GC7uEnztnZyaVWQ7B381AK4Qdrwt51ZqExKbQpTUNn+EjqoTwvqNj4kqx5QUCI0ThS/YkOxJCXmPUWZbhjpCg56i+2aB6CmK2JGhn57K5mj0MNdBXA4/WnwH6XoPWJzK5Nyu2zB3nAZp+S5hpQs+p1vN1/wsjk=
gitlab.com,[altssh.gitlab.com]:443 ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAfuCHKVTjquxvt6CM6tdG4SLp1Btn/nOeHHE5UOzRdf
gitlab.com,[altssh.gitlab.com]:443 ecdsa-sha2-nistp256 AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAIbmlzdHAyNTYAAABBBFSMqzJeV9rUzU4kWitGjeR4PWSa29SPqJ1fVkhtj3Hw9xjLVXVYrU9QlYWrOLXBpQ6KWjbjTDTdDkoohFzgbEY=
gitlab.com,[altssh.gitlab.com]:443 ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAABAQCsj2bNKTBSpIYDEGk9KxsGh3mySTRgMtXL583qmBpzeQ+jqCMRgBqB98u3z++J1sKlXHWfM9dyhSevkMwSbhoR8XIq/U0tCNyokEi/ueaBMCvbcTHhO7FcwzY92WK4Yt0aGROY5qX2UKSeOvuP4D6TPqKF1onrSzH9bx9XUf2lEdWT/ia1NEKjunUqu1xOB/StKDHMoX4/OKyIzuS0q/T1zOATthvasJFoPrAjkohTyaDUz2LN5JoH839hViyEG82yB+MjcFV5MU3N1l1QL3cVUCh93xSaua1N85qivl+siMkPGbO5xR/En4iEY6K2XPASUEMaieWVNTRCtJ4S8H+9
bitbucket.org,[altssh.bitbucket.org]:443 ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIIazEu89wgQZ4bqs3d63QSMzYVa0MuJ2e2gKTKqu+UUO
bitbucket.org,[altssh.bitbucket.org]:443 ecdsa-sha2-nistp256 AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAIbmlzdHAyNTYAAABBBPIQmuzMBuKdWeF4+a2sjSSpBK0iqitSQ+5BM9KhpexuGt20JpTVM7u5BDZngncgrqDMbWdxMWWOGtZ9UgbqgZE=
bitbucket.org,[altssh.bitbucket.org]:443 ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAABgQDQeJzhupRu0u0cdegZIa8e86EG2qOCsIsD1Xw0xSeiPDlCr7kq97NLmMbpKTX6Esc30NuoqEEHCuc7yWtwp8dI76EEEB1VqY9QJq6vk+aySyboD5QF61I/1WeTwu+deCbgKMGbUijeXhtfbxSxm6JwGrXrhBdofTsbKRUsrN1WoNgUa8uqN1Vx6WAJw1JHPhglEGGHea6QICwJOAr/6mrui/oB7pkaWKHj3z7d1IC4KWLtY47elvjbaTlkN04Kc/5LFEirorGYVbt15kAUlqGM65pk6ZBxtaO3+30LVlORZkxOh+LKL/BvbZ/iRNhItLqNyieoQj/uh/7Iv4uyH/cV/0b4WDSd3DptigWq84lJubb9t/DnZlrJazxyDCulTmKdOR7vs9gMTo+uoIrPSb8ScTtvw65+odKAlBj59dhnVp9zd7QUojOpXlL62Aw56U4oO+FALuevvMjiWeavKhJqlR7i5n9srYcrNV7ttmDw7kf/97P5zauIhxcjX+xHv4M=
ssh.dev.azure.com,vs-ssh.visualstudio.com ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAABAQC7Hr1oTWqNqOlzGJOfGJ4NakVyIzf1rXYd4d7wo6jBlkLvCA4odBlL0mDUyZ0/QUfTTqeu+tm22gOsv+VrVTMk6vwRU75gY/y9ut5Mb3bR5BV58dKXyq9A9UeB5Cakehn5Zgm6x1mKoVyf+FFn26iYqXJRgzIZZcZ5V6hrE0Qg39kZm4az48o0AUbf6Sp4SLdvnuMa2sVNwHBboS7EJkm57XQPVU3/QpyNLHbWDdzwtrlS+ez30S3AdYhLKEOxAG8weOnyrtLJAUen9mTkol8oII1edf7mWWbWVf0nBmly21+nZcmCTISQBtdcyPaEno7fFQMDD26/s0lfKob4Kw8H
`

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
