package request

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/annotation"
	"stoker.io/stoker/api/v1alpha1/desiredref"
	"stoker.io/stoker/api/v1alpha1/syntax"
)

// replaced is the value of stoker.io/requested-before: the id of a request, and the request that it replaced. It counts only while Of is the
// requested-over (see desiredref.RequestOver) of the request in force, because not every client writes the annotation.
type replaced struct {
	Of     string `json:"of"`
	ID     string `json:"id,omitempty"` // of the request whose requested-over is Of
	Ref    string `json:"ref,omitempty"`
	Over   string `json:"over,omitempty"`
	Unless string `json:"unless,omitempty"`
	Commit string `json:"commit,omitempty"`
	By     string `json:"by,omitempty"`
	For    string `json:"for,omitempty"`
	// Before is the requested-before of the replaced request.
	Before *replaced `json:"before,omitempty"`
}

// maxReplaced bounds the annotation stoker.io/requested-before, in bytes.
const maxReplaced = 4096

// readReplaced returns the id of the request in force and what it replaced. Ref is empty if that was the ref of the spec, or is unknown.
func readReplaced(q desiredref.Inputs) replaced {
	var r replaced
	text := q.Annotations[v1alpha1.AnnotationRequestedBefore]
	if len(text) > maxReplaced || json.Unmarshal([]byte(text), &r) != nil || q.Stale() || r.Of != q.Annotations[v1alpha1.AnnotationRequestedOver] {
		return replaced{}
	}
	return r
}

// replacedBy returns stoker.io/requested-before for a new request with this requested-over and id. A request that was refused never took
// effect, so what it replaced is kept.
func replacedBy(q desiredref.Inputs, over, id string) (r replaced) {
	if d, err := q.Desired(""); err == nil && d.Lapsed == "" && q.Annotations[v1alpha1.AnnotationRequestedRef] != "" {
		before := readReplaced(q)
		if d.RefusedCommit != "" {
			r = before
		} else {
			r = replaced{Ref: d.Ref, Over: d.Over, Unless: q.Unless(), Commit: d.Commit, By: d.RequestedBy, For: annotation.Line(q.Annotations[v1alpha1.AnnotationRequestedFor])}
			if before.Of != "" {
				r.Before = &before
			}
		}
	}
	if r.Ref == q.Spec && r.Commit == "" {
		r = replaced{}
	}
	r.Of, r.ID = over, id
	return r
}

// drop drops the request with this id from what was replaced, so that nothing puts it in force again. drop reports whether there was one.
func (r *replaced) drop(id string) bool {
	for ; r.Before != nil; r = r.Before {
		if r.Before.ID == id {
			before := *r.Before
			before.Of, before.ID = r.Of, r.ID
			*r = before
			return true
		}
	}
	return false
}

// text returns the annotation, or nil if there is nothing to record. While it is too long, it omits the oldest request.
func (r *replaced) text() (*string, error) {
	for {
		if r == nil || r.ID == "" && r.Ref == "" {
			return nil, nil
		}
		b, err := json.Marshal(r)
		if text := string(b); len(text) <= maxReplaced || r.Ref == "" || err != nil {
			return &text, err
		}
		oldest := r
		for oldest.Before != nil && oldest.Before.Ref != "" {
			oldest = oldest.Before
		}
		*oldest = replaced{Of: oldest.Of, ID: oldest.ID}
	}
}

// Withdrawal returns the request to end the one in force, or the one with this id. If it is repeated because its answer was lost, it ends no
// other one: without an id, it means the request that was in force when it was asked first.
func Withdrawal(id string) Request {
	return Request{Withdraw: true, ID: id, Decider: &withdrawal{id: id}}
}

// withdrawal implements Decider.
type withdrawal struct {
	id      string
	inForce *[2]string // the ref and the requested-over of the request; nil before the first decision
}

func (w *withdrawal) Decide(o v1alpha1.Requestable) (Request, string, error) {
	have := o.GetAnnotations()
	is := [2]string{have[v1alpha1.AnnotationRequestedRef], have[v1alpha1.AnnotationRequestedOver]}
	if w.inForce == nil {
		w.inForce = &is
	}
	if w.id == "" && is != *w.inForce {
		return Request{}, "the request is not in force any more", nil
	}
	return Request{Withdraw: true, ID: w.id}, "", nil
}

