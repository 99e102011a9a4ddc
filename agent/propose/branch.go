package propose

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	"github.com/go-git/go-git/v5/plumbing/format/gitattributes"

	"stoker.io/stoker/agent/forge"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/bound"
	"stoker.io/stoker/internal/failure"
)

// branch is the branch of a gateway on the git server. The record does not say which, because programs on the gateway can change it.
type branch struct {
	remote *repo.Remote
	ref    string // refs/heads/…
	owner  Identity
}

func (s *Settings) branch() branch { return branch{s.Remote, "refs/heads/" + s.Branch, s.Identity} }

// tip returns the commit of the branch as the server reports it to a client that pushes; zero if there is no branch.
func (b branch) tip(ctx context.Context) (plan.ID, error) {
	refs, err := b.remote.PushRefs(ctx)
	if err != nil {
		return plan.ID{}, err
	}
	for name, id := range refs.All() {
		if name == b.ref {
			return id, nil
		}
	}
	return plan.ID{}, nil
}

// push moves the branch from a tip to a commit of the pack.
func (b branch) push(ctx context.Context, tip, commit plan.ID, pack [][]byte) error {
	return b.remote.Push(ctx, b.ref, tip, commit, pack)
}

// delete deletes the branch if it still has the tip.
func (b branch) delete(ctx context.Context, tip plan.ID) error {
	return b.remote.Push(ctx, b.ref, tip, plan.ID{}, nil)
}

// owns reports whether a tip of the branch is a commit of its agent: the recorded one, or one on top of it, whose push succeeded after the agent had
// given it up. The record can be forged, so the commit on the server decides, unless this process has verified it before. It is enough to look
// at the tip, because the agent puts its commits only on its own ones and on the commit that the branch began with. change is the digest of the
// changes that the commit has.
func (b branch) owns(ctx context.Context, base Base, tip plan.ID, rec record) (change string, own bool, err error) {
	if tip == rec.verifiedTip {
		return rec.Digest, true, nil
	}
	text, err := base.CommitText(ctx, tip)
	t := readTrailers(text)
	known := tip == rec.Tip || tip == rec.Pending || t.parent == rec.Tip && !rec.Tip.IsZero()
	return t.change, err == nil && known && t.gateway == b.owner.trailer(), err
}

// remove closes the pull request of an ending proposal if it is still open, and deletes the branch. A branch whose tip is not a commit of this
// gateway's agent stays, and so does its pull request. The pull request of another gateway (rec.Shared) stays, too.
func remove(ctx context.Context, b branch, p pulls, base Base, rec record) error {
	if rec.Shared {
		return nil
	}
	tip, err := b.tip(ctx)
	if err != nil {
		return err
	}
	if !tip.IsZero() {
		if _, own, err := b.owns(ctx, base, tip, rec); err != nil || !own {
			return err
		}
	}
	var pr *forge.PullRequest
	switch {
	case p.PullRequests == nil:
	case rec.Number > 0:
		pr, err = p.numbered(ctx, rec.Number, p.branch)
	case !tip.IsZero(): // the answer to its creation may be lost
		pr, err = p.current(ctx)
	}
	if err == nil && pr != nil && pr.State == forge.Open {
		err = p.retract(ctx, pr, cmp.Or(rec.Comment, "Git has the change already."))
	}
	if err != nil || tip.IsZero() {
		return err
	}
	err = b.delete(ctx, tip)
	if repo.IsStale(err) || failure.Reason(err, "") == v1alpha1.ReasonPushRejected { // another author pushed, or the server keeps the branch
		return nil
	}
	return err
}

const (
	attributesFile = ".gitattributes"
	maxAttributes  = 1 << 20 // bytes of one .gitattributes
)

// attributes reads the .gitattributes files of a commit, each once.
type attributes struct {
	objects plan.Objects
	root    plan.ID
	read    map[string][]gitattributes.MatchAttribute // by the path of the file
}

// lfs reports whether git keeps a path in LFS. A commit must then have a pointer there, and not the content.
func (a *attributes) lfs(source plan.Path) (bool, error) {
	parts := strings.Split(string(source), "/")
	var rules []gitattributes.MatchAttribute
	tree := a.root
	for depth := range parts {
		entries, err := a.objects.Tree(tree)
		if err != nil {
			return false, fmt.Errorf("read the attributes of %s: %w", source, err)
		}
		below, err := a.rules(parts[:depth], entries)
		if err != nil {
			return false, err
		}
		rules = append(rules, below...)
		i := slices.IndexFunc(entries, func(e plan.Entry) bool { return e.Name == parts[depth] && e.Mode == plan.Directory })
		if i < 0 {
			break // the directory is new
		}
		tree = entries[i].ID
	}
	found, _ := gitattributes.NewMatcher(rules).Match(parts, []string{"filter"})
	f, ok := found["filter"]
	return ok && f.IsValueSet() && f.Value() == "lfs", nil
}

// rules returns the rules of the .gitattributes in one directory.
func (a *attributes) rules(dir []string, entries []plan.Entry) ([]gitattributes.MatchAttribute, error) {
	file := path.Join(path.Join(dir...), attributesFile)
	if list, ok := a.read[file]; ok {
		return list, nil
	}
	var list []gitattributes.MatchAttribute
	i := slices.IndexFunc(entries, func(e plan.Entry) bool {
		return e.Name == attributesFile && (e.Mode == plan.Regular || e.Mode == plan.Executable)
	})
	if i >= 0 {
		b := bound.NewBuffer(maxAttributes, errFull)
		if _, err := a.objects.WriteBlob(b, entries[i].ID); err != nil {
			return nil, fmt.Errorf("read %s: %w", file, err)
		}
		lines := bufio.NewScanner(bytes.NewReader(b.Bytes()))
		lines.Buffer(nil, maxAttributes+1)
		for lines.Scan() {
			if strings.HasPrefix(strings.TrimSpace(lines.Text()), `""`) {
				continue // go-git panics on it
			}
			rule, err := gitattributes.ParseAttributesLine(lines.Text(), slices.Clone(dir), len(dir) == 0)
			if err != nil {
				continue // git ignores it, with a warning
			}
			// The attributes of a directory do not apply to its files, and go-git panics when it matches them.
			if rule.Name != "" && !strings.HasSuffix(rule.Name, "/") {
				list = append(list, rule)
			}
		}
		if err := lines.Err(); err != nil {
			return nil, fmt.Errorf("read %s: %w", file, err)
		}
	}
	a.read[file] = list
	return list, nil
}

// errFull returns the error of a write that does not fit.
func errFull() error { return io.ErrShortWrite }
