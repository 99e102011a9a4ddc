// Package oci reads artifacts of a registry as commits.
//
// An artifact is an OCI image manifest with one layer, a tar archive with gzip, as flux push artifact and oras push make them. Its commit has the
// content of the layer as its tree, no parent, and a message that names the digest of the manifest. All of the commit follows from this digest,
// so every client that imports the artifact gets the same commit id.
//
// Both a registry and the users that push to it may be hostile: manifests, layers and what they unpack to are bounded, and nothing is unpacked to a file
// system. Credentials go to the host of the registry, or to a token server that the Secret itself names. Manifests and tokens follow no redirect.
// Layers do, because registries keep them in object storage: without credentials, and only if the content has the digest.
//
// The client is our own, because oras-go sends a password to any token server that a registry names, and follows redirects for every request.
package oci

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo/store"
	"stoker.io/stoker/agent/repo/wire"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/syntax"
	"stoker.io/stoker/internal/bound"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/httpclient"
)

const (
	maxManifest = 4 << 20 // bytes; the limit that the OCI specification recommends to registries
	maxTagList  = 4 << 20 // bytes of one page
	maxTagPages = 100
	maxKnown    = 1024 // digests that a Client remembers
)

// Client is the client of one repository of a registry. Several goroutines may use it.
type Client struct {
	url  wire.URL
	opts wire.Options
	http *exchanger

	mu      sync.Mutex
	known   []outcome  // the last used one first
	looking sync.Mutex // one download to find a commit at a time
}

// Artifact is a manifest that was verified against its digest.
type Artifact struct {
	Digest string // of the manifest: sha256:…
	Commit plan.ID

	layer       layer
	annotations map[string]string
}

// outcome is what is known of a digest: the artifact with its commit, or why it has none.
type outcome struct {
	Artifact
	err error
}

type layer struct {
	MediaType string `json:"mediaType"`
	Digest    string `json:"digest"`
	Size      int64  `json:"size"`
}

// NewClient returns a client for the address of a registry. Nothing is sent yet.
func NewClient(u wire.URL, auth wire.Auth, o wire.Options) *Client {
	o = o.WithDefaults()
	strict := o
	strict.Guard = httpclient.NewGuard()
	ca := wire.Auth{CA: auth.CA}
	return &Client{url: u, opts: o, http: &exchanger{url: u, auth: auth, own: wire.NewClient(u, ca, o), elsewhere: wire.NewClient(u, ca, strict)}}
}

// Close closes idle connections.
func (c *Client) Close() error { return c.http.close() }

// Resolve returns the artifact of a tag or a digest, with its commit. To find the commit of an artifact for the first time, it downloads the
// layer, and keeps nothing of it. An error that follows from the digest is remembered, too.
func (c *Client) Resolve(ctx context.Context, reference string) (Artifact, error) {
	return c.look(ctx, reference, c.hash)
}

// hash downloads the layer of an artifact to find its commit.
func (c *Client) hash(ctx context.Context, w wire.Watch, a Artifact) (plan.ID, error) {
	return c.build(ctx, w, a, store.NewHasher(ctx, store.Limits{PackBytes: c.opts.MaxBytes, DeltaBytes: c.opts.MaxBlob}))
}

// ResolveInto is Resolve, and imports the artifact with the same download if its commit is that of t. Otherwise, and if the artifact was known
// before, in is nil.
func (c *Client) ResolveInto(ctx context.Context, reference string, t *store.Transfer) (a Artifact, in *store.Received, err error) {
	a, err = c.look(ctx, reference, func(ctx context.Context, w wire.Watch, a Artifact) (commit plan.ID, err error) {
		other := errors.New("another commit")
		in, err = t.Import(ctx, func(i *store.Importer) (err error) {
			if commit, err = c.build(ctx, w, a, i); err == nil && commit != t.Commit {
				err = other
			}
			return err
		})
		switch _, refused := errors.AsType[*refusal](err); {
		case errors.Is(err, other):
			return commit, nil
		case refused: // maybe only by the limits of the store, which do not follow from the digest
			return c.hash(ctx, w, a)
		}
		return commit, err
	})
	return a, in, err
}

