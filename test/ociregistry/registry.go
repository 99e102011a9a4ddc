// Package ociregistry is a registry in memory, for tests: the part of the OCI distribution specification that pushes and pulls of artifacts use.
package ociregistry

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"stoker.io/stoker/internal/cosign"
)

// Repository is the path of the repository of a Server.
const Repository = "plants/line"

// Server is a registry with one repository.
type Server struct {
	*httptest.Server
	// Before is called with each request; if it returns true, it has answered. It may be nil.
	Before func(http.ResponseWriter, *http.Request) bool
	t      testing.TB

	mu        sync.Mutex
	blobs     map[string][]byte
	manifests map[string][]byte
	tags      map[string]string
	requests  []string
}

// Start starts a registry without TLS.
func Start(t testing.TB) *Server {
	s := New(t)
	s.Start()
	return s
}

// New returns a registry that is not started yet.
func New(t testing.TB) *Server {
	s := &Server{t: t, blobs: map[string][]byte{}, manifests: map[string][]byte{}, tags: map[string]string{}}
	s.Server = httptest.NewUnstartedServer(s)
	t.Cleanup(s.Close)
	return s
}

// Repo returns the address of the repository for git.repo.
func (s *Server) Repo() string {
	_, host, _ := strings.Cut(s.URL, "://")
	if s.TLS != nil {
		return "oci://" + host + "/" + Repository
	}
	return "oci+http://" + host + "/" + Repository
}

// Requests returns the method and the path of all requests so far, and forgets them.
func (s *Server) Requests() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.requests
	s.requests = nil
	return all
}

// Digest returns the digest of content.
func Digest(content []byte) string {
	sum := sha256.Sum256(content)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// Files returns a layer with these files, by path. A path that ends with * is executable.
func Files(t testing.TB, files map[string]string) []byte {
	var entries []tar.Header
	for _, name := range slices.Sorted(maps.Keys(files)) {
		h := tar.Header{Name: name, Size: int64(len(files[name])), Mode: 0o644, Typeflag: tar.TypeReg}
		if path, ok := strings.CutSuffix(name, "*"); ok {
			h.Name, h.Mode = path, 0o755
		}
		entries = append(entries, h)
	}
	return Layer(t, entries, func(h tar.Header) string { return cmp.Or(files[h.Name], files[h.Name+"*"]) })
}

// Layer returns a layer with these entries.
func Layer(t testing.TB, entries []tar.Header, content func(tar.Header) string) []byte {
	var b bytes.Buffer
	zipped := gzip.NewWriter(&b)
	archive := tar.NewWriter(zipped)
	for _, h := range entries {
		require.NoError(t, archive.WriteHeader(&h))
		if h.Typeflag == tar.TypeReg {
			_, err := io.WriteString(archive, content(h))
			require.NoError(t, err)
		}
	}
	require.NoError(t, archive.Close())
	require.NoError(t, zipped.Close())
	return b.Bytes()
}

// Flux is the media type of a layer that flux push artifact makes.
const Flux = "application/vnd.cncf.flux.content.v1.tar+gzip"

// Push adds an artifact with this layer under a tag, and returns its digest.
func (s *Server) Push(tag string, layer []byte, annotations map[string]string) string {
	return s.PushManifest(tag, Manifest(s.t, layer, annotations), layer)
}

// Manifest returns the manifest of an artifact.
func Manifest(t testing.TB, layer []byte, annotations map[string]string) []byte {
	type descriptor struct {
		MediaType string `json:"mediaType"`
		Digest    string `json:"digest"`
		Size      int    `json:"size"`
	}
	m, err := json.Marshal(map[string]any{
		"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
		"config":      descriptor{"application/vnd.cncf.flux.config.v1+json", Digest([]byte("{}")), 2},
		"layers":      []descriptor{{Flux, Digest(layer), len(layer)}},
		"annotations": annotations,
	})
	require.NoError(t, err)
	return m
}

// PushManifest adds a manifest and blobs under a tag ("" for none), and returns the digest of the manifest.
func (s *Server) PushManifest(tag string, manifest []byte, blobs ...[]byte) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range blobs {
		s.blobs[Digest(b)] = b
	}
	digest := Digest(manifest)
	s.manifests[digest] = manifest
	if tag != "" {
		s.tags[tag] = digest
	}
	return digest
}

// Signature formats of cosign, for Sign.
const (
	CosignBundle  = "bundle"  // version 3
	CosignPayload = "payload" // earlier ones
)

