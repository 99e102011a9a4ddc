// Package request carries out requests to a GatewaySync or a ConfigSync for the command line and all other senders: which annotations express a
// request, how they are written, and how far the gateways are with it. It prints nothing.
package request

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/annotation"
	"stoker.io/stoker/api/v1alpha1/desiredref"
	"stoker.io/stoker/api/v1alpha1/syntax"
	"stoker.io/stoker/internal/sender"
)

// Request is what a sender asks for.
type Request struct {
	// Ref is the desired ref. If it is "", the request keeps the ref. Every request but a withdrawal also asks for a poll of git.
	Ref string
	// Commit is the commit that Ref must resolve to; "" for any. It needs a Ref.
	Commit string
	// Unless is a commit: the request is valid only while the ref of the spec resolves to it. It needs a Ref.
	Unless string
	// By is the name of a sender. Only a withdrawal needs none.
	By string
	// For describes what the request belongs to. It needs a Ref.
	For string
	// ID identifies a request, so that a repeated one is recognized; "" if the sender has none.
	ID string
	// Follows is true if Ref is a new tag that is followed. The tag is recorded, so that it is followed only once.
	Follows bool
	// Withdraw ends the request in force if no gateway has taken it and it has this ID; an empty ID means any.
	Withdraw bool
	// Force asks to verify every managed file by its content, too.
	Force bool
	// ConfirmDeletion is the commit whose mass deletion is approved, or its first digits.
	ConfirmDeletion string
	// UID of the object that the request is meant for; "" is the object that has the name when it is read first.
	UID types.UID
	// Decider, if not nil, decides again for the object that is written. Its Request then counts in place of the fields above, except UID.
	Decider Decider
}

// Decider decides what to request of an object in its current state, or returns why there is nothing to request.
// Implementations must be comparable.
type Decider interface {
	Decide(o v1alpha1.Requestable) (r Request, why string, err error)
}

// Outcome is the result of a request.
type Outcome string

const (
	// Set means that the request was written to the annotations.
	Set Outcome = "Set"
	// Unchanged means that the request was there already, or was carried out before.
	Unchanged Outcome = "Unchanged"
	// Superseded means that a newer promotion was requested before, or another ref with the same id. Nothing was written.
	Superseded Outcome = "Superseded"
	// Ignored means that the Decider requests nothing. Nothing was written.
	Ignored Outcome = "Ignored"
)

// Answer is the result for the sender.
type Answer struct {
	Outcome Outcome
	// Ref is the requested ref, or the desired ref at that time if the request named none and was written. If the object desires another
	// ref than the requested one, the request was carried out once and has been replaced since.
	Ref string
	// At is the current value of stoker.io/requested-at, which the gateways must handle.
	At string
	// Message is a sentence for people.
	Message string
	// Object is the object after the request.
	Object v1alpha1.Requestable
}

// GatewaySync returns the object, or nil if it is of another kind.
func (a Answer) GatewaySync() *v1alpha1.GatewaySync {
	gs, _ := a.Object.(*v1alpha1.GatewaySync)
	return gs
}

// InvalidError means that a request can never be carried out: the sender must change it.
type InvalidError struct{ err error }

func (e *InvalidError) Error() string { return e.err.Error() }

func (e *InvalidError) Unwrap() error { return e.err }

func invalid(format string, args ...any) error { return &InvalidError{fmt.Errorf(format, args...)} }

// Check returns an *InvalidError if the request is not valid in itself.
func (r Request) Check() error {
	switch {
	case !r.Withdraw && !slices.Contains(sender.Names(), r.By):
		return invalid("%.40q is not a sender: use one of %s", r.By, strings.Join(sender.Names(), ", "))
	case len(r.ID) > maxID || strings.ContainsFunc(r.ID, func(c rune) bool { return c <= ' ' || c == 0x7f || c == 0xfffd }):
		return invalid("the id has spaces or control characters, or more than %d characters", maxID)
	case r.Unless != "" && !syntax.IsCommit(r.Unless):
		return invalid("%.80q is not a commit: write all its 40 hexadecimal digits", r.Unless)
	case r.Commit != "" && !syntax.IsCommit(r.Commit):
		return invalid("the commit %.80q is not one: write all its 40 hexadecimal digits", r.Commit)
	case r.Commit != "" && r.Ref == "":
		return invalid("a commit needs a ref that points to it")
	case r.Commit != "" && syntax.IsCommit(r.Ref) && !strings.EqualFold(r.Ref, r.Commit):
		return invalid("the ref %s is another commit than %s", r.Ref, r.Commit)
	case r.Unless != "" && r.Ref == "":
		return invalid("a condition needs a ref that it belongs to")
	}
	return nil
}

// decided returns the request for the current object. The answer has an outcome if there is nothing to request.
func (r Request) decided(o v1alpha1.Requestable) (Request, Answer, error) {
	if r.Decider == nil {
		return r, Answer{}, nil
	}
	now, why, err := r.Decider.Decide(o)
	if err == nil && why != "" {
		return now, Answer{Outcome: Ignored, Message: why, At: o.GetAnnotations()[v1alpha1.AnnotationRequestedAt]}, nil
	}
	return now, Answer{}, errors.Join(err, now.Check())
}

