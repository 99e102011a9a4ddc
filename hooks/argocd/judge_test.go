//go:build !race

package argocd

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/verb"
)

const (
	commitA = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	commitB = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
)

// dice generates GatewaySyncs of every kind, most of them close to a synced one.
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
	gs.Name, gs.Namespace, gs.ResourceVersion = "site", "plant", fmt.Sprint(1+d.IntN(1<<30))
	gs.Generation = int64(mostly(d, 4, 5))
	gs.Spec.Git.Repo = "https://git.example.com/site.git"
	gs.Spec.Git.Ref = mostly(d, "main", "v2", "größe", commitB)
	gs.Spec.Paused = d.IntN(12) == 0
	note := map[string]string{}
	put := func(name, value string) {
		if value != "" {
			note[name] = value
		}
	}
	requested := mostly(d, "", "v2", "main", commitA, "a@b", "größe", "a b", "x..y", "-x", "a.lock", "a.lock/b", "a.locks", "@", "\u00e9\u0001")
	unless := mostly(d, "", commitA, "B"+commitB[1:], "not a commit")
	if d.IntN(2) == 0 { // as a rollback writes it
		requested, unless = commitA, pick(d, commitB, "B"+commitB[1:])
	}
	put(v1alpha1.AnnotationRequestedRef, requested)
	over := []string{"", v1alpha1.RequestOver(requested, gs.Spec.Git.Ref, "t1"), v1alpha1.RequestOver(requested, gs.Spec.Git.Ref, ""),
		v1alpha1.RequestOver(requested, "release", "t1"), v1alpha1.RequestOver(requested, gs.Spec.Git.Ref+"s", ""), "v2@main", "v9@main t1"}
	put(v1alpha1.AnnotationRequestedOver, pick(d, over...))
	put(v1alpha1.AnnotationRequestedUnless, unless)
	put(v1alpha1.AnnotationRequestedCommit, mostly(d, "", "", "", "", "", commitA, "B"+commitB[1:], "not a commit", commitA+"a"))
	put(v1alpha1.AnnotationRequestedAt, mostly(d, "t1", "", "", "t2", "Fri Nov 20", string(make([]byte, 65)), "größe"))
	put(v1alpha1.AnnotationPaused, mostly(d, "", "true", "yes"))
	if len(note) > 0 {
		gs.Annotations = note
	}
	d.status(gs, over)
	return gs
}

func (d dice) status(gs *v1alpha1.GatewaySync, over []string) {
	if d.IntN(20) == 0 {
		return
	}
	st := &gs.Status
	if age := mostly(d, time.Minute, v1alpha1.ConfirmedFor, v1alpha1.ConfirmedFor+time.Second, -time.Hour, 80*24*time.Hour, 5*365*24*time.Hour); d.IntN(20) > 0 {
		st.ConfirmedAt = &metav1.Time{Time: noon.Add(-age)}
	}
	st.ObservedGeneration = mostly(d, gs.Generation, 3)
	if d.IntN(4) == 0 {
		unless := pick(d, "", "", " unless "+commitA, " unless "+commitB, " unless ")
		st.Request = &v1alpha1.RequestStatus{Over: pick(d, over...), Lapsed: pick(d, append(over, "")...) + unless}
	}
	want, err := v1alpha1.DesiredRef(gs, "")
	at := gs.Annotations[v1alpha1.AnnotationRequestedAt]
	if err == nil && d.IntN(12) > 0 {
		st.Target = &v1alpha1.TargetStatus{Ref: mostly(d, want.Ref, "v2", "main"), Commit: mostly(d, commitA, "", commitB), RequestedAt: mostly(d, at, "t0", "")}
	}
	st.LastHandledRequest = mostly(d, at, "t0", "")
	rows := pick(d, 0, 1, 2, 3)
	healthy := d.IntN(2) == 0
	for i := range rows {
		g := v1alpha1.DiscoveredGateway{Name: fmt.Sprintf("gw-%d", i), PodName: pick(d, "", fmt.Sprintf("gw-%d", i), "pod-x"), SyncStatus: v1alpha1.GatewaySynced, Reason: v1alpha1.ReasonSynced, SyncedCommit: commitA}
		if !healthy || d.IntN(12) == 0 {
			g.SyncStatus = pick(d, v1alpha1.GatewayPending, v1alpha1.GatewayApplied, v1alpha1.GatewaySyncing, v1alpha1.GatewaySynced, v1alpha1.GatewayStandby,
				v1alpha1.GatewayHeld, v1alpha1.GatewayHeld, v1alpha1.GatewayError, v1alpha1.GatewayMissingSidecar, "")
			g.Reason, g.SyncedCommit = d.reason(), pick(d, commitA, commitB, "")
			g.Message = pick(d, "", "as it is")
		}
		st.DiscoveredGateways = append(st.DiscoveredGateways, g)
	}
	st.GatewaysReady = mostly(d, fmt.Sprintf("%d/%d", rows, rows), "", "2005/2005", "0/2005", "2003/2005", "0/0", "x/y", "7")
	for _, kind := range []string{v1alpha1.ConditionReady, v1alpha1.ConditionRefResolved, v1alpha1.ConditionProfilesValid, v1alpha1.ConditionStalled} {
		if d.IntN(5) == 0 || kind == v1alpha1.ConditionStalled && d.IntN(4) > 0 {
			continue
		}
		c := metav1.Condition{Type: kind, Status: mostly(d, metav1.ConditionTrue, metav1.ConditionFalse, metav1.ConditionUnknown),
			Reason: string(d.reason()), Message: "of " + kind, ObservedGeneration: mostly(d, gs.Generation, 3), LastTransitionTime: metav1.NewTime(noon)}
		if kind == v1alpha1.ConditionReady || kind == v1alpha1.ConditionStalled {
			c.Reason = string(pick(d, v1alpha1.ReasonNoGateways, v1alpha1.ReasonAgentsAway, v1alpha1.ReasonProgressDeadlineExceeded, v1alpha1.ReasonSynced, d.reason()))
		}
		st.Conditions = append(st.Conditions, c)
	}
}