// look returns the artifact of a tag or a digest. If it is not known, find downloads it and returns its commit.
func (c *Client) look(ctx context.Context, reference string, find func(context.Context, wire.Watch, Artifact) (plan.ID, error)) (Artifact, error) {
	digest := reference
	if !syntax.IsDigest(reference) {
		var err error
		if digest, err = c.digestOf(ctx, reference); err != nil {
			return Artifact{}, err
		}
	}
	known := func(o outcome) bool { return o.Digest == digest }
	if o, ok := c.recall(known); ok {
		return o.Artifact, o.err
	}
	c.looking.Lock()
	defer c.looking.Unlock()
	if o, ok := c.recall(known); ok {
		return o.Artifact, o.err
	}
	a, err := c.manifest(ctx, digest)
	if err == nil {
		ctx, w, stop := c.opts.Watch(ctx, c.opts.Total)
		defer stop()
		a.Commit, err = find(ctx, w, a)
		if _, refused := errors.AsType[*refusal](err); err != nil && !refused {
			err = wire.Explain(ctx, c.url, err, c.http.secrets())
		}
	}
	if r, ok := errors.AsType[*refusal](err); ok {
		a, err = Artifact{Digest: digest}, r.error
	} else if err != nil {
		return Artifact{}, err
	}
	c.remember(outcome{a, err})
	return a, err
}

// Recall returns an artifact that was resolved before, by its commit.
func (c *Client) Recall(commit plan.ID) (Artifact, bool) {
	o, ok := c.recall(func(o outcome) bool { return o.err == nil && o.Commit == commit })
	return o.Artifact, ok
}

func (c *Client) recall(is func(outcome) bool) (outcome, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, o := range c.known {
		if is(o) {
			copy(c.known[1:i+1], c.known[:i])
			c.known[0] = o
			return o, true
		}
	}
	return outcome{}, false
}

func (c *Client) remember(o outcome) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.known = append([]outcome{o}, c.known[:min(len(c.known), maxKnown-1)]...)
}

// ArtifactOf returns the artifact of a commit in a store. text is the text of the commit, which names the digest. If the store is older than
// the use of the registry, any git user may have written the text, so a Client that has not resolved the artifact yet downloads its layer. The
// error is RefNotFound if the registry does not have the artifact, or if the commit is not that of the artifact.
func (c *Client) ArtifactOf(ctx context.Context, commit plan.ID, text []byte) (Artifact, error) {
	if a, ok := c.Recall(commit); ok {
		return a, nil
	}
	digest := digestIn(text)
	if digest == "" {
		return Artifact{}, failure.New(v1alpha1.ReasonRefNotFound, "commit %s is not that of an artifact of %s", commit.Short(), c.url)
	}
	a, err := c.Resolve(ctx, digest)
	if err == nil && a.Commit != commit {
		err = failure.New(v1alpha1.ReasonRefNotFound, "commit %s is not that of the artifact %s of %s", commit.Short(), digest, c.url)
	}
	return a, err
}

// Import downloads an artifact into a new pack. If the result is not the commit of t, it returns an error.
func (c *Client) Import(ctx context.Context, a Artifact, t *store.Transfer) (*store.Received, error) {
	ctx, w, stop := c.opts.Watch(ctx, c.opts.Total)
	defer stop()
	in, err := t.Import(ctx, func(i *store.Importer) error {
		commit, err := c.build(ctx, w, a, i)
		if err == nil && commit != t.Commit {
			err = failure.New(v1alpha1.ReasonRefMoved, "the artifact %s of %s is commit %s, and not %s", a.Digest, c.url, commit.Short(), t.Commit.Short())
		}
		return err
	})
	if err != nil {
		return nil, wire.Explain(ctx, c.url, err, c.http.secrets())
	}
	return in, nil
}

