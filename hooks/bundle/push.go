package bundle

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/errdef"
	"oras.land/oras-go/v2/registry/remote"
	"oras.land/oras-go/v2/registry/remote/auth"
	"oras.land/oras-go/v2/registry/remote/credentials"
	"oras.land/oras-go/v2/registry/remote/retry"

	"stoker.io/stoker/internal/httpclient"
)

// Image is an image or a chart of a bundle.
type Image struct {
	Name   string        `json:"name"` // last part of its repository
	Tag    string        `json:"tag"`
	Digest digest.Digest `json:"digest"`
	Chart  bool          `json:"chart,omitempty"`
	Size   int64         `json:"size"` // bytes, of all platforms
	// Referrers is the number of manifests that describe or sign it.
	Referrers int `json:"referrers,omitempty"`
	root      ocispec.Descriptor
	referrers []ocispec.Descriptor
}

// MediaTypeChart is the type of a chart's configuration.
const MediaTypeChart = "application/vnd.cncf.helm.config.v1+json"

// Images returns the images and charts of a bundle.
func (b *Bundle) Images() ([]*Image, error) {
	var images []*Image
	within := map[digest.Digest]*Image{} // manifests, to find the image that a referrer belongs to
	for _, root := range b.Index.Manifests {
		// The chart has no ref name: a runtime that imports the bundle would unpack it like an image, and fail.
		name, tag := root.Annotations[ocispec.AnnotationTitle], root.Annotations[ocispec.AnnotationVersion]
		if ref := root.Annotations[ocispec.AnnotationRefName]; ref != "" {
			var ok bool
			if name, tag, ok = strings.Cut(path.Base(ref), ":"); !ok {
				return nil, fmt.Errorf("%s: %.100q is not a repository with a tag", ocispec.ImageIndexFile, ref)
			}
		}
		if name == "" {
			continue // it belongs to an image
		}
		images = append(images, &Image{Name: name, Tag: tag, Digest: root.Digest, root: root})
		within[root.Digest] = images[len(images)-1]
	}
	err := b.walk(func(root, d ocispec.Descriptor) error {
		if i := within[root.Digest]; i != nil {
			i.Size += d.Size
			i.Chart = i.Chart || d.MediaType == MediaTypeChart
			if d.MediaType == ocispec.MediaTypeImageManifest {
				within[d.Digest] = i
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for _, root := range b.Index.Manifests {
		if within[root.Digest] != nil {
			continue
		}
		below, err := b.children(root)
		if err != nil {
			return nil, err
		}
		for _, d := range below { // one of them is the subject of root
			if i := within[d.Digest]; i != nil {
				i.referrers = append(i.referrers, root)
				i.Referrers++
				break
			}
		}
	}
	return images, nil
}

// Registry is where images are pushed to.
type Registry struct {
	Path string // registry and path, such as registry.example.com/stoker
	HTTP bool   // without TLS
}

// Push copies the images and charts of the bundle, with what describes or signs them, to a registry. It reports each to done. What the
// registry has is not sent again. Credentials are those of docker or podman login. Call Verify before.
func (b *Bundle) Push(ctx context.Context, to Registry, done func(Image, string)) error {
	images, err := b.Images()
	if err != nil {
		return err
	}
	client, err := Client()
	if err != nil {
		return err
	}
	for _, i := range images {
		repository, err := remote.NewRepository(to.Path + "/" + i.Name)
		if err != nil {
			return fmt.Errorf("%q is not a registry and path such as registry.example.com/stoker: %w", to.Path, err)
		}
		repository.Client, repository.PlainHTTP = client, to.HTTP
		name := to.Path + "/" + i.Name + ":" + i.Tag
		for _, root := range append([]ocispec.Descriptor{i.root}, i.referrers...) {
			if err := oras.CopyGraph(ctx, b, repository, root, oras.DefaultCopyGraphOptions); err != nil {
				return Explain(name, err)
			}
		}
		if err := repository.Tag(ctx, i.root, i.Tag); err != nil {
			return Explain(name, err)
		}
		done(*i, name)
	}
	return nil
}

// Explain returns the error of a push to the repository name, with what the user can do about it.
func Explain(name string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, auth.ErrBasicCredentialNotFound), errors.Is(err, errdef.ErrNotFound):
		return fmt.Errorf("push %s: %w (log in first: docker login or podman login)", name, err)
	case errors.Is(err, http.ErrSchemeMismatch):
		return fmt.Errorf("push %s: %w (use --plain-http, or oci+http://, for a registry without TLS)", name, err)
	}
	return fmt.Errorf("push %s: %w", name, err)
}

// Client returns a client for pushes with the credentials of docker or podman login. It follows no redirect.
func Client() (*auth.Client, error) {
	store, err := credentials.NewStoreFromDocker(credentials.StoreOptions{})
	if err != nil {
		return nil, fmt.Errorf("logins of docker: %w", err)
	}
	policy := httpclient.Policy{Proxy: http.ProxyFromEnvironment, HeaderTimeout: 2 * time.Minute, KeepAlive: 30 * time.Second, HTTP2: true}
	return &auth.Client{
		Client: policy.ClientOf(retry.NewTransport(redirectAsNotFound{policy.Transport()})),
		Cache:  auth.NewCache(), Credential: credentials.Credential(store),
	}, nil
}

// redirectAsNotFound turns a redirect in answer to HEAD of a blob into 404, so that the blob is pushed again: no redirect is followed,
// because the credential would go with it.
type redirectAsNotFound struct{ next http.RoundTripper }

func (t redirectAsNotFound) RoundTrip(req *http.Request) (*http.Response, error) {
	res, err := t.next.RoundTrip(req)
	if err == nil && req.Method == http.MethodHead && res.StatusCode/100 == 3 && strings.Contains(req.URL.Path, "/blobs/") {
		res.StatusCode, res.Status = http.StatusNotFound, "404 Not Found"
	}
	return res, err
}
