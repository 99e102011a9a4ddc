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

	"github.com/ProtonMail/go-crypto/openpgp/packet"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/repo/repotest"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/pieces"
	"stoker.io/stoker/internal/secret"
	"stoker.io/stoker/test/document"
)

const signingName = "spec.bidirectional.signing: key id of Secret sign"

// signingKeys are keys of all kinds.
func signingKeys(t testing.TB) map[string]repotest.SigningKey {
	return map[string]repotest.SigningKey{
		"ssh ed25519":     repotest.NewSSHKey(t, "ed25519", ""),
		"ssh ecdsa":       repotest.NewSSHKey(t, "ecdsa", ""),
		"ssh rsa":         repotest.NewSSHKey(t, "rsa", ""),
		"openpgp ed25519": repotest.NewOpenPGPKey(t, "", nil),
		"openpgp rsa":     repotest.NewOpenPGPKey(t, "", &packet.Config{RSABits: 2048}),
	}
}

func TestSignedCommit(t *testing.T) {
	s := newSite(t)
	s.Push("base", repotest.Views(2))
	store := openStore(t, t.TempDir())
	res, _ := pull(t, store, s.remote(), "main")
	root, err := store.RootTree(res.Commit)
	require.NoError(t, err)
	keys := signingKeys(t)
	for name, key := range keys {
		t.Run(name, func(t *testing.T) {
			d, err := NewDraft(store, root, []Edit{{Path: "a", Content: pieces.Of([]byte(name))}})
			require.NoError(t, err)
			person := Person{Name: "Stoker", Mail: "stoker@stoker.invalid", When: time.Now()}
			trimmed := repotest.Token(strings.TrimSpace(key.Private)) // as it is read from a Secret
			commit, err := d.MakeCommit(res.Commit, person, person, "Change\n\nBody\n\nName: value\n", NewSigner(key.Format, signingName, trimmed))
			require.NoError(t, err)
			index(t, s, d)
			s.Git("fsck", "--strict", "--no-dangling", commit.String())
			assert.Equal(t, "Change\n\nBody\n\nName: value\n", s.Git("log", "-1", "--format=%B", commit.String()))
			text := s.Git("cat-file", "commit", commit.String()) + "\n"
			require.NoError(t, key.Check(text))
			require.Error(t, key.Check(strings.Replace(text, "Body", "body", 1)), "another message")
			for other, k := range keys {
				if other != name && k.Format == key.Format {
					require.Error(t, k.Check(text), "the key %s", other)
				}
			}
			require.NoError(t, key.Verify(t, s.Dir, commit.String()))
		})
	}
	t.Run("git rejects another key", func(t *testing.T) {
		d, err := NewDraft(store, root, []Edit{{Path: "a", Content: pieces.Of([]byte("b"))}})
		require.NoError(t, err)
		person := Person{Name: "Stoker", Mail: "stoker@stoker.invalid", When: time.Now()}
		commit, err := d.MakeCommit(res.Commit, person, person, "Change\n", NewSigner("ssh", signingName, repotest.Token(keys["ssh rsa"].Private)))
		require.NoError(t, err)
		index(t, s, d)
		require.Error(t, keys["ssh ed25519"].Verify(t, s.Dir, commit.String()))
	})
}

func TestDocumentedSigningKey(t *testing.T) {
	if _, err := exec.LookPath("ssh-keygen"); err != nil {
		t.Skip("no ssh-keygen on this machine")
	}
	lines := document.Open(t)
	s := newSite(t)
	shell := document.NewShell(t, s.Dir, nil)
	for c := range lines.Of("docs/how-to/signed-commits.md") {
		shell.Type(t, c.Text)
	}
	private, err := os.ReadFile(filepath.Join(shell.Dir, "signing"))
	require.NoError(t, err)
	commit, err := appendSignature(fmt.Sprintf("tree %s\nauthor A <a@b> 1 +0000\ncommitter A <a@b> 1 +0000\n", s.RawTree()), "Change\n",
		NewSigner(v1alpha1.SigningSSH, signingName, repotest.Token(string(private))))
	require.NoError(t, err)
	id := repotest.RunGit(t, s.Dir, []byte(commit), "hash-object", "-t", "commit", "-w", "--stdin")
	shell.Type(t, "git -c gpg.ssh.allowedSignersFile=allowed_signers verify-commit "+strings.TrimSpace(string(id)))
}

