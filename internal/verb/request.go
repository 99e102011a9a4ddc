// Package verb holds what may be asked of a GatewaySync, as the command line and every other setter do it: which
// annotations say it, how they are written, and how far the gateways have come with it. The command line prints what it
// returns; nothing here prints.
package verb

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"stoker.io/stoker/api/v1alpha1"
)

// Senders are the values of the annotation stoker.io/requested-by.
var Senders = []string{"cli", "hook", "argocd", "kargo", "github", "gitlab", "gitea", "bitbucket", "azuredevops", "generic"}

// Request is what a setter asks for.
type Request struct {
	// Ref is the ref that the gateways are to run; "" leaves it as it is and asks for a fresh look at git.
	Ref string
	// Commit is the commit that Ref has to stand at; "" for wherever it stands. Only with Ref.
	Commit string
	// Unless is a commit: the request counts only while spec.git.ref resolves to it. Only with Ref.
	Unless string
	// By is one of Senders.
	By string
	// For says in words what the request belongs to. Only with Ref.
	For string
	// ID tells a request that is sent again from a new one; "" where the sender has none.
	ID string
	// Follows is true where Ref is a tag that is taken because it came to be. It is remembered, so that it is taken once.
	Follows bool
	// Force asks to verify every managed file by its content, too.
	Force bool
	// UID, where there is one, is that of the object which this is asked of; "" is whichever has the name when it is carried out.
	UID types.UID
	// Decider, where there is one, decides anew on the object that is written; the fields above are what it was before.
	Decider Decider
}

// Decider decides what to ask of a GatewaySync as it is now, or says why nothing. It has to be comparable.
type Decider interface {
	Decide(gs *v1alpha1.GatewaySync) (r Request, why string, err error)
}

// Outcome is what became of a request.
type Outcome string

const (
	// Set means that the request stands in the annotations now.
	Set Outcome = "Set"
	// Unchanged means that it stood there already, or that it was dealt with when it came first.
	Unchanged Outcome = "Unchanged"
	// Superseded means that a newer promotion has been asked for before: nothing was written.
	Superseded Outcome = "Superseded"
	// Ignored means that the Decider asks nothing: nothing was written.
	Ignored Outcome = "Ignored"
)

// Answer is what a setter learns.
type Answer struct {
	Outcome Outcome
	// Ref is what was asked for; where that was no ref, what was to run at the time. Where the object wants another one, the
	// request was taken once and somebody has asked for something else since.
	Ref string
	// At is the value of stoker.io/requested-at that stands on the object now: what a gateway must have dealt with.
	At string
	// Message is a sentence for people.
	Message string
	// GatewaySync is the object after the request.
	GatewaySync *v1alpha1.GatewaySync
}

// InvalidError means that a request can never be carried out: somebody has to write another one.
type InvalidError struct{ err error }

func (e *InvalidError) Error() string { return e.err.Error() }

func (e *InvalidError) Unwrap() error { return e.err }

func invalid(format string, args ...any) error { return &InvalidError{fmt.Errorf(format, args...)} }

// Check says what is wrong with a request in itself.
func (r Request) Check() error {
	switch {
	case !slices.Contains(Senders, r.By):
		return invalid("%.40q is no sender: use one of %s", r.By, strings.Join(Senders, ", "))
	case len(r.ID) > maxID || strings.ContainsFunc(r.ID, func(c rune) bool { return c <= ' ' || c == 0x7f || c == 0xfffd }):
		return invalid("the id has spaces or control characters, or more than %d characters", maxID)
	case r.Unless != "" && !v1alpha1.IsCommit(r.Unless):
		return invalid("%.80q is not a commit: write all its 40 hexadecimal digits", r.Unless)
	case r.Commit != "" && !v1alpha1.IsCommit(r.Commit):
		return invalid("the commit %.80q is not one: write all its 40 hexadecimal digits", r.Commit)
	case r.Commit != "" && r.Ref == "":
		return invalid("a commit needs the ref that is to stand at it")
	case r.Commit != "" && v1alpha1.IsCommit(r.Ref) && !strings.EqualFold(r.Ref, r.Commit):
		return invalid("the ref %s is another commit than %s", r.Ref, r.Commit)
	case r.Unless != "" && r.Ref == "":
		return invalid("a condition needs a ref that it belongs to")
	}
	return nil
}

