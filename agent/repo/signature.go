package repo

import (
	"bytes"
	"crypto"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/pem"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/ProtonMail/go-crypto/openpgp/armor"
	pgperrors "github.com/ProtonMail/go-crypto/openpgp/errors"
	"github.com/ProtonMail/go-crypto/openpgp/packet"
	"golang.org/x/crypto/ssh"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/cosign"
	"stoker.io/stoker/internal/failure"
)

const maxSignature = 64 << 10 // bytes

var errUnsigned = errors.New("is not signed")

// splitCommit returns the signature of a commit and the bytes that it covers: the commit without the header gpgsig. It refuses a
// commit with several signatures. git ignores some of them, and could verify another one.
func splitCommit(commit []byte) (payload, signature []byte, err error) {
	rest, inSignature := commit, false
	for len(rest) > 0 && rest[0] != '\n' {
		line, after := cutLine(rest)
		rest = after
		text, begins := bytes.CutPrefix(line, []byte("gpgsig "))
		switch {
		case inSignature && line[0] == ' ':
			signature = append(signature, line[1:]...)
			continue
		case begins && signature == nil:
			signature, inSignature = append([]byte{}, text...), true
			continue
		case bytes.HasPrefix(line, []byte("gpgsig")):
			return nil, nil, errors.New("has more than one signature")
		}
		payload, inSignature = append(payload, line...), false
	}
	if signature == nil {
		return nil, nil, errUnsigned
	}
	return append(payload, rest...), signature, nil
}

// cutLine returns the first line of b with its newline, and what follows.
func cutLine(b []byte) (line, rest []byte) {
	if i := bytes.IndexByte(b, '\n'); i >= 0 {
		return b[:i+1], b[i+1:]
	}
	return b, nil
}

// splitTag returns the signature at the end of an annotated tag, and the bytes that it covers. As in git, the signature starts at
// the last line that can start one.
func splitTag(tag []byte) (payload, signature []byte, err error) {
	start := -1
	for i := 0; i < len(tag); {
		line, _ := cutLine(tag[i:])
		if formatOf(line) != "" {
			start = i
		}
		i += len(line)
	}
	if start < 0 {
		return nil, nil, errUnsigned
	}
	return tag[:start], tag[start:], nil
}

// parseTagHeader returns the target and the name in an annotated tag; ok is false if the target is not a commit.
func parseTagHeader(tag []byte) (commit, name string, ok bool) {
	for _, field := range []struct {
		key   string
		value *string
	}{{"object ", &commit}, {"type commit\n", new(string)}, {"tag ", &name}} {
		line, rest := cutLine(tag)
		value, ok := bytes.CutPrefix(line, []byte(field.key))
		if !ok {
			return "", "", false
		}
		*field.value, tag = strings.TrimSuffix(string(value), "\n"), rest
	}
	return commit, name, true
}

// formatOf returns the format of a signature by its first line, "" if it is not a signature. Callers do not support "x509".
func formatOf(signature []byte) v1alpha1.SigningFormat {
	for begin, format := range map[string]v1alpha1.SigningFormat{
		"-----BEGIN SSH SIGNATURE-----": v1alpha1.SigningSSH, "-----BEGIN PGP SIGNATURE-----": v1alpha1.SigningOpenPGP,
		"-----BEGIN PGP MESSAGE-----": v1alpha1.SigningOpenPGP, "-----BEGIN SIGNED MESSAGE-----": "x509",
	} {
		if bytes.HasPrefix(signature, []byte(begin)) {
			return format
		}
	}
	return ""
}

// keyring has the public keys that may sign.
type keyring struct {
	ssh    []sshKey
	pgp    openpgp.EntityList
	cosign []cosign.Key
}

// sshKey is a line of authorized_keys or allowed_signers.
type sshKey struct {
	blob          []byte
	after, before time.Time // when the key is valid; zero for no limit
}

