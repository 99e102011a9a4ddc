package plan

import (
	"strings"

	"golang.org/x/text/cases"
	"golang.org/x/text/unicode/norm"
)

// join appends a name to a directory; "" is the root.
func join(dir, name string) string {
	if dir == "" {
		return name
	}
	return dir + "/" + name
}

// parent returns the directory of a path, or "" for the root.
func parent(p string) string {
	if i := strings.LastIndexByte(p, '/'); i >= 0 {
		return p[:i]
	}
	return ""
}

// below reports whether p lies in dir at any depth, and is not dir itself; "" is the root.
func below(p, dir string) bool {
	if dir == "" {
		return p != ""
	}
	return len(p) > len(dir)+1 && p[len(dir)] == '/' && p[:len(dir)] == dir
}

// base returns the last element of a path.
func base(p string) string { return p[strings.LastIndexByte(p, '/')+1:] }

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
