// Package references finds names in the files of a commit that name nothing: a view that embeds a view that was renamed, a
// project without its parent, a UDT instance without its type. The files are valid JSON, so that only the gateway would notice.
//
// An Index has what the files of one commit define and name. Update moves it to another commit and reads only the files that
// differ. Check compares the names with the definitions of the commit and with the files that only the gateway has.
//
// Only names that are written out in a file are checked. Expressions, scripts and bound properties are not evaluated, and what
// is not known for sure is not reported: a finding that is wrong costs more trust than a missed one.
package references

import (
	"cmp"
	"fmt"
	"strings"

	"stoker.io/stoker/internal/failure"
)

// Kind is the kind of a thing that files name.
type Kind string

// The kinds.
const (
	Project          Kind = "project"
	UDTType          Kind = "UDT type"
	TagProvider      Kind = "tag provider"
	Database         Kind = "database connection"
	IdentityProvider Kind = "identity provider"
	UserSource       Kind = "user source"
	View             Kind = "view"
	NamedQuery       Kind = "named query"
	Module           Kind = "module"
)

// Name identifies a thing. Scope is the project of a View or NamedQuery, and the tag provider of a UDTType.
type Name struct {
	Kind  Kind
	Scope string
	Name  string
}

// key returns a form that is equal for all names that may mean the same thing. Gateways do not distinguish the case of tags, and
// whether they do for other configuration is not known. Paths in projects are exact.
func (n Name) key() Name {
	if n.Kind != View && n.Kind != NamedQuery && n.Kind != Project {
		n.Name = strings.ToLower(n.Name)
	}
	return n
}

// Problem says what is wrong with a name.
type Problem string

// The problems. NotInheritable and Cycle are only about the parent of a project.
const (
	Missing        Problem = "missing"
	NotInheritable Problem = "notInheritable"
	Cycle          Problem = "cycle"
)

// Bounds of the content of a commit. What is over them is not checked.
const (
	maxFile       = 4 << 20 // bytes of a file
	maxDepth      = 1_000   // of JSON
	maxName       = 1 << 10 // bytes of a name
	maxPointer    = 512     // bytes of a JSON pointer
	maxPerFile    = 5_000   // names in a file
	maxReferences = 100_000 // names in a commit
	maxChain      = 32      // parents of a project

	maxTypesPerFile = 2 << 20  // bytes of UDT types in a file
	maxTypes        = 16 << 20 // bytes of UDT types in a commit
)

// Finding is a thing that files name and that does not exist, or that they must not name.
type Finding struct {
	// File is the path below the data directory of the first file that names the thing, and Pointer where it does (RFC 6901). Pointer is
	// "" if the path of the file has the name.
	File    string  `json:"file"`
	Pointer string  `json:"pointer,omitempty"`
	Kind    Kind    `json:"kind"`
	Name    string  `json:"name"`
	In      string  `json:"in,omitempty"` // see Name.Scope
	Problem Problem `json:"problem"`
	// Nearest is the most similar name that exists, or "".
	Nearest string `json:"nearest,omitempty"`
	// Others is how many other places name the same thing.
	Others int `json:"others,omitempty"`
}

// String returns one line for a user. All names in it are quoted.
func (f *Finding) String() string {
	at := f.File
	if f.Pointer != "" {
		at += "#" + f.Pointer
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s names the %s %s", failure.Quote(at), f.Kind, failure.Quote(f.Name))
	switch {
	case f.Problem == NotInheritable:
		b.WriteString(", which is not inheritable")
	case f.Problem == Cycle:
		b.WriteString(", which inherits from it")
	case f.Kind == UDTType:
		fmt.Fprintf(&b, ", which the tag provider %s does not have", failure.Quote(f.In))
	case f.Kind == Module:
		b.WriteString(", which is not among the healthy modules of the gateway")
	case f.In != "":
		fmt.Fprintf(&b, ", which the project %s and its parents do not have", failure.Quote(f.In))
	default:
		b.WriteString(", which does not exist")
	}
	if f.Nearest != "" {
		fmt.Fprintf(&b, " (did you mean %s?)", failure.Quote(f.Nearest))
	}
	if f.Others > 0 {
		fmt.Fprintf(&b, " (%d more places)", f.Others)
	}
	return b.String()
}

// compare orders findings by file, pointer and name.
func compare(a, b Finding) int {
	return cmp.Or(strings.Compare(a.File, b.File), strings.Compare(a.Pointer, b.Pointer), strings.Compare(a.Name, b.Name))
}
