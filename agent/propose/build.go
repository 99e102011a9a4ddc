// Package propose turns changes that users made on a gateway into a commit for git. It decides which changed files form a proposal, where
// git has them, and whether they may leave the gateway; and it follows the proposal from the push to the end of its pull request.
//
// Two rules hold for every proposal. What it proposes renders, on this gateway, to exactly what is on the disk: otherwise the merge
// would change files again. And it is all or nothing: if one file is refused, nothing is pushed, because half of a change is not what
// the user saved.
package propose

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/go-git/go-git/v5/plumbing/format/gitattributes"

	"stoker.io/stoker/agent/ignition/resource"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/plan/desired"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// Base is the commit on the disk, and the disk.
type Base struct {
	Commit   plan.ID
	Root     plan.ID // its tree
	Objects  repo.Trees
	Desired  *desired.Tree // what the commit and the rules ask for
	Manifest plan.Manifest
	State    plan.State
	// RootOf returns the tree of an earlier commit, or an error if it is not at hand.
	RootOf func(commit plan.ID) (plan.ID, error)
	// CommitText fetches the bytes of the commit at the tip of a ref.
	CommitText func(ctx context.Context, commit plan.ID) ([]byte, error)
}

// Limits bound a proposal.
type Limits struct {
	FileBytes, TotalBytes int64
	Files                 int
}

// Guard decides what must not leave the gateway. The rules that it returns are names, never text of a file.
type Guard struct {
	// Path judges a path in the data directory and the path in git that it would get.
	Path func(path string, source plan.Path) (rule string, denied bool)
	// Content judges the bytes that would get into git.
	Content func(path string, content []byte) (rule string, found bool)
}

// File is a changed file of a proposal.
type File struct {
	Path   string    // in the data directory
	Source plan.Path // in git
	Op     Op
	Exec   bool
	ID     plan.ID // of the new content in git; zero if the file is deleted
	// Modification is who changed the resource and when, as its resource.json says.
	Actor, At string
	// kept reports that an earlier push of this proposal brought the file, and that a sync has overwritten it on the gateway since.
	kept bool
}

// Op is what a proposal does to a file.
type Op string

// The operations.
const (
	Added    Op = "added"
	Modified Op = "modified"
	Deleted  Op = "deleted"
)

// Refusal says why a file is not proposed.
type Refusal struct {
	Path   string
	Reason v1alpha1.Reason
	Why    string
}

// Changes are the changed files of a gateway, ready for a commit or refused.
type Changes struct {
	Files   []File // sorted by Path
	Refused []Refusal
	// Digest identifies the changes, whatever the commit they are based on, and whenever and by whom they were saved.
	Digest string
	// Draft is the tree with the changes; nil if something is refused or nothing has changed.
	Draft *repo.Draft
	edits []repo.Edit
	// bare reports that Draft and edits were dropped.
	bare bool
}

// withoutContent returns c without what only a push needs.
func (c *Changes) withoutContent() *Changes {
	return &Changes{Files: c.Files, Refused: c.Refused, Digest: c.Digest, bare: true}
}

// maxJSON bounds the files that are compared by meaning.
const maxJSON = 4 << 20 // bytes

// Build makes a proposal of the resources that the candidates, paths in the data directory, belong to.
func Build(b Base, candidates []string, limits Limits, guard Guard) (*Changes, error) {
	x := &builder{Base: b, limits: limits, guard: guard, out: &Changes{}, content: map[string][]byte{}, edits: map[plan.Path]repo.Edit{},
		attributes: attributes{b.Objects, b.Root, map[string][]gitattributes.MatchAttribute{}}}
	for _, unit := range x.units(candidates) {
		if err := x.unit(unit); err != nil {
			return nil, err
		}
	}
	if x.failed != nil {
		return nil, x.failed
	}
	slices.SortFunc(x.out.Files, func(a, b File) int { return strings.Compare(a.Path, b.Path) })
	x.checkAll()
	if err := x.draft(); err != nil {
		return nil, err
	}
	slices.SortFunc(x.out.Refused, func(a, b Refusal) int { return strings.Compare(a.Path, b.Path) })
	x.out.Digest = x.digest()
	if len(x.out.Refused) > 0 {
		x.out.Draft = nil
	}
	return x.out, nil
}

type builder struct {
	Base
	limits  Limits
	guard   Guard
	out     *Changes
	content map[string][]byte // by Path: the new content in git
	edits   map[plan.Path]repo.Edit
	total   int64

	attributes attributes
	failed     error // what keeps the builder from an answer
}

// unit is a resource directory, or a single file beside no resource.json.
type unit struct {
	dir  string
	file string // "" for the whole directory
}