// digestOf returns the digest of a tag.
func (c *Client) digestOf(ctx context.Context, tag string) (string, error) {
	ctx, w, stop := c.opts.Watch(ctx, c.opts.Advertise)
	defer stop()
	res, err := c.http.do(ctx, w, request{method: http.MethodHead, path: "/manifests/" + tag, accept: allTypes})
	if err != nil {
		return "", wire.Explain(ctx, c.url, err, c.http.secrets())
	}
	_ = res.Body.Close()
	if d := res.Header.Get("Docker-Content-Digest"); syntax.IsDigest(d) {
		return d, nil
	}
	body, err := c.manifestBytes(ctx, w, tag) // the header is optional
	if err != nil {
		return "", err
	}
	return digestOfBytes(body), nil
}

const (
	typeManifest       = "application/vnd.oci.image.manifest.v1+json"
	typeDockerManifest = "application/vnd.docker.distribution.manifest.v2+json"
	manifestTypes      = typeManifest + ", " + typeDockerManifest
	// allTypes includes the types of indexes, which Client does not read: otherwise some registries report that the tag does
	// not exist, and some serve the manifest of one platform.
	allTypes = manifestTypes + ", " + typeIndex + ", application/vnd.docker.distribution.manifest.list.v2+json"
)

// manifest reads and verifies the manifest with a digest. An error that follows from the digest is a refusal.
func (c *Client) manifest(ctx context.Context, digest string) (Artifact, error) {
	ctx, w, stop := c.opts.Watch(ctx, c.opts.Advertise)
	defer stop()
	body, err := c.manifestBytes(ctx, w, digest)
	if err != nil {
		return Artifact{}, err
	}
	if is := digestOfBytes(body); is != digest {
		return Artifact{}, failure.New(v1alpha1.ReasonUnsupportedRepository, "%s answers with another manifest (%s) for %s: what it serves is damaged or forged", c.url, is, digest)
	}
	a, err := parseManifest(body)
	if err != nil {
		return Artifact{}, &refusal{failure.New(v1alpha1.ReasonUnsupportedRepository, "%s: the artifact %s %w", c.url, digest, err)}
	}
	if a.layer.Size > c.opts.MaxBytes {
		return Artifact{}, &refusal{store.OverLimit("the layer of the artifact %s has %d bytes, more than %d", digest, a.layer.Size, c.opts.MaxBytes)}
	}
	a.Digest = digest
	return a, nil
}

func (c *Client) manifestBytes(ctx context.Context, w wire.Watch, reference string) ([]byte, error) {
	res, err := c.http.do(ctx, w, request{method: http.MethodGet, path: "/manifests/" + reference, accept: allTypes})
	if err != nil {
		return nil, wire.Explain(ctx, c.url, err, c.http.secrets())
	}
	defer func() { _ = res.Body.Close() }()
	body, err := bound.ReadAll(w.Body(res.Body, maxManifest+1), maxManifest)
	if errors.Is(err, bound.ErrTooLarge) {
		return nil, store.OverLimit("the manifest of %s has more than %d bytes", failure.Quote(reference), maxManifest)
	}
	if err != nil {
		return nil, wire.Explain(ctx, c.url, err, c.http.secrets())
	}
	return body, nil
}

