package simulator

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"stoker.io/stoker/test/gateway/simulator/datadir"
	"stoker.io/stoker/test/gateway/simulator/resource"
)

// Fault makes a route answer differently.
type Fault struct {
	// Route is "METHOD /path", for example "POST /data/api/v1/scan/projects". The method * matches every method; a path
	// ending in * matches every path with that prefix.
	Route string `json:"route"`
	// Times is the number of requests that the fault applies to; 0 means all.
	Times int `json:"times"`
	// Delay delays the answer.
	Delay Duration `json:"delay"`
	// Status answers with the web server's error page, or with Body.
	Status int    `json:"status"`
	Body   string `json:"body"`
	// Location is the header of a redirect.
	Location string `json:"location"`
	// Reset sends half an answer and breaks the connection.
	Reset bool `json:"reset"`
	// After runs the route first and discards its answer, so that the client cannot know that the work was done.
	After bool `json:"after"`
}

// Duration is a time.Duration that is text in JSON: "1.5s".
type Duration time.Duration

// UnmarshalJSON implements json.Unmarshaler.
func (d *Duration) UnmarshalJSON(raw []byte) error {
	var text string
	if err := json.Unmarshal(raw, &text); err != nil {
		return fmt.Errorf(`a duration is text such as "1.5s": %w`, err)
	}
	parsed, err := time.ParseDuration(text)
	*d = Duration(parsed)
	return err
}

// MarshalJSON implements json.Marshaler.
func (d Duration) MarshalJSON() ([]byte, error) { return json.Marshal(time.Duration(d).String()) }

func (f Fault) validate() error {
	method, path, ok := strings.Cut(f.Route, " ")
	switch {
	case !ok || method == "" || !strings.HasPrefix(path, "/"):
		return fmt.Errorf(`invalid route %q: want "METHOD /path"`, f.Route)
	case f.Status != 0 && (f.Status < 200 || f.Status > 599):
		return fmt.Errorf("invalid status %d: want 200 to 599", f.Status)
	case f.Status == 0 && !f.Reset && f.Delay == 0:
		return errors.New("the fault does nothing: set status, delay or reset")
	case f.Times < 0 || f.Delay < 0:
		return errors.New("times and delay cannot be negative")
	}
	return nil
}

func (f Fault) matches(r *http.Request) bool {
	method, path, _ := strings.Cut(f.Route, " ")
	if method != "*" && method != r.Method {
		return false
	}
	if prefix, ok := strings.CutSuffix(path, "*"); ok {
		return strings.HasPrefix(r.URL.Path, prefix)
	}
	return path == r.URL.Path
}

// FaultList holds the active faults. The first that matches a request applies to it.
type FaultList struct {
	mu   sync.Mutex
	list []Fault
	// matched reports, by the route of each fault so far, whether a request has matched or none need match.
	matched map[string]bool
}

const maxFaults = 1000

// Add activates a fault, after the existing ones. Close of the gateway fails if no request has matched a fault with this
// route, because then the test has shown nothing.
func (l *FaultList) Add(f Fault) error { return l.add(f, true) }

func (l *FaultList) add(f Fault, expected bool) error {
	if err := f.validate(); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.list) >= maxFaults {
		return errors.New("too many faults: clear them")
	}
	l.list = append(l.list, f)
	l.matched[f.Route] = l.matched[f.Route] || !expected
	return nil
}

// List lists the active faults.
func (l *FaultList) List() []Fault {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]Fault{}, l.list...) // not nil: it becomes a JSON list
}

// Clear removes all faults of routes.
func (l *FaultList) Clear() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = nil
}

// check returns an error if no request matched the faults of a route.
func (l *FaultList) check() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for route, hit := range l.matched {
		if !hit {
			return fmt.Errorf("no request matched the fault %s", route)
		}
	}
	return nil
}

// match returns the first fault that matches a request, and counts it down.
func (l *FaultList) match(r *http.Request) (Fault, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, f := range l.list {
		if !f.matches(r) {
			continue
		}
		l.matched[f.Route] = true
		if f.Times == 1 {
			l.list = append(l.list[:i:i], l.list[i+1:]...)
		} else if f.Times > 1 {
			l.list[i].Times--
		}
		return f, true
	}
	return Fault{}, false
}

// LoadFault makes the gateway fail to load a project or a config resource, as a faulty commit does.
type LoadFault struct {
	// Path is a project or a config resource, such as projects/line or config/resources/core/ignition/schedule/night.
	Path string `json:"path"`
	// While limits the fault to the time while a file below Path contains this text. If it is empty, the fault always applies.
	While string `json:"while"`
	// Scan makes a scan that a client starts end without a result.
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
