// Package preflight finds out before a sync whether there is something that gateways could run: with the agent's own code
// it asks git, fetches the commit, and plans it for every profile. Nothing is written anywhere but into a directory for
// temporary files.
package preflight

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"stoker.io/stoker/agent/ignition/resource"
	"stoker.io/stoker/agent/peers"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/hooks/offline"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/verb"
)

// Asked is what is looked at.
type Asked struct {
	// GatewaySync has the spec that is to count, and annotations and status as they are.
	GatewaySync *v1alpha1.GatewaySync
	// Ref is looked at in the place of the desired one, as if it was requested; "" for the desired one.
	Ref string
	// Coming means that the spec is about to be applied, and is not the one in the cluster.
	Coming bool
	// Gateways are those that are known. A profile that none of them has is looked at for one that is made up.
	Gateways []Gateway
	// Profiles narrows what is looked at; empty for all.
	Profiles []string
	Secrets  Mounts
	// Form is that of the signatures of resources.
	Form   resource.Form
	Remote repo.RemoteOptions
}

// Result is what was found.
type Result struct {
	Ref      string    `json:"ref,omitempty"`
	Commit   string    `json:"commit,omitempty"`
	Checked  []Checked `json:"checked"`
	Problems []Problem `json:"problems"`
	Warnings []string  `json:"warnings,omitempty"`
}

// Checked is a gateway that would get files.
type Checked struct {
	Gateway string `json:"gateway,omitempty"` // "" for one that was made up
	Profile string `json:"profile"`
	Files   int    `json:"files"`
}

// Problem is why a sync would fail.
type Problem struct {
	Reason  v1alpha1.Reason `json:"reason"`
	Message string          `json:"message"`
	// Gateways are those that it would fail for; empty where it is not about single ones.
	Gateways []string `json:"gateways,omitempty"`
}

const (
	// maxProblems bounds what one run tells; who has that many mends some, and runs it again.
	maxProblems = 50
	maxWarnings = 50
)

// Look finds out everything that it can in one run: what is wrong with a profile does not hide what is wrong with another.
// The error is that of a run that was ended, or of a disk.
func Look(ctx context.Context, asked Asked) (Result, error) {
	l := &look{Asked: asked, secrets: &readOnce{Secrets: asked.Secrets}, r: Result{Checked: []Checked{}, Problems: []Problem{}}}
	err := l.all(ctx)
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return l.r, err
}

type look struct {
	Asked
	secrets peers.Secrets
	r       Result
	want    v1alpha1.Desired // if the desired ref is what is looked at
}

func (l *look) all(ctx context.Context) (err error) {
	git, sound := l.spec()
	if !git || !l.credentials() {
		return nil
	}
	remote, err := peers.Git(l.GatewaySync.Spec.Git, l.secrets, l.Remote)
	if err != nil {
		l.fail(err, v1alpha1.ReasonProfilesInvalid, "")
		return nil
	}
	from, err := offline.From(remote)
	if err != nil {
		return err
	}
	defer func() {
		if bad := from.Close(); err == nil {
			err = bad
		}
	}()
	at, ok := l.resolve(ctx, from)
	if !ok {
		return nil
	}
	if err := from.Fetch(ctx, at); err != nil {
		l.fail(err, v1alpha1.ReasonGitUnreachable, "")
		return nil
	}
	for _, g := range l.targets(sound) {
		if ctx.Err() != nil {
			return nil
		}
		l.plan(ctx, from, at, g)
	}
	return nil
}

// spec looks at the object itself. It reports whether spec.git can be used, and whether all of it can.
func (l *look) spec() (git, sound bool) {
	git, sound = true, true
	for _, e := range v1alpha1.Validate(l.GatewaySync) {
		sound = false
		git = git && !below(e, "spec.git")
		l.fail(e, v1alpha1.ReasonProfilesInvalid, "")
	}
	return git, sound
}

func below(e *field.Error, path string) bool {
	return e.Field == path || strings.HasPrefix(e.Field, path+".") || strings.HasPrefix(e.Field, path+"[")
}

