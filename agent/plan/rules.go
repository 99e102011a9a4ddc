package plan

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/bmatcuk/doublestar/v4"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"stoker.io/stoker/agent/ignition/resource"
	"stoker.io/stoker/agent/plan/relpath"
	"stoker.io/stoker/agent/plan/render"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/validation"
	"stoker.io/stoker/internal/failure"
)

// Rules are the parsed rules of a profile. Make them with ParseRules or NewRules.
type Rules struct {
	// Mappings are in order: the later of two that bring the same path wins.
	Mappings []Mapping
	Excludes Excludes
	// Mounts are the gateway's mounts below its data directory.
	Mounts   Mounts
	Conflict ConflictPolicy
	Prune    Prune
	// AnySource requires the commit to have the source of at least one mapping, even if none is Required.
	AnySource bool
	Limits    Limits
	// Facts are for the templates in files. The templates in the rules are already rendered.
	Facts Facts
	// SystemName is set in the system properties file of the deployment mode, unless its Path is empty.
	SystemName Setting
	// Form is the gateway's form of signatures, for resources whose own signature does not show it. It is not part of
	// Fingerprint, because it is unknown while the gateway is unreachable.
	Form resource.Form
}

// Facts are the values that templates can use.
type Facts = render.Facts

// Mapping brings one path of the commit to one path of the data directory.
type Mapping struct {
	Source, Destination Path
	SourceTemplate      string // of Source; "" if it has no template
	Kind                SourceKind
	Required            bool
	// Template reports whether the mapping's text files are templates.
	Template bool
	Patches  []Patch
}

// Patch sets values in JSON files of a mapping, after their template.
type Patch struct {
	// Files is a doublestar pattern relative to the mapping's destination, or "" if the mapping is one file.
	Files string
	Set   []Setting
}

// Setting is a rendered value for a path of a JSON file.
type Setting struct {
	Path, Value string
	// Volatile is the template of Value if the template uses the ref or the commit, otherwise "". The fingerprint then has the
	// template in place of the value, so that it does not change with every commit.
	Volatile string
}

// Renders reports whether the mapping may change the bytes of a file.
func (m *Mapping) Renders() bool { return m.Template || len(m.Patches) > 0 }

// SourceOf returns the path in the commit for a path at or below the destination.
func (m *Mapping) SourceOf(path string) Path {
	if path == m.Destination.Rel() {
		return m.Source
	}
	return Path(relpath.Join(m.Source.Rel(), m.relative(path)))
}

// Matches reports whether a patch applies to a file in the mapping's destination.
func (p *Patch) Matches(m *Mapping, path string) bool {
	return p.Files != "" && doublestar.MatchUnvalidated(p.Files, m.relative(path))
}

// relative returns a path below the destination relative to the destination.
func (m *Mapping) relative(path string) string {
	if dir := m.Destination.Rel(); dir != "" {
		path = strings.TrimPrefix(path, dir+"/")
	}
	return path
}

// SourceKind is what a mapping expects at its source.
type SourceKind uint8

// The zero SourceKind accepts both.
const (
	DirOrFile SourceKind = iota
	DirSource
	FileSource
)

// ConflictPolicy decides about files that both git and the gateway changed.
type ConflictPolicy uint8

// The zero ConflictPolicy is the default: git wins, and the gateway's version goes to lost+found.
const (
	GitWins ConflictPolicy = iota
	Hold
	GatewayWins
)

// Prune decides which files a sync deletes because git does not have them.
type Prune uint8

// The zero Prune is the default: a sync deletes only owned files.
const (
	PruneOwned Prune = iota
	PruneMirror
	PruneNone
)

const maxMappings = 1024

