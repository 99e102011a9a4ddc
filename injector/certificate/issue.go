package certificate

import (
	"bytes"
	"cmp"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"slices"
	"time"
)

const (
	// lifetime is how long a self-signed certificate is valid. It is renewed after two thirds of that time.
	lifetime = 90 * 24 * time.Hour
	// clockSkew backdates a certificate, for clients with slow clocks.
	clockSkew = time.Hour
	// authorityName is the common name of our authorities in a bundle.
	authorityName = "stoker-injector"
	// maxAuthorities bounds a bundle.
	maxAuthorities = 8
)

// issued is a certificate with its key and the authority that signed it. Each certificate has an authority of its own, whose
// key is discarded, so that it cannot sign anything else.
type issued struct {
	cert, key []byte // PEM
	authority *x509.Certificate
}

func issue(names []string, now time.Time) (issued, error) {
	begin, end := now.Add(-clockSkew).Truncate(time.Second), now.Add(lifetime).Truncate(time.Second)
	authorityKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return issued{}, err
	}
	authority, err := sign(&x509.Certificate{
		Subject: pkix.Name{CommonName: authorityName}, NotBefore: begin, NotAfter: end,
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign,
	}, nil, &authorityKey.PublicKey, authorityKey)
	if err != nil {
		return issued{}, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return issued{}, err
	}
	leaf := &x509.Certificate{
		Subject: pkix.Name{CommonName: names[0]}, NotBefore: begin, NotAfter: end, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, name := range names {
		if ip := net.ParseIP(name); ip != nil {
			leaf.IPAddresses = append(leaf.IPAddresses, ip)
		} else {
			leaf.DNSNames = append(leaf.DNSNames, name)
		}
	}
	signed, err := sign(leaf, authority, &key.PublicKey, authorityKey)
	if err != nil {
		return issued{}, err
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return issued{}, err
	}
	return issued{
		cert:      pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: signed.Raw}),
		key:       pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}),
		authority: authority,
	}, nil
}

// sign creates a certificate. Without a parent it is self-signed.
func sign(template, parent *x509.Certificate, public *ecdsa.PublicKey, signer *ecdsa.PrivateKey) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, err
	}
	template.SerialNumber = serial
	if parent == nil {
		parent = template
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, signer)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

// load parses a pair and verifies it against roots at the time now for every name.
func load(cert, key []byte, roots []*x509.Certificate, names []string, now time.Time) (*tls.Certificate, error) {
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, err
	}
	pool, intermediates := x509.NewCertPool(), x509.NewCertPool()
	for _, r := range roots {
		pool.AddCert(r)
	}
	for _, raw := range pair.Certificate[1:] {
		c, err := x509.ParseCertificate(raw)
		if err != nil {
			return nil, err
		}
		intermediates.AddCert(c)
	}
	for _, name := range names {
		if _, err := pair.Leaf.Verify(x509.VerifyOptions{DNSName: name, Roots: pool, Intermediates: intermediates, CurrentTime: now}); err != nil {
			return nil, err
		}
	}
	return &pair, nil
}

// renewAt returns when a certificate has reached two thirds of its lifetime.
func renewAt(c *x509.Certificate) time.Time {
	return c.NotBefore.Add(c.NotAfter.Sub(c.NotBefore) * 2 / 3)
}

// authorities parses the certificates of a PEM bundle, at most four times as many as a bundle of ours has. It ignores everything else.
func authorities(bundle []byte) []*x509.Certificate {
	var list []*x509.Certificate
	for len(list) < 4*maxAuthorities {
		var block *pem.Block
		if block, bundle = pem.Decode(bundle); block == nil {
			break
		}
		if c, err := x509.ParseCertificate(block.Bytes); err == nil && block.Type == "CERTIFICATE" {
			list = append(list, c)
		}
	}
	return list
}

// merge returns the authorities that have not expired, without duplicates, newest first, and at most maxAuthorities.
func merge(now time.Time, lists ...[]*x509.Certificate) []*x509.Certificate {
	var out []*x509.Certificate
	for _, c := range slices.Concat(lists...) {
		if now.Before(c.NotAfter) && !slices.ContainsFunc(out, c.Equal) {
			out = append(out, c)
		}
	}
	slices.SortStableFunc(out, func(a, b *x509.Certificate) int {
		return cmp.Or(b.NotBefore.Compare(a.NotBefore), bytes.Compare(a.Raw, b.Raw))
	})
	return out[:min(len(out), maxAuthorities)]
}

func encode(list []*x509.Certificate) []byte {
	var out bytes.Buffer
	for _, c := range list {
		out.Write(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw}))
	}
	return out.Bytes()
}
