package loop

import (
	"iter"
	"log/slog"
	"path"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"

	"stoker.io/stoker/agent/plan"
)

// hints watches the directories of owned files, so that drift is found in seconds instead of once a period. It is only
// a hint: some file systems have no events (NFS), watches are limited per user, and queues overflow. The complete
// comparison once a period does not depend on it.
type hints struct {
	root  string
	log   *slog.Logger
	fs    *fsnotify.Watcher // nil if events are not available
	dirs  map[string]bool   // watched directories, relative to root
	moved chan struct{}
	full  bool // the limit was reached and logged
}

// maxWatched bounds the watched directories. The kernel's limits are per user, and all gateways of a node may share
// one.
const maxWatched = 4096

// ownFolder is the folder that the agent writes to.
const ownFolder = ".stoker"

func newHints(root string, log *slog.Logger) *hints {
	h := &hints{root: root, log: log, dirs: map[string]bool{}, moved: make(chan struct{}, 1)}
	fs, err := fsnotify.NewWatcher()
	if err != nil {
		log.Warn("no file events; drift is looked for once a period", "error", err)
		return h
	}
	h.fs = fs
	go h.forward()
	return h
}

func (h *hints) forward() {
	for {
		select {
		case e, ok := <-h.fs.Events:
			if !ok {
				return
			}
			if filepath.Base(e.Name) == ownFolder {
				continue
			}
		case _, ok := <-h.fs.Errors: // a queue overflow also means that something changed
			if !ok {
				return
			}
		}
		select {
		case h.moved <- struct{}{}:
		default: // a hint is already pending
		}
	}
}

// follow watches the directories of owned files, and stops watching those without any.
func (h *hints) follow(owned iter.Seq2[plan.Owned, error]) {
	if h.fs == nil {
		return
	}
	now := make(map[string]bool, len(h.dirs))
	last := ""
	for o, err := range owned {
		if err != nil {
			return // the next sync reports the error
		}
		dir := path.Dir(o.Path)
		if dir == last {
			continue
		}
		if last = dir; len(now) == maxWatched {
			h.limit("too many directories")
			break
		}
		now[dir] = true
	}
	for dir := range h.dirs {
		if !now[dir] {
			_ = h.fs.Remove(filepath.Join(h.root, dir)) // fails if the directory is gone
			delete(h.dirs, dir)
		}
	}
	for dir := range now {
		if h.dirs[dir] {
			continue
		}
		if err := h.fs.Add(filepath.Join(h.root, dir)); err != nil {
			h.limit(err.Error())
			return
		}
		h.dirs[dir] = true
	}
}

// forget removes all watches: the paths may belong to other directories now, whose events the old watches do not
// report.
func (h *hints) forget() {
	for dir := range h.dirs {
		_ = h.fs.Remove(filepath.Join(h.root, dir)) // fails if the directory is gone
	}
	clear(h.dirs)
}

// limit logs once that not all directories are watched.
func (h *hints) limit(why string) {
	if !h.full {
		h.full = true
		h.log.Info("not all directories are watched for changes; what happens elsewhere is found once a period", "watched", len(h.dirs), "why", why)
	}
}

func (h *hints) Close() {
	if h.fs != nil {
		_ = h.fs.Close() // nothing to flush
	}
}

const (
	// quiet is the delay between a hint and the comparison: a save writes several files.
	quiet = 2 * time.Second
	// share bounds comparisons after hints to a twentieth of the time, however busy the gateway is.
	share = 20
)

// hinted brings the next comparison forward.
func (l *Loop) hinted() {
	l.back.dirty, l.back.event = true, l.Now()
	if l.drift.due.IsZero() {
		return
	}
	soon := l.Now().Add(quiet)
	if earliest := l.drift.ended.Add(share * l.drift.took); soon.Before(earliest) {
		soon = earliest
	}
	if l.drift.repairs == 0 && soon.Before(l.drift.due) {
		l.drift.due = soon
	}
}
