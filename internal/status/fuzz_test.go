package status

import (
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/kube"
)

// fleetLife is a fleet that is driven by fuzzed bytes.
type fleetLife struct {
	*scene
	disks map[string]string               // commit on the disk, by pod
	late  map[string]*v1alpha1.SyncReport // reports that the lead has not seen yet; only the newest is ever delivered
	lies  map[string]bool                 // pods with a forged report
}

func newLife(t testing.TB) *fleetLife {
	s := newScene(t, 1)
	return &fleetLife{scene: s, disks: map[string]string{s.Pods[0].Name: commitA}, late: map[string]*v1alpha1.SyncReport{}, lies: map[string]bool{}}
}

// write also compares Ready with the disks: no gateway counts as synced because of an outdated report.
func (f *fleetLife) write() *v1alpha1.GatewaySyncStatus {
	f.t.Helper()
	st := f.scene.write()
	if strings.HasPrefix(condition(st, v1alpha1.ConditionReady), "True/") {
		for _, g := range gateways(&f.Seen, false) {
			for _, p := range g.pods {
				require.True(f.t, f.lies[p.Name] || f.disks[p.Name] == f.Target.Commit, "Ready although %s has %s instead of %s", p.Name, f.disks[p.Name], f.Target.Commit)
			}
		}
	}
	return st
}

// done returns the report of an agent that has synced the target.
func (f *fleetLife) done(p Pod) *v1alpha1.SyncReport {
	f.disks[p.Name] = f.Target.Commit
	delete(f.late, p.Name)
	r := &v1alpha1.SyncReport{}
	r.Name, r.OwnerReferences = p.Name, []metav1.OwnerReference{{Kind: "Pod", UID: p.UID}}
	r.Status = v1alpha1.SyncReportStatus{Gateway: p.Name, Phase: v1alpha1.GatewaySynced, Reason: v1alpha1.ReasonSynced, Commit: f.Target.Commit,
		Target: f.Target.Commit, Revision: f.Target.Revision, Generation: f.Target.Generation, Ref: f.Target.Ref, HandledRequest: f.Target.RequestedAt}
	return r
}

var (
	lifeRefs    = []string{"main", "v2", commitA}
	lifeCommits = []string{commitA, commitB, ""}
	lifePhases  = []v1alpha1.GatewaySyncState{v1alpha1.GatewaySynced, v1alpha1.GatewayStandby, v1alpha1.GatewayApplied, v1alpha1.GatewayPending,
		v1alpha1.GatewaySyncing, v1alpha1.GatewayHeld, v1alpha1.GatewayError, v1alpha1.GatewayMissingSidecar, "", "Odd"}
)

// lifeProposal returns what an agent reports of its changes: often nothing, sometimes anything.
func lifeProposal(b [4]byte) *v1alpha1.Proposal {
	if b[3]%3 == 0 {
		return nil
	}
	states := append([]v1alpha1.ProposalState{"", "Odd"}, proposalStates...)
	return &v1alpha1.Proposal{State: states[int(b[2])%len(states)], Reason: []v1alpha1.Reason{"", "not a reason", v1alpha1.Reasons[int(b[1])%len(v1alpha1.Reasons)].Reason}[b[2]%3],
		URL: []string{"", "https://git.example.com/pulls/1", "https://git.example.com/pulls/2", "javascript:1", "\x00"}[b[1]%5], Branch: []string{"", "a/b", "\xff"}[b[3]%3],
		Number: int64(b[1]) - 100, Message: strings.Repeat("m\n", int(b[2]))}
}