// decided is the request for the object as it is; the answer has an outcome where there is nothing to ask for.
func (r Request) decided(gs *v1alpha1.GatewaySync) (Request, Answer, error) {
	if r.Decider == nil {
		return r, Answer{}, nil
	}
	now, why, err := r.Decider.Decide(gs)
	if err == nil && why != "" {
		return now, Answer{Outcome: Ignored, Message: why, At: gs.Annotations[v1alpha1.AnnotationRequestedAt]}, nil
	}
	return now, Answer{}, errors.Join(err, now.Check())
}

// plan returns the annotations that carry a request out (nil takes one away), or none and an answer where there is nothing
// to write. It is pure.
func (r Request) plan(gs *v1alpha1.GatewaySync, now time.Time) (map[string]*string, Answer, error) {
	have := gs.Annotations
	answer := Answer{Outcome: Unchanged, Ref: r.Ref, At: have[v1alpha1.AnnotationRequestedAt], GatewaySync: gs}
	ids := readIDs(have[v1alpha1.AnnotationRequestedIDs])
	if outcome, message := before(ids, r.By, r.ID, now); outcome != "" {
		answer.Outcome, answer.Message = outcome, message
		return nil, answer, nil
	}
	if r.Ref != "" && r.ID == "" && !r.Force {
		d, err := v1alpha1.DesiredRef(gs, "")
		same := err == nil && d.Ref == r.Ref && d.Stood == "" && strings.EqualFold(d.Commit, r.Commit)
		if same && (!d.Override || strings.EqualFold(gs.RequestedUnless(), r.Unless)) {
			// Who asks may know that it has moved: git is looked at again, and what is in force stays as it is.
			answer.Message = "it is to run " + r.Ref + " already: git is looked at again"
			r.Ref, r.Unless, r.Commit = "", "", ""
		}
	}
	at := stamp(now, answer.At)
	write := map[string]*string{v1alpha1.AnnotationRequestedAt: &at, v1alpha1.AnnotationRequestedBy: &r.By}
	if r.Ref != "" {
		over := v1alpha1.RequestOver(r.Ref, gs.Spec.Git.Ref, at)
		write[v1alpha1.AnnotationRequestedRef], write[v1alpha1.AnnotationRequestedOver] = &r.Ref, &over
		write[v1alpha1.AnnotationRequestedUnless], write[v1alpha1.AnnotationRequestedCommit] = nil, nil
		write[v1alpha1.AnnotationRequestedFor] = nil
		if text := v1alpha1.Line(r.For); text != "" {
			write[v1alpha1.AnnotationRequestedFor] = &text
		}
		if r.Commit != "" {
			write[v1alpha1.AnnotationRequestedCommit] = &r.Commit
		}
		if r.Unless != "" {
			write[v1alpha1.AnnotationRequestedUnless] = &r.Unless
		}
	} else if _, asked := have[v1alpha1.AnnotationRequestedRef]; asked {
		delete(write, v1alpha1.AnnotationRequestedBy) // it tells who asked for the ref
	}
	if r.Follows && r.Ref != "" {
		tags := strings.Join(remember(Followed(gs), r.Ref, keptTags), " ")
		write[v1alpha1.AnnotationRequestedTags] = &tags
	}
	if r.Force {
		write[v1alpha1.AnnotationForceSync] = &at
	}
	if r.ID != "" {
		ids[r.By] = remember(ids[r.By], r.ID, keptIDs)
		text, err := writeIDs(ids)
		if err != nil {
			return nil, Answer{}, err
		}
		write[v1alpha1.AnnotationRequestedIDs] = &text
	}
	after := gs.DeepCopy()
	after.Annotations = annotated(have, write)
	d, err := v1alpha1.DesiredRef(after, "")
	if err != nil {
		return nil, Answer{}, &InvalidError{err}
	}
	if r.Ref != "" && (d.Ref != r.Ref || !strings.EqualFold(d.Commit, r.Commit)) {
		return nil, Answer{}, fmt.Errorf("the request for %s would not be in force", r.Ref)
	}
	answer.Outcome, answer.Ref, answer.At = Set, d.Ref, at
	return write, answer, nil
}

// annotated is what annotations are after a write.
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

// stamp is a time that differs from the last one, which clocks alone do not promise.
func stamp(now time.Time, last string) string {
	now = now.UTC()
	if now.Format(time.RFC3339Nano) == last {
		now = now.Add(1)
	}
	return now.Format(time.RFC3339Nano)
}