func (d dice) reason() v1alpha1.Reason {
	if d.IntN(12) == 0 {
		return pick[v1alpha1.Reason](d, "", "SomethingNew")
	}
	if d.IntN(2) == 0 {
		return pick(d, v1alpha1.ReasonPaused, v1alpha1.ReasonDryRun, v1alpha1.ReasonDesignerSessionActive, v1alpha1.ReasonGateClosed, v1alpha1.ReasonMassDeletion)
	}
	return pick(d, v1alpha1.Reasons...).Reason
}

// expected returns the health that Argo CD must show: the verdict of the verbs, adapted to the states of Argo CD.
func expected(gs *v1alpha1.GatewaySync) (status, message string) {
	v := verb.Judge(gs, "", verb.Evidence{Now: noon})
	current := gs.Status.ObservedGeneration == gs.Generation
	asked := gs.AskedAt()
	handled := asked == "" || asked == gs.Status.LastHandledRequest
	ready := condition(gs, v1alpha1.ConditionReady)
	message = v.Message
	if v.Reason != "" {
		message = string(v.Reason) + ": " + v.Message
	}
	want, err := v1alpha1.DesiredRef(gs, "")
	t := gs.Status.Target
	looked := err == nil && current && t != nil && t.Ref == want.Ref && (want.RequestedAt == "" || t.RequestedAt == want.RequestedAt) &&
		(t.Commit == "" || want.CheckCommit(t.Commit) == nil)
	var persons, turns, paused int
	for _, b := range v.Behind {
		switch {
		case b.Rests():
			paused++
		case b.Reason == v1alpha1.ReasonGateClosed || b.Reason == v1alpha1.ReasonNoConfigAccess:
			turns++
		case b.Reason.Class() == v1alpha1.ClassHeld:
			persons++
		}
	}
	switch {
	case current && handled && len(gs.Status.DiscoveredGateways) == 0 && ready.Reason == string(v1alpha1.ReasonNoGateways):
		return "Healthy", ready.Message // without gateways there is nothing to sync
	case err != nil:
		return "Degraded", ", or remove the annotation"
	case v.Phase == verb.Succeeded && gs.Paused() && !strings.HasPrefix(v.Message, "RolledBack: "):
		return "Healthy", "Paused: " + v.Message
	case v.Phase == verb.Succeeded:
		return "Healthy", v.Message
	case v.Phase == verb.Failed:
		return "Degraded", message
	case v.Phase == verb.Held && looked:
		return "Healthy", "Paused: "
	case v.Phase == verb.Held:
		return "Progressing", "Paused: "
	case len(gs.Status.DiscoveredGateways) == 0 && !current:
		return "Progressing", "WaitingForLead: the status does not speak of today's spec yet"
	case v.Reason == v1alpha1.ReasonAgentsAway, v.Reason == v1alpha1.ReasonWaitingForLead, v.Reason == v1alpha1.ReasonNoGateways && len(gs.Status.DiscoveredGateways) == 0, isFalse(gs, v1alpha1.ConditionRefResolved):
		return "Progressing", message
	case handled && v.Commit != "" && paused > 0 && paused == len(v.Behind):
		return "Healthy", string(v.Reason) + ": " + v.Message // an operator paused these gateways
	case v.Waits && persons > 0:
		return "Suspended", v.Message
	case v.Reason == v1alpha1.ReasonProgressing:
		return "Progressing", v.Message
	}
	return "Progressing", message
}

