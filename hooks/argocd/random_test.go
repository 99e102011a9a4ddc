//go:build !race

package argocd

import (
	"math/rand/v2"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/desiredref"
)

const (
	commitA = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	commitB = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
)

// dice generates GatewaySyncs of every kind, most of them with a current outcome.
type dice struct{ *rand.Rand }

func pick[T any](d dice, list ...T) T { return list[d.IntN(len(list))] }

// mostly returns first in about three of four calls, otherwise one of the others.
func mostly[T any](d dice, first T, others ...T) T {
	if d.IntN(4) > 0 {
		return first
	}
	return pick(d, others...)
}

func (d dice) gatewaySync() *v1alpha1.GatewaySync {
	gs := &v1alpha1.GatewaySync{}
	// The version does not end in zero, because Go cuts zeros from the fraction of a second.
	gs.Name, gs.Namespace, gs.ResourceVersion, gs.Generation = "site", "plant", strconv.Itoa(1+10*d.IntN(100_000_000)), 4
	gs.Spec.Git.Repo, gs.Spec.Git.Ref = "https://git.example.com/site.git", mostly(d, "main", "größe", commitB)
	gs.Spec.Paused = d.IntN(12) == 0
	gs.Annotations = map[string]string{}
	annotate := func() {
		for name, values := range map[string][]string{
			v1alpha1.AnnotationRequestedRef:    {"", "v2", commitA, "a b", "\u00e9"},
			v1alpha1.AnnotationRequestedOver:   {"", "v2@main", "v9@main t1"},
			v1alpha1.AnnotationRequestedUnless: {"", commitA, commitB},
			v1alpha1.AnnotationRequestedCommit: {"", commitA},
			v1alpha1.AnnotationRequestedAt:     {"", "t1", "t2"},
			v1alpha1.AnnotationPaused:          {"", "true", "false"},
			v1alpha1.AnnotationRetry:           {"", commitA + " t1", commitA + " t2"},
		} {
			if value := mostly(d, "", values...); value != "" {
				gs.Annotations[name] = value
			}
		}
	}
	annotate()
	st := &gs.Status
	want, _ := desiredref.Of(gs, "") // without a ref if the request is not valid
	if d.IntN(20) > 0 {
		reason := mostly(d, v1alpha1.ReasonSynced, v1alpha1.ReasonNoGateways, v1alpha1.ReasonAgentsAway, v1alpha1.ReasonProgressing, v1alpha1.ReasonRolledBack, v1alpha1.ReasonPaused)
		st.Outcome = &v1alpha1.Outcome{Phase: pick(d, v1alpha1.OutcomeProgressing, v1alpha1.OutcomeSucceeded, v1alpha1.OutcomeFailed, v1alpha1.OutcomeHeld, v1alpha1.OutcomePaused),
			Ref: want.Ref, Commit: mostly(d, commitA, commitB, ""), Total: mostly(d, int32(3), int32(0)), Reason: reason, Message: "as it is"}
		if reason == v1alpha1.ReasonNoGateways {
			st.Outcome.Phase, st.Outcome.Total = v1alpha1.OutcomeProgressing, 0
		}
	}
	st.ObservedGeneration, st.ObservedRequest = mostly(d, 4, int64(3)), desiredref.Key(gs)
	age := mostly(d, time.Minute, -4*time.Minute, 4*time.Minute, 6*time.Minute, -6*time.Minute, 80*365*24*time.Hour)
	if d.IntN(20) > 0 {
		st.ConfirmedAt = &metav1.Time{Time: noon.Add(-age)}
	}
	if good := mostly(d, commitA, commitB, ""); good != "" {
		st.LastGood = &v1alpha1.CommitRecord{Ref: "main", Commit: good, At: metav1.NewTime(noon)}
		if d.IntN(6) > 0 {
			st.Rollback = &v1alpha1.Rollback{Commit: good, Unless: mostly(d, commitB, ""), Over: good + "@" + gs.Spec.Git.Ref}
			if st.Outcome != nil && st.Outcome.Commit == good || want.Ref == good || st.Rollback.Unless == good {
				st.Rollback.Commit = ""
			}
		}
	}
	if d.IntN(5) == 0 {
		annotate()
	}
	return gs
}
