// Package desiredref computes the ref that a GatewaySync or a ConfigSync has to run: the ref of its spec, or the one that its annotations
// request while the request is in force. A request that lapses is out of force forever; Inputs.Desired has the rules.
package desiredref

import (
	"slices"
	"strings"
	"unicode/utf8"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/syntax"
)

// Desired is the result of Of: the ref that an object has to run, and where it comes from.
type Desired struct {
	// Ref is the desired ref.
	Ref string
	// Commit is the commit that Ref must resolve to, in lower case; "" if the request names none. CheckCommit compares it.
	Commit string
	// Override reports whether Ref comes from a request and not from the spec.
	Override bool
	// Unless is set while a rollback is in force: the commit of the ref of the spec that the rollback blocks. The rollback lapses when that ref
	// moves on. Otherwise it is "".
	Unless string
	// RequestedBy is the sender of the request in force or, if the annotations request no ref, of the last poll. It is empty if the request has
	// lapsed.
	RequestedBy string
	// RequestedAt is the time of the request. If it differs from the value that was handled last, git is polled at once, even if no
	// request is in force.
	RequestedAt string
	// ResolveSpec tells the caller to resolve the ref of the spec, too, and to call again with its commit, because the request depends on it.
	ResolveSpec bool
	// Over, Lapsed and Refused are the values for status.request. The next call reads them there.
	Over, Lapsed, Refused string
	// RefusedCommit is the commit that Ref resolved to when the request was refused; "" if it was not refused. A refused request is never carried out.
	RefusedCommit string
}

// CheckCommit returns a RefMoved error if the request names a commit other than the given one, which Ref resolves to.
func (d Desired) CheckCommit(commit string) error {
	if d.Commit == "" || d.Commit == commit {
		return nil
	}
	return v1alpha1.NewError(v1alpha1.ReasonRefMoved, "%s is at %.7s, but was requested at %.7s: it has moved since it was chosen; "+
		"request it again as it is now, or request commit %s", d.Ref, commit, d.Commit, d.Commit)
}

// GoesBack reports whether the request in force goes back to a commit that ran before. Only then does it pass maintenance windows, stages,
// the validation webhook and automatic rollback. d.Unless alone shows only that the sender calls it a rollback. Each of ran reports whether
// a record has the commit: the status of the GatewaySync, which no sender can write, and on a gateway also its manifest. All must have it,
// because a program on a gateway that writes into the manifest could pass off a new commit as an old one.
func (d Desired) GoesBack(commit string, ran ...func(commit string) bool) bool {
	return d.Unless != "" && commit != "" && commit != d.Unless && len(ran) > 0 &&
		!slices.ContainsFunc(ran, func(has func(string) bool) bool { return !has(commit) })
}

// Status returns the value of status.request; nil if there is nothing to remember.
func (d Desired) Status() *v1alpha1.RequestStatus {
	if d.Over == "" && d.Lapsed == "" {
		return nil
	}
	return &v1alpha1.RequestStatus{Over: d.Over, Lapsed: d.Lapsed, Refused: d.Refused}
}

// Refuse returns the value of status.request.refused for a request whose ref resolves to the given commit, which it does not name.
func (d Desired) Refuse(commit string) string { return d.refusal() + commit }

func (d Desired) refusal() string { return d.Over + " at " + d.Commit + " not at " }

// Rollback returns what a rollback to good, the last good commit, would request now, for status.rollback; nil if unknown. commit is what
// d.Ref resolves to; "" if git was not polled yet. d is zero if the request is not valid.
//
// A rollback lapses when the ref of the spec moves on from the commit that is rolled back. If a request led to that commit, the rollback
// replaces the request, and keeps the condition of an earlier rollback.
func (d Desired) Rollback(q Inputs, commit string, good *v1alpha1.CommitRecord) *v1alpha1.Rollback {
	if q.NotRequestable != "" || q.Spec == "" || good == nil || !syntax.IsCommit(good.Commit) {
		return nil
	}
	r := &v1alpha1.Rollback{Commit: good.Commit, Over: RequestOver(good.Commit, q.Spec, "")}
	switch {
	case d.Ref == "", d.Override:
		r.Unless = d.Unless
	case syntax.IsCommit(q.Spec):
		r.Unless = strings.ToLower(q.Spec)
	case commit != "":
		r.Unless = commit
	default:
		return nil
	}
	if strings.EqualFold(d.Ref, good.Commit) || commit == good.Commit {
		r.Commit, r.Over = "", ""
	}
	return r
}

