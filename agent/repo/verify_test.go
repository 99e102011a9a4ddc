package repo

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/ProtonMail/go-crypto/openpgp/packet"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo/repotest"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/test/gitserver"
)

const keysName = "spec.git.verify.keysConfigMapRef"

// verifier returns a Verifier for these public keys.
func verifier(mode v1alpha1.VerifyMode, keys ...string) *Verifier {
	return NewVerifier(v1alpha1.GitVerify{Mode: mode}, keysName, func() ([]byte, error) { return []byte(strings.Join(keys, "\n")), nil })
}

// author is a person with a key who uses git.
type author struct {
	t     *testing.T
	g     *site
	clone string
	key   repotest.SigningKey
	env   []string
}

// newAuthor returns an author with a clone whose git signs with the key. Without the programs, the test is skipped.
func newAuthor(t *testing.T, g *site, key repotest.SigningKey) *author {
	t.Helper()
	config := filepath.Join(t.TempDir(), "config")
	a := &author{t: t, g: g, clone: filepath.Join(t.TempDir(), "clone"), key: key, env: append(os.Environ(), "GIT_CONFIG_GLOBAL="+config, "GIT_CONFIG_SYSTEM=/dev/null")}
	signingKey, format := "author@example.com", "openpgp"
	switch key.Format {
	case v1alpha1.SigningSSH:
		if _, err := exec.LookPath("ssh-keygen"); err != nil {
			t.Skip("no ssh-keygen on this machine")
		}
		file := filepath.Join(t.TempDir(), "id")
		require.NoError(t, os.WriteFile(file, []byte(key.Private), 0o600))
		require.NoError(t, os.WriteFile(file+".pub", []byte(key.Public), 0o600))
		signingKey, format = file, "ssh"
	case v1alpha1.SigningOpenPGP:
		if _, err := exec.LookPath("gpg"); err != nil {
			t.Skip("no gpg on this machine")
		}
		home, err := os.MkdirTemp("", "gpg") // the path of a socket is short
		require.NoError(t, err)
		t.Cleanup(func() { assert.NoError(t, os.RemoveAll(home)) })
		a.env = append(a.env, "GNUPGHOME="+home)
		t.Cleanup(func() { a.run("", "gpgconf", "--kill", "all") })
		a.run(key.Private, "gpg", "--batch", "--quiet", "--import")
	}
	settings := fmt.Sprintf("[user]\nname = Author\nemail = author@example.com\nsigningKey = %s\n[gpg]\nformat = %s\n", signingKey, format)
	require.NoError(t, os.WriteFile(config, []byte(settings), 0o600))
	a.run("", "git", "clone", "--quiet", g.Dir, a.clone)
	return a
}

func (a *author) run(input, name string, args ...string) string {
	a.t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Env, cmd.Stdin = a.env, strings.NewReader(input)
	out, err := cmd.CombinedOutput()
	require.NoError(a.t, err, "%s %s: %s", name, args, out)
	return strings.TrimSpace(string(out))
}

func (a *author) git(args ...string) string {
	a.t.Helper()
	return a.run("", "git", append([]string{"-C", a.clone}, args...)...)
}

// commit commits a file and pushes it to main.
func (a *author) commit(content string, args ...string) plan.ID {
	a.t.Helper()
	require.NoError(a.t, os.WriteFile(filepath.Join(a.clone, "file"), []byte(content), 0o600))
	a.git("add", "file")
	a.git(append([]string{"commit", "--quiet", "-m", content}, args...)...)
	return a.push()
}

func (a *author) push() plan.ID {
	a.t.Helper()
	a.git("push", "--quiet", "--tags", "origin", "HEAD:main")
	return repotest.ParseID(a.t, a.git("rev-parse", "HEAD"))
}

// authorKeys returns a key of each kind for the author.
func authorKeys(t testing.TB) map[string]repotest.SigningKey {
	return map[string]repotest.SigningKey{
		"ssh":     repotest.NewSSHKey(t, "ed25519", ""),
		"openpgp": repotest.NewOpenPGPKeyFor(t, "author@example.com", "", nil),
	}
}

