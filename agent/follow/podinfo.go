package follow

import (
	"fmt"
	"log/slog"
	"maps"
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
		names = []string{filepath.Join(dir, "annotations")}
	}
	p.watcher = file.Watch(log, names...)
}

// reload reads the labels and annotations. If it cannot read a file, it keeps the last values and logs the error once.
func (p *podInfo) reload(log *slog.Logger) {
	if p.dir == "" {
		return
	}
	var failed string
	for name, into := range map[string]*map[string]string{"labels": &p.labels, "annotations": &p.annotations} {
		raw, err := file.Read(filepath.Join(p.dir, name), maxPodInfo)
		var read map[string]string
		if err == nil {
			read, err = parsePodInfo(string(raw))
		}
		if err != nil {
			failed = fmt.Sprintf("the pod's %s: %v", name, err)
			continue
		}
		if !maps.Equal(read, *into) {
			*into = read
		}
	}
	if failed != "" && failed != p.err {
		log.Warn("what the pod says of itself cannot be read; what it said before counts", "error", failed)
	}
	p.err = failed
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
			return nil, fmt.Errorf("the value of %.80q is not quoted well", key)
		}
		m[key] = value
	}
	return m, nil
}
