package simulator

import (
	"context"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"stoker.io/stoker/test/gateway/simulator/datadir"
	"stoker.io/stoker/test/gateway/simulator/resource"
)

// Data is the data directory and what the gateway has loaded of it.
type Data struct {
	opts     *Options
	root     *os.Root
	canaries *datadir.Canaries
	clock    *clock
	logs     *LogBook
	faults   *LoadFaults

	// writing is held while the gateway itself writes or loads resources, so that it never reads its own half-written
	// files.
	writing sync.Mutex

	mu         sync.Mutex
	projects   map[string]*resource.Project
	config     resource.Config
	loadErrors []string
}

// LoadErrors lists what scans could not load since Start, oldest first, and at most the first 10,000.
func (d *Data) LoadErrors() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.loadErrors)
}

// lockWriting locks writing. It returns false if ctx is done first.
func (d *Data) lockWriting(ctx context.Context) bool {
	for !d.writing.TryLock() {
		if sleep(ctx, time.Millisecond) != nil {
			return false
		}
	}
	return true
}

func (d *Data) loadedProjects() map[string]*resource.Project {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.projects
}

func (d *Data) loadedConfig() resource.Config {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.config
}

// projectResource returns a loaded resource of a project, or nil.
func (d *Data) projectResource(project, resourcePath string) *resource.Resource {
	p := d.loadedProjects()[project]
	if p == nil {
		return nil
	}
	return p.Tree.Resources[resourcePath]
}

const maxLoadErrors = 10_000

// load does the work of a scan: it loads the files as they are now. The caller holds writing.
func (d *Data) load(kind string) {
	var problems []resource.Problem
	if kind == kindProjects {
		problems = d.loadProjects()
	} else {
		problems = d.loadConfig()
	}
	for _, p := range problems {
		d.logs.add(levelError, "ScanFileSystem", p.String())
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, p := range problems {
		if len(d.loadErrors) < maxLoadErrors {
			d.loadErrors = append(d.loadErrors, p.String())
		}
	}
}

func (d *Data) loadProjects() []resource.Problem {
	old := d.loadedProjects()
	loaded, problems := resource.LoadProjects(d.root, old)
	for _, p := range loaded {
		if before := old[p.Name]; before != nil && d.opts.Unknowns.SkipUnchanged {
			p.Tree.KeepUnchanged(before.Tree)
		}
	}
	for _, p := range loaded {
		if d.opts.before83() {
			problems = append(problems, p.Tree.ReadRaw(d.root)...)
		}
		d.signExternal(p.Tree, true)
	}
	applyProjectFaults(d.faults.active(datadir.ProjectsDir), loaded, old)
	d.mu.Lock()
	d.projects = loaded
	d.mu.Unlock()
	return problems
}

func (d *Data) loadConfig() []resource.Problem {
	old := d.loadedConfig()
	loaded, problems := resource.LoadConfig(d.root, d.opts.Mode, old)
	for _, c := range loaded {
		if before := old.Collection(c.Name); before != nil && d.opts.Unknowns.SkipUnchanged {
			c.Tree.KeepUnchanged(before.Tree)
		}
	}
	for _, c := range loaded {
		if d.opts.Unknowns.SignConfig && c.Name != "external" && c.Name != "local" {
			d.signExternal(c.Tree, false)
		}
	}
	applyConfigFaults(d.faults.active(datadir.ResourcesDir), loaded)
	d.mu.Lock()
	d.config = loaded
	d.mu.Unlock()
	return problems
}

// Loaded returns the loaded files of a resource with the lower-case hex SHA-256 of each. dir is the resource's
// directory below the data directory, for example projects/P/com.inductiveautomation.perspective/views/Main. It returns
// nil if the gateway has no such resource. A project is loaded if the result for projects/P is not nil.
func (d *Data) Loaded(dir string) map[string]string {
	d.mu.Lock()
	defer d.mu.Unlock()
	parts := strings.SplitN(dir, "/", 3)
	if len(parts) >= 2 && parts[0] == datadir.ProjectsDir {
		p := d.projects[parts[1]]
		switch {
		case p == nil:
			return nil
		case len(parts) == 2:
			return map[string]string{}
		}
		return digests(p.Tree.Resources[parts[2]])
	}
	for _, c := range d.config {
		if rel, ok := strings.CutPrefix(dir, c.Tree.Dir+"/"); ok {
			return digests(c.Tree.Resources[rel])
		}
	}
	return nil
}

func digests(r *resource.Resource) map[string]string {
	if r == nil {
		return nil
	}
	return maps.Clone(r.Digests)
}
