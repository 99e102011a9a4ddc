// Package repository is the synthetic Ignition repository that all contestants sync: Generate writes it with a commit for
// each round, and Remote serves it as a git host.
package repository

import (
	"bufio"
	"bytes"
	"compress/zlib"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"stoker.io/stoker/test/gitserver"
)

const (
	// generation names the version of the content. A new one invalidates the cache.
	generation = "v4"
	// MaxRounds is the number of commits of each kind, so that no round has objects of an earlier one.
	MaxRounds = 9
)

// Base is the first of the refs of a generated repository. Each round has its own commit, and all are on one line:
// base, one/1 … one/9, merge/1 … merge/9 and so on. So nothing ever goes back, and each fetch brings objects that no
// contestant has.
//
//	refs/bench/base     the tip of the past commits, each of which rewrites a few files
//	refs/bench/one/N    one file changed
//	refs/bench/merge/N  the merge of a branch that left the line before all past commits, and changed one file
//	refs/bench/hundred/N  fifty resources saved, which are about a hundred files
//	refs/bench/late/N   one file changed
//
// Beside the line are refs/bench/root, its first commit, and refs/bench/side/N, the branch that merge/N merges.
const Base = "refs/bench/base"

// Size is what a repository has. The cache knows it by its name.
type Size struct {
	Name     string
	Files    int
	Mean     int // mean size in bytes of a data file; about half of the files are short metadata
	Binaries int // how many of the files are large (BinaryBytes)
	Past     int // commits before the measured ones
}

// Generate returns the repository of a size, from the cache or newly generated.
func Generate(ctx context.Context, cache string, s Size) (dir string, err error) {
	dir = filepath.Join(cache, generation+"-"+s.Name+".git")
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	temp, err := os.MkdirTemp(cache, "making-")
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(temp)) }()
	if err := Git(ctx, temp, nil, "-c", "init.defaultBranch=main", "init", "-q", "--bare"); err != nil {
		return "", err
	}
	line := &history{Writer: NewWriter(1, s.Mean), size: s, paths: append(Layout(s.Files-s.Binaries), binaries(s.Binaries)...)}
	if err := FastImport(ctx, temp, line.writeBase); err != nil {
		return "", err
	}
	// As on a git host, the old commits are in one pack, and later pushes are not.
	if err := Git(ctx, temp, nil, "-c", "core.bigFileThreshold=8m", "repack", "-a", "-d", "-q", "-b"); err != nil {
		return "", err
	}
	if err := FastImport(ctx, temp, line.writeRounds); err != nil {
		return "", err
	}
	return dir, os.Rename(temp, dir)
}

// FastImport runs git fast-import with the output of write.
func FastImport(ctx context.Context, dir string, write func(w *bufio.Writer)) error {
	reader, pipe := io.Pipe()
	go func() {
		w := bufio.NewWriterSize(pipe, 1<<20)
		write(w)
		pipe.CloseWithError(w.Flush()) // a nil error is the end of the input
	}()
	err := Git(ctx, dir, reader, "fast-import", "--quiet", "--max-pack-size=4g")
	return errors.Join(err, reader.Close()) // ends the writer if git stopped reading
}

// history writes commits for fast-import.
type history struct {
	*Writer
	size   Size
	paths  []Path
	commit int // commits so far
	picked int // index of the file that pick returned last
	tip    string
}

// FirstCommitTime is the time of the first commit, in seconds.
const FirstCommitTime = 1735689600 // 2025-01-01

// add writes the header of a commit, whose files must follow, and returns its mark.
func (h *history) add(w *bufio.Writer, ref, from, merged string) string {
	h.commit++
	mark := fmt.Sprintf(":%d", h.commit)
	fmt.Fprintf(w, "commit %s\nmark %s\ncommitter Bench <bench@example.com> %d +0000\ndata 6\ncommit\n", ref, mark, FirstCommitTime+60*h.commit)
	if from != "" {
		fmt.Fprintf(w, "from %s\n", from)
	}
	if merged != "" {
		fmt.Fprintf(w, "merge %s\n", merged)
	}
	return mark
}

// WriteFile writes a file of a commit for fast-import.
func WriteFile(w *bufio.Writer, name, content string) {
	fmt.Fprintf(w, "M 100644 inline %s\ndata %d\n%s\n", name, len(content), content)
}

// pick returns the next data file to change; successive ones are spread over the whole tree.
func (h *history) pick() Path {
	for {
		h.picked = (h.picked + 7919) % len(h.paths) // a prime, so that every file gets its turn
		if p := h.paths[h.picked]; p.Kind <= PictureFile {
			return p
		}
	}
}

// change writes a new version of n files, like a user editing by hand.
func (h *history) change(w *bufio.Writer, n int) {
	for range n {
		p := h.pick()
		WriteFile(w, Mapped+p.Name, h.Content(p))
	}
}

// save writes a new version of n files like a Designer: with the resource.json, if the file has one that follows it in the list.
func (h *history) save(w *bufio.Writer, n int) {
	for range n {
		h.change(w, 1)
		if i := h.picked + 1; i < len(h.paths) && h.paths[i].Kind == ResourceFile {
			WriteFile(w, Mapped+h.paths[i].Name, h.Content(h.paths[i]))
		}
	}
}

// writeBase writes the first commit with all files, and the past commits.
func (h *history) writeBase(w *bufio.Writer) {
	h.tip = h.add(w, Base, "", "")
	for _, p := range h.paths {
		WriteFile(w, Mapped+p.Name, h.Content(p))
	}
	for i := range 20 {
		WriteFile(w, fmt.Sprintf("docs/page-%d.md", i), h.lines("%s %s is not part of any gateway: %s, %s, %d.\n"))
	}
	fmt.Fprintf(w, "reset refs/bench/root\nfrom %s\n\n", h.tip)
	for range h.size.Past {
		h.tip = h.add(w, Base, h.tip, "")
		h.save(w, 5)
	}
}

