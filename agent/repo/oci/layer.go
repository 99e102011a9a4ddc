package oci

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo/store"
	"stoker.io/stoker/agent/repo/wire"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/syntax"
	"stoker.io/stoker/internal/failure"
)

const (
	maxNames = 64 << 20 // bytes of all names in a layer, which are kept in memory
	maxLink  = 4096     // bytes of the target of a symbolic link
)

// build downloads the layer of an artifact, adds its files, folders and commit to into, and returns the commit.
func (c *Client) build(ctx context.Context, w wire.Watch, a Artifact, into *store.Importer) (plan.ID, error) {
	body, err := c.http.open(ctx, w, a.layer)
	if err != nil {
		return plan.ID{}, err
	}
	defer func() { _ = body.Close() }()
	sum := sha256.New()
	received := &counter{r: io.TeeReader(body, sum)}
	root, err := readLayer(received, c.opts.MaxBytes, into)
	if ofDisk(err) {
		return plan.ID{}, err
	}
	// Also after an error: only the digest tells whether this is the layer that was pushed.
	if _, err := io.Copy(io.Discard, received); err != nil {
		return plan.ID{}, err
	}
	if is := "sha256:" + hex.EncodeToString(sum.Sum(nil)); is != a.layer.Digest || received.n != a.layer.Size {
		return plan.ID{}, failure.New(v1alpha1.ReasonUnsupportedRepository, "%s sends another layer (%s) than the artifact %s has: what it serves is damaged or forged", c.url, is, a.Digest)
	}
	var commit plan.ID
	if err == nil {
		commit, err = addCommit(a, root, into)
	}
	return commit, refuse(ctx, a, err)
}

func addCommit(a Artifact, root *folder, into *store.Importer) (plan.ID, error) {
	tree, err := root.write(into)
	if err != nil {
		return plan.ID{}, err
	}
	return into.Commit(commitText(a, tree))
}

// counter counts what is read. Its first error stays.
type counter struct {
	r   io.Reader
	n   int64
	err error
}

func (c *counter) Read(p []byte) (n int, err error) {
	if c.err == nil {
		n, c.err = c.r.Read(p)
		c.n += int64(n)
	}
	return n, c.err
}

// refusal is an error that follows from the digest of an artifact: each download ends with it.
type refusal struct{ error }

func (r *refusal) Unwrap() error { return r.error }

// refuse makes err a refusal. The caller has verified the digest of the layer. If ctx has ended, or if the store could not be written, refuse
// returns err.
func refuse(ctx context.Context, a Artifact, err error) error {
	if err == nil || ctx.Err() != nil || ofDisk(err) {
		return err
	}
	if _, ok := errors.AsType[*failure.Error](err); !ok {
		err = failure.New(v1alpha1.ReasonUnsupportedRepository, "the layer of the artifact %s is not a tar archive with gzip: %w", a.Digest, wire.Foreign(err, nil))
	}
	return &refusal{err}
}

// ofDisk reports whether the store could not be written.
func ofDisk(err error) bool {
	_, ok := errors.AsType[*store.DiskError](err)
	return ok || failure.Is(err, v1alpha1.ReasonNoSpace)
}

// readLayer adds the files of a tar archive with gzip to into, and returns the root folder. It fails if r unpacks to more than limit bytes.
func readLayer(r io.Reader, limit int64, into *store.Importer) (*folder, error) {
	unzipped, err := gzip.NewReader(r)
	if err != nil {
		return nil, err
	}
	archive := &unpacker{unzipped, limit, limit}
	files := tar.NewReader(archive)
	all := &contents{root: &folder{}}
	for {
		h, err := files.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil {
			err = all.add(h, files, into)
		}
		if err != nil {
			return nil, err
		}
	}
	_, err = io.Copy(io.Discard, archive) // padding
	return all.root, err
}

// unpacker reads what a layer unpacks to. It fails after limit bytes.
type unpacker struct {
	r           io.Reader
	left, limit int64
}

