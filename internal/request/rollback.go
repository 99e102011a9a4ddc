package request

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/desiredref"
	"stoker.io/stoker/api/v1alpha1/syntax"
)

// ErrTooEarly means that the status does not yet report what a rollback needs to know. Try again soon.
var ErrTooEarly = errors.New("the desired ref is not resolved yet")

// ErrNothingGood means that no commit has run on all gateways yet, so that there is no commit to go back to.
var ErrNothingGood = errors.New("no commit has run on all its gateways yet: there is nothing to go back to")

// minPrefix is how many digits a commit of the history must have at least to be identified.
const minPrefix = 7

// Rollback requests the last good commit, or the commit of the history that starts with to. If the ref of the spec led to the current
// commit, the request is valid only until that ref moves on. A rollback to what is desired already changes nothing. With failed, it also
// changes nothing if another commit than failed is desired by now, because that one may be good. If the lead has not resolved the desired
// ref yet, the error wraps ErrTooEarly.
func (s *Setter) Rollback(ctx context.Context, namespace, name, failed, to, by, id string) (Answer, error) {
	if err := (Request{By: by, ID: id}).Check(); err != nil {
		return Answer{}, err
	}
	return s.change(ctx, namespace, name, "", func(o v1alpha1.Requestable) (map[string]*string, Answer, error) {
		if Taken(o, by, id) {
			return nil, Answer{Outcome: Unchanged, At: o.GetAnnotations()[v1alpha1.AnnotationRequestedAt], Message: fmt.Sprintf("request %s of %s was already carried out", id, by)}, nil
		}
		r, answer, err := rollback(o, to, s.now())
		if err != nil || answer.Outcome != "" {
			return nil, answer, err
		}
		if still, err := desiresFailed(o, failed, s.now()); !still || err != nil {
			answer = Answer{Outcome: Unchanged, At: o.GetAnnotations()[v1alpha1.AnnotationRequestedAt], Message: "nothing was changed: the failed commit is no longer desired"}
			return nil, answer, err
		}
		r.By, r.ID = by, id
		write, answer, err := r.plan(o, s.now())
		if answer.Outcome == Set {
			answer.Message = "to " + r.Ref[:minPrefix]
			if r.Unless != "" {
				answer.Message += fmt.Sprintf(" until %s moves on from %s", desiredref.InputsOf(o).Spec, r.Unless[:minPrefix])
			} else {
				answer.Message += " until " + desiredref.InputsOf(o).Field + " changes or another ref is requested"
			}
		}
		return write, answer, err
	})
}

// desiresFailed reports whether the desired ref resolves to the failed commit; "" means any commit.
func desiresFailed(o v1alpha1.Requestable, failed string, now time.Time) (bool, error) {
	switch status := desiredref.RefStatusOf(o); {
	case failed == "":
		return true, nil
	case status.Current && status.Ref == "": // the request is not valid
		return false, nil
	case !status.Current, status.Commit == "":
		return false, errTooEarly(o, now)
	default:
		return status.Commit == failed, nil
	}
}

// errTooEarly returns why the commit of the desired ref is not known.
func errTooEarly(o v1alpha1.Requestable, now time.Time) error {
	return fmt.Errorf("%w: %s", ErrTooEarly, verdict(o, now).Message)
}

// verdict reads the outcome of an object, whatever its kind.
func verdict(o v1alpha1.Requestable, now time.Time) Verdict {
	switch o := o.(type) {
	case *v1alpha1.GatewaySync:
		return Read(o, "", nil, now)
	case *v1alpha1.ConfigSync:
		return ReadConfig(o, "")
	}
	return Verdict{Phase: Progressing}
}

