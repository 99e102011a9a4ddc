package drive

import (
	"iter"
	"log/slog"
	"path"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"

	"stoker.io/stoker/agent/plan"
)

// hints says that something moved below the directories that hold our files, so that drift is found in seconds and not
// in a period. It is no more than that: there are file systems without events (NFS), limits of watches for each user,
// and queues that overflow. The full look once a period is the truth.
type hints struct {
	root  string
	log   *slog.Logger
	fs    *fsnotify.Watcher // nil: no events here
	dirs  map[string]bool   // that are watched, relative to root
	moved chan struct{}
	full  bool // no more directories can be watched, and that was said
}

// maxWatched bounds the directories that are watched. The kernel's limits are for each user, and all gateways of a node
// may be one.
const maxWatched = 4096

// ownFolder is where the agent itself writes.
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
		case _, ok := <-h.fs.Errors: // an overflow: something moved
			if !ok {
				return
			}
		}
		select {
		case h.moved <- struct{}{}:
		default: // one is pending already
		}
	}
}

// follow watches the directories of owned files, and lets go of those that have none any more.
func (h *hints) follow(owned iter.Seq2[plan.Owned, error]) {
	if h.fs == nil {
		return
	}
	now := make(map[string]bool, len(h.dirs))
	last := ""
	for o, err := range owned {
		if err != nil {
			return // the next sync says so
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
			_ = h.fs.Remove(filepath.Join(h.root, dir)) // gone already where the directory is
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

// forget lets go of all directories: others may lie at their paths now, of which nothing would be heard.
func (h *hints) forget() {
	for dir := range h.dirs {
		_ = h.fs.Remove(filepath.Join(h.root, dir)) // gone already where the directory is
	}
	clear(h.dirs)
}

// limit says once that not everything is watched.
func (h *hints) limit(why string) {
	if !h.full {
		h.full = true
		h.log.Info("not all directories are watched for changes; what happens elsewhere is found once a period", "watched", len(h.dirs), "why", why)
	}
}

func (h *hints) Close() {
	if h.fs != nil {
		_ = h.fs.Close() // it only watched
	}
}

const (
	// quiet is how long after a hint drift is looked for: a save writes several files.
	quiet = 2 * time.Second
	// share bounds the time that looks after hints take to a twentieth of all, however busy the gateway is.
	share = 20
)

// hinted brings the next look for drift forward.
func (l *Loop) hinted() {
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
