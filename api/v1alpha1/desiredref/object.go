package desiredref

import (
	"fmt"
	"strings"

	"stoker.io/stoker/api/v1alpha1"
)

// InputsOf returns the inputs of Of for an object.
func InputsOf(o v1alpha1.Requestable) Inputs {
	switch o := o.(type) {
	case *v1alpha1.GatewaySync:
		git := &o.Spec.Git
		return Inputs{Annotations: o.Annotations, Repo: git.Repo, Spec: git.Ref, Field: "spec.git.ref", Status: o.Status.Request}
	case *v1alpha1.ConfigSync:
		return inputsOfConfigSync(o)
	}
	panic(unknown(o))
}

func inputsOfConfigSync(cs *v1alpha1.ConfigSync) Inputs {
	q := Inputs{Annotations: cs.Annotations, Status: cs.Status.Request}
	switch git, follow := cs.Spec.Source.Git, cs.Spec.Source.GatewaySync; {
	case git != nil:
		q.Repo, q.Spec, q.Field = git.RepoURL, git.Ref(), "the ref of spec.source.git"
	case follow != nil:
		q.NotRequestable = "ConfigSync " + cs.Name + " applies the commit of GatewaySync " + follow.Name + ", so that it has no ref of its own: request the ref of the GatewaySync"
	default:
		q.NotRequestable = "spec.source names no repository"
	}
	return q
}

// unknown describes a programming error: the API has another kind, of which this package does not know.
func unknown(o v1alpha1.Requestable) string { return fmt.Sprintf("desiredref: unknown kind %T", o) }

// requestAnnotations are the annotations that an outcome depends on.
var requestAnnotations = []string{v1alpha1.AnnotationRequestedRef, v1alpha1.AnnotationRequestedOver, v1alpha1.AnnotationRequestedUnless,
	v1alpha1.AnnotationRequestedCommit, v1alpha1.AnnotationRequestedAt, v1alpha1.AnnotationPaused, v1alpha1.AnnotationRetry}

const (
	maxRequest  = 4096       // bytes of the joined annotations
	longRequest = "too long" // the key of a request that exceeds maxRequest
)

// Key returns the key of the requests of an object, for status.observedRequest. It joins the annotations that an outcome depends on: one
// line "name=value" for each that is set. If they are longer than 4096 bytes, it is "too long": such a request is never valid.
func Key(o v1alpha1.Requestable) string { return key(o.GetAnnotations()) }

func key(annotations map[string]string) string {
	var b strings.Builder
	for _, name := range requestAnnotations {
		if value := annotations[name]; value != "" {
			b.WriteString(strings.TrimPrefix(name, "stoker.io/") + "=" + value + "\n")
		}
	}
	if b.Len() > maxRequest {
		return longRequest
	}
	return b.String()
}

// Current reports whether the status of an object describes its current spec and request. Otherwise its outcome means nothing.
func Current(o v1alpha1.Requestable) bool { return RefStatusOf(o).Current }

// RefStatus is what the status of an object says about its desired ref.
type RefStatus struct {
	// Current reports whether the status describes the current spec and request. Otherwise Ref, Commit and Rollback mean nothing.
	Current bool
	// Ref is the desired ref, and Commit what it resolves to; "" if unknown.
	Ref, Commit string
	// Rollback is the request that a rollback would make now; nil if unknown.
	Rollback *v1alpha1.Rollback
	LastGood *v1alpha1.CommitRecord
	History  []v1alpha1.CommitRecord
}

// RefStatusOf returns what the status of an object says about its desired ref.
func RefStatusOf(o v1alpha1.Requestable) RefStatus {
	switch o := o.(type) {
	case *v1alpha1.GatewaySync:
		st := &o.Status
		return refStatus(o, st.ObservedGeneration, st.ObservedRequest, st.Outcome, RefStatus{Rollback: st.Rollback, LastGood: st.LastGood, History: st.History})
	case *v1alpha1.ConfigSync:
		st := &o.Status
		return refStatus(o, st.ObservedGeneration, st.ObservedRequest, st.Outcome, RefStatus{Rollback: st.Rollback, LastGood: st.LastGood, History: st.History})
	}
	panic(unknown(o))
}

// refStatus adds to s what the outcome says, and whether it is about the current spec and request.
func refStatus(o v1alpha1.Requestable, generation int64, request string, outcome *v1alpha1.Outcome, s RefStatus) RefStatus {
	if outcome != nil {
		s.Current = generation == o.GetGeneration() && request == Key(o)
		s.Ref, s.Commit = outcome.Ref, outcome.Commit
	}
	return s
}