// NewRules checks what can be checked without a commit. Errors are ProfilesInvalid. Zero limits are replaced with the defaults.
func NewRules(r Rules) (Rules, error) {
	invalid := func(i int, format string, args ...any) (Rules, error) {
		return Rules{}, failure.New(v1alpha1.ReasonProfilesInvalid, "mappings[%d]: %s", i, fmt.Sprintf(format, args...))
	}
	r.Limits = r.Limits.orDefault()
	if len(r.Mappings) > maxMappings {
		return Rules{}, failure.New(v1alpha1.ReasonProfilesInvalid, "mappings has %d entries; at most %d are allowed",
			len(r.Mappings), maxMappings)
	}
	for i, m := range r.Mappings {
		if m.Kind == FileSource && m.Destination == Root {
			return invalid(i, "a file cannot replace the data directory; name the file in destination")
		}
		if m.Kind != FileSource && m.Destination == Root && r.Prune == PruneMirror {
			return invalid(i, "prune: mirror would empty the whole data directory; map the directories below it")
		}
		for j, p := range m.Patches {
			if m.Kind == DirSource && p.Files == "" {
				return invalid(i, "patches[%d]: set file to the files of the folder to patch", j)
			}
			if m.Kind == FileSource && p.Files != "" {
				return invalid(i, "patches[%d]: remove file; a file mapping has one file", j)
			}
		}
	}
	return r, nil
}

// rulesFormat must change whenever the same fields mean something else or the never-touch list changes, so that the next
// plan compares everything.
const rulesFormat = "rules 1"

// Fingerprint distinguishes rules that can lead to different plans. The manifest stores it.
func (r Rules) Fingerprint() string {
	h := sha256.New()
	fmt.Fprintln(h, rulesFormat, r.Conflict, r.Prune)
	facts := false
	for i := range r.Mappings {
		m := &r.Mappings[i]
		fmt.Fprintf(h, "%q %d\n", m.Origin(), m.Kind)
		facts = m.fingerprint(h) || facts
	}
	fmt.Fprintf(h, "%q\n", r.Excludes.patterns)
	if len(r.Mounts.paths) > 0 {
		fmt.Fprintf(h, "mounts %q\n", r.Mounts.paths)
	}
	if r.SystemName.Path != "" {
		fmt.Fprintf(h, "%q ", r.Facts.DeploymentMode)
		facts = r.SystemName.fingerprint(h) || facts
	}
	if facts {
		fmt.Fprintln(h, r.Facts.Fingerprint())
	}
	return hex.EncodeToString(h.Sum(nil))[:32]
}

// fingerprint writes what the mapping does to files, and reports whether the result also depends on the facts.
func (m *Mapping) fingerprint(h io.Writer) (facts bool) {
	if m.Template {
		fmt.Fprintln(h, "template")
	}
	for _, p := range m.Patches {
		fmt.Fprintf(h, "patch %q\n", p.Files)
		for i := range p.Set {
			facts = p.Set[i].fingerprint(h) || facts
		}
	}
	return facts || m.Template
}

func (s *Setting) fingerprint(h io.Writer) (facts bool) {
	value := s.Value
	if s.Volatile != "" {
		value = s.Volatile
	}
	fmt.Fprintf(h, "set %q %q %t\n", s.Path, value, s.Volatile != "")
	return s.Volatile != ""
}

// DependsOnRef reports whether the same commit can give other bytes under another ref. In doubt it returns true. It does not
// look at destinations, because Fingerprint has them as rendered.
func (r Rules) DependsOnRef() bool {
	return r.SystemName.Volatile != "" || slices.ContainsFunc(r.Mappings, func(m Mapping) bool {
		return m.SourceTemplate != "" || m.Template || m.VolatileValues() != ""
	})
}

// Renders reports whether the rules can change the bytes of any file: with a template, a patch or the system name.
func (r Rules) Renders() bool {
	return r.SystemName.Path != "" || slices.ContainsFunc(r.Mappings, func(m Mapping) bool { return m.Renders() })
}

// VolatileValues returns the values of the mapping's patches that depend on the ref or the commit, as one text.
func (m *Mapping) VolatileValues() string {
	var all string
	for _, p := range m.Patches {
		for _, s := range p.Set {
			if s.Volatile != "" {
				all += fmt.Sprintf("%q ", s.Value)
			}
		}
	}
	return all
}

