package simulator

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"sync"

	"stoker.io/stoker/test/gateway/simulator/datadir"
	"stoker.io/stoker/test/gateway/simulator/resource"
)

// LoadFault makes the gateway fail to load a project or a config resource, as a faulty commit does.
type LoadFault struct {
	// Path is a project or a config resource, such as projects/line or config/resources/core/ignition/schedule/night.
	Path string `json:"path"`
	// While limits the fault to the time while a file below Path contains this text. If it is empty, the fault always applies.
	While string `json:"while"`
	// Scan makes the scan end without a result.
	Scan bool `json:"scan"`
	// Hide makes the gateway not show the project or the resource.
	Hide bool `json:"hide"`
	// Keep makes the gateway continue to show a project that was deleted.
	Keep bool `json:"keep"`
}

// LoadFaults are the active load faults.
type LoadFaults struct {
	root *os.Root
	mu   sync.Mutex
	list []LoadFault
}

// Set replaces all load faults.
func (l *LoadFaults) Set(list ...LoadFault) error {
	for _, f := range list {
		if !fs.ValidPath(f.Path) || f.Keep && !strings.HasPrefix(f.Path, datadir.ProjectsDir+"/") || !f.Scan && !f.Hide && !f.Keep {
			return errors.New(`a load fault needs the path of a project or of a config resource, and scan, hide or keep (projects only)`)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = list
	return nil
}

// active returns the load faults below dir that apply to the current files.
func (l *LoadFaults) active(dir string) []LoadFault {
	l.mu.Lock()
	all := l.list
	l.mu.Unlock()
	var list []LoadFault
	for _, f := range all {
		if strings.HasPrefix(f.Path, dir+"/") && (f.While == "" || l.contains(f.Path, f.While)) {
			list = append(list, f)
		}
	}
	return list
}

// fails reports whether a load fault makes a scan of this kind end without a result.
func (l *LoadFaults) fails(kind string) bool {
	dir := datadir.ProjectsDir
	if kind == kindConfig {
		dir = datadir.ResourcesDir
	}
	return slices.ContainsFunc(l.active(dir), func(f LoadFault) bool { return f.Scan })
}

// contains reports whether a file at or below a path contains a text.
func (l *LoadFaults) contains(dir, text string) bool {
	found := false
	_ = fs.WalkDir(l.root.FS(), dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return nil //nolint:nilerr // what cannot be read contains nothing
		}
		if raw, err := datadir.Read(l.root, name); err == nil && bytes.Contains(raw, []byte(text)) {
			found = true
			return fs.SkipAll
		}
		return nil
	})
	return found
}

// applyProjectFaults applies load faults to loaded projects. old has the projects of the previous scan.
func applyProjectFaults(faults []LoadFault, loaded, old map[string]*resource.Project) {
	for _, f := range faults {
		switch name := path.Base(f.Path); {
		case f.Hide:
			delete(loaded, name)
		case f.Keep && loaded[name] == nil && old[name] != nil:
			loaded[name] = old[name]
		}
	}
}

// applyConfigFaults applies load faults to a loaded configuration.
func applyConfigFaults(faults []LoadFault, loaded resource.Config) {
	for _, f := range faults {
		rest := strings.TrimPrefix(f.Path, datadir.ResourcesDir+"/")
		name, resourcePath, _ := strings.Cut(rest, "/")
		if c := loaded.Collection(name); f.Hide && c != nil {
			delete(c.Tree.Resources, resourcePath)
		}
	}
}
