package cosign

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func public(t *testing.T, key crypto.PublicKey) []byte {
	t.Helper()
	der, err := x509.MarshalPKIXPublicKey(key)
	require.NoError(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
}

func TestKeys(t *testing.T) {
	p256, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	p384, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	require.NoError(t, err)
	long, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(t, err)
	edwards, _, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	content := []byte("what is signed")
	sum := sha256.Sum256(content)
	for name, signer := range map[string]crypto.Signer{"P-256": p256, "RSA": long} {
		t.Run(name, func(t *testing.T) {
			key, err := ParseKey(public(t, signer.Public()))
			require.NoError(t, err)
			signature, err := signer.Sign(rand.Reader, sum[:], crypto.SHA256)
			require.NoError(t, err)
			bundle, err := json.Marshal(map[string]any{"messageSignature": map[string]any{"signature": signature}})
			require.NoError(t, err)
			assert.True(t, key.Signed(content, signature))
			assert.False(t, key.Signed(content[1:], signature))
			assert.NoError(t, key.VerifyBlob(content, bundle))
			assert.ErrorContains(t, key.VerifyBlob(content[1:], bundle), "not by this key")
			assert.ErrorContains(t, key.VerifyBlob(content, []byte("{}")), "sign-blob did not write it")
		})
	}
	assert.False(t, Key{}.Signed(content, nil))
	for name, text := range map[string][]byte{
		"P-384": public(t, &p384.PublicKey), "Ed25519": public(t, edwards), "two keys": append(public(t, &p256.PublicKey), public(t, &p256.PublicKey)...),
		"no PEM": []byte("ssh-ed25519 AAAA"), "private": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY"}), "no key": pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY"}),
	} {
		t.Run(name+" is refused", func(t *testing.T) {
			_, err := ParseKey(text)
			assert.Error(t, err)
		})
	}
}

// F24: texts of a registry are hostile, and only a signature of the artifact counts.
func FuzzParse(f *testing.F) {
	const digest = "sha256:6e6f000000000000000000000000000000000000000000000000000000000000"
	f.Add([]byte(`{"dsseEnvelope":{"payloadType":"application/vnd.in-toto+json","payload":"e30=","signatures":[{"sig":"AA=="}]}}`), "AA==")
	f.Add([]byte(`{"critical":{"type":"cosign container image signature","image":{"docker-manifest-digest":"`+digest+`"}}}`), "AA==")
	f.Fuzz(func(t *testing.T, text []byte, annotation string) {
		if s, ok := ParseBundle(text, digest); ok {
			assert.True(t, strings.HasPrefix(string(s.Signed), "DSSEv1 "))
		}
		if s, ok := ParsePayload(text, annotation, digest); ok {
			assert.Equal(t, text, s.Signed)
		}
	})
}
