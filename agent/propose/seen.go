package propose

import (
	"encoding/hex"
	"fmt"
	"hash/fnv"
	"slices"

	"stoker.io/stoker/agent/plan"
)

// seen is what was seen of the changed files on the disk.
type seen struct {
	files map[string]plan.Stat // at the last look
	at    string               // identifies files, and the commit that the gateway had
	built *Changes             // what the last read found, without content between two calls of Step
	from  string               // at of the last read
	// described are the files that the state is about.
	described map[string]plan.Stat
}

// look looks at the changed files without reading them. It returns a hash that changes if one of them is written.
func (v *seen) look(base Base, paths []string) (string, error) {
	h, files := fnv.New128a(), make(map[string]plan.Stat, len(paths))
	for _, p := range paths {
		st, err := base.State.Stat(p)
		if err != nil {
			return "", err
		}
		files[p] = st
		fmt.Fprintf(h, "%q %+v\n", p, st)
	}
	hash := hex.EncodeToString(h.Sum(nil))
	v.files, v.at = files, hash+" "+base.Commit.String()
	return hash, nil
}

// isRead reports whether read has read what look has seen.
func (v *seen) isRead() bool { return v.from == v.at }

// read reads the files that look has seen.
func (v *seen) read(base Base, paths []string, s *Settings) error {
	c, err := Build(base, paths, s.Limits, s.Guard)
	if err == nil {
		v.built, v.from = c, v.at
	}
	return err
}

// dropContent drops the content of the files.
func (v *seen) dropContent() {
	if v.built != nil {
		v.built = v.built.withoutContent()
	}
}

// describes reports whether the state is about the changes at paths as they are on the disk now.
func (v *seen) describes(disk plan.State, paths []string) bool {
	return !slices.ContainsFunc(paths, func(path string) bool {
		was, known := v.described[path]
		if !known {
			return true
		}
		now, err := disk.Stat(path)
		return err != nil || now != was
	})
}
