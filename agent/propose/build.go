// Package propose turns changes that users made on a gateway into a commit for git. It decides which changed files form a proposal, where
// git has them, and whether they may leave the gateway; and it follows the proposal from the push to the end of its pull request.
//
// Two rules hold for every proposal. What it proposes renders, on this gateway, to exactly what is on the disk: otherwise the merge
// would change files again. And it is all or nothing: if one file is refused, nothing is pushed, because half of a change is not what
// the user saved.
package propose

import (
	"cmp"
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
	"stoker.io/stoker/agent/plan/relpath"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/bound"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/pieces"
)

// Base is what a proposal starts from: the commit that the gateway runs, and the state of the data directory.
type Base struct {
	Commit   plan.ID
	Root     plan.ID // the root tree of Commit
	Objects  repo.Trees
	Desired  *desired.Tree // what the commit and the rules ask for
	Manifest plan.Manifest
	State    plan.State
	// RootOf returns the root tree of an earlier commit, or an error if the object cache does not have it.
	RootOf func(commit plan.ID) (plan.ID, error)
	// CommitText fetches the bytes of the commit at the tip of a ref.
	CommitText func(ctx context.Context, commit plan.ID) ([]byte, error)
}

// Limits bound a proposal.
type Limits struct {
	FileBytes, TotalBytes int64
	Files                 int
}

// Guard decides what must not leave the gateway. It returns names of rules, never text of a file.
type Guard struct {
	// Path checks a path in the data directory and the path that the file would get in git.
	Path func(path string, source plan.Path) (rule string, denied bool)
	// Content checks the bytes that git would get.
	Content func(content io.Reader) (rule string, found bool)
}

// File is a changed file of a proposal.
type File struct {
	Path   string    // in the data directory
	Source plan.Path // in git
	Op     Op
	Exec   bool
	ID     plan.ID // of the new content in git; zero if the file is deleted
	// Actor and At say who changed the resource and when, according to its resource.json.
	Actor, At string
	// overwritten is set if an earlier push of this proposal has the file, and a sync has overwritten it on the gateway since.
	overwritten bool
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
	// Digest identifies the changes. It does not depend on the base commit, nor on who saved them when.
	Digest string
	// Draft is the tree with the changes; nil if a file was refused or nothing has changed.
	Draft *repo.Draft
	edits []repo.Edit // of Files
	// stats are those of all files that were compared, from before the comparison.
	stats map[string]plan.Stat
	// contentDropped is set if withoutContent dropped Draft and edits to save memory.
	contentDropped bool
}

