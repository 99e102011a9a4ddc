package bundle

import (
	"crypto/ecdsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
)

// Key is the public key of a publisher: what cosign generate-key-pair writes to cosign.pub.
type Key struct{ public *ecdsa.PublicKey }

// ParseKey reads a public key in PEM format.
func ParseKey(raw []byte) (*Key, error) {
	block, _ := pem.Decode(raw)
	if block == nil || block.Type != "PUBLIC KEY" {
		return nil, errors.New("not a public key in PEM format, such as cosign.pub")
	}
	parsed, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil {
		return nil, err
	}
	public, ok := parsed.(*ecdsa.PublicKey)
	if !ok {
		return nil, fmt.Errorf("a key of type %T: only ECDSA keys, as cosign makes them, can be used", parsed)
	}
	return &Key{public}, nil
}

// Verify checks a signature of content in the format that cosign sign-blob --bundle writes (application/vnd.dev.sigstore.bundle.v0.3+json).
// A certificate or an entry of a transparency log in it is not used: the key is what the caller trusts.
func (k *Key) Verify(content, signature []byte) error {
	var s struct {
		MessageSignature *struct {
			Signature []byte `json:"signature"`
		} `json:"messageSignature"`
	}
	if err := json.Unmarshal(signature, &s); err != nil {
		return fmt.Errorf("signature: %w", err)
	}
	if s.MessageSignature == nil {
		return errors.New("signature: it has no messageSignature, so cosign sign-blob did not write it")
	}
	sum := sha256.Sum256(content)
	if !ecdsa.VerifyASN1(k.public, sum[:], s.MessageSignature.Signature) {
		return errors.New("the signature is not by this key, or the sums have changed since")
	}
	return nil
}
