// Package file reads and watches small files that other programs write.
package file

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"

	"github.com/fsnotify/fsnotify"

	"stoker.io/stoker/internal/bound"
)

// Watcher signals that one of its files may have changed. The signal is only a hint: some file systems send no events, and the
// kernel limits the number of watches. Callers must also read their files periodically.
type Watcher struct {
	fs      *fsnotify.Watcher
	log     *slog.Logger
	changed chan struct{}

	mu      sync.Mutex
	watched map[string]bool // whether the watch was established
}

// Watch watches the directories of the files, because editors and Kubernetes volumes replace files by renaming. If that fails, Watch logs a
// warning. A Watcher without names never signals, and Add does not change that.
func Watch(log *slog.Logger, names ...string) *Watcher {
	w := &Watcher{log: log, changed: make(chan struct{}, 1), watched: map[string]bool{}}
	if len(names) == 0 {
		return w
	}
	fs, err := fsnotify.NewWatcher()
	if err != nil {
		log.Warn("no file events; reading files periodically", "files", names, "error", err)
		return w
	}
	w.fs = fs
	w.Add(names...)
	go w.forward()
	return w
}

// Add watches more files. Adding a file again is allowed and renews the watch if its directory was replaced.
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
			w.log.Warn("no file events; reading the file periodically", "file", name, "error", err)
		}
		w.watched[name] = err == nil
	}
}

func (w *Watcher) isWatched(name string) bool {
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
			// Kubernetes updates a mounted volume by replacing its ..data link.
			if !w.isWatched(filepath.Clean(e.Name)) && filepath.Base(e.Name) != "..data" || e.Op == fsnotify.Chmod {
				continue
			}
		case _, ok := <-w.fs.Errors: // for example, the event queue overflowed: some file may have changed
			if !ok {
				return
			}
		}
		select {
		case w.changed <- struct{}{}:
		default: // a signal is already pending
		}
	}
}

// Changed returns a channel that receives after a change. Several changes may arrive as one.
func (w *Watcher) Changed() <-chan struct{} { return w.changed }

// Close stops watching.
func (w *Watcher) Close() {
	if w.fs != nil {
		_ = w.fs.Close() // nothing to flush
	}
}

// Read returns the content of a file. A file of more than limit bytes is an error.
func Read(name string, limit int64) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := bound.ReadAll(f, limit)
	switch {
	case errors.Is(err, bound.ErrTooLarge):
		return nil, fmt.Errorf("%s is larger than %d bytes", name, limit)
	case err != nil:
		return nil, err
	}
	return b, nil
}

// ReadRegular is Read for a path that may be something else than a regular file, which is an error. A pipe, for one, would
// block the caller for ever.
func ReadRegular(name string, limit int64) ([]byte, error) {
	if st, err := os.Stat(name); err != nil {
		return nil, err
	} else if !st.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", name)
	}
	return Read(name, limit)
}
