package gitserver

import (
	"bytes"
	"compress/zlib"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Tests make thousands of small commits, and on many machines a process costs more than all the work that git does for one of them. So a
// Repo writes the objects of small commits itself. TestCommitsAsGit compares them with those of git fast-import.

// initBare makes an empty bare repository with the branch main, as git init does.
func initBare(dir string) error {
	for _, sub := range []string{"objects/info", "objects/pack", "refs/heads", "refs/tags"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			return err
		}
	}
	config := "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = true\n"
	return errors.Join(
		os.WriteFile(filepath.Join(dir, "config"), []byte(config), 0o644),
		os.WriteFile(filepath.Join(dir, "HEAD"), []byte("ref: refs/heads/main\n"), 0o644))
}

// writeObject writes a loose object and returns its id.
func (r *Repo) writeObject(kind string, content []byte) string {
	r.t.Helper()
	header := fmt.Appendf(nil, "%s %d\x00", kind, len(content))
	h := r.newHash()
	h.Write(header)
	h.Write(content)
	id := hex.EncodeToString(h.Sum(nil))
	if kind == "tree" {
		r.trees[id] = content
	}
	path := filepath.Join(r.Dir, "objects", id[:2], id[2:])
	if _, err := os.Lstat(path); err == nil {
		return id
	}
	var loose bytes.Buffer
	z, err := zlib.NewWriterLevel(&loose, zlib.BestSpeed)
	if err == nil {
		_, err = z.Write(append(header, content...))
	}
	if err == nil {
		err = z.Close()
	}
	if err == nil {
		err = r.replaceFile(path, loose.Bytes(), 0o444)
	}
	if err != nil {
		r.t.Fatalf("write a %s: %v", kind, err)
	}
	return id
}

