package desired

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"stoker.io/stoker/agent/ignition/resource"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/plan/relpath"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// overlay is the tree of the mappings, laid over each other, with the files as git has them. It reads the trees of the commit when it
// lists a directory.
//
// If mappings overlap, the later one wins, file by file. A file of a later mapping hides a directory of the same name
// from earlier mappings, and a directory of a later mapping hides their file if it has any file itself.
type overlay struct {
	rules        *plan.Rules
	objects      plan.Objects
	root         plan.ID
	destinations *destination
	isFile       []bool         // by mapping: its source is a file
	missing      []plan.Mapping // mappings whose source is not in the commit
	mounted      []string       // mounts of the gateway at which the commit has content
	warnings     warnings

	hasFiles      map[string]bool // directory that would hide a file → whether it has any file
	filesSearched counter         // directories read for hasFiles
}

// destination is a trie of the destinations: the mappings to one path, and the destinations below it.
type destination struct {
	sources []source // in the order of the mappings
	names   []string
	below   map[string]*destination
	last    int // the last mapping whose destination is below, or -1
	// renders reports whether a mapping with its destination here or below has templates or patches.
	renders bool
}

// source is the entry of the commit that a mapping maps.
type source struct {
	mapping int
	entry   plan.Entry
}

// newOverlay looks up the sources of the mappings.
func newOverlay(objects plan.Objects, root plan.ID, rules *plan.Rules) (*overlay, error) {
	o := &overlay{
		rules: rules, objects: objects, root: root, destinations: &destination{last: -1},
		isFile: make([]bool, len(rules.Mappings)), hasFiles: make(map[string]bool),
	}
	for i, m := range rules.Mappings {
		if err := o.add(i, m); err != nil {
			return nil, err
		}
	}
	if rules.AnySource && len(o.missing) == len(rules.Mappings) {
		return nil, failure.New(v1alpha1.ReasonSourceMissing,
			"the commit has none of the folders of the service path (%s …): correct the path", rules.Mappings[0].Source)
	}
	return o, o.findMounts()
}

// add adds mapping i, if the commit has its source.
func (o *overlay) add(i int, m plan.Mapping) error {
	entry, absent, err := o.lookup(m.Source)
	if err != nil {
		return err
	}
	if absent != "" && m.Required {
		return failure.New(v1alpha1.ReasonSourceMissing, "mappings[%d]: %s, and the mapping is required", i, absent)
	}
	if absent != "" {
		o.warnings.add("mappings[%d]: %s; skipped", i, absent)
		o.missing = append(o.missing, m)
		return nil
	}
	if err := checkKind(i, m, entry.Mode); err != nil {
		return err
	}
	if resource.NeverTouch(m.Destination.Rel()) {
		o.warnings.add("mappings[%d]: %s belongs to the gateway; the agent writes nothing there", i, m.Destination)
	}
	o.isFile[i] = entry.Mode != plan.Directory
	o.place(m.Destination, source{mapping: i, entry: entry})
	return nil
}

// lookup returns the commit's entry at a path. absent says why the agent has none; it is "" if it has one.
func (o *overlay) lookup(p plan.Path) (at plan.Entry, absent string, err error) {
	at = plan.Entry{Name: ".", Mode: plan.Directory, ID: o.root}
	if p == plan.Root {
		return at, "", nil
	}
	seen := ""
	for name := range strings.SplitSeq(string(p), "/") {
		if at.Mode != plan.Directory {
			return at, fmt.Sprintf("the commit has no %s", p), nil
		}
		entries, err := o.objects.Tree(at.ID)
		if err != nil {
			return at, "", fmt.Errorf("look up %s in the commit: %w", p, err)
		}
		i := slices.IndexFunc(entries, func(e plan.Entry) bool { return e.Name == name })
		if i < 0 {
			return at, fmt.Sprintf("the commit has no %s", p), nil
		}
		at, seen = entries[i], path.Join(seen, name)
		switch at.Mode {
		case plan.Symlink:
			return at, "", o.symlinkError("mapping source "+string(p), at.ID)
		case plan.Submodule:
			return at, seen + " is a submodule, which the agent does not fetch", nil
		}
	}
	return at, "", nil
}

// checkKind returns an error if mapping i does not accept the mode of its source.
func checkKind(i int, m plan.Mapping, mode plan.Mode) error {
	isDir := mode == plan.Directory
	switch {
	case isDir && m.Kind == plan.FileSource:
		return failure.New(v1alpha1.ReasonSourceMissing,
			"mappings[%d]: type is file, but %s is a directory in the commit", i, m.Source)
	case !isDir && m.Kind == plan.DirSource:
		return failure.New(v1alpha1.ReasonSourceMissing,
			"mappings[%d]: type is dir, but %s is a file in the commit", i, m.Source)
	case !isDir && m.Destination == plan.Root:
		return failure.New(v1alpha1.ReasonProfilesInvalid,
			"mappings[%d]: %s is a file in the commit; name the file in destination", i, m.Source)
	}
	return nil
}

// place adds a source to its destination.
func (o *overlay) place(to plan.Path, s source) {
	d := o.destinations
	renders := o.rules.Mappings[s.mapping].Renders()
	if to != plan.Root {
		for name := range strings.SplitSeq(string(to), "/") {
			d.last = s.mapping
			d.renders = d.renders || renders
			if d.below == nil {
				d.below = make(map[string]*destination)
			}
			if d.below[name] == nil {
				d.below[name] = &destination{last: -1}
				d.names = append(d.names, name)
			}
			d = d.below[name]
		}
	}
	d.sources = append(d.sources, s)
	d.renders = d.renders || renders
}

