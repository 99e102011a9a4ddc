package safe

import (
	"fmt"
	"path/filepath"
	"strings"
)

// OwnDir is the agent's own folder.
const OwnDir = ".stoker"

// MaxPath bounds a path in our own files, in bytes. The plan's limit is lower.
const MaxPath = 64 << 10

// CheckPath refuses a path that could leave the data directory, or that is our own. Plans check their paths much
// earlier; this is the last check.
func CheckPath(p string) error {
	switch {
	case p == "" || p == ".":
		return fmt.Errorf("the path is empty")
	case len(p) > MaxPath:
		return fmt.Errorf("the path is too long: %d bytes", len(p))
	case strings.ContainsRune(p, 0) || !filepath.IsLocal(filepath.FromSlash(p)):
		return fmt.Errorf("%q leads out of the data directory", p)
	}
	depth := 0
	for name := range strings.SplitSeq(p, "/") {
		switch depth++; {
		case name == "" || name == "." || name == "..":
			return fmt.Errorf("%q is not a clean path", p)
		case strings.EqualFold(name, OwnDir):
			return fmt.Errorf("%q is in a folder that belongs to the agent", p)
		case depth > MaxDepth:
			return fmt.Errorf("%q is more than %d directories deep", p, MaxDepth)
		}
	}
	return nil
}