// Sign adds a signature of a digest, as cosign sign --key makes it: under a tag, as for registries without a list of referrers. predicate is the
// predicate type of a bundle; "" means a signature.
func (s *Server) Sign(format string, key *ecdsa.PrivateKey, digest, predicate string) {
	encode := func(v any) []byte {
		b, err := json.Marshal(v)
		require.NoError(s.t, err)
		return b
	}
	sign := func(content []byte) []byte {
		sum := sha256.Sum256(content)
		signature, err := ecdsa.SignASN1(rand.Reader, key, sum[:])
		require.NoError(s.t, err)
		return signature
	}
	layer := func(mediaType string, content []byte, annotations map[string]string) map[string]any {
		return map[string]any{"mediaType": mediaType, "digest": Digest(content), "size": len(content), "annotations": annotations}
	}
	manifest := func(layers ...any) []byte {
		return encode(map[string]any{"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "layers": layers})
	}
	tag := strings.Replace(digest, ":", "-", 1)
	if format == CosignPayload {
		payload := encode(map[string]any{"critical": map[string]any{"type": "cosign container image signature", "image": map[string]string{"docker-manifest-digest": digest}}})
		s.PushManifest(tag+".sig", manifest(layer(cosign.PayloadType, payload, map[string]string{
			cosign.SignatureAnnotation: base64.StdEncoding.EncodeToString(sign(payload))})), payload)
		return
	}
	const inToto = "application/vnd.in-toto+json"
	statement := encode(map[string]any{"_type": "https://in-toto.io/Statement/v1", "predicateType": cmp.Or(predicate, cosign.PredicateSign),
		"subject": []any{map[string]any{"digest": map[string]string{"sha256": strings.TrimPrefix(digest, "sha256:")}}}})
	bundle := encode(map[string]any{"mediaType": cosign.BundleType, "dsseEnvelope": map[string]any{"payloadType": inToto, "payload": statement,
		"signatures": []any{map[string]any{"sig": sign(fmt.Appendf(nil, "DSSEv1 %d %s %d %s", len(inToto), inToto, len(statement), statement))}}}})
	signature := manifest(layer(cosign.BundleType, bundle, nil))
	s.PushManifest("", signature, bundle)
	entry := layer("application/vnd.oci.image.manifest.v1+json", signature, nil)
	entry["artifactType"] = cosign.BundleType
	s.PushManifest(tag, encode(map[string]any{"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": []any{entry}}))
}

// Tag moves a tag to a digest, or removes it if digest is "".
func (s *Server) Tag(tag, digest string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if delete(s.tags, tag); digest != "" {
		s.tags[tag] = digest
	}
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.requests = append(s.requests, r.Method+" "+r.URL.Path)
	before := s.Before
	s.mu.Unlock()
	if before != nil && before(w, r) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	path, ok := strings.CutPrefix(r.URL.Path, "/v2/"+Repository)
	switch kind, name, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/"); {
	case r.URL.Path == "/v2/":
	case !ok:
		http.NotFound(w, r)
	case kind == "tags":
		_ = json.NewEncoder(w).Encode(map[string]any{"name": Repository, "tags": slices.Sorted(maps.Keys(s.tags))})
	case kind == "manifests" && r.Method == http.MethodPut:
		body, _ := io.ReadAll(r.Body)
		digest := Digest(body)
		s.manifests[digest] = body
		if !strings.HasPrefix(name, "sha256:") {
			s.tags[name] = digest
		}
		w.Header().Set("Docker-Content-Digest", digest)
		w.WriteHeader(http.StatusCreated)
	case kind == "manifests":
		digest := cmp.Or(s.tags[name], name)
		content, mediaType := s.manifests[digest], mediaTypeOf(s.manifests[digest])
		if accept := strings.Join(r.Header.Values("Accept"), ","); accept != "" && !strings.Contains(accept, "*/*") && !strings.Contains(accept, mediaType) {
			content = nil // as some registries answer
		}
		answer(w, r, mediaType, digest, content)
	case name == "uploads/" && r.Method == http.MethodPost:
		w.Header().Set("Location", r.URL.Path+"one")
		w.WriteHeader(http.StatusAccepted)
	case strings.HasPrefix(name, "uploads/") && r.Method == http.MethodPut:
		body, _ := io.ReadAll(r.Body)
		digest := r.URL.Query().Get("digest")
		if Digest(body) != digest {
			http.Error(w, "another digest", http.StatusBadRequest)
			return
		}
		s.blobs[digest] = body
		w.Header().Set("Docker-Content-Digest", digest)
		w.WriteHeader(http.StatusCreated)
	case kind == "blobs":
		answer(w, r, "application/octet-stream", name, s.blobs[name])
	default:
		http.NotFound(w, r)
	}
}

// mediaTypeOf returns the media type of a manifest or an index.
func mediaTypeOf(manifest []byte) string {
	var m struct {
		MediaType string            `json:"mediaType"`
		Manifests []json.RawMessage `json:"manifests"`
	}
	_ = json.Unmarshal(manifest, &m)
	if m.Manifests != nil {
		return cmp.Or(m.MediaType, "application/vnd.oci.image.index.v1+json")
	}
	return cmp.Or(m.MediaType, "application/vnd.oci.image.manifest.v1+json")
}

func answer(w http.ResponseWriter, r *http.Request, mediaType, digest string, content []byte) {
	if content == nil {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", mediaType)
	w.Header().Set("Docker-Content-Digest", digest)
	w.Header().Set("Content-Length", fmt.Sprint(len(content)))
	if r.Method != http.MethodHead {
		_, _ = w.Write(content)
	}
}
