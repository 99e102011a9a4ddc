package propose

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/plan/relpath"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/api/v1alpha1"
)

// Notes keeps small texts durably in the data directory. *disk.Dir implements it.
type Notes interface {
	// Note returns nil if there is no note of this name.
	Note(name string) ([]byte, error)
	SetNote(name string, b []byte) error
}

// recordNote is the name of the note.
const recordNote = "proposal"

// record is what the agent knows about its proposal, written before each push. Programs on the gateway can change it, so it does not say
// where to push: branch and base come from the spec, and the agent does not touch a branch whose tip is not a commit of its own.
type record struct {
	Branch string `json:"branch"`
	// BranchedFrom is the parent of the first commit of the branch: what the gateway ran when the proposal began.
	BranchedFrom plan.ID `json:"branchedFrom"`
	// Tip is the last commit that was pushed. Pending is a commit whose push has begun: the server may have it.
	Tip     plan.ID `json:"tip"`
	Pending plan.ID `json:"pending"`
	// Digest and Files are the changes of Pending, or else of Tip. Files is by source. Digest is "" if no proposal is active.
	Digest string                 `json:"digest"`
	Files  map[plan.Path]proposed `json:"files,omitempty"`
	// Commit is what the gateway ran when the files were last checked for what a sync has replaced.
	Commit plan.ID `json:"commit,omitzero"`
	// Number and URL are those of the pull request; 0 before it is open.
	Number int64  `json:"number,omitempty"`
	URL    string `json:"url,omitempty"`
	// Shared is set if the pull request is that of another gateway with the same change.
	Shared bool `json:"shared,omitempty"`
	// Head is the branch of a shared pull request.
	Head string `json:"head,omitempty"`
	// TextDigest is the Digest in the text of the pull request.
	TextDigest string `json:"textDigest,omitempty"`
	// Merged is set if the forge has merged the pull request. The commit on the disk may be older.
	Merged bool `json:"merged,omitempty"`
	// Foreign is set if the tip of the branch is a commit of another author.
	Foreign bool `json:"foreign,omitempty"`
	// FinalState is the state with which the proposal ends: its pull request is still to be closed, and its branch to be deleted.
	// Comment is why. FinalState is "" if the proposal goes on.
	FinalState v1alpha1.ProposalState `json:"finalState,omitempty"`
	Comment    string                 `json:"comment,omitempty"`
	// LastState is the state with which the last proposal ended. It is shown until the next one begins.
	LastState v1alpha1.ProposalState `json:"lastState,omitempty"`
	// LastTip is the tip of the last proposal's branch, which may still exist.
	LastTip plan.ID `json:"lastTip"`
	// Closed are the digests of pull requests that were closed without a merge, newest last.
	Closed []string `json:"closed,omitempty"`
	// Renewed is the last request to propose again that was handled.
	Renewed string `json:"renewed,omitempty"`
	// Pushes are the times of the last pushes.
	Pushes []time.Time `json:"pushes,omitempty"`

	verifiedTip plan.ID // a tip that this process has pushed or checked; not stored, because the file can be forged
}

// proposed is a file of a proposal.
type proposed struct {
	Path string  `json:"path"` // in the data directory
	Op   Op      `json:"op"`
	Exec bool    `json:"exec,omitempty"`
	ID   plan.ID `json:"id"` // its blob; zero if the file is deleted
	// Overwritten is set if a sync replaced the gateway's version. The file stays in the proposal, because no user undid its change.
	Overwritten bool `json:"overwritten,omitempty"`
}

// maxClosed bounds record.Closed.
const maxClosed = 16

// kept is the record as this process has loaded and changed it.
type kept struct {
	record
	loaded bool
	// restarted reports that the commit of the gateway was not compared with the record since it was loaded.
	restarted bool
}

// load reads the record, once.
func (k *kept) load(n Notes) error {
	if k.loaded {
		return nil
	}
	rec, err := loadRecord(n)
	if err == nil {
		*k = kept{rec, true, true}
	}
	return err
}

