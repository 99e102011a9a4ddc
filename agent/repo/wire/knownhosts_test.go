package wire

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"

	"stoker.io/stoker/agent/repo/repotest"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/test/gitserver"
)

func newKey(t testing.TB) ssh.Signer {
	t.Helper()
	signer, _, err := gitserver.NewSSHKey()
	require.NoError(t, err)
	return signer
}

func newECDSAKey(t testing.TB) ssh.Signer {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	signer, err := ssh.NewSignerFromKey(private)
	require.NoError(t, err)
	return signer
}

// newCertificate returns a certificate of a host key, signed by another key.
func newCertificate(t testing.TB, host ssh.Signer) ssh.PublicKey {
	t.Helper()
	c := &ssh.Certificate{Key: host.PublicKey(), CertType: ssh.HostCert}
	require.NoError(t, c.SignCert(rand.Reader, newKey(t)))
	return c
}

// line returns a line of known_hosts.
func line(hosts string, key ssh.PublicKey) string {
	return hosts + " " + string(ssh.MarshalAuthorizedKey(key))
}

// The fingerprints are those that the hosts publish. The addresses of the pages are next to the keys.
func TestBuiltInHostKeys(t *testing.T) {
	github := []string{"p2QAMXNIC1TJYWeIOttrVc98/R1BUFWu3/LiyKgUfQM", "+DiY3wvvV6TuJJhbpZisF/zLDA0zPMSvHdkr4UvCOqU", "uNiVztksCsDhcc0u9e8BujQXVUpKZIDTMczCvj3tD2s"}
	gitlab := []string{"HbW3g8zUjNSksFbqTiUWPWg2Bq1x8xdGUrliXFzSnUw", "eUXGGm1YGsMAS7vkcx6JOJdOGHPem5gQp4taiCfCLB8", "ROQFvPThGrW4RuWLoL9tq9I9zJ42fK4XywyRtbOz/EQ"}
	bitbucket := []string{"FC73VB6C4OQLSCrjEayhMp9UMxS97caD/Yyi2bhW/J0", "ybgmFkzwOSotHTHLJgHO0QN8L0xErw6vd0VhFA9m3SM", "46OSHA1Rmj8E8ERTC6xkNcmGOw9oFxYr0WF6zWW8l1E"}
	azure := []string{"ohD8VZEXGWo6Ez8GSEJQ9WpafgLFsOfLOtGGQCQo6Og"}
	for address, want := range map[string][]string{
		"git@github.com:a/b.git":                 github,
		"ssh://git@ssh.github.com:443/a/b":       github,
		"git@gitlab.com:a/b.git":                 gitlab,
		"ssh://git@altssh.gitlab.com:443/a":      gitlab,
		"git@bitbucket.org:a/b.git":              bitbucket,
		"ssh://git@altssh.bitbucket.org:443/a":   bitbucket,
		"git@ssh.dev.azure.com:v3/a/b/c":         azure,
		"org@vs-ssh.visualstudio.com:v3/a/b/c":   azure,
		"ssh://git@github.com:2222/a/b.git":      nil,
		"git@evilgithub.com:a/b.git":             nil,
		"git@github.com.example.com:a/b.git":     nil,
		"git@ssh.github.com:a/b.git":             nil,
		"git@foo.visualstudio.example.com:a/b":   nil,
		"ssh://git@gitlab.example.com:443/a/b":   nil,
		"ssh://git@ssh.dev.azure.com:8443/a/b":   nil,
		"ssh://git@ssh.github.com.evil.io:443/a": nil,
	} {
		t.Run(address, func(t *testing.T) {
			u, err := ParseURL(address)
			require.NoError(t, err)
			k, err := parseKnownHosts([]byte(publicHosts), u, "git.auth")
			require.NoError(t, err)
			require.Empty(t, k.skipped)
			var got []string
			for _, key := range k.trusted {
				got = append(got, strings.TrimPrefix(ssh.FingerprintSHA256(key), "SHA256:"))
			}
			assert.ElementsMatch(t, want, got)
			assert.Empty(t, k.authorities)
		})
	}
	assert.Len(t, slices.Concat(github, gitlab, bitbucket, azure), 10)
	assert.Equal(t, 10, strings.Count(strings.TrimSpace(publicHosts), "\n")+1, "no other key is built in")
}

