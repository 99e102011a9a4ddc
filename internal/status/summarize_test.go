package status

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/desiredref"
	"stoker.io/stoker/internal/failure"
)

func TestSyncedFleetIsReady(t *testing.T) {
	s := newScene(t, 3)
	s.Subject = "Fill tank 4 (Li Wei)"
	st := s.write()
	shows(t, st, "Ready=True/Synced")
	assert.Equal(t, "all 3 gateways run main at aaaaaaa", messageOf(st, v1alpha1.ConditionReady))
	shows(t, st, "AllGatewaysSynced=True/Synced RefResolved=True/RefResolved")
	assert.Equal(t, "main is at aaaaaaa", messageOf(st, v1alpha1.ConditionRefResolved))
	shows(t, st, "ProfilesValid=True/ProfilesValid SidecarInjected=True/SidecarInjected SSHHostKeyVerification=", "a repository without ssh has no host key")
	assert.EqualValues(t, 1, st.ObservedGeneration)
	assert.Equal(t, &v1alpha1.TargetStatus{Ref: "main", RefShort: "main", Commit: commitA, CommitShort: "aaaaaaa", Subject: "Fill tank 4 (Li Wei)"}, st.Target)
	assert.Equal(t, commitA, st.LastGood.Commit)
	assert.Equal(t, st.Target.Subject, st.LastGood.Subject)
	assert.Len(t, st.History, 1)
	assert.WithinDuration(t, noon.Add(-time.Minute), st.LastSyncTime.Time, 0)
	assert.Equal(t, []string{"RefResolved", "gw-0-0: SyncCompleted", "gw-1-0: SyncCompleted", "gw-2-0: SyncCompleted", "SyncCompleted"}, s.sent())
	row := st.DiscoveredGateways[1]
	assert.Equal(t, "gw-1", row.Name)
	assert.Equal(t, "gw-1-0", row.PodName)
	assert.Equal(t, commitA, row.SyncedCommit)
	assert.Equal(t, "1.2s", row.LastSyncDuration)
	assert.True(t, s.last.Again.IsZero(), "a synced fleet needs no further check")
	s.Subject = "" // the next lead has not fetched the commit
	assert.Equal(t, st.Target, s.write().Target)
}

func TestRequestedCommitShownOnce(t *testing.T) {
	s := newScene(t, 1)
	s.GatewaySync.Spec.Git.Ref = commitA
	s.Ref.Desired.Ref, s.Target.Ref, s.report(0).Ref = commitA, commitA, commitA
	st := s.write()
	assert.Equal(t, "the repository has commit aaaaaaa", messageOf(st, v1alpha1.ConditionRefResolved))
	assert.Equal(t, "gw-0 (pod gw-0-0) runs aaaaaaa", messageOf(st, v1alpha1.ConditionReady))
}

// The speed of git decides whether a status is written in between. The Events must be the same.
func TestRefChangeEvent(t *testing.T) {
	for _, slow := range []bool{false, true} {
		t.Run(fmt.Sprintf("slow %t", slow), func(t *testing.T) {
			s := synced(t, 1)
			s.Ref.Desired.Ref = "v2"
			if slow {
				s.Ref.Polled, s.Ref.Polling = false, true
				s.write()
				assert.Empty(t, s.sent())
			}
			s.tells(func(t *v1alpha1.SyncTargetSpec) { t.Ref, t.Commit = "v2", commitB })
			s.Ref.Polled, s.Ref.Polling = true, false
			s.write()
			assert.Equal(t, []string{"RefResolved"}, s.sent())
			assert.Equal(t, "v2 is at bbbbbbb; before, all gateways ran main at aaaaaaa", s.events[0].Note)
		})
	}
}