// setCommit records the commit that the gateway runs, and marks the proposed files that a sync has replaced. overwrote reports that a sync has
// written files since the last comparison. After a restart of the agent, another commit than the recorded one shows that, too. changed are the
// paths that differ from git.
func (k *kept) setCommit(n Notes, base Base, changed []string, overwrote bool) error {
	restarted := k.restarted
	k.restarted = false
	if !k.active() || !overwrote && (!restarted || k.Commit == base.Commit) {
		return nil
	}
	save := k.Commit != base.Commit
	if overwrote || !k.Commit.IsZero() {
		marked, err := k.markOverwritten(base.Manifest, changed)
		if err != nil {
			return err
		}
		save = save || marked
	}
	if k.Commit = base.Commit; !save {
		return nil
	}
	return k.save(n)
}

// active reports whether there is a proposal that has not ended.
func (r *record) active() bool { return r.Digest != "" }

// end ends the proposal and sets the state that is shown, "" for none.
func (r *record) end(how v1alpha1.ProposalState) {
	tip := r.Tip
	if tip.IsZero() {
		tip = r.LastTip
	}
	*r = record{LastState: how, LastTip: tip, Closed: r.Closed, Pushes: r.Pushes, URL: r.URL, Number: r.Number, Branch: r.Branch, Renewed: r.Renewed}
}

// drop forgets a proposal of another branch, and an end without a proposal. Either the spec names a new branch, and the agent leaves the old
// one alone, or the record is forged. drop reports whether it forgot something.
func (r *record) drop(branch string) bool {
	other := r.Branch != "" && r.Branch != branch || r.active() && r.Branch != branch
	if !other && (r.FinalState == "" || r.active()) {
		return false
	}
	*r = record{Closed: r.Closed, Pushes: r.Pushes, Renewed: r.Renewed}
	return true
}

// published reports whether the pull request is open and shows the changes.
func (r *record) published() bool {
	return r.Number > 0 && (r.Shared || r.Foreign || r.TextDigest == r.Digest)
}

// close remembers the digest of a pull request that was closed.
func (r *record) close(digest string) {
	if digest != "" && !slices.Contains(r.Closed, digest) {
		r.Closed = append(r.Closed, digest)
		r.Closed = r.Closed[max(0, len(r.Closed)-maxClosed):]
	}
}

// loadRecord reads the record. A damaged one counts as none: recover then finds the branch on the server.
func loadRecord(n Notes) (record, error) {
	b, err := n.Note(recordNote)
	if err != nil || b == nil {
		return record{}, err
	}
	var r record
	if err := json.Unmarshal(b, &r); err != nil {
		return record{}, nil //nolint:nilerr // see above
	}
	r.Number = max(r.Number, 0) // no forge has such a number
	return r, nil
}

// save writes the record durably.
func (r *record) save(n Notes) error {
	b, err := json.Marshal(r)
	if err == nil {
		err = n.SetNote(recordNote, b)
	}
	if err != nil {
		return fmt.Errorf("record the proposal: %w", err)
	}
	return nil
}

// filesOf returns the files of changes as a record has them.
func filesOf(c *Changes) map[plan.Path]proposed {
	m := make(map[plan.Path]proposed, len(c.Files))
	for _, f := range c.Files {
		m[f.Source] = proposed{Path: f.Path, Op: f.Op, Exec: f.Exec, ID: f.ID, Overwritten: f.overwritten}
	}
	return m
}

// markOverwritten marks the proposed files that equal git after a sync. changed are the paths that still differ from git; they lack what a
// comparison adopted, such as the resource.json of a changed view. It reports whether it marked one.
func (r *record) markOverwritten(m plan.Manifest, changed []string) (marked bool, err error) {
	dirs := map[string]bool{}
	for _, p := range changed {
		dirs[relpath.Parent(p)] = true
	}
	for source, f := range r.Files {
		if _, still := slices.BinarySearch(changed, f.Path); still || f.Overwritten {
			continue
		}
		if rec, owned, err := m.Get(f.Path); err != nil {
			return false, err
		} else if owned && rec.Have != rec.Want && dirs[relpath.Parent(f.Path)] {
			continue
		}
		f.Overwritten = true
		r.Files[source], marked = f, true
	}
	return marked, nil
}

// hasOverwritten reports whether the proposal has files that a sync has overwritten.
func (r *record) hasOverwritten() bool {
	for _, f := range r.Files {
		if f.Overwritten {
			return true
		}
	}
	return false
}

// covers reports whether the proposal has all changes of c.
func (r *record) covers(c *Changes) bool {
	for _, f := range c.Files {
		if had, ok := r.Files[f.Source]; !ok || had.ID != f.ID || had.Exec != f.Exec {
			return c.Digest == r.Digest
		}
	}
	return len(c.Refused) == 0
}

