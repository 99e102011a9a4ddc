package status

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/desiredref"
	"stoker.io/stoker/internal/failure"
)

// Events with the same reason and object are counted as one and keep the first note.
func TestFailedGatewaysShareEvent(t *testing.T) {
	onTheFleet := func(s *scene) (notes []string) {
		for _, e := range s.events {
			if e.Pod == nil && e.Warning {
				notes = append(notes, e.Reason+" "+e.Note)
			}
		}
		return notes
	}
	t.Run("same failure", func(t *testing.T) {
		s := synced(t, 3)
		s.fails(1, v1alpha1.ReasonTemplateFailed, "no such variable")
		s.fails(2, v1alpha1.ReasonTemplateFailed, "no such variable")
		s.write()
		assert.Equal(t, []string{"SyncFailed gw-1 (pod gw-1-0), gw-2 (pod gw-2-0): TemplateFailed: no such variable"}, onTheFleet(s))
		assert.Len(t, s.events, 3, "each pod must have its own Event")
	})
	t.Run("different failures", func(t *testing.T) {
		s := synced(t, 3)
		s.fails(0, v1alpha1.ReasonTemplateFailed, "no such variable")
		s.fails(1, v1alpha1.ReasonMassDeletion, "90 files")
		s.fails(2, v1alpha1.ReasonNoSpace, "the disk is full")
		s.write()
		assert.Equal(t, []string{"SyncFailed gw-0 (pod gw-0-0): TemplateFailed: no such variable; gw-2 (pod gw-2-0): NoSpace: the disk is full", "SyncHeld gw-1 (pod gw-1-0): MassDeletion: 90 files"}, onTheFleet(s))
	})
	t.Run("many different failures", func(t *testing.T) {
		s := synced(t, 40)
		for i := range s.Reports {
			s.fails(i, v1alpha1.ReasonTemplateFailed, fmt.Sprintf("%d%s", i, strings.Repeat("x", 100)))
		}
		s.write()
		notes := onTheFleet(s)
		require.Len(t, notes, 1)
		assert.LessOrEqual(t, len(notes[0]), maxMessage+len("SyncFailed "))
		assert.Contains(t, notes[0], "40 gateways: gw-0, gw-1, gw-10")
		assert.Contains(t, notes[0], "gw-9: TemplateFailed: 0xxx")
	})
}

// An automatic rollback of a gateway is one Event, also if the lead changes or the gateway keeps reporting it.
func TestAutomaticRollbackEvent(t *testing.T) {
	s := synced(t, 2)
	s.moves(commitB)
	s.write()
	count := func() (n int) {
		for _, e := range s.events {
			if e.Reason == v1alpha1.EventAutoRollbackPerformed {
				assert.True(t, e.Warning)
				assert.Contains(t, e.Note, "rolled back bbbbbbb automatically: RolledBack: ScanFailed")
				n++
			}
		}
		return n
	}
	s.fails(0, v1alpha1.ReasonRolledBack, "ScanFailed")
	s.report(0).Commit, s.report(0).AutoRollback = commitA, commitB
	st := s.write()
	assert.Equal(t, 2, count(), "one Event on the pod and one on the GatewaySync")
	assert.Equal(t, commitB, st.DiscoveredGateways[0].AutoRollback)
	assert.Empty(t, st.DiscoveredGateways[1].AutoRollback)
	shows(t, st, "Stalled=True/RolledBack")
	assert.Equal(t, commitB, st.Retry)
	s.report(0).Reason, s.report(0).Message = v1alpha1.ReasonScanFailed, "again"
	s.write()
	assert.Zero(t, count())
	s.report(0).AutoRollback = ""
	st = s.write()
	assert.Empty(t, st.DiscoveredGateways[0].AutoRollback)
	assert.Empty(t, st.Retry)
	s.report(0).Reason = v1alpha1.ReasonRolledBack
	assert.Equal(t, commitB, s.write().Retry, "the reason alone must also offer a retry")
}

