// Package bundle reads the file that a site without a network installs from: an archive (tar) that is an OCI image layout, which other
// programs read, too, with files beside it and the sums of all.
//
//	oci-layout, index.json, blobs/   images, chart, and what describes or signs them
//	files/                           command line, manifests and pages
//	SHA256SUMS                       of all files but the blobs, which have their sums as names
//	SHA256SUMS.sigstore.json         signature of SHA256SUMS, if the bundle is signed
//
// Everything in a bundle comes from outside: nothing of it is unpacked, names and sizes are checked, and sums are compared before an image
// leaves for a registry.
package bundle

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"stoker.io/stoker/internal/bound"
	"stoker.io/stoker/internal/cosign"
)

// Names of files in a bundle.
const (
	Files     = "files/"
	Sums      = "SHA256SUMS"
	Signature = "SHA256SUMS.sigstore.json"

	blobs = "blobs/sha256/"
)

const (
	maxEntries  = 10_000
	maxRoots    = 1000    // manifests of the index: images, chart, and what belongs to them
	maxManifest = 4 << 20 // bytes of an index, a manifest, the sums or a signature; registries have the same bound
)

// Bundle is an open bundle.
type Bundle struct {
	file  *os.File
	parts map[string]part
	Index ocispec.Index
}

// part is where a file of the archive is, in bytes.
type part struct{ offset, size int64 }

// Open opens a bundle, and reads its list of files and its index. It compares no sums; Verify does. The caller must close the Bundle.
func Open(name string) (_ *Bundle, err error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s is not a bundle of Stoker: %w", name, errors.Join(err, file.Close()))
		}
	}()
	b := &Bundle{file: file, parts: map[string]part{}}
	if err := b.list(); err != nil {
		return nil, err
	}
	raw, err := b.read(ocispec.ImageIndexFile)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(raw, &b.Index); err != nil {
		return nil, fmt.Errorf("%s: %w", ocispec.ImageIndexFile, err)
	}
	if n := len(b.Index.Manifests); n > maxRoots {
		return nil, fmt.Errorf("%s: %d manifests, and at most %d are read", ocispec.ImageIndexFile, n, maxRoots)
	}
	return b, nil
}

func (b *Bundle) list() error {
	archive := tar.NewReader(b.file)
	for {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		name := path.Clean(h.Name)
		switch _, twice := b.parts[name]; {
		case h.Typeflag == tar.TypeDir:
			continue
		case h.Typeflag != tar.TypeReg, "/"+name != path.Clean("/"+name):
			return fmt.Errorf("%.100q is not a plain file inside of the archive", h.Name)
		case twice:
			return fmt.Errorf("%.100q is there twice", h.Name)
		case len(b.parts) == maxEntries:
			return fmt.Errorf("more than %d files", maxEntries)
		}
		offset, err := b.file.Seek(0, io.SeekCurrent)
		if err != nil {
			return err
		}
		b.parts[name] = part{offset, h.Size}
	}
}

// Close closes the file.
func (b *Bundle) Close() error { return b.file.Close() }

// Names returns the sorted names of the files below files/, relative to it, and their sizes in bytes.
func (b *Bundle) Names() (names []string, size func(name string) int64) {
	for _, name := range slices.Sorted(maps.Keys(b.parts)) {
		if rest, ok := strings.CutPrefix(name, Files); ok {
			names = append(names, rest)
		}
	}
	return names, func(name string) int64 { return b.parts[Files+name].size }
}

func (b *Bundle) open(name string) (*io.SectionReader, error) {
	p, ok := b.parts[name]
	if !ok {
		return nil, fmt.Errorf("%s is missing", name)
	}
	return io.NewSectionReader(b.file, p.offset, p.size), nil
}

// read returns a small file of the archive.
func (b *Bundle) read(name string) ([]byte, error) {
	r, err := b.open(name)
	if err != nil {
		return nil, err
	}
	raw, err := bound.ReadAll(r, maxManifest)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return raw, nil
}

func (b *Bundle) sum(ctx context.Context, name string) (string, error) {
	r, err := b.open(name)
	if err != nil {
		return "", err
	}
	h := sha256.New()
	for { // a blob has hundreds of megabytes, and a user may interrupt
		if err := ctx.Err(); err != nil {
			return "", err
		}
		if _, err := io.CopyN(h, r, 1<<20); errors.Is(err, io.EOF) {
			return hex.EncodeToString(h.Sum(nil)), nil
		} else if err != nil {
			return "", fmt.Errorf("%s: %w", name, err)
		}
	}
}

