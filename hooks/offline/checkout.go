// Package offline computes what a sync would write, from a repository and without a gateway. It uses the agent's own code for
// plans, templates and checks.
package offline

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"stoker.io/stoker/agent/ignition/resource"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/plan/desired"
	"stoker.io/stoker/agent/plan/planner"
	"stoker.io/stoker/agent/plan/references"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/effective"
	"stoker.io/stoker/internal/failure"
)

// maxBlob is the agent's default limit of a single file.
const maxBlob = 512 << 20

// Checkout reads commits of a repository, but no uncommitted changes of a local clone.
type Checkout struct {
	remote *repo.Remote
	store  *repo.Store
	dir    string // directory of the store; Close removes it
}

// Open opens a local repository.
func Open(dir string) (*Checkout, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(abs); err != nil {
		return nil, fmt.Errorf("open the clone: %w", err)
	}
	u, err := repo.ParseURL(abs)
	if err != nil {
		return nil, err
	}
	remote, err := repo.NewRemote(u, repo.Auth{}, repo.RemoteOptions{})
	if err != nil {
		return nil, err
	}
	return New(remote)
}

// New returns a Checkout of a local or remote repository. It does not connect yet. Close closes remote, too.
func New(remote *repo.Remote) (_ *Checkout, err error) {
	c := &Checkout{remote: remote}
	if c.dir, err = os.MkdirTemp("", "stoker-"); err == nil {
		c.store, err = repo.Open(filepath.Join(c.dir, "objects"), repo.StoreOptions{})
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// Close closes the remote and removes the fetched objects.
func (c *Checkout) Close() error {
	errs := []error{c.remote.Close()}
	if c.store != nil {
		errs = append(errs, c.store.Close())
	}
	if c.dir != "" {
		errs = append(errs, os.RemoveAll(c.dir))
	}
	return errors.Join(errs...)
}

// Gateway describes the gateway that a tree is computed for.
type Gateway struct {
	Profile effective.Settings
	Facts   plan.Facts    // Tree sets the ref and the commit
	Form    resource.Form // of the signatures of resources
}

// ProfileLabel returns the name of a profile for messages. Without spec.sync.profiles, a gateway has none.
func ProfileLabel(profile string) string { return cmp.Or(profile, "none (service path)") }

// Origin returns the address of the remote origin of a local repository, or "". It may have credentials.
func (c *Checkout) Origin() (string, error) { return c.remote.Origin() }

// Refs lists the refs of the remote.
func (c *Checkout) Refs(ctx context.Context) (*repo.Refs, error) { return c.remote.Refs(ctx) }

// Allowed returns an error if at is not covered by the patterns of refs that a request may name.
func (c *Checkout) Allowed(ctx context.Context, all *repo.Refs, patterns []string, at repo.Resolution) error {
	return all.CheckAllowed(ctx, c.store, c.remote, patterns, at)
}

// Fetch fetches a commit. Tree fetches it, too, so a caller needs Fetch only to tell errors of git from those of one gateway.
func (c *Checkout) Fetch(ctx context.Context, at repo.Resolution) error {
	_, err := c.store.Fetch(ctx, c.remote, at.Commit, at.Ref)
	return err
}

// Content fetches a commit, and returns its objects, its tree and the time at which it was made.
func (c *Checkout) Content(ctx context.Context, at repo.Resolution) (objects plan.Objects, root plan.ID, made time.Time, err error) {
	if err := c.Fetch(ctx, at); err != nil {
		return nil, root, made, err
	}
	if root, err = c.store.RootTree(at.Commit); err == nil {
		made, err = c.store.Committed(at.Commit)
	}
	return c.store, root, made, err
}

// Verify returns nil if the signature of a fetched commit, or of the tag that ref names, is what spec.git.verify demands.
func (c *Checkout) Verify(ctx context.Context, v *repo.Verifier, at repo.Resolution, ref string) error {
	return c.store.Verify(ctx, v, c.remote, at.Commit, ref)
}

// Resolve returns the commit of a ref. HEAD of a local clone is the commit that is checked out.
func (c *Checkout) Resolve(ctx context.Context, name string) (repo.Resolution, error) {
	ref, err := repo.ParseRef(name)
	if err != nil {
		return repo.Resolution{}, err
	}
	return c.remote.Resolve(ctx, ref)
}

// Tree returns the files of a gateway at a commit. ref is the desired ref that templates see. When ctx is done, plans and checks of the
// tree fail, too.
func (c *Checkout) Tree(ctx context.Context, g Gateway, at repo.Resolution, ref string) (*Tree, error) {
	if err := c.Fetch(ctx, at); err != nil {
		return nil, err
	}
	g.Facts.Ref, g.Facts.Commit = ref, at.Commit.String()
	rules, err := plan.ParseRules(g.Profile, g.Facts, plan.Limits{})
	if err != nil {
		return nil, err
	}
	rules.Form = g.Form
	root, err := c.store.RootTree(at.Commit)
	if err != nil {
		return nil, err
	}
	objects := plan.CancelableObjects{Objects: c.store, Canceled: func() error { return context.Cause(ctx) }}
	tree, err := desired.NewTree(objects, root, rules)
	if err != nil {
		return nil, err
	}
	t := &Tree{Commit: at.Commit, desired: tree, refuseSecrets: g.Profile.EmbeddedSecretPolicy == v1alpha1.EmbeddedSecretRefuse}
	changes, err := t.From(&Tree{})
	if err != nil {
		return nil, err
	}
	t.record(changes, ref)
	return t, ctx.Err()
}

// From returns the changes that a sync of t makes to a gateway with the files of before.
func (t *Tree) From(before *Tree) (*plan.Changes, error) {
	return planner.Compute(planner.Input{
		Desired: t.desired, Manifest: before, State: before, From: before.Commit, To: t.Commit,
	})
}

// References returns what the files of t name and t does not have. Nothing is known of the gateway: see references.Index.
func (t *Tree) References() (references.Result, error) {
	index := references.NewIndex()
	err := index.Update(nil, t.desired, references.TreeReader(t.desired))
	if err != nil {
		return references.Result{}, err
	}
	return index.Check(nil, nil), nil
}

// Check applies the agent's checks to every file that the plan writes, and stops at the first error. It returns the sizes of the
// files in bytes, by path. It may add a warning to changes.
func (t *Tree) Check(changes *plan.Changes) (map[string]int64, error) {
	sizes, errs := t.checkFiles(changes, 1)
	if len(errs) > 0 {
		return nil, errs[0]
	}
	return sizes, nil
}

// Faults returns the errors of Check for all files, at most limit.
func (t *Tree) Faults(changes *plan.Changes, limit int) []error {
	_, errs := t.checkFiles(changes, limit)
	return errs
}

// checkFiles checks the files that a plan writes until there are limit errors.
func (t *Tree) checkFiles(changes *plan.Changes, limit int) (sizes map[string]int64, errs []error) {
	sizes = map[string]int64{}
	embedded := resource.EmbeddedSecrets{Refuse: t.refuseSecrets}
	for _, c := range changes.List {
		if c.Op != plan.Create && c.Op != plan.Update {
			continue
		}
		size, err := t.check(c, &embedded)
		if err == nil {
			sizes[c.Path] = size
			continue
		}
		if errs = append(errs, err); len(errs) == limit {
			break
		}
	}
	if w := embedded.Warning(); w != "" {
		changes.Warnings = append(changes.Warnings, w)
	}
	return sizes, errs
}

func (t *Tree) check(c plan.Change, embedded *resource.EmbeddedSecrets) (size int64, err error) {
	checker := resource.NewChecker(c.Path)
	size, err = t.desired.WriteBlob(checker, c.ID)
	if err == nil {
		err = embedded.Check(checker)
	}
	if err == nil && size > maxBlob {
		err = failure.New(v1alpha1.ReasonLimitExceeded, "%s has %d bytes; the limit of an agent is %d", c.Path, size, int64(maxBlob))
	}
	return size, err
}

// Commit has the objects of one commit. Its blobs are fetched when they are read.
type Commit struct {
	plan.CancelableObjects
	root     plan.ID
	prefetch func([]plan.ID) error
}

// Commit returns the objects of a commit, of which it fetches only the trees. When ctx is done, reads fail.
func (c *Checkout) Commit(ctx context.Context, at repo.Resolution) (*Commit, error) {
	if _, err := c.store.FetchTrees(ctx, c.remote, at.Commit, at.Ref); err != nil {
		return nil, err
	}
	root, err := c.store.RootTree(at.Commit)
	if err != nil {
		return nil, err
	}
	objects := plan.CancelableObjects{Objects: c.store, Canceled: func() error { return context.Cause(ctx) }}
	prefetch := func(ids []plan.ID) error {
		_, err := c.store.FetchBlobs(ctx, ids)
		return err
	}
	return &Commit{objects, root, prefetch}, nil
}

// Root returns the tree of the commit.
func (c *Commit) Root() plan.ID { return c.root }

// Prefetch fetches blobs, all at once.
func (c *Commit) Prefetch(ids []plan.ID) error { return c.prefetch(ids) }