func TestNewCommitProgress(t *testing.T) {
	s := synced(t, 2)
	s.after(time.Hour).moves(commitB)
	st := s.write()
	shows(t, st, "Ready=False/Progressing Reconciling=True/Progressing")
	assert.Equal(t, "0/2", st.GatewaysReady)
	assert.Equal(t, []string{"RefUpdated"}, s.sent())
	assert.Equal(t, commitA, st.LastGood.Commit, "the last good commit stays until another one is good")
	assert.Equal(t, s.Now.Add(10*time.Minute), s.last.Again)
	assert.Equal(t, v1alpha1.GatewayPending, st.DiscoveredGateways[0].SyncStatus)
	assert.Equal(t, commitA, st.DiscoveredGateways[0].SyncedCommit)

	s.after(time.Second).takes(0)
	st = s.write()
	assert.Equal(t, "1/2", st.GatewaysReady)
	shows(t, st, "Ready=False/Progressing")
	assert.Equal(t, []string{"gw-0-0: SyncCompleted"}, s.sent())
	assert.WithinDuration(t, s.Now, st.LastSyncTime.Time, 0)

	s.after(time.Second).takes(1)
	st = s.write()
	shows(t, st, "Ready=True/Synced")
	assert.Equal(t, []string{"gw-1-0: SyncCompleted", "SyncCompleted"}, s.sent())
	require.Len(t, st.History, 2)
	assert.Equal(t, commitB, st.History[0].Commit)
	assert.Equal(t, commitB, st.LastGood.Commit)
}