// Origin returns the mapping as the manifest names it.
func (m *Mapping) Origin() Origin {
	return Origin{Source: string(m.Source), Destination: string(m.Destination), Template: m.SourceTemplate}
}

// Origins returns the mappings as the manifest names them.
func (r *Rules) Origins() []Origin {
	list := make([]Origin, len(r.Mappings))
	for i := range r.Mappings {
		list[i] = r.Mappings[i].Origin()
	}
	return list
}

// LeavesAlone reports whether the agent leaves a path alone, even if git has a file there.
func (r *Rules) LeavesAlone(path string) bool {
	return resource.NeverTouch(path) || r.Excludes.Match(path) || r.Mounts.At(path) != ""
}

// HasMapping reports whether the rules have the mapping that a record names.
func (r *Rules) HasMapping(o Origin) bool {
	return slices.ContainsFunc(r.Mappings, func(m Mapping) bool { return m.Origin().SameMapping(o) })
}

// String returns source and destination for messages.
func (m Mapping) String() string {
	return string(m.Source) + " → " + string(m.Destination)
}

// Validate returns the errors of a GatewaySync that can be found without a gateway: those of validation.GatewaySync,
// templates that do not parse, and unsafe paths. It does not render templates, because it has no facts of a gateway.
func Validate(gs *v1alpha1.GatewaySync) field.ErrorList {
	errs := validation.GatewaySync(gs)
	if len(errs) > 0 {
		return errs // the checks below would repeat some of these
	}
	profiles := field.NewPath("spec", "sync", "profiles")
	for _, name := range slices.Sorted(maps.Keys(gs.Spec.Sync.Profiles)) {
		for i, m := range gs.Spec.Sync.Profiles[name].Mappings {
			mapping := profiles.Key(name).Child("mappings").Index(i)
			errs = append(errs, pathErrors(mapping.Child("source"), m.Source)...)
			errs = append(errs, pathErrors(mapping.Child("destination"), m.Destination)...)
			for j, p := range m.Patches {
				for _, key := range slices.Sorted(maps.Keys(p.Set)) {
					errs = append(errs, templateErrors(mapping.Child("patches").Index(j).Child("set").Key(key), string(p.Set[key]))...)
				}
			}
		}
	}
	return errs
}

func pathErrors(path *field.Path, text string) field.ErrorList {
	if render.IsTemplate([]byte(text)) {
		return templateErrors(path, text)
	}
	if _, err := ParsePath(text); err != nil {
		return refused(path, err)
	}
	return nil
}

// templateErrors returns the error of a text that is a template and does not parse.
func templateErrors(path *field.Path, text string) field.ErrorList {
	if !render.IsTemplate([]byte(text)) {
		return nil
	}
	if _, err := render.Parse("template", text); err != nil {
		return refused(path, err)
	}
	return nil
}

// refused turns an error of the agent into a field error. It omits the value, because the error has the value if that helps, and
// cuts long texts.
func refused(path *field.Path, err error) field.ErrorList {
	return field.ErrorList{field.Invalid(path, field.OmitValueType{}, fmt.Sprintf("%.500v", err))}
}

// Mounts are the paths below the data directory at which the gateway's container has mounts of its own, such as a
// Secret mounted over a placeholder file of git. The agent leaves them alone like never-touch paths. It must not rename
// or remove a directory above such a mount either: when a mount point disappears, Linux unmounts what is mounted
// there, in the gateway's container too.
type Mounts struct {
	paths  []string // sorted, without nested ones
	folded []string // the same paths folded, because a volume may ignore case
}

