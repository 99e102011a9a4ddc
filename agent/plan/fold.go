package plan

import (
	"strings"

	"golang.org/x/text/cases"
	"golang.org/x/text/unicode/norm"
)

// folder finds names of one directory that are the same name on file systems that ignore case or normalize Unicode. Two
// paths collide only if their elements do, so comparing siblings finds every collision of a tree while holding only one
// directory.
type folder struct {
	seen map[string]string // folded name → name
}

// add returns the sibling that collides with name, if any.
func (f *folder) add(name string) (other string, collides bool) {
	key := fold(name)
	if other, collides = f.seen[key]; !collides {
		f.seen[key] = name
	}
	return other, collides
}

// fold maps names that some file system considers equal to the same string. Lower-case ASCII, the usual case, does not
// allocate.
func fold(name string) string {
	for i := range len(name) {
		if name[i] >= 0x80 {
			return norm.NFC.String(cases.Fold().String(norm.NFC.String(name)))
		}
	}
	return strings.ToLower(name)
}