// F24: only commits that git signed with a trusted key verify.
func TestVerifyCommit(t *testing.T) {
	other := repotest.NewSSHKey(t, "ecdsa", "")
	for name, key := range authorKeys(t) {
		t.Run(name, func(t *testing.T) {
			g := newSite(t)
			g.Push("base", repotest.Views(2))
			a := newAuthor(t, g, key)
			r, s := g.remote(), openStore(t, t.TempDir())
			check := func(v *Verifier, commit plan.ID) error {
				_, err := s.Fetch(t.Context(), r, commit, "refs/heads/main")
				require.NoError(t, err)
				return s.Verify(t.Context(), v, r, commit, "main")
			}
			trusting, strange := verifier(v1alpha1.VerifyHead, "# comment", "", other.Public, key.Public), verifier(v1alpha1.VerifyHead, other.Public)
			good := a.commit("one", "-S")
			require.NoError(t, check(trusting, good))
			err := check(strange, good)
			repotest.RequireReason(t, v1alpha1.ReasonSignatureInvalid, err)
			require.ErrorContains(t, err, "commit "+good.Short()+" is signed with ")
			require.ErrorContains(t, err, "not one of the keys")
			require.ErrorContains(t, err, keysName)

			unsigned := a.commit("two")
			err = check(trusting, unsigned)
			repotest.RequireReason(t, v1alpha1.ReasonSignatureInvalid, err)
			require.ErrorContains(t, err, "is not signed")

			a.git("checkout", "--quiet", "-b", "side", good.String())
			require.NoError(t, os.WriteFile(filepath.Join(a.clone, "side"), []byte("x"), 0o600))
			a.git("add", "side")
			a.git("commit", "--quiet", "-S", "-m", "side")
			a.git("tag", "-s", "-m", "signed", "side-1")
			a.git("checkout", "--quiet", "-B", "main", unsigned.String())
			a.git("merge", "--quiet", "--no-ff", "-S", "-m", "merge", "side-1")
			merge := a.push()
			require.NoError(t, check(trusting, merge), "the signed merge of a signed tag, onto an unsigned commit")

			raw := g.Git("cat-file", "commit", good.String()) + "\n"
			for what, text := range map[string]string{
				"another message":    strings.Replace(raw, "\n\none", "\n\none more", 1),
				"another tree":       strings.Replace(raw, raw[5:45], g.Git("rev-parse", unsigned.String()+"^{tree}"), 1),
				"an added header":    strings.Replace(raw, "\ngpgsig ", "\nencoding UTF-8\ngpgsig ", 1),
				"a second signature": strings.Replace(raw, "\n\none", "\ngpgsig -----BEGIN\n\none", 1),
				"an unsigned parent": strings.Replace(raw, "\nauthor ", "\nparent "+unsigned.String()+"\nauthor ", 1),
				"another line end":   strings.Replace(raw, "\n\none", "\n\none\r", 1),
			} {
				t.Run(what, func(t *testing.T) {
					require.NotEqual(t, raw, text)
					id := repotest.ParseID(t, strings.TrimSpace(string(repotest.RunGit(t, g.Dir, []byte(text), "hash-object", "-t", "commit", "-w", "--literally", "--stdin"))))
					g.Git("update-ref", "refs/heads/tampered", id.String())
					_, err := s.Fetch(t.Context(), r, id, "refs/heads/tampered")
					require.NoError(t, err)
					repotest.RequireReason(t, v1alpha1.ReasonSignatureInvalid, s.Verify(t.Context(), trusting, r, id, "tampered"))
				})
			}
			t.Run("format not admitted", func(t *testing.T) {
				formats := []v1alpha1.SigningFormat{v1alpha1.SigningSSH, v1alpha1.SigningOpenPGP}
				for i, format := range formats {
					if format == key.Format {
						formats = append(formats[:i:i], formats[i+1:]...)
						break
					}
				}
				v := NewVerifier(v1alpha1.GitVerify{Formats: formats}, keysName, func() ([]byte, error) { return []byte(key.Public), nil })
				assert.ErrorContains(t, s.Verify(t.Context(), v, r, good, "main"), "spec.git.verify.formats does not admit")
			})
		})
	}
}

