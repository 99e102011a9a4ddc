// Package unloaded knows what a gateway has not loaded yet of the files on its disk.
package unloaded

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"syscall"
	"time"

	"stoker.io/stoker/agent/disk"
	"stoker.io/stoker/agent/ignition/resource"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// Set is what the gateway has not yet loaded of the files on the disk. A sync saves it as a note before the first file
// moves, and deletes the note when the gateway has confirmed the files. So a crash, a restart or a stopped gateway never
// makes a half-delivered commit look delivered.
type Set struct {
	Commit plan.ID `json:"commit"`
	// ScanProjects and ScanConfig report which trees changed since the gateway last read them.
	ScanProjects bool `json:"scanProjects,omitempty"`
	ScanConfig   bool `json:"scanConfig,omitempty"`
	// Projects and Resources are those that the gateway has to show, Deleted the projects that it must not show.
	Projects  []string   `json:"projects,omitempty"`
	Deleted   []string   `json:"gone,omitempty"`
	Resources []Resource `json:"resources,omitempty"`
	// FirstStart reports that the gateway did not run when the first files of the volume were written, so its next start may be its
	// first.
	FirstStart bool `json:"fresh,omitempty"`
	// FirstRefused is when such a gateway first refused the agent's API key. PermissionsRestored reports that the agent has since
	// restored git's version of ignition/security-properties, which the first start rewrites.
	FirstRefused        time.Time `json:"refused,omitzero"`
	PermissionsRestored bool      `json:"putBack,omitempty"`
	// Baseline is nil if the gateway does not roll back automatically.
	Baseline *Baseline `json:"baseline,omitempty"`
}

// Resource identifies a config resource as the gateway's API does.
type Resource struct {
	Collection string `json:"collection"`
	Module     string `json:"module"`
	Type       string `json:"type"`
	Name       string `json:"name"`
}

// File returns the path of the resource's resource.json.
func (r Resource) File() string {
	return strings.Join([]string{"config/resources", r.Collection, r.Module, r.Type, r.Name, resource.File}, "/")
}

// Baseline is the state of a gateway with spec.autoRollback before its files changed: before the first change since it last
// loaded all files. It is part of the note about what is not loaded, so it is as durable.
type Baseline struct {
	// Snapshot is the one that a rollback restores.
	Snapshot string `json:"snapshot"`
	// Known reports whether the gateway answered. If not, only failed scans count against the sync.
	Known bool `json:"known,omitempty"`
	// Projects and Resources did not match the disk before the sync, so they do not count against it.
	Projects  []string   `json:"projects,omitempty"`
	Resources []Resource `json:"resources,omitempty"`
}

// Note keeps the Set of an open data directory. The gateway can change and remove the file of the note, so what this process saved counts
// until it saves something else.
type Note struct {
	dir   *disk.Dir
	saved Set
}

// NewNote returns the Note of d. last is the one of the directory that this process had open before, or nil: the gateway can make the agent
// open its directory again.
func NewNote(d *disk.Dir, last *Note) *Note {
	n := &Note{dir: d}
	if last != nil {
		n.saved = last.saved.clone()
		n.saved.Baseline = nil // a snapshot of another volume may be gone
	}
	return n
}

const unloadedNote = "unloaded"

// maxListed bounds each list. The first entries of a longer list also prove that the scan worked.
const maxListed = 1000

// maxBytes bounds the encoded lists, because names can be long.
const maxBytes = 512 << 10

func half[T any](list []T) []T { return list[:len(list)/2] }

// Load returns what was saved last, by this process or an earlier one. If the note is damaged, the gateway has to scan everything.
func (n *Note) Load() (Set, error) {
	if !n.saved.Empty() {
		return n.saved.clone(), nil
	}
	var o Set
	b, err := n.dir.Note(unloadedNote)
	if err != nil || b == nil {
		return o, err
	}
	if json.Unmarshal(b, &o) != nil || !o.valid() {
		// The agent writes the note by rename, but the gateway can write it, too. A damaged note still means that something is not
		// loaded.
		o = Set{ScanProjects: true, ScanConfig: true}
	}
	return o, nil
}

