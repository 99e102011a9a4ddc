package status

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/api/v1alpha1"
)

const prAddress = "https://git.example.com/plant/site/pulls/42"

// proposing returns a scene whose gateways propose changes.
func proposing(t testing.TB, n int) *scene {
	s := newScene(t, n)
	s.GatewaySync.Spec.Bidirectional = &v1alpha1.BidirectionalSpec{Enabled: true}
	return s
}

// proposes makes a gateway report a proposal.
func (s *scene) proposes(i int, state v1alpha1.ProposalState, reason v1alpha1.Reason, message string) *v1alpha1.Proposal {
	p := &v1alpha1.Proposal{State: state, Branch: "gateway-changes/plant/gw", Reason: reason, Message: message}
	if state == v1alpha1.ProposalOpen || state == v1alpha1.ProposalMerged || state == v1alpha1.ProposalClosed {
		p.Number, p.URL = 42, prAddress
	}
	s.report(i).Proposal = p
	return p
}

func TestBidirectionalReady(t *testing.T) {
	type proposal struct {
		state   v1alpha1.ProposalState
		reason  v1alpha1.Reason
		message string
	}
	for _, c := range []struct {
		name      string
		proposals []proposal
		want      string
		message   string
	}{
		{"no proposals", nil, "True/ProposalsReady", "nothing to propose"},
		{"one open", []proposal{{state: v1alpha1.ProposalOpen}}, "True/ProposalsReady", "1 pull request open"},
		{"all kinds", []proposal{{state: v1alpha1.ProposalOpen}, {state: v1alpha1.ProposalOpen}, {state: v1alpha1.ProposalPushed}, {state: v1alpha1.ProposalSettling}},
			"True/ProposalsReady", "2 pull requests open, 1 branch pushed, 1 proposal under way"},
		{"ended ones", []proposal{{state: v1alpha1.ProposalMerged}, {state: v1alpha1.ProposalClosed}, {state: v1alpha1.ProposalWithdrawn}},
			"True/ProposalsReady", "nothing to propose"},
		{"refused", []proposal{{state: v1alpha1.ProposalOpen}, {v1alpha1.ProposalRefused, v1alpha1.ReasonChangesRefused, "a.json holds a secret"}},
			"False/ChangesRefused", "gw-1 (pod gw-1-0): a.json holds a secret"},
		{"refused without a reason", []proposal{{state: v1alpha1.ProposalRefused}},
			"False/ChangesRefused", "gw-0 (pod gw-0-0): changes made on a gateway must not leave it, or cannot be expressed in git"},
		{"foreign commit", []proposal{{state: v1alpha1.ProposalForeign}},
			"False/BranchTaken", "gw-0 (pod gw-0-0): another gateway or another author committed to the branch for a gateway's changes"},
		{"reason of a newer agent", []proposal{{v1alpha1.ProposalRefused, "not a reason", "tomorrow"}}, "False/ChangesRefused", "gw-0 (pod gw-0-0): tomorrow"},
		{"credential not mounted, nothing changed", []proposal{{state: v1alpha1.ProposalOpen}, {"", v1alpha1.ReasonPodRestartNeeded, "restart the pod"}},
			"False/PodRestartNeeded", "gw-1 (pod gw-1-0): restart the pod"},
		{"work in progress is not a problem", []proposal{{v1alpha1.ProposalSettling, v1alpha1.ReasonProgressing, "waits"}},
			"True/ProposalsReady", "1 proposal under way"},
		{"most severe first", []proposal{
			{v1alpha1.ProposalPushing, v1alpha1.ReasonGitUnreachable, "a"}, {v1alpha1.ProposalRefused, v1alpha1.ReasonChangesRefused, "b"},
			{v1alpha1.ProposalForeign, v1alpha1.ReasonBranchTaken, "c"}, {v1alpha1.ProposalRefused, v1alpha1.ReasonLimitExceeded, "d"},
			{v1alpha1.ProposalPushing, v1alpha1.ReasonPushRejected, "e"}, {v1alpha1.ProposalPushing, v1alpha1.ReasonAuthFailed, "f"},
			{v1alpha1.ProposalPushing, v1alpha1.ReasonPodRestartNeeded, "g"}, {v1alpha1.ProposalPushing, v1alpha1.ReasonPodRestartNeeded, "h"},
		}, "False/PodRestartNeeded", "gw-6 (pod gw-6-0): g; 7 more"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := proposing(t, max(len(c.proposals), 1))
			for i, p := range c.proposals {
				s.proposes(i, p.state, p.reason, p.message)
			}
			st := s.write()
			assert.Equal(t, c.want, condition(st, v1alpha1.ConditionBidirectionalReady))
			assert.Equal(t, c.message, messageOf(st, v1alpha1.ConditionBidirectionalReady))
			shows(t, st, "Ready=True/Synced")
		})
	}
	t.Run("absent unless a profile proposes", func(t *testing.T) {
		s := newScene(t, 1)
		s.proposes(0, v1alpha1.ProposalRefused, v1alpha1.ReasonChangesRefused, "a")
		shows(t, s.write(), "BidirectionalReady=")
		s.GatewaySync.Spec.Bidirectional = &v1alpha1.BidirectionalSpec{Enabled: true}
		shows(t, s.write(), "BidirectionalReady=False/ChangesRefused")
		no := false
		p := s.GatewaySync.Spec.Sync.Profiles["default"]
		p.Bidirectional = &no
		s.GatewaySync.Spec.Sync.Profiles["default"] = p
		shows(t, s.write(), "BidirectionalReady=")
	})
	t.Run("kept while no gateway runs", func(t *testing.T) {
		s := proposing(t, 1)
		s.proposes(0, v1alpha1.ProposalRefused, v1alpha1.ReasonChangesRefused, "a")
		s.write()
		s.ends(0, true)
		shows(t, s.write(), "BidirectionalReady=False/ChangesRefused")
	})
	t.Run("network error with another text changes nothing", func(t *testing.T) {
		s := proposing(t, 2)
		s.proposes(0, v1alpha1.ProposalPushing, v1alpha1.ReasonGitUnreachable, "port 1")
		s.write()
		s.proposes(0, v1alpha1.ProposalPushing, v1alpha1.ReasonGitUnreachable, "port 2")
		assert.Equal(t, "gw-0 (pod gw-0-0): port 1", messageOf(s.write(), v1alpha1.ConditionBidirectionalReady))
		s.proposes(0, v1alpha1.ProposalOpen, "", "")
		s.proposes(1, v1alpha1.ProposalPushing, v1alpha1.ReasonGitUnreachable, "port 3")
		assert.Equal(t, "gw-1 (pod gw-1-0): port 3", messageOf(s.write(), v1alpha1.ConditionBidirectionalReady))
	})
}

