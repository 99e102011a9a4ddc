// Package preflight checks before a sync whether gateways can run its commit. It resolves the ref, fetches the commit, and plans
// it for every profile with the agent's own code. It writes only to a temporary directory.
package preflight

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"stoker.io/stoker/agent/connect"
	"stoker.io/stoker/agent/ignition/resource"
	"stoker.io/stoker/agent/plan/references"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/desiredref"
	"stoker.io/stoker/api/v1alpha1/syntax"
	"stoker.io/stoker/api/v1alpha1/validation"
	"stoker.io/stoker/hooks/offline"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/secret"
)

// Input describes what to check.
type Input struct {
	// GatewaySync has the spec to check, and the annotations and the status of the cluster.
	GatewaySync *v1alpha1.GatewaySync
	// Ref replaces the desired ref, as if it was requested; "" for the desired one.
	Ref string
	// Unapplied means that the spec is about to be applied: the cluster has another one, or none.
	Unapplied bool
	// Gateways are the known gateways. A profile without any is checked for a placeholder.
	Gateways []Gateway
	// Profiles restricts the check to these profiles; empty for all.
	Profiles []string
	Secrets  Mounts
	Form     resource.Form // of the signatures of resources
	Remote   repo.RemoteOptions
}

// Result is the outcome of a check.
type Result struct {
	Ref      string    `json:"ref,omitempty"`
	Commit   string    `json:"commit,omitempty"`
	Checked  []Checked `json:"checked"`
	Problems []Problem `json:"problems"`
	Warnings []string  `json:"warnings,omitempty"`
	// References are what files of the commit name and the commit does not have.
	References []Reference `json:"references,omitempty"`
}

// Reference is a name in a file of the commit of something that does not exist.
type Reference struct {
	references.Finding
	Profile string `json:"profile,omitempty"`
}

// Checked is a gateway that was planned successfully.
type Checked struct {
	Gateway string `json:"gateway,omitempty"` // "" for a placeholder
	Profile string `json:"profile"`
	Files   int    `json:"files"`
}

// Problem is why a sync would fail.
type Problem struct {
	Reason   v1alpha1.Reason `json:"reason"`
	Message  string          `json:"message"`
	Gateways []string        `json:"gateways,omitempty"` // that have the problem; empty if it is not about gateways
}

// Bounds of a Result.
const (
	maxProblems   = 50
	maxWarnings   = 50
	maxReferences = 100
)

// Run runs the checks. Problems of one profile do not hide those of another. Run returns an error only if the checks could not be
// completed: ctx ended, or the disk failed.
func Run(ctx context.Context, in Input) (Result, error) {
	r := &run{Input: in, secrets: &cachedSecrets{Secrets: in.Secrets, cache: map[v1alpha1.SecretKeyRef]secret.String{}}, result: Result{Checked: []Checked{}, Problems: []Problem{}}}
	err := r.check(ctx)
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return r.result, err
}

// run is the state of one call of Run.
type run struct {
	Input
	secrets connect.Secrets
	result  Result
	desired desiredref.Desired // zero unless the desired ref is checked
}

func (r *run) check(ctx context.Context) (err error) {
	gitValid, valid := r.validate()
	if !gitValid || !r.checkCredentials() {
		return nil
	}
	remote, err := connect.Git(r.GatewaySync.Spec.Git, r.secrets, r.Remote)
	if err != nil {
		r.addProblem(err, v1alpha1.ReasonProfilesInvalid, "")
		return nil
	}
	repository, err := offline.New(remote)
	if err != nil {
		return err
	}
	defer func() { err = cmp.Or(err, repository.Close()) }()
	at, ok := r.resolve(ctx, repository)
	if !ok {
		return nil
	}
	if err := repository.Fetch(ctx, at); err != nil {
		r.addProblem(err, v1alpha1.ReasonGitUnreachable, "")
		return nil
	}
	if v := connect.Verifier(r.GatewaySync.Spec.Git.Verify, r.secrets); v != nil {
		if err := repository.Verify(ctx, v, at, r.result.Ref); err != nil {
			r.addProblem(err, v1alpha1.ReasonSignatureInvalid, "")
			return nil
		}
	}
	for _, g := range r.targets(valid) {
		if ctx.Err() != nil {
			return nil
		}
		r.plan(ctx, repository, at, g)
	}
	return nil
}

// validate validates the spec and adds the problems. It reports whether spec.git is valid, and whether the whole spec is.
func (r *run) validate() (gitValid, valid bool) {
	gitValid, valid = true, true
	for _, e := range validation.GatewaySync(r.GatewaySync) {
		valid = false
		gitValid = gitValid && !isBelow(e, "spec.git")
		r.addProblem(e, v1alpha1.ReasonProfilesInvalid, "")
	}
	return gitValid, valid
}