// rollback returns the request for a rollback. The answer has an outcome if there is nothing to request.
func rollback(o v1alpha1.Requestable, to string, now time.Time) (Request, Answer, error) {
	q, status := desiredref.InputsOf(o), desiredref.RefStatusOf(o)
	if q.NotRequestable != "" {
		return Request{}, Answer{}, invalid("%s", q.NotRequestable)
	}
	commit, err := commitToRestore(status, to)
	if _, ok := o.(*v1alpha1.ConfigSync); ok && errors.Is(err, ErrNothingGood) {
		err = errors.New("no commit was applied with all objects healthy yet: there is nothing to go back to")
	}
	if err != nil {
		return Request{}, Answer{}, err
	}
	r := status.Rollback
	if !status.Current || r == nil {
		return Request{}, Answer{}, errTooEarly(o, now)
	}
	spec := status.Ref == q.Spec
	if to == "" && r.Commit == "" || commit == status.Commit || strings.EqualFold(commit, status.Ref) || spec && commit == r.Unless {
		return Request{}, Answer{Outcome: Unchanged, Ref: status.Ref, At: q.Annotations[v1alpha1.AnnotationRequestedAt],
			Message: fmt.Sprintf("%s is the desired commit already: there is nothing to roll back", commit[:minPrefix])}, nil
	}
	return Request{Ref: commit, Unless: r.Unless}, Answer{}, nil
}

// CheckTo returns an *InvalidError if to is not the beginning of a commit. An empty to is valid.
func CheckTo(to string) error {
	if to != "" && (len(to) < minPrefix || len(to) > 40 || strings.Trim(strings.ToLower(to), "0123456789abcdef") != "") {
		return invalid("%.80q is not a commit: write its first %d digits or more", to, minPrefix)
	}
	return nil
}

// commitToRestore returns the commit to go back to.
func commitToRestore(status desiredref.RefStatus, to string) (string, error) {
	to = strings.ToLower(to)
	if to == "" {
		if g := status.LastGood; g != nil && syntax.IsCommit(g.Commit) {
			return g.Commit, nil
		}
		return "", ErrNothingGood
	}
	if err := CheckTo(to); err != nil {
		return "", err
	}
	found := ""
	for _, r := range history(status) {
		if !strings.HasPrefix(r.Commit, to) || r.Commit == found || !syntax.IsCommit(r.Commit) {
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

// history returns the last good commit, if there is one, and the commits of the history.
func history(status desiredref.RefStatus) []v1alpha1.CommitRecord {
	list := status.History
	if g := status.LastGood; g != nil {
		list = append([]v1alpha1.CommitRecord{*g}, list...)
	}
	return list
}

// Expand returns the commit that ref abbreviates, or ref itself if it abbreviates none. The repository cannot be asked, so it searches the
// commits in the status of o. A text of 7 to 39 hexadecimal digits that begins none of them is an *InvalidError, unless it has no letter: then
// it may be a tag that is named after a date.
func Expand(o v1alpha1.Requestable, ref string) (string, error) {
	prefix := strings.ToLower(ref)
	if !syntax.IsCommitPrefix(prefix) || syntax.IsCommit(prefix) {
		return ref, nil
	}
	found := ""
	for _, commit := range commits(o) {
		switch {
		case !strings.HasPrefix(commit, prefix) || !syntax.IsCommit(commit) || commit == found:
		case found != "":
			return "", invalid("%s is both %s and %s: write more digits", ref, found, commit)
		default:
			found = commit
		}
	}
	if found == "" && strings.Trim(prefix, "0123456789") != "" {
		return "", invalid("%s looks like the first digits of a commit, and the status has no commit that begins with them: write all 40 digits, or refs/heads/%[1]s or refs/tags/%[1]s",
			ref)
	}
	if found == "" {
		return ref, nil
	}
	return found, nil
}

// commits returns the commits that the status of o names.
func commits(o v1alpha1.Requestable) []string {
	status := desiredref.RefStatusOf(o)
	list := []string{status.Commit}
	for _, r := range history(status) {
		list = append(list, r.Commit)
	}
	gs, ok := o.(*v1alpha1.GatewaySync)
	if !ok {
		return list
	}
	if t := gs.Status.Target; t != nil {
		list = append(list, t.Commit)
	}
	for _, g := range gs.Status.DiscoveredGateways {
		list = append(list, g.SyncedCommit)
		for _, s := range g.SyncHistory {
			list = append(list, s.Commit)
		}
	}
	return list
}
