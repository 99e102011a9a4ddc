package sync

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"stoker.io/stoker/agent/disk"
	"stoker.io/stoker/agent/ignition/resource"
	"stoker.io/stoker/agent/plan"
)

// unloaded is what the gateway has not yet loaded of the files on the disk. The sync saves it as a note before the first file
// moves, and deletes the note when the gateway has confirmed the files. So a crash, a restart or a stopped gateway never
// makes a half-delivered commit look delivered.
type unloaded struct {
	Commit plan.ID `json:"commit"`
	// ScanProjects and ScanConfig report which trees changed since the gateway last read them.
	ScanProjects bool `json:"scanProjects,omitempty"`
	ScanConfig   bool `json:"scanConfig,omitempty"`
	// Projects and Resources are those that the gateway has to show, Deleted the projects that it must not show.
	Projects  []string   `json:"projects,omitempty"`
	Deleted   []string   `json:"gone,omitempty"`
	Resources []configID `json:"resources,omitempty"`
	// FirstStart reports that the gateway did not run when the first files of the volume were written, so its next start may be its
	// first.
	FirstStart bool `json:"fresh,omitempty"`
	// FirstRefused is when such a gateway first refused the agent's API token. PermissionsRestored reports that the agent
	// has restored its permissions since.
	FirstRefused        time.Time `json:"refused,omitzero"`
	PermissionsRestored bool      `json:"putBack,omitempty"`
	// Baseline is nil if the gateway does not roll back automatically.
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

// maxUnloaded bounds each list. The first entries of a longer list also prove that the scan worked.
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
	if json.Unmarshal(b, &o) != nil || !o.valid() {
		// The agent writes the note by rename, but the gateway can write it, too. A damaged note still means that something is not
		// loaded.
		o = unloaded{ScanProjects: true, ScanConfig: true}
	}
	return o, nil
}

// valid reports whether each entry has a path in the data directory.
func (o unloaded) valid() bool {
	paths := func(list []string) bool {
		return !slices.ContainsFunc(list, func(name string) bool { return !fs.ValidPath(projectFile(name)) })
	}
	return paths(o.Projects) && paths(o.Deleted) &&
		!slices.ContainsFunc(o.Resources, func(r configID) bool { return !fs.ValidPath(r.file()) })
}

func (o unloaded) empty() bool {
	return !o.ScanProjects && !o.ScanConfig && len(o.Projects)+len(o.Deleted)+len(o.Resources) == 0
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
		o.Baseline = nil // without all names, earlier mismatches could count against the sync
		o.Projects, o.Deleted, o.Resources = half(o.Projects), half(o.Deleted), half(o.Resources)
	}
}

// add returns o with the changes of a plan, after which the gateway must show present, and must not show deleted.
func (o unloaded) add(changes *plan.Changes, present, deleted []string) unloaded {
	projects, config := changes.Touches()
	o.Commit = changes.To
	o.ScanProjects = o.ScanProjects || projects
	o.ScanConfig = o.ScanConfig || config
	if projects {
		o.Projects = union(without(o.Projects, deleted), present)
		o.Deleted = union(without(o.Deleted, present), deleted)
	}
	o.Resources = slices.Clone(o.Resources) // the caller may return to the old ones
	for _, r := range changes.ConfigResources() {
		id := configID{Collection: r.Collection, Module: r.Module, Type: r.Type, Name: r.Name}
		o.Resources = slices.DeleteFunc(o.Resources, func(x configID) bool { return x == id })
		// A singleton has no name, and how the API names resources in folders is not known: a finished scan must suffice.
		if r.Deleted || r.Name == "" || strings.Contains(r.Name, "/") || len(o.Resources) >= maxUnloaded {
			continue
		}
		o.Resources = append(o.Resources, id)
	}
	return o
}

// projects returns the projects that the gateway has to show after the changes, and those that it must not show. It has
// to show those with a project.json, from git or its own.
func (a *applier) projects(changes *plan.Changes) (present, deleted []string, err error) {
	var names []string
	if a.desired != nil { // otherwise the files are those of a snapshot
		if names, err = a.desired.Dirs("projects"); err != nil {
			return nil, nil, err
		}
	}
	for _, name := range union(names, changes.Projects()) {
		file := projectFile(name)
		changed := func(ops ...plan.Op) bool {
			return slices.ContainsFunc(changes.List, func(c plan.Change) bool { return c.Path == file && slices.Contains(ops, c.Op) })
		}
		wanted := changed(plan.Create, plan.Update)
		if a.desired != nil {
			if _, wanted, err = a.desired.Lookup(file); err != nil {
				return nil, nil, err
			}
		}
		st, err := a.in.dir.Stat(file)
		if err != nil {
			return nil, nil, err
		}
		switch isDeleted := changed(plan.Delete); {
		case wanted || st.Kind == plan.File && !isDeleted:
			present = append(present, name)
		case isDeleted:
			deleted = append(deleted, name)
		}
	}
	return present, deleted, nil
}

func projectFile(name string) string { return "projects/" + name + "/project.json" }

// dropContradicted removes the entries that the disk contradicts, such as those of a sync that was rolled back after a crash.
func (o *unloaded) dropContradicted(d *disk.Dir) error {
	var failed error
	exists := func(path string) bool {
		st, err := d.Stat(path)
		if err != nil {
			failed = err
		}
		return st.Kind == plan.File
	}
	projectExists := func(name string) bool { return exists(projectFile(name)) }
	o.Projects = slices.DeleteFunc(o.Projects, func(name string) bool { return !projectExists(name) })
	o.Deleted = slices.DeleteFunc(o.Deleted, projectExists)
	o.Resources = slices.DeleteFunc(o.Resources, func(r configID) bool { return !exists(r.file()) })
	return failed
}

// union returns the elements of a and b, sorted and without duplicates, but at most maxUnloaded.
func union(a, b []string) []string {
	out := slices.Concat(a, b)
	slices.Sort(out)
	out = slices.Compact(out)
	return out[:min(len(out), maxUnloaded)]
}

// without returns a without the elements of b.
func without(a, b []string) []string {
	return slices.DeleteFunc(slices.Clone(a), func(s string) bool { return slices.Contains(b, s) })
}