// withdraw returns the annotations to write (nil removes one) to end the request in force, if it is the one with this id, and no gateway
// has taken it. "" is the id of any request. If the one with this id was replaced, withdraw only makes sure that it cannot come back. It is pure.
func withdraw(o v1alpha1.Requestable, id string, now time.Time) (map[string]*string, Answer, error) {
	q := desiredref.InputsOf(o)
	have := q.Annotations
	answer := Answer{Outcome: Ignored, At: have[v1alpha1.AnnotationRequestedAt], Object: o, Message: "no request is in force: there is nothing to withdraw"}
	before := readReplaced(q)
	d, err := q.Desired("")
	switch {
	case err == nil && (d.Lapsed != "" || have[v1alpha1.AnnotationRequestedRef] == ""):
		return nil, answer, nil
	case id != "" && before.ID != id && before.drop(id):
		text, err := before.text()
		answer.Outcome, answer.Ref, answer.Message = Set, d.Ref, fmt.Sprintf("request %s is not in force, and cannot come back", id)
		return map[string]*string{v1alpha1.AnnotationRequestedBefore: text}, answer, err
	case id != "" && before.ID != id:
		answer.Message = fmt.Sprintf("request %s is not in force: there is nothing to withdraw", id)
		return nil, answer, nil
	}
	if by := takenBy(o, d); by != "" {
		answer.Outcome, answer.Message = Unchanged, by+": the request stays in force; roll back, or request another ref"
		return nil, answer, nil
	}
	at := stamp(now, answer.At)
	write := map[string]*string{v1alpha1.AnnotationRequestedAt: &at}
	for _, name := range []string{v1alpha1.AnnotationRequestedRef, v1alpha1.AnnotationRequestedOver, v1alpha1.AnnotationRequestedUnless, v1alpha1.AnnotationRequestedCommit,
		v1alpha1.AnnotationRequestedBy, v1alpha1.AnnotationRequestedFor, v1alpha1.AnnotationRequestedBefore} {
		write[name] = nil
	}
	if r := before; r.Ref != "" {
		text, err := r.Before.text()
		if err != nil {
			return nil, Answer{}, err
		}
		again := map[string]*string{v1alpha1.AnnotationRequestedBefore: text}
		for name, value := range map[string]string{v1alpha1.AnnotationRequestedRef: r.Ref, v1alpha1.AnnotationRequestedOver: r.Over, v1alpha1.AnnotationRequestedUnless: r.Unless,
			v1alpha1.AnnotationRequestedCommit: r.Commit, v1alpha1.AnnotationRequestedBy: r.By, v1alpha1.AnnotationRequestedFor: annotation.Line(r.For)} {
			if value != "" {
				again[name] = &value
			}
		}
		q.Annotations = annotated(annotated(have, write), again)
		if d, err := q.Desired(""); err == nil && d.Ref == r.Ref && d.Lapsed == "" { // else the annotation is damaged, or the spec has changed
			for name, value := range again {
				write[name] = value
			}
		}
	}
	q.Annotations = annotated(have, write)
	if d, err = q.Desired(""); err != nil {
		return nil, Answer{}, &InvalidError{err}
	}
	answer.Outcome, answer.Ref, answer.At, answer.Message = Set, d.Ref, at, "the desired ref is "+d.Ref+" again"
	return write, answer, nil
}

// takenBy returns which gateways run the commit of the request in force, as a sentence; "" if none does. A ConfigSync has taken the commit
// that it applied last. The outcome may not name the commit: it is about an earlier request, or git is being polled. So the commit of a
// ref is the one that was resolved last.
func takenBy(o v1alpha1.Requestable, d desiredref.Desired) string {
	if d.Ref == "" || d.RefusedCommit != "" {
		return ""
	}
	commit := d.Commit
	if commit == "" && syntax.IsCommit(d.Ref) {
		commit = strings.ToLower(d.Ref)
	}
	switch o := o.(type) {
	case *v1alpha1.GatewaySync:
		if t := o.Status.Target; commit == "" {
			if t == nil || t.Ref != d.Ref {
				return "" // it was not resolved
			}
			commit = t.Commit
		}
		return runBy(&o.Status, d.Ref, commit)
	case *v1alpha1.ConfigSync:
		st := &o.Status
		if commit == "" && st.SourceRef == d.Ref {
			commit = st.SourceRevision
		}
		if commit != "" && len(st.History) > 0 && st.History[0].Commit == commit {
			return syntax.ShortCommit(commit) + " is applied"
		}
	}
	return ""
}

// runBy returns which gateways run a commit, or any commit of ref if commit is "". The outcome also counts gateways without a row.
func runBy(st *v1alpha1.GatewaySyncStatus, ref, commit string) string {
	var names []string
	for _, g := range st.DiscoveredGateways {
		if commit != "" && g.SyncedCommit == commit || commit == "" && g.SyncedRef == ref {
			names = append(names, g.Name)
		}
	}
	n, total, what := len(names), len(st.DiscoveredGateways), ref
	if commit != "" {
		what = syntax.ShortCommit(commit)
		if o := st.Outcome; o != nil && o.Commit == commit {
			n, total = max(n, int(o.Synced)), max(total, int(o.Total))
		}
	}
	if n == 0 {
		return ""
	}
	says := fmt.Sprintf("%d of %d gateways run %s already", n, total, what)
	if len(names) > 0 {
		says += ", such as " + slices.Min(names)
	}
	return says
}