func TestReadyOfFirstStatus(t *testing.T) {
	for _, c := range []struct {
		name  string
		given func(*scene)
		ready string
		says  string
		also  map[string]string
		sent  []string // in addition to the Events of a first status for the other gateways
	}{
		{name: "no pods", given: func(s *scene) { s.Pods, s.Reports = nil, nil },
			ready: "Unknown/NoGateways", says: `stoker.io/inject: "true"`, also: map[string]string{"AllGatewaysSynced": "Unknown/NoGateways", "Reconciling": ""}},
		{name: "all pods terminating", given: func(s *scene) { s.ends(0, true); s.ends(1, true) },
			ready: "Unknown/AgentsAway", says: "terminating pods: gw-0-0, gw-1-0", also: map[string]string{"AllGatewaysSynced": "Unknown/AgentsAway", "Reconciling": "True/AgentsAway"}},
		{name: "one of several pods terminating", given: func(s *scene) { s.ends(0, true) }, ready: "True/Synced", says: "gw-1 (pod gw-1-0) runs"},
		{name: "all pods ended", given: func(s *scene) { s.Pods[0].Ended, s.Pods[1].Ended = true, true },
			ready: "Unknown/NoGateways"},
		{name: "pod opted out", given: func(s *scene) {
			p := s.pod("gw-2")
			p.Labels, p.Agent = map[string]string{v1alpha1.LabelInjection: "disabled"}, false
			p.Annotations[v1alpha1.AnnotationCRName] = "site"
		}, ready: "True/Synced"},
		{name: "pod opted out, with an agent", given: func(s *scene) {
			p := s.pod("gw-2")
			p.Labels = map[string]string{v1alpha1.LabelInjection: "disabled"}
			p.Annotations[v1alpha1.AnnotationCRName] = "site"
		}, ready: "False/Progressing"},
		{name: "git not polled yet", given: func(s *scene) { s.Target.Commit, s.Ref.Polled, s.Ref.Polling = "", false, true },
			ready: "False/Progressing", says: "polling git for main", also: map[string]string{"RefResolved": "Unknown/Progressing", "Reconciling": "True/Progressing"}},
		{name: "target of an older generation", given: func(s *scene) { s.GatewaySync.Generation = 2 },
			ready: "False/Progressing", also: map[string]string{"AllGatewaysSynced": "False/Progressing"}},
		{name: "target of another ref", given: func(s *scene) { s.Ref.Desired.Ref = "v2" },
			ready: "False/Progressing", says: "polling git for v2"},
		{name: "gateway at an older generation", given: func(s *scene) {
			s.GatewaySync.Generation, s.Target.Generation = 2, 2
			s.takes(0)
		}, ready: "False/Progressing", says: "1 of 2 gateways run main at aaaaaaa; gw-1 (pod gw-1-0): has not begun to sync the current target; before: Synced"},
		{name: "gateway with unverified files", given: func(s *scene) {
			s.report(1).Phase = v1alpha1.GatewayApplied
			s.report(1).Reason = v1alpha1.ReasonWaitingForGateway
		},
			ready: "False/WaitingForGateway"},
		{name: "no report of an agent yet", given: func(s *scene) { s.Reports = s.Reports[:1] },
			ready: "False/Progressing", says: "gw-1 (pod gw-1-0): its agent has not reported yet"},
		{name: "no report of an agent whose pod does not run", given: func(s *scene) {
			s.Reports = s.Reports[:1]
			s.Pods[1].Stuck = "the image of container gateway cannot be pulled"
		}, ready: "False/Progressing", says: "gw-1 (pod gw-1-0): its agent has not reported yet: the image of container gateway cannot be pulled"},
		{name: "report of an earlier pod of the same name", given: func(s *scene) { s.Pods[1].UID = "another" },
			ready: "False/Progressing", says: "gw-1 (pod gw-1-0): its agent has not reported yet"},
		{name: "permanent failure", given: func(s *scene) { s.fails(1, v1alpha1.ReasonTemplateFailed, "projects/a: no such variable") },
			ready: "False/TemplateFailed", says: "gw-1 (pod gw-1-0): projects/a: no such variable", also: map[string]string{"Stalled": "True/TemplateFailed", "Reconciling": ""},
			sent: []string{"gw-1-0: SyncFailed", "SyncFailed"}},
		{name: "transient failure", given: func(s *scene) { s.fails(1, v1alpha1.ReasonScanFailed, "timed out") },
			ready: "False/ScanFailed", also: map[string]string{"Stalled": "", "Reconciling": "True/ScanFailed"}, sent: []string{"gw-1-0: SyncFailed", "SyncFailed"}},
		{name: "open Designer", given: func(s *scene) { s.fails(1, v1alpha1.ReasonDesignerSessionActive, "by eng on PC7") },
			ready: "False/DesignerSessionActive", also: map[string]string{"Reconciling": "True/DesignerSessionActive"},
			sent: []string{"gw-1-0: DesignerSessionActive", "DesignerSessionActive"}},
		{name: "conflict waits for a user", given: func(s *scene) { s.fails(1, v1alpha1.ReasonConflictDetected, "a.json") },
			ready: "False/ConflictDetected", sent: []string{"gw-1-0: ConflictDetected", "ConflictDetected"}},
		{name: "mass deletion waits for approval", given: func(s *scene) { s.fails(1, v1alpha1.ReasonMassDeletion, "90 files") },
			ready: "False/MassDeletion", sent: []string{"gw-1-0: SyncHeld", "SyncHeld"}},
		{name: "failure that needs a user before transient failure", given: func(s *scene) {
			s.fails(0, v1alpha1.ReasonScanFailed, "timed out")
			s.fails(1, v1alpha1.ReasonPatchFailed, "no such path")
		}, ready: "False/PatchFailed", says: "gw-1 (pod gw-1-0): no such path; 1 more", sent: []string{"gw-0-0: SyncFailed", "gw-1-0: SyncFailed", "SyncFailed"}},
		{name: "dry run", given: func(s *scene) {
			for i := range s.Reports {
				s.fails(i, v1alpha1.ReasonDryRun, "dry run, nothing was written: 1 file added")
				s.report(i).Phase = v1alpha1.GatewayPending
			}
		}, ready: "False/DryRun", says: "0 of 2 gateways run main at aaaaaaa; gw-0 (pod gw-0-0): dry run, nothing was written: 1 file added; 1 more",
			also: map[string]string{"Reconciling": "", "Stalled": ""}},
		{name: "paused and behind", given: func(s *scene) {
			s.moves(commitB)
			s.takes(0)
			s.pauses(true)
		}, ready: "False/Paused", says: "paused; 1 of 2 gateways run main at bbbbbbb", also: map[string]string{"Reconciling": "", "Stalled": ""}},
		{name: "paused at the target", given: func(s *scene) { s.pauses(true) },
			ready: "True/Paused", says: "all 2 gateways run main at aaaaaaa; paused"},
		{name: "two pods with one gateway name", given: func(s *scene) {
			s.Pods[1].Annotations[v1alpha1.AnnotationGatewayName], s.report(1).Gateway = "gw-0", "gw-0"
		},
			ready: "False/DuplicateGateway", says: "live pods gw-0-0, gw-1-0 claim the same gateway name",
			sent: []string{"gw-0-0: SyncHeld", "gw-1-0: SyncHeld", "SyncHeld"}},
		{name: "pod without agent", given: func(s *scene) {
			p := s.pod("gw-2")
			p.Labels, p.Agent = nil, false
			p.Annotations[v1alpha1.AnnotationCRName] = "site"
		}, ready: "False/MissingSidecar", says: "gw-2 (pod gw-2-0): the pod asks for an agent and has none", also: map[string]string{"SidecarInjected": "False/MissingSidecar", "Reconciling": "True/MissingSidecar"}},
		{name: "pod without agent, older annotations", given: func(s *scene) {
			p := s.pod("gw-2")
			p.Labels, p.Agent = nil, false
			p.Annotations = map[string]string{"ignition-sync.io/inject": "true", "ignition-sync.io/cr-name": "site"}
		}, ready: "False/MissingSidecar"},
		{name: "pod without agent, beside the only GatewaySync", given: func(s *scene) {
			p := s.pod("gw-2")
			p.Labels, p.Agent = nil, false
			s.Sole = true
		}, ready: "False/MissingSidecar"},
		{name: "pod of another GatewaySync", given: func(s *scene) {
			p := s.pod("gw-2")
			p.Labels = map[string]string{v1alpha1.LabelCRName: "other"}
			p = s.pod("gw-3")
			p.Labels = nil
			p.Annotations[v1alpha1.AnnotationCRName] = "other"
			p = s.pod("gw-4")
			p.Labels = nil
		}, ready: "True/Synced"},
		{name: "invalid gateway name", given: func(s *scene) { s.Pods[1].Annotations[v1alpha1.AnnotationGatewayName] = "a/b" },
			ready: "False/InvalidAnnotation", says: "gw-1-0: annotation stoker.io/gateway-name", sent: []string{"gw-1-0: SyncFailed", "SyncFailed"}},
		{name: "missing ref", given: func(s *scene) { s.Ref.Err = failure.New(v1alpha1.ReasonRefNotFound, "no branch main") },
			ready: "False/RefNotFound", also: map[string]string{"RefResolved": "False/RefNotFound", "Stalled": "True/RefNotFound", "AllGatewaysSynced": "True/Synced"}},
		{name: "wrong credentials", given: func(s *scene) { s.Ref.Err = failure.New(v1alpha1.ReasonAuthFailed, "401") },
			ready: "False/AuthFailed", says: "401", also: map[string]string{"Stalled": "True/AuthFailed"}},
		{name: "git outage, fleet at the desired commit", given: func(s *scene) { s.Ref.Err = failure.New(v1alpha1.ReasonGitUnreachable, "refused") },
			ready: "True/Synced", also: map[string]string{"RefResolved": "False/GitUnreachable", "Reconciling": ""}},
		{name: "git outage, unknown desired commit", given: func(s *scene) {
			s.Ref.Err, s.Target.Commit = failure.New(v1alpha1.ReasonGitUnreachable, "refused"), ""
		}, ready: "False/GitUnreachable", also: map[string]string{"Reconciling": "True/GitUnreachable"}},
		{name: "requested ref is invalid", given: func(s *scene) {
			s.Ref = Ref{Polled: true, Err: failure.New(v1alpha1.ReasonRefNotFound, "annotation stoker.io/requested-ref: bad")}
		}, ready: "False/RefNotFound", also: map[string]string{"RefResolved": "False/RefNotFound"}},
		{name: "invalid spec", given: func(s *scene) {
			s.Invalid = failure.New(v1alpha1.ReasonProfilesInvalid, "spec.polling.interval: banana")
		},
			ready: "False/ProfilesInvalid", says: "banana", also: map[string]string{"ProfilesValid": "False/ProfilesInvalid", "Stalled": "True/ProfilesInvalid"}},
		{name: "unverified host key does not affect Ready", given: func(s *scene) {
			s.GatewaySync.Spec.Git.Repo = "git@git.example.com:site.git"
			s.GatewaySync.Spec.Git.Auth = &v1alpha1.Credential{SSHKey: &v1alpha1.SSHKeyAuth{InsecureIgnoreHostKey: true}}
		}, ready: "True/Synced", also: map[string]string{"SSHHostKeyVerification": "False/HostKeyUnknown"}},
		{name: "changed host key", given: func(s *scene) {
			s.GatewaySync.Spec.Git.Repo = "ssh://git@git.example.com/site.git"
			s.Ref.Err = failure.New(v1alpha1.ReasonHostKeyMismatch, "SHA256:x")
		}, ready: "False/HostKeyMismatch", also: map[string]string{"SSHHostKeyVerification": "False/HostKeyMismatch"}},
		{name: "error without a reason", given: func(s *scene) { s.Target.Commit, s.Ref.Err = "", errors.New("odd") }, ready: "False/GitUnreachable"},
		{name: "paused during a git outage", given: func(s *scene) {
			s.pauses(true)
			s.Ref.Err = failure.New(v1alpha1.ReasonGitTimeout, "slow")
			s.Ref.Desired.RequestedAt, s.Ref.Answered = "t1", "t1"
		}, ready: "True/Paused"},
		{name: "paused gateway whose profile is missing", given: func(s *scene) {
			s.fails(1, v1alpha1.ReasonProfileNotFound, "profile x does not exist")
			s.report(1).Paused = true
		}, ready: "False/ProfileNotFound", also: map[string]string{"Stalled": "True/ProfileNotFound"}},
		{name: "certificate that no retry makes trusted", given: func(s *scene) { s.fails(1, v1alpha1.ReasonGatewayUntrusted, "the certificate is not trusted") },
			ready: "False/GatewayUntrusted", also: map[string]string{"Stalled": "True/GatewayUntrusted"}},
		{name: "trusted host key", given: func(s *scene) { s.GatewaySync.Spec.Git.Repo = "git@git.example.com:site.git" },
			ready: "True/Synced", also: map[string]string{"SSHHostKeyVerification": "True/HostKeyVerified"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newScene(t, 2)
			c.given(s)
			st := s.write()
			assert.Equal(t, c.ready, condition(st, v1alpha1.ConditionReady))
			assert.Contains(t, messageOf(st, v1alpha1.ConditionReady), c.says)
			for name, want := range c.also {
				assert.Equal(t, want, condition(st, name), name)
			}
			if c.sent != nil {
				var sent []string
				for _, e := range s.sent() {
					if !strings.Contains(e, "SyncCompleted") && e != "RefResolved" {
						sent = append(sent, e)
					}
				}
				assert.Equal(t, c.sent, sent)
			}
		})
	}
}