// valid reports whether each entry has a path in the data directory.
func (o Set) valid() bool {
	paths := func(list []string) bool {
		return !slices.ContainsFunc(list, func(name string) bool { return !fs.ValidPath(ProjectFile(name)) })
	}
	return paths(o.Projects) && paths(o.Deleted) &&
		!slices.ContainsFunc(o.Resources, func(r Resource) bool { return !fs.ValidPath(r.File()) })
}

// Empty reports whether the gateway has loaded everything.
func (o Set) Empty() bool {
	return !o.ScanProjects && !o.ScanConfig && len(o.Projects)+len(o.Deleted)+len(o.Resources) == 0
}

// clone returns a copy, because methods change the lists in place.
func (o Set) clone() Set {
	o.Projects, o.Deleted, o.Resources = slices.Clone(o.Projects), slices.Clone(o.Deleted), slices.Clone(o.Resources)
	return o
}

// Save writes the note, or deletes it if the set is empty. If the lists are too long for a note, it keeps their first halves, again and again
// until they fit, and drops the Baseline.
func (n *Note) Save(o Set) error {
	for {
		var b []byte
		if !o.Empty() {
			var err error
			if b, err = json.Marshal(o); err != nil {
				return fmt.Errorf("encode what the gateway has not loaded: %w", err)
			}
		}
		if len(b) <= maxBytes {
			if err := n.dir.SetNote(unloadedNote, b); err != nil {
				return err
			}
			n.saved = o.clone()
			return nil
		}
		o.Baseline = nil // without all names, earlier mismatches could count against the sync
		o.Projects, o.Deleted, o.Resources = half(o.Projects), half(o.Deleted), half(o.Resources)
	}
}

// Add returns o with the changes of a plan, after which the gateway must show present, and must not show deleted.
func (o Set) Add(changes *plan.Changes, present, deleted []string) Set {
	projects, config := changes.Touches()
	o.Commit = changes.To
	o.ScanProjects = o.ScanProjects || projects
	o.ScanConfig = o.ScanConfig || config
	if projects {
		o.Projects = Union(without(o.Projects, deleted), present)
		o.Deleted = Union(without(o.Deleted, present), deleted)
	}
	o.Resources = slices.Clone(o.Resources) // the caller may restore the old list
	for _, r := range changes.ConfigResources() {
		id := Resource{Collection: r.Collection, Module: r.Module, Type: r.Type, Name: r.Name}
		o.Resources = slices.DeleteFunc(o.Resources, func(x Resource) bool { return x == id })
		// A singleton has no name, and how the API names resources in folders is not known: a finished scan must suffice.
		if r.Deleted || r.Name == "" || strings.Contains(r.Name, "/") || len(o.Resources) >= maxListed {
			continue
		}
		o.Resources = append(o.Resources, id)
	}
	return o
}

// ProjectFile returns the path of a project's project.json.
func ProjectFile(name string) string { return "projects/" + name + "/project.json" }

// DropContradicted removes the entries that the disk contradicts, such as those of a sync that was rolled back after a crash.
func (o *Set) DropContradicted(d *disk.Dir) error {
	var failed error
	exists := func(path string) bool {
		st, err := d.Stat(path)
		if err != nil && !failure.Is(err, v1alpha1.ReasonUnsafePath) && !errors.Is(err, syscall.ENAMETOOLONG) { // the gateway can write the note
			failed = err
		}
		return st.Kind == plan.File
	}
	projectExists := func(name string) bool { return exists(ProjectFile(name)) }
	o.Projects = slices.DeleteFunc(o.Projects, func(name string) bool { return !projectExists(name) })
	o.Deleted = slices.DeleteFunc(o.Deleted, projectExists)
	o.Resources = slices.DeleteFunc(o.Resources, func(r Resource) bool { return !exists(r.File()) })
	return failed
}

// Union returns the elements of a and b, sorted and without duplicates, but at most maxListed.
func Union(a, b []string) []string {
	out := slices.Concat(a, b)
	slices.Sort(out)
	out = slices.Compact(out)
	return out[:min(len(out), maxListed)]
}

// without returns a without the elements of b.
func without(a, b []string) []string {
	return slices.DeleteFunc(slices.Clone(a), func(s string) bool { return slices.Contains(b, s) })
}
