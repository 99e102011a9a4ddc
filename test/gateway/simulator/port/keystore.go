package port

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"sync"
	"time"
)

// KeyStore has a self-signed certificate.
type KeyStore struct {
	mu      sync.Mutex
	current *certificate
}

// NewKeyStore creates a certificate for DNS names.
func NewKeyStore(names []string, notAfter time.Time) (*KeyStore, error) {
	k := &KeyStore{}
	return k, k.Renew(names, notAfter)
}

// Renew creates another certificate, which new connections see.
func (k *KeyStore) Renew(names []string, notAfter time.Time) error {
	next, err := newCertificate(names, notAfter)
	if err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.current = next
	return nil
}

// PEM returns the certificate in PEM.
func (k *KeyStore) PEM() []byte { return k.certificate().pem }

func (k *KeyStore) certificate() *certificate {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.current
}

// TLSConfig serves the current certificate.
func (k *KeyStore) TLSConfig() *tls.Config {
	return &tls.Config{
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &k.certificate().pair, nil },
		MinVersion:     tls.VersionTLS12,
		NextProtos:     []string{"http/1.1"},
	}
}

type certificate struct {
	pair tls.Certificate
	pem  []byte
}

func newCertificate(names []string, notAfter time.Time) (*certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	notBefore := time.Now().Add(-time.Hour)
	if notAfter.Before(notBefore) {
		notBefore = notAfter.Add(-time.Hour)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()),
		Subject:      pkix.Name{CommonName: names[0]},
		DNSNames:     names,
		NotBefore:    notBefore,
		NotAfter:     notAfter,
		KeyUsage:     x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},

		BasicConstraintsValid: true,
		IsCA:                  true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	return &certificate{
		pair: tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key},
		pem:  pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
	}, nil
}