// NewMounts returns the Mounts of paths relative to the data directory. It drops the root and paths that git cannot have.
func NewMounts(paths []string) Mounts {
	var list []string
	for _, p := range paths {
		if path, err := ParsePath(p); err == nil && path != Root {
			list = append(list, path.Rel())
		}
	}
	slices.Sort(list)
	var m Mounts
	for _, p := range list {
		if m.At(p) == "" {
			m.paths, m.folded = append(m.paths, p), append(m.folded, relpath.Fold(p))
		}
	}
	return m
}

// Paths returns the mounts, sorted, without nested ones.
func (m *Mounts) Paths() []string { return m.paths }

// At returns the mount at or above path, or "".
func (m *Mounts) At(path string) string {
	return m.find(path, func(path, mount string) bool { return path == mount || relpath.Below(path, mount) })
}

// Below returns a mount below path, or "".
func (m *Mounts) Below(path string) string {
	return m.find(path, func(path, mount string) bool { return relpath.Below(mount, path) })
}

// find returns the first mount that matches path, both folded, or "".
func (m *Mounts) find(path string, match func(path, mount string) bool) string {
	if len(m.paths) == 0 {
		return ""
	}
	path = relpath.Fold(path)
	i := slices.IndexFunc(m.folded, func(mount string) bool { return match(path, mount) })
	if i < 0 {
		return ""
	}
	return m.paths[i]
}

// maxPatterns bounds the exclude patterns of one gateway, and the patches of one mapping.
const maxPatterns = 1024

// Excludes is a list of doublestar patterns over destination paths. A pattern that ends in a slash or in /** matches a
// directory and all below it. One in /** also matches a file of the directory's name. Any other pattern matches only files.
type Excludes struct {
	patterns    []string
	files, dirs matcher
}

// NewExcludes compiles patterns. Their order does not matter.
func NewExcludes(patterns []string) (Excludes, error) {
	x := Excludes{files: matcher{names: map[string]bool{}}, dirs: matcher{names: map[string]bool{}}}
	if len(patterns) > maxPatterns {
		return x, failure.New(v1alpha1.ReasonProfilesInvalid, "excludePatterns has %d patterns; at most %d are allowed",
			len(patterns), maxPatterns)
	}
	for _, p := range patterns {
		if problem := validation.PathPatternProblem(p); problem != "" {
			return x, failure.New(v1alpha1.ReasonProfilesInvalid, "excludePatterns: %q %s", p, problem)
		}
		x.add(p)
	}
	return x, nil
}

func (x *Excludes) add(p string) {
	x.patterns = append(x.patterns, p)
	dir, isDir := strings.CutSuffix(p, "/")
	contents, isContents := strings.CutSuffix(p, "/**")
	switch {
	case isDir:
		x.dirs.add(dir)
	case isContents:
		x.dirs.add(contents)
		x.files.add(contents) // as in doublestar, a/** also matches a file a
	default:
		x.files.add(p)
	}
}

// Match reports whether the file at path is excluded, by itself or by a parent directory.
func (x *Excludes) Match(path string) bool {
	for i := range len(path) {
		if path[i] == '/' && x.MatchDir(path[:i]) {
			return true
		}
	}
	return x.MatchFile(path)
}

// MatchFile reports whether a pattern matches the file itself, without its parents.
func (x *Excludes) MatchFile(path string) bool {
	return x.files.match(path)
}

// MatchDir reports whether a pattern matches the directory itself, without its parents.
func (x *Excludes) MatchDir(path string) bool {
	return x.dirs.match(path)
}

// matcher matches paths against patterns.
type matcher struct {
	names    map[string]bool // has name for a pattern **/name, the most frequent form
	patterns []string        // the other patterns
}

func (m *matcher) add(p string) {
	if name, ok := strings.CutPrefix(p, "**/"); ok && !strings.ContainsAny(name, `*?[]{}\/`) {
		m.names[name] = true
		return
	}
	m.patterns = append(m.patterns, p)
}

func (m *matcher) match(path string) bool {
	return m.names[relpath.Base(path)] ||
		slices.ContainsFunc(m.patterns, func(p string) bool { return doublestar.MatchUnvalidated(p, path) })
}