// Inputs has the inputs of Of: the request, the spec and the status of an object.
type Inputs struct {
	// Annotations of the object.
	Annotations map[string]string
	// Repo and Spec are the repository and the ref of the spec. Field is the field that has the ref, for messages.
	Repo, Spec, Field string
	// Status is status.request.
	Status *v1alpha1.RequestStatus
	// NotRequestable is the reason why no ref can be requested; "" if one can.
	NotRequestable string
}

// Of returns the desired ref of an object; see Inputs.Desired.
func Of(o v1alpha1.Requestable, specCommit string) (Desired, error) {
	return InputsOf(o).Desired(specCommit)
}

// Resolve returns the desired ref of an object. If a request depends on the commit of the ref of the spec, Resolve gets it from lookup,
// which returns "" if git has no such ref, and an error if git does not answer. specCommit is that commit, or "". If lookup fails, the
// result is the desired ref without that commit, and the error of lookup. If the request is not valid, the result is zero.
func Resolve(o v1alpha1.Requestable, lookup func(ref string) (commit string, err error)) (d Desired, specCommit string, err error) {
	q := InputsOf(o)
	d, err = q.Desired("")
	if err != nil || !d.ResolveSpec {
		return d, "", err
	}
	if syntax.IsCommit(q.Spec) {
		specCommit = strings.ToLower(q.Spec)
	} else if specCommit, err = lookup(q.Spec); err != nil {
		return d, "", err
	}
	d, err = q.Desired(specCommit)
	return d, specCommit, err
}

// Desired returns the desired ref. It is a pure function of q and specCommit, the commit that the ref of the spec resolves to now ("" if
// unknown), which matters only if Desired.ResolveSpec is set.
//
// The desired ref is the ref of the spec, unless a request (the annotations stoker.io/requested-…) is in force. It is in force while
//   - the spec has the ref that it had when the request was made. The annotation requested-over records that ref. If the annotation
//     belongs to another request, it is the ref of the spec when the request was first seen (status.request.over);
//   - the ref of the spec still resolves to requested-unless, if the request has one. While the commit is unknown, the request stays in
//     force;
//   - it has not lapsed (status.request.lapsed): a request that has lapsed never comes back.
//
// A request may also name the commit that its ref must resolve to (requested-commit). If the ref resolves to another commit when the
// request is first seen, the request is refused (status.request.refused). It stays in force, so that nothing else moves the gateways,
// but the ref is not followed, even if it returns to that commit.
//
// So a later change of the spec always wins, and users never have to remove annotations. The error is an *Error: the request is not
// valid. The caller must then sync and record nothing, because returning to the spec would move a fleet because of a typing error.
func (q Inputs) Desired(specCommit string) (Desired, error) {
	if key(q.Annotations) == longRequest {
		return Desired{}, v1alpha1.NewError(v1alpha1.ReasonRefNotFound, "the annotations stoker.io/requested-… have more than %d bytes: set shorter ones, or remove them", maxRequest)
	}
	d := Desired{
		Ref:         q.Spec,
		RequestedAt: q.At(),
		RequestedBy: token(q.Annotations[v1alpha1.AnnotationRequestedBy]),
	}
	requested := q.Annotations[v1alpha1.AnnotationRequestedRef]
	if requested == "" {
		return d, nil
	}
	commit := q.Commit()
	if err := q.check(requested, commit); err != nil {
		return Desired{}, err
	}
	d.RequestedBy = q.By()
	d.Over = q.over(requested)
	request, unless := d.Over, q.Unless()
	if unless != "" {
		request += " unless " + token(unless)
	}
	lapsed := q.Status != nil && q.Status.Lapsed == request
	specChanged := overSpec(d.Over, requested) != q.Spec
	d.ResolveSpec = requested != q.Spec && unless != "" && !lapsed && !specChanged
	specMoved := d.ResolveSpec && specCommit != "" && strings.ToLower(specCommit) != unless
	if lapsed || specChanged || specMoved {
		d.Lapsed, d.RequestedBy, d.ResolveSpec = request, "", false
		return d, nil
	}
	d.Ref, d.Override, d.Commit = requested, requested != q.Spec, commit
	if d.Override && syntax.IsCommit(unless) {
		d.Unless = unless
	}
	if q.Status != nil && commit != "" {
		if resolved, refused := strings.CutPrefix(q.Status.Refused, d.refusal()); refused && syntax.IsCommit(resolved) {
			d.Refused, d.RefusedCommit = q.Status.Refused, resolved
		}
	}
	return d, nil
}