// F24: the tag itself is verified, under its name.
func TestVerifyTag(t *testing.T) {
	for name, key := range authorKeys(t) {
		t.Run(name, func(t *testing.T) {
			g := newSite(t)
			g.Push("base", repotest.Views(20))
			a := newAuthor(t, g, key)
			first := a.commit("one")
			a.git("tag", "-s", "-m", "the first", "v1")
			second := a.commit("two")
			a.git("tag", "light")
			a.git("tag", "-a", "-m", "not signed", "plain")
			a.git("tag", "-s", "-m", "a tag of a tag", "nested", "v1")
			a.git("tag", "-s", "-m", "a folder", "folder", "HEAD^{tree}")
			a.push()
			// A user who may push gives the old signature a new name, and another commit.
			old := g.Git("rev-parse", "refs/tags/v1")
			g.Git("update-ref", "refs/tags/v9", old)
			raw := g.Git("cat-file", "tag", old) + "\n"
			forged := strings.TrimSpace(string(repotest.RunGit(t, g.Dir, []byte(strings.Replace(raw, first.String(), second.String(), 1)), "mktag")))
			g.Git("update-ref", "refs/tags/forged", forged)
			for way, r := range map[string]*Remote{"http": g.remote(), "directory": g.directory()} {
				t.Run(way, func(t *testing.T) {
					s := openStore(t, t.TempDir())
					for _, commit := range []plan.ID{first, second} { // setup: both are in the store
						_, err := s.Fetch(t.Context(), r, commit, "refs/heads/main")
						require.NoError(t, err)
					}
					require.NoError(t, s.Verify(t.Context(), verifier(v1alpha1.VerifyTag, key.Public), r, first, "v1"))
					require.NoError(t, s.Verify(t.Context(), verifier(v1alpha1.VerifyTag, key.Public), r, first, "refs/tags/v1"))
					for ref, c := range map[string]struct {
						commit plan.ID
						reason v1alpha1.Reason
						says   string
					}{
						"light":         {second, v1alpha1.ReasonSignatureInvalid, "is a lightweight tag"},
						"plain":         {second, v1alpha1.ReasonSignatureInvalid, "is not signed"},
						"nested":        {first, v1alpha1.ReasonSignatureInvalid, "is not the tag of a commit"},
						"v9":            {first, v1alpha1.ReasonSignatureInvalid, `the tag "v9" is signed as "v1"`},
						"main":          {second, v1alpha1.ReasonSignatureInvalid, "is not a tag"},
						first.String():  {first, v1alpha1.ReasonSignatureInvalid, "instead of a commit"},
						"v1":            {second, v1alpha1.ReasonRefMoved, "points to " + first.Short() + " now"},
						"forged":        {second, v1alpha1.ReasonSignatureInvalid, `is signed as "v1"`},
						"refs/tags/xyz": {second, v1alpha1.ReasonRefNotFound, "xyz"},
					} {
						t.Run(ref, func(t *testing.T) {
							err := s.Verify(t.Context(), verifier(v1alpha1.VerifyTag, key.Public), r, c.commit, ref)
							repotest.RequireReason(t, c.reason, err)
							assert.ErrorContains(t, err, c.says)
						})
					}
					t.Run("forged, with the signed name", func(t *testing.T) {
						g.Git("update-ref", "refs/tags/v1", forged)
						defer g.Git("update-ref", "refs/tags/v1", old)
						err := s.Verify(t.Context(), verifier(v1alpha1.VerifyTag, key.Public), g.remote(), second, "v1")
						repotest.RequireReason(t, v1alpha1.ReasonSignatureInvalid, err)
						assert.ErrorContains(t, err, "signature of something else")
					})
					t.Run("another key", func(t *testing.T) {
						err := s.Verify(t.Context(), verifier(v1alpha1.VerifyTag, repotest.NewSSHKey(t, "ed25519", "").Public), g.remote(), first, "v1")
						assert.ErrorContains(t, err, "not one of the keys")
					})
					t.Run("signed again", func(t *testing.T) {
						keys := repotest.NewSSHKey(t, "ed25519", "").Public
						v := NewVerifier(v1alpha1.GitVerify{Mode: v1alpha1.VerifyTag}, keysName, func() ([]byte, error) { return []byte(keys), nil })
						sign := func(how string) {
							a.git("tag", "-f", how, "-m", "again", "again", second.String())
							a.git("push", "--quiet", "--force", "origin", "refs/tags/again")
						}
						sign("-a")
						require.ErrorContains(t, s.Verify(t.Context(), v, r, second, "again"), "is not signed")
						sign("-s")
						require.ErrorContains(t, s.Verify(t.Context(), v, r, second, "again"), "not one of the keys")
						keys = key.Public
						require.NoError(t, s.Verify(t.Context(), v, r, second, "again"))
					})
				})
			}
		})
	}
}

