// Package push makes an artifact of a registry from a commit. The same commit of a clone gives the same digest, so that CI may push it again: the
// archive has neither times nor owners, and the manifest only what the commit and the clone say.
package push

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/spf13/cobra"
	"oras.land/oras-go/v2/registry/remote"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/api/v1alpha1/syntax"
	"stoker.io/stoker/hooks/bundle"
	"stoker.io/stoker/hooks/exit"
	"stoker.io/stoker/hooks/offline"
)

// The media types of Flux, so that its tools can pull the artifact, too.
const (
	mediaConfig = "application/vnd.cncf.flux.config.v1+json"
	mediaLayer  = "application/vnd.cncf.flux.content.v1.tar+gzip"
)

// Content is what an artifact is made of.
type Content struct {
	Objects plan.Objects
	Root    plan.ID // the tree
	// Source is the address of the clone's origin without credentials, Revision the ref with the commit, both "" if unknown.
	Source, Revision string
	Created          time.Time // of the commit
}

// Artifact is an artifact in a temporary file.
type Artifact struct {
	Digest digest.Digest // of the manifest

	manifest []byte
	layer    ocispec.Descriptor
	file     *os.File
}

// Make makes an artifact. The caller must close it.
func Make(content Content) (_ *Artifact, err error) {
	a := &Artifact{}
	if a.file, err = os.CreateTemp("", "stoker-artifact-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, a.Close())
		}
	}()
	sum := &summed{hash: sha256.New()}
	zipped, err := gzip.NewWriterLevel(io.MultiWriter(a.file, sum), gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	archive := tar.NewWriter(zipped)
	w := writer{content.Objects, archive}
	if err := errors.Join(w.tree("", content.Root), archive.Close(), zipped.Close()); err != nil {
		return nil, err
	}
	a.layer = ocispec.Descriptor{MediaType: mediaLayer, Digest: digest.NewDigest(digest.SHA256, sum.hash), Size: sum.n}
	annotations := map[string]string{ocispec.AnnotationCreated: content.Created.UTC().Format(time.RFC3339)}
	for name, value := range map[string]string{ocispec.AnnotationSource: content.Source, ocispec.AnnotationRevision: content.Revision} {
		if value != "" {
			annotations[name] = value
		}
	}
	a.manifest, err = json.Marshal(ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest,
		Config: config(), Layers: []ocispec.Descriptor{a.layer}, Annotations: annotations,
	})
	a.Digest = digest.FromBytes(a.manifest)
	return a, err
}

const emptyConfig = "{}"

func config() ocispec.Descriptor {
	return ocispec.Descriptor{MediaType: mediaConfig, Digest: digest.FromString(emptyConfig), Size: int64(len(emptyConfig))}
}

// summed hashes and counts what is written to it.
type summed struct {
	hash hash.Hash
	n    int64
}

func (s *summed) Write(p []byte) (int, error) {
	s.n += int64(len(p))
	return s.hash.Write(p)
}

// Close removes the file.
func (a *Artifact) Close() error { return errors.Join(a.file.Close(), os.Remove(a.file.Name())) }

// writer writes trees of git into an archive.
type writer struct {
	objects plan.Objects
	archive *tar.Writer
}

func (w writer) tree(within string, id plan.ID) error {
	entries, err := w.objects.Tree(id)
	if err != nil {
		return err
	}
	for _, e := range entries {
		path := within + e.Name
		if _, err := plan.ParsePath(path); err != nil {
			return fmt.Errorf("agents would refuse the artifact: %w", err)
		}
		switch e.Mode {
		case plan.Directory:
			err = w.tree(path+"/", e.ID)
		case plan.Symlink:
			err = w.link(path, e.ID)
		case plan.Regular, plan.Executable:
			err = w.file(path, e)
		case plan.Submodule: // agents skip it in git, too
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (w writer) file(path string, e plan.Entry) error {
	var content bytes.Buffer
	if _, err := w.objects.WriteBlob(&content, e.ID); err != nil {
		return err
	}
	mode := int64(0o644)
	if e.Mode == plan.Executable {
		mode = 0o755
	}
	if err := w.archive.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: path, Size: int64(content.Len()), Mode: mode}); err != nil {
		return err
	}
	_, err := content.WriteTo(w.archive)
	return err
}

func (w writer) link(path string, id plan.ID) error {
	var target strings.Builder
	if _, err := w.objects.WriteBlob(&target, id); err != nil {
		return err
	}
	return w.archive.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: path, Linkname: target.String(), Mode: 0o777})
}

// Address is where an artifact is pushed to.
type Address struct {
	repository repo.URL
	tag        string
}

