package loop

import (
	"errors"
	"io/fs"
	"iter"
	"log/slog"
	"os"
	"path"
	"path/filepath"
	"syscall"
	"time"

	"github.com/fsnotify/fsnotify"

	"stoker.io/stoker/agent/plan"
)

// fileEvents watches the directories of owned files, so that the agent finds drift in seconds instead of once a period.
// Events can be missing: some file systems have none (NFS), watches are limited per user, and queues overflow. So the agent
// still compares all files once a period.
type fileEvents struct {
	root        string
	log         *slog.Logger
	fs          *fsnotify.Watcher // nil if events are not available
	dirs        map[string]bool   // watched directories, relative to root; since the last watch, some may be gone
	changed     chan struct{}     // receives after events
	limitLogged bool
}

// maxWatched bounds the watched directories. All gateways of a node may share the kernel's limits, which are per user.
const maxWatched = 4096

// blobFolder is where the gateway keeps the content of each resource of a project that it saves, named by its digest. So a save in any
// directory, also in one that is not watched, causes an event of this folder.
const blobFolder = "projects/.resources"

// ownFolder is the folder that the agent writes to.
const ownFolder = ".stoker"

func newFileEvents(root string, log *slog.Logger) *fileEvents {
	f := &fileEvents{root: root, log: log, dirs: map[string]bool{}, changed: make(chan struct{}, 1)}
	fs, err := fsnotify.NewWatcher()
	if err != nil {
		log.Warn("no file events; checking for drift periodically", "error", err)
		return f
	}
	f.fs = fs
	go f.forward()
	return f
}

func (f *fileEvents) forward() {
	for {
		select {
		case e, ok := <-f.fs.Events:
			if !ok {
				return
			}
			if filepath.Base(e.Name) == ownFolder {
				continue
			}
		case _, ok := <-f.fs.Errors: // a queue overflow also means that something changed
			if !ok {
				return
			}
		}
		select {
		case f.changed <- struct{}{}:
		default: // the Loop has not received the last event yet
		}
	}
}

// watch watches the directories of owned files and blobFolder, and stops watching the others. If owned is nil, watch does nothing.
func (f *fileEvents) watch(owned iter.Seq2[plan.Owned, error]) {
	if f.fs == nil || owned == nil {
		return
	}
	dirs := make(map[string]bool, len(f.dirs))
	if _, err := os.Lstat(filepath.Join(f.root, blobFolder)); err == nil {
		dirs[blobFolder] = true
	}
	last := ""
	for o, err := range owned {
		if err != nil {
			return // the next sync reports the error
		}
		dir := path.Dir(o.Path)
		if dir == last {
			continue
		}
		if last = dir; len(dirs) == maxWatched {
			f.logLimit("too many directories")
			break
		}
		dirs[dir] = true
	}
	f.readWatches()
	for dir := range f.dirs {
		if !dirs[dir] {
			f.unwatch(dir)
		}
	}
	for dir := range dirs {
		if f.dirs[dir] {
			continue
		}
		switch err := f.fs.Add(filepath.Join(f.root, dir)); {
		case err == nil:
			f.dirs[dir] = true
		case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.ENOMEM): // no more watches
			f.logLimit(err.Error())
			return
		case !errors.Is(err, fs.ErrNotExist): // a missing directory is drift
			f.logLimit(err.Error())
		}
	}
}

// readWatches drops the directories from dirs that are no longer watched, because they were deleted or renamed.
func (f *fileEvents) readWatches() {
	clear(f.dirs)
	for _, name := range f.fs.WatchList() {
		if dir, err := filepath.Rel(f.root, name); err == nil {
			f.dirs[dir] = true
		}
	}
}

// unwatchAll removes all watches: the paths may belong to new directories, whose events the old watches do not report.
func (f *fileEvents) unwatchAll() {
	for dir := range f.dirs {
		f.unwatch(dir)
	}
}

func (f *fileEvents) unwatch(dir string) {
	_ = f.fs.Remove(filepath.Join(f.root, dir)) // fails if the directory is gone
	delete(f.dirs, dir)
}

// logLimit logs once that not all directories are watched.
func (f *fileEvents) logLimit(why string) {
	if !f.limitLogged {
		f.limitLogged = true
		f.log.Info("not all directories are watched", "watched", len(f.dirs), "why", why)
	}
}

func (f *fileEvents) Close() {
	if f.fs != nil {
		_ = f.fs.Close() // nothing to flush
	}
}

const (
	// eventDelay is the delay between a file event and the comparison: a save writes several files.
	eventDelay = time.Second
	// eventShare limits the comparisons after file events to a twentieth of the time, however busy the gateway is. Periodic comparisons
	// do not count, so that the first save after a while is found at once.
	eventShare = 20
)

// onFileEvent brings the next comparison forward.
func (l *Loop) onFileEvent() {
	l.proposer.FileEvent()
	if l.drift.due.IsZero() || l.drift.repairs > 0 {
		return
	}
	due := l.Now().Add(eventDelay)
	if earliest := l.drift.ended.Add(eventShare * l.drift.duration); due.Before(earliest) {
		due = earliest
	}
	if due.Before(l.drift.due) {
		l.drift.due, l.drift.forEvent = due, true
	}
}
