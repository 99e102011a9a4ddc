package verb

import (
	"context"
	"errors"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
)

// ErrTooEarly means that the lead has not yet reported what a rollback needs to know. Try again soon.
var ErrTooEarly = errors.New("the lead has not yet said at which commit the desired ref is")

// ErrNothingGood means that no commit has run on all gateways yet, so that there is no commit to go back to.
var ErrNothingGood = errors.New("no commit has run on all its gateways yet: there is nothing to go back to")

// minPrefix is the number of digits that identify a commit of the history.
const minPrefix = 7

// Rollback requests the last good commit, or the commit of the history that starts with to. If spec.git.ref led to the current
// commit, the request is valid only until that ref moves on. A rollback to what is desired already changes nothing.
func (s *Setter) Rollback(ctx context.Context, namespace, name, to, by, id string) (Answer, error) {
	return s.back(ctx, namespace, name, "", to, by, id)
}

// RollbackFrom is Rollback on the condition that the commit failed is still desired. If another commit is desired by now,
// nothing changes, because that one may be good. If the lead has not resolved the desired ref yet, the error is ErrTooEarly.
func (s *Setter) RollbackFrom(ctx context.Context, namespace, name, failed, to, by, id string) (Answer, error) {
	return s.back(ctx, namespace, name, failed, to, by, id)
}

func (s *Setter) back(ctx context.Context, namespace, name, failed, to, by, id string) (Answer, error) {
	if err := (Request{By: by, ID: id}).Check(); err != nil {
		return Answer{}, err
	}
	return s.change(ctx, namespace, name, "", func(gs *v1alpha1.GatewaySync) (map[string]*string, Answer, error) {
		r, answer, err := rollback(gs, to)
		if err != nil || answer.Outcome != "" {
			return nil, answer, err
		}
		if still, err := fails(gs, failed); !still || err != nil {
			answer = Answer{Outcome: Unchanged, At: gs.Annotations[v1alpha1.AnnotationRequestedAt], Message: "nothing was changed: by now something else is to run than the commit that failed"}
			return nil, answer, err
		}
		r.By, r.ID = by, id
		write, answer, err := r.plan(gs, s.now())
		if answer.Outcome == Set {
			answer.Message = "to " + r.Ref[:minPrefix]
			if r.Unless != "" {
				answer.Message += fmt.Sprintf(" until %s moves on from %s", gs.Spec.Git.Ref, r.Unless[:minPrefix])
			} else {
				answer.Message += " until spec.git.ref changes or somebody asks for another ref"
			}
		}
		return write, answer, err
	})
}

// fails reports whether the desired ref resolves to the failed commit; "" means any commit. A status from before the last
// request, or from before the current spec, is not used.
func fails(gs *v1alpha1.GatewaySync, failed string) (bool, error) {
	if failed == "" {
		return true, nil
	}
	d, sound := wanted(gs)
	if !sound { // the lead does not resolve it
		return false, nil
	}
	commit := runs(gs, d)
	if commit == "" {
		return false, fmt.Errorf("%w: %s", ErrTooEarly, unresolved(gs, d))
	}
	return commit == failed, nil
}