func condition(gs *v1alpha1.GatewaySync, kind string) metav1.Condition {
	for _, c := range gs.Status.Conditions {
		if c.Type == kind && c.ObservedGeneration == gs.Generation && gs.Status.ObservedGeneration == gs.Generation {
			return c
		}
	}
	return metav1.Condition{}
}

func isFalse(gs *v1alpha1.GatewaySync, kind string) bool {
	return condition(gs, kind).Status == metav1.ConditionFalse
}

func TestArgoCDAndTheVerbsAgreeAboutEveryStatus(t *testing.T) {
	t.Parallel()
	judge := load(t, "health.lua")
	seen := map[string]int{}
	for seed := range uint64(4000) {
		gs := dice{rand.New(rand.NewPCG(seed, 7))}.gatewaySync()
		status, message := expected(gs)
		h := judge.health(t, object(t, gs))
		require.Equal(t, status, h.Status, "seed %d: %s; the verbs say %+v", seed, h.Message, verb.Judge(gs, "", verb.Evidence{Now: noon}))
		require.Contains(t, h.Message, message, "seed %d", seed)
		if strings.HasPrefix(message, "RolledBack: ") && status == "Healthy" {
			require.Equal(t, message, h.Message, "seed %d", seed)
			seen["rolled back"]++
		}
		seen[status]++
	}
	for _, status := range []string{"Healthy", "Progressing", "Degraded", "Suspended", "rolled back"} {
		assert.Greater(t, seen[status], 20, "the dice show %s too rarely: %v", status, seen)
	}
}

// A name may have 255 characters, and a character up to four bytes.
func TestArgoCDAndTheVerbsAgreeAboutRequestsBesideLongNames(t *testing.T) {
	t.Parallel()
	judge := load(t, "health.lua")
	for _, letter := range []string{"x", "я", "道", "𝔵"} {
		long := strings.Repeat(letter, 255)
		for _, requested := range []string{commitA, strings.Repeat(letter, 254) + "y"} {
			for _, at := range []string{"", strings.Repeat("9", 64), strings.Repeat(letter, 255)} {
				for seed, spec := range []string{long, "main"} {
					gs := dice{rand.New(rand.NewPCG(uint64(seed), 11))}.gatewaySync()
					gs.Spec.Git.Ref, gs.Status.Request = spec, nil
					gs.Annotations = map[string]string{v1alpha1.AnnotationRequestedRef: requested, v1alpha1.AnnotationRequestedUnless: commitB,
						v1alpha1.AnnotationRequestedOver: strings.TrimSpace(requested + "@" + long + " " + at)}
					want, err := v1alpha1.DesiredRef(gs, "")
					require.NoError(t, err)
					gs.Status.ConfirmedAt = &metav1.Time{Time: noon}
					gs.Status.ObservedGeneration, gs.Status.Target = gs.Generation, &v1alpha1.TargetStatus{Ref: want.Ref, Commit: commitA}
					status, message := expected(gs)
					h := judge.health(t, object(t, gs))
					require.Equal(t, status, h.Status, "%s: %s; the verbs say %+v", letter, h.Message, verb.Judge(gs, "", verb.Evidence{Now: noon}))
					require.Contains(t, h.Message, message)
				}
			}
		}
	}
}