// units returns what the candidates belong to, each once.
func (x *builder) units(candidates []string) []unit {
	seen := map[unit]bool{}
	var list []unit
	for _, p := range candidates {
		dir := parent(p)
		u := unit{dir, p}
		if x.isResource(dir) {
			u.file = ""
		}
		if !seen[u] {
			seen[u] = true
			list = append(list, u)
		}
	}
	slices.SortFunc(list, func(a, b unit) int { return strings.Compare(a.dir+"\x00"+a.file, b.dir+"\x00"+b.file) })
	return list
}

// isResource reports whether a directory is that of a resource, in git or on the disk.
func (x *builder) isResource(dir string) bool {
	at := path.Join(dir, resource.File)
	if st, err := x.State.Stat(at); err == nil && st.Kind == plan.File {
		return true
	}
	_, found, err := x.Desired.Lookup(at)
	return err == nil && found
}

// change is one path that may differ.
type change struct {
	path   string
	want   desired.File
	wanted bool
	stat   plan.Stat
	id     plan.ID // on the disk
	noise  bool    // it differs, and means the same
}

// unit adds the changed files of a unit. A thumbnail, and files that only mean the same, are part of it if another file has changed.
func (x *builder) unit(u unit) error {
	paths, err := x.paths(u)
	if err != nil {
		return err
	}
	var changed []change
	meant := false
	for _, p := range paths {
		c, differs, err := x.compare(p)
		if err != nil {
			return err
		}
		if differs {
			changed = append(changed, c)
			meant = meant || !c.noise && base(c.path) != resource.Thumbnail
		}
	}
	if !meant {
		return nil
	}
	now := func(w io.Writer, name string) error { return x.now(w, path.Join(u.dir, name)) }
	for _, c := range changed {
		if base(c.path) != resource.File {
			if err := x.add(c); err != nil {
				return err
			}
		}
	}
	for _, c := range changed { // the signature is over the other files as git has them
		if base(c.path) == resource.File {
			if err := x.addSigned(c, u.dir, now); err != nil {
				return err
			}
		}
	}
	return x.attribute(u)
}

// paths returns the paths of a unit, in git and on the disk.
func (x *builder) paths(u unit) ([]string, error) {
	if u.file != "" {
		return []string{u.file}, nil
	}
	var list []string
	siblings, err := x.Desired.List(u.dir)
	if err != nil {
		return nil, err
	}
	for _, w := range siblings.Files() {
		list = append(list, w.Path)
	}
	for f, err := range x.State.Walk(u.dir) {
		if err != nil {
			return nil, err
		}
		if parent(f.Path) == u.dir && f.Stat.Kind == plan.File {
			list = append(list, f.Path)
		}
	}
	slices.Sort(list)
	return slices.Compact(list), nil
}

// compare compares what git wants at a path with the disk.
func (x *builder) compare(p string) (change, bool, error) {
	c := change{path: p}
	var err error
	if c.want, c.wanted, err = x.Desired.Lookup(p); err != nil {
		return c, false, err
	}
	if c.stat, err = x.State.Stat(p); err != nil {
		return c, false, fmt.Errorf("stat %s: %w", p, err)
	}
	switch c.stat.Kind {
	case plan.Missing:
		return c, c.wanted, nil
	case plan.File:
	default:
		if c.wanted {
			x.refuse(p, v1alpha1.ReasonUnsafePath, "is not a regular file on the gateway")
		}
		return c, false, nil
	}
	if c.id, err = x.State.BlobID(p); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return c, false, errChanging
		}
		return c, false, fmt.Errorf("hash %s: %w", p, err)
	}
	exec := c.stat.Exec != c.want.Exec && !c.stat.NoModes
	if c.wanted && c.id == c.want.ID && !exec {
		return c, false, nil
	}
	if c.wanted && !exec {
		c.noise = x.sameMeaning(c)
	}
	return c, true, nil
}

// errChanging means that the files change while they are read. The next attempt reads them again.
var errChanging = errors.New("the files are changing")

// sameMeaning reports whether a changed file only means the same: a resource.json that was signed again, JSON of the same meaning.
func (x *builder) sameMeaning(c change) bool {
	name := base(c.path)
	if !strings.HasSuffix(name, ".json") || c.stat.Size > maxJSON {
		return false
	}
	now, err := x.State.Read(c.path, maxJSON)
	if err != nil {
		return false
	}
	var git bytes.Buffer
	if _, err := x.Desired.WriteBlob(&git, c.want.ID); err != nil {
		return false
	}
	same := resource.SameJSON
	if name == resource.File {
		same = resource.SameButModification
	}
	ok, err := same(now, git.Bytes())
	return err == nil && ok
}

// add adds one changed file.
func (x *builder) add(c change) error {
	src, ok := x.source(c)
	if !ok {
		return nil
	}
	if c.stat.Kind == plan.Missing {
		x.put(c, src, nil)
		return nil
	}
	content, err := x.read(c)
	if err != nil || content == nil {
		return err
	}
	git, err := x.Desired.Invert(c.path, src, content)
	if err != nil {
		x.refuse(c.path, failure.Reason(err, v1alpha1.ReasonChangesRefused), err.Error())
		return nil
	}
	x.put(c, src, git)
	return nil
}

