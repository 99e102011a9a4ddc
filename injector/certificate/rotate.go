package certificate

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"maps"
	"slices"
	"time"
)

// rotation computes the content of the Secret and the certificate to serve. It does no I/O.
type rotation struct {
	names       []string
	publishTime time.Duration
	now         time.Time // by the API server's clock
	nodeNow     time.Time // by this node's clock
	published   []*x509.Certificate
	// servedPair is the certificate and the key that this replica serves, or empty.
	servedPair [2][]byte

	data   map[string][]byte // in: as it is; out: as it should be
	serve  *tls.Certificate  // the certificate to serve now
	action string
}

// update updates data, serve and action. It reports whether data changed.
//
// A certificate is replaced in two steps. Any replica can do each of them. After two thirds of the lifetime of the current certificate, the next one
// is issued and its authority added to the bundle. The next certificate is served when publishTime has passed since it was issued and
// its authority is in the webhook configuration. The old authority stays in the bundle until it expires.
func (k *rotation) update() (changed bool, err error) {
	before := k.data
	k.data = maps.Clone(before)
	if k.data == nil {
		k.data = map[string][]byte{}
	}
	roots := k.merge(authorities(k.data[keyBundle]), k.published)
	current, err := load(k.data[keyCert], k.data[keyKey], roots, k.names, k.now)
	if err != nil {
		// The pair in the Secret is missing, damaged, expired, or for other names. Restore the one that this replica serves, because
		// the API server trusts it already.
		if current, err = load(k.servedPair[0], k.servedPair[1], roots, k.names, k.now); err != nil {
			return true, k.reissue(roots)
		}
		k.data[keyCert], k.data[keyKey] = k.servedPair[0], k.servedPair[1]
	}
	next, err := load(k.data[keyNextCert], k.data[keyNextKey], roots, k.names, k.now)
	since, sinceErr := time.Parse(time.RFC3339, string(k.data[keyNextSince]))
	hasNext := err == nil && sinceErr == nil
	switch {
	case hasNext && k.now.Sub(since) >= k.publishTime && k.trusts(next):
		k.data[keyCert], k.data[keyKey] = k.data[keyNextCert], k.data[keyNextKey]
		k.dropNext()
		k.serve, k.action = next, "served the next certificate"
	case !hasNext && !k.now.Before(renewAt(current.Leaf)):
		made, err := issue(k.names, k.now)
		if err != nil {
			return false, err
		}
		roots = k.merge([]*x509.Certificate{made.authority}, roots)
		k.data[keyNextCert], k.data[keyNextKey] = made.cert, made.key
		k.data[keyNextSince] = []byte(k.now.UTC().Format(time.RFC3339))
		k.serve, k.action = current, "issued the next certificate"
	default:
		k.serve, k.action = current, "repaired the Secret"
	}
	k.data[keyBundle] = encode(roots)
	return !maps.EqualFunc(before, k.data, bytes.Equal), nil
}

// reissue issues a new certificate because there is no usable one. The certificates that other replicas serve stay trusted.
func (k *rotation) reissue(roots []*x509.Certificate) error {
	made, err := issue(k.names, k.now)
	if err != nil {
		return err
	}
	roots = k.merge([]*x509.Certificate{made.authority}, roots)
	k.data[keyCert], k.data[keyKey] = made.cert, made.key
	k.data[keyBundle] = encode(roots)
	k.dropNext()
	k.action = "issued a certificate"
	k.serve, err = load(made.cert, made.key, roots, k.names, k.now)
	return err
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

func (k *rotation) dropNext() {
	for _, key := range []string{keyNextCert, keyNextKey, keyNextSince} {
		delete(k.data, key)
	}
}

// trusts reports whether a published authority signed c.
func (k *rotation) trusts(c *tls.Certificate) bool {
	return slices.ContainsFunc(k.published, func(a *x509.Certificate) bool { return c.Leaf.CheckSignatureFrom(a) == nil })
}
