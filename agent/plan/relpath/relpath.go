// Package relpath handles slash-separated paths that are relative to a root; "" is the root.
package relpath

import (
	"strings"

	"golang.org/x/text/cases"
	"golang.org/x/text/unicode/norm"
)

// Join appends a name to a directory; "" is the root.
func Join(dir, name string) string {
	if dir == "" {
		return name
	}
	return dir + "/" + name
}

// Parent returns the directory of a path, or "" for the root.
func Parent(p string) string {
	if i := strings.LastIndexByte(p, '/'); i >= 0 {
		return p[:i]
	}
	return ""
}

// Below reports whether p lies in dir at any depth, and is not dir itself; "" is the root.
func Below(p, dir string) bool {
	if dir == "" {
		return p != ""
	}
	return len(p) > len(dir)+1 && p[len(dir)] == '/' && p[:len(dir)] == dir
}

// Base returns the last element of a path.
func Base(p string) string { return p[strings.LastIndexByte(p, '/')+1:] }

// Fold returns one string for all names that some file system treats as equal. Lower-case ASCII, the usual case, does not
// allocate.
func Fold(name string) string {
	for i := range len(name) {
		if name[i] >= 0x80 {
			return norm.NFC.String(cases.Fold().String(norm.NFC.String(name)))
		}
	}
	return strings.ToLower(name)
}
