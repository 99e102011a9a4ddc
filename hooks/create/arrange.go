package create

import (
	"cmp"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// profile is a profile of the GatewaySync that is made.
type profile struct {
	name string
	dir  *dir // the folder that it is named after
	// gateways is the folder whose sub-folders have the names of gateways; nil if the profile is not a template.
	gateways *dir
	mappings []*mapping
	excludes []exclude
}

// mapping is a mapping of a profile, and where its files come from.
type mapping struct {
	source, dest string
	units        []*unit // several if the source is a template
	required     bool
	shared       bool
}

// exclude is a pattern of destination paths that are not synced.
type exclude struct{ pattern, why string }

// arrangement assigns folders to profiles.
type arrangement struct {
	profiles []*profile
	excludes []exclude // for all profiles
	warnings []string
}

// The limits of the API.
const (
	maxProfiles = 64
	maxMappings = 64
	// maxProfileName is a length in bytes, which leaves room for a number.
	maxProfileName = 48
)

// The numbers of sibling folders from which one template replaces a profile for each: if something says that the folders have the names of
// gateways, and if nothing does. A list of profiles that long is hard to read.
const (
	fewSites  = 3
	manySites = 12
)

// gatewayName is the template for the name of a gateway.
const gatewayName = "{{.GatewayName}}"

// sharedNames are names of folders that hold files for several gateways.
var sharedNames = map[string]bool{
	"shared": true, "common": true, "global": true, "library": true, "libraries": true, "lib": true, "libs": true, "base": true, "all": true,
}

// arranger assigns bases, the folders that a finder returns, to profiles.
type arranger struct {
	arrangement
	bases  []*base
	shared map[*base]*dir // the folder whose gateways share the base
	common map[*dir]*base // what all gateways below the folder share
	levels int            // by which the folder of a gateway is above its base
}

// arrange assigns the bases to profiles: one for each folder that is not shared, or one template for sibling folders that have the
// names of gateways.
func arrange(source Source, bases []*base) (*arrangement, error) {
	a := &arranger{bases: bases, shared: map[*base]*dir{}, common: map[*dir]*base{}}
	a.findShared()
	a.findCommon()
	var parents []*dir
	sites := map[*dir][]*base{}
	own := slices.DeleteFunc(slices.Clone(bases), func(b *base) bool { return a.shared[b] != nil || a.isCommon(b) })
	a.findLevels(own)
	for _, b := range own {
		parent := a.site(b).parent
		if len(sites[parent]) == 0 {
			parents = append(parents, parent)
		}
		sites[parent] = append(sites[parent], b)
	}
	for _, parent := range parents {
		if err := a.addSites(source, parent, sites[parent]); err != nil {
			return nil, err
		}
	}
	a.nameProfiles()
	return &a.arrangement, a.checkLimits()
}

// findShared finds the bases that several gateways share, by their names, because all of their projects are inheritable, or because they
// are above others and have only projects or only configuration.
func (a *arranger) findShared() {
	for _, b := range a.bases {
		if at := sharedAt(b.dir); at != nil {
			a.shared[b] = at.parent
		} else if isLibrary(b) && b.dir.parent != nil {
			a.shared[b] = b.dir.parent
		}
	}
	if len(a.shared) == len(a.bases) {
		clear(a.shared)
	}
	for _, b := range a.bases {
		complete := b.has((*unit).hasProjects) && b.has((*unit).hasConfig)
		above := slices.ContainsFunc(a.bases, func(o *base) bool { return o != b && a.shared[o] == nil && o.dir.below(b.dir) })
		if a.shared[b] == nil && above && (!complete || isLibrary(b)) {
			a.shared[b] = b.dir
		}
	}
}

// sharedAt returns the highest directory at or above d whose name says that it is shared, or nil.
func sharedAt(d *dir) (found *dir) {
	for ; d.parent != nil; d = d.parent {
		if sharedNames[strings.ToLower(d.name)] {
			found = d
		}
	}
	return found
}

// isLibrary reports whether a base has only inheritable projects.
func isLibrary(b *base) bool {
	return !b.has((*unit).hasConfig) && !b.has(func(u *unit) bool {
		return slices.ContainsFunc(u.projects, func(p project) bool { return !p.inheritable })
	})
}

// findCommon finds the bases with what all gateways of one kind get. For example, beside the folder areas, which has a folder for each area,
// the folder area has the files of all areas.
func (a *arranger) findCommon() {
	for _, b := range a.bases {
		if a.shared[b] != nil || b.dir.parent == nil {
			continue
		}
		for _, plural := range []string{b.dir.name + "s", b.dir.name + "es"} {
			kind := b.dir.parent.child(plural)
			if kind != nil && slices.ContainsFunc(a.bases, func(o *base) bool { return o.dir.parent == kind && a.shared[o] == nil }) {
				a.common[kind] = b
			}
		}
	}
}

// findLevels finds where the folders of gateways are if all bases have the same name, as in gateways/north/data and gateways/south/data.
func (a *arranger) findLevels(own []*base) {
	for len(own) > 1 {
		name := a.site(own[0]).name
		if slices.ContainsFunc(own, func(b *base) bool {
			return a.site(b).name != name || a.site(b).parent == nil || a.site(b).parent.parent == nil
		}) {
			return
		}
		a.levels++
	}
}

// site returns the folder that a gateway is named after.
func (a *arranger) site(b *base) *dir {
	d := b.dir
	for range a.levels {
		d = d.parent
	}
	return d
}

func (a *arranger) isCommon(b *base) bool {
	for _, c := range a.common {
		if c == b {
			return true
		}
	}
	return false
}

// addSites adds the profiles of sibling folders. parent is nil for the root of the repository.
func (a *arranger) addSites(source Source, parent *dir, sites []*base) error {
	templated, err := a.followGateways(source, parent, sites)
	if err != nil {
		return err
	}
	if !templated {
		for _, b := range sites {
			p := &profile{name: a.site(b).name, dir: a.site(b), mappings: a.inherited(b.dir)}
			p.addOwn(b)
			a.profiles = append(a.profiles, p)
		}
		return nil
	}
	p := &profile{name: singular(parent.name), dir: parent, gateways: parent, mappings: a.inherited(sites[0].dir)}
	if c := a.common[parent]; c != nil {
		p.name = c.dir.name
	}
	p.addTemplate(parent, strings.TrimPrefix(sites[0].dir.path, a.site(sites[0]).path), sites)
	a.profiles = append(a.profiles, p)
	return nil
}

// inherited returns the mappings of what the gateway of a directory shares with others, the most general first.
func (a *arranger) inherited(d *dir) []*mapping {
	var from []*base
	for b, scope := range a.shared {
		if d.below(scope) && d != b.dir {
			from = append(from, b)
		}
	}
	slices.SortFunc(from, func(x, y *base) int {
		return cmp.Or(cmp.Compare(len(a.shared[x].path), len(a.shared[y].path)), strings.Compare(x.dir.path, y.dir.path))
	})
	var list []*mapping
	for _, b := range from {
		for _, u := range b.sorted() {
			list = append(list, &mapping{source: u.source(b), dest: u.dest, units: []*unit{u}, shared: true})
		}
	}
	for kind, b := range a.common {
		if d.parent == kind {
			for i, u := range b.sorted() {
				list = append(list, &mapping{source: u.source(b), dest: u.dest, units: []*unit{u}, required: i == 0})
			}
		}
	}
	return list
}

// sorted returns the units in the order of their mappings: projects, configuration, and what overlays the configuration.
func (b *base) sorted() []*unit {
	return slices.SortedStableFunc(slices.Values(b.units), func(x, y *unit) int {
		switch {
		case x.hasProjects() != y.hasProjects():
			return map[bool]int{true: -1, false: 1}[x.hasProjects()]
		case x.dest == y.dest || !x.hasConfig():
			return 0
		}
		return strings.Compare(x.dest, y.dest)
	})
}

// addOwn adds the mappings of the profile's own base. The first one is required: a commit without that folder is refused, and does not delete
// its files.
func (p *profile) addOwn(b *base) {
	for i, u := range b.sorted() {
		p.mappings = append(p.mappings, &mapping{source: u.source(b), dest: u.dest, units: []*unit{u}, required: i == 0})
	}
}

// addTemplate adds the mappings of sibling folders as templates. The first one that all of them have is required. below is the path of the base
// in the folder of a gateway.
func (p *profile) addTemplate(parent *dir, below string, sites []*base) {
	byPlace := map[[2]string]*mapping{}
	var own []*mapping
	for _, b := range sites {
		for _, u := range b.sorted() {
			key := [2]string{u.rel, u.dest}
			m := byPlace[key]
			if m == nil {
				m = &mapping{source: path.Join(parent.path, gatewayName, below, u.rel), dest: u.dest}
				byPlace[key], own = m, append(own, m)
			}
			m.units = append(m.units, u)
		}
	}
	if i := slices.IndexFunc(own, func(m *mapping) bool { return len(m.units) == len(sites) }); i >= 0 {
		own[i].required = true
	}
	p.mappings = append(p.mappings, own...)
}

// followGateways reports whether sibling folders have the names of gateways, so that one template can replace their profiles.
func (a *arranger) followGateways(source Source, parent *dir, sites []*base) (bool, error) {
	if parent == nil || len(sites) < 2 || slices.ContainsFunc(sites, func(b *base) bool { return !fitsTemplate(b, a.site(b).name) }) {
		return false, nil
	}
	switch {
	case a.common[parent] != nil, len(sites) >= manySites:
		return true, nil
	case len(sites) < fewSites:
		return false, nil
	case strings.EqualFold(parent.name, "gateways"):
		return true, nil
	}
	return a.systemNamesFollow(source, sites)
}

// fitsTemplate reports whether a name can be that of a gateway, and the mappings of a base those of a template.
func fitsTemplate(b *base, name string) bool {
	return len(validation.IsDNS1123Label(name)) == 0 && !b.has(func(u *unit) bool { return strings.HasPrefix(u.dest, projectsDir+"/") || len(u.stray) > 0 })
}

// systemNamesFollow reports whether the system name of each base is the name of its folder.
func (a *arranger) systemNamesFollow(source Source, sites []*base) (bool, error) {
	var ids []plan.ID
	for _, b := range sites {
		id, ok := b.systemProperties()
		if !ok {
			return false, nil
		}
		ids = append(ids, id)
	}
	if err := source.Prefetch(ids); err != nil {
		return false, err
	}
	for i, id := range ids {
		var properties struct{ SystemName string }
		if ok, err := readJSON(source, id, &properties); err != nil || !ok || !strings.EqualFold(properties.SystemName, a.site(sites[i]).name) {
			return false, err
		}
	}
	return true, nil
}

// systemProperties returns the file with the name of the gateway.
func (b *base) systemProperties() (plan.ID, bool) {
	for _, u := range b.units {
		if id, ok := u.singleton(systemProperties); ok {
			return id, true
		}
	}
	return plan.ID{}, false
}

// systemProperties is the resource with the name of the gateway.
const systemProperties = "system-properties"

// singleton returns the configuration of a resource of the platform of which a gateway has one.
func (u *unit) singleton(name string) (plan.ID, bool) {
	for _, c := range u.collections {
		if d := c.dir.child(platform + "/" + name); d != nil {
			if e, ok := d.file("config.json"); ok {
				return e.ID, true
			}
		}
	}
	return plan.ID{}, false
}

// singular returns the name of one of several things: area for areas.
func singular(name string) string {
	if one := strings.TrimSuffix(name, "s"); one != "" {
		return one
	}
	return name
}

var notInName = regexp.MustCompile(`[^A-Za-z0-9._-]+`)

// nameProfiles makes the names of the profiles valid and different. A single profile is the default one, which pods need not name. Profiles
// of the same name get that of the folder above, too.
func (a *arranger) nameProfiles() {
	if len(a.profiles) == 1 {
		a.profiles[0].name = v1alpha1.DefaultProfile
		return
	}
	count := map[string]int{}
	for _, p := range a.profiles {
		count[p.name]++
	}
	taken := map[string]bool{}
	for _, p := range a.profiles {
		if count[p.name] > 1 && p.dir.parent != nil {
			p.name = p.dir.parent.name + "-" + p.name
		}
		name := strings.Trim(notInName.ReplaceAllString(p.name, "-"), "._-")
		name = strings.TrimRight(name[:min(len(name), maxProfileName)], "._-")
		name = cmp.Or(name, v1alpha1.DefaultProfile)
		p.name = name
		for n := 2; taken[p.name]; n++ {
			p.name = fmt.Sprintf("%s-%d", name, n)
		}
		taken[p.name] = true
	}
}

func (a *arranger) checkLimits() error {
	if len(a.profiles) > maxProfiles {
		return failure.New(v1alpha1.ReasonLimitExceeded, "the commit has files of %d kinds of gateways, and a GatewaySync has at most %d profiles: "+
			"create one for each part of the repository with --dir", len(a.profiles), maxProfiles)
	}
	for _, p := range a.profiles {
		if len(p.mappings) > maxMappings {
			return failure.New(v1alpha1.ReasonLimitExceeded, "profile %s needs %d mappings, and can have %d: put the projects into one folder", p.name, len(p.mappings), maxMappings)
		}
	}
	return nil
}
