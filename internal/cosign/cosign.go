// Package cosign verifies signatures that cosign makes with a key pair. Certificates and the transparency log in a signature are not used: the
// key is what the caller trusts.
package cosign

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"
)

// BundleType is the media type of a signature as cosign 3 writes it, for a file and for an artifact.
const BundleType = "application/vnd.dev.sigstore.bundle.v0.3+json"

// Key is the public key of a publisher, such as the one that cosign generate-key-pair writes to cosign.pub.
type Key struct{ public crypto.PublicKey }

// MinRSABits is the shortest RSA key that is accepted.
const MinRSABits = 2048

// ParseKey reads a public key in PEM format: ECDSA with the curve P-256, as cosign makes it, or RSA, as key management services have it.
func ParseKey(raw []byte) (Key, error) {
	block, rest := pem.Decode(raw)
	if block == nil || block.Type != "PUBLIC KEY" || len(bytes.TrimSpace(rest)) > 0 {
		return Key{}, errors.New("not a public key in PEM format, such as cosign.pub")
	}
	parsed, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil {
		return Key{}, err
	}
	switch public := parsed.(type) {
	case *ecdsa.PublicKey:
		if public.Curve.Params().BitSize == 256 {
			return Key{public}, nil
		}
	case *rsa.PublicKey:
		if public.N.BitLen() >= MinRSABits {
			return Key{public}, nil
		}
	}
	return Key{}, fmt.Errorf("a key of the type %T and its size cannot be used: use ECDSA with the curve P-256, as cosign makes it, or RSA with %d bits or more", parsed, MinRSABits)
}

// Signed reports whether the key made the signature of content.
func (k Key) Signed(content, signature []byte) bool {
	sum := sha256.Sum256(content)
	switch public := k.public.(type) {
	case *ecdsa.PublicKey:
		return ecdsa.VerifyASN1(public, sum[:], signature)
	case *rsa.PublicKey:
		return rsa.VerifyPKCS1v15(public, crypto.SHA256, sum[:], signature) == nil
	}
	return false
}

// VerifyBlob returns an error unless bundle, as cosign sign-blob --bundle writes it, has a signature of content by the key.
func (k Key) VerifyBlob(content, bundle []byte) error {
	var s struct {
		MessageSignature *struct {
			Signature []byte `json:"signature"`
		} `json:"messageSignature"`
	}
	if err := json.Unmarshal(bundle, &s); err != nil {
		return fmt.Errorf("signature: %w", err)
	}
	if s.MessageSignature == nil {
		return errors.New("signature: it has no messageSignature, so cosign sign-blob did not write it")
	}
	if !k.Signed(content, s.MessageSignature.Signature) {
		return errors.New("the signature is not by this key, or the signed content has changed since")
	}
	return nil
}

// Signature is a signature of an artifact, to be checked with Key.Signed. Signed is the text that it signs, which names the digest of the
// artifact. Value is the signature itself.
type Signature struct{ Signed, Value []byte }

// PredicateSign is the predicate type of an in-toto statement that signs an artifact. Attestations have other types.
const PredicateSign = "https://sigstore.dev/cosign/sign/v1"

const inToto = "application/vnd.in-toto+json"

// ParseBundle reads the signature of the artifact with a digest (sha256:…) as cosign sign of version 3 writes it. ok is false if the bundle is
// not a signature of that artifact. ParseBundle does not check who made it.
func ParseBundle(bundle []byte, digest string) (s Signature, ok bool) {
	var b struct {
		Envelope *struct {
			Payload     []byte `json:"payload"`
			PayloadType string `json:"payloadType"`
			Signatures  []struct {
				Sig []byte `json:"sig"`
			} `json:"signatures"`
		} `json:"dsseEnvelope"`
	}
	if json.Unmarshal(bundle, &b) != nil || b.Envelope == nil || len(b.Envelope.Signatures) != 1 || b.Envelope.PayloadType != inToto {
		return s, false
	}
	var statement struct {
		PredicateType string `json:"predicateType"`
		Subject       []struct {
			Digest map[string]string `json:"digest"`
		} `json:"subject"`
	}
	if json.Unmarshal(b.Envelope.Payload, &statement) != nil || statement.PredicateType != PredicateSign ||
		len(statement.Subject) != 1 || "sha256:"+statement.Subject[0].Digest["sha256"] != digest {
		return s, false
	}
	// What an envelope signs: github.com/secure-systems-lab/dsse/blob/master/protocol.md
	signed := fmt.Appendf(nil, "DSSEv1 %d %s %d %s", len(inToto), inToto, len(b.Envelope.Payload), b.Envelope.Payload)
	return Signature{signed, b.Envelope.Signatures[0].Sig}, true
}

// PayloadType is the media type of the payloads of an earlier format. In that format, each layer of the image with the tag sha256-….sig is a
// payload, and its annotation SignatureAnnotation is the signature in base64.
const (
	PayloadType         = "application/vnd.dev.cosign.simplesigning.v1+json"
	SignatureAnnotation = "dev.cosignproject.cosign/signature"
)

// ParsePayload reads a signature of the earlier format. ok is false if it is not a signature of the artifact with the digest. ParsePayload does
// not check who made it.
func ParsePayload(payload []byte, annotation, digest string) (s Signature, ok bool) {
	var p struct {
		Critical struct {
			Type  string `json:"type"`
			Image struct {
				Digest string `json:"docker-manifest-digest"`
			} `json:"image"`
		} `json:"critical"`
	}
	value, err := base64.StdEncoding.DecodeString(strings.TrimSpace(annotation))
	if err != nil || json.Unmarshal(payload, &p) != nil || p.Critical.Type != "cosign container image signature" || p.Critical.Image.Digest != digest {
		return s, false
	}
	return Signature{payload, value}, true
}
