package file

import (
	"log/slog"
	"path/filepath"

	"github.com/fsnotify/fsnotify"
)

// Watcher says when one of some files may have changed. It is a hint: there are file systems that send no events, and
// limits of watches, so that who needs a file reads it once a period too.
type Watcher struct {
	fs      *fsnotify.Watcher
	changed chan struct{}
}

// Watch watches the files' directories, because editors and volumes of Kubernetes replace files by renaming.
func Watch(log *slog.Logger, names ...string) *Watcher {
	w := &Watcher{changed: make(chan struct{}, 1)}
	if len(names) == 0 {
		return w
	}
	fs, err := fsnotify.NewWatcher()
	if err != nil {
		log.Warn("no file events; files are read once a period", "files", names, "error", err)
		return w
	}
	watched := map[string]bool{}
	for _, name := range names {
		if err := fs.Add(filepath.Dir(name)); err != nil {
			log.Warn("no file events; the file is read once a period", "file", name, "error", err)
			continue
		}
		watched[filepath.Clean(name)] = true
	}
	if len(watched) == 0 {
		_ = fs.Close() // it watches nothing
		return w
	}
	w.fs = fs
	go w.forward(watched)
	return w
}

func (w *Watcher) forward(watched map[string]bool) {
	for {
		select {
		case e, ok := <-w.fs.Events:
			if !ok {
				return
			}
			// A mounted volume changes by its ..data link.
			if !watched[filepath.Clean(e.Name)] && filepath.Base(e.Name) != "..data" || e.Op == fsnotify.Chmod {
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