// Work of a user that a sync replaced is one Event for each such sync, and the gateway's row counts the files.
func TestReplacedFilesEvent(t *testing.T) {
	s := synced(t, 2)
	notes := func() (found []string) {
		for _, e := range s.events {
			if e.Reason == v1alpha1.EventGatewayFilesReplaced {
				assert.True(t, e.Warning)
				found = append(found, e.Note)
			}
		}
		return found
	}
	s.moves(commitB)
	s.takes(0)
	s.report(0).Files.Saved = 2
	s.report(0).Message = "2 updated, 2 to lost+found; replaced projects/line/a.json, projects/line/b.json"
	st := s.write()
	require.Len(t, notes(), 2, "one Event on the pod and one on the GatewaySync")
	assert.Contains(t, notes()[0], "replaced 2 files that a user had changed on gw-0; lost+found has the user's version (agent lost-and-found list): 2 updated, 2 to lost+found; replaced projects/line/a.json, projects/line/b.json")
	assert.EqualValues(t, 2, st.DiscoveredGateways[0].FilesSaved)
	s.report(0).Message = "nothing to do"
	s.write()
	assert.Empty(t, notes(), "once")
	s.after(time.Hour).takes(0) // another sync replaces files
	s.write()
	assert.Len(t, notes(), 2)
	s.moves(commitA)
	s.takes(0)
	s.report(0).Files.Saved = 0
	s.write()
	assert.Empty(t, notes())
}

func TestRefEventsNameTheRequester(t *testing.T) {
	s := synced(t, 1)
	note := func() string {
		for _, e := range s.events {
			if e.Reason == v1alpha1.EventRefUpdated || e.Reason == v1alpha1.EventRefResolved {
				return e.Reason + ": " + e.Note
			}
		}
		return ""
	}
	s.moves(commitB)
	s.write()
	assert.Equal(t, "RefUpdated: main moved from aaaaaaa to bbbbbbb", note(), "found by a poll")
	s.Ref.Desired.RequestedAt, s.Ref.Desired.RequestedBy, s.Ref.Answered = "1", "github", "1"
	s.moves(commitA)
	s.write()
	assert.Equal(t, "RefUpdated: main moved from bbbbbbb to aaaaaaa; requested by github at 1", note())
	s.moves(commitB)
	s.write()
	assert.Equal(t, "RefUpdated: main moved from aaaaaaa to bbbbbbb", note(), "an answered request must not be named")
	s.Ref.Desired = desiredref.Desired{Ref: "v2", Override: true, RequestedAt: "2", RequestedBy: "kargo"}
	s.tells(func(t *v1alpha1.SyncTargetSpec) { t.Ref, t.Commit = "v2", commitA })
	s.write()
	assert.Equal(t, "RefResolved: v2 is at aaaaaaa; before, all gateways ran main at aaaaaaa; requested by kargo at 2", note())
}

// The Events of gateways carry the id of the request until every gateway has dealt with it, so that logs, reports and Events can be joined.
func TestEventsCarryTheRequest(t *testing.T) {
	s := synced(t, 2)
	s.moves(commitB)
	at := "2026-11-25T12:00:00.123456789Z"
	s.Ref.Desired.RequestedAt, s.Ref.Answered = at, at
	s.tells(func(t *v1alpha1.SyncTargetSpec) { t.RequestedAt = at })
	s.write()
	ofPods := func() (notes []string) {
		for _, e := range s.events {
			assert.LessOrEqual(t, len(e.Note), 1024, "the API server limits notes to 1024 bytes")
			if e.Pod != nil {
				notes = append(notes, e.Note)
			}
		}
		return notes
	}
	s.takes(0)
	s.write()
	assert.Equal(t, []string{"gw-0 runs bbbbbbb; request " + at}, ofPods())
	s.fails(1, v1alpha1.ReasonScanFailed, strings.Repeat("x", 1000))
	s.write()
	require.Len(t, ofPods(), 1)
	assert.True(t, strings.HasSuffix(ofPods()[0], "x…; request "+at), "only the message may be truncated")
	s.takes(1)
	require.Equal(t, at, s.write().LastHandledRequest)
	assert.Equal(t, []string{"gw-1 runs bbbbbbb; request " + at}, ofPods())
	s.fails(1, v1alpha1.ReasonScanFailed, "later")
	s.write()
	assert.Equal(t, []string{"ScanFailed: later"}, ofPods(), "a later failure must not name the request")
}

