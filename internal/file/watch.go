package file

import (
	"log/slog"
	"path/filepath"
	"sync"

	"github.com/fsnotify/fsnotify"
)

// Watcher says when one of some files may have changed. It is a hint: there are file systems that send no events, and
// limits of watches, so that who needs a file reads it once a period too.
type Watcher struct {
	fs      *fsnotify.Watcher
	log     *slog.Logger
	changed chan struct{}

	mu      sync.Mutex
	watched map[string]bool // whether it could be watched
}

// Watch watches the files' directories, because editors and volumes of Kubernetes replace files by renaming.
func Watch(log *slog.Logger, names ...string) *Watcher {
	w := &Watcher{log: log, changed: make(chan struct{}, 1), watched: map[string]bool{}}
	if len(names) == 0 {
		return w
	}
	fs, err := fsnotify.NewWatcher()
	if err != nil {
		log.Warn("no file events; files are read once a period", "files", names, "error", err)
		return w
	}
	w.fs = fs
	w.Add(names...)
	go w.forward()
	return w
}

// Add watches more files. It may be called again with the same ones: a directory may be another by now.
func (w *Watcher) Add(names ...string) {
	if w.fs == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, name := range names {
		name = filepath.Clean(name)
		err := w.fs.Add(filepath.Dir(name))
		if _, known := w.watched[name]; err != nil && !known {
			w.log.Warn("no file events; the file is read once a period", "file", name, "error", err)
		}
		w.watched[name] = err == nil
	}
}

func (w *Watcher) is(name string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.watched[name]
}

func (w *Watcher) forward() {
	for {
		select {
		case e, ok := <-w.fs.Events:
			if !ok {
				return
			}
			// A mounted volume changes by its ..data link.
			if !w.is(filepath.Clean(e.Name)) && filepath.Base(e.Name) != "..data" || e.Op == fsnotify.Chmod {
				continue
			}
		case _, ok := <-w.fs.Errors: // an overflow: something changed, it is not known what
			if !ok {
				return
			}
		}
		select {
		case w.changed <- struct{}{}:
		default: // one is pending already
		}
	}
}

// Changed receives after a change; several changes may come as one.
func (w *Watcher) Changed() <-chan struct{} { return w.changed }

// Close ends the watching.
func (w *Watcher) Close() {
	if w.fs != nil {
		_ = w.fs.Close() // it only watched
	}
}
