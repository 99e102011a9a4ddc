package oci

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"

	"stoker.io/stoker/agent/repo/wire"
	"stoker.io/stoker/api/v1alpha1/syntax"
	"stoker.io/stoker/internal/bound"
	"stoker.io/stoker/internal/cosign"
)

const (
	maxSignatures    = 32        // of one artifact that are read in each format
	maxSignatureSize = 256 << 10 // bytes of one of them
	typeIndex        = "application/vnd.oci.image.index.v1+json"
)

// described is a descriptor of a manifest or a layer that may be a signature.
type described struct {
	layer
	ArtifactType string            `json:"artifactType"`
	Annotations  map[string]string `json:"annotations"`
}

// listing is an index or a manifest, as far as signatures need it.
type listing struct {
	Manifests []described `json:"manifests"`
	Layers    []described `json:"layers"`
}

// Signatures returns the signatures in both formats of cosign that name a digest. The caller must verify who made them. If an artifact has many,
// some are left out.
func (c *Client) Signatures(ctx context.Context, digest string) ([]cosign.Signature, error) {
	ctx, w, stop := c.opts.Watch(ctx, c.opts.Advertise)
	defer stop()
	var found []cosign.Signature
	referrers, err := c.referrers(ctx, w, digest)
	for i := 0; err == nil && i < len(referrers); i++ {
		var s cosign.Signature
		var ok bool
		if s, ok, err = c.bundle(ctx, w, referrers[i], digest); ok {
			found = append(found, s)
		}
	}
	if err == nil {
		err = c.payloads(ctx, w, digest, func(s cosign.Signature) { found = append(found, s) })
	}
	if err != nil {
		return nil, wire.Explain(ctx, c.url, err, c.http.secrets())
	}
	return found, nil
}

// tagFor returns the tag that stands for a digest in registries without a list of referrers.
func tagFor(digest string) string { return strings.Replace(digest, ":", "-", 1) }

// referrers returns the manifests that may be bundles with a signature of the artifact.
func (c *Client) referrers(ctx context.Context, w wire.Watch, digest string) ([]described, error) {
	list, err := c.list(ctx, w, "/referrers/"+digest, typeIndex)
	if errors.Is(err, errAbsent) {
		list, err = c.list(ctx, w, "/manifests/"+tagFor(digest), typeIndex)
	}
	if errors.Is(err, errAbsent) {
		return nil, nil
	}
	var signatures []described
	for _, m := range list.Manifests {
		if m.mayBeBundle() && len(signatures) < maxSignatures {
			signatures = append(signatures, m)
		}
	}
	return signatures, err
}

// mayBeBundle reports whether a referrer can be a bundle with a signature. Some registries report the type of its empty configuration in place
// of its own. Bundles with other statements have another type of predicate.
func (m described) mayBeBundle() bool {
	predicate, named := m.Annotations["dev.sigstore.bundle.predicateType"]
	return syntax.IsDigest(m.Digest) && slices.Contains([]string{cosign.BundleType, "application/vnd.oci.empty.v1+json", ""}, m.ArtifactType) &&
		(!named || predicate == cosign.PredicateSign)
}

// bundle returns the signature of the artifact in a bundle. ok is false if the bundle has no such signature.
func (c *Client) bundle(ctx context.Context, w wire.Watch, m described, digest string) (s cosign.Signature, ok bool, err error) {
	list, err := c.list(ctx, w, "/manifests/"+m.Digest, typeManifest)
	if errors.Is(err, errAbsent) || err == nil && len(list.Layers) != 1 {
		return s, false, nil
	}
	if err != nil {
		return s, false, err
	}
	content, err := c.signature(ctx, w, list.Layers[0].layer)
	if content == nil || err != nil {
		return s, false, err
	}
	s, ok = cosign.ParseBundle(content, digest)
	return s, ok, nil
}

// payloads calls add for the signatures of the earlier format.
func (c *Client) payloads(ctx context.Context, w wire.Watch, digest string, add func(cosign.Signature)) error {
	list, err := c.list(ctx, w, "/manifests/"+tagFor(digest)+".sig", manifestTypes)
	if errors.Is(err, errAbsent) {
		return nil
	}
	for i, l := range list.Layers {
		if err != nil || i == maxSignatures {
			break
		}
		var content []byte
		if l.MediaType != cosign.PayloadType {
			continue
		}
		if content, err = c.signature(ctx, w, l.layer); content == nil || err != nil {
			continue
		}
		if s, ok := cosign.ParsePayload(content, l.Annotations[cosign.SignatureAnnotation], digest); ok {
			add(s)
		}
	}
	return err
}

// list reads an index or a manifest. The error is errAbsent if the registry does not have it, or if it is not JSON. If it is too large, the
// result is empty. list does not compare the digest, because the caller of Signatures verifies the signatures.
func (c *Client) list(ctx context.Context, w wire.Watch, path, accept string) (l listing, err error) {
	body, err := c.read(ctx, w, request{method: http.MethodGet, path: path, accept: accept, optional: true}, maxManifest)
	if err != nil || body == nil {
		return l, err
	}
	if json.Unmarshal(body, &l) != nil {
		return listing{}, errAbsent
	}
	return l, nil
}

// signature reads the content of a layer; nil if it is missing, or larger than a signature can be.
func (c *Client) signature(ctx context.Context, w wire.Watch, l layer) ([]byte, error) {
	if !syntax.IsDigest(l.Digest) || l.Size > maxSignatureSize {
		return nil, nil
	}
	content, err := c.read(ctx, w, request{method: http.MethodGet, path: "/blobs/" + l.Digest, layer: true, optional: true}, maxSignatureSize)
	if errors.Is(err, errAbsent) {
		return nil, nil
	}
	return content, err
}

// read returns the body of an answer; nil if it has more than limit bytes.
func (c *Client) read(ctx context.Context, w wire.Watch, r request, limit int64) ([]byte, error) {
	res, err := c.http.do(ctx, w, r)
	if err != nil {
		return nil, err
	}
	defer func() { _ = res.Body.Close() }()
	body, err := bound.ReadAll(w.Body(res.Body, limit+1), limit)
	if errors.Is(err, bound.ErrTooLarge) {
		return nil, nil
	}
	return body, err
}