func TestSlowSyncIsStalled(t *testing.T) {
	s := newScene(t, 2)
	s.GatewaySync.Spec.ProgressDeadline = "2m"
	s.write()
	s.after(time.Minute).moves(commitB)
	s.write()
	began := s.Now
	s.fails(1, v1alpha1.ReasonGatewayUnreachable, "refused")
	s.after(time.Minute).takes(0)
	shows(t, s.write(), "Reconciling=True/GatewayUnreachable")
	assert.WithinDuration(t, began.Add(2*time.Minute), s.last.Again, 0, "progress of one gateway does not move the deadline")

	s.Now = began.Add(2*time.Minute - time.Second)
	shows(t, s.write(), "Stalled=")
	s.after(time.Second)
	st := s.write()
	shows(t, st, "Stalled=True/ProgressDeadlineExceeded Ready=False/ProgressDeadlineExceeded")
	assert.Contains(t, messageOf(st, v1alpha1.ConditionReady), "not done within 2m0s, still trying: GatewayUnreachable: 1 of 2 gateways run main at bbbbbbb; gw-1 (pod gw-1-0): refused")
	assert.Equal(t, []string{"SyncFailed"}, s.sent())
	assert.True(t, s.last.Again.IsZero())

	shows(t, s.after(time.Hour).write(), "Stalled=True/ProgressDeadlineExceeded")
	s.report(1).Message = "still refused"
	s.write()
	assert.Empty(t, s.sent(), "the Event must not be repeated")

	t.Run("until the fleet is synced", func(t *testing.T) {
		done := *s
		done.t = t
		done.takes(1)
		shows(t, done.after(time.Second).write(), "Ready=True/Synced Stalled=")
	})
	t.Run("until the next request", func(t *testing.T) {
		other := newScene(t, 2)
		other.Seen = s.Seen
		other.fails(1, v1alpha1.ReasonGatewayUnreachable, "refused")
		other.Ref.Answered = "2026-01-02T13:00:00Z"
		shows(t, other.after(time.Second).write(), "Reconciling=True/GatewayUnreachable")
		assert.Equal(t, other.Now.Add(2*time.Minute), other.last.Again)
	})
}

