package plan

import (
	"slices"
	"strings"

	"stoker.io/stoker/agent/ignition/resource"
	"stoker.io/stoker/agent/plan/relpath"
	"stoker.io/stoker/api/v1alpha1"
)

// Op is the operation on one path.
type Op uint8

// The operations of a plan.
const (
	// Create writes a file to a path that has none. If Found is a directory, the same plan deletes all files in it, and
	// the empty directories that remain are removed.
	Create Op = iota + 1
	// Update replaces an existing file. If ID equals FoundID, only its mode changes.
	Update
	// Delete removes an owned file or, under prune mirror, any file that git does not have.
	Delete
	// Adopt writes no file: the file on the disk equals git's, or means the same, and only its record is created or updated.
	Adopt
	// Release writes nothing: it drops the record and leaves the file. Found is Missing if the file is already gone.
	Release
	// Keep writes nothing: the gateway's version stays despite git (conflictPolicy gatewayWins). An owned path
	// stays owned, with the new Want and the old Have.
	Keep
)

// Action returns what an operation does to a file: added, modified or deleted, or "" if it does not change the file.
func (o Op) Action() string {
	switch o {
	case Create:
		return "added"
	case Update:
		return "modified"
	case Delete:
		return "deleted"
	}
	return ""
}

// Change is what a plan does to one path.
type Change struct {
	Path string
	// Found is what the plan saw on the disk. The code that applies the change checks again: a difference is a conflict.
	Found Stat
	// ID is the wanted blob; zero for Delete and Release. It is git's unless the file is rendered or in Changes.Signed.
	ID ID
	// FoundID is the blob id of the file on the disk: from the manifest if stat agrees with the record, otherwise
	// hashed. It is zero if there is no regular file.
	FoundID ID
	// Origin is the index of the mapping in Changes.Mappings.
	Origin uint16
	Op     Op
	// Exec reports whether git wants the executable bit.
	Exec bool
	// Conflict reports whether the disk has the gateway's own version, which must go to lost+found before it is
	// replaced or deleted.
	Conflict bool
	// Owned reports whether the manifest has a record of the path.
	Owned bool
	// Foreign reports that another program wrote an adopted file or deleted a released one, so that the gateway may not have loaded the
	// change.
	Foreign bool
	// Unrecorded reports that the change leaves the manifest's record of the path as it is. Only restores set it, for example to bring
	// back a version that was not git's.
	Unrecorded bool
}

// Writes reports whether a change touches the file itself.
func (c *Change) Writes() bool {
	return c.Op == Create || c.Op == Update || c.Op == Delete
}

// Changes is a plan: what one sync does, sorted by path, at most one Change per path.
type Changes struct {
	// From and To are the commits. From is zero at the first sync.
	From, To ID
	// Mappings is the table that Change.Origin indexes, and becomes the manifest's Header.Mappings unchanged. Records
	// that are not in List keep their Origin, and their entries keep their places.
	Mappings []Origin
	List     []Change
	// Signed maps the path of a resource.json to git's blob, if the plan writes the file with another signature because
	// git's does not match the files beside it. The Change's ID is the blob with the new signature; the record's Want
	// is git's blob.
	Signed map[string]ID
	// Unchanged counts the compared files that need no change.
	Unchanged int
	// Drifted counts the compared files that only the gateway changed and that the plan leaves alone.
	Drifted int
	// Total is the number of owned files after the sync.
	Total int
	// Warnings are messages for users, such as skipped submodules and missing optional sources.
	Warnings []string
	// Mounted are the paths at which git has files, but where the gateway's container has a volume of its own mounted,
	// such as a Secret. The files of git there are not synced.
	Mounted []string
	// Full reports whether every file was compared, not only the difference between two commits.
	Full bool
	// Held is set if the plan must not be applied. List is then what would happen.
	Held *Held
}

// Held says why a plan waits for a user: because of a conflict or a mass deletion. It is not an error.
type Held struct {
	Reason  v1alpha1.Reason // ConflictDetected or MassDeletion
	Message string
	Paths   []string // at most ten
}

// ConfigResource is a resource of config/resources that a plan writes or deletes.
type ConfigResource struct {
	Collection string // core, external or a deployment mode
	Module     string // such as ignition or com.inductiveautomation.perspective
	Type       string
	Name       string // "" for a singleton; slashes separate folders
	// Deleted reports whether the plan deletes the resource.json.
	Deleted bool
}

// Touches reports whether the plan writes or deletes anything below projects/ and below config/. The gateway scans the two
// separately.
func (c *Changes) Touches() (projects, config bool) {
	for i := range c.List {
		if x := &c.List[i]; x.Writes() {
			projects = projects || strings.HasPrefix(x.Path, "projects/")
			config = config || strings.HasPrefix(x.Path, "config/")
		}
	}
	return projects, config
}

// SourceOf returns the path in the commit of a file that git wants, or "" if the plan does not name its mapping.
func (c *Changes) SourceOf(x *Change) string {
	if int(x.Origin) >= len(c.Mappings) {
		return ""
	}
	m := Mapping{Source: Path(c.Mappings[x.Origin].Source), Destination: Path(c.Mappings[x.Origin].Destination)}
	return string(m.SourceOf(x.Path))
}

// ToLoad returns the plan with the changes that other programs made (Change.Foreign) as its own, because the gateway has to load these, too.
func (c *Changes) ToLoad() *Changes {
	all := *c
	all.List = nil
	for i := range c.List {
		if x := &c.List[i]; x.Foreign {
			if all.List == nil {
				all.List = slices.Clone(c.List)
			}
			switch x.Op {
			case Adopt:
				all.List[i].Op = Update
			case Release:
				all.List[i].Op = Delete
			}
		}
	}
	if all.List == nil {
		return c
	}
	return &all
}

// Projects returns the names of the projects that the plan writes to or deletes from, sorted.
func (c *Changes) Projects() []string {
	var names []string
	for i := range c.List {
		x := &c.List[i]
		rest, ok := strings.CutPrefix(x.Path, "projects/")
		if !ok || !x.Writes() {
			continue
		}
		name, _, deep := strings.Cut(rest, "/")
		if deep && (len(names) == 0 || names[len(names)-1] != name) {
			names = append(names, name)
		}
	}
	// The order of the paths is not that of the names: a-b/ comes before a/, but a before a-b.
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
		if !x.Writes() {
			continue
		}
		dir := relpath.Parent(x.Path)
		r, ok := configResource(dir)
		if !ok {
			continue
		}
		position, seen := index[dir]
		if !seen {
			position = len(list)
			index[dir] = position
			list = append(list, r)
		}
		if x.Op == Delete && relpath.Base(x.Path) == resource.File {
			list[position].Deleted = true
		}
	}
	return list
}

// configResource parses the directory of a resource.
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
