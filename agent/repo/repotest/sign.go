package repotest

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha512"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/ProtonMail/go-crypto/openpgp/armor"
	"github.com/ProtonMail/go-crypto/openpgp/packet"
	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/test/gitserver"
)

// SigningKey is a key for signatures of commits, in the form of files.
type SigningKey struct {
	Format          v1alpha1.SigningFormat
	Private, Public string
}

// NewSSHKey makes a key for ssh signatures. kind is ed25519, ecdsa, rsa, or weak, which is an RSA key of 1024 bits. An empty passphrase
// means that the key has none.
func NewSSHKey(t testing.TB, kind, passphrase string) SigningKey {
	t.Helper()
	var key crypto.Signer
	var err error
	switch kind {
	case "ed25519":
		_, key, err = ed25519.GenerateKey(rand.Reader)
	case "ecdsa":
		key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	case "rsa":
		key, err = rsa.GenerateKey(rand.Reader, 2048)
	case "weak":
		key, err = rsa.GenerateKey(rand.Reader, 1024)
	}
	require.NoError(t, err)
	block, err := ssh.MarshalPrivateKey(key, "")
	if passphrase != "" {
		block, err = ssh.MarshalPrivateKeyWithPassphrase(key, "", []byte(passphrase))
	}
	require.NoError(t, err)
	public, err := ssh.NewPublicKey(key.Public())
	require.NoError(t, err)
	return SigningKey{v1alpha1.SigningSSH, string(pem.EncodeToMemory(block)), string(ssh.MarshalAuthorizedKey(public))}
}

// NewOpenPGPKey makes a key for OpenPGP signatures. An empty passphrase means that the key has none. Without a config, it is an
// Ed25519 key, which takes less time than an RSA key.
func NewOpenPGPKey(t testing.TB, passphrase string, c *packet.Config) SigningKey {
	t.Helper()
	return NewOpenPGPKeyFor(t, "plant@example.com", passphrase, c)
}

// NewOpenPGPKeyFor is NewOpenPGPKey for a mail address.
func NewOpenPGPKeyFor(t testing.TB, mail, passphrase string, c *packet.Config) SigningKey {
	t.Helper()
	if c == nil {
		c = &packet.Config{Algorithm: packet.PubKeyAlgoEdDSA}
	}
	e, err := openpgp.NewEntity("Plant", "", mail, c)
	require.NoError(t, err)
	if passphrase != "" {
		require.NoError(t, e.EncryptPrivateKeys([]byte(passphrase), c))
	}
	return SigningKey{
		v1alpha1.SigningOpenPGP,
		armored(t, openpgp.PrivateKeyType, func(b io.Writer) error { return e.SerializePrivateWithoutSigning(b, c) }),
		Public(t, e),
	}
}

// Public returns the public half of a key.
func Public(t testing.TB, e *openpgp.Entity) string {
	t.Helper()
	return armored(t, openpgp.PublicKeyType, e.Serialize)
}

func armored(t testing.TB, kind string, write func(io.Writer) error) string {
	t.Helper()
	var text bytes.Buffer
	w, err := armor.Encode(&text, kind, nil)
	require.NoError(t, err)
	require.NoError(t, errors.Join(write(w), w.Close()))
	return text.String() + "\n"
}

// The values of an ssh signature that git uses; see PROTOCOL.sshsig of OpenSSH. The tests do not share them with the product.
const (
	sshMagic = "SSHSIG"
	sshBlock = "SSH SIGNATURE"
	sshHash  = "sha512"
)

type sshSignature struct {
	Version                   uint32
	PublicKey                 []byte
	Namespace, Reserved, Hash string
	Signature                 []byte
}

// sshSignedData returns the bytes that an ssh key signs.
func sshSignedData(namespace string, payload []byte) []byte {
	sum := sha512.Sum512(payload)
	return append([]byte(sshMagic), ssh.Marshal(struct {
		Namespace, Reserved, Hash string
		Sum                       []byte
	}{namespace, "", sshHash, sum[:]})...)
}