// step applies one event.
func (f *fleetLife) step(b [4]byte) {
	pick := func(n int) int { return int(b[1]) % max(n, 1) }
	gs := f.GatewaySync
	switch b[0] % 16 {
	case 0: // time passes
		f.after(time.Duration(b[1]) * 10 * time.Second)
	case 1: // the spec changes
		gs.Generation++
	case 2: // the lead follows the spec
		f.tells(func(s *v1alpha1.SyncTargetSpec) { s.Generation, s.Ref = gs.Generation, f.Ref.Desired.Ref })
	case 3: // the ref has another commit, or none is known
		f.moves(lifeCommits[pick(3)])
		f.Ref.Polled, f.Ref.Err = true, nil
	case 4: // another ref is desired
		f.Ref.Desired.Ref = lifeRefs[pick(3)]
		f.Ref.Desired.Override = b[2]&1 == 1
	case 5: // a poll of git fails
		reason := v1alpha1.Reasons[int(b[2])%len(v1alpha1.Reasons)].Reason
		f.Ref.Err, f.Ref.Polled = failure.New(reason, "try %d", b[3]), true
	case 6: // a poll begins or succeeds
		f.Ref.Err, f.Ref.Polled, f.Ref.Polling = nil, b[1]&1 == 1, b[1]&2 == 2
	case 7: // a new gateway, or another pod of a known one
		if len(f.Pods) < 12 {
			name := string(rune('a' + b[1]%8))
			p := f.pod(name)
			p.Name += string(rune('0' + b[2]%4))
			p.Agent = b[3]&1 == 0
			if b[3]&2 == 2 {
				p.Labels = nil
				p.Annotations[v1alpha1.AnnotationCRName] = []string{"site", "other", ""}[b[3]%3]
			}
		}
	case 8: // a pod ends, or one runs again
		if len(f.Pods) > 0 {
			p := &f.Pods[pick(len(f.Pods))]
			p.Ended = b[2]&1 == 1
			p.Ending = p.Ended && b[2]&2 == 2
		}
	case 9: // an agent reports anything
		r := &v1alpha1.SyncReport{}
		r.Name = "x"
		if len(f.Pods) > 0 {
			p := f.Pods[pick(len(f.Pods))]
			r.Name = p.Name
			r.OwnerReferences = []metav1.OwnerReference{{Kind: "Pod", UID: []types.UID{p.UID, "other"}[min(b[3]%5, 1)]}}
		}
		reason := v1alpha1.Reasons[int(b[3])%len(v1alpha1.Reasons)].Reason
		r.Status = v1alpha1.SyncReportStatus{Gateway: r.Name, Phase: lifePhases[int(b[2])%len(lifePhases)], Reason: reason, Message: strings.Repeat("m", int(b[2])),
			Commit: lifeCommits[int(b[3])%3], Target: f.Target.Commit, Revision: f.Target.Revision - int64(b[1]%2), Generation: gs.Generation - int64(b[2]%2), Ref: f.Target.Ref,
			HandledRequest: f.Target.RequestedAt, Drift: v1alpha1.DriftFiles{Files: int32(b[3]) - 100}}
		at := metav1.NewTime(f.Now.Truncate(time.Second))
		r.Status.Started = &at
		r.Status.Proposal = lifeProposal(b)
		f.lies[r.Name] = true
		f.replace(r)
	case 10: // an agent is done
		if len(f.Pods) > 0 {
			p := f.Pods[pick(len(f.Pods))]
			f.lies[p.Name] = false
			f.replace(f.done(p))
		}
	case 11: // an agent is done, but its report is delayed
		if len(f.Pods) > 0 {
			p := f.Pods[pick(len(f.Pods))]
			f.late[p.Name] = f.done(p)
		}
	case 12: // a delayed report arrives
		if len(f.Pods) > 0 {
			if r := f.late[f.Pods[pick(len(f.Pods))].Name]; r != nil {
				delete(f.late, r.Name)
				f.lies[r.Name] = false
				f.replace(r)
			}
		}
	case 13: // syncing is paused or resumed, proposals are turned on or off
		f.GatewaySync.Spec.Paused = b[1]&1 == 1
		f.GatewaySync.Spec.Bidirectional = nil
		if b[2]&1 == 1 {
			f.GatewaySync.Spec.Bidirectional = &v1alpha1.BidirectionalSpec{Enabled: true}
		}
	case 14: // a request is answered
		at := "at-" + string(rune('a'+b[1]%4))
		f.Ref.Desired.RequestedAt, f.Ref.Answered = at, at
		if b[2]&1 == 1 {
			f.tells(func(s *v1alpha1.SyncTargetSpec) { s.RequestedAt = at })
		}
	case 15: // the spec becomes valid or invalid, and has another repository
		f.Invalid = nil
		if b[1]&1 == 1 {
			f.Invalid = failure.New(v1alpha1.ReasonProfilesInvalid, "spec.sync: wrong")
		}
		f.GatewaySync.Spec.Git.Repo = []string{"https://h/r", "git@h:r", "ssh://h/r", ""}[b[2]%4]
	}
}

