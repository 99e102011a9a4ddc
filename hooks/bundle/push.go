package bundle

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/errdef"
	"oras.land/oras-go/v2/registry/remote"
	"oras.land/oras-go/v2/registry/remote/auth"
	"oras.land/oras-go/v2/registry/remote/credentials"
	"oras.land/oras-go/v2/registry/remote/retry"

	"stoker.io/stoker/internal/httpclient"
)

// Registry is where images are pushed to.
type Registry struct {
	Path string // registry and path, such as registry.example.com/stoker
	HTTP bool   // without TLS
}

// Push copies the images and charts of the bundle, with what describes or signs them, to a registry. It calls done for each, with its name in
// the registry and its tag. What the registry reports to have is not sent again. Credentials are those of docker or podman login. Call Verify
// before.
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
	credential, err := logins()
	if err != nil {
		return nil, err
	}
	policy := httpclient.Policy{Proxy: http.ProxyFromEnvironment, HeaderTimeout: 2 * time.Minute, KeepAlive: 30 * time.Second, HTTP2: true}
	return &auth.Client{
		Client: policy.ClientOf(retry.NewTransport(redirectAsNotFound{policy.Transport()})),
		Cache:  auth.NewCache(), Credential: credential,
	}, nil
}

// logins returns the login that docker has for a registry. If docker has no login there, it returns podman's.
func logins() (auth.CredentialFunc, error) {
	docker, err := credentials.NewStoreFromDocker(credentials.StoreOptions{})
	if err != nil {
		return nil, fmt.Errorf("logins of docker: %w", err)
	}
	return func(ctx context.Context, registry string) (auth.Credential, error) {
		login, err := credentials.Credential(docker)(ctx, registry)
		if err != nil || login != auth.EmptyCredential {
			return login, err
		}
		name, err := podmanFile()
		if err != nil {
			return login, fmt.Errorf("logins of podman: %w", err)
		}
		podman, err := credentials.NewStore(name, credentials.StoreOptions{})
		switch {
		case errors.Is(err, fs.ErrPermission) && os.Getenv("REGISTRY_AUTH_FILE") == "": // after su, the environment may have the directory of another user
			return login, nil
		case err != nil:
			return login, fmt.Errorf("logins of podman: %w", err)
		}
		if login, err = credentials.Credential(podman)(ctx, registry); err == nil && login == auth.EmptyCredential && registry == "registry-1.docker.io" {
			return podman.Get(ctx, "docker.io") // the key of podman for Docker Hub
		}
		return login, err
	}, nil
}

// podmanFile returns the file that podman login writes, see containers-auth.json(5).
func podmanFile() (string, error) {
	dir := os.Getenv("XDG_RUNTIME_DIR")
	switch name := os.Getenv("REGISTRY_AUTH_FILE"); {
	case name != "":
		return name, nil
	case runtime.GOOS != "linux":
		home, err := os.UserHomeDir()
		return filepath.Join(home, ".config", "containers", "auth.json"), err
	case dir != "":
		return filepath.Join(dir, "containers", "auth.json"), nil
	}
	return fmt.Sprintf("/run/containers/%d/auth.json", os.Getuid()), nil
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
