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

// change collects the commands of one commit for git fast-import.
type change struct {
	repo *Repo
	out  bytes.Buffer
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
	return func(c *change) { fmt.Fprintf(&c.out, "M 160000 %s %s\n", commit, quote(path)) }
}

// Delete deletes a file or a whole directory.
func Delete(path string) Edit {
	return func(c *change) { fmt.Fprintf(&c.out, "D %s\n", quote(path)) }
}

// Rename moves a file or a whole directory.
func Rename(from, to string) Edit {
	return func(c *change) { fmt.Fprintf(&c.out, "R %s %s\n", quote(from), quote(to)) }
}

// Chmod sets or clears the executable bit of a file of the last commit.
func Chmod(path string, exec bool) Edit {
	return func(c *change) {
		mode := "100644"
		if exec {
			mode = "100755"
		}
		blob := c.repo.Git("rev-parse", "refs/heads/"+c.repo.branch+":"+path)
		fmt.Fprintf(&c.out, "M %s %s %s\n", mode, blob, quote(path))
	}
}

// Graft puts a tree object (see RawTree) at a path, for names that no git program would write.
func Graft(path, tree string) Edit {
	return func(c *change) { fmt.Fprintf(&c.out, "M 040000 %s %s\n", tree, quote(path)) }
}

func (c *change) inline(mode, path, content string) {
	fmt.Fprintf(&c.out, "M %s inline %s\ndata %d\n%s\n", mode, quote(path), len(content), content)
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
		edits = append(edits, func(c *change) { fmt.Fprintf(&c.out, "M %s %s %s\n", parts[1], parts[3], quote(path)) })
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

func (r *Repo) commit(message string, merges []string, edits []Edit) string {
	r.t.Helper()
	c := &change{repo: r}
	fmt.Fprintf(&c.out, "commit refs/heads/%s\nmark :1\nauthor Test <test@example.com> %d +0000\ncommitter Test <test@example.com> %d +0000\ndata %d\n%s\n",
		r.branch, r.commitTime, r.commitTime, len(message), message)
	if head := r.Head(); head != "" {
		fmt.Fprintf(&c.out, "from %s\n", head)
	}
	for _, m := range merges {
		fmt.Fprintf(&c.out, "merge %s\n", m)
	}
	for _, edit := range edits {
		edit(c)
	}
	c.out.WriteString("\nget-mark :1\ndone\n")
	commit := r.pipe(c.out.Bytes(), "fast-import", "--quiet", "--done", "--date-format=raw")
	r.commitTime += 60
	return strings.TrimSpace(string(commit))
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
	return strings.TrimSpace(string(r.pipe(tree.Bytes(), "hash-object", "-t", "tree", "-w", "--literally", "--stdin")))
}

// Blob writes a blob and returns its id.
func (r *Repo) Blob(content string) string {
	r.t.Helper()
	return strings.TrimSpace(string(r.pipe([]byte(content), "hash-object", "-w", "--stdin")))
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
