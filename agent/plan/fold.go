package plan

import (
	"strings"

	"golang.org/x/text/cases"
	"golang.org/x/text/unicode/norm"
)

// folder finds names of one directory that are one name on file systems that ignore case or normalise Unicode. As a
// path collides only if its elements do, comparing the siblings of each merged directory finds every colliding pair of
// a whole tree while holding no more than one directory.
type folder struct {
	seen map[string]string // folded → as it is
}

// add returns the sibling that collides with name, if there is one.
func (f *folder) add(name string) (other string, collides bool) {
	key := fold(name)
	if other, collides = f.seen[key]; !collides {
		f.seen[key] = name
	}
	return other, collides
}

// fold maps names that some file system takes for one to the same string. ASCII, the usual case, costs no allocation
// where it is in lower case.
func fold(name string) string {
	for i := range len(name) {
		if name[i] >= 0x80 {
			return norm.NFC.String(cases.Fold().String(norm.NFC.String(name)))
		}
	}
	return strings.ToLower(name)
}