// replaceFile writes a file under another name and renames it, because a git server may read beside it. The
// other name is not in refs, where it would be a ref.
func (r *Repo) replaceFile(path string, content []byte, mode fs.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(r.Dir, "tmp_obj_")
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err = errors.Join(err, f.Chmod(mode), f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}

// writeCommit writes a commit to the current branch and returns its id.
func (r *Repo) writeCommit(message string, parents []string, ops []op) string {
	r.t.Helper()
	root := &treeNode{mode: "40000", kids: map[string]*treeNode{}}
	if len(parents) > 0 {
		root = &treeNode{mode: "40000", id: r.rootOf(parents[0])}
	}
	for _, o := range ops {
		switch o.do {
		case "D":
			r.take(root, o.path)
		case "R":
			moved := r.take(root, o.path)
			if moved == nil {
				r.t.Fatalf("rename %s: no such file", o.path)
			}
			r.place(root, o.to, moved)
		default:
			if o.id == "" {
				o.id = r.writeObject("blob", []byte(o.content))
			}
			r.place(root, o.path, &treeNode{mode: strings.TrimPrefix(o.mode, "0"), id: o.id})
		}
	}
	tree := r.writeTree(root)
	var b bytes.Buffer
	fmt.Fprintf(&b, "tree %s\n", tree)
	for _, p := range parents {
		fmt.Fprintf(&b, "parent %s\n", p)
	}
	person := fmt.Sprintf("Test <test@example.com> %d +0000", r.commitTime)
	fmt.Fprintf(&b, "author %s\ncommitter %s\n\n%s", person, person, message)
	commit := r.writeObject("commit", b.Bytes())
	r.roots[commit] = tree
	if err := r.replaceFile(filepath.Join(r.Dir, "refs", "heads", filepath.FromSlash(r.branch)), []byte(commit+"\n"), 0o644); err != nil {
		r.t.Fatalf("move the branch %s: %v", r.branch, err)
	}
	return commit
}

// treeNode is an entry of a tree. A directory that no edit has touched has an id and no kids.
type treeNode struct {
	mode, id string
	kids     map[string]*treeNode
}

// rootOf returns the id of a commit's tree.
func (r *Repo) rootOf(commit string) string {
	r.t.Helper()
	if r.roots[commit] == "" {
		r.roots[commit] = r.Git("rev-parse", commit+"^{tree}")
	}
	return r.roots[commit]
}

// open reads the entries of a directory.
func (r *Repo) open(n *treeNode) {
	r.t.Helper()
	if n.kids != nil {
		return
	}
	content, ok := r.trees[n.id]
	if !ok {
		content = r.pipe(nil, "cat-file", "tree", n.id)
		r.trees[n.id] = content
	}
	n.kids = map[string]*treeNode{}
	for size := r.newHash().Size(); len(content) > 0; {
		head, rest, _ := bytes.Cut(content, []byte{0})
		mode, name, _ := strings.Cut(string(head), " ")
		n.kids[name] = &treeNode{mode: mode, id: hex.EncodeToString(rest[:size])}
		content = rest[size:]
	}
}

// place puts an entry at a path. A file on the way becomes a directory.
func (r *Repo) place(dir *treeNode, path string, entry *treeNode) {
	r.t.Helper()
	r.open(dir)
	name, rest, deeper := strings.Cut(path, "/")
	if !deeper {
		dir.kids[name] = entry
		return
	}
	sub := dir.kids[name]
	if sub == nil || sub.mode != "40000" {
		sub = &treeNode{mode: "40000", kids: map[string]*treeNode{}}
		dir.kids[name] = sub
	}
	r.place(sub, rest, entry)
}

// take removes the entry at a path, and directories that become empty. It returns nil if there is no entry.
func (r *Repo) take(dir *treeNode, path string) *treeNode {
	r.t.Helper()
	r.open(dir)
	name, rest, deeper := strings.Cut(path, "/")
	entry := dir.kids[name]
	if entry == nil {
		return nil
	}
	if !deeper {
		delete(dir.kids, name)
		return entry
	}
	if entry.mode != "40000" {
		return nil
	}
	taken := r.take(entry, rest)
	if taken != nil && len(entry.kids) == 0 {
		delete(dir.kids, name)
	}
	return taken
}

// writeTree writes a directory and what is below it, and returns its id.
func (r *Repo) writeTree(n *treeNode) string {
	r.t.Helper()
	if n.kids == nil {
		return n.id
	}
	names := make([]string, 0, len(n.kids))
	for name, kid := range n.kids {
		if kid.mode == "40000" {
			name += "/" // git sorts directories as if their names ended so
		}
		names = append(names, name)
	}
	slices.Sort(names)
	var b bytes.Buffer
	for _, name := range names {
		name = strings.TrimSuffix(name, "/")
		kid := n.kids[name]
		if kid.mode == "40000" {
			kid.id = r.writeTree(kid)
		}
		raw, err := hex.DecodeString(kid.id)
		if err != nil {
			r.t.Fatalf("object id %q of %s: %v", kid.id, name, err)
		}
		fmt.Fprintf(&b, "%s %s\x00%s", kid.mode, name, raw)
	}
	return r.writeObject("tree", b.Bytes())
}

// Edit is one change of a commit. Edits are applied in order.
type Edit func(c *change)

// change collects the edits of one commit.
type change struct {
	repo *Repo
	ops  []op
}

// op is one command of git fast-import: a file modify ("M") with an object or a content, a delete ("D") or a rename ("R").
type op struct {
	do, path, to string
	mode, id     string
	content      string // unless id is set
}

// Write creates or replaces a file.
func Write(path, content string) Edit {
	return func(c *change) { c.inline("100644", path, content) }
}

// Files creates or replaces files; the keys are paths.
func Files(files map[string]string) Edit {
	return func(c *change) {
		for _, path := range slices.Sorted(maps.Keys(files)) {
			c.inline("100644", path, files[path])
		}
	}
}

// Script creates or replaces a file with the executable bit.
func Script(path, content string) Edit {
	return func(c *change) { c.inline("100755", path, content) }
}

// Symlink creates a symbolic link. The target is not checked.
func Symlink(path, target string) Edit {
	return func(c *change) { c.inline("120000", path, target) }
}

// Submodule adds an entry for a commit of another repository.
func Submodule(path, commit string) Edit {
	return func(c *change) { c.put("160000", path, commit) }
}

// Delete deletes a file or a whole directory.
func Delete(path string) Edit {
	return func(c *change) { c.ops = append(c.ops, op{do: "D", path: path}) }
}

// Rename moves a file or a whole directory.
func Rename(from, to string) Edit {
	return func(c *change) { c.ops = append(c.ops, op{do: "R", path: from, to: to}) }
}

// Chmod sets or clears the executable bit of a file of the last commit.
func Chmod(path string, exec bool) Edit {
	return func(c *change) {
		mode := "100644"
		if exec {
			mode = "100755"
		}
		blob := c.repo.Git("rev-parse", "refs/heads/"+c.repo.branch+":"+path)
		c.put(mode, path, blob)
	}
}

// Graft puts a tree object (see RawTree) at a path, for names that no git program would write.
func Graft(path, tree string) Edit {
	return func(c *change) { c.put("040000", path, tree) }
}

func (c *change) inline(mode, path, content string) {
	c.ops = append(c.ops, op{do: "M", mode: mode, path: path, content: content})
}

func (c *change) put(mode, path, id string) {
	c.ops = append(c.ops, op{do: "M", mode: mode, path: path, id: id})
}

// quote quotes a path for fast-import. It may contain any byte.
func quote(path string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, c := range []byte(path) {
		if c < ' ' || c == '"' || c == '\\' || c >= 0x7f {
			fmt.Fprintf(&b, "\\%03o", c)
		} else {
			b.WriteByte(c)
		}
	}
	b.WriteByte('"')
	return b.String()
}

// Commit adds a commit to the current branch and returns its id.
func (r *Repo) Commit(message string, edits ...Edit) string {
	r.t.Helper()
	return r.commit(message, nil, edits)
}

// SignedCommit is Commit with a signature by the ssh key in a file, as git commit -S makes it.
func (r *Repo) SignedCommit(key, message string, edits ...Edit) string {
	r.t.Helper()
	branch, parents := r.branch, []string{}
	if head := r.Head(); head != "" {
		r.Branch("unsigned", head)
		parents = []string{"-p", head}
	}
	r.Checkout("unsigned")
	tree := r.commit(message, nil, edits) + "^{tree}"
	r.Checkout(branch)
	commit := r.Git(append([]string{"-c", "gpg.format=ssh", "-c", "user.signingKey=" + key, "commit-tree", "-S", "-m", message, tree}, parents...)...)
	r.ForcePush(commit)
	r.DeleteBranch("unsigned")
	return commit
}

// Merge merges another branch into the current one and returns the commit's id. Files that the other branch changed
// since the merge base win; there are no conflicts.
func (r *Repo) Merge(message, branch string) string {
	r.t.Helper()
	head, other := r.Head(), r.Git("rev-parse", "refs/heads/"+branch)
	base := r.Git("merge-base", head, other)
	fields := strings.Split(r.Git("diff-tree", "-r", "-z", "--no-renames", base, other), "\x00")
	var edits []Edit
	for i := 0; i+1 < len(fields); i += 2 {
		parts, path := strings.Fields(fields[i]), fields[i+1] // ":<mode> <new mode> <id> <new id> <status>"
		if parts[4] == "D" {
			edits = append(edits, Delete(path))
			continue
		}
		edits = append(edits, func(c *change) { c.put(parts[1], path, parts[3]) })
	}
	return r.commit(message, []string{other}, edits)
}

// Orphan makes a commit without a parent, moves the current branch to it and returns its id. Its history is unrelated
// to the old one.
func (r *Repo) Orphan(message string, edits ...Edit) string {
	r.t.Helper()
	if r.Head() != "" {
		r.DeleteBranch(r.branch)
	}
	return r.commit(message, nil, edits)
}

// maxLoose is the number of edits above which git itself writes a commit. fast-import writes that many objects into a pack by default.
const maxLoose = 100

func (r *Repo) commit(message string, merges []string, edits []Edit) string {
	r.t.Helper()
	c := &change{repo: r}
	for _, edit := range edits {
		edit(c)
	}
	var parents []string
	if head := r.Head(); head != "" {
		parents = append(parents, head)
	}
	parents = append(parents, merges...)
	var commit string
	if len(c.ops) > maxLoose {
		commit = r.fastImport(message, parents, len(merges), c.ops)
	} else {
		commit = r.writeCommit(message, parents, c.ops)
	}
	r.commitTime += 60
	return commit
}

// fastImport lets git make a commit.
func (r *Repo) fastImport(message string, parents []string, merges int, ops []op) string {
	r.t.Helper()
	var out bytes.Buffer
	fmt.Fprintf(&out, "commit refs/heads/%s\nmark :1\nauthor Test <test@example.com> %d +0000\ncommitter Test <test@example.com> %d +0000\ndata %d\n%s\n",
		r.branch, r.commitTime, r.commitTime, len(message), message)
	for i, parent := range parents {
		word := "merge"
		if i < len(parents)-merges {
			word = "from"
		}
		fmt.Fprintf(&out, "%s %s\n", word, parent)
	}
	for _, o := range ops {
		switch {
		case o.do == "R":
			fmt.Fprintf(&out, "R %s %s\n", quote(o.path), quote(o.to))
		case o.do == "D":
			fmt.Fprintf(&out, "D %s\n", quote(o.path))
		case o.id != "":
			fmt.Fprintf(&out, "M %s %s %s\n", o.mode, o.id, quote(o.path))
		default:
			fmt.Fprintf(&out, "M %s inline %s\ndata %d\n%s\n", o.mode, quote(o.path), len(o.content), o.content)
		}
	}
	out.WriteString("\nget-mark :1\ndone\n")
	return strings.TrimSpace(string(r.pipe(out.Bytes(), "fast-import", "--quiet", "--done", "--date-format=raw")))
}

// RawEntry is one entry of a RawTree. It is not checked: the name may be "..", ".git", contain a newline or invalid
// UTF-8, and the mode may be unknown to git.
type RawEntry struct {
	Mode string // "100644", "40000", "120000", "160000"
	Name string
	// Content is the content of a file or the target of a link; ID names an existing object instead.
	Content, ID string
}

// RawTree writes a tree object with exactly these entries in this order and returns its id.
func (r *Repo) RawTree(entries ...RawEntry) string {
	r.t.Helper()
	var tree bytes.Buffer
	for _, e := range entries {
		id := e.ID
		if id == "" {
			id = r.Blob(e.Content)
		}
		raw, err := hex.DecodeString(id)
		if err != nil {
			r.t.Fatalf("raw tree: entry %q: object id %q: %v", e.Name, id, err)
		}
		fmt.Fprintf(&tree, "%s %s\x00%s", e.Mode, e.Name, raw)
	}
	return r.writeObject("tree", tree.Bytes())
}

// Blob writes a blob and returns its id.
func (r *Repo) Blob(content string) string {
	r.t.Helper()
	return r.writeObject("blob", []byte(content))
}

// CommitTree adds a commit with this tree to the current branch and returns its id.
func (r *Repo) CommitTree(message, tree string) string {
	r.t.Helper()
	args := []string{"commit-tree", "-m", message, tree}
	if head := r.Head(); head != "" {
		args = append(args, "-p", head)
	}
	commit := r.Git(args...)
	r.commitTime += 60
	r.ForcePush(commit)
	return commit
}
