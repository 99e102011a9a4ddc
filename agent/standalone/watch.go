package standalone

import (
	"log/slog"
	"path/filepath"

	"github.com/fsnotify/fsnotify"
)

// watcher says when a file may have changed. It is a hint: where no events come (NFS, limits reached), the loop still
// reads the file once a period.
type watcher struct {
	fs      *fsnotify.Watcher
	changed chan struct{}
}

// watch watches the file's directory, because editors and secret volumes replace files by renaming.
func watch(file string, log *slog.Logger) *watcher {
	w := &watcher{changed: make(chan struct{}, 1)}
	fs, err := fsnotify.NewWatcher()
	if err == nil {
		err = fs.Add(filepath.Dir(file))
	}
	if err != nil {
		log.Warn("no file events; the file is read once a period", "file", file, "error", err)
		if fs != nil {
			_ = fs.Close() // it watches nothing
		}
		return w
	}
	w.fs = fs
	go w.forward(filepath.Clean(file))
	return w
}

func (w *watcher) forward(file string) {
	for {
		select {
		case e, ok := <-w.fs.Events:
			if !ok {
				return
			}
			// A mounted ConfigMap changes by its ..data link.
			if filepath.Clean(e.Name) != file && filepath.Base(e.Name) != "..data" || e.Op == fsnotify.Chmod {
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
func (w *watcher) Changed() <-chan struct{} { return w.changed }

func (w *watcher) Close() {
	if w.fs != nil {
		_ = w.fs.Close() // it only watched
	}
}
