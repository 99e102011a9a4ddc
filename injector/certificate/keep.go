package certificate

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"maps"
	"slices"
	"time"
)

// keep decides what to do with the Secret's content. It asks nobody.
type keep struct {
	names     []string
	settle    time.Duration
	now       time.Time // by the API server's clock
	node      time.Time // by this node's
	published []*x509.Certificate
	// mine is what this replica serves, as it was in the Secret; nothing where it serves none.
	mine [2][]byte

	data  map[string][]byte // as it is; afterwards as it should be
	serve *tls.Certificate  // what is to be served now
	did   string
}

// look reports whether the content has to be written.
//
// A certificate goes through three steps, each of which any replica may take: at two thirds of the life of the one that is
// served, the next is made, and its authority joins the bundle; once the bundle with it has been in the webhook
// configuration for a while, it is served; its predecessor's authority stays in the bundle until it ends.
func (k *keep) look() (changed bool, err error) {
	before := k.data
	k.data = maps.Clone(before)
	if k.data == nil {
		k.data = map[string][]byte{}
	}
	roots := k.merge(authorities(k.data[keyBundle]), k.published)
	current, err := load(k.data[keyCert], k.data[keyKey], roots, k.names, k.now)
	if err != nil {
		// Somebody deleted or broke the Secret. What this replica serves is trusted: it goes back, so that nobody has to
		// trust a new certificate at once.
		if current, err = load(k.mine[0], k.mine[1], roots, k.names, k.now); err != nil {
			return true, k.fresh(roots)
		}
		k.data[keyCert], k.data[keyKey] = k.mine[0], k.mine[1]
	}
	next, err := load(k.data[keyNextCert], k.data[keyNextKey], roots, k.names, k.now)
	since, sinceErr := time.Parse(time.RFC3339, string(k.data[keyNextSince]))
	hasNext := err == nil && sinceErr == nil
	switch {
	case hasNext && k.now.Sub(since) >= k.settle && k.trusts(next):
		k.data[keyCert], k.data[keyKey] = k.data[keyNextCert], k.data[keyNextKey]
		k.drop()
		k.serve, k.did = next, "serve the next one"
	case !hasNext && !k.now.Before(renewAt(current.Leaf)):
		made, err := issue(k.names, k.now)
		if err != nil {
			return false, err
		}
		roots = k.merge([]*x509.Certificate{made.authority}, roots)
		k.data[keyNextCert], k.data[keyNextKey] = made.cert, made.key
		k.data[keyNextSince] = []byte(k.now.UTC().Format(time.RFC3339))
		k.serve, k.did = current, "make the next one"
	default:
		k.serve, k.did = current, "put the Secret right"
	}
	k.data[keyBundle] = encode(roots)
	return !maps.EqualFunc(before, k.data, bytes.Equal), nil
}

// fresh starts over: there is no certificate, or one that cannot be served. Whatever other replicas serve stays trusted.
func (k *keep) fresh(roots []*x509.Certificate) error {
	made, err := issue(k.names, k.now)
	if err != nil {
		return err
	}
	roots = k.merge([]*x509.Certificate{made.authority}, roots)
	k.data[keyCert], k.data[keyKey] = made.cert, made.key
	k.data[keyBundle] = encode(roots)
	k.drop()
	k.did = "make a new one"
	k.serve, err = load(made.cert, made.key, roots, k.names, k.now)
	return err
}

// merge returns the authorities that count, each once, the newest first. An authority stays until it has ended by both clocks,
// and with it the certificate that it signed: whatever a replica still serves is trusted.
func (k *keep) merge(lists ...[]*x509.Certificate) []*x509.Certificate {
	now := k.now
	if k.node.Before(now) {
		now = k.node
	}
	return merge(now, lists...)
}

func (k *keep) drop() {
	for _, key := range []string{keyNextCert, keyNextKey, keyNextSince} {
		delete(k.data, key)
	}
}

// trusts reports whether what is published leads to a certificate.
func (k *keep) trusts(c *tls.Certificate) bool {
	return slices.ContainsFunc(k.published, func(a *x509.Certificate) bool { return c.Leaf.CheckSignatureFrom(a) == nil })
}
