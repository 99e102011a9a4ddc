package sync

import (
	"context"
	"errors"
	"io"
	"io/fs"

	"stoker.io/stoker/agent/disk"
	"stoker.io/stoker/agent/ignition"
	"stoker.io/stoker/agent/ignition/resource"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo"
)

// rulesAt reads the profile as it is for a ref and a commit: its templates may ask for them. What the gateway has mounted
// counts among the rules.
func (s *run) rulesAt(ref string, commit plan.ID) (plan.Rules, error) {
	f := s.t.Facts
	f.Ref, f.Commit = ref, commit.String()
	r, err := plan.ParseRules(s.t.Profile, f, s.Limits)
	if err != nil {
		return r, err
	}
	seen, err := disk.Mounts(s.DataDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // of a directory that is not there others speak
		return r, err
	}
	r.Mounts = plan.NewMounts(append(seen, s.Mounts...))
	return r, nil
}

// desire makes the tree of the target.
func (s *run) desire(commit plan.ID) (*plan.Desired, error) {
	d, err := s.desireBy(commit, s.rules)
	if err == nil {
		s.desired = d
	}
	return d, err
}

func (e *Engine) desireBy(commit plan.ID, rules plan.Rules) (*plan.Desired, error) {
	root, err := e.Store.RootTree(commit)
	if err != nil {
		return nil, err
	}
	return e.cache.Desire(objects{e.Store, e}, root, rules)
}

// previous is the tree that the manifest was written for.
func (s *run) previous(h plan.Header) (*plan.Desired, error) {
	rules, err := s.rulesAt(h.Ref, h.Commit)
	if err != nil {
		return nil, err
	}
	rules.Form = s.rules.Form
	root, err := s.Store.RootTree(h.Commit)
	if err != nil {
		return nil, err
	}
	return s.cache.Desire(objects{spare{s.Store}, s.Engine}, root, rules)
}

// objects reads what a tree of files is made of until the context of Engine.during ends: plan knows no context, and a large
// commit is many trees.
type objects struct {
	plan.Objects
	e *Engine
}

func (o objects) Tree(id plan.ID) ([]plan.Entry, error) {
	if err := o.e.stopped(); err != nil {
		return nil, err
	}
	return o.Objects.Tree(id)
}

func (o objects) WriteBlob(w io.Writer, id plan.ID) (int64, error) {
	return o.Objects.WriteBlob(stoppable{w, o.e}, id)
}

type stoppable struct {
	io.Writer
	e *Engine
}

func (s stoppable) Write(b []byte) (int, error) {
	if err := s.e.stopped(); err != nil {
		return 0, err
	}
	return s.Writer.Write(b)
}

// during makes plans and looks at drift end with ctx, until off is called. What is read after files were written must not
// fail.
func (e *Engine) during(ctx context.Context) (off func()) {
	e.planning = ctx
	return func() { e.planning = nil }
}

func (e *Engine) stopped() error {
	if e.planning == nil {
		return nil
	}
	return context.Cause(e.planning)
}

// spare reads a store for who can do without what is not there any more.
type spare struct{ *repo.Store }

func (s spare) WriteBlob(w io.Writer, id plan.ID) (int64, error) {
	if !s.Has(id) && !s.Partial() { // a partial store gets what it can
		return 0, errGone
	}
	return s.Store.WriteBlob(w, id)
}

var errGone = errors.New("the object is not in the store any more")

// delivered is the tree that lies on the disk, as far as it is known: its rendered files are in no store.
type delivered struct {
	desired *plan.Desired // nil until somebody asks
	rules   plan.Rules
	commit  plan.ID
}

// remember notes what lies on the disk now.
func (s *run) remember(h plan.Header) {
	if h.Commit != s.t.Commit || h.Rules != s.rules.Fingerprint() {
		return // what lay there before this sync still does
	}
	switch {
	case !s.rules.Renders():
		s.last = delivered{}
	case s.desired != nil || s.last.commit != h.Commit || s.last.rules.Fingerprint() != h.Rules:
		s.last = delivered{desired: s.desired, rules: s.rules, commit: h.Commit}
	}
}

// wanted writes the bytes that git wanted at the last sync, for who compares them with the disk by their meaning. After a
// restart the tree that lies there is rendered once more to find them.
func (e *Engine) wanted(w io.Writer, id plan.ID) (int64, error) {
	if e.asked != nil && !e.Store.Has(id) {
		e.asked()
	}
	if e.last.commit.IsZero() || e.Store.Has(id) {
		return spare{e.Store}.WriteBlob(w, id)
	}
	if e.last.desired == nil {
		var err error
		if e.last.desired, err = e.desireBy(e.last.commit, e.last.rules); err != nil {
			return 0, err
		}
	}
	n, err := e.last.desired.WriteWanted(w, id)
	if err != nil && n == 0 {
		return spare{e.Store}.WriteBlob(w, id)
	}
	return n, err
}

// versionNote keeps the gateway's version for when it is away.
const versionNote = "gateway-version"

// form is the form in which the gateway signs. It is asked for only where something is rendered.
func (s *run) form(ctx context.Context) resource.Form {
	if !s.rules.Renders() {
		return resource.Form83
	}
	v := s.version(ctx)
	return resource.FormOf(v.Major, v.Minor)
}

// version is the gateway's version, or while it does not answer the one that it had when it did.
func (s *run) version(ctx context.Context) ignition.Version {
	note, err := s.dir.Note(versionNote)
	if err != nil {
		s.Log.Debug("the gateway's last version cannot be read", "error", err)
	}
	last := ignition.ParseVersion(string(note))
	if s.peers.Gateway == nil || s.t.BeforeStart {
		return last
	}
	p, err := s.peers.Gateway.Platform(ctx)
	if err != nil || p.Version.IsZero() {
		return last
	}
	if p.Version != last && !s.t.Profile.DryRun {
		if err := s.dir.SetNote(versionNote, []byte(p.Version.String())); err != nil {
			s.Log.Debug("the gateway's version cannot be kept", "error", err)
		}
	}
	return p.Version
}
