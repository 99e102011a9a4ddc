package propose

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/tidwall/gjson"
	"github.com/tidwall/sjson"

	"stoker.io/stoker/agent/ignition/resource"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/plan/desired"
	"stoker.io/stoker/agent/plan/planner"
	"stoker.io/stoker/agent/plan/relpath"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// Limits on deletions. If both are exceeded, the gateway has more likely lost files than a user removed them.
const (
	maxDeletedShare = 0.3
	maxDeleted      = 20
)

// checkLimits refuses the proposal if all changes together exceed a limit.
func (x *builder) checkLimits() {
	deleted := 0
	for _, f := range x.out.Files {
		if f.Op != Deleted {
			continue
		}
		deleted++
		if dir, name := path.Split(f.Path); name == "project.json" && strings.Count(dir, "/") == 2 && strings.HasPrefix(dir, "projects/") {
			x.refuse(f.Path, v1alpha1.ReasonChangesRefused, "deletes a project: delete it in git")
		}
	}
	owned := x.Manifest.Header().Files
	if deleted > maxDeleted && float64(deleted) > maxDeletedShare*float64(owned) {
		x.refuse(x.out.Files[0].Path, v1alpha1.ReasonMassDeletion, fmt.Sprintf("%d of %d files were deleted on the gateway: delete them in git", deleted, owned))
	}
	if n := len(x.out.Files); n > x.limits.Files {
		x.refuse(x.out.Files[0].Path, v1alpha1.ReasonLimitExceeded, fmt.Sprintf("%d files were changed, more than guardrails.maxFilesPerPR (%d)", n, x.limits.Files))
	}
	if x.total > x.limits.TotalBytes {
		x.refuse(x.out.Files[0].Path, v1alpha1.ReasonLimitExceeded, fmt.Sprintf("the changed files have %d bytes, more than guardrails.maxTotalSize", x.total))
	}
}

// makeDraft makes the tree with the changes, and checks that a plan for it writes nothing: it must render to what is on the disk.
func (x *builder) makeDraft() error {
	if len(x.out.Refused) > 0 || len(x.out.Files) == 0 {
		return nil
	}
	edits := slices.Collect(maps.Values(x.edits))
	d, err := repo.NewDraft(x.Objects, x.Root, edits)
	if err != nil {
		if r := failure.Reason(err, ""); r == v1alpha1.ReasonPathCollision || r == v1alpha1.ReasonUnsafePath || r == v1alpha1.ReasonLimitExceeded {
			x.refuse(x.out.Files[0].Path, r, err.Error())
			return nil
		}
		return err
	}
	if d.Root == x.Root {
		x.out.Files = nil
		return nil
	}
	tree, err := desired.NewTree(d.Objects(), d.Root, x.Desired.Rules())
	if err != nil {
		return x.unrendered(err)
	}
	changes, err := planner.Compute(planner.Input{
		Desired: tree, Previous: x.Desired, Manifest: x.Manifest, State: x.State, From: x.Commit, AllowMassDeletion: true,
	})
	if err != nil {
		return x.unrendered(err)
	}
	for _, c := range changes.List {
		mirrored := c.Op == plan.Delete && !c.Owned && !x.proposes(c.Path) // any sync deletes the file, because of prune: mirror
		if c.Writes() && !mirrored {
			x.refuse(c.Path, v1alpha1.ReasonChangesRefused, "would be changed again by the merge, because git has it in several places or renders it differently: change it in git")
		}
	}
	x.out.Draft, x.out.edits = d, edits
	return nil
}

// proposes reports whether the proposal has a path of the data directory.
func (x *builder) proposes(p string) bool {
	return slices.ContainsFunc(x.out.Files, func(f File) bool { return f.Path == p })
}

// unrendered refuses a proposal whose tree the agent itself would reject. It returns errors that a retry may solve.
func (x *builder) unrendered(err error) error {
	r := failure.Reason(err, "")
	if r == "" || r.Class() == v1alpha1.ClassRetry {
		return err
	}
	x.refuse(x.out.Files[0].Path, r, "git would have a commit that cannot be delivered: "+err.Error())
	return nil
}

// setActor sets who changed the files of a resource, from its resource.json on the disk. A deleted resource has none.
func (x *builder) setActor(u unit) {
	if u.file != "" {
		return
	}
	b, err := x.State.Read(path.Join(u.dir, resource.File), resource.MaxCompared)
	if err != nil {
		return
	}
	actor, at := modification(b)
	for i := range x.out.Files {
		if f := &x.out.Files[i]; relpath.Parent(f.Path) == u.dir {
			f.Actor, f.At = actor, at
		}
	}
}

// digest returns Changes.Digest, a hash over the sources and their new content. Thumbnails and the modification in a resource.json do not
// count, so that the same edit on two gateways has the same digest.
func (x *builder) digest() string {
	if len(x.out.Files) == 0 && len(x.out.Refused) == 0 {
		return ""
	}
	h := sha256.New()
	for _, f := range slices.SortedFunc(slices.Values(x.out.Files), func(a, b File) int { return strings.Compare(string(a.Source), string(b.Source)) }) {
		id := f.ID
		switch path.Base(f.Path) {
		case resource.Thumbnail:
			continue
		case resource.File:
			if b, ok := x.content[f.Path]; ok {
				id = plan.BlobID(withoutModification(b.Join()))
			}
		}
		fmt.Fprintf(h, "%q %s %t %s\n", f.Source, f.Op, f.Exec, id)
	}
	for _, r := range x.out.Refused {
		fmt.Fprintf(h, "refused %q %q\n", r.Path, r.Why)
	}
	return hex.EncodeToString(h.Sum(nil))
}

const (
	modificationPath = "attributes.lastModification"
	signaturePath    = "attributes.lastModificationSignature"
)

// modification returns the actor and the timestamp of a resource.json.
func modification(b []byte) (actor, at string) {
	m := gjson.GetBytes(b, modificationPath)
	return m.Get("actor").String(), m.Get("timestamp").String()
}

// withoutModification returns a resource.json without its modification. Text that is not JSON stays as it is.
func withoutModification(b []byte) []byte {
	if !json.Valid(b) { // unlike gjson, it limits the depth
		return b
	}
	for _, p := range []string{modificationPath, signaturePath} {
		if less, err := sjson.DeleteBytes(b, p); err == nil {
			b = less
		}
	}
	return b
}