// clone returns a copy for a job.
func (r record) clone() record {
	r.Files, r.Closed, r.Pushes = maps.Clone(r.Files), slices.Clone(r.Closed), slices.Clone(r.Pushes)
	return r
}

// withOverwritten adds to c the files of the proposal that a sync has overwritten, because the next commit must not undo them. Their content
// is on the server only. The record can be forged, so each file must pass the rules for paths again, and all of them the limits.
func (r *record) withOverwritten(s *Settings, base Base, c *Changes) *Changes {
	if len(c.Files) == 0 || len(c.Refused) > 0 || r.Merged || r.Tip.IsZero() || !r.hasOverwritten() {
		return c
	}
	out := &Changes{Files: slices.Clone(c.Files), Digest: c.Digest, edits: slices.Clone(c.edits), contentDropped: c.contentDropped}
	h := sha256.New()
	fmt.Fprintln(h, c.Digest)
	for _, source := range slices.Sorted(maps.Keys(r.Files)) {
		f := r.Files[source]
		if !f.Overwritten || slices.ContainsFunc(c.Files, func(n File) bool { return n.Source == source }) || !s.Watches(f.Path) {
			continue
		}
		src, ok, err := base.Desired.Source(f.Path)
		if err != nil || !ok || src.Path != source {
			continue
		}
		if _, denied := s.Guard.Path(f.Path, source); denied {
			continue
		}
		op := Modified
		switch {
		case f.ID.IsZero():
			op = Deleted
		case src.ID.IsZero():
			op = Added
		}
		out.Files = append(out.Files, File{Path: f.Path, Source: source, Op: op, Exec: f.Exec, ID: f.ID, overwritten: true})
		out.edits = append(out.edits, repo.Edit{Path: string(source), Delete: f.ID.IsZero(), Known: f.ID, Exec: f.Exec})
		fmt.Fprintf(h, "%q %t %s\n", source, f.Exec, f.ID)
	}
	if len(out.Files) == len(c.Files) {
		return c
	}
	out.Digest = hex.EncodeToString(h.Sum(nil))
	if maps.EqualFunc(filesOf(out), r.Files, func(a, b proposed) bool { return a.ID == b.ID && a.Exec == b.Exec }) {
		out.Digest = r.Digest // the tip has all of it
	}
	slices.SortFunc(out.Files, func(a, b File) int { return strings.Compare(a.Path, b.Path) })
	x := newBuilder(base, s.Limits, s.Guard)
	x.out = out
	x.checkLimits()
	return out
}

// inGit reports whether the commit on the disk has the proposed files. One is enough if the forge has merged them, because a reviewer may have
// left out the others.
func (r *record) inGit(b Base) (bool, error) {
	if !r.active() || b.Commit == r.BranchedFrom { // BranchedFrom lacks the changes
		return false, nil
	}
	for source, want := range r.Files {
		if r.Merged && want.Overwritten { // git may have had it before the merge
			continue
		}
		e, err := lookup(b.Objects, b.Root, source)
		if err != nil {
			return false, err
		}
		if has := e.ID == want.ID && (e.Mode == plan.Executable) == want.Exec; has == r.Merged {
			return has, nil
		}
	}
	return !r.Merged, nil
}

// lookup returns the entry at a path of a tree, or the zero Entry if the path does not exist.
func lookup(objects plan.Objects, root plan.ID, source plan.Path) (plan.Entry, error) {
	e := plan.Entry{Mode: plan.Directory, ID: root}
	for name := range strings.SplitSeq(string(source), "/") {
		if e.Mode != plan.Directory {
			return plan.Entry{}, nil
		}
		entries, err := objects.Tree(e.ID)
		if err != nil {
			return plan.Entry{}, err
		}
		i := slices.IndexFunc(entries, func(e plan.Entry) bool { return e.Name == name })
		if i < 0 {
			return plan.Entry{}, nil
		}
		e = entries[i]
	}
	return e, nil
}

// withdrawFor ends the proposal because its pull request is not into the branch base: the spec names another one, or a user moved it.
func (r *record) withdrawFor(base string) {
	r.FinalState, r.Comment = v1alpha1.ProposalWithdrawn, "It is proposed again, into "+base+"."
}
