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

// rulesAt returns the rules for a ref and a commit, which the profile's templates may use. They include the gateway's
// mounts.
func (s *run) rulesAt(ref string, commit plan.ID) (plan.Rules, error) {
	f := s.t.Facts
	f.Ref, f.Commit = ref, commit.String()
	r, err := plan.ParseRules(s.t.Profile, f, s.Limits)
	if err != nil {
		return r, err
	}
	seen, err := disk.Mounts(s.DataDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // opening a missing directory reports it
		return r, err
	}
	r.Mounts = plan.NewMounts(append(seen, s.Mounts...))
	return r, nil
}

// desire returns the tree of the target.
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

// previous returns the tree that the manifest was written for.
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

// objects reads trees and blobs until the context of Engine.during ends. plan takes no context, and a large commit has
// many trees.
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

// during makes plans and comparisons end with ctx, until off is called. Reads after files were written must not fail.
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

// spare is a store for callers that can do without missing objects.
type spare struct{ *repo.Store }

func (s spare) WriteBlob(w io.Writer, id plan.ID) (int64, error) {
	if !s.Has(id) && !s.Partial() { // a partial store fetches what it can
		return 0, errGone
	}
	return s.Store.WriteBlob(w, id)
}

var errGone = errors.New("the object is not in the store any more")

// delivered is the tree on the disk, as far as it is known. No store has its rendered files.
type delivered struct {
	desired *plan.Desired // nil until needed
	rules   plan.Rules
	commit  plan.ID
}

// remember records what is on the disk now.
func (s *run) remember(h plan.Header) {
	if h.Commit != s.t.Commit || h.Rules != s.rules.Fingerprint() {
		return // the sync did not change the disk
	}
	switch {
	case !s.rules.Renders():
		s.last = delivered{}
	case s.desired != nil || s.last.commit != h.Commit || s.last.rules.Fingerprint() != h.Rules:
		s.last = delivered{desired: s.desired, rules: s.rules, commit: h.Commit}
	}
}

// wanted writes the bytes that git wanted at the last sync, for comparing the disk by meaning. After a restart it
// renders that tree again.
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

// versionNote has the gateway's last known version.
const versionNote = "gateway-version"

// form returns the form in which the gateway signs. It matters only if something is rendered.
func (s *run) form(ctx context.Context) resource.Form {
	if !s.rules.Renders() {
		return resource.Form83
	}
	v := s.version(ctx)
	return resource.FormOf(v.Major, v.Minor)
}

// version returns the gateway's version, or the last known one if it does not answer.
func (s *run) version(ctx context.Context) ignition.Version {
	note, err := s.dir.Note(versionNote)
	if err != nil {
		s.Log.Debug("the gateway's last version cannot be read", "error", err)
	}
	last := ignition.ParseVersion(string(note))
	if s.conn.Gateway == nil || s.t.BeforeStart {
		return last
	}
	p, err := s.conn.Gateway.Platform(ctx)
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