// F10: the client sends no data to an unknown host, and the error has the fingerprint to compare and the line to add.
func TestHostKeys(t *testing.T) {
	shown, other := newKey(t), newKey(t)
	g := newShellSite(t, gitserver.SSHOptions{HostKeys: []ssh.Signer{shown}})
	g.Push("first", repotest.Views(1))
	_, port, err := net.SplitHostPort(g.Server.Addr())
	require.NoError(t, err)
	name := "[127.0.0.1]:" + port
	good, bad := line(name, shown.PublicKey()), line(name, other.PublicKey())
	fingerprint := ssh.FingerprintSHA256(shown.PublicKey())
	for what, tt := range map[string]struct {
		lines string
		want  v1alpha1.Reason // "" if the key is accepted
		says  []string
	}{
		"a matching line": {good, "", nil},
		"a matching line among others, with comments": {"# hosts\n\n" + line("example.com", other.PublicKey()) + good, "", nil},
		"a byte order mark":                           {"\ufeff" + good, "", nil},
		"a hashed name":                               {line(knownhosts.HashHostname(name), shown.PublicKey()), "", nil},
		"a pattern":                                   {line("[127.0.0.?]:*", shown.PublicKey()), "", nil},
		"Windows line ends":                           {strings.ReplaceAll("# x\n"+good, "\n", "\r\n"), "", nil},
		"a matching line after an unreadable one":     {"example.com ssh-rsa garbage\n" + good, "", nil},
		"an old and a new key":                        {bad + good, "", nil},
		"an empty list refuses everything":            {"", v1alpha1.ReasonHostKeyUnknown, []string{fingerprint, strings.TrimSpace(good)}},
		"a list of comments refuses everything":       {"# none\n", v1alpha1.ReasonHostKeyUnknown, []string{fingerprint}},
		"a line of another host does not match":       {line("example.com", shown.PublicKey()), v1alpha1.ReasonHostKeyUnknown, []string{fingerprint, strings.TrimSpace(good)}},
		"a line of another port does not match":       {line("127.0.0.1", shown.PublicKey()), v1alpha1.ReasonHostKeyUnknown, []string{name}},
		"a hash of another host does not match":       {line(knownhosts.HashHostname("127.0.0.1"), shown.PublicKey()), v1alpha1.ReasonHostKeyUnknown, nil},
		"a pattern that excludes the host":            {line("[127.0.0.?]:*,!"+name, shown.PublicKey()), v1alpha1.ReasonHostKeyUnknown, nil},
		"the error names an unreadable line":          {"\nfoo ssh-rsa garbage\n", v1alpha1.ReasonHostKeyUnknown, []string{"line 2"}},
		"a changed key is a mismatch that shows both": {bad, v1alpha1.ReasonHostKeyMismatch, []string{fingerprint, ssh.FingerprintSHA256(other.PublicKey())}},
		"a key of another type alone is a mismatch":   {line(name, newECDSAKey(t).PublicKey()), v1alpha1.ReasonHostKeyMismatch, []string{"ecdsa-sha2-nistp256"}},
		"a revoked key is a mismatch":                 {"@revoked " + good, v1alpha1.ReasonHostKeyMismatch, []string{fingerprint, "revokes"}},
		"a key that is known and revoked":             {good + "@revoked * " + strings.SplitN(good, " ", 2)[1], v1alpha1.ReasonHostKeyMismatch, []string{"revokes"}},
		"a key that is revoked for another host":      {good + "@revoked " + line("example.com", shown.PublicKey()), v1alpha1.ReasonHostKeyMismatch, nil},
		"an unreadable revocation refuses everything": {good + "@revoked * ssh-ed25519 garbage\n", v1alpha1.ReasonHostKeyUnknown, []string{"line 2"}},
		"a revoked certificate refuses everything":    {good + "@revoked " + line("*", newCertificate(t, shown)), v1alpha1.ReasonHostKeyUnknown, []string{"line 2"}},
		"an unknown marker refuses everything":        {good + "@trusted " + good, v1alpha1.ReasonHostKeyUnknown, []string{"line 2"}},
		"an authority does not accept a plain key":    {"@cert-authority " + good, v1alpha1.ReasonHostKeyMismatch, nil},
		"a list that is too long refuses everything":  {strings.Repeat("#\n", maxKnownHosts), v1alpha1.ReasonHostKeyUnknown, []string{"bytes"}},
		"a key with a wrong type":                     {strings.Replace(good, "ssh-ed25519", "ssh-rsa", 1), v1alpha1.ReasonHostKeyUnknown, []string{"line 1"}},
	} {
		t.Run(what, func(t *testing.T) {
			err := g.resolve(Auth{Key: repotest.Token(g.Key), KnownHosts: hosts(tt.lines)}, Options{})
			if tt.want == "" {
				require.NoError(t, err)
				return
			}
			repotest.RequireReason(t, tt.want, err)
			for _, s := range tt.says {
				assert.ErrorContains(t, err, s)
			}
		})
	}
	t.Run("the client offers no key to an unknown host", func(t *testing.T) {
		before := len(g.Server.Users())
		require.Error(t, g.resolve(Auth{Key: repotest.Token(g.Key), KnownHosts: hosts("")}, Options{}))
		assert.Len(t, g.Server.Users(), before)
	})
	t.Run("unreadable known hosts refuse everything", func(t *testing.T) {
		err := g.resolve(Auth{Key: repotest.Token(g.Key), KnownHosts: func() ([]byte, error) { return nil, net.ErrClosed }}, Options{})
		repotest.RequireReason(t, v1alpha1.ReasonHostKeyUnknown, err)
	})
	t.Run("a private host is unknown without known hosts", func(t *testing.T) {
		err := g.resolve(Auth{Key: repotest.Token(g.Key)}, Options{})
		repotest.RequireReason(t, v1alpha1.ReasonHostKeyUnknown, err)
		assert.ErrorContains(t, err, "built in")
	})
	t.Run("the line of the message makes the host known", func(t *testing.T) {
		err := g.resolve(Auth{Key: repotest.Token(g.Key), KnownHosts: hosts("")}, Options{})
		require.Error(t, err)
		_, add, ok := strings.Cut(err.Error(), "git.auth.sshKey.knownHosts: ")
		require.True(t, ok, "%v", err)
		require.NoError(t, g.resolve(Auth{Key: repotest.Token(g.Key), KnownHosts: hosts(add)}, Options{}))
	})
	t.Run("insecureIgnoreHostKey accepts any key", func(t *testing.T) {
		require.NoError(t, g.resolve(Auth{Key: repotest.Token(g.Key), KnownHosts: hosts(bad), InsecureIgnoreHostKey: true}, Options{}))
	})
}

