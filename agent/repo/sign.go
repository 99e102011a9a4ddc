package repo

import (
	"bytes"
	"crypto/rand"
	"crypto/sha512"
	"encoding/pem"
	"errors"
	"strings"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp"
	"golang.org/x/crypto/ssh"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/secret"
)

// Signer returns the armored signature of the bytes of a commit, for the header gpgsig.
type Signer func(commit []byte) (string, error)

// NewSigner returns a Signer for keys of a format. It calls key for each commit, so that a rotated key takes effect at once. All
// errors are AuthFailed. They begin with name, which says where the key is from, and never contain a part of the key.
func NewSigner(format v1alpha1.SigningFormat, name string, key func() (secret.String, error)) Signer {
	sign, advice := signSSH, "put an ssh private key without a passphrase there, as ssh-keygen -t ed25519 -N '' makes one"
	if format == v1alpha1.SigningOpenPGP {
		sign, advice = signOpenPGP, "put a private key without a passphrase there, as gpg --armor --export-secret-keys prints it"
	}
	return func(commit []byte) (string, error) {
		text, err := key()
		if err != nil {
			return "", failure.New(v1alpha1.ReasonAuthFailed, "%s cannot be read: %w; %s", name, err, advice)
		}
		// OpenSSH's own format needs the newline at the end, which secrets easily lose.
		signature, err := sign([]byte(text.Reveal()+"\n"), commit)
		if err != nil {
			return "", failure.New(v1alpha1.ReasonAuthFailed, "%s %w: %s", name, err, advice)
		}
		return signature, nil
	}
}

var (
	errLocked = errors.New("is protected by a passphrase, which the agent cannot enter")
	errPublic = errors.New("is a public key")
)

// The values of an ssh signature that git uses; see PROTOCOL.sshsig of OpenSSH.
const (
	sshMagic     = "SSHSIG"
	sshNamespace = "git"
	sshHash      = "sha512"
)

func signSSH(key, commit []byte) (string, error) {
	signer, err := ssh.ParsePrivateKey(key)
	if _, locked := errors.AsType[*ssh.PassphraseMissingError](err); locked || bytes.Contains(key, []byte("BEGIN ENCRYPTED PRIVATE KEY")) { // PKCS #8
		return "", errLocked
	}
	if _, _, _, _, public := ssh.ParseAuthorizedKey(key); err != nil && public == nil {
		return "", errPublic
	}
	algorithm, usable := signer.(ssh.AlgorithmSigner)
	if err != nil || !usable {
		return "", errors.New("is not an ssh private key")
	}
	sum := sha512.Sum512(commit)
	name := signer.PublicKey().Type()
	if name == ssh.KeyAlgoRSA {
		name = ssh.KeyAlgoRSASHA512 // SSHSIG has no signatures with SHA-1
	}
	signature, err := algorithm.SignWithAlgorithm(rand.Reader, sshSignedData(sshHash, sum[:]), name)
	if err != nil {
		return "", errors.New("cannot sign")
	}
	blob := ssh.Marshal(sshsig{1, signer.PublicKey().Marshal(), sshNamespace, "", sshHash, ssh.Marshal(signature)})
	return string(pem.EncodeToMemory(&pem.Block{Type: "SSH SIGNATURE", Bytes: append([]byte(sshMagic), blob...)})), nil
}

func signOpenPGP(key, commit []byte) (string, error) {
	keys, err := openpgp.ReadArmoredKeyRing(bytes.NewReader(key))
	switch {
	case err != nil || len(keys) == 0:
		return "", errors.New("is not an armored OpenPGP key")
	case len(keys) > 1:
		return "", errors.New("has several OpenPGP keys")
	case keys[0].PrivateKey == nil:
		return "", errPublic
	}
	k, ok := keys[0].SigningKey(time.Now())
	switch {
	case !ok:
		return "", errors.New("is expired or revoked, or is not a signing key")
	case k.PrivateKey == nil || k.PrivateKey.Dummy():
		return "", errors.New("lacks the private half of its key for signatures")
	case k.PrivateKey.Encrypted:
		return "", errLocked
	}
	var b strings.Builder
	if err := openpgp.ArmoredDetachSign(&b, keys[0], bytes.NewReader(commit), nil); err != nil {
		return "", errors.New("cannot sign")
	}
	return b.String(), nil
}

// appendSignature returns a commit with header and message. Unless sign is nil, the last line of the header is gpgsig with the
// signature.
func appendSignature(head, message string, sign Signer) (string, error) {
	if sign == nil {
		return head + "\n" + message, nil
	}
	signature, err := sign([]byte(head + "\n" + message))
	if err != nil {
		return "", err
	}
	return head + "gpgsig " + strings.ReplaceAll(strings.TrimSpace(signature), "\n", "\n ") + "\n\n" + message, nil
}