// ParseAddress reads an address such as oci://registry.example.com/plants/line:1.4.2. An error shows nothing of it, because it may have a password.
func ParseAddress(s string) (Address, error) {
	i := strings.LastIndexByte(s, ':')
	if i < 0 || strings.Contains(s[i:], "/") {
		return Address{}, errors.New("the address has no tag: use one such as oci://registry.example.com/plants/line:1.4.2")
	}
	u, err := repo.ParseURL(s[:i])
	if err == nil && !u.Registry() {
		err = errors.New("it is not the address of a registry: use one such as oci://registry.example.com/plants/line:1.4.2")
	}
	if err == nil && !syntax.IsTag(s[i+1:]) {
		err = errors.New("what follows the last colon of the address is not a tag of a registry: use one such as 1.4.2")
	}
	return Address{u, s[i+1:]}, err
}

// Push pushes the artifact to an address, with its tag and more tags. Credentials are those of docker or podman login.
func (a *Artifact) Push(ctx context.Context, to Address, tags []string) error {
	client, err := bundle.Client()
	if err != nil {
		return err
	}
	name := to.repository.Host() + to.repository.Path()
	repository, err := remote.NewRepository(name)
	if err != nil {
		return err
	}
	repository.Client, repository.PlainHTTP = client, to.repository.Plaintext()
	push := func(d ocispec.Descriptor, content io.Reader) error {
		if exists, err := repository.Blobs().Exists(ctx, d); exists || err != nil {
			return err
		}
		return repository.Blobs().Push(ctx, d, content)
	}
	manifest := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: a.Digest, Size: int64(len(a.manifest))}
	if err = push(config(), strings.NewReader(emptyConfig)); err == nil {
		err = push(a.layer, io.NewSectionReader(a.file, 0, a.layer.Size))
	}
	for _, tag := range append([]string{to.tag}, tags...) {
		if err == nil { // the first error ends the push
			err = repository.Manifests().PushReference(ctx, manifest, bytes.NewReader(a.manifest), tag)
		}
	}
	return bundle.Explain(name, err)
}

// timeout bounds the whole push.
const timeout = 30 * time.Minute

// NewCommand returns the command stoker push. It prints the address with the digest to stdout.
func NewCommand(stdout io.Writer) *cobra.Command {
	command := &cobra.Command{
		Use:   "push oci://REGISTRY/PATH:TAG",
		Short: "Push a commit of a local clone to a registry",
		Long: `Push a commit of a local clone to a registry, as an artifact that gateways can sync.

The artifact has the files of the commit, without uncommitted changes. The same commit gives the same digest, from a clone with the same
origin and by the same version of stoker. Credentials are those of docker or podman login.`,
		Example: `  stoker push oci://registry.example.com/plants/line:1.4.2 --tag stable`,
		Args:    cobra.ExactArgs(1),
	}
	var dir, ref string
	var tags []string
	f := command.Flags()
	f.StringVar(&dir, "repo", ".", "local clone")
	f.StringVar(&ref, "ref", "HEAD", "branch, tag or commit of the clone")
	f.StringSliceVar(&tags, "tag", nil, "another tag for the artifact (repeatable)")
	command.RunE = func(command *cobra.Command, args []string) error {
		to, err := ParseAddress(args[0])
		if err != nil {
			return exit.Errorf(exit.Usage, "%w", err)
		}
		for _, tag := range tags {
			if !syntax.IsTag(tag) {
				return exit.Errorf(exit.Usage, "--tag: %.100q is not a tag of a registry", tag)
			}
		}
		ctx, cancel := context.WithTimeout(command.Context(), timeout)
		defer cancel()
		a, err := fromClone(ctx, dir, ref)
		if err != nil {
			return err
		}
		defer func() { _ = a.Close() }()
		if err := a.Push(ctx, to, tags); err != nil {
			return err
		}
		_, err = fmt.Fprintf(stdout, "%s@%s\n", to.repository, a.Digest)
		return err
	}
	return command
}

// fromClone makes an artifact from a commit of a local clone.
func fromClone(ctx context.Context, dir, ref string) (_ *Artifact, err error) {
	clone, err := offline.Open(dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, clone.Close()) }()
	at, err := clone.Resolve(ctx, ref)
	if err != nil {
		return nil, err
	}
	c := Content{Revision: at.Commit.String()}
	if c.Objects, c.Root, c.Created, err = clone.Content(ctx, at); err != nil {
		return nil, err
	}
	origin, err := clone.Origin()
	if err != nil {
		return nil, err
	}
	if u, err := url.Parse(origin); err == nil && u.Host != "" {
		u.User, u.RawQuery, u.Fragment, u.RawFragment = nil, "", "", "" // each may be a credential
		c.Source = u.String()
	}
	return Make(c)
}