// credentials looks whether those for git are there; the gateways' own are their agents' affair.
func (l *look) credentials() bool {
	err := peers.Reachable(&v1alpha1.GatewaySyncSpec{Git: l.GatewaySync.Spec.Git}, l.secrets)
	if err == nil {
		return true
	}
	for _, e := range each(err) {
		l.fail(e, v1alpha1.ReasonAuthFailed, "")
	}
	return false
}

// each takes errors apart that were joined.
func each(err error) []error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return joined.Unwrap()
	}
	return []error{err}
}

// resolve asks git where the ref stands, and whether it may be asked for, as the lead does.
func (l *look) resolve(ctx context.Context, from *offline.Checkout) (repo.Resolution, bool) {
	refused := func(err error) (repo.Resolution, bool) {
		l.fail(err, v1alpha1.ReasonGitUnreachable, "")
		return repo.Resolution{}, false
	}
	all, err := from.Refs(ctx)
	if err != nil {
		return refused(err)
	}
	request, err := l.desire(all)
	if err != nil {
		return refused(err)
	}
	at, err := find(all, l.r.Ref)
	if err != nil {
		return refused(err)
	}
	if err := l.want.CheckCommit(at.Commit.String()); err != nil {
		return refused(err)
	}
	if request {
		if err := from.Allowed(ctx, all, l.GatewaySync.Spec.Git.RequestableRefs(), at); err != nil {
			return refused(err)
		}
	}
	l.r.Commit = at.Commit.String()
	return at, true
}

// desire finds the ref that is looked at, and whether that is a request.
func (l *look) desire(all *repo.Refs) (request bool, err error) {
	gs := l.GatewaySync
	want, err := v1alpha1.DesiredRef(gs, "")
	if err == nil && want.ResolveSpec {
		if at, missing := find(all, gs.Spec.Git.Ref); missing == nil {
			want, err = v1alpha1.DesiredRef(gs, at.Commit.String())
		}
	}
	if l.Ref != "" {
		l.r.Ref = l.Ref
		return l.Ref != gs.Spec.Git.Ref, nil
	}
	l.r.Ref = want.Ref
	switch held := want.Override && want.ResolveSpec; {
	case held && l.Coming:
		// What the sync asks for is what a rollback holds off: to judge the commit that it went back to would let a sync pass
		// that asks for a broken one again.
		l.warn("a rollback to %s is in force; looked at is %s, which it holds off", verb.Short(want.Ref), gs.Spec.Git.Ref)
		l.r.Ref = gs.Spec.Git.Ref
		return false, err
	case held:
		// What the sync asks for is not known: the spec in the cluster may be the one that it is about to mend.
		l.warn("a rollback to %s is in force and looked at; what it holds off, %s, is not", verb.Short(want.Ref), gs.Spec.Git.Ref)
	}
	l.want = want
	return want.Override, err
}

func find(all *repo.Refs, name string) (repo.Resolution, error) {
	ref, err := repo.ParseRef(name)
	if err != nil {
		return repo.Resolution{}, err
	}
	return all.Resolve(ref)
}

// fail notes a problem, each once. A gateway that has it, too, is added to it.
func (l *look) fail(err error, otherwise v1alpha1.Reason, gateway string) {
	p := Problem{Reason: failure.Reason(err, otherwise), Message: err.Error()}
	i := slices.IndexFunc(l.r.Problems, func(q Problem) bool { return q.Reason == p.Reason && q.Message == p.Message })
	if i < 0 {
		if len(l.r.Problems) == maxProblems {
			l.warn("there are more problems than %d", maxProblems)
			return
		}
		l.r.Problems = append(l.r.Problems, p)
		i = len(l.r.Problems) - 1
	}
	if q := &l.r.Problems[i]; gateway != "" && !slices.Contains(q.Gateways, gateway) {
		q.Gateways = append(q.Gateways, gateway)
	}
}

func (l *look) warn(format string, args ...any) {
	if w := fmt.Sprintf(format, args...); len(l.r.Warnings) < maxWarnings && !slices.Contains(l.r.Warnings, w) {
		l.r.Warnings = append(l.r.Warnings, w)
	}
}
