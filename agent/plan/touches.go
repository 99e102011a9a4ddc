package plan

import (
	"slices"
	"strings"

	"stoker.io/stoker/agent/ignition/resource"
)

// ConfigResource is a resource of config/resources that a plan writes or deletes.
type ConfigResource struct {
	Collection string // core, external or a deployment mode
	Module     string // such as ignition or com.inductiveautomation.perspective
	Type       string
	Name       string // "" for a singleton; slashes separate folders
	// Deleted reports whether the plan deletes the resource.json.
	Deleted bool
}

// Touches reports whether the plan writes or deletes anything below projects/ and below config/, each of which a scan
// of the gateway reads.
func (c *Changes) Touches() (projects, config bool) {
	for i := range c.List {
		if x := &c.List[i]; x.writes() {
			projects = projects || strings.HasPrefix(x.Path, "projects/")
			config = config || strings.HasPrefix(x.Path, "config/")
		}
	}
	return projects, config
}

// Projects returns the names of the projects that the plan writes to or deletes from, sorted.
func (c *Changes) Projects() []string {
	var names []string
	for i := range c.List {
		x := &c.List[i]
		rest, ok := strings.CutPrefix(x.Path, "projects/")
		if !ok || !x.writes() {
			continue
		}
		name, _, deep := strings.Cut(rest, "/")
		if deep && (len(names) == 0 || names[len(names)-1] != name) {
			names = append(names, name)
		}
	}
	// Paths are sorted bytewise, so that a-b/ comes before a/ and a name can occur again.
	slices.Sort(names)
	return slices.Compact(names)
}

// ConfigResources returns the config resources that the plan writes to or deletes from, without duplicates, in path
// order.
func (c *Changes) ConfigResources() []ConfigResource {
	var list []ConfigResource
	index := make(map[string]int)
	for i := range c.List {
		x := &c.List[i]
		if !x.writes() {
			continue
		}
		dir := parent(x.Path)
		r, ok := configResource(dir)
		if !ok {
			continue
		}
		at, seen := index[dir]
		if !seen {
			at = len(list)
			index[dir] = at
			list = append(list, r)
		}
		if x.Op == Delete && base(x.Path) == resource.File {
			list[at].Deleted = true
		}
	}
	return list
}

func configResource(dir string) (ConfigResource, bool) {
	rest, ok := strings.CutPrefix(dir, "config/resources/")
	if !ok {
		return ConfigResource{}, false
	}
	part := strings.SplitN(rest, "/", 4)
	if len(part) < 3 {
		return ConfigResource{}, false
	}
	r := ConfigResource{Collection: part[0], Module: part[1], Type: part[2]}
	if len(part) == 4 {
		r.Name = part[3]
	}
	return r, true
}
