package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"stoker.io/stoker/test/gitserver"
)

const (
	// generation names the version of the content. A new one invalidates the cache.
	generation = "v4"
	// maxRounds is the number of commits of each kind, so that no round has objects of an earlier one.
	maxRounds = 9
)

// baseRef is the first of the refs of a generated repository. Each round has its own commit, and all are on one line:
// base, one/1 … one/9, merge/1 … merge/9 and so on. So nothing ever goes back, and each fetch brings objects that no
// contestant has.
//
//	refs/bench/base     the tip of the past commits, each of which rewrites a few files
//	refs/bench/one/N    one file changed
//	refs/bench/merge/N  the merge of a branch that left the line before all past commits, and changed one file
//	refs/bench/hundred/N  fifty resources saved, which are about a hundred files
//	refs/bench/late/N   one file changed
//	refs/bench/aged/N   one file changed; as many as the size says
const baseRef = "refs/bench/base"

// generate returns the repository of a size, from the cache or newly generated.
func generate(ctx context.Context, cache string, s size) (dir string, err error) {
	dir = filepath.Join(cache, generation+"-"+s.name+".git")
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
	if err := git(ctx, temp, nil, "-c", "init.defaultBranch=main", "init", "-q", "--bare"); err != nil {
		return "", err
	}
	line := &history{writer: newWriter(1, s.mean), size: s, paths: append(layout(s.files-s.binaries), binaries(s.binaries)...)}
	if err := fastImport(ctx, temp, line.writeBase); err != nil {
		return "", err
	}
	// As on a git host, the old commits are in one pack, and later pushes are not.
	if err := git(ctx, temp, nil, "-c", "core.bigFileThreshold=8m", "repack", "-a", "-d", "-q", "-b"); err != nil {
		return "", err
	}
	if err := fastImport(ctx, temp, line.writeRounds); err != nil {
		return "", err
	}
	return dir, os.Rename(temp, dir)
}

// fastImport runs git fast-import with the output of write.
func fastImport(ctx context.Context, dir string, write func(w *bufio.Writer)) error {
	reader, pipe := io.Pipe()
	go func() {
		w := bufio.NewWriterSize(pipe, 1<<20)
		write(w)
		pipe.CloseWithError(w.Flush()) // a nil error is the end of the input
	}()
	err := git(ctx, dir, reader, "fast-import", "--quiet", "--max-pack-size=4g")
	return errors.Join(err, reader.Close()) // ends the writer if git stopped reading
}

// history writes commits for fast-import.
type history struct {
	*writer
	size   size
	paths  []path
	commit int // commits so far
	next   int // index of the next changed file
	tip    string
}

const firstCommitTime = 1735689600 // 2025-01-01

// add writes the header of a commit, whose files must follow, and returns its mark.
func (h *history) add(w *bufio.Writer, ref, from, merged string) string {
	h.commit++
	mark := fmt.Sprintf(":%d", h.commit)
	fmt.Fprintf(w, "commit %s\nmark %s\ncommitter Bench <bench@example.com> %d +0000\ndata 6\ncommit\n", ref, mark, firstCommitTime+60*h.commit)
	if from != "" {
		fmt.Fprintf(w, "from %s\n", from)
	}
	if merged != "" {
		fmt.Fprintf(w, "merge %s\n", merged)
	}
	return mark
}

func writeFile(w *bufio.Writer, name, content string) {
	fmt.Fprintf(w, "M 100644 inline %s\ndata %d\n%s\n", name, len(content), content)
}

// pick returns the next data file to change; successive ones are spread over the whole tree.
func (h *history) pick() path {
	for {
		h.next = (h.next + 7919) % len(h.paths) // a prime, so that every file gets its turn
		if p := h.paths[h.next]; p.kind <= pictureFile {
			return p
		}
	}
}

// change writes a new version of n files, like a user editing by hand.
func (h *history) change(w *bufio.Writer, n int) {
	for range n {
		p := h.pick()
		writeFile(w, mapped+p.name, h.content(p))
	}
}

// save writes a new version of n files with their resource.json, like a Designer.
func (h *history) save(w *bufio.Writer, n int) {
	for range n {
		h.change(w, 1)
		if i := h.next + 1; i < len(h.paths) && h.paths[i].kind == resourceFile {
			writeFile(w, mapped+h.paths[i].name, h.content(h.paths[i]))
		}
	}
}

// writeBase writes the first commit with all files, and the past commits.
func (h *history) writeBase(w *bufio.Writer) {
	h.tip = h.add(w, baseRef, "", "")
	for _, p := range h.paths {
		writeFile(w, mapped+p.name, h.content(p))
	}
	for i := range 20 {
		writeFile(w, fmt.Sprintf("docs/page-%d.md", i), h.lines("%s %s is no part of any gateway: %s, %s, %d.\n"))
	}
	fmt.Fprintf(w, "reset refs/bench/root\nfrom %s\n\n", h.tip)
	for range h.size.past {
		h.tip = h.add(w, baseRef, h.tip, "")
		h.save(w, 5)
	}
}

// writeRounds writes the measured commits.
func (h *history) writeRounds(w *bufio.Writer) {
	from := baseRef + "^0"
	line := func(name string, commits, files int, write func(*bufio.Writer, int)) {
		for i := 1; i <= commits; i++ {
			from = h.add(w, fmt.Sprintf("refs/bench/%s/%d", name, i), from, "")
			write(w, files)
		}
	}
	line("one", maxRounds, 1, h.change)
	for i := 1; i <= maxRounds; i++ {
		p := h.pick()
		content := h.content(p)
		side := h.add(w, fmt.Sprintf("refs/bench/side/%d", i), "refs/bench/root^0", "")
		writeFile(w, mapped+p.name, content)
		from = h.add(w, fmt.Sprintf("refs/bench/merge/%d", i), from, side)
		writeFile(w, mapped+p.name, content)
	}
	line("hundred", maxRounds, 50, h.save)
	line("late", maxRounds, 1, h.change)
	line("aged", h.size.commits, 1, h.change)
}

// git runs git in an isolated environment like gitserver, with its output in the error.
func git(ctx context.Context, dir string, stdin io.Reader, args ...string) error {
	_, err := gitOutput(ctx, dir, stdin, args...)
	return err
}

func gitOutput(ctx context.Context, dir string, stdin io.Reader, args ...string) (string, error) {
	var stderr strings.Builder
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir, cmd.Env, cmd.Stdin, cmd.Stderr = dir, gitserver.Env(), stdin, &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("git %s: %w: %s", args[0], err, strings.TrimSpace(stderr.String()))
	}
	return strings.TrimSpace(string(out)), nil
}