func (f *fleetLife) replace(r *v1alpha1.SyncReport) {
	for i := range f.Reports {
		if f.Reports[i].Name == r.Name {
			f.Reports[i] = r
			return
		}
	}
	f.Reports = append(f.Reports, r)
}

// FuzzStatusSummarize checks three invariants for any order of events. Ready is never true while a gateway is behind, each
// condition exists once, and unchanged input causes neither a write nor an Event.
func FuzzStatusSummarize(f *testing.F) {
	f.Add([]byte{7, 0, 0, 0, 10, 0, 0, 0, 3, 1, 0, 0, 10, 0, 0, 0})
	f.Add([]byte{7, 0, 0, 0, 7, 0, 1, 0, 10, 0, 0, 0, 10, 1, 0, 0, 0, 90, 0, 0})
	f.Add([]byte{7, 1, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 10, 0, 0, 0, 5, 0, 30, 1, 6, 1, 0, 0})
	f.Add([]byte{15, 1, 1, 0, 9, 0, 6, 40, 13, 1, 0, 0, 14, 2, 1, 0})
	f.Add([]byte{3, 1, 0, 0, 11, 0, 0, 0, 3, 0, 0, 0, 12, 0, 0, 0, 10, 0, 0, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		life := newLife(t)
		life.write()
		for i := 0; i+4 <= len(data) && i < 400; i += 4 {
			life.step([4]byte(data[i : i+4]))
			life.write()
		}
	})
}

func TestStatusInAnyOrder(t *testing.T) {
	ready, seeds := 0, 80
	if testing.Short() {
		seeds = 16
	}
	for seed := range uint64(seeds) {
		r := rand.New(rand.NewPCG(seed, 3))
		life := newLife(t)
		for range 60 {
			life.step([4]byte{byte(r.Uint32()), byte(r.Uint32()), byte(r.Uint32()), byte(r.Uint32())})
			if st := life.write(); strings.HasPrefix(condition(st, v1alpha1.ConditionReady), "True/") {
				ready++
			}
		}
	}
	require.Greater(t, ready, 5*seeds/8, "too few statuses were ready")
}

// C2: summarizing never fails, whatever SyncReports, SyncTarget and status the cluster contains.
func FuzzForeignObjects(f *testing.F) {
	f.Add([]byte(`{"gateway":"a","phase":"Synced"}`), []byte(`{"commit":"x","lead":{"holder":"a"}}`), []byte(`{"conditions":[{"type":"Ready"}]}`))
	f.Add([]byte(`{"files":{"added":2147483647,"modified":2147483647}}`), []byte(`{"generation":-1}`), []byte(`{"discoveredGateways":[{"name":"a"},{"name":"a"}]}`))
	f.Add([]byte(`{"started":"2026-01-01T00:00:00Z","projects":["a"]}`), []byte(`{}`), []byte(`{"history":[{},{},{},{},{},{},{},{},{},{},{},{}],"lastGood":null,"request":{"over":"@"}}`))
	f.Fuzz(func(t *testing.T, report, target, status []byte) {
		s := newScene(t, 1)
		var st v1alpha1.GatewaySyncStatus
		if json.Unmarshal(report, &s.Reports[0].Status) != nil || json.Unmarshal(target, &s.Target) != nil || json.Unmarshal(status, &st) != nil {
			return
		}
		s.GatewaySync.Status = st
		sum := Summarize(s.Seen)
		if _, err := kube.StatusDifference(&s.GatewaySync.Status, &sum.Status); err != nil {
			t.Fatal(err)
		}
	})
}
