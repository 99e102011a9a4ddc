package gitserver

import (
	"bytes"
	"crypto/sha1"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// TB is the part of testing.TB that a Repo needs, so that programs other than tests can implement it.
type TB interface {
	Helper()
	Fatalf(format string, args ...any)
}

// Try calls do outside a test, and returns the failure of a Repo as an error.
func Try(do func(TB)) (err error) {
	defer func() {
		if r := recover(); r != nil {
			f, ok := r.(fatalError)
			if !ok {
				panic(r)
			}
			err = f.error
		}
	}()
	do(panicTB{})
	return nil
}

// fatalError is the panic value of a failed call.
type fatalError struct{ error }

type panicTB struct{}

func (panicTB) Helper()                           {}
func (panicTB) Fatalf(format string, args ...any) { panic(fatalError{fmt.Errorf(format, args...)}) }

// Repo is a bare repository for writing, without a work tree. Every commit has the same author, and dates that start at
// 2025-01-01 and advance by a minute, so that the same calls give the same ids on every machine. Errors end the test.
type Repo struct {
	// Dir is the repository's directory.
	Dir string

	t          TB
	branch     string
	commitTime int64 // of the next commit, seconds since 1970

	newHash func() hash.Hash  // of object ids
	trees   map[string][]byte // the tree objects that this Repo wrote or read, by id
	roots   map[string]string // the trees of commits
}

// firstCommitTime is 2025-01-01 00:00 UTC.
const firstCommitTime = 1735689600

// NewRepo creates an empty bare repository in dir with the branch main. Further arguments are passed to git init
// ("--object-format=sha256").
func NewRepo(t TB, dir string, initArgs ...string) *Repo {
	t.Helper()
	r := &Repo{
		Dir: dir, t: t, branch: "main", commitTime: firstCommitTime, newHash: sha1.New, trees: map[string][]byte{}, roots: map[string]string{},
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatalf("make the repository: %v", err)
	}
	if len(initArgs) == 0 {
		if err := initBare(dir); err != nil {
			t.Fatalf("make the repository: %v", err)
		}
		return r
	}
	if slices.Contains(initArgs, "--object-format=sha256") {
		r.newHash = sha256.New
	}
	args := append([]string{"-c", "init.defaultBranch=main", "init", "-q", "--bare", "--template="}, initArgs...)
	r.Git(append(args, ".")...)
	return r
}

// Env returns an environment that isolates git: no configuration of the machine or the user, no prompt, no locale.
// Tests that run git as a client use it, too.
func Env() []string {
	return []string{
		"PATH=" + os.Getenv("PATH"),
		"HOME=/nonexistent",
		"LC_ALL=C",
		"GIT_CONFIG_NOSYSTEM=1",
		"GIT_CONFIG_GLOBAL=" + os.DevNull,
		"GIT_TERMINAL_PROMPT=0",
		"GIT_AUTHOR_NAME=Test", "GIT_AUTHOR_EMAIL=test@example.com",
		"GIT_COMMITTER_NAME=Test", "GIT_COMMITTER_EMAIL=test@example.com",
	}
}

// configEnv returns the environment variables that give git these settings, each a key and a value.
func configEnv(settings ...[2]string) []string {
	env := []string{fmt.Sprintf("GIT_CONFIG_COUNT=%d", len(settings))}
	for i, s := range settings {
		env = append(env, fmt.Sprintf("GIT_CONFIG_KEY_%d=%s", i, s[0]), fmt.Sprintf("GIT_CONFIG_VALUE_%d=%s", i, s[1]))
	}
	return env
}

// Git runs git in the repository and returns its output without the last newline.
func (r *Repo) Git(args ...string) string {
	r.t.Helper()
	return strings.TrimSuffix(string(r.pipe(nil, args...)), "\n")
}

// pipe runs git with a standard input.
func (r *Repo) pipe(stdin []byte, args ...string) []byte {
	r.t.Helper()
	cmd := exec.Command("git", args...)
	date := fmt.Sprintf("%d +0000", r.commitTime)
	cmd.Dir = r.Dir
	cmd.Env = append(Env(), "GIT_AUTHOR_DATE="+date, "GIT_COMMITTER_DATE="+date)
	cmd.Stdin = bytes.NewReader(stdin)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		r.t.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, stderr.String())
	}
	return stdout.Bytes()
}

// Head returns the commit at the tip of the current branch, or "" before the first one.
func (r *Repo) Head() string {
	r.t.Helper()
	return r.Tip(r.branch)
}

// Tip returns the commit at the tip of a branch, or "" if there is no such branch.
func (r *Repo) Tip(branch string) string {
	r.t.Helper()
	if loose, err := os.ReadFile(filepath.Join(r.Dir, "refs", "heads", branch)); err == nil { // as git reads it, without a process
		return strings.TrimSpace(string(loose))
	}
	if _, err := os.Stat(filepath.Join(r.Dir, "packed-refs")); errors.Is(err, fs.ErrNotExist) {
		return ""
	}
	return r.Git("for-each-ref", "--format=%(objectname)", "refs/heads/"+branch)
}

// Content returns the content of a file in a commit.
func (r *Repo) Content(commit, path string) string {
	r.t.Helper()
	return string(r.pipe(nil, "cat-file", "blob", commit+":"+path))
}

// Checkout makes another branch the current one, which receives commits. It need not exist yet.
func (r *Repo) Checkout(branch string) { r.branch = branch }

// Branch creates a branch at a commit, or force-moves it there.
func (r *Repo) Branch(name, commit string) {
	r.t.Helper()
	r.Git("update-ref", "refs/heads/"+name, commit)
}

// ForcePush moves the current branch to any commit, including an older or an unrelated one.
func (r *Repo) ForcePush(commit string) {
	r.t.Helper()
	r.Branch(r.branch, commit)
}

// DeleteBranch deletes a branch.
func (r *Repo) DeleteBranch(name string) {
	r.t.Helper()
	r.Git("update-ref", "-d", "refs/heads/"+name)
}

// Tag creates or moves a lightweight tag.
func (r *Repo) Tag(name, commit string) {
	r.t.Helper()
	r.Git("update-ref", "refs/tags/"+name, commit)
}

// AnnotatedTag creates or moves an annotated tag and returns the id of the tag object.
func (r *Repo) AnnotatedTag(name, commit string) string {
	r.t.Helper()
	r.Git("tag", "-f", "-a", "-m", name, name, commit)
	return r.Git("rev-parse", "refs/tags/"+name)
}

// DeleteTag deletes a tag.
func (r *Repo) DeleteTag(name string) {
	r.t.Helper()
	r.Git("update-ref", "-d", "refs/tags/"+name)
}

// Repack puts all objects into one pack with deltas, like the nightly maintenance of a host.
func (r *Repo) Repack() {
	r.t.Helper()
	r.Git("repack", "-a", "-d", "-q")
}