func TestPollsKeepDeadline(t *testing.T) {
	s := synced(t, 2)
	s.moves(commitB)
	s.write()
	for i := range 9 {
		s.Ref.Answered = fmt.Sprint("poll-", i)
		st := s.after(time.Minute).write()
		require.Equal(t, "True/Progressing", condition(st, v1alpha1.ConditionReconciling))
	}
	s.Ref.Answered = "poll-10"
	shows(t, s.after(time.Minute).write(), "Stalled=True/ProgressDeadlineExceeded")
}

func TestRequestHandledByAll(t *testing.T) {
	s := synced(t, 2)
	const at = "2026-01-02T12:00:01.000000001Z"
	s.Ref.Desired.RequestedAt, s.Ref.Answered, s.Target.RequestedAt = at, at, at
	st := s.after(time.Second).write()
	shows(t, st, "Ready=True/Synced", "a poll that finds the same commit must change nothing")
	assert.Empty(t, st.LastHandledRequest)
	assert.Equal(t, at, st.Target.RequestedAt)
	s.report(0).HandledRequest = at
	assert.Empty(t, s.write().LastHandledRequest)
	s.report(1).HandledRequest = at
	assert.Equal(t, at, s.write().LastHandledRequest)
	s.Ref.Desired.RequestedAt = "later"
	assert.Equal(t, at, s.write().LastHandledRequest, "the last request counts until the next one is handled")
}

