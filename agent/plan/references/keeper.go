package references

import (
	"bytes"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"slices"
	"strings"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/plan/desired"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/bound"
	"stoker.io/stoker/internal/failure"
)

// Keeper checks the commits of one gateway, and keeps the Index of the last one. The index is computed from git objects and never stored, so
// that nothing on the volume decides what a commit names. The zero Keeper is ready to use.
type Keeper struct {
	index  *Index
	commit plan.ID
	rules  plan.Rules
	found  map[Found]bool // by the last check
	logged plan.ID        // the last commit whose findings were logged
}

// IsNew reports whether the Keeper has no index, as before the first check, so that the next check reads the names in all files.
func (k *Keeper) IsNew() bool { return k.index == nil }

// Target is a commit that is about to be written.
type Target struct {
	Commit  plan.ID
	Rules   plan.Rules
	Tree    *desired.Tree
	Changes *plan.Changes
	// Redelivered reports that the gateway had the commit before, according to a record that the gateway cannot write. Check does not refuse
	// such a commit, because a rollback must always be possible.
	Redelivered bool

	Before   plan.Header // of the manifest of the last sync
	Manifest plan.Manifest
	State    plan.State
	// Unseeded reports that the gateway has not made its own files yet.
	Unseeded bool
	// Mode is the deployment mode of the gateway, or "".
	Mode string
	// Modules returns the ids of the modules that the gateway runs, or nil if it does not say. It is called only if a commit brings resources
	// of another module.
	Modules func() []string
	// TreeOf returns the tree of an earlier commit, or an error if git has lost it. RulesOf returns the rules of the spec for it.
	TreeOf  func(commit plan.ID, rules plan.Rules) (*desired.Tree, error)
	RulesOf func(ref string, commit plan.ID) (plan.Rules, error)
	Log     *slog.Logger
}

const (
	// maxShown bounds the findings in a message.
	maxShown = 3
	// maxWarned is the number of files above which names are checked only if the policy is refuse: the index of 100,000 files took 20 MiB
	// and more than a second after a start.
	maxWarned = 50_000
	// maxLookups bounds the files that one check looks for on the disk.
	maxLookups = 100_000
)

// Check returns notes about names in the files of a target that do not exist. Under the policy refuse, new findings are the error
// ReferenceMissing. Under the policy warn, an error of the check itself is only a note.
func (k *Keeper) Check(policy v1alpha1.ReferencePolicy, t Target) (notes []string, err error) {
	if policy == v1alpha1.ReferencesIgnore {
		*k = Keeper{}
		return nil, nil
	}
	refuse := policy == v1alpha1.ReferencesRefuse
	var r Result
	if !refuse && max(t.Before.Files, len(t.Changes.List)) > maxWarned {
		*k = Keeper{logged: k.logged}
	} else {
		r, err = k.check(&t)
	}
	if err != nil {
		err = fmt.Errorf("the references of %s were not checked: %w", t.Commit.Short(), err)
		if refuse {
			return nil, err
		}
		return []string{err.Error()}, nil
	}
	r.Findings = append(t.missingModules(), r.Findings...)
	if n := len(r.Findings) + r.More; n > 0 {
		if k.logged != t.Commit {
			k.logged = t.Commit
			t.Log.Warn("missing references", "commit", t.Commit.String(), "count", n, "first", r.Findings[0].String())
		}
		if refuse && !t.Redelivered {
			return nil, failure.New(v1alpha1.ReasonReferenceMissing, "%s was not written: %s; fix the commit, or set validation.references: warn", t.Commit.Short(), r.shown())
		}
		notes = append(notes, r.shown())
	}
	if r.Known > 0 {
		notes = append(notes, fmt.Sprintf("names in files that do not exist, as before this commit: %d (stoker preflight lists them)", r.Known))
	}
	return notes, nil
}