func TestTagFetchCost(t *testing.T) {
	g := newSite(t)
	g.Push("base", repotest.Views(100))
	key := repotest.NewSSHKey(t, "ed25519", "")
	a := newAuthor(t, g, key)
	commit := a.commit("one")
	a.git("tag", "-s", "-m", "the first", "v1")
	a.push()
	for name, o := range map[string]gitserver.Feature{"filter": 0, "no filter": gitserver.Filter} {
		t.Run(name, func(t *testing.T) {
			g.Server.Refuse(o)
			r, s := g.remote(), openStore(t, t.TempDir())
			_, err := s.Fetch(t.Context(), r, commit, "refs/tags/v1")
			require.NoError(t, err)
			keys := key.Public
			v := NewVerifier(v1alpha1.GitVerify{Mode: v1alpha1.VerifyTag}, keysName, func() ([]byte, error) { return []byte(keys), nil })
			before := g.Served()
			for range 3 { // sequence: only the first one fetches
				require.NoError(t, s.Verify(t.Context(), v, r, commit, "v1"))
			}
			assert.Less(t, g.Served().PackBytes-before.PackBytes, int64(2000))
			assert.Equal(t, 1, g.Served().UploadPacks-before.UploadPacks)
			assert.Len(t, repotest.PackFiles(t, s, packExt), 1, "the store does not keep the tag")
			keys = repotest.NewSSHKey(t, "ed25519", "").Public
			require.ErrorContains(t, s.Verify(t.Context(), v, r, commit, "v1"), "not one of the keys", "a rotated key takes effect")
		})
	}
}

// commitText is the header of an unsigned commit.
const commitText = "tree 4b825dc642cb6eb9a060e54bf8d69288fbee4904\nauthor A <a@b> 1 +0000\ncommitter A <a@b> 1 +0000\n"

// signedBy returns the parts of a commit that the key signs.
func signedBy(t *testing.T, key repotest.SigningKey) (payload, signature []byte) {
	t.Helper()
	text, err := appendSignature(commitText, "Change\n", NewSigner(key.Format, "", repotest.Token(key.Private)))
	require.NoError(t, err)
	payload, signature, err = splitCommit([]byte(text))
	require.NoError(t, err)
	assert.Equal(t, commitText+"\nChange\n", string(payload))
	return payload, signature
}

func checkKeys(keys string, payload, signature []byte, now time.Time) error {
	k, err := parseKeys([]byte(keys))
	if err != nil {
		return err
	}
	return k.verify(payload, signature, nil, now)
}

// F24: keys of every kind, as OpenSSH's files have them.
func TestSSHKeyFiles(t *testing.T) {
	now := time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC)
	for _, kind := range []string{"ed25519", "ecdsa", "rsa"} {
		t.Run(kind, func(t *testing.T) {
			key := repotest.NewSSHKey(t, kind, "")
			payload, signature := signedBy(t, key)
			line := strings.TrimSpace(key.Public)
			for file, says := range map[string]string{
				"%s":                        "",
				"%s comment":                "",
				"\t%s\r\n":                  "",
				"author@example.com %s":     "",
				"a@b,*@example.com %s name": "",
				`"quoted name" %s`:          "",
				`a@b namespaces="git" %s`:   "",
				`a@b namespaces="file,git*",valid-after="20250101" %s`: "",
				`a@b valid-before="20261125120001Z" %s`:                "",
				`valid-before="20261125120001" %s`:                     "",
				`no-pty,restrict %s`:                                   "",
				`a@b namespaces="file" %s`:                             "there is no public key",
				`a@b valid-before="20261125120000Z" %s`:                "which is not valid now",
				`a@b valid-after="20261126" %s`:                        "which is not valid now",
				`a@b valid-before="never" %s`:                          "line 1 has a time that cannot be read in valid-before",
				`expiry-time="202511251200" %s`:                        "which is not valid now",
				`a@b cert-authority %s`:                                "certificate authority, which is not supported",
				`cert-authority %s`:                                    "certificate authority, which is not supported",
				"":                                                     "there is no public key",
				"# %s":                                                 "there is no public key",
				"%s\nS3CR3T":                                           "line 2 is not an OpenSSH public key",
				"-----BEGIN OPENSSH PRIVATE KEY-----\n%s":              "line 1 is not the start of a public key",
				"-----BEGIN PGP PUBLIC KEY BLOCK-----\n%s":             "has no end",
				"-----BEGIN PGP PUBLIC KEY BLOCK-----\n\n-----END PGP PUBLIC KEY BLOCK-----\n%s": "ends in line 3 cannot be read",
			} {
				t.Run(file, func(t *testing.T) {
					text := file
					if strings.Contains(file, "%s") {
						text = fmt.Sprintf(file, line)
					}
					err := checkKeys(text, payload, signature, now)
					if says == "" {
						require.NoError(t, err)
						return
					}
					require.ErrorContains(t, err, says)
					assert.NotContains(t, err.Error(), "S3CR3T")
					assert.NotContains(t, err.Error(), line[20:40])
				})
			}
		})
	}
}

