package propose

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"stoker.io/stoker/agent/plan"
)

// Notes keeps small texts durably in the data directory. *disk.Dir implements it.
type Notes interface {
	Note(name string) ([]byte, error)
	SetNote(name string, b []byte) error
}

// recordNote is the name of the note.
const recordNote = "proposal"

// record is what the agent knows about its proposal, written before each push. Programs of the gateway can change it, so nothing in it
// says where to push to: branch and base come from the spec, and a branch whose tip is not Tip is not touched.
type record struct {
	Branch string  `json:"branch"`
	Base   plan.ID `json:"base"` // the commit below the first one of the branch
	// Tip is the last commit that was pushed. Pending is one that is being pushed: the server has it or not.
	Tip     plan.ID `json:"tip"`
	Pending plan.ID `json:"pending"`
	// Digest identifies the changes of Pending, or else of Tip; Files are their sources with their blobs, zero for a deleted one.
	Digest string             `json:"digest"`
	Files  map[string]plan.ID `json:"files,omitempty"`
	// Number and URL are those of the pull request; 0 before it is open.
	Number int64  `json:"number,omitempty"`
	URL    string `json:"url,omitempty"`
	// Shared reports that the pull request is that of another gateway, which made the same change.
	Shared bool `json:"shared,omitempty"`
	// Foreign reports that the tip of the branch was not ours.
	Foreign bool `json:"foreign,omitempty"`
	// Overwritten reports that a sync replaced the gateway's version, so that its absence is no withdrawal.
	Overwritten bool `json:"overwritten,omitempty"`
	// Ended is how the last proposal ended, shown until the next one.
	Ended string `json:"ended,omitempty"`
	// Left is the tip of the last proposal's branch, which may still exist.
	Left plan.ID `json:"left"`
	// Closed are the digests of pull requests that were closed without a merge, newest last.
	Closed []string `json:"closed,omitempty"`
	// Renewed is the last request to propose again that was handled.
	Renewed string `json:"renewed,omitempty"`
	// Pushes are the times of the last pushes.
	Pushes []time.Time `json:"pushes,omitempty"`
}

const (
	maxClosed = 16
	maxPushes = 6 // per hour
)

// active reports whether there is a proposal that has not ended.
func (r *record) active() bool { return r.Digest != "" }

// end ends the proposal.
func (r *record) end(how string) {
	left := r.Tip
	if left.IsZero() {
		left = r.Left
	}
	*r = record{Ended: how, Left: left, Closed: r.Closed, Pushes: r.Pushes, URL: r.URL, Number: r.Number, Branch: r.Branch, Renewed: r.Renewed}
}

// close remembers a digest that was closed.
func (r *record) close() {
	if r.Digest != "" && !slices.Contains(r.Closed, r.Digest) {
		r.Closed = append(r.Closed, r.Digest)
		r.Closed = r.Closed[max(0, len(r.Closed)-maxClosed):]
	}
}

// next returns when the next push is allowed; the zero time means now.
func (r *record) next(now time.Time) time.Time {
	r.Pushes = slices.DeleteFunc(r.Pushes, func(t time.Time) bool { return now.Sub(t) >= time.Hour || t.After(now) })
	if len(r.Pushes) < maxPushes {
		return time.Time{}
	}
	return r.Pushes[len(r.Pushes)-maxPushes].Add(time.Hour)
}

// loadRecord reads the record. A damaged one counts as none: the branch on the server then decides.
func loadRecord(n Notes) (record, error) {
	b, err := n.Note(recordNote)
	if err != nil || b == nil {
		return record{}, err
	}
	var r record
	if err := json.Unmarshal(b, &r); err != nil {
		return record{}, nil //nolint:nilerr // see above
	}
	return r, nil
}

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

// files returns the sources of changes with their blobs.
func filesOf(c *Changes) map[string]plan.ID {
	m := make(map[string]plan.ID, len(c.Files))
	for _, f := range c.Files {
		m[string(f.Source)] = f.ID
	}
	return m
}

func (r record) clone() record {
	r.Files, r.Closed, r.Pushes = maps.Clone(r.Files), slices.Clone(r.Closed), slices.Clone(r.Pushes)
	return r
}