// writeRounds writes the measured commits.
func (h *history) writeRounds(w *bufio.Writer) {
	from := Base + "^0"
	line := func(name string, commits, files int, write func(*bufio.Writer, int)) {
		for i := 1; i <= commits; i++ {
			from = h.add(w, fmt.Sprintf("refs/bench/%s/%d", name, i), from, "")
			write(w, files)
		}
	}
	line("one", MaxRounds, 1, h.change)
	for i := 1; i <= MaxRounds; i++ {
		p := h.pick()
		content := h.Content(p)
		side := h.add(w, fmt.Sprintf("refs/bench/side/%d", i), "refs/bench/root^0", "")
		WriteFile(w, Mapped+p.Name, content)
		from = h.add(w, fmt.Sprintf("refs/bench/merge/%d", i), from, side)
		WriteFile(w, Mapped+p.Name, content)
	}
	line("hundred", MaxRounds, 50, h.save)
	line("late", MaxRounds, 1, h.change)
}

// Git runs git in an isolated environment like gitserver, with its output in the error.
func Git(ctx context.Context, dir string, stdin io.Reader, args ...string) error {
	_, err := GitOutput(ctx, dir, stdin, args...)
	return err
}

// GitOutput runs git like Git, and returns what it prints.
func GitOutput(ctx context.Context, dir string, stdin io.Reader, args ...string) (string, error) {
	var stderr strings.Builder
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir, cmd.Env, cmd.Stdin, cmd.Stderr = dir, gitserver.Env(), stdin, &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("git %s: %w: %s", args[0], err, strings.TrimSpace(stderr.String()))
	}
	return strings.TrimSpace(string(out)), nil
}

// Remote is the git host: a repository whose branch main moves, sharing the objects of the generated one.
type Remote struct {
	Dir    string // of the bare repository
	Server *gitserver.Server
	Refs   map[string]string // name in the generated repository → commit
}

// NewRemote serves a new repository below root that shares the objects of a generated one. The caller closes its Server.
func NewRemote(ctx context.Context, generated, root string, o gitserver.Options) (*Remote, error) {
	r := &Remote{Dir: filepath.Join(root, "bench", "plant.git"), Refs: map[string]string{}}
	if err := os.MkdirAll(r.Dir, 0o755); err != nil {
		return nil, err
	}
	if err := Git(ctx, r.Dir, nil, "-c", "init.defaultBranch=main", "init", "-q", "--bare"); err != nil {
		return nil, err
	}
	alternates := filepath.Join(r.Dir, "objects", "info", "alternates")
	if err := os.WriteFile(alternates, []byte(filepath.Join(generated, "objects")+"\n"), 0o644); err != nil {
		return nil, err
	}
	list, err := GitOutput(ctx, generated, nil, "for-each-ref", "--format=%(refname) %(objectname)")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(list) {
		name, id, _ := strings.Cut(strings.TrimSpace(line), " ")
		r.Refs[name] = id
	}
	r.Server, err = gitserver.Start(root, o)
	return r, err
}

// URL returns what a client clones.
func (r *Remote) URL() string { return r.Server.URL("bench/plant.git") }

// Commit returns the commit of a round.
func (r *Remote) Commit(line string, round int) string {
	return r.Refs[fmt.Sprintf("refs/bench/%s/%d", line, round)]
}

// Push moves main, and clears the server's log.
func (r *Remote) Push(ctx context.Context, commit string) error {
	defer r.Server.Forget()
	return Git(ctx, r.Dir, nil, "update-ref", "refs/heads/main", commit)
}

// Head returns the commit of main.
func (r *Remote) Head(ctx context.Context) (string, error) {
	return GitOutput(ctx, r.Dir, nil, "rev-parse", "refs/heads/main")
}

// Parent returns the previous commit on the line.
func (r *Remote) Parent(ctx context.Context, commit string) (string, error) {
	return GitOutput(ctx, r.Dir, nil, "rev-parse", commit+"^")
}

// ChangedBytes returns the size of the files that a commit of the line changed.
func (r *Remote) ChangedBytes(ctx context.Context, commit string) (int64, error) {
	list, err := GitOutput(ctx, r.Dir, nil, "diff-tree", "-r", "--no-renames", commit+"^", commit)
	if err != nil {
		return 0, err
	}
	var sum int64
	for line := range strings.Lines(list) {
		size, err := GitOutput(ctx, r.Dir, nil, "cat-file", "-s", strings.Fields(line)[3])
		if err != nil {
			return 0, err
		}
		n, err := strconv.ParseInt(size, 10, 64)
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return sum, nil
}

// DeflatedSize returns the size of the files that a commit changed, each compressed by itself.
func (r *Remote) DeflatedSize(ctx context.Context, commit string) (int64, error) {
	list, err := GitOutput(ctx, r.Dir, nil, "diff-tree", "-r", "--no-renames", commit+"^", commit)
	if err != nil {
		return 0, err
	}
	var sum int64
	for line := range strings.Lines(list) {
		content, err := exec.CommandContext(ctx, "git", "-C", r.Dir, "cat-file", "blob", strings.Fields(line)[3]).Output()
		if err != nil {
			return 0, err
		}
		var b bytes.Buffer
		w := zlib.NewWriter(&b)
		_, err = w.Write(content)
		if err := errors.Join(err, w.Close()); err != nil {
			return 0, err
		}
		sum += int64(b.Len())
	}
	return sum, nil
}