// F24: a signature for another purpose, of another form, or of a weak key does not verify.
func TestOtherSignatures(t *testing.T) {
	key := repotest.NewSSHKey(t, "ed25519", "")
	weakKey := repotest.NewSSHKey(t, "weak", "")
	pgp := repotest.NewOpenPGPKey(t, "", nil)
	past := func() time.Time { return time.Now().Add(-time.Hour) }
	expired := repotest.NewOpenPGPKey(t, "", &packet.Config{Algorithm: packet.PubKeyAlgoEdDSA, KeyLifetimeSecs: 60, Time: past})
	small := repotest.NewOpenPGPKey(t, "", &packet.Config{RSABits: 1024})
	payload, good := signedBy(t, key)
	_, goodPGP := signedBy(t, pgp)
	entity := func(k repotest.SigningKey) *openpgp.Entity {
		keys, err := openpgp.ReadArmoredKeyRing(strings.NewReader(k.Private))
		require.NoError(t, err)
		return keys[0]
	}
	pgpSign := func(k repotest.SigningKey, text bool, c *packet.Config) []byte {
		var b bytes.Buffer
		sign := openpgp.ArmoredDetachSign
		if text {
			sign = openpgp.ArmoredDetachSignText
		}
		require.NoError(t, sign(&b, entity(k), bytes.NewReader(payload), c))
		return b.Bytes()
	}
	revoked := entity(pgp)
	require.NoError(t, revoked.RevokeKey(packet.KeyCompromised, "lost", nil))
	for name, c := range map[string]struct {
		keys      string
		signature []byte
		says      string
	}{
		"good":                   {key.Public + pgp.Public, good, ""},
		"good OpenPGP":           {key.Public + pgp.Public, goodPGP, ""},
		"another namespace":      {key.Public, key.SSHSignature(t, "file", payload, nil), "for the namespace"},
		"weak ssh key":           {weakKey.Public, weakKey.SSHSignature(t, "git", payload, nil), "weak ssh key"},
		"ssh certificate":        {key.Public, key.SSHSignature(t, "git", payload, certified), "ssh certificate"},
		"x509":                   {key.Public, []byte("-----BEGIN SIGNED MESSAGE-----\n"), "not supported"},
		"no armor":               {key.Public, []byte("-----BEGIN SSH SIGNATURE-----\n"), "malformed ssh"},
		"truncated":              {key.Public, good[:len(good)/2], "malformed ssh"},
		"trailing bytes":         {key.Public, append(bytes.Clone(good), "more"...), "malformed ssh"},
		"too large":              {key.Public, append(bytes.Clone(good), make([]byte, maxSignature)...), "too large"},
		"OpenPGP, truncated":     {pgp.Public, goodPGP[:len(goodPGP)/2], "malformed OpenPGP"},
		"OpenPGP, expired key":   {expired.Public, pgpSign(expired, false, &packet.Config{Time: past}), "OpenPGP key that is not"},
		"OpenPGP, revoked key":   {repotest.Public(t, revoked), goodPGP, "OpenPGP key that is not"},
		"OpenPGP, text":          {pgp.Public, pgpSign(pgp, true, nil), "does not cover every byte"},
		"OpenPGP, small RSA key": {small.Public, pgpSign(small, false, nil), "weak OpenPGP key"},
		"OpenPGP, in the future": {pgp.Public, pgpSign(pgp, false, &packet.Config{Time: func() time.Time { return time.Now().Add(24 * time.Hour) }}), "not valid now"},
		"OpenPGP, unknown key":   {repotest.NewOpenPGPKey(t, "", nil).Public, goodPGP, "not one of the keys"},
	} {
		t.Run(name, func(t *testing.T) {
			err := checkKeys(c.keys, payload, c.signature, time.Now())
			if c.says == "" {
				require.NoError(t, err)
				require.Error(t, checkKeys(c.keys, append(bytes.Clone(payload), '\n'), c.signature, time.Now()))
				return
			}
			assert.ErrorContains(t, err, c.says)
		})
	}
}