// check returns why the requested ref, or the commit that it must resolve to, is not valid.
func (q Inputs) check(requested, commit string) error {
	if q.NotRequestable != "" {
		return v1alpha1.NewError(v1alpha1.ReasonRefNotAllowed, "annotation %s: %s; remove the annotation", v1alpha1.AnnotationRequestedRef, q.NotRequestable)
	}
	if problem := syntax.SpecRefProblem(requested); problem != "" {
		return v1alpha1.NewError(v1alpha1.ReasonRefNotFound,
			"annotation %s: %.80q is not a ref: %s; set another one, or remove the annotation", v1alpha1.AnnotationRequestedRef, requested, problem)
	}
	if commit != "" && !syntax.IsCommit(commit) {
		return v1alpha1.NewError(v1alpha1.ReasonRefNotFound, "annotation %s: %.80q is not a commit: write all its 40 hexadecimal digits, or remove the annotation",
			v1alpha1.AnnotationRequestedCommit, commit)
	}
	return nil
}

// Commit returns the commit that the requested ref must resolve to, in lower case; "" for none.
func (q Inputs) Commit() string {
	if q.Stale() {
		return ""
	}
	return strings.ToLower(q.Annotations[v1alpha1.AnnotationRequestedCommit])
}

// By returns the sender of the request; "" if the annotation belongs to an earlier request.
func (q Inputs) By() string {
	if q.Stale() {
		return ""
	}
	return token(q.Annotations[v1alpha1.AnnotationRequestedBy])
}

// Unless returns the commit that the ref of the spec must still resolve to for the request to be in force, in lower case; "" for none.
func (q Inputs) Unless() string {
	if q.Stale() {
		return ""
	}
	return strings.ToLower(q.Annotations[v1alpha1.AnnotationRequestedUnless])
}

// At returns the time of the request, or "" if the annotation is not valid.
func (q Inputs) At() string { return token(q.Annotations[v1alpha1.AnnotationRequestedAt]) }

// Stale reports whether the other annotations belong to an earlier request than requested-ref, as requested-over shows. They do if a user
// sets only requested-ref, for example after a rollback, whose condition is not part of the new request.
func (q Inputs) Stale() bool {
	over := q.Annotations[v1alpha1.AnnotationRequestedOver]
	return over != "" && !fits(over, q.Annotations[v1alpha1.AnnotationRequestedRef])
}

// RequestOver returns the value of the annotation stoker.io/requested-over: "requested@spec", where spec is the ref of the spec, a
// space, and the value of stoker.io/requested-at, if there is one. The time distinguishes a repeated request from one that has lapsed.
func RequestOver(requested, spec, at string) string {
	over := requested + "@" + spec
	if at = token(at); at != "" {
		over += " " + at
	}
	return over
}

// over returns the value of requested-over that belongs to the current request.
func (q Inputs) over(requested string) string {
	if over := q.Annotations[v1alpha1.AnnotationRequestedOver]; fits(over, requested) {
		return over
	}
	if q.Status != nil && fits(q.Status.Over, requested) {
		return q.Status.Over
	}
	return RequestOver(requested, q.Spec, "")
}

// fits reports whether over belongs to this request. It does not split over, because a ref may contain an @.
func fits(over, requested string) bool {
	return utf8.RuneCountInString(over) <= maxOver && strings.HasPrefix(over, requested+"@")
}

// overSpec returns the ref of the spec in a value of requested-over that fits. No ref contains a space.
func overSpec(over, requested string) string {
	spec, _, _ := strings.Cut(strings.TrimPrefix(over, requested+"@"), " ")
	return spec
}

// The bounds of what a request consists of, in characters, as the API server counts them. Tokens are ASCII.
const (
	maxToken = 64
	maxOver  = 2*syntax.MaxRef + maxToken + 2
)

// token returns a value from outside that is only compared and shown. It returns "" if the value is too long, or contains spaces or
// control characters.
func token(value string) string {
	if len(value) > maxToken || strings.ContainsFunc(value, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
		return ""
	}
	return value
}