func digestOfBytes(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// parseManifest reads a manifest. The error completes a sentence about the artifact.
func parseManifest(body []byte) (Artifact, error) {
	var m struct {
		MediaType   string            `json:"mediaType"`
		Manifests   []json.RawMessage `json:"manifests"`
		Layers      []layer           `json:"layers"`
		Annotations map[string]string `json:"annotations"`
	}
	if err := json.Unmarshal(body, &m); err != nil {
		return Artifact{}, fmt.Errorf("has a manifest that is not valid JSON: %w", wire.Foreign(err, nil))
	}
	switch {
	case len(m.Manifests) > 0:
		return Artifact{}, errors.New("is an index of several manifests, as images for several platforms are: push the content with stoker push, flux push artifact or oras push")
	case m.MediaType != "" && m.MediaType != typeManifest && m.MediaType != typeDockerManifest:
		return Artifact{}, fmt.Errorf("has the media type %s: push the content with stoker push, flux push artifact or oras push", failure.Quote(m.MediaType))
	case len(m.Layers) != 1:
		return Artifact{}, fmt.Errorf("has %d layers instead of one: push one directory with stoker push, flux push artifact or oras push", len(m.Layers))
	}
	l := m.Layers[0]
	switch {
	case !strings.HasSuffix(l.MediaType, "tar+gzip") && !strings.HasSuffix(l.MediaType, "tar.gzip"):
		return Artifact{}, fmt.Errorf("has a layer of the media type %s: it must end with tar+gzip", failure.Quote(l.MediaType))
	case !syntax.IsDigest(l.Digest):
		return Artifact{}, fmt.Errorf("has a layer with the digest %s: use sha256", failure.Quote(l.Digest))
	case l.Size < 0:
		return Artifact{}, errors.New("has a layer with a negative size")
	}
	a := Artifact{layer: l, annotations: map[string]string{}}
	for _, s := range shown { // the others are not needed, and may be large
		a.annotations[s.annotation] = oneLine(m.Annotations[s.annotation])
	}
	return a, nil
}

// Tags returns the tags of the repository in the order of the registry. complete is false if it has more.
func (c *Client) Tags(ctx context.Context) (tags []string, complete bool, err error) {
	ctx, w, stop := c.opts.Watch(ctx, c.opts.Advertise)
	defer stop()
	last := ""
	for range maxTagPages {
		page, more, err := c.tagPage(ctx, w, last)
		if err != nil {
			return nil, false, err
		}
		tags = append(tags, page...)
		if len(tags) > c.opts.MaxRefs {
			return nil, false, store.OverLimit("%s has more than %d tags", c.url, c.opts.MaxRefs)
		}
		if !more || len(page) == 0 || page[len(page)-1] == last {
			return tags, !more, nil
		}
		last = page[len(page)-1]
	}
	return tags, false, nil
}

const tagsPerPage = 1000

// tagPage returns the tags after last, and whether there are more. It does not follow the address of the next page, which may lead elsewhere.
func (c *Client) tagPage(ctx context.Context, w wire.Watch, last string) (tags []string, more bool, err error) {
	query := map[string]string{"n": fmt.Sprint(tagsPerPage)}
	if last != "" {
		query["last"] = last
	}
	res, err := c.http.do(ctx, w, request{method: http.MethodGet, path: "/tags/list", query: query})
	if err != nil {
		return nil, false, wire.Explain(ctx, c.url, err, c.http.secrets())
	}
	defer func() { _ = res.Body.Close() }()
	body, err := bound.ReadAll(w.Body(res.Body, maxTagList+1), maxTagList)
	if errors.Is(err, bound.ErrTooLarge) {
		return nil, false, store.OverLimit("the list of tags of %s has more than %d bytes", c.url, maxTagList)
	}
	if err != nil {
		return nil, false, wire.Explain(ctx, c.url, err, c.http.secrets())
	}
	var list struct {
		Tags []string `json:"tags"`
	}
	if err := json.Unmarshal(body, &list); err != nil {
		return nil, false, failure.New(v1alpha1.ReasonGitUnreachable, "%s answers with a list of tags that is not valid JSON: is it the address of a registry?", c.url)
	}
	valid := list.Tags[:0]
	for _, t := range list.Tags {
		if syntax.IsTag(t) {
			valid = append(valid, t)
		}
	}
	return valid, res.Header.Get("Link") != "", nil
}

// SearchTime bounds a search for the artifact of a commit.
const SearchTime = 2 * time.Minute