// Verify compares the sums of all files, and checks that the images are complete. If key is not nil, SHA256SUMS must have a signature by
// that key. Without a key, it finds damage, but no forgery.
func (b *Bundle) Verify(ctx context.Context, key *cosign.Key) error {
	raw, err := b.read(Sums)
	if err != nil {
		return err
	}
	if key != nil {
		signature, err := b.read(Signature)
		if err != nil {
			return fmt.Errorf("the bundle is not signed: %w", err)
		}
		if err := key.VerifyBlob(raw, signature); err != nil {
			return err
		}
	}
	sums, err := parseSums(raw)
	if err != nil {
		return fmt.Errorf("%s: %w", Sums, err)
	}
	for _, name := range slices.Sorted(maps.Keys(b.parts)) {
		want, isBlob := strings.CutPrefix(name, blobs)
		switch {
		case name == Sums, name == Signature:
			continue
		case !isBlob:
			want = sums[name]
		}
		delete(sums, name)
		switch sum, err := b.sum(ctx, name); {
		case err != nil:
			return err
		case want == "":
			return fmt.Errorf("%s is not in %s", name, Sums)
		case sum != want:
			return fmt.Errorf("%s is damaged: its SHA-256 is %s, not %s", name, sum, want)
		}
	}
	if missing := slices.Sorted(maps.Keys(sums)); len(missing) > 0 {
		return fmt.Errorf("%s is missing, but %s names it", missing[0], Sums)
	}
	return b.walk(func(ocispec.Descriptor, ocispec.Descriptor) error { return nil })
}

func parseSums(raw []byte) (map[string]string, error) {
	sums := map[string]string{}
	lines := bufio.NewScanner(bytes.NewReader(raw))
	for lines.Scan() {
		sum, name, ok := strings.Cut(lines.Text(), "  ")
		if _, twice := sums[name]; !ok || len(sum) != hex.EncodedLen(sha256.Size) || twice {
			return nil, fmt.Errorf("unexpected line %.100q", lines.Text())
		}
		sums[name] = sum
	}
	return sums, lines.Err()
}

// blobOf returns the name of a blob in the archive, or "" if the digest is not one of SHA-256.
func blobOf(d digest.Digest) string {
	if d.Validate() != nil || d.Algorithm() != digest.SHA256 {
		return ""
	}
	return blobs + d.Encoded()
}

// walk calls visit for each descriptor of the index, a root, and for each below it. What is below a descriptor is visited once, even if the
// descriptor occurs again.
func (b *Bundle) walk(visit func(root, d ocispec.Descriptor) error) error {
	seen := map[digest.Digest]bool{}
	var down func(root, d ocispec.Descriptor) error
	down = func(root, d ocispec.Descriptor) error {
		if p, ok := b.parts[blobOf(d.Digest)]; !ok || p.size != d.Size {
			return fmt.Errorf("%.100q with %d bytes is not in the bundle", d.Digest, d.Size)
		}
		if err := visit(root, d); err != nil || seen[d.Digest] {
			return err
		}
		seen[d.Digest] = true
		below, err := b.children(d)
		if err != nil {
			return err
		}
		for _, child := range below {
			if err := down(root, child); err != nil {
				return err
			}
		}
		return nil
	}
	for _, root := range b.Index.Manifests {
		if err := down(root, root); err != nil {
			return err
		}
	}
	return nil
}

// children returns what a manifest or an index consists of.
func (b *Bundle) children(d ocispec.Descriptor) ([]ocispec.Descriptor, error) {
	if d.MediaType != ocispec.MediaTypeImageIndex && d.MediaType != ocispec.MediaTypeImageManifest {
		return nil, nil
	}
	raw, err := b.read(blobOf(d.Digest))
	if err != nil {
		return nil, err
	}
	var m struct {
		Manifests []ocispec.Descriptor `json:"manifests"`
		Config    *ocispec.Descriptor  `json:"config"`
		Layers    []ocispec.Descriptor `json:"layers"`
		Subject   *ocispec.Descriptor  `json:"subject"`
	}
	if err := json.Unmarshal(raw, &m); err != nil {
		return nil, fmt.Errorf("manifest %s: %w", d.Digest, err)
	}
	all := append(m.Manifests, m.Layers...)
	for _, one := range []*ocispec.Descriptor{m.Config, m.Subject} {
		if one != nil {
			all = append(all, *one)
		}
	}
	return all, nil
}

// Fetch implements content.Fetcher of oras. It returns the content of a blob or manifest.
func (b *Bundle) Fetch(_ context.Context, d ocispec.Descriptor) (io.ReadCloser, error) {
	r, err := b.open(blobOf(d.Digest))
	if err != nil {
		return nil, err
	}
	return io.NopCloser(r), nil
}

// Exists implements content.ReadOnlyStorage of oras. It reports whether the bundle has a blob or manifest.
func (b *Bundle) Exists(_ context.Context, d ocispec.Descriptor) (bool, error) {
	_, ok := b.parts[blobOf(d.Digest)]
	return ok, nil
}
