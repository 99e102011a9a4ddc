package repository

import (
	"bytes"
	"compress/zlib"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"stoker.io/stoker/test/gitserver"
)

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

// Packing returns how long the server has answered requests for a pack since the last push.
func (r *Remote) Packing() (sum time.Duration) {
	for _, q := range r.Server.Requests() {
		if q.Service == gitserver.UploadPack {
			sum += q.Duration
		}
	}
	return sum
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
