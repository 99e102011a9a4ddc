package v1alpha1

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Desired is what DesiredRef finds.
//
// +kubebuilder:object:generate=false
type Desired struct {
	// Ref is the desired ref.
	Ref string
	// Commit is the commit that Ref has to stand at, in lower case; "" if the request names none. CheckCommit compares it.
	Commit string
	// Override is true where Ref is a request's and not that of the spec.
	Override bool
	// RequestedBy is the sender; empty if the request is not in force.
	RequestedBy string
	// RequestedAt asks for a fresh look at git where it is not the value that was handled last, whether or not a request
	// is in force.
	RequestedAt string
	// ResolveSpec asks to resolve spec.git.ref too, and to call again with its commit: the request depends on it.
	ResolveSpec bool
	// Over, Lapsed and Refused are what belongs into status.request. The next call relies on it.
	Over, Lapsed, Refused string
	// Stood is where Ref stood when the request was refused; "" if it was not. A refused request is never carried out.
	Stood string
}

// CheckCommit returns a RefMoved error if Ref stands at commit, and the request names another one.
func (d Desired) CheckCommit(commit string) error {
	if d.Commit == "" || d.Commit == commit {
		return nil
	}
	return newError(ReasonRefMoved, "%s is at %.7s, but was requested at %.7s: it has moved since it was chosen; "+
		"request it again as it is now, or request commit %s", d.Ref, commit, d.Commit, d.Commit)
}

// Refuse returns the value of status.request.refused for a request whose ref stands at commit.
func (d Desired) Refuse(commit string) string { return d.refusal() + commit }

func (d Desired) refusal() string { return d.Over + " at " + d.Commit + " not at " }