// A server with several keys presents the known one. Algorithms of other hosts in known_hosts do not matter.
func TestOfferedHostKeyAlgorithms(t *testing.T) {
	known, more := newECDSAKey(t), newKey(t)
	g := newShellSite(t, gitserver.SSHOptions{HostKeys: []ssh.Signer{more, known}})
	g.Push("first", repotest.Views(1))
	for _, noise := range []string{"", line("example.com", newKey(t).PublicKey())} {
		text := noise + line("[127.0.0.1]:"+parseURL(t, g.Server.URL("git", "x")).dialAddress()[len("127.0.0.1:"):], known.PublicKey())
		require.NoError(t, g.resolve(Auth{Key: repotest.Token(g.Key), KnownHosts: hosts(text)}, Options{}))
	}
	u := parseURL(t, "git@github.com:a/b")
	k, err := parseKnownHosts([]byte(publicHosts), u, "git.auth")
	require.NoError(t, err)
	assert.ElementsMatch(t, []string{ssh.KeyAlgoED25519, ssh.KeyAlgoECDSA256, ssh.KeyAlgoRSASHA512, ssh.KeyAlgoRSASHA256}, k.algorithms(), "no algorithm with SHA-1")
}

func TestHostCertificates(t *testing.T) {
	authority, host := newKey(t), newKey(t)
	certify := func(change func(*ssh.Certificate)) ssh.Signer {
		c := &ssh.Certificate{
			Key: host.PublicKey(), CertType: ssh.HostCert, ValidPrincipals: []string{"127.0.0.1"},
			ValidAfter: uint64(time.Now().Add(-time.Hour).Unix()), ValidBefore: uint64(time.Now().Add(time.Hour).Unix()),
		}
		change(c)
		require.NoError(t, c.SignCert(rand.Reader, authority))
		s, err := ssh.NewCertSigner(c, host)
		require.NoError(t, err)
		return s
	}
	for name, tt := range map[string]struct {
		change func(*ssh.Certificate)
		more   string          // more lines of known_hosts; "only" means that known_hosts has only another authority
		want   v1alpha1.Reason // "" if the certificate is accepted
	}{
		"known authority":   {func(*ssh.Certificate) {}, "", ""},
		"expired":           {func(c *ssh.Certificate) { c.ValidBefore = uint64(time.Now().Add(-time.Minute).Unix()) }, "", v1alpha1.ReasonHostKeyMismatch},
		"another host":      {func(c *ssh.Certificate) { c.ValidPrincipals = []string{"example.com"} }, "", v1alpha1.ReasonHostKeyMismatch},
		"user certificate":  {func(c *ssh.Certificate) { c.CertType = ssh.UserCert }, "", v1alpha1.ReasonHostKeyMismatch},
		"revoked authority": {func(*ssh.Certificate) {}, "@revoked " + line("*", authority.PublicKey()), v1alpha1.ReasonHostKeyMismatch},
		"revoked host key":  {func(*ssh.Certificate) {}, "@revoked " + line("*", host.PublicKey()), v1alpha1.ReasonHostKeyMismatch},
		"unknown authority": {func(*ssh.Certificate) {}, "only", v1alpha1.ReasonHostKeyMismatch},
	} {
		t.Run(name, func(t *testing.T) {
			g := newShellSite(t, gitserver.SSHOptions{HostKeys: []ssh.Signer{certify(tt.change)}})
			g.Push("first", repotest.Views(1))
			ca := authority.PublicKey()
			if tt.more == "only" {
				ca, tt.more = newKey(t).PublicKey(), ""
			}
			_, port, err := net.SplitHostPort(g.Server.Addr())
			require.NoError(t, err)
			err = g.resolve(Auth{Key: repotest.Token(g.Key), KnownHosts: hosts("@cert-authority " + line("[127.0.0.1]:"+port, ca) + tt.more)}, Options{})
			if tt.want == "" {
				require.NoError(t, err)
				return
			}
			repotest.RequireReason(t, tt.want, err)
		})
	}
}

