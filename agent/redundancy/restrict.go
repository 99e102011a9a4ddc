package redundancy

import (
	"encoding/json"
	"errors"
	"io/fs"
	"path"
	"slices"
	"strings"

	"stoker.io/stoker/agent/disk"
	"stoker.io/stoker/agent/ignition/resource"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/plan/desired"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/bound"
	"stoker.io/stoker/internal/failure"
)

// Restrict returns the plan without the changes that a standby node must not make, and counts those. Adoptions stay: a file
// that equals git is owned, whichever node wrote it. desired is the tree that the plan was made for.
func (n *Node) Restrict(changes *plan.Changes, desired *desired.Tree) (*plan.Changes, error) {
	if !n.state.standby {
		n.Memory.waitingFor = target{}
		return changes, nil
	}
	n.missing = missing{}
	own := *changes
	own.List = make([]plan.Change, 0, len(changes.List))
	resources := resourceFiles{dir: n.Dir, desired: desired, list: changes.List}
	var withRecord, withoutRecord []plan.Change
	for _, c := range changes.List {
		copied, err := resources.copies(c)
		if err != nil {
			return nil, err
		}
		if !copied {
			allowed, err := n.mayWrite(changes, c)
			if err != nil {
				return nil, err
			}
			if allowed {
				own.List = append(own.List, c)
			} else {
				own.Drifted++
			}
			continue
		}
		class, err := n.classify(changes, c)
		if err != nil {
			return nil, err
		}
		switch class {
		case equal:
		case edited:
			withRecord = append(withRecord, c)
		case unrecorded:
			withoutRecord = append(withoutRecord, c)
		case extra:
			own.Drifted++
		default:
			n.missing.add(c)
		}
	}
	own.Drifted += len(n.driftOf(changes, withRecord, withoutRecord))
	own.Held = n.stillHeld(changes.Held, own.List)
	return &own, nil
}

// mayWrite reports whether the policies allow a change that the pair does not copy. The plan of a standby node restores all
// that the pair may have copied. But a change of a user to a file that no pair copies, such as a README, stays.
func (n *Node) mayWrite(changes *plan.Changes, c plan.Change) (bool, error) {
	if n.Repair || !Replicated(c.Path) || !c.Writes() {
		return true, nil
	}
	rec, owned, err := n.Dir.Manifest().Get(c.Path)
	return !owned || !asBefore(changes, c, rec), err
}

// stillHeld returns the reason to hold the restricted plan; list has its changes. A conflict always holds it, because it is
// about a file that the pair does not copy. A mass deletion holds it if this node deletes any file itself or, under the policy
// hold, replaces one that the gateway changed. Otherwise only the active node is held.
func (n *Node) stillHeld(held *plan.Held, list []plan.Change) *plan.Held {
	if held == nil || held.Reason == v1alpha1.ReasonConflictDetected {
		return held
	}
	if slices.ContainsFunc(list, func(c plan.Change) bool {
		return c.Op == plan.Delete || n.Rules.Conflict == plan.Hold && c.Conflict && c.Writes()
	}) {
		return held
	}
	return nil
}

// changeClass is what a change to a replicated file means on a standby node.
type changeClass int

const (
	behind     changeClass = iota // the other node has to write it
	edited                        // it restores what git wanted before, or replaces what the other node may have kept
	unrecorded                    // it replaces a file of which this node has no record
	extra                         // it deletes a file that is in no commit that this node saw; nothing is missing
	equal                         // a resource.json or thumbnail.png as the gateway wrote it; the plan has it only because of a file beside it
)

// classify returns what a change to a replicated file means.
func (n *Node) classify(changes *plan.Changes, c plan.Change) (changeClass, error) {
	rec, owned, err := n.Dir.Manifest().Get(c.Path)
	switch {
	case err != nil:
		return behind, err
	case !owned && c.Op == plan.Delete:
		return extra, nil
	case !owned && c.Found.Kind == plan.File:
		return unrecorded, nil
	case !owned:
		return behind, nil
	}
	touched := c.FoundID != rec.Have
	switch same := asBefore(changes, c, rec); {
	case same && rewrites(c.Path) && (!touched || !c.Conflict):
		return equal, nil
	case same, touched && n.Rules.Conflict == plan.GatewayWins:
		return edited, nil
	}
	return behind, nil
}