// DesiredRef returns the desired ref of gs. It is a pure function of the object and of specCommit, the
// commit that spec.git.ref resolves to now ("" if unknown), which matters only if Desired.ResolveSpec is set.
//
// The ref of the spec counts, unless a request (the annotations stoker.io/requested-…) is in force. It is in force while
//   - the spec still says what it said when the request was made: that is requested-over, or, where that does not fit
//     the request, what was first seen beside it (status.request.over);
//   - spec.git.ref still resolves to requested-unless, if there is one of this request. While the commit is unknown, the request
//     stays in force;
//   - it has not been seen out of force before (status.request.lapsed): a request that has lapsed never comes back.
//
// A request may also name the commit that its ref has to stand at (requested-commit). If the ref stands elsewhere when the
// request is first looked at, the request is refused (status.request.refused): it stays in force, so that nothing else moves
// the gateways either, but the ref is not followed, even if it comes back to that commit.
//
// So a later change of the spec always wins, and users never have to clear annotations. The error is an *Error: the request
// names something that cannot be a ref. The caller must then sync and record nothing: falling back to the spec
// would move a fleet because of a typing error.
func DesiredRef(gs *GatewaySync, specCommit string) (Desired, error) {
	if gs.RequestKey() == longRequest {
		return Desired{}, newError(ReasonRefNotFound, "the annotations stoker.io/requested-… have more than %d bytes: set shorter ones, or remove them", maxRequest)
	}
	spec := gs.Spec.Git.Ref
	requested, asked := gs.Annotations[AnnotationRequestedRef]
	d := Desired{
		Ref:         spec,
		RequestedAt: token(gs.Annotations[AnnotationRequestedAt]),
		RequestedBy: token(gs.Annotations[AnnotationRequestedBy]),
	}
	if !asked || requested == "" {
		return d, nil
	}
	if problem := refProblem(requested); problem != "" {
		return Desired{}, newError(ReasonRefNotFound,
			"annotation %s: %.80q is not a ref: %s; set another one, or remove the annotation", AnnotationRequestedRef, requested, problem)
	}
	d.Over = requestOver(gs, requested)
	if leftovers(gs) {
		d.RequestedBy = ""
	}
	commit := gs.RequestedCommit()
	if commit != "" && !IsCommit(commit) {
		return Desired{}, newError(ReasonRefNotFound, "annotation %s: %.80q is not a commit: write all its 40 hexadecimal digits, or remove the annotation",
			AnnotationRequestedCommit, commit)
	}
	unless := gs.RequestedUnless()
	request := d.Over
	if unless != "" {
		request += " unless " + token(unless)
	}
	var lapsed string
	if gs.Status.Request != nil {
		lapsed = gs.Status.Request.Lapsed
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
	if r := gs.Status.Request; r != nil && commit != "" {
		if stood, refused := strings.CutPrefix(r.Refused, d.refusal()); refused && IsCommit(stood) {
			d.Refused, d.Stood = r.Refused, stood
		}
	}
	return d, nil
}

// RequestedCommit is the commit that the ref of today's request has to stand at, in lower case; "" for none.
func (gs *GatewaySync) RequestedCommit() string {
	if leftovers(gs) {
		return ""
	}
	return strings.ToLower(gs.Annotations[AnnotationRequestedCommit])
}

// RequestedBy is the sender of the request; "" if the annotation is of an earlier request.
func (gs *GatewaySync) RequestedBy() string {
	if leftovers(gs) {
		return ""
	}
	return token(gs.Annotations[AnnotationRequestedBy])
}

// RequestedUnless is the commit of spec.git.ref that today's request stands against, in lower case; "" for none.
func (gs *GatewaySync) RequestedUnless() string {
	if leftovers(gs) {
		return ""
	}
	return strings.ToLower(gs.Annotations[AnnotationRequestedUnless])
}

// leftovers reports whether the annotations beside requested-ref are of an earlier request, as requested-over shows: a user
// wrote requested-ref alone, for example over a rollback, whose condition does not belong to the new request.
func leftovers(gs *GatewaySync) bool {
	over := gs.Annotations[AnnotationRequestedOver]
	return over != "" && !fits(over, gs.Annotations[AnnotationRequestedRef])
}

// RequestOver is the value of the annotation stoker.io/requested-over for a request that is made at a time (the value of
// stoker.io/requested-at, or "") while the spec says spec: "requested@spec", a space, and the time. The time is what tells
// a request that is made again from one that has lapsed; a reader of the annotation can do without.
func RequestOver(requested, spec, at string) string {
	over := requested + "@" + spec
	if at = token(at); at != "" {
		over += " " + at
	}
	return over
}

// requestOver returns the "requested@spec" that counts for today's request.
func requestOver(gs *GatewaySync, requested string) string {
	if over := gs.Annotations[AnnotationRequestedOver]; fits(over, requested) {
		return over
	}
	if r := gs.Status.Request; r != nil && fits(r.Over, requested) {
		return r.Over
	}
	return RequestOver(requested, gs.Spec.Git.Ref, "")
}

// fits reports whether over speaks of this request. Refs may hold an @, so it is not looked for: the first half is known.
func fits(over, requested string) bool {
	return utf8.RuneCountInString(over) <= maxOver && strings.HasPrefix(over, requested+"@")
}

// overSpec returns the second half of an over that fits. No ref holds a space.
func overSpec(over, requested string) string {
	spec, _, _ := strings.Cut(strings.TrimPrefix(over, requested+"@"), " ")
	return spec
}

// Refs, and what is made of them, are measured in letters, as the API server measures them; a token has one byte for each.
const (
	maxRef   = 255
	maxToken = 64
	maxOver  = 2*maxRef + maxToken + 2
)

// maxLine bounds the annotation stoker.io/requested-for, in bytes.
const maxLine = 512

// Line returns the value of stoker.io/requested-for for a text: one line of it that can be shown.
func Line(text string) string {
	text = strings.Join(strings.FieldsFunc(strings.ToValidUTF8(text[:min(len(text), 2*maxLine)], ""), func(r rune) bool { return !unicode.IsGraphic(r) || r == ' ' }), " ")
	if len(text) > maxLine {
		text = strings.ToValidUTF8(text[:maxLine-len("…")], "") + "…"
	}
	return text
}

// token returns a value that others wrote and that is compared and shown only: nothing where it is too long, or holds
// what would break a line.
func token(value string) string {
	if len(value) > maxToken || strings.ContainsFunc(value, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
		return ""
	}
	return value
}