// addSigned adds a resource.json. If git has other bytes beside it than the gateway, it is signed for those.
func (x *builder) addSigned(c change, dir string, now func(io.Writer, string) error) error {
	if c.stat.Kind == plan.Missing {
		return x.add(c)
	}
	src, ok := x.source(c)
	if !ok {
		return nil
	}
	content, err := x.read(c)
	if err != nil || content == nil {
		return err
	}
	git, err := x.Desired.Invert(c.path, src, content)
	if err != nil {
		x.refuse(c.path, failure.Reason(err, v1alpha1.ReasonChangesRefused), err.Error())
		return nil
	}
	git = desired.Resign(git, now, func(w io.Writer, name string) error { return x.inGit(w, path.Join(dir, name)) })
	x.put(c, src, git)
	return nil
}

// source returns where a change goes, and checks the guard's rules for paths.
func (x *builder) source(c change) (desired.Source, bool) {
	src, ok, err := x.Desired.Source(c.path)
	switch {
	case err != nil:
		x.refuse(c.path, failure.Reason(err, v1alpha1.ReasonChangesRefused), err.Error())
		return src, false
	case !ok:
		x.refuse(c.path, v1alpha1.ReasonChangesRefused, "no mapping brings files there")
		return src, false
	}
	if rule, denied := x.guard.Path(c.path, src.Path); denied {
		x.refuse(c.path, v1alpha1.ReasonChangesRefused, "must not leave the gateway ("+rule+")")
		return src, false
	}
	tracked, err := x.attributes.lfs(src.Path)
	switch {
	case err != nil:
		x.failed = errors.Join(x.failed, err)
		return src, false
	case tracked:
		x.refuse(c.path, v1alpha1.ReasonChangesRefused, "git keeps it in LFS: change it in git")
		return src, false
	}
	return src, true
}

// read reads a file as the comparison saw it. It returns nil if a limit refuses the file.
func (x *builder) read(c change) ([]byte, error) {
	if c.stat.Size > x.limits.FileBytes {
		x.refuse(c.path, v1alpha1.ReasonLimitExceeded, fmt.Sprintf("has %d bytes, more than guardrails.maxFileSize", c.stat.Size))
		return nil, nil
	}
	content, err := x.State.Read(c.path, x.limits.FileBytes)
	if err != nil {
		return nil, errors.Join(errChanging, err)
	}
	if blobID(content) != c.id {
		return nil, errChanging
	}
	if content == nil {
		content = []byte{}
	}
	return content, nil
}

// put adds a change with its content in git; nil deletes.
func (x *builder) put(c change, src desired.Source, git []byte) {
	f := File{Path: c.path, Source: src.Path, Op: Modified, Exec: c.stat.Exec}
	if c.stat.NoModes {
		f.Exec = src.Exec
	}
	switch {
	case git == nil && src.ID.IsZero():
		return // neither has it
	case git == nil:
		f.Op, f.Exec = Deleted, false
	case src.ID.IsZero():
		f.Op = Added
	}
	if git != nil {
		if rule, found := x.guard.Content(c.path, git); found {
			x.refuse(c.path, v1alpha1.ReasonChangesRefused, "holds what looks like a secret ("+rule+")")
			return
		}
		f.ID = blobID(git)
		x.total += int64(len(git))
		x.content[c.path] = git
	}
	if other, twice := x.edits[f.Source]; twice && (other.Delete != (git == nil) || !bytes.Equal(other.Content, git)) {
		x.refuse(c.path, v1alpha1.ReasonChangesRefused, fmt.Sprintf("git has one file for it and for another one (%s), and they were changed differently", f.Source))
		return
	}
	x.edits[f.Source] = repo.Edit{Path: string(f.Source), Delete: git == nil, Content: git, Exec: f.Exec}
	x.out.Files = append(x.out.Files, f)
}

func (x *builder) refuse(p string, reason v1alpha1.Reason, why string) {
	x.out.Refused = append(x.out.Refused, Refusal{p, reason, why})
}

// now writes a file as it is on the disk.
func (x *builder) now(w io.Writer, p string) error {
	b, err := x.State.Read(p, x.limits.FileBytes)
	if err != nil {
		return err
	}
	_, err = w.Write(b)
	return err
}

// inGit writes a file as git will have it.
func (x *builder) inGit(w io.Writer, p string) error {
	if b, ok := x.content[p]; ok {
		_, err := w.Write(b)
		return err
	}
	src, ok, err := x.Desired.Source(p)
	if err == nil && (!ok || src.ID.IsZero()) {
		err = fs.ErrNotExist
	}
	if err != nil {
		return err
	}
	_, err = x.Objects.WriteBlob(w, src.ID)
	return err
}
