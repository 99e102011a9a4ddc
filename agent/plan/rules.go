package plan

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// Rules are what a profile says about files, parsed. Build them with ParseRules or NewRules.
type Rules struct {
	// Mappings are in their order: of two that bring the same path, the later one wins.
	Mappings []Mapping
	Excludes Excludes
	Conflict ConflictPolicy
	Prune    Prune
	// AnySource says that the commit must have the source of at least one mapping, where none is required by itself.
	AnySource bool
	Limits    Limits
}

// Mapping brings one path of the commit to one path of the data directory.
type Mapping struct {
	Source, Destination Path
	Kind                SourceKind
	Required            bool
}

// SourceKind is what a mapping expects at its source.
type SourceKind uint8

// The zero SourceKind takes what the commit has there.
const (
	DirOrFile SourceKind = iota
	DirSource
	FileSource
)

// ConflictPolicy says what happens to a file that both git and the gateway changed.
type ConflictPolicy uint8

// The zero ConflictPolicy is the default: git wins, and the gateway's version goes to lost+found.
const (
	GitWins ConflictPolicy = iota
	Hold
	GatewayWins
)

// Prune says which files that git does not have are deleted.
type Prune uint8

// The zero Prune is the default: only what is ours is deleted.
const (
	PruneOwned Prune = iota
	PruneMirror
	PruneNone
)

// Limits bound what a commit may bring.
type Limits struct {
	Files     int // owned files
	PathBytes int // of one destination path
	Depth     int // elements of one destination path
}

// DefaultLimits are those of the agent's flags. Paths in a GatewaySync are always held to them.
var DefaultLimits = Limits{Files: 500_000, PathBytes: 1024, Depth: 64}

const maxMappings = 1024

// NewRules checks what can be wrong with rules before any commit is known. Limits that are zero are the default ones.
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
	}
	return r, nil
}

func (l Limits) orDefault() Limits {
	if l.Files == 0 {
		l.Files = DefaultLimits.Files
	}
	if l.PathBytes == 0 {
		l.PathBytes = DefaultLimits.PathBytes
	}
	if l.Depth == 0 {
		l.Depth = DefaultLimits.Depth
	}
	return l
}

// rulesFormat is raised whenever the same fields come to mean something else (also by a change of the never-touch
// list), so that the next plan compares everything.
const rulesFormat = "rules 1"

// Fingerprint tells rules that can lead to different plans apart. It is stored in the manifest.
func (r Rules) Fingerprint() string {
	h := sha256.New()
	fmt.Fprintln(h, rulesFormat, r.Conflict, r.Prune)
	for _, m := range r.Mappings {
		fmt.Fprintf(h, "%q %q %d\n", m.Source, m.Destination, m.Kind)
	}
	fmt.Fprintf(h, "%q\n", r.Excludes.patterns)
	return hex.EncodeToString(h.Sum(nil))[:32]
}

// origins returns what the manifest calls the mappings.
func (r Rules) origins() []Origin {
	list := make([]Origin, len(r.Mappings))
	for i, m := range r.Mappings {
		list[i] = Origin{Source: string(m.Source), Destination: string(m.Destination)}
	}
	return list
}

// has reports whether a mapping of these rules is the one that a record names.
func (r Rules) has(o Origin) bool {
	for _, m := range r.Mappings {
		if string(m.Source) == o.Source && string(m.Destination) == o.Destination {
			return true
		}
	}
	return false
}

// String is for people.
func (m Mapping) String() string {
	return string(m.Source) + " → " + string(m.Destination)
}