func TestMatchesPattern(t *testing.T) {
	// With backtracking to every star, this pattern would take exponential time.
	assert.False(t, matchesPattern(strings.Repeat("*a", 2000)+"b", strings.Repeat("a", 4000)))
	for _, tt := range []struct {
		pattern, s string
		want       bool
	}{
		{"", "", true}, {"", "a", false}, {"*", "", true}, {"*", "abc", true}, {"a*c", "abbc", true}, {"a*c", "abbd", false},
		{"?", "a", true}, {"?", "", false}, {"*.example.com", "git.example.com", true}, {"*.example.com", "example.com", false},
		{"a**b", "axb", true}, {"[127.*", "[127.0.0.1]:2", true},
	} {
		t.Run(fmt.Sprintf("%q for %q", tt.pattern, tt.s), func(t *testing.T) {
			assert.Equal(t, tt.want, matchesPattern(tt.pattern, tt.s), "%q %q", tt.pattern, tt.s)
		})
	}
}

// F10: whatever lines known_hosts contains, a key that is not among them is never accepted.
func FuzzKnownHosts(f *testing.F) {
	f.Add([]byte(publicHosts))
	key := newKey(f).PublicKey()
	name := "[h.example]:2222"
	for _, s := range []string{
		"", "#\n", line("*", key), line("!*,"+name, key), "@revoked " + line("*", key), "@cert-authority " + line("*", key), "@ x y z\n",
		line(knownhosts.HashHostname(name), key), "|1|", "|1||| ssh-rsa x\n", "h ssh-rsa\n", "\x00 \x01 \x02", name + " ssh-ed25519 AAAA\n", strings.Repeat("*", 300) + "\n",
	} {
		f.Add([]byte(s))
	}
	u := parseURL(f, "ssh://git@h.example:2222/a.git")
	stranger := newKey(f).PublicKey()
	f.Fuzz(func(t *testing.T, text []byte) {
		k, err := parseKnownHosts(text, u, "git.auth")
		if err != nil {
			repotest.RequireReason(t, v1alpha1.ReasonHostKeyUnknown, err)
			return
		}
		require.NotEmpty(t, k.algorithms())
		require.Error(t, k.callback("h.example:2222", &net.TCPAddr{}, stranger), "this key is unknown")
		for _, key := range k.trusted {
			blob := base64.StdEncoding.EncodeToString(key.Marshal())
			err := k.callback("h.example:2222", &net.TCPAddr{}, key)
			if containsKey(k.revoked, key) {
				require.Error(t, err)
				continue
			}
			require.NoError(t, err, "%s", blob)
		}
		_ = fmt.Sprint(k.check(stranger), k.mismatch())
	})
}
