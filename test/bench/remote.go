package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"stoker.io/stoker/test/gitserver"
)

// remote is the git host: a repository whose branch main moves, sharing the objects of the generated one.
type remote struct {
	dir    string
	server *gitserver.Server
	refs   map[string]string // name in the generated repository → commit
}

func newRemote(ctx context.Context, generated, root string, o gitserver.Options) (*remote, error) {
	r := &remote{dir: filepath.Join(root, "bench", "plant.git"), refs: map[string]string{}}
	if err := os.MkdirAll(r.dir, 0o755); err != nil {
		return nil, err
	}
	if err := git(ctx, r.dir, nil, "-c", "init.defaultBranch=main", "init", "-q", "--bare"); err != nil {
		return nil, err
	}
	alternates := filepath.Join(r.dir, "objects", "info", "alternates")
	if err := os.WriteFile(alternates, []byte(filepath.Join(generated, "objects")+"\n"), 0o644); err != nil {
		return nil, err
	}
	list, err := gitOutput(ctx, generated, nil, "for-each-ref", "--format=%(refname) %(objectname)")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(list) {
		name, id, _ := strings.Cut(strings.TrimSpace(line), " ")
		r.refs[name] = id
	}
	r.server, err = gitserver.Start(root, o)
	return r, err
}

func (r *remote) url() string { return r.server.URL("bench/plant.git") }

// commit returns the commit of a round.
func (r *remote) commit(line string, round int) string {
	return r.refs[fmt.Sprintf("refs/bench/%s/%d", line, round)]
}

// push moves main, and clears the server's log.
func (r *remote) push(ctx context.Context, commit string) error {
	defer r.server.Forget()
	return git(ctx, r.dir, nil, "update-ref", "refs/heads/main", commit)
}

// packing returns how long the server has answered requests for a pack since the last push.
func (r *remote) packing() (sum time.Duration) {
	for _, q := range r.server.Requests() {
		if q.Service == gitserver.UploadPack {
			sum += q.Duration
		}
	}
	return sum
}

// head returns the commit of main.
func (r *remote) head(ctx context.Context) (string, error) {
	return gitOutput(ctx, r.dir, nil, "rev-parse", "refs/heads/main")
}

// parent returns the previous commit on the line.
func (r *remote) parent(ctx context.Context, commit string) (string, error) {
	return gitOutput(ctx, r.dir, nil, "rev-parse", commit+"^")
}

// changedBytes returns the size of the files that a commit of the line changed.
func (r *remote) changedBytes(ctx context.Context, commit string) (int64, error) {
	list, err := gitOutput(ctx, r.dir, nil, "diff-tree", "-r", "--no-renames", commit+"^", commit)
	if err != nil {
		return 0, err
	}
	var sum int64
	for line := range strings.Lines(list) {
		size, err := gitOutput(ctx, r.dir, nil, "cat-file", "-s", strings.Fields(line)[3])
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

// dirSize returns the size of the files below some directories, in bytes. It ignores missing files, because a running
// agent may remove a file meanwhile.
func dirSize(dirs ...string) (sum int64, err error) {
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
			if err == nil && d.Type().IsRegular() {
				var info fs.FileInfo
				if info, err = d.Info(); err == nil {
					sum += info.Size()
				}
			}
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			return err
		})
		if err != nil {
			return 0, err
		}
	}
	return sum, nil
}