// The summary says in a few words which gateway is behind, and why.
func TestSummaryForKubectl(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*scene)
		want   string
	}{
		"synced":           {func(*scene) {}, "Synced"},
		"drift":            {func(s *scene) { s.report(1).Drift.Files = 3 }, "Synced; drift on 1"},
		"git is away":      {func(s *scene) { s.Ref.Err = failure.New(v1alpha1.ReasonGitTimeout, "no answer") }, "Synced; git: GitTimeout"},
		"no such ref":      {func(s *scene) { s.Ref.Err = failure.New(v1alpha1.ReasonRefNotFound, "no v9") }, "RefNotFound"},
		"one is behind":    {func(s *scene) { s.fails(1, v1alpha1.ReasonDesignerSessionActive, "maria") }, "gw-1: DesignerSessionActive"},
		"three are behind": {func(s *scene) { s.moves(commitB); s.fails(1, v1alpha1.ReasonTemplateFailed, "x") }, "gw-1: TemplateFailed; 2 more"},
		"a long name": {func(s *scene) {
			s.report(2).Gateway = strings.Repeat("g", 253)
			s.fails(2, v1alpha1.ReasonDesignerSessionActive, "maria")
		}, "gggggggggggggggggg…: DesignerSessionActive"},
		"paused":  {func(s *scene) { s.moves(commitB); s.pauses(true) }, "Paused"},
		"overdue": {func(s *scene) { s.moves(commitB); s.write(); s.after(time.Hour) }, "overdue: gw-0: Progressing; 2 more"},
		"waiting": {func(s *scene) { s.moves(commitB); s.rolls(v1alpha1.RolloutWaiting, 1, "prod", "waits") }, "stage prod: ApprovalNeeded"},
		"failed":  {func(s *scene) { s.moves(commitB); s.rolls(v1alpha1.RolloutAborted, 1, "canary", "failed") }, "stage canary: CanaryStageFailed"},
	} {
		t.Run(name, func(t *testing.T) {
			s := synced(t, 3)
			c.change(s)
			assert.Equal(t, c.want, s.write().Summary)
		})
	}
}

// C9: the notes of a report come from another pod.
func TestNotesOfRowsAreBounded(t *testing.T) {
	s := newScene(t, 3)
	s.report(0).Notes = []string{"the gateway's trial has expired"}
	s.report(1).Notes = slices.Repeat([]string{strings.Repeat("x", 5000)}, 100)
	rows := s.write().DiscoveredGateways
	assert.Equal(t, []string{"the gateway's trial has expired"}, rows[0].Notes)
	require.Len(t, rows[1].Notes, maxNotes)
	for _, note := range rows[1].Notes {
		assert.LessOrEqual(t, len(note), maxNote)
	}
	assert.Empty(t, rows[2].Notes)

	many := newScene(t, 400)
	for i := range many.Reports {
		many.report(i).Notes = slices.Repeat([]string{strings.Repeat("y", 250)}, 8)
	}
	rows = many.write().DiscoveredGateways
	assert.LessOrEqual(t, size(rows), rowBytes)
	assert.Len(t, rows[0].Notes, 1, "a large fleet keeps fewer notes")
}

// A level of detail must not need more room than the one before, or a fleet that fits loses details.
func TestDetailOfRows(t *testing.T) {
	rows := func(n int) []v1alpha1.DiscoveredGateway {
		s := newScene(t, n)
		for i := range s.Reports {
			r := s.report(i)
			r.Phase, r.Reason, r.Message = v1alpha1.GatewayError, v1alpha1.ReasonTemplateFailed, strings.Repeat("m", 200)
			r.Projects, r.Scan = []string{"hmi", "reports", "alarms"}, strings.Repeat("s", 60)
			r.Notes = slices.Repeat([]string{strings.Repeat("y", 250)}, 8)
		}
		return s.write().DiscoveredGateways
	}
	var sizes []int
	for _, reduce := range detail {
		one := rows(1)
		reduce(&one[0])
		sizes = append(sizes, size(one))
	}
	assert.IsNonIncreasing(t, sizes)
	assert.Equal(t, "v1", rows(700)[0].AgentVersion)
}

// A restore that a user requested is neither an error nor a success: the fleet waits for the user.
func TestRequestedRestore(t *testing.T) {
	s := synced(t, 2)
	s.moves(commitB)
	s.write()
	r := s.report(0)
	r.Phase, r.Reason, r.Message, r.Commit, r.Target = v1alpha1.GatewayHeld, v1alpha1.ReasonRestored, "the gateway is back at a snapshot", commitA, commitB
	s.takes(1)
	r.Revision, r.Generation = s.report(1).Revision, s.report(1).Generation
	for range 2 {
		st := s.write()
		assert.Equal(t, v1alpha1.OutcomeHeld, st.Outcome.Phase, "Argo CD shows it as Suspended")
		assert.Equal(t, v1alpha1.ReasonRestored, st.Outcome.Reason)
		shows(t, st, "Stalled= Reconciling= Ready=False/Restored")
		assert.Equal(t, commitB, st.Retry)
		for _, e := range s.events {
			assert.NotEqual(t, v1alpha1.EventSyncFailed, e.Reason)
			assert.False(t, e.Warning, e.Note)
		}
		s.after(24 * time.Hour)
		s.Reports[0].Status = *r.DeepCopy()
	}
}
