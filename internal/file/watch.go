package file

import (
	"log/slog"
	"path/filepath"

	"github.com/fsnotify/fsnotify"
)

// Watcher says when a file may have changed. It is a hint: there are file systems that send no events, and limits of
// watches, so that who needs the file reads it once a period too.
type Watcher struct {
	fs      *fsnotify.Watcher
	changed chan struct{}
}

// Watch watches the file's directory, because editors and volumes of Kubernetes replace files by renaming.
func Watch(name string, log *slog.Logger) *Watcher {
	w := &Watcher{changed: make(chan struct{}, 1)}
	fs, err := fsnotify.NewWatcher()
	if err == nil {
		err = fs.Add(filepath.Dir(name))
	}
	if err != nil {
		log.Warn("no file events; the file is read once a period", "file", name, "error", err)
		if fs != nil {
			_ = fs.Close() // it watches nothing
		}
		return w
	}
	w.fs = fs
	go w.forward(filepath.Clean(name))
	return w
}

func (w *Watcher) forward(name string) {
	for {
		select {
		case e, ok := <-w.fs.Events:
			if !ok {
				return
			}
			// A mounted volume changes by its ..data link.
			if filepath.Clean(e.Name) != name && filepath.Base(e.Name) != "..data" || e.Op == fsnotify.Chmod {
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
