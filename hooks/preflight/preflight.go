// Package preflight checks before a sync whether gateways could run its commit. It polls git, fetches the commit, and plans it
// for every profile with the agent's own code. It writes only to a temporary directory.
package preflight

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"stoker.io/stoker/agent/connect"
	"stoker.io/stoker/agent/ignition/resource"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/validation"
	"stoker.io/stoker/hooks/offline"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/request"
)

// Asked describes what to check.
type Asked struct {
	// GatewaySync has the spec to check, and the current annotations and status.
	GatewaySync *v1alpha1.GatewaySync
	// Ref replaces the desired ref, as if it was requested; "" for the desired one.
	Ref string
	// Coming means that the spec is about to be applied and is not the one in the cluster.
	Coming bool
	// Gateways are the known gateways. A profile without any is checked for a stand-in.
	Gateways []Gateway
	// Profiles restricts the check; empty for all.
	Profiles []string
	Secrets  Mounts
	// Form is that of the signatures of resources.
	Form   resource.Form
	Remote repo.RemoteOptions
}

// Result is the outcome of a check.
type Result struct {
	Ref      string    `json:"ref,omitempty"`
	Commit   string    `json:"commit,omitempty"`
	Checked  []Checked `json:"checked"`
	Problems []Problem `json:"problems"`
	Warnings []string  `json:"warnings,omitempty"`
}

// Checked is a gateway that was planned successfully.
type Checked struct {
	Gateway string `json:"gateway,omitempty"` // "" for a stand-in
	Profile string `json:"profile"`
	Files   int    `json:"files"`
}

// Problem is why a sync would fail.
type Problem struct {
	Reason  v1alpha1.Reason `json:"reason"`
	Message string          `json:"message"`
	// Gateways lists the gateways that it concerns; empty if it concerns all.
	Gateways []string `json:"gateways,omitempty"`
}

const (
	// maxProblems bounds the output; fix some of them and run the check again.
	maxProblems = 50
	maxWarnings = 50
)

// Look runs the checks. Problems of one profile do not hide those of another. The error is not about the commit: ctx ended, or
// the disk failed.
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
	secrets connect.Secrets
	r       Result
	want    v1alpha1.Desired // set if the desired ref is checked
}

func (l *look) all(ctx context.Context) (err error) {
	git, sound := l.spec()
	if !git || !l.credentials() {
		return nil
	}
	remote, err := connect.Git(l.GatewaySync.Spec.Git, l.secrets, l.Remote)
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
	if v := connect.Verifier(l.GatewaySync.Spec.Git.Verify, l.secrets); v != nil {
		if err := from.Verify(ctx, v, at, l.r.Ref); err != nil {
			l.fail(err, v1alpha1.ReasonSignatureInvalid, "")
			return nil
		}
	}
	for _, g := range l.targets(sound) {
		if ctx.Err() != nil {
			return nil
		}
		l.plan(ctx, from, at, g)
	}
	return nil
}

// spec validates the spec. It reports whether spec.git is valid, and whether all of it is.
func (l *look) spec() (git, sound bool) {
	git, sound = true, true
	for _, e := range validation.GatewaySync(l.GatewaySync) {
		sound = false
		git = git && !below(e, "spec.git")
		l.fail(e, v1alpha1.ReasonProfilesInvalid, "")
	}
	return git, sound
}

func below(e *field.Error, path string) bool {
	return e.Field == path || strings.HasPrefix(e.Field, path+".") || strings.HasPrefix(e.Field, path+"[")
}

// credentials checks that the credentials for git exist. Those of the gateways concern only their agents.
func (l *look) credentials() bool {
	err := connect.Reachable(&v1alpha1.GatewaySyncSpec{Git: l.GatewaySync.Spec.Git}, l.secrets)
	if err == nil {
		return true
	}
	for _, e := range each(err) {
		l.fail(e, v1alpha1.ReasonAuthFailed, "")
	}
	return false
}

// each splits joined errors.
func each(err error) []error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return joined.Unwrap()
	}
	return []error{err}
}

// resolve resolves the ref and checks that it is allowed, as the lead does.
func (l *look) resolve(ctx context.Context, from *offline.Checkout) (repo.Resolution, bool) {
	refused := func(err error) (repo.Resolution, bool) {
		l.fail(err, v1alpha1.ReasonGitUnreachable, "")
		return repo.Resolution{}, false
	}
	all, err := from.Refs(ctx)
	if err != nil {
		return refused(err)
	}
	asked, err := l.desire(all)
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
	if asked {
		if err := from.Allowed(ctx, all, l.GatewaySync.Spec.Git.RequestableRefs(), at); err != nil {
			return refused(err)
		}
	}
	l.r.Commit = at.Commit.String()
	return at, true
}

// desire sets the ref to check, and reports whether it is requested.
func (l *look) desire(all *repo.Refs) (requested bool, err error) {
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
		// The sync brings the ref that the rollback holds off. Checking the commit of the rollback would let a sync pass that
		// brings the broken commit again.
		l.warn("a rollback to %s is in force; checked %s, which the rollback holds back", request.Short(want.Ref), gs.Spec.Git.Ref)
		l.r.Ref = gs.Spec.Git.Ref
		return false, err
	case held:
		// It is unknown what the sync brings: the spec in the cluster may be the one that it is about to fix.
		l.warn("checked the rollback to %s, which is in force; did not check %s, which it holds back", request.Short(want.Ref), gs.Spec.Git.Ref)
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

// fail records a problem once, and adds the gateway to it.
func (l *look) fail(err error, otherwise v1alpha1.Reason, gateway string) {
	p := Problem{Reason: failure.Reason(err, otherwise), Message: err.Error()}
	i := slices.IndexFunc(l.r.Problems, func(q Problem) bool { return q.Reason == p.Reason && q.Message == p.Message })
	if i < 0 {
		if len(l.r.Problems) == maxProblems {
			l.warn("there are more than %d problems", maxProblems)
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