// differs reports whether the request repeats the id of the one in force, but names another ref.
func (r *Request) differs(q desiredref.Inputs, ids map[string][]string) bool {
	requested := q.Annotations[v1alpha1.AnnotationRequestedRef]
	return r.Ref != "" && requested != "" && requested != r.Ref && !q.Stale() && newest(ids, r.By) == r.ID && q.Annotations[v1alpha1.AnnotationRequestedBy] == r.By
}

// writeRef adds the annotations of a request for a ref.
func (r *Request) writeRef(write map[string]*string, q desiredref.Inputs, at string) error {
	over := desiredref.RequestOver(r.Ref, q.Spec, at)
	replaced := replacedBy(q, over, r.ID)
	before, err := replaced.text()
	if err != nil {
		return err
	}
	text := annotation.Line(r.For)
	write[v1alpha1.AnnotationRequestedRef], write[v1alpha1.AnnotationRequestedOver], write[v1alpha1.AnnotationRequestedBefore] = &r.Ref, &over, before
	for name, value := range map[string]*string{
		v1alpha1.AnnotationRequestedFor: &text, v1alpha1.AnnotationRequestedCommit: &r.Commit, v1alpha1.AnnotationRequestedUnless: &r.Unless,
	} {
		if write[name] = value; *value == "" {
			write[name] = nil
		}
	}
	return nil
}

// plan returns the annotations to write (nil removes one) and the answer. The map is nil if there is nothing to write. It is pure.
func (r Request) plan(o v1alpha1.Requestable, now time.Time) (map[string]*string, Answer, error) {
	if r.Withdraw {
		return withdraw(o, r.ID, now)
	}
	q := desiredref.InputsOf(o)
	have := q.Annotations
	answer := Answer{Ref: r.Ref, At: have[v1alpha1.AnnotationRequestedAt], Object: o}
	if r.Ref != "" && q.NotRequestable != "" {
		return nil, Answer{}, invalid("%s", q.NotRequestable)
	}
	ids := readIDs(have[v1alpha1.AnnotationRequestedIDs])
	if answer.Outcome, answer.Message = knownOutcome(ids, r.By, r.ID, now); answer.Outcome != "" {
		if requested := have[v1alpha1.AnnotationRequestedRef]; answer.Outcome == Unchanged && r.differs(q, ids) {
			answer.Outcome, answer.Message = Superseded, fmt.Sprintf("request %s of %s was for %s and not for %s: use another id", r.ID, r.By, requested, r.Ref)
		}
		return nil, answer, nil
	}
	if r.Ref != "" && r.ID == "" && !r.Force {
		d, err := q.Desired("")
		same := err == nil && d.Ref == r.Ref && d.RefusedCommit == "" && strings.EqualFold(d.Commit, r.Commit)
		if same && (!d.Override || strings.EqualFold(q.Unless(), r.Unless)) {
			// The sender may know that the ref has moved: poll git, and leave what is in force as it is.
			answer.Message = "the desired ref is " + r.Ref + " already; git is polled again"
			r.Ref, r.Unless, r.Commit = "", "", ""
		}
	}
	at := stamp(now, answer.At)
	write := map[string]*string{v1alpha1.AnnotationRequestedAt: &at, v1alpha1.AnnotationRequestedBy: &r.By}
	if r.Ref != "" {
		if err := r.writeRef(write, q, at); err != nil {
			return nil, Answer{}, err
		}
	} else if _, asked := have[v1alpha1.AnnotationRequestedRef]; asked {
		delete(write, v1alpha1.AnnotationRequestedBy) // it belongs to the requested ref
	}
	if r.Follows && r.Ref != "" {
		tags := strings.Join(appendBounded(Followed(o), r.Ref, keptTags), " ")
		write[v1alpha1.AnnotationRequestedTags] = &tags
	}
	if r.Force {
		write[v1alpha1.AnnotationForceSync] = &at
	}
	if r.ConfirmDeletion != "" {
		write[v1alpha1.AnnotationConfirmDeletion] = &r.ConfirmDeletion
	}
	if r.ID != "" {
		ids[r.By] = appendBounded(ids[r.By], r.ID, keptIDs)
		text, err := writeIDs(ids)
		if err != nil {
			return nil, Answer{}, err
		}
		write[v1alpha1.AnnotationRequestedIDs] = &text
	}
	q.Annotations = annotated(have, write)
	d, err := q.Desired("")
	if err != nil {
		return nil, Answer{}, &InvalidError{err}
	}
	if r.Ref != "" && (d.Ref != r.Ref || !strings.EqualFold(d.Commit, r.Commit)) {
		return nil, Answer{}, fmt.Errorf("the request for %s would have no effect", r.Ref)
	}
	answer.Outcome, answer.Ref, answer.At = Set, d.Ref, at
	return write, answer, nil
}

// annotated returns the annotations after a write.
func annotated(have map[string]string, write map[string]*string) map[string]string {
	after := maps.Clone(have)
	if after == nil {
		after = map[string]string{}
	}
	for name, value := range write {
		if value == nil {
			delete(after, name)
		} else {
			after[name] = *value
		}
	}
	return after
}

// stamp returns a time that differs from last, because the clock may not have advanced.
func stamp(now time.Time, last string) string {
	now = now.UTC()
	if now.Format(time.RFC3339Nano) == last {
		now = now.Add(1)
	}
	return now.Format(time.RFC3339Nano)
}