// rewrites reports whether the gateway rewrites a file when another file of the resource changes.
func rewrites(file string) bool {
	return path.Base(file) == resource.File || path.Base(file) == resource.Thumbnail
}

// asBefore reports whether a change only restores what git wanted at the last sync.
func asBefore(changes *plan.Changes, c plan.Change, rec plan.Owned) bool {
	return c.Op != plan.Delete && rec.Want == wantOf(changes, c) && rec.Exec == c.Exec
}

// wantOf returns git's blob for a change, also if the plan writes a signed version of it.
func wantOf(changes *plan.Changes, c plan.Change) plan.ID {
	if id, ok := changes.Signed[c.Path]; ok {
		return id
	}
	return c.ID
}

// resourceFiles distinguishes the files of a resource from files that only lie beside it, such as a README. A pair copies
// resources. Whether it copies other files is not documented, so both nodes write those.
type resourceFiles struct {
	dir     *disk.Dir
	desired *desired.Tree
	list    []plan.Change // the whole plan, sorted by path
	// git and live are the listings of the directory that was read last: most changes follow one in the same directory.
	git, live listing
}

// listing is what the resource.json of a directory lists.
type listing struct {
	dir   string
	files []string
	all   bool // every file of the directory belongs to the resource
}

func (f listing) has(name string) bool { return f.all || slices.Contains(f.files, name) }

// descriptors returns the names of the files that declare a resource, a project or a deployment mode.
func descriptors() []string {
	return []string{resource.File, unaryFile, "project.json", "config-mode.json"}
}

const unaryFile = "unary-resource.json"

// maxListing bounds a resource.json in bytes that is read for its file list.
const maxListing = 1 << 20

// copies reports whether a pair copies the file that a change writes or deletes: whether it belongs to a replicated resource
// according to git's resource.json or, if the change deletes the file, the resource.json on the disk.
func (m *resourceFiles) copies(c plan.Change) (bool, error) {
	dir, name := path.Split(c.Path)
	dir = path.Clean(dir)
	switch {
	case !c.Writes() || !Replicated(c.Path):
		return false, nil
	case slices.Contains(descriptors(), name):
		return true, nil
	case c.Op == plan.Delete:
		err := m.live.read(dir, m.onDisk)
		return m.live.has(name), err
	}
	err := m.git.read(dir, m.inGit)
	return m.git.has(name), err
}

// read reads the file lists of a directory, unless f has them. An invalid resource.json counts as listing every file, and so does a
// unary-resource.json.
func (f *listing) read(dir string, read func(file string) ([]byte, error)) error {
	if f.dir == dir {
		return nil
	}
	*f = listing{}
	for _, name := range []string{resource.File, unaryFile} {
		raw, err := read(dir + "/" + name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		var doc struct {
			Files []string `json:"files"`
		}
		f.all = f.all || name == unaryFile || json.Unmarshal(raw, &doc) != nil
		f.files = append(f.files, doc.Files...)
	}
	f.dir = dir
	return nil
}

func (m *resourceFiles) onDisk(file string) ([]byte, error) { return m.dir.Read(file, maxListing) }

// inGit reads git's version of a file. For a file that the plan does not change, this is the version of the last sync.
func (m *resourceFiles) inGit(file string) ([]byte, error) {
	var id plan.ID
	i, planned := slices.BinarySearchFunc(m.list, file, func(c plan.Change, file string) int { return strings.Compare(c.Path, file) })
	if planned {
		id = m.list[i].ID // zero if the plan deletes it
	} else {
		rec, owned, err := m.dir.Manifest().Get(file)
		if err != nil {
			return nil, err
		}
		if owned {
			id = rec.Want
		}
	}
	if id.IsZero() {
		return nil, fs.ErrNotExist
	}
	out := bound.NewBuffer(maxListing, func() error {
		return failure.New(v1alpha1.ReasonLimitExceeded, "%s is larger than %d bytes", file, maxListing)
	})
	_, err := m.desired.WriteWanted(out, id)
	return out.Bytes(), err
}