// rollback returns the request for a rollback. The answer has an outcome if there is nothing to request.
func rollback(gs *v1alpha1.GatewaySync, to string) (Request, Answer, error) {
	commit, err := goal(gs, to)
	if err != nil {
		return Request{}, Answer{}, err
	}
	done := Answer{Outcome: Unchanged, At: gs.Annotations[v1alpha1.AnnotationRequestedAt]}
	r := Request{Ref: commit}
	d, sound := wanted(gs)
	switch {
	case !sound: // the request names no valid ref, and is replaced
		return r, Answer{}, nil
	case strings.EqualFold(d.Ref, commit): // the spec or a request names that commit; commits in git may have capital digits
		done.Ref, done.Message = d.Ref, "it is to run "+commit[:minPrefix]+" already"
		return Request{}, done, nil
	case d.Override && runs(gs, d) == commit:
		done.Ref, done.Message = d.Ref, fmt.Sprintf("%s is at %s, the commit to go back to: there is nothing to roll back", d.Ref, commit[:minPrefix])
		return Request{}, done, nil
	case d.Override:
		// The spec did not lead to the current commit. If a rollback did, its condition stays in force.
		if unless := gs.RequestedUnless(); v1alpha1.IsCommit(unless) {
			r.Unless = unless
		}
		return r, Answer{}, nil
	case v1alpha1.IsCommit(gs.Spec.Git.Ref):
		r.Unless = strings.ToLower(gs.Spec.Git.Ref)
		return r, Answer{}, nil
	}
	t := gs.Status.Target
	if t == nil || gs.Status.ObservedGeneration != gs.Generation || t.Ref != d.Ref || !v1alpha1.IsCommit(t.Commit) {
		return Request{}, Answer{}, fmt.Errorf("%w: %s", ErrTooEarly, unresolved(gs, d))
	}
	if t.Commit == commit {
		done.Ref, done.Message = d.Ref, fmt.Sprintf("%s is at %s, the commit to go back to: there is nothing to roll back", t.Ref, commit[:minPrefix])
		return Request{}, done, nil
	}
	r.Unless = t.Commit
	return r, Answer{}, nil
}

// runs returns the commit that the lead resolved for the desired ref since the last request, or "" if it has not done so yet.
func runs(gs *v1alpha1.GatewaySync, d v1alpha1.Desired) string {
	t := gs.Status.Target
	if t == nil || gs.Status.ObservedGeneration != gs.Generation || t.Ref != d.Ref || d.RequestedAt != "" && t.RequestedAt != d.RequestedAt || d.CheckCommit(t.Commit) != nil {
		return ""
	}
	return t.Commit
}

// wanted returns the desired ref. It is not sound if an annotation holds no valid ref.
func wanted(gs *v1alpha1.GatewaySync) (d v1alpha1.Desired, sound bool) {
	d, err := v1alpha1.DesiredRef(gs, "")
	return d, err == nil
}

// unresolved returns why the commit of the desired ref is not known.
func unresolved(gs *v1alpha1.GatewaySync, d v1alpha1.Desired) string {
	if gs.Status.ObservedGeneration != gs.Generation {
		return fmt.Sprintf("its status is of generation %d and the spec of %d", gs.Status.ObservedGeneration, gs.Generation)
	}
	for _, c := range gs.Status.Conditions {
		if c.Type == v1alpha1.ConditionRefResolved && c.Status != metav1.ConditionTrue {
			return c.Message
		}
	}
	return "it has not asked git for " + d.Ref + " since that was requested"
}

// CheckTo returns an *InvalidError if to is not the beginning of a commit. An empty to is valid.
func CheckTo(to string) error {
	if to != "" && (len(to) < minPrefix || len(to) > 40 || strings.Trim(strings.ToLower(to), "0123456789abcdef") != "") {
		return invalid("%.80q is not a commit: write its first %d digits or more", to, minPrefix)
	}
	return nil
}

// goal returns the commit to go back to.
func goal(gs *v1alpha1.GatewaySync, to string) (string, error) {
	to = strings.ToLower(to)
	if to == "" {
		if g := gs.Status.LastGood; g != nil && v1alpha1.IsCommit(g.Commit) {
			return g.Commit, nil
		}
		return "", &InvalidError{ErrNothingGood}
	}
	if err := CheckTo(to); err != nil {
		return "", err
	}
	found := ""
	for _, r := range known(gs) {
		if !strings.HasPrefix(r.Commit, to) || r.Commit == found || !v1alpha1.IsCommit(r.Commit) {
			continue
		}
		if found != "" {
			return "", invalid("%s is both %s and %s: write more digits", to, found, r.Commit)
		}
		found = r.Commit
	}
	if found == "" {
		return "", invalid("%s is not in the history, which holds the last commits that ran on all gateways", to)
	}
	return found, nil
}

// known returns the commits that ran on all gateways.
func known(gs *v1alpha1.GatewaySync) []v1alpha1.CommitRecord {
	list := gs.Status.History
	if g := gs.Status.LastGood; g != nil {
		list = append([]v1alpha1.CommitRecord{*g}, list...)
	}
	return list
}