// A program on the gateway can write the report.
func TestProposalOfTheRow(t *testing.T) {
	const branch = "gateway-changes/plant/gw"
	for _, c := range []struct {
		name      string
		proposal  *v1alpha1.Proposal
		wantState v1alpha1.ProposalState
		want      string
	}{
		{"none", nil, "", ""},
		{"address", &v1alpha1.Proposal{State: v1alpha1.ProposalOpen, URL: prAddress, Branch: branch}, v1alpha1.ProposalOpen, prAddress},
		{"http address", &v1alpha1.Proposal{State: v1alpha1.ProposalOpen, URL: "http://git/pulls/1"}, v1alpha1.ProposalOpen, "http://git/pulls/1"},
		{"branch only", &v1alpha1.Proposal{State: v1alpha1.ProposalPushed, Branch: branch}, v1alpha1.ProposalPushed, branch},
		{"unknown state", &v1alpha1.Proposal{State: "Exploding", URL: prAddress}, "", ""},
		{"script", &v1alpha1.Proposal{State: v1alpha1.ProposalOpen, URL: "javascript:alert(1)", Branch: branch}, v1alpha1.ProposalOpen, branch},
		{"password", &v1alpha1.Proposal{State: v1alpha1.ProposalOpen, URL: "https://user:secret@git/1", Branch: branch}, v1alpha1.ProposalOpen, branch},
		{"no host", &v1alpha1.Proposal{State: v1alpha1.ProposalOpen, URL: "https:///pulls/1", Branch: branch}, v1alpha1.ProposalOpen, branch},
		{"escape sequence", &v1alpha1.Proposal{State: v1alpha1.ProposalOpen, URL: "https://git/\x1b[2J", Branch: branch}, v1alpha1.ProposalOpen, branch},
		{"letters that look alike", &v1alpha1.Proposal{State: v1alpha1.ProposalOpen, URL: "https://gіt.example.com/1", Branch: branch}, v1alpha1.ProposalOpen, branch},
		{"too long", &v1alpha1.Proposal{State: v1alpha1.ProposalOpen, URL: "https://git/" + strings.Repeat("a", 512), Branch: branch}, v1alpha1.ProposalOpen, branch},
		{"branch with an escape sequence", &v1alpha1.Proposal{State: v1alpha1.ProposalPushed, Branch: "a\x1bb"}, v1alpha1.ProposalPushed, ""},
		{"branch that is too long", &v1alpha1.Proposal{State: v1alpha1.ProposalPushed, Branch: strings.Repeat("a", 256)}, v1alpha1.ProposalPushed, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := proposing(t, 1)
			s.report(0).Proposal = c.proposal
			row := s.write().DiscoveredGateways[0]
			assert.Equal(t, c.wantState, row.ProposalState)
			assert.Equal(t, c.want, row.Proposal)
		})
	}
	t.Run("kept while a restarted agent has not reported", func(t *testing.T) {
		s := proposing(t, 1)
		s.proposes(0, v1alpha1.ProposalOpen, "", "")
		s.write()
		report := s.Reports
		s.Reports = nil
		assert.Equal(t, v1alpha1.ProposalOpen, s.write().DiscoveredGateways[0].ProposalState)
		s.Reports = report
		s.write()
		assert.NotContains(t, s.sent(), "gw-0-0: PRCreated")
	})
	t.Run("state survives in a very large fleet", func(t *testing.T) {
		s := proposing(t, 1900)
		for i := range s.Reports {
			s.proposes(i, v1alpha1.ProposalOpen, "", "").URL = fmt.Sprintf("https://git.example.com/%s/%d", strings.Repeat("a", 400), i)
		}
		st := s.write()
		assert.Empty(t, st.DiscoveredGateways[0].Proposal)
		assert.Equal(t, v1alpha1.ProposalOpen, st.DiscoveredGateways[0].ProposalState)
		assert.Equal(t, "1900 pull requests open", messageOf(st, v1alpha1.ConditionBidirectionalReady))
	})
}

