package plan

import (
	"fmt"
	"strings"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// noSource returns the error for a first sync whose mappings match nothing in the commit. That is a typing error, and
// must not look like a synced gateway. The message shows what the commit has instead.
func (d *Desired) noSource() error {
	var want []string
	for _, m := range d.missing {
		want = append(want, string(m.Source))
	}
	have, err := d.near(d.missing[0].Source)
	if err != nil {
		return err
	}
	return failure.New(v1alpha1.ReasonSourceMissing, "the commit has none of the sources of the mappings (%s); it has %s: correct spec.sync.profiles",
		some(want[:min(len(want), heldPaths)], len(want)), have)
}

// near lists the deepest directory of the commit on the way to p.
func (d *Desired) near(p Path) (string, error) {
	dir, at := "", d.root
	for name := range strings.SplitSeq(string(p), "/") {
		entries, err := d.objects.Tree(at)
		if err != nil {
			return "", fmt.Errorf("look into the commit: %w", err)
		}
		found := false
		for _, e := range entries {
			if e.Name == name && e.Mode == Directory {
				dir, at, found = join(dir, name), e.ID, true
			}
		}
		if !found {
			break
		}
	}
	entries, err := d.objects.Tree(at)
	if err != nil {
		return "", fmt.Errorf("look into the commit: %w", err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name)
	}
	where := "at its top "
	if dir != "" {
		where = "in " + dir + " "
	}
	return where + some(names[:min(len(names), heldPaths)], len(names)), nil
}