// SSHSignature signs like ssh-keygen -Y sign, for a namespace. If change is not nil, it alters the public key in the signature.
func (k SigningKey) SSHSignature(t testing.TB, namespace string, payload []byte, change func(ssh.PublicKey) ssh.PublicKey) []byte {
	t.Helper()
	signer, err := ssh.ParsePrivateKey([]byte(k.Private))
	require.NoError(t, err)
	name := signer.PublicKey().Type()
	if name == ssh.KeyAlgoRSA {
		name = ssh.KeyAlgoRSASHA512
	}
	signature, err := signer.(ssh.AlgorithmSigner).SignWithAlgorithm(rand.Reader, sshSignedData(namespace, payload), name)
	require.NoError(t, err)
	public := signer.PublicKey()
	if change != nil {
		public = change(public)
	}
	blob := ssh.Marshal(sshSignature{1, public.Marshal(), namespace, "", sshHash, ssh.Marshal(signature)})
	return pem.EncodeToMemory(&pem.Block{Type: sshBlock, Bytes: append([]byte(sshMagic), blob...)})
}

// Check checks the signature of a commit without git.
func (k SigningKey) Check(commit string) error {
	head, message, _ := strings.Cut(commit, "\n\n")
	head, signature, ok := strings.Cut(head, "\ngpgsig ")
	if !ok {
		return errors.New("not signed")
	}
	signature = strings.ReplaceAll(signature, "\n ", "\n")
	unsigned := head + "\n\n" + message
	if k.Format == v1alpha1.SigningOpenPGP {
		keys, err := openpgp.ReadArmoredKeyRing(strings.NewReader(k.Public))
		if err != nil {
			return err
		}
		_, err = openpgp.CheckArmoredDetachedSignature(keys, strings.NewReader(unsigned), strings.NewReader(signature), nil)
		return err
	}
	return k.checkSSH(unsigned, signature)
}

func (k SigningKey) checkSSH(unsigned, signature string) error {
	public, _, _, _, err := ssh.ParseAuthorizedKey([]byte(k.Public))
	if err != nil {
		return err
	}
	block, rest := pem.Decode([]byte(signature))
	if block == nil || block.Type != sshBlock || len(rest) > 0 || !bytes.HasPrefix(block.Bytes, []byte(sshMagic)) {
		return errors.New("not an ssh signature")
	}
	var outer sshSignature
	var inner ssh.Signature
	if err := errors.Join(ssh.Unmarshal(block.Bytes[len(sshMagic):], &outer), ssh.Unmarshal(outer.Signature, &inner)); err != nil {
		return err
	}
	if outer.Version != 1 || outer.Namespace != "git" || outer.Hash != sshHash || !bytes.Equal(outer.PublicKey, public.Marshal()) {
		return fmt.Errorf("signature of another kind or key: %d %q %q", outer.Version, outer.Namespace, outer.Hash)
	}
	return public.Verify(sshSignedData("git", []byte(unsigned)), &inner)
}

// Verify lets git verify-commit check the signature of a commit in a repository. It skips the test if a tool that git needs is
// missing.
func (k SigningKey) Verify(t testing.TB, dir, commit string) error {
	t.Helper()
	home := t.TempDir()
	tool, args := "ssh-keygen", []string{"-c", "gpg.format=ssh", "-c", "gpg.ssh.allowedSignersFile=" + filepath.Join(home, "allowed")}
	if k.Format == v1alpha1.SigningOpenPGP {
		tool, args = "gpg", []string{"-c", "gpg.program=" + filepath.Join(home, "run")}
	}
	if _, err := exec.LookPath(tool); err != nil {
		t.Skipf("git verify-commit needs %s for %s signatures: install it", tool, k.Format)
	}
	if k.Format == v1alpha1.SigningSSH {
		require.NoError(t, os.WriteFile(filepath.Join(home, "allowed"), []byte(`stoker@stoker.invalid namespaces="git" `+k.Public), 0o600))
	} else {
		gpg := []string{"--batch", "--quiet", "--no-autostart", "--trust-model", "always", "--homedir", home}
		imported := exec.CommandContext(t.Context(), tool, append(gpg, "--import")...)
		imported.Env, imported.Stdin = gitserver.Env(), strings.NewReader(k.Public)
		out, err := imported.CombinedOutput()
		require.NoError(t, err, "gpg --import: %s", out)
		script := "#!/bin/sh\nexec gpg " + strings.Join(gpg, " ") + " \"$@\"\n"
		require.NoError(t, os.WriteFile(filepath.Join(home, "run"), []byte(script), 0o700))
	}
	cmd := exec.CommandContext(t.Context(), "git", append(args, "verify-commit", "--raw", commit)...)
	cmd.Dir, cmd.Env = dir, gitserver.Env()
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("git verify-commit: %w: %s", err, out)
	}
	return nil
}
