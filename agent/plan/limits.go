package plan

import (
	"cmp"
	"strings"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// Limits bound what a commit may bring.
type Limits struct {
	Files     int   // owned files
	PathBytes int   // of one destination path
	Depth     int   // elements of one destination path
	Rendered  int64 // bytes of a templated or patched file, before and after
}

// DefaultLimits are the limits of the agent; only --max-files sets another one.
var DefaultLimits = Limits{Files: 500_000, PathBytes: 1024, Depth: 64, Rendered: 16 << 20}

// orDefault replaces zero limits with the defaults.
func (l Limits) orDefault() Limits {
	return Limits{
		Files: cmp.Or(l.Files, DefaultLimits.Files), PathBytes: cmp.Or(l.PathBytes, DefaultLimits.PathBytes),
		Depth: cmp.Or(l.Depth, DefaultLimits.Depth), Rendered: cmp.Or(l.Rendered, DefaultLimits.Rendered),
	}
}

// CheckFiles returns an error if a commit brings more than the allowed files.
func (l *Limits) CheckFiles(files int) error {
	if files <= l.Files {
		return nil
	}
	return failure.New(v1alpha1.ReasonLimitExceeded,
		"the mappings bring more files than --max-files, %d: map or exclude less", l.Files)
}

// CheckDepth returns an error if the entries of dir, which is depth elements deep, are deeper than allowed.
func (l *Limits) CheckDepth(dir string, depth int) error {
	if depth < l.Depth {
		return nil
	}
	return tooDeep(dir, l.Depth)
}

// CheckPath returns an error if path must not be written. It checks only the last element, name, and the length of the path:
// a walk has checked the parents.
func (l *Limits) CheckPath(path, name string) error {
	if err := checkName(path, name); err != nil {
		return err
	}
	if len(path) == len(name) && driveLetter(name) {
		return failure.New(v1alpha1.ReasonUnsafePath, "path %q begins with a drive letter", path)
	}
	if len(path) > l.PathBytes {
		return tooLong(path, l.PathBytes)
	}
	return nil
}

func tooLong(p string, limit int) error {
	return failure.New(v1alpha1.ReasonLimitExceeded, "path %q… has %d bytes, more than %d",
		strings.ToValidUTF8(p[:min(len(p), 80)], ""), len(p), limit)
}

func tooDeep(p string, limit int) error {
	return failure.New(v1alpha1.ReasonLimitExceeded, "path %q has more than %d names",
		strings.ToValidUTF8(p[:min(len(p), 160)], ""), limit)
}