func TestRollbackEvent(t *testing.T) {
	s := synced(t, 1)
	s.moves(commitB)
	s.takes(0)
	s.write()
	s.Ref.Desired = desiredref.Desired{Ref: commitA, Override: true, Unless: commitB, RequestedBy: "cli", Over: commitA + "@main"}
	s.Target.Ref, s.Target.Commit = commitA, commitA
	st := s.write()
	assert.NotContains(t, s.sent(), "RollbackCompleted")
	assert.Equal(t, "cli", st.Target.RequestedBy)
	assert.Equal(t, commitA+"@main", st.Request.Over)
	s.takes(0)
	st = s.write()
	assert.Equal(t, []string{"gw-0-0: SyncCompleted", "SyncCompleted", "RollbackCompleted"}, s.sent())
	assert.Equal(t, "rolled back: bbbbbbb of main is blocked; gw-0 (pod gw-0-0) runs aaaaaaa", messageOf(st, v1alpha1.ConditionReady))
	assert.Equal(t, "aaaaaaa", st.Target.RefShort, "a commit of forty digits is not a name")
	assert.Len(t, st.History, 3)
}

func TestNewLeadRepeatsNoEvents(t *testing.T) {
	s := newScene(t, 2)
	s.Ref.Err = failure.New(v1alpha1.ReasonGitUnreachable, "dial tcp 10.0.0.1:443: refused")
	s.fails(1, v1alpha1.ReasonTemplateFailed, "x")
	before := *s.write()
	s.Ref = Ref{Desired: s.Ref.Desired, Polling: true} // the lead has not polled yet
	after := *s.after(time.Minute).write()
	assert.Empty(t, s.sent())
	assert.Equal(t, before, after)

	s.Ref.Polled, s.Ref.Err = true, failure.New(v1alpha1.ReasonGitUnreachable, "dial tcp 10.0.0.1:443: i/o timeout, local port 41234")
	after = *s.after(time.Minute).write()
	assert.Equal(t, before, after, "another text of the same error must change nothing")
	s.Ref.Err = nil
	shows(t, s.write(), "RefResolved=True/RefResolved")
	assert.Equal(t, []string{"RefResolved"}, s.sent())
}