func (u *unpacker) Read(p []byte) (int, error) {
	n, err := u.r.Read(p)
	if u.left -= int64(n); u.left < 0 {
		return 0, store.OverLimit("the layer unpacks to more than %d bytes", u.limit)
	}
	return n, err
}

// contents is what an archive has. It bounds what is kept in memory.
type contents struct {
	root          *folder
	entries, made int // entries of the archive; files and folders that they make, with the folders that their paths imply
	names         int // bytes
}

// count adds one to a number of entries, files or folders.
func count(of *int) error {
	if *of++; *of > plan.DefaultLimits.Files {
		return store.OverLimit("the layer has more than %d files and folders", plan.DefaultLimits.Files)
	}
	return nil
}

// folder is a folder of a layer: a *folder or a file by each name.
type folder struct{ entries map[string]any }

type file struct {
	mode string
	id   plan.ID
}

const (
	modeFile       = "100644"
	modeExecutable = "100755"
	modeLink       = "120000"
	modeFolder     = "40000"
)

// add adds an entry of an archive.
func (c *contents) add(h *tar.Header, content io.Reader, into *store.Importer) error {
	if err := count(&c.entries); err != nil {
		return err
	}
	if c.names += len(h.Name); c.names > maxNames {
		return store.OverLimit("the names in the layer have more than %d bytes", maxNames)
	}
	if h.Typeflag == tar.TypeXGlobalHeader { // the comment of git archive
		return nil
	}
	path, err := plan.ParsePath(h.Name)
	if err != nil {
		return inLayer(err)
	}
	if isSparse(h) {
		return failure.New(v1alpha1.ReasonUnsupportedRepository, "%s in the layer is a sparse file: make the archive without --sparse, and push again", failure.Quote(h.Name))
	}
	switch h.Typeflag {
	case tar.TypeDir:
		_, err := c.folderAt(path.Rel())
		return err
	case tar.TypeReg:
		one := file{mode: modeFile}
		if h.Mode&0o100 != 0 {
			one.mode = modeExecutable
		}
		one.id, err = into.Blob(h.Size, content)
		if failure.Is(err, v1alpha1.ReasonLimitExceeded) {
			err = failure.New(v1alpha1.ReasonLimitExceeded, "%s in the layer: %w", failure.Quote(h.Name), err)
		}
		if err != nil {
			return err
		}
		return c.put(path.Rel(), one)
	case tar.TypeSymlink: // a file of git like others: the sync refuses it if a mapping brings it
		if len(h.Linkname) > maxLink {
			return store.OverLimit("the symbolic link %s of the layer has a target of %d bytes", failure.Quote(h.Name), len(h.Linkname))
		}
		id, err := into.Blob(int64(len(h.Linkname)), strings.NewReader(h.Linkname))
		if err != nil {
			return err
		}
		return c.put(path.Rel(), file{modeLink, id})
	}
	return failure.New(v1alpha1.ReasonUnsafePath, "%s in the layer is neither a file, a folder nor a symbolic link (tar type %s): remove it, and push again", failure.Quote(h.Name), strconv.QuoteRune(rune(h.Typeflag)))
}

// isSparse reports whether a few bytes of the archive stand for a file of any size.
func isSparse(h *tar.Header) bool {
	for name := range h.PAXRecords {
		if strings.HasPrefix(name, "GNU.sparse.") {
			return true
		}
	}
	return h.Typeflag == tar.TypeGNUSparse
}

func inLayer(err error) error {
	if e, ok := errors.AsType[*failure.Error](err); ok {
		return failure.New(e.Reason, "in the layer, %w", err)
	}
	return err
}