func TestUnusableSigningKey(t *testing.T) {
	sshKey, pgpKey := repotest.NewSSHKey(t, "ed25519", ""), repotest.NewOpenPGPKey(t, "", nil)
	lockedSSH, lockedPGP := repotest.NewSSHKey(t, "ed25519", "S3CR3T"), repotest.NewOpenPGPKey(t, "S3CR3T", nil)
	past := func() time.Time { return time.Now().Add(-time.Hour) }
	expired := repotest.NewOpenPGPKey(t, "", &packet.Config{Algorithm: packet.PubKeyAlgoEdDSA, KeyLifetimeSecs: 60, Time: past})
	for name, tc := range map[string]struct {
		format v1alpha1.SigningFormat
		key    string
		says   string
	}{
		"ssh with a passphrase":        {"ssh", lockedSSH.Private, "is protected by a passphrase"},
		"PKCS #8 with a passphrase":    {"ssh", "-----BEGIN ENCRYPTED PRIVATE KEY-----\nUzNDUjNU\n-----END ENCRYPTED PRIVATE KEY-----", "is protected by a passphrase"},
		"ssh, public key":              {"ssh", sshKey.Public, "is a public key"},
		"ssh, OpenPGP key":             {"ssh", pgpKey.Private, "is not an ssh private key"},
		"ssh, other text":              {"ssh", "S3CR3T", "is not an ssh private key"},
		"ssh, first half of a key":     {"ssh", sshKey.Private[:120], "is not an ssh private key"},
		"OpenPGP with a passphrase":    {"openpgp", lockedPGP.Private, "is protected by a passphrase"},
		"OpenPGP, public key":          {"openpgp", pgpKey.Public, "is a public key"},
		"OpenPGP, ssh key":             {"openpgp", sshKey.Private, "is not an armored OpenPGP key"},
		"OpenPGP, other text":          {"openpgp", "S3CR3T", "is not an armored OpenPGP key"},
		"OpenPGP, first half of a key": {"openpgp", pgpKey.Private[:200], "is not an armored OpenPGP key"},
		"OpenPGP, expired":             {"openpgp", expired.Private, "is expired or revoked"},
		"OpenPGP, empty block":         {"openpgp", "-----BEGIN PGP PRIVATE KEY BLOCK-----\n\n-----END PGP PRIVATE KEY BLOCK-----", "is not an armored OpenPGP key"},
	} {
		t.Run(name, func(t *testing.T) {
			signature, err := NewSigner(tc.format, signingName, repotest.Token(tc.key))([]byte("commit"))
			repotest.RequireReason(t, v1alpha1.ReasonAuthFailed, err)
			assert.Empty(t, signature)
			require.ErrorContains(t, err, signingName+" "+tc.says)
			require.ErrorContains(t, err, "private key without a passphrase there, as ")
			said := newEverything()
			said.hear(err)
			for line := range strings.Lines(tc.key) {
				if line = strings.TrimSpace(line); len(line) > 4 && !strings.HasPrefix(line, "-----") {
					assert.NotContains(t, said.String(), line[:min(len(line), 16)], "the text of the key")
				}
			}
		})
	}
	t.Run("not readable", func(t *testing.T) {
		failing := func() (secret.String, error) { return secret.New(sshKey.Private), errors.New("id is empty") }
		_, err := NewSigner("ssh", signingName, failing)([]byte("commit"))
		repotest.RequireReason(t, v1alpha1.ReasonAuthFailed, err)
		assert.ErrorContains(t, err, signingName+" cannot be read: id is empty; put an ssh private key")
	})
	t.Run("a rotated key takes effect", func(t *testing.T) {
		text := lockedSSH.Private
		sign := NewSigner("ssh", signingName, func() (secret.String, error) { return secret.New(text), nil })
		_, err := sign([]byte("commit"))
		require.Error(t, err)
		text = sshKey.Private
		_, err = sign([]byte("commit"))
		require.NoError(t, err)
	})
}

// F24: a line of allowed_signers admits a key only if OpenSSH, which git uses, admits it.
func TestAllowedSignersLikeOpenSSH(t *testing.T) {
	keygen, err := exec.LookPath("ssh-keygen")
	if err != nil {
		t.Skip("no ssh-keygen on this machine")
	}
	key := repotest.NewSSHKey(t, "ed25519", "")
	payload, signature := signedBy(t, key)
	now := time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC)
	for options, want := range map[string]bool{
		`namespaces="git"`:                   true,
		`namespaces="g?t,!file"`:             true,
		`namespaces="!git,*"`:                false,
		`namespaces="*,!git"`:                false,
		`namespaces="*,!g*"`:                 false,
		`namespaces="!file"`:                 false,
		`namespaces="[g]it"`:                 false,
		`namespaces="file",namespaces="git"`: false,
		`namespaces=git`:                     false,
		`valid-before=20300101000000Z`:       false,
		`valid-before="20300101000000Z`:      false,
		`valid-before="20250101000000Z",valid-before="20300101000000Z"`: false,
		`valid-before="20300101000000Z",valid-before="20250101000000Z"`: false,
		`valid-after="20300101000000Z",valid-after="20250101000000Z"`:   false,
		`valid-after="20250101000000Z",valid-before="20300101000000Z"`:  true,
	} {
		t.Run(options, func(t *testing.T) {
			line, dir := "a@b "+options+" "+strings.TrimSpace(key.Public)+"\n", t.TempDir()
			signers, sig := filepath.Join(dir, "signers"), filepath.Join(dir, "sig")
			require.NoError(t, os.WriteFile(signers, []byte(line), 0o600))
			require.NoError(t, os.WriteFile(sig, signature, 0o600))
			verify := exec.CommandContext(t.Context(), keygen, "-Y", "verify", "-f", signers, "-I", "a@b", "-n", "git", "-s", sig, "-O", "verify-time=20261125120000Z")
			verify.Stdin = bytes.NewReader(payload)
			out, err := verify.CombinedOutput()
			assert.Equal(t, want, err == nil, "OpenSSH: %s", out)
			err = checkKeys(line, payload, signature, now)
			assert.Equal(t, want, err == nil, "the agent: %v", err)
		})
	}
}