func TestDriftEventAndReady(t *testing.T) {
	s := synced(t, 1)
	s.report(0).Drift.Files = 3
	st := s.write()
	shows(t, st, "Ready=True/Synced")
	assert.EqualValues(t, 3, st.DiscoveredGateways[0].Drift)
	assert.Equal(t, []string{"gw-0-0: GatewayFilesModified", "GatewayFilesModified"}, s.sent())
	s.report(0).Drift.Files = 5
	s.write()
	assert.Empty(t, s.sent())
}

func TestRowKeepsLastSync(t *testing.T) {
	s := newScene(t, 1)
	st := s.write()
	last := st.DiscoveredGateways[0].LastSyncTime
	s.fails(0, v1alpha1.ReasonScanFailed, "x")
	s.report(0).Commit = commitA
	started := metav1.NewTime(noon)
	s.report(0).Started = &started
	row := s.write().DiscoveredGateways[0]
	assert.Equal(t, last, row.LastSyncTime, "a failed sync must not count as the last one")
	s.Reports = nil
	s.Pods[0].UID = "restarted"
	row = s.write().DiscoveredGateways[0]
	assert.Equal(t, v1alpha1.GatewayPending, row.SyncStatus)
	assert.Equal(t, commitA, row.SyncedCommit)
	assert.Equal(t, last, row.LastSyncTime)
}

func TestHistoryIsBounded(t *testing.T) {
	s := newScene(t, 1)
	for i := range 15 {
		s.moves(strings.Repeat(fmt.Sprint(i%10), 40))
		s.after(time.Minute).takes(0)
		s.write()
	}
	st := s.GatewaySync.Status
	require.Len(t, st.History, 10)
	assert.Equal(t, strings.Repeat("4", 40), st.History[0].Commit)
	assert.Equal(t, strings.Repeat("5", 40), st.History[9].Commit)
}

// Otherwise a rollback could choose a commit that no gateway ever ran.
func TestLastGoodNeedsARunningGateway(t *testing.T) {
	s := newScene(t, 0)
	st := s.write()
	require.Equal(t, "Unknown/NoGateways", condition(st, v1alpha1.ConditionReady))
	assert.Nil(t, st.LastGood)
	assert.Empty(t, st.History)
	s.gateway("gw-0")
	st = s.write()
	assert.Equal(t, commitA, st.LastGood.Commit)
	assert.Len(t, st.History, 1)
}

// The API server stores objects of up to 1.5 MiB, including the managed fields.
func TestHugeFleetFitsIntoObject(t *testing.T) {
	s := newScene(t, 0)
	for i := range 2500 {
		r := s.gateway(fmt.Sprintf("gateway-%04d-%s", i, strings.Repeat("n", 40)))
		if i%5 == 4 {
			r.Status.Phase, r.Status.Reason, r.Status.Message = v1alpha1.GatewayError, v1alpha1.ReasonTemplateFailed, strings.Repeat("message ", 120)
		}
		for p := range 32 {
			r.Status.Projects = append(r.Status.Projects, fmt.Sprint("project-", p))
		}
	}
	st := s.write()
	assert.Len(t, st.DiscoveredGateways, maxRows)
	assert.Equal(t, "2000/2500", st.GatewaysReady)
	failed := 0
	for _, g := range st.DiscoveredGateways {
		if g.SyncStatus == v1alpha1.GatewayError {
			failed++
		}
	}
	assert.Equal(t, 500, failed, "rows of gateways that are not synced must be kept")
	assert.LessOrEqual(t, size(st.DiscoveredGateways), rowBytes)
	assert.Len(t, s.events, 1, "a gateway without a row must not send an Event in each status")

	s = newScene(t, 1990)
	s.write()
	assert.Len(t, s.events, maxEvents-reservedEvents+1)
	assert.Equal(t, "SyncCompleted", s.sent()[len(s.events)-1], "Events of the fleet must not be dropped")
}

func TestUnknownReportState(t *testing.T) {
	s := newScene(t, 2)
	s.report(1).Phase, s.report(1).Commit = "Odd", strings.Repeat("c", 90)
	row := s.write().DiscoveredGateways[1]
	assert.Equal(t, v1alpha1.GatewayError, row.SyncStatus)
	assert.Contains(t, row.Message, `"Odd"`)
	assert.LessOrEqual(t, len(row.SyncedCommit), 40)
	assert.Equal(t, "1/2", s.GatewaySync.Status.GatewaysReady)
}