// Build collects the changes of the resources that contain the candidates, which are paths in the data directory. If files change
// meanwhile, the error is errChanging.
func Build(b Base, candidates []string, limits Limits, guard Guard) (*Changes, error) {
	x := newBuilder(b, limits, guard)
	units := x.units(candidates)
	if err := x.checkSizes(units); err != nil {
		return nil, err
	}
	if len(x.out.Refused) > 0 { // files that are too large, or too many: none is read
		units = nil
	}
	for _, u := range units {
		if err := x.addUnit(u); err != nil {
			return nil, err
		}
	}
	slices.SortFunc(x.out.Files, func(a, b File) int { return strings.Compare(a.Path, b.Path) })
	x.checkLimits()
	if err := x.makeDraft(); err != nil {
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
	limits     Limits
	guard      Guard
	attributes attributes

	out     *Changes
	content map[string]pieces.Bytes // new content in git, by File.Path
	edits   map[plan.Path]repo.Edit
	ids     map[plan.Path]plan.ID // of the content of edits
	total   int64                 // bytes of the new content
}

func newBuilder(b Base, limits Limits, guard Guard) *builder {
	return &builder{
		Base: b, limits: limits, guard: guard, out: &Changes{stats: map[string]plan.Stat{}}, content: map[string]pieces.Bytes{}, edits: map[plan.Path]repo.Edit{}, ids: map[plan.Path]plan.ID{},
		attributes: attributes{b.Objects, b.Root, map[string][]gitattributes.MatchAttribute{}},
	}
}

// unit is a resource directory, or a single file in a directory without a resource.json.
type unit struct {
	dir  string
	file string // "" for the whole directory
}

// units returns the units of the candidates, sorted and without duplicates.
func (x *builder) units(candidates []string) []unit {
	var list []unit
	for _, p := range candidates {
		u := unit{relpath.Parent(p), p}
		if x.isResource(u.dir) {
			u.file = ""
		}
		list = append(list, u)
	}
	slices.SortFunc(list, func(a, b unit) int { return cmp.Or(strings.Compare(a.dir, b.dir), strings.Compare(a.file, b.file)) })
	return slices.Compact(list)
}

// isResource reports whether a directory has a resource.json, in git or on the disk.
func (x *builder) isResource(dir string) bool {
	p := path.Join(dir, resource.File)
	if st, err := x.State.Stat(p); err == nil && st.Kind == plan.File {
		return true
	}
	_, found, err := x.Desired.Lookup(p)
	return err == nil && found
}

// change is one path that may differ.
type change struct {
	path   string
	want   desired.File
	wanted bool
	stat   plan.Stat
	id     plan.ID // on the disk
	noise  bool    // the bytes differ, but the meaning does not
}

func (c *change) deleted() bool { return c.stat.Kind == plan.Missing }

// addUnit adds the changed files of a unit. It adds none if only the thumbnail, or only files of the same meaning, differ.
func (x *builder) addUnit(u unit) error {
	paths, err := x.paths(u)
	if err != nil {
		return err
	}
	var changed []change
	significant := false
	for _, p := range paths {
		c, differs, err := x.compare(p)
		if err != nil {
			return err
		}
		if differs {
			changed = append(changed, c)
			significant = significant || !c.noise && path.Base(c.path) != resource.Thumbnail
		}
	}
	if !significant {
		return nil
	}
	for _, signed := range []bool{false, true} { // the signature covers the other files as git will have them, so they come first
		for _, c := range changed {
			if (path.Base(c.path) == resource.File) != signed {
				continue
			}
			if err := x.add(c); err != nil {
				return err
			}
		}
	}
	x.setActor(u)
	return nil
}

// checkSizes refuses the proposal if the files that may differ exceed a limit, before the agent reads one: hashing them could take hours.
func (x *builder) checkSizes(units []unit) error {
	var files int
	var total int64
	for _, u := range units {
		paths, err := x.paths(u)
		if err != nil {
			return err
		}
		for _, p := range paths {
			st, err := x.State.Stat(p)
			if err != nil {
				return fmt.Errorf("stat %s: %w", p, err)
			}
			if rec, owned, err := x.Manifest.Get(p); err != nil {
				return err
			} else if st.Kind != plan.File || owned && rec.Size == st.Size && rec.Mtime == st.Mtime {
				continue // the record has its hash
			}
			files, total = files+1, total+st.Size
			switch {
			case st.Size > x.limits.FileBytes:
				x.refuse(p, v1alpha1.ReasonLimitExceeded, fmt.Sprintf("has %d bytes, more than guardrails.maxFileSize", st.Size))
				return nil
			case files > x.limits.Files:
				x.refuse(p, v1alpha1.ReasonLimitExceeded, fmt.Sprintf("is one of more files than guardrails.maxFilesPerPR (%d)", x.limits.Files))
				return nil
			case total > x.limits.TotalBytes:
				x.refuse(p, v1alpha1.ReasonLimitExceeded, "and the other changed files have more bytes than guardrails.maxTotalSize")
				return nil
			}
		}
	}
	return nil
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
		if relpath.Parent(f.Path) == u.dir && f.Stat.Kind == plan.File {
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
	x.out.stats[p] = c.stat
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
	rec, owned, err := x.Manifest.Get(p)
	if err != nil {
		return c, false, err
	}
	if owned && rec.Size == c.stat.Size && rec.Mtime == c.stat.Mtime {
		c.id = rec.Have
	} else if c.id, err = x.State.BlobID(p); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return c, false, errChanging
		}
		return c, false, fmt.Errorf("hash %s: %w", p, err)
	}
	modeDiffers := c.stat.Exec != c.want.Exec && !c.stat.NoModes
	if c.wanted && c.id == c.want.ID && !modeDiffers {
		return c, false, nil
	}
	if c.wanted && !modeDiffers {
		c.noise = x.sameMeaning(c)
	}
	return c, true, nil
}

// errChanging reports that files changed while they were read. The next attempt reads them again.
var errChanging = errors.New("the files are changing")

// sameMeaning reports whether a changed JSON file means the same as git's. In a resource.json, the modification and its signature do not
// count.
func (x *builder) sameMeaning(c change) bool {
	same := resource.Comparison(c.path)
	if same == nil || c.stat.Size > resource.MaxCompared {
		return false
	}
	current, err := x.State.Read(c.path, resource.MaxCompared)
	if err != nil {
		return false
	}
	git := bound.NewBuffer(resource.MaxCompared, errFull)
	if _, err := x.Desired.WriteBlob(git, c.want.ID); err != nil {
		return false
	}
	ok, err := same(current, git.Bytes())
	return err == nil && ok
}

// add adds one changed file, or refuses it.
func (x *builder) add(c change) error {
	src, ok, err := x.source(c)
	if err != nil || !ok {
		return err
	}
	if c.deleted() {
		x.put(c, src, nil, plan.ID{})
		return nil
	}
	content, ok, err := x.read(c)
	if err != nil || !ok {
		return err
	}
	id := c.id
	if signed := path.Base(c.path) == resource.File; signed || src.Rendered() {
		git, err := x.Desired.Invert(c.path, src, content.Join())
		if err != nil {
			x.refuse(c.path, failure.Reason(err, v1alpha1.ReasonChangesRefused), err.Error())
			return nil
		}
		if signed {
			git = x.resign(relpath.Parent(c.path), git)
		}
		content, id = pieces.Of(git), plan.BlobID(git)
	}
	x.put(c, src, content, id)
	return nil
}

