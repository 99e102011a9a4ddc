package v1alpha1

import (
	"strings"
	"unicode/utf8"
)

// Desired is what DesiredRef finds.
//
// +kubebuilder:object:generate=false
type Desired struct {
	// Ref is what the gateways are to run.
	Ref string
	// Override is true where Ref is a request's and not that of the spec.
	Override bool
	// RequestedBy names who asked; empty where the request is not in force.
	RequestedBy string
	// RequestedAt asks for a fresh look at git where it is not the value that was handled last, whether or not a request
	// is in force.
	RequestedAt string
	// ResolveSpec asks to resolve spec.git.ref too, and to call again with its commit: the request depends on it.
	ResolveSpec bool
	// Over and Lapsed are what belongs into status.request. The next call relies on it.
	Over, Lapsed string
}

// DesiredRef says which ref the gateways of gs are to run. It is a pure function of the object and of specCommit, the
// commit that spec.git.ref resolves to now ("" where nobody knows), which matters only where Desired.ResolveSpec says so.
//
// The ref of the spec counts, unless a request (the annotations stoker.io/requested-…) is in force. It is in force while
//   - the spec still says what it said when the request was made: that is requested-over, or, where that does not fit
//     the request, what was first seen beside it (status.request.over);
//   - spec.git.ref still resolves to requested-unless, if there is one of this request. While nobody knows, the request
//     stays in force;
//   - it has not been seen out of force before (status.request.lapsed): a request that has lapsed never comes back.
//
// So a later change of the spec always wins, and nobody has to clear annotations. The error is an *Error: the request
// names something that cannot be a ref. Then nothing is to be synced and nothing to be recorded: to fall back to the spec
// would move a fleet because of a typing error.
func DesiredRef(gs *GatewaySync, specCommit string) (Desired, error) {
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
	case wanted:
		d.Ref, d.Override = requested, true
	}
	return d, nil
}

// RequestedUnless is the commit of spec.git.ref that today's request stands against, in lower case; "" for none.
func (gs *GatewaySync) RequestedUnless() string {
	if leftovers(gs) {
		return ""
	}
	return strings.ToLower(gs.Annotations[AnnotationRequestedUnless])
}

// leftovers reports whether the annotations beside requested-ref are of an earlier request, as requested-over shows: somebody
// has written requested-ref alone, over a rollback perhaps, whose condition is not his.
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

// token returns a value that others wrote and that is compared and shown only: nothing where it is too long, or holds
// what would break a line.
func token(value string) string {
	if len(value) > maxToken || strings.ContainsFunc(value, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
		return ""
	}
	return value
}