// sources returns the sources of all mappings, in the order of the mappings.
func (o *overlay) sources() []source {
	var list []source
	var visit func(d *destination)
	visit = func(d *destination) {
		list = append(list, d.sources...)
		for _, below := range d.below {
			visit(below)
		}
	}
	visit(o.destinations)
	slices.SortFunc(list, func(a, b source) int { return a.mapping - b.mapping })
	return list
}

// findMounts records the mounts at which the commit has content, so that a plan reports them even if it does not
// compare their directories: listing a parent calls skipMount for a mount in it.
func (o *overlay) findMounts() error {
	for _, path := range o.rules.Mounts.Paths() {
		if _, err := o.children(relpath.Parent(path), o.list); err != nil {
			return err
		}
	}
	return nil
}

// skipMount records that the commit's content at a mount is not synced.
func (o *overlay) skipMount(path string) {
	if slices.Contains(o.mounted, path) {
		return
	}
	o.mounted = append(o.mounted, path)
	o.warnings.add("%s is not synced: the gateway's container has a mount there, which hides the file from git; "+
		"exclude the path, or remove it from git", path)
}

// symlinkError returns the error for a symbolic link under a mapped path. The message has the link's target, if readable, so
// that a user can find and fix the link.
func (o *overlay) symlinkError(what string, id plan.ID) error {
	target := &head{max: 200}
	_, _ = o.objects.WriteBlob(target, id)
	return failure.New(v1alpha1.ReasonUnsafePath, "%s is a symbolic link (to %q); the agent neither follows nor writes links: "+
		"replace the link with its target, or exclude it", what, target.String())
}

// shown is the number of paths in a message.
const shown = 10

// noSourceError returns the error for a first sync whose mappings match nothing in the commit. That is probably a typing mistake,
// and the gateway must not look synced. The message shows what the commit has instead.
func (o *overlay) noSourceError() error {
	var want []string
	for _, m := range o.missing {
		want = append(want, string(m.Source))
	}
	have, err := o.nearestDir(o.missing[0].Source)
	if err != nil {
		return err
	}
	return failure.New(v1alpha1.ReasonSourceMissing, "no mapping matches the commit: it does not have %s; it has %s: correct spec.sync.profiles",
		plan.Enumerate(want, shown), have)
}

// nearestDir lists the deepest directory of the commit on the way to p.
func (o *overlay) nearestDir(p plan.Path) (string, error) {
	dir, at := "", o.root
	for name := range strings.SplitSeq(string(p), "/") {
		entries, err := o.objects.Tree(at)
		if err != nil {
			return "", fmt.Errorf("read the commit: %w", err)
		}
		i := slices.IndexFunc(entries, func(e plan.Entry) bool { return e.Name == name && e.Mode == plan.Directory })
		if i < 0 {
			break
		}
		dir, at = relpath.Join(dir, name), entries[i].ID
	}
	entries, err := o.objects.Tree(at)
	if err != nil {
		return "", fmt.Errorf("read the commit: %w", err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name)
	}
	where := "at its top "
	if dir != "" {
		where = "in " + dir + " "
	}
	return where + plan.Enumerate(names, shown), nil
}

// maxWarnings bounds the warnings of a plan.
const maxWarnings = 20

// warnings is a bounded list of different messages.
type warnings struct {
	list     []string
	overfull bool // there were more than maxWarnings
}

func (w *warnings) add(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	switch {
	case slices.Contains(w.list, text):
	case len(w.list) >= maxWarnings:
		w.overfull = true
	default:
		w.list = append(w.list, text)
	}
}

func (w *warnings) all() []string {
	if !w.overfull {
		return w.list
	}
	return append(slices.Clip(w.list), "… and more")
}

// systemProperties returns the path of a collection's system properties.
func systemProperties(collection string) string {
	return "config/resources/" + collection + "/ignition/system-properties/config.json"
}

// systemFile returns the system properties file that is in effect for the deployment mode, if the rules set the
// gateway's name, and "" otherwise. A later collection hides an earlier one: external, core, the mode's own.
func (o *overlay) systemFile() (string, error) {
	if o.rules.SystemName.Path == "" {
		return "", nil
	}
	for _, collection := range []string{o.rules.Facts.DeploymentMode, "core", "external"} {
		if collection == "" {
			continue
		}
		path := systemProperties(collection)
		children, err := o.children(relpath.Parent(path), o.list)
		if err != nil {
			return "", fmt.Errorf("look for the system properties: %w", err)
		}
		if fileOf(children, relpath.Base(path)) != nil {
			return path, nil
		}
	}
	return "", nil
}

// CheckRendering returns an error if the name cannot be set because git has no system properties file, or if a patch
// matches no file.
func (t *Tree) CheckRendering() error {
	if name := t.overlay.rules.SystemName; name.Path != "" && t.renderer.system == "" {
		return failure.New(v1alpha1.ReasonPatchFailed, "the commit has no %s (or that of the external collection or of the "+
			"deployment mode), so the agent cannot set the name %q of the annotation: remove the annotation, or sync that file",
			systemProperties("core"), name.Value)
	}
	return t.checkPatches()
}
