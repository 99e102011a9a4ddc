// Package pki creates the keys and certificates of a test cluster: two authorities, the certificates of servers and
// clients, and kubeconfigs. They live as long as the cluster.
package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

const (
	lifetime = 90 * 24 * time.Hour // like that of the injector
	// backdate tolerates small clock differences between the machine and its containers.
	backdate = time.Hour
)

// Authority signs certificates.
type Authority struct {
	cert *x509.Certificate
	key  crypto.Signer
}

// Subject is the subject of a certificate: a user with groups, as Kubernetes reads it.
type Subject struct {
	Name   string
	Groups []string
}

// Pair is a certificate and its key, in PEM.
type Pair struct{ Cert, Key []byte }

// NewAuthority creates a self-signed authority.
func NewAuthority(name string) (*Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template, err := template(Subject{Name: name})
	if err != nil {
		return nil, err
	}
	template.IsCA = true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign | x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	return &Authority{cert, key}, err
}

// Pair returns the authority's own certificate and key.
func (a *Authority) Pair() (Pair, error) { return encode(a.cert.Raw, a.key) }

// Pool returns a pool that trusts only the authority.
func (a *Authority) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return pool
}

// Client signs a client certificate.
func (a *Authority) Client(s Subject) (Pair, error) {
	return a.sign(s, x509.ExtKeyUsageClientAuth, nil)
}

// Server signs a server certificate for names, some of which may be IP addresses.
func (a *Authority) Server(s Subject, names ...string) (Pair, error) {
	return a.sign(s, x509.ExtKeyUsageServerAuth, names)
}

func (a *Authority) sign(s Subject, usage x509.ExtKeyUsage, names []string) (Pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Pair{}, err
	}
	template, err := template(s)
	if err != nil {
		return Pair{}, err
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment
	template.ExtKeyUsage = []x509.ExtKeyUsage{usage}
	for _, name := range names {
		if ip := net.ParseIP(name); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, name)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		return Pair{}, err
	}
	return encode(der, key)
}

func template(s Subject) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}
	now := time.Now()
	return &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: s.Name, Organization: s.Groups},
		NotBefore:             now.Add(-backdate),
		NotAfter:              now.Add(lifetime),
		BasicConstraintsValid: true,
	}, nil
}

func encode(der []byte, key crypto.Signer) (Pair, error) {
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return Pair{}, err
	}
	return Pair{
		Cert: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		Key:  pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw}),
	}, nil
}

// ServiceAccountKeys creates the key pair that signs and verifies service account tokens; Cert is the public key.
func ServiceAccountKeys() (Pair, error) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return Pair{}, err
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return Pair{}, err
	}
	return Pair{
		Cert: pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}),
		Key:  pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}),
	}, nil
}

// Write writes name.crt and name.key in dir.
func (p Pair) Write(dir, name string) error {
	if err := os.WriteFile(filepath.Join(dir, name+".crt"), p.Cert, 0o644); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, name+".key"), p.Key, 0o600); err != nil {
		return fmt.Errorf("key of %s: %w", name, err)
	}
	return nil
}

// WriteKubeconfig writes a kubeconfig for one cluster and one user. It is JSON, which is valid YAML.
func WriteKubeconfig(path, server string, ca []byte, user Pair) error {
	type named map[string]any
	raw, err := json.MarshalIndent(named{
		"apiVersion": "v1",
		"kind":       "Config",
		"clusters":   []named{{"name": "local", "cluster": named{"server": server, "certificate-authority-data": ca}}},
		"users":      []named{{"name": "local", "user": named{"client-certificate-data": user.Cert, "client-key-data": user.Key}}},
		"contexts":   []named{{"name": "local", "context": named{"cluster": "local", "user": "local"}}},

		"current-context": "local",
	}, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(raw, '\n'), 0o600)
}
