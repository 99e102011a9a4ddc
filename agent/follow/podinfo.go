package follow

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strconv"
	"strings"

	"stoker.io/stoker/internal/file"
)

// podInfo holds the current labels and annotations of the pod. The downward API updates its volume when they change.
type podInfo struct {
	dir                 string // of the downward API; "" for none
	labels, annotations map[string]string
	watcher             *file.Watcher
	err                 string // the error of the last reload, which was logged
}

// maxPodInfo bounds a file in bytes. Annotations have at most 256 KiB, which quoting can make four times as long.
const maxPodInfo = 2 << 20

// watch starts watcher for dir; "" watches nothing.
func (p *podInfo) watch(dir string, log *slog.Logger) {
	p.dir = dir
	var names []string
	if dir != "" {
		// One name is enough: the kubelet replaces both files at once.
		names = []string{filepath.Join(dir, "annotations")}
	}
	p.watcher = file.Watch(log, names...)
}

// reload reads the labels and annotations. If it cannot read a file, it keeps the values that it read last, and
// logs the error unless it is that of the last call.
func (p *podInfo) reload(log *slog.Logger) {
	if p.dir == "" {
		return
	}
	failed := ""
	if err := errors.Join(p.read("labels", &p.labels), p.read("annotations", &p.annotations)); err != nil {
		failed = err.Error()
	}
	if failed != "" && failed != p.err {
		log.Warn("labels or annotations of the pod unreadable", "error", failed)
	}
	p.err = failed
}

// read reads a file of the volume. If it fails, into keeps its value.
func (p *podInfo) read(name string, into *map[string]string) error {
	raw, err := file.Read(filepath.Join(p.dir, name), maxPodInfo)
	if err != nil {
		return fmt.Errorf("read the pod's %s: %w", name, err)
	}
	values, err := parsePodInfo(string(raw))
	if err != nil {
		return fmt.Errorf("parse the pod's %s: %w", name, err)
	}
	*into = values
	return nil
}

// parsePodInfo parses a file of the downward API: a line key="value" for each entry, with the value quoted as in Go.
func parsePodInfo(text string) (map[string]string, error) {
	m := map[string]string{}
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if line == "" {
			continue
		}
		key, quoted, ok := strings.Cut(line, "=")
		if !ok || key == "" || len(quoted) < 2 || quoted[0] != '"' {
			return nil, fmt.Errorf("%.80q is not key=\"value\"", line)
		}
		value, err := strconv.Unquote(quoted)
		if err != nil {
			return nil, fmt.Errorf("the value of %.80q is not a quoted string", key)
		}
		m[key] = value
	}
	return m, nil
}
