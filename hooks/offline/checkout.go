// Package offline computes what a sync would write, from a repository and without a gateway. It uses the agent's own plan,
// templates and checks.
package offline

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"stoker.io/stoker/agent/ignition/resource"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/plan/desired"
	"stoker.io/stoker/agent/plan/planner"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// maxBlob is the agent's default limit of a single file.
const maxBlob = 512 << 20

// Checkout reads commits of a repository. Uncommitted changes of a local clone are not included.
type Checkout struct {
	remote *repo.Remote
	store  *repo.Store
	dir    string // directory of the store; Close removes it
}

// Open opens a local repository.
func Open(dir string) (_ *Checkout, err error) {
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
	return From(remote)
}

// From opens a local or remote repository. It does not connect yet. Close closes remote.
func From(remote *repo.Remote) (_ *Checkout, err error) {
	c := &Checkout{remote: remote}
	if c.dir, err = os.MkdirTemp("", "stoker-"); err == nil {
		c.store, err = repo.Open(filepath.Join(c.dir, "objects"), repo.StoreOptions{})
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// Close releases all resources.
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

// Gateway describes the gateway that a tree is made for.
type Gateway struct {
	Profile v1alpha1.Effective
	Facts   plan.Facts // without ref and commit
	// Form is that of the signatures of resources.
	Form resource.Form
}

// Refs lists the refs of the remote.
func (c *Checkout) Refs(ctx context.Context) (*repo.Refs, error) { return c.remote.Refs(ctx) }

// Allowed returns an error if at is not covered by the patterns of refs that a request may name.
func (c *Checkout) Allowed(ctx context.Context, all *repo.Refs, patterns []string, at repo.Resolution) error {
	return all.Allowed(ctx, c.store, c.remote, patterns, at)
}

// Fetch fetches a commit. Tree does so, too; a caller that makes many trees of one commit gets the errors that concern all of
// them here.
func (c *Checkout) Fetch(ctx context.Context, at repo.Resolution) error {
	_, err := c.store.Fetch(ctx, c.remote, at.Commit, at.Ref)
	return err
}

// Verify returns nil if the signature of a fetched commit, or of the tag that ref names, is what spec.git.verify demands.
func (c *Checkout) Verify(ctx context.Context, v *repo.Verifier, at repo.Resolution, ref string) error {
	return c.store.Verify(ctx, v, c.remote, at.Commit, ref)
}

// Resolve returns the commit of a ref; HEAD is the one that is checked out.
func (c *Checkout) Resolve(ctx context.Context, name string) (repo.Resolution, error) {
	ref, err := repo.ParseRef(name)
	if err != nil {
		return repo.Resolution{}, err
	}
	return c.remote.Resolve(ctx, ref)
}

// Tree returns the files of a gateway at a commit. ref is the desired ref that templates see.
func (c *Checkout) Tree(ctx context.Context, g Gateway, at repo.Resolution, ref string) (*Tree, error) {
	if _, err := c.store.Fetch(ctx, c.remote, at.Commit, at.Ref); err != nil {
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
	tree, err := desired.NewTree(c.store, root, rules)
	if err != nil {
		return nil, err
	}
	t := &Tree{Commit: at.Commit, desired: tree, refuse: g.Profile.EmbeddedSecretPolicy == v1alpha1.EmbeddedSecretRefuse}
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

// Check applies the agent's checks to every file that the plan writes. It returns the sizes of the files.
func (t *Tree) Check(changes *plan.Changes) (map[string]int64, error) {
	sizes, embedded := map[string]int64{}, resource.EmbeddedSecrets{Refuse: t.refuse}
	for _, c := range changes.List {
		if c.Op != plan.Create && c.Op != plan.Update {
			continue
		}
		n, err := t.check(c, &embedded)
		if err != nil {
			return nil, err
		}
		sizes[c.Path] = n
	}
	warn(changes, &embedded)
	return sizes, nil
}

// Faults returns the errors of Check for all files, at most limit.
func (t *Tree) Faults(changes *plan.Changes, limit int) []error {
	var errs []error
	embedded := resource.EmbeddedSecrets{Refuse: t.refuse}
	for _, c := range changes.List {
		if c.Op != plan.Create && c.Op != plan.Update || len(errs) == limit {
			continue
		}
		if _, err := t.check(c, &embedded); err != nil {
			errs = append(errs, err)
		}
	}
	warn(changes, &embedded)
	return errs
}

// warn adds a warning about embedded secrets to a plan.
func warn(changes *plan.Changes, embedded *resource.EmbeddedSecrets) {
	if w := embedded.Warning(); w != "" {
		changes.Warnings = append(changes.Warnings, w)
	}
}

func (t *Tree) check(c plan.Change, embedded *resource.EmbeddedSecrets) (int64, error) {
	check := resource.NewChecker(c.Path)
	n, err := t.desired.WriteBlob(check, c.ID)
	if bad := embedded.Check(check); bad != nil {
		return 0, bad
	}
	if err == nil && n > maxBlob {
		err = failure.New(v1alpha1.ReasonLimitExceeded, "%s has %d bytes; the limit of an agent is %d", c.Path, n, int64(maxBlob))
	}
	return n, err
}

// Write writes the content of a file to w. It returns false if there is no such file.
func (t *Tree) Write(w io.Writer, path string) (bool, error) {
	f, ok := t.files[path]
	if !ok {
		return false, nil
	}
	_, err := t.desired.WriteBlob(w, f.Have)
	return true, err
}