// isBelow reports whether an error is about the field at path or about a field in it.
func isBelow(e *field.Error, path string) bool {
	return e.Field == path || strings.HasPrefix(e.Field, path+".") || strings.HasPrefix(e.Field, path+"[")
}

// checkCredentials checks that the credentials for git exist. It does not check those for gateways, which only agents use.
func (r *run) checkCredentials() bool {
	err := connect.Reachable(&v1alpha1.GatewaySyncSpec{Git: r.GatewaySync.Spec.Git}, r.secrets)
	if err == nil {
		return true
	}
	for _, e := range unjoin(err) {
		r.addProblem(e, v1alpha1.ReasonAuthFailed, "")
	}
	return false
}

// unjoin returns the errors that errors.Join joined.
func unjoin(err error) []error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return joined.Unwrap()
	}
	return []error{err}
}

// resolve resolves the ref and checks, as the lead does, that requests may name it. It adds a problem and returns false if that
// fails.
func (r *run) resolve(ctx context.Context, repository *offline.Checkout) (repo.Resolution, bool) {
	at, err := r.resolveAllowed(ctx, repository)
	if err != nil {
		r.addProblem(err, v1alpha1.ReasonGitUnreachable, "")
		return at, false
	}
	r.result.Commit = at.Commit.String()
	return at, true
}

func (r *run) resolveAllowed(ctx context.Context, repository *offline.Checkout) (repo.Resolution, error) {
	refs, err := repository.Refs(ctx)
	if err != nil {
		return repo.Resolution{}, err
	}
	requested, err := r.chooseRef(refs)
	if err != nil {
		return repo.Resolution{}, err
	}
	at, err := resolveRef(refs, r.result.Ref)
	if err != nil {
		return at, err
	}
	if err := r.desired.CheckCommit(at.Commit.String()); err != nil || !requested {
		return at, err
	}
	return at, repository.Allowed(ctx, refs, r.GatewaySync.Spec.Git.RequestableRefs(), at)
}

// chooseRef sets the ref to check, and reports whether it is requested.
func (r *run) chooseRef(refs *repo.Refs) (requested bool, err error) {
	gs := r.GatewaySync
	desired, _, err := desiredref.Resolve(gs, refs.Commit)
	if r.Ref != "" {
		r.result.Ref = r.Ref
		return r.Ref != gs.Spec.Git.Ref, nil
	}
	r.result.Ref = desired.Ref
	switch rollback := desired.Unless != ""; {
	case rollback && r.Unapplied:
		// The sync brings the ref that the rollback holds back. If the check were of the rollback's commit, it would pass a sync that
		// brings the broken commit again.
		r.warn("a rollback to %s is in force; checked %s, which the rollback holds back", syntax.ShortCommit(desired.Ref), gs.Spec.Git.Ref)
		r.result.Ref = gs.Spec.Git.Ref
		return false, err
	case rollback:
		// What the sync brings is unknown: it may be about to fix the spec in the cluster.
		r.warn("checked the rollback to %s, which is in force; did not check %s, which it holds back", syntax.ShortCommit(desired.Ref), gs.Spec.Git.Ref)
	}
	r.desired = desired
	return desired.Override, err
}

func resolveRef(refs *repo.Refs, name string) (repo.Resolution, error) {
	ref, err := repo.ParseRef(name)
	if err != nil {
		return repo.Resolution{}, err
	}
	return refs.Resolve(ref)
}

// addProblem records an error, once for all gateways that have it. fallback is the reason of an error without one. gateway is ""
// if the problem is not of one gateway.
func (r *run) addProblem(err error, fallback v1alpha1.Reason, gateway string) {
	p := Problem{Reason: failure.Reason(err, fallback), Message: err.Error()}
	i := slices.IndexFunc(r.result.Problems, func(q Problem) bool { return q.Reason == p.Reason && q.Message == p.Message })
	if i < 0 {
		if len(r.result.Problems) == maxProblems {
			r.warn("there are more than %d problems", maxProblems)
			return
		}
		i = len(r.result.Problems)
		r.result.Problems = append(r.result.Problems, p)
	}
	if q := &r.result.Problems[i]; gateway != "" && !slices.Contains(q.Gateways, gateway) {
		q.Gateways = append(q.Gateways, gateway)
	}
}

// warn adds a warning, unless it is there already or there are too many.
func (r *run) warn(format string, args ...any) {
	if w := fmt.Sprintf(format, args...); len(r.result.Warnings) < maxWarnings && !slices.Contains(r.result.Warnings, w) {
		r.result.Warnings = append(r.result.Warnings, w)
	}
}
