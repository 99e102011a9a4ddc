package v1alpha1

import (
	"strings"
	"unicode"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Desired is the result of DesiredRef: the ref that an object has to run, and where it comes from.
//
// +kubebuilder:object:generate=false
type Desired struct {
	// Ref is the desired ref.
	Ref string
	// Commit is the commit that Ref must resolve to, in lower case; "" if the request names none. CheckCommit compares it.
	Commit string
	// Override is true if Ref comes from a request and not from the spec.
	Override bool
	// RequestedBy is the sender; empty if the request is not in force.
	RequestedBy string
	// RequestedAt is the time of the request. If it differs from the value that was handled last, git is polled at once, even if no
	// request is in force.
	RequestedAt string
	// ResolveSpec tells the caller to resolve spec.git.ref, too, and to call again with its commit, because the request depends on it.
	ResolveSpec bool
	// Over, Lapsed and Refused are the values for status.request. The next call reads them there.
	Over, Lapsed, Refused string
	// Stood is the commit that Ref resolved to when the request was refused; "" if it was not. A refused request is never carried out.
	Stood string
}

// CheckCommit returns a RefMoved error if the request names a commit other than the given one, which Ref resolves to.
func (d Desired) CheckCommit(commit string) error {
	if d.Commit == "" || d.Commit == commit {
		return nil
	}
	return NewError(ReasonRefMoved, "%s is at %.7s, but was requested at %.7s: it has moved since it was chosen; "+
		"request it again as it is now, or request commit %s", d.Ref, commit, d.Commit, d.Commit)
}

// Refuse returns the value of status.request.refused for a request whose ref resolves to another commit, the given one.
func (d Desired) Refuse(commit string) string { return d.refusal() + commit }

func (d Desired) refusal() string { return d.Over + " at " + d.Commit + " not at " }

// Requestable is an object whose ref can be requested with annotations: a GatewaySync or a ConfigSync. DesiredRef returns the desired
// ref of either.
//
// +kubebuilder:object:generate=false
type Requestable interface {
	metav1.Object
	// Requests returns the inputs of DesiredRef.
	Requests() Requests
	// Standing returns what the status says about the desired ref.
	Standing() Standing
	// WebhookSpec returns which callers may make requests over HTTP.
	WebhookSpec() *WebhookSpec
}

// Requests has the inputs of DesiredRef: the request, the spec and the status of an object.
//
// +kubebuilder:object:generate=false
type Requests struct {
	// Annotations are those of the object.
	Annotations map[string]string
	// Repo and Spec are the repository and the ref of the spec. Field is the field that has the ref.
	Repo, Spec, Field string
	// Status is status.request.
	Status *RequestStatus
	// Fixed is the reason why no ref can be requested; "" if one can.
	Fixed string
}

// Standing is what the status of an object says about its desired ref.
//
// +kubebuilder:object:generate=false
type Standing struct {
	// Answered reports whether the status describes the current spec and request. Otherwise Ref, Commit and Rollback mean nothing.
	Answered bool
	// Ref is the desired ref, and Commit what it resolves to; "" if unknown.
	Ref, Commit string
	// Rollback is the request that a rollback would make now; nil if unknown.
	Rollback *Rollback
	LastGood *CommitRecord
	History  []CommitRecord
}

// Requests implements Requestable.
func (gs *GatewaySync) Requests() Requests {
	return Requests{Annotations: gs.Annotations, Repo: gs.Spec.Git.Repo, Spec: gs.Spec.Git.Ref, Field: "spec.git.ref", Status: gs.Status.Request}
}

// Standing implements Requestable.
func (gs *GatewaySync) Standing() Standing {
	st := &gs.Status
	s := Standing{Answered: gs.Answered(), Rollback: st.Rollback, LastGood: st.LastGood, History: st.History}
	if st.Outcome != nil {
		s.Ref, s.Commit = st.Outcome.Ref, st.Outcome.Commit
	}
	return s
}

// WebhookSpec implements Requestable.
func (gs *GatewaySync) WebhookSpec() *WebhookSpec { return &gs.Spec.Webhook }

// DesiredRef returns the desired ref of an object. specCommit is the commit that the ref of the spec resolves to now.
// See Requests.Desired.
func DesiredRef(o Requestable, specCommit string) (Desired, error) {
	return o.Requests().Desired(specCommit)
}

// Desired returns the desired ref. It is a pure function of the object and of specCommit, the
// commit that the ref of the spec resolves to now ("" if unknown), which matters only if Desired.ResolveSpec is set.
//
// The ref of the spec counts, unless a request (the annotations stoker.io/requested-…) is in force. It is in force while
//   - the spec has the ref that it had when the request was made. The annotation requested-over records that ref. If it does not
//     belong to this request, the ref that was first seen beside the request counts (status.request.over);
//   - the ref of the spec still resolves to requested-unless, if there is one of this request. While the commit is unknown, the request
//     stays in force;
//   - it has not lapsed (status.request.lapsed): a request that has lapsed never comes back.
//
// A request may also name the commit that its ref must resolve to (requested-commit). If the ref resolves to another one when the
// request is first seen, the request is refused (status.request.refused). It stays in force, so that nothing else moves the gateways
// either, but the ref is not followed, even if it returns to that commit.
//
// So a later change of the spec always wins, and users never have to clear annotations. The error is an *Error: the request
// does not name a valid ref. The caller must then sync and record nothing, because falling back to the spec
// would move a fleet because of a typing error.
func (q Requests) Desired(specCommit string) (Desired, error) {
	if q.Key() == longRequest {
		return Desired{}, NewError(ReasonRefNotFound, "the annotations stoker.io/requested-… have more than %d bytes: set shorter ones, or remove them", maxRequest)
	}
	spec := q.Spec
	requested, asked := q.Annotations[AnnotationRequestedRef]
	d := Desired{
		Ref:         spec,
		RequestedAt: token(q.Annotations[AnnotationRequestedAt]),
		RequestedBy: token(q.Annotations[AnnotationRequestedBy]),
	}
	if !asked || requested == "" {
		return d, nil
	}
	if q.Fixed != "" {
		return Desired{}, NewError(ReasonRefNotAllowed, "annotation %s: %s; remove the annotation", AnnotationRequestedRef, q.Fixed)
	}
	if problem := SpecRefProblem(requested); problem != "" {
		return Desired{}, NewError(ReasonRefNotFound,
			"annotation %s: %.80q is not a ref: %s; set another one, or remove the annotation", AnnotationRequestedRef, requested, problem)
	}
	d.Over = q.over(requested)
	if q.leftovers() {
		d.RequestedBy = ""
	}
	commit := q.Commit()
	if commit != "" && !IsCommit(commit) {
		return Desired{}, NewError(ReasonRefNotFound, "annotation %s: %.80q is not a commit: write all its 40 hexadecimal digits, or remove the annotation",
			AnnotationRequestedCommit, commit)
	}
	unless := q.Unless()
	request := d.Over
	if unless != "" {
		request += " unless " + token(unless)
	}
	var lapsed string
	if q.Status != nil {
		lapsed = q.Status.Lapsed
	}
	same := overSpec(d.Over, requested) == spec
	wanted := requested != spec
	d.ResolveSpec = same && wanted && unless != "" && lapsed != request
	moved := d.ResolveSpec && specCommit != "" && strings.ToLower(specCommit) != unless
	switch {
	case lapsed == request || !same || moved:
		d.Lapsed, d.RequestedBy, d.ResolveSpec = request, "", false
		return d, nil
	case wanted:
		d.Ref, d.Override = requested, true
	}
	d.Commit = commit
	if q.Status != nil && commit != "" {
		if stood, refused := strings.CutPrefix(q.Status.Refused, d.refusal()); refused && IsCommit(stood) {
			d.Refused, d.Stood = q.Status.Refused, stood
		}
	}
	return d, nil
}

// Commit returns the commit that the requested ref must resolve to, in lower case; "" for none.
func (q Requests) Commit() string {
	if q.leftovers() {
		return ""
	}
	return strings.ToLower(q.Annotations[AnnotationRequestedCommit])
}

// By returns the sender of the request; "" if the annotation belongs to an earlier request.
func (q Requests) By() string {
	if q.leftovers() {
		return ""
	}
	return token(q.Annotations[AnnotationRequestedBy])
}

// Unless returns the commit that the ref of the spec must still resolve to for the request to be in force, in lower case; "" for none.
func (q Requests) Unless() string {
	if q.leftovers() {
		return ""
	}
	return strings.ToLower(q.Annotations[AnnotationRequestedUnless])
}

// RequestedCommit returns the commit that the requested ref must resolve to, in lower case; "" for none.
func (gs *GatewaySync) RequestedCommit() string { return gs.Requests().Commit() }

// RequestedBy returns the sender of the request; "" if the annotation belongs to an earlier request.
func (gs *GatewaySync) RequestedBy() string { return gs.Requests().By() }

// RequestedUnless returns the commit that spec.git.ref must still resolve to for the request to be in force, in lower case; "" for none.
func (gs *GatewaySync) RequestedUnless() string { return gs.Requests().Unless() }

// leftovers reports whether the annotations beside requested-ref belong to an earlier request, as requested-over shows. That happens
// if a user writes requested-ref alone, for example after a rollback, whose condition is not part of the new request.
func (q Requests) leftovers() bool {
	over := q.Annotations[AnnotationRequestedOver]
	return over != "" && !fits(over, q.Annotations[AnnotationRequestedRef])
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
func (q Requests) over(requested string) string {
	if over := q.Annotations[AnnotationRequestedOver]; fits(over, requested) {
		return over
	}
	if q.Status != nil && fits(q.Status.Over, requested) {
		return q.Status.Over
	}
	return RequestOver(requested, q.Spec, "")
}

// fits reports whether over belongs to this request. A ref may contain an @, so over is compared with the known first half instead of
// being split.
func fits(over, requested string) bool {
	return utf8.RuneCountInString(over) <= maxOver && strings.HasPrefix(over, requested+"@")
}

// overSpec returns the ref of the spec in an over that fits. No ref contains a space.
func overSpec(over, requested string) string {
	spec, _, _ := strings.Cut(strings.TrimPrefix(over, requested+"@"), " ")
	return spec
}

// The bounds of refs and of what is composed of them, in characters, as the API server counts them. Tokens are ASCII.
const (
	MaxRef   = 255
	maxToken = 64
	maxOver  = 2*MaxRef + maxToken + 2
)

// maxLine bounds the annotation stoker.io/requested-for, in bytes.
const maxLine = 512

// Line returns text as a value of stoker.io/requested-for: one printable line of at most 512 bytes.
func Line(text string) string {
	text = strings.Join(strings.FieldsFunc(strings.ToValidUTF8(text[:min(len(text), 2*maxLine)], ""), func(r rune) bool { return !unicode.IsGraphic(r) || r == ' ' }), " ")
	if len(text) > maxLine {
		text = strings.ToValidUTF8(text[:maxLine-len("…")], "") + "…"
	}
	return text
}

// token returns a value from outside that is only compared and shown. It returns "" if the value is too long, or contains spaces or
// control characters.
func token(value string) string {
	if len(value) > maxToken || strings.ContainsFunc(value, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
		return ""
	}
	return value
}

// AskedAt is the annotation stoker.io/requested-at; "" where it cannot be a request's.
func (gs *GatewaySync) AskedAt() string { return token(gs.Annotations[AnnotationRequestedAt]) }
