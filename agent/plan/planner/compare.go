package planner

import (
	"errors"
	"fmt"

	"stoker.io/stoker/agent/ignition/resource"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/plan/desired"
	"stoker.io/stoker/agent/plan/relpath"
	"stoker.io/stoker/internal/bound"
)

// comparer compares files of the disk with versions of git.
type comparer struct {
	state    plan.State
	tree     *desired.Tree
	previous *desired.Tree // nil for a full plan
	verify   bool          // hash every file, even if stat agrees with the record
}

// foundID returns the blob id of the file at path; st is its Stat. If owned, rec is its record: unless verify is set, a file with the
// size and mtime of rec has the id rec.Have. Otherwise foundID hashes the content.
func (r *comparer) foundID(path string, st plan.Stat, rec plan.Owned, owned bool) (plan.ID, error) {
	if owned && !r.verify && st.Size == rec.Size && st.Mtime == rec.Mtime {
		return rec.Have, nil
	}
	id, err := r.state.BlobID(path)
	if err != nil {
		return plan.ID{}, fmt.Errorf("hash %s: %w", path, err)
	}
	return id, nil
}

// sameMeaning reports whether the file on the disk means the same as git's. It returns false if only their bytes can be compared.
func (r *comparer) sameMeaning(c plan.Change) (bool, error) {
	same := comparison(&c)
	if same == nil {
		return false, nil
	}
	want, err := readBlob(r.tree, c.ID)
	if errors.Is(err, errTooLarge) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read %s of the commit: %w", c.Path, err)
	}
	return r.compare(c.Path, want, same)
}

// sameAsBefore reports whether the file on the disk still means what git wanted at the last sync. It returns false if those bytes
// are too large, or no longer available because the store lost the blob or the rules that rendered it are unknown. Then the
// file counts as changed on the gateway, so that its version is saved to lost+found before git's replaces it.
func (r *comparer) sameAsBefore(c plan.Change, rec plan.Owned) (bool, error) {
	same := comparison(&c)
	if same == nil {
		return false, nil
	}
	before, err := r.contentBefore(rec)
	if err != nil {
		return false, nil //nolint:nilerr // see above
	}
	return r.compare(c.Path, before, same)
}

// isNoise reports whether the gateway changed the bytes of a file, but not the meaning. Thumbnails have no meaning.
func (r *comparer) isNoise(c plan.Change, rec plan.Owned) (bool, error) {
	if isThumbnail(c.Path) {
		return true, nil
	}
	return r.sameAsBefore(c, rec)
}

// isThumbnail reports whether a path is a thumbnail. Gateways write thumbnails by themselves, so no change of one is an edit.
func isThumbnail(path string) bool { return relpath.Base(path) == resource.Thumbnail }

func (r *comparer) compare(path string, with []byte, same func(a, b []byte) (bool, error)) (bool, error) {
	found, err := r.state.Read(path, resource.MaxCompared)
	if err != nil {
		return false, fmt.Errorf("read %s: %w", path, err)
	}
	equal, err := same(found, with)
	if err != nil {
		return false, nil //nolint:nilerr // at least one is not JSON, so they cannot be compared by meaning
	}
	return equal, nil
}

// comparison returns the function that compares the file of a change by meaning, or nil if only bytes count.
func comparison(c *plan.Change) func(a, b []byte) (bool, error) {
	if c.Found.Size > resource.MaxCompared {
		return nil
	}
	return resource.Comparison(c.Path)
}

// contentBefore returns the content that git wanted for the file at the last sync (rec.Want): read from git, or rendered
// again.
func (r *comparer) contentBefore(rec plan.Owned) ([]byte, error) {
	if r.tree.Has(rec.Want) {
		return readBlob(r.tree, rec.Want)
	}
	if r.previous == nil || !r.previous.Rules().Renders() {
		return nil, desired.ErrGone
	}
	// Lookup renders the file, so that the tree can write its content.
	f, ok, err := r.previous.Lookup(rec.Path)
	if err != nil || !ok || f.ID != rec.Want {
		return nil, errors.Join(desired.ErrGone, err)
	}
	return readBlob(r.previous, rec.Want)
}

// errTooLarge is returned for a blob larger than resource.MaxCompared.
var errTooLarge = errors.New("too large to compare as JSON")

// readBlob reads at most resource.MaxCompared bytes of a blob of a tree.
func readBlob(tree *desired.Tree, id plan.ID) ([]byte, error) {
	b := bound.NewBuffer(resource.MaxCompared, func() error { return errTooLarge })
	_, err := tree.WriteBlob(b, id)
	if b.Err() != nil {
		return nil, b.Err()
	}
	return b.Bytes(), err
}