// resign returns a resource.json with a signature over the other files of dir as git will have them. They differ from those on the disk if
// git patches them. If the gateway's signature does not match the files on the disk, resign returns raw.
func (x *builder) resign(dir string, raw []byte) []byte {
	return desired.Resign(raw,
		func(w io.Writer, name string) error { return x.writeCurrent(w, path.Join(dir, name)) },
		func(w io.Writer, name string) error { return x.writeProposed(w, path.Join(dir, name)) })
}

// source returns where git has a changed file, or would have a new one. It returns false if it refuses the path.
func (x *builder) source(c change) (desired.Source, bool, error) {
	src, ok, err := x.Desired.Source(c.path)
	switch {
	case err != nil:
		x.refuse(c.path, failure.Reason(err, v1alpha1.ReasonChangesRefused), err.Error())
		return src, false, nil
	case !ok:
		x.refuse(c.path, v1alpha1.ReasonChangesRefused, "no mapping brings files there")
		return src, false, nil
	}
	if rule, denied := x.guard.Path(c.path, src.Path); denied {
		x.refuse(c.path, v1alpha1.ReasonChangesRefused, "must not leave the gateway ("+rule+")")
		return src, false, nil
	}
	inLFS, err := x.attributes.lfs(src.Path)
	if inLFS {
		x.refuse(c.path, v1alpha1.ReasonChangesRefused, "git keeps it in LFS: change it in git")
	}
	return src, err == nil && !inLFS, err
}

// read reads a file, which must still have the bytes that compare saw. It returns false if it refuses the file for its size.
func (x *builder) read(c change) (pieces.Bytes, bool, error) {
	if c.stat.Size > x.limits.FileBytes {
		x.refuse(c.path, v1alpha1.ReasonLimitExceeded, fmt.Sprintf("has %d bytes, more than guardrails.maxFileSize", c.stat.Size))
		return nil, false, nil
	}
	var content pieces.Buffer
	h := plan.NewBlob(c.stat.Size)
	err := x.State.CopyFile(bound.NewWriter(io.MultiWriter(&content, h), c.stat.Size, func() error { return errChanging }), c.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, false, fmt.Errorf("read %s: %w", c.path, err)
	}
	if err != nil || plan.ID(h.Sum(nil)) != c.id { // removed, or changed
		return nil, false, errChanging
	}
	return content.Bytes, true, nil
}

// put adds a change. git is the content that git must get, and id its blob id; both are zero if the file was deleted.
func (x *builder) put(c change, src desired.Source, git pieces.Bytes, id plan.ID) {
	f := File{Path: c.path, Source: src.Path, Op: Modified, Exec: c.stat.Exec, ID: id}
	if c.stat.NoModes {
		f.Exec = src.Exec
	}
	switch {
	case c.deleted() && src.ID.IsZero():
		return // neither the gateway nor git has the file
	case c.deleted():
		f.Op, f.Exec = Deleted, false
	case src.ID.IsZero():
		f.Op = Added
	}
	if !c.deleted() {
		if rule, found := x.guard.Content(git.Reader()); found {
			x.refuse(c.path, v1alpha1.ReasonChangesRefused, "contains what looks like a secret ("+rule+")")
			return
		}
		x.total += git.Len()
	}
	edit := repo.Edit{Path: string(f.Source), Delete: c.deleted(), Content: git, Exec: f.Exec}
	if other, ok := x.edits[f.Source]; ok && (x.ids[f.Source] != id || other.Exec != edit.Exec) {
		x.refuse(c.path, v1alpha1.ReasonChangesRefused, fmt.Sprintf("has the same source in git as another file (%s), and the two were changed differently", f.Source))
		return
	}
	x.out.Files = append(x.out.Files, f)
	if x.total > x.limits.TotalBytes || len(x.out.Files) > x.limits.Files {
		return // checkLimits refuses the proposal, so do not hold more content in memory
	}
	x.edits[f.Source], x.ids[f.Source] = edit, id
	if !c.deleted() {
		x.content[c.path] = git
	}
}

func (x *builder) refuse(p string, reason v1alpha1.Reason, why string) {
	x.out.Refused = append(x.out.Refused, Refusal{p, reason, why})
}

// writeCurrent writes a file as it is on the disk.
func (x *builder) writeCurrent(w io.Writer, p string) error {
	return x.State.CopyFile(bound.NewWriter(w, x.limits.FileBytes, errFull), p)
}

// writeProposed writes a file as git will have it. It must not be called for a file that the proposal deletes.
func (x *builder) writeProposed(w io.Writer, p string) error {
	if b, ok := x.content[p]; ok {
		_, err := b.WriteTo(w)
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