// folderAt returns the folder at a path, "" for the root, and creates it if it is missing.
func (c *contents) folderAt(path string) (*folder, error) {
	if path == "" {
		return c.root, nil
	}
	at := c.root
	for name := range strings.SplitSeq(path, "/") {
		if at.entries == nil {
			at.entries = map[string]any{}
		}
		next, exists := at.entries[name]
		if !exists {
			if err := count(&c.made); err != nil {
				return nil, err
			}
			next = &folder{}
			at.entries[name] = next
		}
		inner, ok := next.(*folder)
		if !ok {
			return nil, twice(path)
		}
		at = inner
	}
	return at, nil
}

func twice(path string) error {
	return failure.New(v1alpha1.ReasonUnsafePath, "%s is twice in the layer: push it again with one file of this name", failure.Quote(path))
}

func (c *contents) put(path string, one file) error {
	dir, name := "", path
	if i := strings.LastIndexByte(path, '/'); i >= 0 {
		dir, name = path[:i], path[i+1:]
	}
	if name == "" {
		return failure.New(v1alpha1.ReasonUnsafePath, "the root of the layer is a file or a symbolic link: push the folder that has the files")
	}
	in, err := c.folderAt(dir)
	if err != nil {
		return err
	}
	if err := count(&c.made); err != nil {
		return err
	}
	if _, exists := in.entries[name]; exists {
		return twice(path)
	}
	if in.entries == nil {
		in.entries = map[string]any{}
	}
	in.entries[name] = one
	return nil
}

// write adds the trees of the folder. Git has no empty folders, except the root.
func (f *folder) write(into *store.Importer) (plan.ID, error) {
	ordered := map[string]file{} // by the name that counts for the order
	for name, entry := range f.entries {
		switch e := entry.(type) {
		case file:
			ordered[name] = e
		case *folder:
			if !e.holdsFiles() {
				continue
			}
			id, err := e.write(into)
			if err != nil {
				return plan.ID{}, err
			}
			ordered[name+"/"] = file{modeFolder, id}
		}
	}
	var b bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(ordered)) {
		e := ordered[name]
		fmt.Fprintf(&b, "%s %s\x00", e.mode, strings.TrimSuffix(name, "/"))
		b.Write(e.id[:])
	}
	return into.Tree(b.Bytes())
}

func (f *folder) holdsFiles() bool {
	for _, entry := range f.entries {
		if inner, ok := entry.(*folder); !ok || inner.holdsFiles() {
			return true
		}
	}
	return false
}

// shown lists the annotations of a manifest that the message of the commit shows, with their names there.
var shown = [...]struct{ name, annotation string }{
	{"Source", "org.opencontainers.image.source"},
	{"Revision", "org.opencontainers.image.revision"},
	{"Created", "org.opencontainers.image.created"},
}

const (
	maxShown     = 256 // bytes of an annotation in a message
	author       = "OCI artifact <>"
	digestHeader = "Artifact: "
)

// commitText returns the content of the commit of an artifact. It depends on nothing else, and must never change: gateways compare commit ids.
func commitText(a Artifact, tree plan.ID) []byte {
	at := int64(0)
	if created, err := time.Parse(time.RFC3339, a.annotations["org.opencontainers.image.created"]); err == nil {
		at = max(created.Unix(), 0)
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "tree %s\nauthor %s %d +0000\ncommitter %s %d +0000\n\nImport %s\n\n%s%s\n", tree, author, at, author, at, a.Digest[:19], digestHeader, a.Digest)
	for _, s := range shown {
		if value := a.annotations[s.annotation]; value != "" {
			fmt.Fprintf(&b, "%s: %s\n", s.name, value)
		}
	}
	return b.Bytes()
}

// oneLine makes an annotation safe to print.
func oneLine(s string) string {
	return failure.Cut(strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, s[:min(len(s), 4*maxShown)]), maxShown)
}

// digestIn returns the digest in the text of a commit of an artifact, or "" for the text of another commit.
func digestIn(text []byte) string {
	for line := range bytes.Lines(text) {
		if d, ok := strings.CutPrefix(strings.TrimSpace(string(line)), digestHeader); ok && syntax.IsDigest(d) {
			return d
		}
	}
	return ""
}