// parseKeys reads public keys in any order: lines of OpenSSH, as in authorized_keys or allowed_signers, armored OpenPGP keys, and keys of cosign.
// Errors name the number of a line, but contain no part of it, which may be a private key.
func parseKeys(text []byte) (keyring, error) {
	var k keyring
	var block []byte
	begin, end := "", ""
	for number, rest := 1, text; len(rest) > 0; number++ {
		var line []byte
		line, rest = cutLine(rest)
		plain := bytes.TrimSpace(line)
		switch {
		case block != nil:
			block = append(append(block, plain...), '\n')
			if string(plain) != end {
				continue
			}
			if err := k.addBlock(begin, block); err != nil {
				return k, fmt.Errorf("the key that ends in line %d cannot be read: %w", number, err)
			}
			block = nil
		case len(plain) == 0 || plain[0] == '#':
		case string(plain) == beginPGP, string(plain) == beginPEM:
			begin, end = string(plain), strings.Replace(string(plain), "BEGIN", "END", 1)
			block = append(append([]byte{}, plain...), '\n')
		case bytes.HasPrefix(plain, []byte("-----BEGIN")):
			return k, fmt.Errorf("line %d is not the start of a public key", number)
		default:
			key, used, err := parseSSHKey(plain)
			if err != nil {
				return k, fmt.Errorf("line %d %w", number, err)
			}
			if used {
				k.ssh = append(k.ssh, key)
			}
		}
	}
	switch {
	case block != nil:
		return k, fmt.Errorf("a key has no end: the line %s is missing", end)
	case len(k.ssh)+len(k.pgp)+len(k.cosign) == 0:
		return k, errors.New("there is no public key")
	}
	return k, nil
}

// The first lines of keys that have several.
const (
	beginPGP = "-----BEGIN PGP PUBLIC KEY BLOCK-----"
	beginPEM = "-----BEGIN PUBLIC KEY-----"
)

// addBlock adds the keys of a block that starts with the line begin.
func (k *keyring) addBlock(begin string, block []byte) error {
	if begin == beginPEM {
		key, err := cosign.ParseKey(block)
		k.cosign = append(k.cosign, key)
		return err
	}
	keys, err := openpgp.ReadArmoredKeyRing(bytes.NewReader(block))
	if err != nil || len(keys) == 0 {
		return errors.New("it is not an OpenPGP key")
	}
	k.pgp = append(k.pgp, keys...)
	return nil
}

// parseSSHKey reads a line of authorized_keys, or of allowed_signers, which starts with principals. used is false if the options
// do not admit the namespace git.
func parseSSHKey(line []byte) (key sshKey, used bool, err error) {
	public, _, options, _, err := ssh.ParseAuthorizedKey(line)
	if err != nil { // principals and options
		_, rest, _ := strings.Cut(string(line), " ")
		if line[0] == '"' {
			_, rest, _ = strings.Cut(string(line[1:]), `" `)
		}
		if public, _, options, _, err = ssh.ParseAuthorizedKey([]byte(strings.TrimSpace(rest))); err != nil {
			return key, false, errors.New("is not an OpenSSH public key")
		}
	}
	key.blob, used = public.Marshal(), true
	seen := map[string]bool{}
	for _, option := range options {
		name, value, _ := strings.Cut(option, "=")
		name = strings.ToLower(name)
		if n := len(value); n > 0 && (n < 2 || value[0] != '"' || value[n-1] != '"') {
			return key, false, fmt.Errorf("has no double quotes around the value of %s", failure.Quote(name))
		}
		value = strings.Trim(value, `"`)
		if seen[name] {
			return key, false, fmt.Errorf("has the option %s twice", failure.Quote(name))
		}
		seen[name] = true
		switch name {
		case "cert-authority":
			return key, false, errors.New("is a certificate authority, which is not supported: list the keys themselves")
		case "namespaces":
			used = admitsNamespace(value)
		case "valid-after":
			key.after, err = parseSSHTime(value)
		case "valid-before", "expiry-time":
			key.before, err = parseSSHTime(value)
		}
		if err != nil {
			return key, false, fmt.Errorf("has a time that cannot be read in %s: use YYYYMMDDHHMMSSZ", name)
		}
	}
	return key, used, nil
}

