package certificate

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"maps"
	"slices"
	"time"
)

// rotation computes the content of the Secret. It does no I/O.
type rotation struct {
	names       []string
	publishTime time.Duration
	now         time.Time           // by the API server's clock
	nodeNow     time.Time           // by this node's clock
	published   []*x509.Certificate // the authorities in the webhook configuration

	data   map[string][]byte // of the Secret; update replaces it
	usable bool              // data has a certificate to serve
	action string            // what update did, for the log
}

// update updates data, usable and action. It reports whether data changed.
//
// A certificate is replaced in two steps. After two thirds of the lifetime of the current certificate, or if there is none, the next one
// is issued and its authority added to the bundle. The next certificate is served when its authority is in the webhook configuration and
// publishTime has passed since it was issued. Without a usable current certificate, publishTime does not count. The old authority stays in
// the bundle until it expires, because replicas serve its certificate until their kubelets have updated the mounted Secret.
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
