package sync

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"stoker.io/stoker/agent/disk"
	"stoker.io/stoker/agent/ignition/resource"
	"stoker.io/stoker/agent/plan"
)

// unloaded is what the gateway has not yet loaded of the files on the disk. It is saved before the first file moves, and
// dropped when the gateway has confirmed the files. So a crash, a restart or a stopped gateway never makes a
// half-delivered commit look delivered.
type unloaded struct {
	Commit plan.ID `json:"commit"`
	// ScanProjects and ScanConfig report which trees changed since the gateway last read them.
	ScanProjects bool `json:"scanProjects,omitempty"`
	ScanConfig   bool `json:"scanConfig,omitempty"`
	// Projects and Resources are what the gateway has to show afterwards.
	Projects  []string   `json:"projects,omitempty"`
	Gone      []string   `json:"gone,omitempty"` // projects that it must not show
	Resources []configID `json:"resources,omitempty"`
	// Fresh reports that the gateway did not run when the files were written, so that its next start may be its first.
	Fresh bool `json:"fresh,omitempty"`
	// Refused is when such a gateway first refused our token. PutBack reports that its permissions were restored since.
	Refused time.Time `json:"refused,omitzero"`
	PutBack bool      `json:"putBack,omitempty"`
	// Baseline is what the gateway had before; nil if it does not go back by itself.
	Baseline *baseline `json:"baseline,omitempty"`
}

// configID identifies a config resource as the gateway's API does.
type configID struct {
	Collection string `json:"collection"`
	Module     string `json:"module"`
	Type       string `json:"type"`
	Name       string `json:"name"`
}

// file returns the path of the resource's resource.json.
func (r configID) file() string {
	return strings.Join([]string{"config/resources", r.Collection, r.Module, r.Type, r.Name, resource.File}, "/")
}

const unloadedNote = "unloaded"

// maxUnloaded bounds the lists. Verifying the first entries of a longer list proves as well that the scan worked.
const maxUnloaded = 1000

// maxUnloadedBytes bounds the encoded lists, because names can be long.
const maxUnloadedBytes = 512 << 10

func half[T any](list []T) []T { return list[:len(list)/2] }

func loadUnloaded(d *disk.Dir) (unloaded, error) {
	var o unloaded
	b, err := d.Note(unloadedNote)
	if err != nil || b == nil {
		return o, err
	}
	if json.Unmarshal(b, &o) != nil {
		// The file is ours and written by rename; a broken one still means that something is not loaded.
		o = unloaded{ScanProjects: true, ScanConfig: true}
	}
	return o, nil
}

func (o unloaded) empty() bool {
	return !o.ScanProjects && !o.ScanConfig && len(o.Projects)+len(o.Gone)+len(o.Resources) == 0
}

func (o unloaded) save(d *disk.Dir) error {
	if o.empty() {
		return d.SetNote(unloadedNote, nil)
	}
	for {
		b, err := json.Marshal(o)
		if err != nil {
			return fmt.Errorf("encode what the gateway has not loaded: %w", err)
		}
		if len(b) <= maxUnloadedBytes {
			return d.SetNote(unloadedNote, b)
		}
		o.Baseline = nil // without its names, the sync could be blamed for what was wrong before
		o.Projects, o.Gone, o.Resources = half(o.Projects), half(o.Gone), half(o.Resources)
	}
}

// add merges the changes of a plan. projects are those that the gateway has to show after it, gone those that it must
// not show.
func (o unloaded) add(changes *plan.Changes, projects, gone []string) unloaded {
	p, c := changes.Touches()
	o.Commit = changes.To
	o.ScanProjects = o.ScanProjects || p
	o.ScanConfig = o.ScanConfig || c
	if p {
		o.Projects = union(without(o.Projects, gone), projects)
		o.Gone = union(without(o.Gone, projects), gone)
	}
	for _, r := range changes.ConfigResources() {
		id := configID{Collection: r.Collection, Module: r.Module, Type: r.Type, Name: r.Name}
		o.Resources = slices.DeleteFunc(o.Resources, func(x configID) bool { return x == id })
		// A singleton has no name, and how the API names resources in folders is not known; for these a finished scan
		// must do.
		if r.Deleted || r.Name == "" || strings.Contains(r.Name, "/") || len(o.Resources) >= maxUnloaded {
			continue
		}
		o.Resources = append(o.Resources, id)
	}
	return o
}

// projects returns the projects that the gateway has to show after the changes, and those that it must not show. It has
// to show the ones that have a project.json, from git or its own.
func (f *files) projects(changes *plan.Changes) (there, gone []string, err error) {
	var names []string
	if f.desired != nil { // otherwise the files are those of a snapshot
		if names, err = f.desired.Dirs("projects"); err != nil {
			return nil, nil, err
		}
	}
	for _, name := range union(names, changes.Projects()) {
		file := projectFile(name)
		wanted := slices.ContainsFunc(changes.List, func(c plan.Change) bool { return c.Path == file && (c.Op == plan.Create || c.Op == plan.Update) })
		if f.desired != nil {
			if _, wanted, err = f.desired.Lookup(file); err != nil {
				return nil, nil, err
			}
		}
		st, err := f.dir.Stat(file)
		if err != nil {
			return nil, nil, err
		}
		deleted := slices.ContainsFunc(changes.List, func(c plan.Change) bool { return c.Op == plan.Delete && c.Path == file })
		switch {
		case wanted || st.Kind == plan.File && !deleted:
			there = append(there, name)
		case deleted:
			gone = append(gone, name)
		}
	}
	return there, gone, nil
}

// drop removes what the disk does not have, such as the promises of a sync that was rolled back after a crash.
func (o *unloaded) drop(d *disk.Dir) error {
	var failed error
	there := func(path string) bool {
		st, err := d.Stat(path)
		if err != nil {
			failed = err
		}
		return st.Kind == plan.File
	}
	project := func(name string) bool { return there(projectFile(name)) }
	o.Projects = slices.DeleteFunc(o.Projects, func(name string) bool { return !project(name) })
	o.Gone = slices.DeleteFunc(o.Gone, project)
	o.Resources = slices.DeleteFunc(o.Resources, func(r configID) bool {
		return !there(r.file())
	})
	return failed
}

func union(a, b []string) []string {
	out := slices.Concat(a, b)
	slices.Sort(out)
	out = slices.Compact(out)
	return out[:min(len(out), maxUnloaded)]
}

func without(a, b []string) []string {
	return slices.DeleteFunc(slices.Clone(a), func(s string) bool { return slices.Contains(b, s) })
}