func TestProposalEvents(t *testing.T) {
	type step struct {
		state  v1alpha1.ProposalState
		url    string
		number int64
		want   string // of the pod, with its note
	}
	const other = "https://git.example.com/plant/site/pulls/43"
	for _, c := range []struct {
		name  string
		steps []step
	}{
		{"created and merged", []step{
			{state: v1alpha1.ProposalSettling},
			{state: v1alpha1.ProposalPushing},
			{state: v1alpha1.ProposalOpen, url: prAddress, want: "PRCreated Created PR #42 for gateway changes on gw-0: " + prAddress},
			{state: v1alpha1.ProposalOpen, url: prAddress},
			{state: v1alpha1.ProposalMerged, url: prAddress, want: "PRMerged PR #42 with gateway changes on gw-0 was merged: " + prAddress},
			{state: v1alpha1.ProposalMerged, url: prAddress},
		}},
		{"number in the report", []step{{state: v1alpha1.ProposalOpen, number: 7, want: "PRCreated Created PR #7 for gateway changes on gw-0"}}},
		{"no number", []step{{state: v1alpha1.ProposalOpen, url: "https://git/x", want: "PRCreated Created the pull request for gateway changes on gw-0: https://git/x"}}},
		{"more changes of an open proposal", []step{
			{state: v1alpha1.ProposalOpen, url: prAddress, want: "PRCreated Created PR #42 for gateway changes on gw-0: " + prAddress},
			{state: v1alpha1.ProposalPushing, url: prAddress},
			{state: v1alpha1.ProposalOpen, url: prAddress, want: "PRUpdated Updated PR #42 with newer gateway changes on gw-0: " + prAddress},
			{state: v1alpha1.ProposalSettling, url: prAddress},
			{state: v1alpha1.ProposalOpen, url: prAddress},
		}},
		{"second proposal", []step{
			{state: v1alpha1.ProposalOpen, url: prAddress, want: "PRCreated Created PR #42 for gateway changes on gw-0: " + prAddress},
			{state: v1alpha1.ProposalOpen, url: other, want: "PRCreated Created PR #43 for gateway changes on gw-0: " + other},
		}},
		{"closed", []step{
			{state: v1alpha1.ProposalOpen, url: prAddress, want: "PRCreated Created PR #42 for gateway changes on gw-0: " + prAddress},
			{state: v1alpha1.ProposalClosed, url: prAddress, want: "!PRClosed PR #42 with gateway changes on gw-0 was closed without a merge: " + prAddress},
			{state: v1alpha1.ProposalClosed, url: prAddress},
		}},
		{"refused", []step{
			{state: v1alpha1.ProposalRefused, want: "!ChangesRefused ChangesRefused: a.json holds a secret"},
			{state: v1alpha1.ProposalRefused},
		}},
		{"withdrawn", []step{{state: v1alpha1.ProposalWithdrawn}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := proposing(t, 1)
			s.write()
			for i, st := range c.steps {
				p := &v1alpha1.Proposal{State: st.state, URL: st.url, Number: st.number, Branch: "b"}
				if st.state == v1alpha1.ProposalRefused {
					p.Reason, p.Message = v1alpha1.ReasonChangesRefused, "a.json holds\na secret"
				}
				s.report(0).Proposal = p
				s.write()
				var pod, fleet []string
				for _, e := range s.events {
					mark := map[bool]string{true: "!"}[e.Warning]
					if e.Pod != nil {
						pod = append(pod, mark+e.Reason+" "+e.Note)
					} else {
						fleet = append(fleet, mark+e.Reason)
					}
				}
				if st.want == "" {
					assert.Empty(t, s.events, "step %d", i)
					continue
				}
				require.Equal(t, []string{st.want}, pod, "step %d", i)
				if reason, _, _ := strings.Cut(st.want, " "); st.want[0] == '!' {
					assert.Equal(t, []string{reason}, fleet, "a warning must also be reported on the GatewaySync")
				} else {
					assert.Empty(t, fleet)
				}
			}
		})
	}
	t.Run("not for a gateway that returns", func(t *testing.T) {
		s := proposing(t, 2)
		s.proposes(0, v1alpha1.ProposalOpen, "", "")
		assert.NotContains(t, strings.Join(func() []string { s.write(); return s.sent() }(), " "), "PRCreated")
	})
}