// certified returns the key as a certificate.
func certified(key ssh.PublicKey) ssh.PublicKey {
	return &ssh.Certificate{Key: key, SignatureKey: key, CertType: ssh.UserCert, Signature: &ssh.Signature{Format: key.Type()}}
}

// F24: gpg can still sign with SHA-1.
func TestWeakHash(t *testing.T) {
	key := repotest.NewOpenPGPKeyFor(t, "author@example.com", "", &packet.Config{RSABits: 2048})
	a := newAuthor(t, newSite(t), key)
	for hash, says := range map[string]string{"SHA1": "weak hash", "SHA512": ""} {
		t.Run(hash, func(t *testing.T) {
			signature := a.run("payload", "gpg", "--batch", "--quiet", "--digest-algo", hash, "--armor", "--detach-sign")
			err := checkKeys(key.Public, []byte("payload"), []byte(signature+"\n"), time.Now())
			if says == "" {
				require.NoError(t, err)
				return
			}
			assert.ErrorContains(t, err, says)
		})
	}
}

func TestUnreadableKeys(t *testing.T) {
	g := newSite(t)
	commit := g.Push("base", repotest.Views(1))
	r, s := g.remote(), openStore(t, t.TempDir())
	_, err := s.Fetch(t.Context(), r, commit, "refs/heads/main")
	require.NoError(t, err)
	for name, keys := range map[string]func() ([]byte, error){
		"missing": func() ([]byte, error) { return nil, errors.New("no such file") },
		"empty":   func() ([]byte, error) { return nil, nil },
	} {
		t.Run(name, func(t *testing.T) {
			err := s.Verify(t.Context(), NewVerifier(v1alpha1.GitVerify{}, keysName, keys), r, commit, "main")
			repotest.RequireReason(t, v1alpha1.ReasonSignatureInvalid, err)
			assert.ErrorContains(t, err, keysName)
		})
	}
}

// F24: objects and signatures are foreign bytes.
func FuzzSignature(f *testing.F) {
	key, pgp := repotest.NewSSHKey(f, "ed25519", ""), repotest.NewOpenPGPKey(f, "", nil)
	keys, err := parseKeys([]byte(key.Public + pgp.Public))
	require.NoError(f, err)
	for _, k := range []repotest.SigningKey{key, pgp} { // setup: seeds
		text, err := appendSignature(commitText, "Change\n", NewSigner(k.Format, "", repotest.Token(k.Private)))
		require.NoError(f, err)
		f.Add([]byte(text), []byte(k.Public))
	}
	f.Add([]byte("object 4b825dc642cb6eb9a060e54bf8d69288fbee4904\ntype commit\ntag v1\n\nm\n-----BEGIN PGP SIGNATURE-----\n"), []byte("a@b namespaces=\"git\" ssh-ed25519 AAAA"))
	f.Add([]byte("gpgsig \n \n\n"), []byte("\" "))
	f.Fuzz(func(t *testing.T, text, list []byte) {
		for _, split := range []func([]byte) ([]byte, []byte, error){splitCommit, splitTag} {
			payload, signature, err := split(text)
			if err != nil {
				continue
			}
			if keys.verify(payload, signature, nil, time.Now()) == nil {
				assert.Contains(t, string(payload), commitText, "only the signed text verifies")
			}
			if other, err := parseKeys(list); err == nil {
				_ = other.verify(payload, signature, nil, time.Now())
			}
		}
		_, _, _ = parseTagHeader(text)
	})
}
