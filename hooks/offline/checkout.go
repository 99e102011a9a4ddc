// Package offline answers what a sync would write, from a directory of git and without a gateway: with the plan, the
// templates and the checks of the agent itself.
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
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// maxBlob is the agent's default limit of a single file.
const maxBlob = 512 << 20

// Checkout reads commits of a repository. Of a directory of git (a clone, or a bare repository) what is not committed is
// not seen.
type Checkout struct {
	remote *repo.Remote
	store  *repo.Store
	dir    string // of the store; it goes with Close
}

// Open opens a directory of git.
func Open(dir string) (_ *Checkout, err error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(abs); err != nil {
		return nil, fmt.Errorf("the directory of git: %w", err)
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

// From opens a repository, wherever it is. The Checkout closes remote. Nothing is sent yet.
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

// Close lets go of everything.
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

// Gateway is for whom a tree is made.
type Gateway struct {
	Profile v1alpha1.Effective
	Facts   plan.Facts // without ref and commit
	// Form is that of the signatures of resources.
	Form resource.Form
}

// Refs asks for all refs.
func (c *Checkout) Refs(ctx context.Context) (*repo.Refs, error) { return c.remote.Refs(ctx) }

// Allowed holds what a request resolved to against the patterns of refs that a request may name.
func (c *Checkout) Allowed(ctx context.Context, all *repo.Refs, patterns []string, at repo.Resolution) error {
	return all.Allowed(ctx, c.store, c.remote, patterns, at)
}

// Fetch brings a commit. Tree does so, too; who makes many trees of one commit learns here what is wrong with all.
func (c *Checkout) Fetch(ctx context.Context, at repo.Resolution) error {
	_, err := c.store.Fetch(ctx, c.remote, at.Commit, at.Ref)
	return err
}

// Resolve finds the commit of a ref; HEAD is the one that is checked out.
func (c *Checkout) Resolve(ctx context.Context, name string) (repo.Resolution, error) {
	ref, err := repo.ParseRef(name)
	if err != nil {
		return repo.Resolution{}, err
	}
	return c.remote.Resolve(ctx, ref)
}

// Tree makes what a gateway would have at a commit. ref is what templates see as the desired ref.
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
	desired, err := plan.Desire(c.store, root, rules)
	if err != nil {
		return nil, err
	}
	t := &Tree{Commit: at.Commit, desired: desired}
	changes, err := t.From(&Tree{})
	if err != nil {
		return nil, err
	}
	t.record(changes, ref)
	return t, ctx.Err()
}

// From is what a sync of this tree does to a gateway on which before lies, and nothing else.
func (t *Tree) From(before *Tree) (*plan.Changes, error) {
	return plan.Compute(plan.Input{
		Desired: t.desired, Manifest: before, State: before, From: before.Commit, To: t.Commit,
	})
}

// Check holds what a plan writes to what a gateway must never be given. It returns the sizes of the files.
func (t *Tree) Check(changes *plan.Changes) (map[string]int64, error) {
	sizes := map[string]int64{}
	for _, c := range changes.List {
		if c.Op != plan.Create && c.Op != plan.Update {
			continue
		}
		n, err := t.check(c)
		if err != nil {
			return nil, err
		}
		sizes[c.Path] = n
	}
	return sizes, nil
}

// Faults are all that Check would say, one file after the other, at most as many as limit.
func (t *Tree) Faults(changes *plan.Changes, limit int) []error {
	var errs []error
	for _, c := range changes.List {
		if c.Op != plan.Create && c.Op != plan.Update || len(errs) == limit {
			continue
		}
		if _, err := t.check(c); err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}

func (t *Tree) check(c plan.Change) (int64, error) {
	check := resource.NewChecker(c.Path)
	n, err := t.desired.WriteBlob(check, c.ID)
	if bad := check.Close(); bad != nil {
		return 0, bad
	}
	if err == nil && n > maxBlob {
		err = failure.New(v1alpha1.ReasonLimitExceeded, "%s has %d bytes; an agent takes %d", c.Path, n, int64(maxBlob))
	}
	return n, err
}

// Write writes a file of the tree; it reports whether there is one.
func (t *Tree) Write(w io.Writer, path string) (bool, error) {
	f, ok := t.files[path]
	if !ok {
		return false, nil
	}
	_, err := t.desired.WriteBlob(w, f.Have)
	return true, err
}
