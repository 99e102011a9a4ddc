package repo

import (
	"bufio"
	"bytes"
	"crypto/hmac"
	"crypto/sha1"
	"encoding/base64"
	"fmt"
	"net"
	"slices"
	"strings"

	"golang.org/x/crypto/ssh"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

const (
	maxKnownHosts = 1 << 20 // bytes, as a Secret
	maxShownKey   = 4 << 10 // bytes of a known_hosts line in a message
)

// knownHosts is what a known_hosts file says of one host.
type knownHosts struct {
	url         URL
	name        string // of the host, as known_hosts has it: host, or [host]:port
	builtIn     bool
	trusted     []ssh.PublicKey
	authorities []ssh.PublicKey
	revoked     []ssh.PublicKey // for whichever host: who revokes a key has lost it
	skipped     []int           // lines that cannot be read
}

// parseKnownHosts reads the lines for one host. A line that cannot be read is left out, as OpenSSH does; not so one with a
// marker, because to leave out what revokes a key is to trust it.
func parseKnownHosts(text []byte, u URL) (*knownHosts, error) {
	if len(text) > maxKnownHosts {
		return nil, failure.New(v1alpha1.ReasonHostKeyUnknown, "git.auth.sshKey.knownHosts has more than %d bytes; nothing is trusted", maxKnownHosts)
	}
	k := &knownHosts{url: u, name: knownName(u)}
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, maxKnownHosts+1)
	for n := 1; lines.Scan(); n++ {
		line := bytes.TrimSpace(lines.Bytes())
		if len(line) == 0 || line[0] == '#' {
			continue
		}
		marker, hosts, key, _, _, err := ssh.ParseKnownHosts(line)
		switch {
		case err != nil && line[0] == '@', err == nil && marker != "" && marker != "revoked" && marker != "cert-authority":
			return nil, failure.New(v1alpha1.ReasonHostKeyUnknown,
				"line %d of git.auth.sshKey.knownHosts starts with a marker and cannot be read; nothing is trusted until it is mended", n)
		case err != nil, isCertificate(key.Type()):
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

// knownName is the name of the host in known_hosts.
func knownName(u URL) string {
	host, port, err := net.SplitHostPort(u.dialAddress())
	if err != nil { // dialAddress joins the two
		return u.host
	}
	if port == sshPort {
		return host
	}
	return "[" + host + "]:" + port
}

// unknown reports whether there is no line for this host at all.
func (k *knownHosts) unknown() bool { return len(k.trusted)+len(k.authorities) == 0 }

// algorithms lists the host key algorithms of the keys that are known of this host, and of no other: else a server that
// has several keys could show one that we do not know. RSA keys sign with SHA-2 only.
func (k *knownHosts) algorithms() []string {
	if k.unknown() { // whatever comes is refused: all plain ones, so that its fingerprint can be shown
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

// callback is the ssh.HostKeyCallback.
func (k *knownHosts) callback(address string, remote net.Addr, key ssh.PublicKey) error {
	c := ssh.CertChecker{
		IsHostAuthority: func(authority ssh.PublicKey, _ string) bool { return contains(k.authorities, authority) },
		IsRevoked: func(cert *ssh.Certificate) bool {
			return contains(k.revoked, cert.Key) || contains(k.revoked, cert.SignatureKey)
		},
		HostKeyFallback: func(_ string, _ net.Addr, key ssh.PublicKey) error { return k.check(key) },
	}
	err := c.CheckHostKey(address, remote, key)
	if _, ours := err.(*failure.Error); err == nil || ours { //nolint:errorlint // what check returned, unwrapped
		return err
	}
	return failure.New(v1alpha1.ReasonHostKeyMismatch,
		"%s shows a host certificate that does not hold (%s); nothing was sent to it", k.url, quoted(err.Error()))
}

// check judges a key that is no certificate.
func (k *knownHosts) check(key ssh.PublicKey) error {
	shown := ssh.FingerprintSHA256(key) + " (" + key.Type() + ")"
	switch {
	case contains(k.revoked, key):
		return failure.New(v1alpha1.ReasonHostKeyMismatch,
			"%s shows the host key %s, which git.auth.sshKey.knownHosts revokes; nothing was sent to it", k.url, shown)
	case contains(k.trusted, key):
		return nil
	case k.unknown():
		return failure.New(v1alpha1.ReasonHostKeyUnknown,
			"the ssh host key of %s is not known: it shows %s%s. Compare that with what the host's owner publishes; if it is right, add this line to %s: %s",
			k.url, shown, k.hint(), "git.auth.sshKey.knownHosts", k.line(key))
	}
	return failure.New(v1alpha1.ReasonHostKeyMismatch,
		"%s shows the host key %s, and known are %s: either its owner has changed the key, or somebody stands between us and the host; nothing was sent to it%s",
		k.url, shown, k.fingerprints(), k.remedy())
}

// mismatch says that the server has no key of the types that we know.
func (k *knownHosts) mismatch() error {
	return failure.New(v1alpha1.ReasonHostKeyMismatch,
		"%s shows no host key of the types that are known of it: known are %s; nothing was sent to it%s", k.url, k.fingerprints(), k.remedy())
}

func (k *knownHosts) hint() string {
	switch {
	case k.builtIn:
		return ", and it is none of the public hosts whose keys are built in"
	case len(k.skipped) > 0:
		return fmt.Sprintf(" (line %d of git.auth.sshKey.knownHosts cannot be read)", k.skipped[0])
	}
	return ", and git.auth.sshKey.knownHosts has no line for " + k.name
}

func (k *knownHosts) remedy() string {
	if k.builtIn {
		return ". Where the owner has published a new key, give it in git.auth.sshKey.knownHosts"
	}
	return ". Where the owner has published the new key, put it into git.auth.sshKey.knownHosts"
}

// line is what to add to known_hosts.
func (k *knownHosts) line(key ssh.PublicKey) string {
	s := k.name + " " + key.Type() + " " + base64.StdEncoding.EncodeToString(key.Marshal())
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

func contains(keys []ssh.PublicKey, key ssh.PublicKey) bool {
	return slices.ContainsFunc(keys, func(k ssh.PublicKey) bool { return bytes.Equal(k.Marshal(), key.Marshal()) })
}

// matchesHost reports whether the host list of a line means name: patterns with * and ?, of which one with ! rules the
// line out, or the salted hash of a name.
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

// matchesHash compares with |1|salt|hash, a hash of HMAC-SHA1.
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

// matchesPattern matches * and ?, in time of at most the product of both lengths.
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
