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
	"maps"
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

// authorities parses the certificates of a PEM bundle. It ignores everything else.
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

// merge returns the authorities that have not expired, without duplicates, newest first.
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

// rotation computes the content of the Secret. It does no I/O.
type rotation struct {
	names       []string
	publishTime time.Duration
	now         time.Time           // by the API server's clock
	nodeNow     time.Time           // by this node's clock
	published   []*x509.Certificate // the authorities in the webhook configuration

	data   map[string][]byte // of the Secret; update replaces it
	usable bool              // data has a certificate to serve
	action string
}

// update updates data, usable and action. It reports whether data changed.
//
// A certificate is replaced in two steps. After two thirds of the lifetime of the current certificate, or if there is none, the next one
// is issued and its authority added to the bundle. The next certificate is served when its authority is in the webhook configuration and
// publishTime has passed since it was issued; without a usable current one, at once. The old authority stays in the bundle until it
// expires, because replicas serve its certificate until their kubelets have updated the mounted Secret.
func (k *rotation) update() (changed bool, err error) {
	before := k.data
	k.data = maps.Clone(before)
	if k.data == nil {
		k.data = map[string][]byte{}
	}
	roots := k.merge(authorities(k.data[keyBundle]), k.published)
	current, err := load(k.data[keyCert], k.data[keyKey], roots, k.names, k.now)
	k.usable = err == nil // else it is missing, damaged, expired, or for other names
	next, err := load(k.data[keyNextCert], k.data[keyNextKey], roots, k.names, k.now)
	since, sinceErr := time.Parse(time.RFC3339, string(k.data[keyNextSince]))
	hasNext := err == nil && sinceErr == nil
	k.action = "Secret repaired"
	switch {
	case hasNext && k.trusts(next) && (!k.usable || k.now.Sub(since) >= k.publishTime):
		k.data[keyCert], k.data[keyKey] = k.data[keyNextCert], k.data[keyNextKey]
		for _, key := range []string{keyNextCert, keyNextKey, keyNextSince} {
			delete(k.data, key)
		}
		k.usable, k.action = true, "next certificate is served"
	case !hasNext && (!k.usable || !k.now.Before(renewAt(current.Leaf))):
		made, err := issue(k.names, k.now)
		if err != nil {
			return false, err
		}
		roots = k.merge([]*x509.Certificate{made.authority}, roots)
		k.data[keyNextCert], k.data[keyNextKey] = made.cert, made.key
		k.data[keyNextSince] = []byte(k.now.UTC().Format(time.RFC3339))
		k.action = "next certificate issued"
	}
	k.data[keyBundle] = encode(roots)
	return !maps.EqualFunc(before, k.data, bytes.Equal), nil
}

// merge returns the valid authorities, without duplicates, newest first. An authority stays until both the API server's
// clock and this node's clock say that it has expired, so that every certificate that a replica still serves is
// trusted.
func (k *rotation) merge(lists ...[]*x509.Certificate) []*x509.Certificate {
	now := k.now
	if k.nodeNow.Before(now) {
		now = k.nodeNow
	}
	return merge(now, lists...)
}

// trusts reports whether a published authority signed c.
func (k *rotation) trusts(c *tls.Certificate) bool {
	return slices.ContainsFunc(k.published, func(a *x509.Certificate) bool { return c.Leaf.CheckSignatureFrom(a) == nil })
}