// shown returns the first findings as text.
func (r *Result) shown() string {
	shown := r.Findings[:min(len(r.Findings), maxShown)]
	list := make([]string, 0, maxShown+1)
	for i := range shown {
		list = append(list, shown[i].String())
	}
	if more := len(r.Findings) - len(shown) + r.More; more > 0 {
		list = append(list, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(list, "; ")
}

// check checks the target. What was missing before is known from the last check, or else from the commit that is on the disk. If that commit
// or its rules are not known any more, all findings count as new.
func (k *Keeper) check(t *Target) (Result, error) {
	h := t.Before
	var before map[Found]bool
	if k.index != nil && k.commit == h.Commit && k.rules.Fingerprint() == h.Rules && k.rules.Facts.Ref == h.Ref {
		before = k.found
	}
	r, err := k.checkTarget(t, before)
	if err != nil || before != nil || len(r.Findings) == 0 {
		return r, err
	}
	if err := k.moveBack(t, h); err != nil {
		t.Log.Debug("all missing references count as new", "reason", err)
	} else {
		before = k.index.Check(nil, t.disk(nil)).Found
	}
	return k.checkTarget(t, before)
}

// checkTarget checks the target. before has the findings that are not new.
func (k *Keeper) checkTarget(t *Target, before map[Found]bool) (Result, error) {
	if err := k.move(t, t.Commit, t.Rules, t.Tree); err != nil {
		return Result{}, err
	}
	r := k.index.Check(before, t.disk(t.Changes))
	k.found = r.Found
	return r, nil
}

var errOtherRules = errors.New("the last commit or its rules are not known")

// moveBack moves the index to the commit that is on the disk.
func (k *Keeper) moveBack(t *Target, h plan.Header) error {
	if h.Commit.IsZero() {
		return errOtherRules
	}
	rules, err := t.RulesOf(h.Ref, h.Commit)
	if err != nil {
		return err
	}
	if h.Rules != "" && h.Rules != rules.Fingerprint() {
		return errOtherRules
	}
	rules.Form = t.Rules.Form
	tree, err := t.TreeOf(h.Commit, rules)
	if err != nil {
		return err
	}
	return k.move(t, h.Commit, rules, tree)
}

// move moves the index to a commit. After an error the index is empty.
func (k *Keeper) move(t *Target, commit plan.ID, rules plan.Rules, tree *desired.Tree) error {
	previous := *k
	*k = Keeper{logged: previous.logged}
	if previous.index == nil {
		previous.index = NewIndex()
	}
	var from *desired.Tree
	if !previous.commit.IsZero() && previous.rules.Form == rules.Form && previous.rules.Fingerprint() == rules.Fingerprint() {
		if last, err := t.TreeOf(previous.commit, previous.rules); err == nil {
			from = last
		}
	}
	err := previous.index.Update(from, tree, t.reader(tree))
	if errors.Is(err, desired.ErrPrevious) {
		err = previous.index.Update(nil, tree, t.reader(tree))
	}
	if err == nil {
		k.index, k.commit, k.rules = previous.index, commit, rules
	}
	return err
}

// reader reads files of a tree from git or, if the store lost them, from the disk.
func (t *Target) reader(tree *desired.Tree) Reader {
	read := TreeReader(tree)
	return func(path string, id plan.ID, limit int64) ([]byte, bool, error) {
		if tree.Has(id) {
			return read(path, id, limit)
		}
		rec, owned, err := t.Manifest.Get(path)
		if err != nil || !owned || rec.Have != id {
			return nil, false, err
		}
		content, err := t.State.Read(path, limit)
		return content, err == nil && plan.BlobID(content) == id, nil
	}
}

// TreeReader returns a Reader of the files of a tree. It reads them all into one buffer.
func TreeReader(tree *desired.Tree) Reader {
	var b bytes.Buffer
	return func(_ string, id plan.ID, limit int64) (content []byte, ok bool, err error) {
		b.Reset()
		_, err = tree.WriteBlob(bound.NewWriter(&b, limit, func() error { return bound.ErrTooLarge }), id)
		if errors.Is(err, bound.ErrTooLarge) {
			return nil, false, nil
		}
		return b.Bytes(), err == nil, err
	}
}

// disk returns what the data directory has after changes; nil if the gateway has not made its own files yet.
func (t *Target) disk(changes *plan.Changes) *Disk {
	if t.Unseeded {
		return nil
	}
	lookups := 0
	d := &Disk{Exists: func(path string) bool {
		if lookups++; lookups > maxLookups {
			return true // not known, so that it is not reported
		}
		if changes != nil {
			i, found := slices.BinarySearchFunc(changes.List, path, func(x plan.Change, path string) int { return strings.Compare(x.Path, path) })
			if found && changes.List[i].Op == plan.Delete {
				return false
			}
		}
		st, err := t.State.Stat(path)
		return err != nil || st.Kind != plan.Missing
	}}
	d.Read = func(path string, limit int64) ([]byte, bool) {
		if !d.Exists(path) {
			return nil, false
		}
		content, err := t.State.Read(path, limit)
		return content, err == nil
	}
	d.Files = func(dir string) iter.Seq[string] {
		return func(yield func(string) bool) {
			for f, err := range t.State.Walk(dir) {
				if lookups++; err != nil || lookups > maxLookups {
					lookups = maxLookups // nothing more is known
					return
				}
				if !yield(f.Path) {
					return
				}
			}
		}
	}
	// Ignition 8.3 makes this folder, and git never has it. Before 8.3, the configuration is in a database.
	if d.Exists("config/resources/local") {
		d.Collections = []string{"core", "external", "local"}
		if t.Mode != "" {
			d.Collections = append(d.Collections, t.Mode)
		}
	}
	return d
}
