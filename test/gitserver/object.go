package gitserver

import (
	"bytes"
	"compress/zlib"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
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
		err = replaceFile(path, loose.Bytes(), 0o444)
	}
	if err != nil {
		r.t.Fatalf("write a %s: %v", kind, err)
	}
	return id
}

// replaceFile writes a file under another name and renames it, because a git server may read beside it.
func replaceFile(path string, content []byte, mode fs.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), "tmp_obj_")
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
	if err := replaceFile(filepath.Join(r.Dir, "refs", "heads", filepath.FromSlash(r.branch)), []byte(commit+"\n"), 0o644); err != nil {
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
