package status

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/annotation"
	"stoker.io/stoker/api/v1alpha1/desiredref"
	"stoker.io/stoker/api/v1alpha1/gatewaypod"
	"stoker.io/stoker/internal/kube"
)

const (
	commitA = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	commitB = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

// scene is a fleet as a lead sees it, built by a test.
type scene struct {
	t testing.TB
	Seen
	events []Event // of the last summary
	last   Summary
}

// newScene returns a scene with a GatewaySync whose ref main is at commitA, and n gateways that run it.
func newScene(t testing.TB, n int) *scene {
	gs := &v1alpha1.GatewaySync{}
	gs.Namespace, gs.Name, gs.UID, gs.Generation, gs.ResourceVersion = "plant", "site", "uid-site", 1, "1"
	gs.Spec.Git.Repo, gs.Spec.Git.Ref = "https://git.example.com/site.git", "main"
	gs.Spec.Sync.Profiles = map[string]v1alpha1.SyncProfile{"default": {Mappings: []v1alpha1.Mapping{{Source: "projects", Destination: "projects"}}}}
	s := &scene{t: t, Seen: Seen{GatewaySync: gs, Now: noon}}
	s.Ref = Ref{Polled: true, Desired: desiredref.Desired{Ref: "main"}}
	s.Target = v1alpha1.SyncTargetSpec{Format: 1, Revision: 1, Generation: 1, Ref: "main", RefName: "refs/heads/main", Commit: commitA, Requests: annotation.Hash(gs)}
	for i := range n {
		s.gateway(fmt.Sprintf("gw-%d", i))
	}
	return s
}

// synced returns a scene whose status says that all gateways run the target.
func synced(t testing.TB, n int) *scene {
	t.Helper()
	s := newScene(t, n)
	s.write()
	return s
}

// gateway adds a pod with an agent that reports Synced.
func (s *scene) gateway(name string) *v1alpha1.SyncReport {
	p := s.pod(name)
	r := &v1alpha1.SyncReport{}
	r.Name, r.Namespace = p.Name, p.Namespace
	r.OwnerReferences = []metav1.OwnerReference{{Kind: "Pod", Name: p.Name, UID: p.UID}}
	started := metav1.NewTime(noon.Add(-time.Minute))
	r.Status = v1alpha1.SyncReportStatus{Format: 1, Gateway: name, Profile: "default", Phase: v1alpha1.GatewaySynced, Reason: v1alpha1.ReasonSynced,
		Ref: "main", Commit: commitA, Target: commitA, Revision: s.Target.Revision, Generation: 1, Started: &started, Duration: "1.2s", GatewayDetails: v1alpha1.GatewayDetails{AgentVersion: "v1"}}
	s.Reports = append(s.Reports, r)
	return r
}

func (s *scene) pod(name string) *Pod {
	s.Pods = append(s.Pods, Pod{Namespace: "plant", Name: name + "-0", UID: types.UID("uid-" + name), Agent: true,
		Labels: map[string]string{v1alpha1.LabelCRName: "site"}, Annotations: map[string]string{v1alpha1.AnnotationInject: "true", v1alpha1.AnnotationGatewayName: name}})
	return &s.Pods[len(s.Pods)-1]
}

func (s *scene) report(i int) *v1alpha1.SyncReportStatus { return &s.Reports[i].Status }

// fails makes a gateway report an error for the current target, or that it is held if that is the class of the reason.
func (s *scene) fails(i int, reason v1alpha1.Reason, message string) {
	r := s.report(i)
	r.Phase, r.Reason, r.Message, r.Commit = v1alpha1.GatewayError, reason, message, ""
	if reason.Class() == v1alpha1.ClassHeld {
		r.Phase = v1alpha1.GatewayHeld
	}
	r.Target, r.Revision, r.Generation = s.Target.Commit, s.Target.Revision, s.Target.Generation
}

// moves makes the ref name another commit.
func (s *scene) moves(commit string) { s.tells(func(t *v1alpha1.SyncTargetSpec) { t.Commit = commit }) }

// tells changes the target as the lead does.
func (s *scene) tells(change func(*v1alpha1.SyncTargetSpec)) {
	want := *s.Target.DeepCopy()
	change(&want)
	if s.Target != want {
		want.Revision++
	}
	s.Target = want
}

// takes makes gateways run the target.
func (s *scene) takes(gateways ...int) {
	for _, i := range gateways {
		r := s.report(i)
		started := metav1.NewTime(s.Now)
		r.Phase, r.Reason, r.Message, r.Commit, r.Target = v1alpha1.GatewaySynced, v1alpha1.ReasonSynced, "", s.Target.Commit, s.Target.Commit
		r.Ref, r.Revision, r.Generation, r.Started, r.HandledRequest = s.Target.Ref, s.Target.Revision, s.Target.Generation, &started, s.Target.RequestedAt
	}
}

// pauses stops or resumes the fleet, and updates the reports of its agents.
func (s *scene) pauses(on bool) {
	s.annotates(on)
	for i := range s.Reports {
		s.hears(i)
	}
}

// annotates pauses or resumes the fleet, but leaves the reports unchanged.
func (s *scene) annotates(paused bool) {
	s.GatewaySync = s.GatewaySync.DeepCopy()
	s.GatewaySync.Annotations = map[string]string{v1alpha1.AnnotationPaused: fmt.Sprint(paused)}
	s.tells(func(t *v1alpha1.SyncTargetSpec) { t.Paused = paused })
}

// hears makes a gateway that is paused or idle report whether it runs the target.
func (s *scene) hears(i int) {
	r := s.report(i)
	switch there := r.Commit == s.Target.Commit; {
	case s.Target.Paused && there:
		r.Phase, r.Reason, r.Message = v1alpha1.GatewaySynced, v1alpha1.ReasonPaused, "syncing is paused; it is there already"
	case s.Target.Paused:
		r.Phase, r.Reason, r.Message = v1alpha1.GatewayHeld, v1alpha1.ReasonPaused, "syncing is paused; the files on the disk stay"
	case there:
		r.Phase, r.Reason, r.Message = v1alpha1.GatewaySynced, v1alpha1.ReasonSynced, ""
	}
	r.Target, r.Ref, r.Paused, r.Revision, r.Generation = s.Target.Commit, s.Target.Ref, s.Target.Paused, s.Target.Revision, s.Target.Generation
}

// write summarizes, checks the invariants, and stores the status as the API server would.
func (s *scene) write() *v1alpha1.GatewaySyncStatus {
	s.t.Helper()
	sum := Summarize(s.Seen)
	s.events, s.last = sum.Events, sum
	checkInvariants(s.t, s.Seen, sum)
	st := stored(s.t, sum.Status)
	s.GatewaySync = s.GatewaySync.DeepCopy()
	s.GatewaySync.Status = st
	return &s.GatewaySync.Status
}

// stored returns a status as the API server would return it.
func stored(t testing.TB, st v1alpha1.GatewaySyncStatus) v1alpha1.GatewaySyncStatus {
	t.Helper()
	data, err := json.Marshal(st)
	require.NoError(t, err)
	var out v1alpha1.GatewaySyncStatus
	require.NoError(t, json.Unmarshal(data, &out))
	return out
}

// ends marks a pod as terminating, or as running again.
func (s *scene) ends(i int, ends bool) { s.Pods[i].Ended, s.Pods[i].Ending = ends, ends }

func (s *scene) after(d time.Duration) *scene { s.Now = s.Now.Add(d); return s }

// sent lists the Events of the last summary as "Reason" or "pod: Reason".
func (s *scene) sent() []string {
	var out []string
	for _, e := range s.events {
		if e.Pod != nil {
			out = append(out, e.Pod.Name+": "+e.Reason)
		} else {
			out = append(out, e.Reason)
		}
	}
	return out
}

// condition formats a condition as "True/Synced". It returns "" if the condition does not exist.
func condition(st *v1alpha1.GatewaySyncStatus, name string) string {
	c := meta.FindStatusCondition(st.Conditions, name)
	if c == nil {
		return ""
	}
	return string(c.Status) + "/" + c.Reason
}

// shows checks conditions, written as "Ready=True/Synced Stalled=". Without a value, the condition must not exist.
func shows(t *testing.T, st *v1alpha1.GatewaySyncStatus, want string, why ...any) {
	t.Helper()
	for one := range strings.FieldsSeq(want) {
		name, _, _ := strings.Cut(one, "=")
		assert.Equal(t, one, name+"="+condition(st, name), why...)
	}
}

func messageOf(st *v1alpha1.GatewaySyncStatus, name string) string {
	if c := meta.FindStatusCondition(st.Conditions, name); c != nil {
		return c.Message
	}
	return ""
}

// checkInvariants checks what holds for every summary, whatever the input.
func checkInvariants(t testing.TB, seen Seen, sum Summary) {
	t.Helper()
	st := &sum.Status
	gs := seen.GatewaySync
	types := map[string]bool{}
	require.NotEmpty(t, st.Summary)
	require.LessOrEqual(t, len(st.Summary), 64)
	for _, c := range st.Conditions {
		require.False(t, types[c.Type], "one condition per type: %s", c.Type)
		types[c.Type] = true
		require.True(t, meta.FindStatusCondition(gs.Status.Conditions, c.Type) != nil || slices.ContainsFunc(Conditions, func(listed Condition) bool { return listed.Type == c.Type }), "%s is not listed", c.Type)
		switch c.Type {
		case v1alpha1.ConditionReady, v1alpha1.ConditionRefResolved, v1alpha1.ConditionProfilesValid, v1alpha1.ConditionAllGatewaysSynced,
			v1alpha1.ConditionSidecarInjected, v1alpha1.ConditionReconciling, v1alpha1.ConditionStalled:
			require.Equal(t, gs.Generation, c.ObservedGeneration, c.Type)
			require.NotEmpty(t, c.Reason, c.Type)
			require.LessOrEqual(t, len(c.Message), maxMessage, c.Type)
		}
		was := meta.FindStatusCondition(gs.Status.Conditions, c.Type)
		if was != nil && was.Status == c.Status && c.Type != v1alpha1.ConditionReconciling {
			require.True(t, was.LastTransitionTime.Equal(&c.LastTransitionTime), "%s: LastTransitionTime changed without a transition", c.Type)
		}
	}
	for _, name := range []string{v1alpha1.ConditionReady, v1alpha1.ConditionRefResolved, v1alpha1.ConditionProfilesValid,
		v1alpha1.ConditionAllGatewaysSynced, v1alpha1.ConditionSidecarInjected} {
		require.True(t, types[name], "%s must always be set", name)
	}
	for _, name := range []string{v1alpha1.ConditionReconciling, v1alpha1.ConditionStalled} {
		if c := meta.FindStatusCondition(st.Conditions, name); c != nil {
			require.Equal(t, metav1.ConditionTrue, c.Status, "%s must be removed when it is not true", name)
		}
	}
	require.False(t, types[v1alpha1.ConditionReconciling] && types[v1alpha1.ConditionStalled])
	ready := meta.FindStatusCondition(st.Conditions, v1alpha1.ConditionReady)
	if ready.Status == metav1.ConditionTrue {
		require.False(t, types[v1alpha1.ConditionReconciling] || types[v1alpha1.ConditionStalled])
		require.Equal(t, gs.Generation, st.ObservedGeneration)
		require.Positive(t, sum.Discovered)
		checkEveryGatewayIsThere(t, seen)
	}
	require.Equal(t, fmt.Sprintf("%d/%d", sum.Synced, sum.Discovered), st.GatewaysReady)
	require.LessOrEqual(t, len(st.DiscoveredGateways), maxRows)
	require.LessOrEqual(t, len(st.History), maxHistory)
	for i, g := range st.DiscoveredGateways {
		require.NotEmpty(t, g.Name)
		require.True(t, i == 0 || st.DiscoveredGateways[i-1].Name < g.Name, "rows must be sorted, without duplicates: %q", g.Name)
	}
	require.LessOrEqual(t, size(st.DiscoveredGateways), 2*rowBytes)
	checkWhoIsAway(t, seen, st)
	require.LessOrEqual(t, len(sum.Events), maxEvents)
	for _, e := range sum.Events {
		require.LessOrEqual(t, len(e.Note), maxMessage)
	}

	checkProposalsChangeNothingElse(t, seen, st)
	again := seen
	again.GatewaySync = gs.DeepCopy()
	again.GatewaySync.Status = stored(t, *st)
	twice := Summarize(again)
	require.Empty(t, twice.Events, "no event is sent twice")
	change, err := kube.StatusDifference(&again.GatewaySync.Status, &twice.Status)
	require.NoError(t, err)
	require.Nil(t, change, "the same input must not change the status")
}

// checkProposalsChangeNothingElse compares a summary with that of the same fleet without proposals.
func checkProposalsChangeNothingElse(t testing.TB, seen Seen, st *v1alpha1.GatewaySyncStatus) {
	t.Helper()
	seen.GatewaySync = seen.GatewaySync.DeepCopy()
	seen.GatewaySync.Spec.Bidirectional = nil
	seen.Reports = slices.Clone(seen.Reports)
	for i, r := range seen.Reports {
		seen.Reports[i] = r.DeepCopy()
		seen.Reports[i].Status.Proposal = nil
	}
	without := Summarize(seen).Status
	require.Equal(t, without.Outcome, st.Outcome)
	for _, c := range Conditions {
		if c.Type != v1alpha1.ConditionBidirectionalReady {
			require.Equal(t, meta.FindStatusCondition(without.Conditions, c.Type), meta.FindStatusCondition(st.Conditions, c.Type))
		}
	}
}

// checkWhoIsAway independently checks a fleet without live gateways. Known gateways keep their rows until the deadline. A
// request is handled only if a live gateway dealt with it, there never was a gateway, or the lead gave it up.
func checkWhoIsAway(t testing.TB, seen Seen, st *v1alpha1.GatewaySyncStatus) {
	t.Helper()
	was := &seen.GatewaySync.Status
	ready := condition(st, v1alpha1.ConditionReady)
	ended := ready == "Unknown/NoGateways" || ready == "Unknown/ProgressDeadlineExceeded"
	if len(was.DiscoveredGateways) > 0 && !ended {
		require.NotEmpty(t, st.DiscoveredGateways, "rows must stay until the deadline")
	}
	if ended && len(was.DiscoveredGateways) > 0 {
		since := func(kind string) bool {
			c := meta.FindStatusCondition(was.Conditions, kind)
			return c != nil && !seen.Now.Before(c.LastTransitionTime.Add(v1alpha1.DefaultProgressDeadline))
		}
		is := condition(was, v1alpha1.ConditionReady)
		away := is == "Unknown/AgentsAway" || is == "Unknown/ProgressDeadlineExceeded"
		late := condition(was, v1alpha1.ConditionStalled) == "True/ProgressDeadlineExceeded" || since(v1alpha1.ConditionReconciling)
		require.True(t, is == ready || late && (ready == "Unknown/ProgressDeadlineExceeded" || away && since(v1alpha1.ConditionReady)),
			"%s only after the deadline", ready)
	}
	if st.LastHandledRequest == was.LastHandledRequest || st.LastHandledRequest == "" || ended {
		return
	}
	dealt := len(was.DiscoveredGateways) == 0 && len(st.DiscoveredGateways) == 0
	for _, p := range seen.Pods {
		for _, r := range seen.Reports {
			paused := seen.GatewaySync.Paused() || r.Status.Paused
			dealt = dealt || !p.Ended && r.Name == p.Name && (paused || r.Status.HandledRequest == st.LastHandledRequest)
		}
	}
	require.True(t, dealt, "no gateway has handled %s", st.LastHandledRequest)
}

// checkEveryGatewayIsThere independently checks Ready: every live pod of the fleet has a report of its own that says that it
// runs the target.
func checkEveryGatewayIsThere(t testing.TB, seen Seen) {
	t.Helper()
	gs := seen.GatewaySync
	require.Equal(t, gs.Generation, seen.Target.Generation)
	for _, p := range seen.Pods {
		inject, _ := gatewaypod.Annotation(p.Annotations, v1alpha1.AnnotationInject)
		asked, _ := gatewaypod.Annotation(p.Annotations, v1alpha1.AnnotationCRName)
		label := p.Labels[v1alpha1.LabelCRName]
		if p.Labels[v1alpha1.LabelInjection] == "disabled" && !p.Agent && label == "" {
			continue
		}
		if p.Ended || label != gs.Name && (label != "" || inject != "true" || asked != gs.Name) {
			continue
		}
		found := false
		for _, r := range seen.Reports {
			s := r.Status
			found = found || r.Name == p.Name && (s.Phase == v1alpha1.GatewaySynced || s.Phase == v1alpha1.GatewayStandby) &&
				s.Commit == seen.Target.Commit && s.Commit != "" && s.Generation == gs.Generation && s.Revision == seen.Target.Revision
		}
		require.True(t, found, "Ready, but pod %s does not run %s", p.Name, seen.Target.Commit)
	}
}
