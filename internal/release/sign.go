package main

import (
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
)

// readKey reads a private key, such as openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 writes.
func readKey(file string) (*ecdsa.PrivateKey, error) {
	raw, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(raw)
	if block == nil || block.Type != "PRIVATE KEY" {
		return nil, fmt.Errorf("%s is not a private key in PKCS #8 without a password: openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256", file)
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	if !ok {
		return nil, errors.New(file + " is not an ECDSA key, and cosign and stoker bundle verify read no other")
	}
	return key, nil
}

// signFile writes a signature of a file as cosign sign-blob --bundle does, without an entry of a transparency log: a site without a network
// could not check one (https://github.com/sigstore/protobuf-specs, Bundle 0.3).
func signFile(keyFile, file, to string) error {
	key, err := readKey(keyFile)
	if err != nil {
		return err
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(content)
	signed, err := ecdsa.SignASN1(rand.Reader, key, sum[:])
	if err != nil {
		return err
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return err
	}
	hint := sha256.Sum256(public)
	raw, err := json.Marshal(map[string]any{
		"mediaType":            "application/vnd.dev.sigstore.bundle.v0.3+json",
		"verificationMaterial": map[string]any{"publicKey": map[string]any{"hint": base64.StdEncoding.EncodeToString(hint[:])}, "tlogEntries": []any{}},
		"messageSignature":     map[string]any{"messageDigest": map[string]any{"algorithm": "SHA2_256", "digest": sum[:]}, "signature": signed},
	})
	if err != nil {
		return err
	}
	return os.WriteFile(to, raw, 0o644)
}