// admitsNamespace reports whether a list of patterns of OpenSSH admits the namespace git: one pattern matches, and none with ! does.
func admitsNamespace(patterns string) (admitted bool) {
	for pattern := range strings.SplitSeq(patterns, ",") {
		pattern, negated := strings.CutPrefix(pattern, "!")
		// In OpenSSH, only * and ? are special.
		ok, err := path.Match(strings.NewReplacer(`\`, `\\`, "[", `\[`).Replace(pattern), sshNamespace)
		if ok = ok && err == nil; ok && negated {
			return false
		}
		admitted = admitted || ok
	}
	return admitted
}

// parseSSHTime reads a time in the form of OpenSSH. A time without a Z is in UTC, too, because the agent does not know the user's
// time zone.
func parseSSHTime(s string) (t time.Time, err error) {
	s = strings.TrimSuffix(strings.ToUpper(s), "Z")
	for _, layout := range []string{"20060102", "200601021504", "20060102150405"} {
		if t, err = time.Parse(layout, s); err == nil {
			return t, nil
		}
	}
	return t, err
}

// verify returns nil if one of the keys made the signature of the payload. The key must be valid now, because the author chooses
// the date of a commit. An empty formats admits all. Errors are the predicate of a sentence about the commit or the tag.
func (k keyring) verify(payload, signature []byte, formats []v1alpha1.SigningFormat, now time.Time) error {
	format := formatOf(signature)
	known := format == v1alpha1.SigningSSH || format == v1alpha1.SigningOpenPGP
	switch {
	case len(signature) > maxSignature:
		return errors.New("has a signature that is too large")
	case !known:
		return errors.New("has a signature of a format that is not supported: sign with ssh or OpenPGP")
	case len(formats) > 0 && !slices.Contains(formats, format):
		return fmt.Errorf("has a signature of the format %s, which spec.git.verify.formats does not admit", format)
	case format == v1alpha1.SigningSSH:
		return k.verifySSH(payload, signature, now)
	}
	return k.verifyOpenPGP(payload, signature, now)
}

func (k keyring) verifySSH(payload, signature []byte, now time.Time) error {
	malformed := errors.New("has a malformed ssh signature")
	block, rest := pem.Decode(signature)
	if block == nil || block.Type != "SSH SIGNATURE" || len(bytes.TrimSpace(rest)) > 0 {
		return malformed
	}
	blob, ok := bytes.CutPrefix(block.Bytes, []byte(sshMagic))
	var outer sshsig
	var inner ssh.Signature
	if !ok || ssh.Unmarshal(blob, &outer) != nil || outer.Version != 1 || ssh.Unmarshal(outer.Signature, &inner) != nil {
		return malformed
	}
	if outer.Namespace != sshNamespace {
		return fmt.Errorf("has an ssh signature for the namespace %s instead of git", failure.Quote(outer.Namespace))
	}
	public, err := ssh.ParsePublicKey(outer.PublicKey)
	if err != nil {
		return malformed
	}
	if _, certificate := public.(*ssh.Certificate); certificate {
		return errors.New("is signed with an ssh certificate, which is not supported: sign with a key")
	}
	fingerprint := ssh.FingerprintSHA256(public)
	if isWeak(public, inner.Format) {
		return fmt.Errorf("is signed with the weak ssh key %s: use Ed25519, ECDSA, or RSA with at least %d bits", fingerprint, cosign.MinRSABits)
	}
	var sum []byte
	switch outer.Hash {
	case "sha256":
		s := sha256.Sum256(payload)
		sum = s[:]
	case "sha512":
		s := sha512.Sum512(payload)
		sum = s[:]
	default:
		return malformed
	}
	listed := false
	for _, key := range k.ssh {
		if !bytes.Equal(key.blob, public.Marshal()) {
			continue
		}
		if listed = true; now.Before(key.after) || !key.before.IsZero() && !now.Before(key.before) {
			continue
		}
		if public.Verify(sshSignedData(outer.Hash, sum), &inner) != nil {
			return errors.New("has an ssh signature of something else")
		}
		return nil
	}
	if listed {
		return fmt.Errorf("is signed with the ssh key %s, which is not valid now", fingerprint)
	}
	return fmt.Errorf("is signed with the ssh key %s, which is not one of the keys", fingerprint)
}

// sshsig is a signature of OpenSSH after its magic.
type sshsig struct {
	Version                   uint32
	PublicKey                 []byte
	Namespace, Reserved, Hash string
	Signature                 []byte
}

// sshSignedData returns the bytes that an ssh key signs: the hash sum of the payload, with its context.
func sshSignedData(hash string, sum []byte) []byte {
	return append([]byte(sshMagic), ssh.Marshal(struct {
		Namespace, Reserved, Hash string
		Sum                       []byte
	}{sshNamespace, "", hash, sum})...)
}

// isWeak reports whether an attacker may be able to forge a signature of this format by this key.
func isWeak(public ssh.PublicKey, format string) bool {
	if format == ssh.KeyAlgoRSA || public.Type() == "ssh-dss" { // SHA-1
		return true
	}
	if c, ok := public.(ssh.CryptoPublicKey); ok {
		if key, ok := c.CryptoPublicKey().(*rsa.PublicKey); ok {
			return key.N.BitLen() < cosign.MinRSABits
		}
	}
	return false
}

// strongHashes are the accepted hashes of OpenPGP signatures.
var strongHashes = []crypto.Hash{crypto.SHA256, crypto.SHA384, crypto.SHA512, crypto.SHA3_256, crypto.SHA3_512}

func (k keyring) verifyOpenPGP(payload, signature []byte, now time.Time) error {
	malformed := errors.New("has a malformed OpenPGP signature")
	block, err := armor.Decode(bytes.NewReader(signature))
	if err != nil || block.Type != openpgp.SignatureType {
		return malformed
	}
	sig, _, err := openpgp.VerifyDetachedSignatureAndHash(k.pgp, bytes.NewReader(payload), block.Body, strongHashes, &packet.Config{Time: func() time.Time { return now }})
	switch _, wrong := errors.AsType[pgperrors.SignatureError](err); {
	case errors.Is(err, pgperrors.ErrUnknownIssuer):
		return errors.New("is signed with an OpenPGP key that is not one of the keys")
	case errors.Is(err, pgperrors.ErrKeyExpired), errors.Is(err, pgperrors.ErrKeyRevoked), errors.Is(err, pgperrors.ErrSignatureExpired):
		return fmt.Errorf("is signed with an OpenPGP key that is not valid now: %w", err)
	case wrong:
		return errors.New("has an OpenPGP signature of something else")
	case err != nil:
		return fmt.Errorf("%w, or one with a weak hash: %s", malformed, failure.Quote(err.Error()))
	case sig.SigType != packet.SigTypeBinary:
		return errors.New("has an OpenPGP signature of text, which does not cover every byte")
	}
	for _, key := range k.pgp.KeysById(*sig.IssuerKeyId) {
		bits, err := key.PublicKey.BitLength()
		switch key.PublicKey.PubKeyAlgo {
		case packet.PubKeyAlgoRSA, packet.PubKeyAlgoRSASignOnly:
			if err == nil && bits >= cosign.MinRSABits {
				continue
			}
		case packet.PubKeyAlgoECDSA, packet.PubKeyAlgoEdDSA, packet.PubKeyAlgoEd25519, packet.PubKeyAlgoEd448:
			continue
		}
		return fmt.Errorf("is signed with the weak OpenPGP key %s: use Ed25519, ECDSA, or RSA with at least %d bits", key.PublicKey.KeyIdString(), cosign.MinRSABits)
	}
	return nil
}
