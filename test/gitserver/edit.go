package gitserver

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
)

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

// maxLoose is the number of edits above which git writes a commit: into a pack, as fast-import does by default from that number of objects on.
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
