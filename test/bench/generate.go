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

// size is a synthetic repository.
type size struct {
	name  string
	files int
	mean  int // bytes of a file that holds data; about half of the files are short metadata
}

var sizes = []size{
	{"T", 60, 2_000}, // for the bench's own test
	{"S", 500, 16_000},
	{"M", 10_000, 30_000},
	{"L", 100_000, 3_400},
}

const (
	// generation names the content: another one ends the use of what lies in the cache.
	generation = "v1"
	// maxRounds is how many fresh commits there are of each kind, so that no round meets objects of the round before.
	maxRounds = 9
	// past is the number of commits before the base. Every one rewrites a few files.
	past = 200
)

// Refs of a generated repository. Each round has a commit of its own, and all lie on one line: base, one/1 … one/9,
// merge/1 … merge/9 and so on. So nothing ever goes back, and each fetch brings what no contestant has.
//
//	refs/bench/base     the tip of past commits
//	refs/bench/one/N    one file changed
//	refs/bench/merge/N  the merge of a branch that left the line before all past commits, and changed one file
//	refs/bench/hundred/N  a hundred files changed
//	refs/bench/late/N   one file changed
const baseRef = "refs/bench/base"

// generate returns the repository of a size, from the cache or made now.
func generate(ctx context.Context, cache string, s size) (dir string, err error) {
	dir = filepath.Join(cache, generation+"-"+s.name+".git")
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	making, err := os.MkdirTemp(cache, "making-")
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(making)) }()
	if err := git(ctx, making, nil, "-c", "init.defaultBranch=main", "init", "-q", "--bare"); err != nil {
		return "", err
	}
	line := &history{writer: newWriter(1, s.mean), paths: layout(s.files)}
	if err := fastImport(ctx, making, line.writeBase); err != nil {
		return "", err
	}
	// A host packs at night; what was pushed since lies beside that pack.
	if err := git(ctx, making, nil, "repack", "-a", "-d", "-q", "-b"); err != nil {
		return "", err
	}
	if err := fastImport(ctx, making, line.writeRounds); err != nil {
		return "", err
	}
	return dir, os.Rename(making, dir)
}

// fastImport runs write with the input of git fast-import.
func fastImport(ctx context.Context, dir string, write func(w *bufio.Writer)) error {
	reader, pipe := io.Pipe()
	go func() {
		w := bufio.NewWriterSize(pipe, 1<<20)
		write(w)
		pipe.CloseWithError(w.Flush()) // a nil error is the end of the input
	}()
	err := git(ctx, dir, reader, "fast-import", "--quiet", "--max-pack-size=4g")
	return errors.Join(err, reader.Close()) // which ends the writer where git stopped reading
}

// history writes commits for fast-import.
type history struct {
	*writer
	paths  []path
	commit int // commits so far
	next   int // file of the next change
	tip    string
}

const firstStamp = 1735689600 // 2025-01-01

// add writes a commit with these changes and returns its mark.
func (h *history) add(w *bufio.Writer, ref, from, merged string, changes []string) string {
	h.commit++
	mark := fmt.Sprintf(":%d", h.commit)
	fmt.Fprintf(w, "commit %s\nmark %s\ncommitter Bench <bench@example.com> %d +0000\ndata 6\ncommit\n", ref, mark, firstStamp+60*h.commit)
	if from != "" {
		fmt.Fprintf(w, "from %s\n", from)
	}
	if merged != "" {
		fmt.Fprintf(w, "merge %s\n", merged)
	}
	for _, c := range changes {
		fmt.Fprint(w, c)
	}
	fmt.Fprintln(w)
	return mark
}

func (h *history) file(p path) string {
	content := h.content(p)
	return fmt.Sprintf("M 100644 inline %s%s\ndata %d\n%s\n", mapped, p.name, len(content), content)
}

// some changes n data files, spread over the whole tree.
func (h *history) some(n int) []string {
	var changes []string
	for len(changes) < n {
		h.next = (h.next + 7919) % len(h.paths) // a prime: every file's turn comes
		if p := h.paths[h.next]; p.kind <= pictureFile {
			changes = append(changes, h.file(p))
		}
	}
	return changes
}

// writeBase writes the first commit with all files, and the past.
func (h *history) writeBase(w *bufio.Writer) {
	var all []string
	for _, p := range h.paths {
		all = append(all, h.file(p))
	}
	for i := range 20 {
		content := h.lines("%s %s is no part of any gateway: %s, %s, %d.\n")
		all = append(all, fmt.Sprintf("M 100644 inline docs/page-%d.md\ndata %d\n%s\n", i, len(content), content))
	}
	h.tip = h.add(w, baseRef, "", "", all)
	fmt.Fprintf(w, "reset refs/bench/root\nfrom %s\n\n", h.tip)
	for range past {
		h.tip = h.add(w, baseRef, h.tip, "", h.some(5))
	}
}

// writeRounds writes the commits that are measured.
func (h *history) writeRounds(w *bufio.Writer) {
	from := baseRef + "^0"
	line := func(name string, files int) {
		for i := 1; i <= maxRounds; i++ {
			from = h.add(w, fmt.Sprintf("refs/bench/%s/%d", name, i), from, "", h.some(files))
		}
	}
	line("one", 1)
	for i := 1; i <= maxRounds; i++ {
		change := h.some(1)
		side := h.add(w, fmt.Sprintf("refs/bench/side/%d", i), "refs/bench/root^0", "", change)
		from = h.add(w, fmt.Sprintf("refs/bench/merge/%d", i), from, side, change)
	}
	line("hundred", 100)
	line("late", 1)
}

// git runs git alone, as gitserver does, and makes what it says part of the error.
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
