package status

import (
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/annotation"
	"stoker.io/stoker/api/v1alpha1/gatewaypod"
	"stoker.io/stoker/api/v1alpha1/syntax"
	"stoker.io/stoker/internal/failure"
)

// Bounds of what an agent reports of its proposal, in bytes.
const (
	maxProposalURL    = 512
	maxProposalBranch = 255
)

// proposalStates are the valid states of a proposal.
var proposalStates = []v1alpha1.ProposalState{v1alpha1.ProposalSettling, v1alpha1.ProposalRefused, v1alpha1.ProposalPushing, v1alpha1.ProposalPushed,
	v1alpha1.ProposalOpen, v1alpha1.ProposalForeign, v1alpha1.ProposalMerged, v1alpha1.ProposalClosed, v1alpha1.ProposalWithdrawn}

// propose copies what an agent reports of its proposal. A program on the gateway may have written the report, so a value that this
// version does not know, or that could mislead a reader, is dropped.
func (g *gateway) propose(p *v1alpha1.Proposal) {
	g.ProposalState, g.Proposal, g.proposal = "", "", nil
	if p == nil || !slices.Contains(proposalStates, p.State) && (p.State != "" || p.Reason == "") {
		return
	}
	safe := v1alpha1.Proposal{State: p.State, Number: max(p.Number, 0), Reason: p.Reason, Message: annotation.Line(p.Message)}
	if !p.Reason.Known() && p.Reason != "" { // of a newer agent; the API server rejects some texts as a reason
		safe.Reason = ""
		if p.State == v1alpha1.ProposalRefused {
			safe.Reason = v1alpha1.ReasonChangesRefused
		}
	}
	if isAddress(p.URL) {
		safe.URL = p.URL
	}
	if len(p.Branch) <= maxProposalBranch && syntax.RefProblem(p.Branch) == "" && annotation.Line(p.Branch) == p.Branch {
		safe.Branch = p.Branch
	}
	g.proposal, g.ProposalState, g.Proposal = &safe, safe.State, safe.URL
	if g.Proposal == "" {
		g.Proposal = safe.Branch
	}
}

// isAddress reports whether a text is the address of a web page that can be shown: ASCII, and without a password.
func isAddress(text string) bool {
	if text == "" || len(text) > maxProposalURL || strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return false
	}
	u, err := url.Parse(text)
	return err == nil && (u.Scheme == "https" || u.Scheme == "http") && u.Hostname() != "" && u.User == nil
}

// severity orders the reasons of proposals: those that need a user come first. It is 0 for a proposal that has no problem.
func severity(p *v1alpha1.Proposal) int {
	if p == nil {
		return 0
	}
	reason := proposalReason(p)
	if reason == "" {
		return 0
	}
	switch reason {
	case v1alpha1.ReasonPodRestartNeeded:
		return 7
	case v1alpha1.ReasonAuthFailed:
		return 6
	case v1alpha1.ReasonPushRejected:
		return 5
	case v1alpha1.ReasonBranchTaken:
		return 3
	}
	switch reason.Class() {
	case v1alpha1.ClassStalled:
		return 4
	case v1alpha1.ClassHeld:
		return 2
	case v1alpha1.ClassRetry:
		return 1
	case v1alpha1.ClassDone, v1alpha1.ClassWorking, v1alpha1.ClassNotInjected:
	}
	return 0
}

// proposalReason returns why a proposal is not made, or "" if it is.
func proposalReason(p *v1alpha1.Proposal) v1alpha1.Reason {
	if p.Reason != "" {
		return p.Reason
	}
	switch p.State {
	case v1alpha1.ProposalRefused:
		return v1alpha1.ReasonChangesRefused
	case v1alpha1.ProposalForeign:
		return v1alpha1.ReasonBranchTaken
	case v1alpha1.ProposalSettling, v1alpha1.ProposalPushing, v1alpha1.ProposalPushed, v1alpha1.ProposalOpen, v1alpha1.ProposalMerged,
		v1alpha1.ProposalClosed, v1alpha1.ProposalWithdrawn:
	}
	return ""
}

// bidirectionalReady returns the condition BidirectionalReady, or nil if no profile proposes changes. It stays as it is while
// the spec is invalid or no gateway runs.
func bidirectionalReady(f *facts) *metav1.Condition {
	known := f.lastCondition(v1alpha1.ConditionBidirectionalReady)
	switch {
	case f.Invalid != nil:
		return known
	case !f.GatewaySync.Proposes():
		return nil
	case f.away != nil && known != nil:
		return known
	}
	worst, others := f.fleet.worst(func(g *gateway) (int, bool) {
		n := severity(g.proposal)
		return n, n > 0
	})
	if worst == nil {
		return f.condition(metav1.ConditionTrue, v1alpha1.ReasonProposalsReady, f.fleet.countProposals())
	}
	reason := proposalReason(worst.proposal)
	label := gatewaypod.GatewayLabel(worst.Name, worst.PodName)
	message := label
	if worst.proposal.Message != "" {
		message += ": " + worst.proposal.Message
	} else if info, ok := reason.Info(); ok {
		message += ": " + info.Meaning
	}
	if others > 0 {
		message += fmt.Sprintf("; %d more", others)
	}
	// The text of a network error differs between attempts. Only another reason or gateway is a change.
	if known != nil && known.Status == metav1.ConditionFalse && known.Reason == string(reason) && reason.Class() == v1alpha1.ClassRetry &&
		strings.HasPrefix(known.Message, label+": ") && known.ObservedGeneration == f.GatewaySync.Generation {
		message = known.Message
	}
	return f.condition(metav1.ConditionFalse, reason, message)
}

// countProposals counts the proposals by their state.
func (rows fleet) countProposals() string {
	states := map[v1alpha1.ProposalState]int{}
	for i := range rows {
		states[rows[i].ProposalState]++
	}
	var parts []string
	if n := states[v1alpha1.ProposalOpen]; n > 0 {
		parts = append(parts, counted(n, "pull request")+" open")
	}
	if n := states[v1alpha1.ProposalPushed]; n == 1 {
		parts = append(parts, "1 branch pushed")
	} else if n > 1 {
		parts = append(parts, fmt.Sprintf("%d branches pushed", n))
	}
	if n := states[v1alpha1.ProposalSettling] + states[v1alpha1.ProposalPushing]; n > 0 {
		parts = append(parts, counted(n, "proposal")+" under way")
	}
	if len(parts) == 0 {
		return "nothing to propose"
	}
	return strings.Join(parts, ", ")
}

// proposalEvents returns the events of one gateway's proposal. A gateway that was not known before may only have restarted, so it has
// none. A pull request is reported as updated only if the lead saw the push under way.
func (g *gateway) proposalEvents(was *v1alpha1.DiscoveredGateway) []Event {
	if was == nil || g.proposal == nil {
		return nil
	}
	entered := was.ProposalState != g.ProposalState
	// The same address means that a pull request is only updated. A row of a very large fleet has no address.
	created := entered && g.proposal.URL == "" || was.Proposal != g.Proposal && (entered || was.Proposal != "")
	pr := pullRequest(g.proposal)
	event := func(warning bool, reason, note string) []Event {
		if g.proposal.URL != "" {
			note += ": " + g.proposal.URL
		}
		note = strings.ToUpper(note[:1]) + note[1:]
		return []Event{{Warning: warning, Reason: reason, Note: failure.Cut(note, maxMessage)}}
	}
	switch {
	case g.ProposalState == v1alpha1.ProposalOpen && created:
		return event(false, v1alpha1.EventPRCreated, fmt.Sprintf("Created %s for gateway changes on %s", pr, g.Name))
	case g.ProposalState == v1alpha1.ProposalOpen && was.ProposalState == v1alpha1.ProposalPushing:
		return event(false, v1alpha1.EventPRUpdated, fmt.Sprintf("Updated %s with newer gateway changes on %s", pr, g.Name))
	case !entered:
	case g.ProposalState == v1alpha1.ProposalMerged:
		return event(false, v1alpha1.EventPRMerged, fmt.Sprintf("%s with gateway changes on %s was merged", pr, g.Name))
	case g.ProposalState == v1alpha1.ProposalClosed:
		return event(true, v1alpha1.EventPRClosed, fmt.Sprintf("%s with gateway changes on %s was closed without a merge", pr, g.Name))
	case g.ProposalState == v1alpha1.ProposalRefused:
		note := string(proposalReason(g.proposal))
		if g.proposal.Message != "" {
			note += ": " + g.proposal.Message
		}
		return event(true, v1alpha1.EventChangesRefused, note)
	}
	return nil
}

// pullRequest names a pull request by its number: the reported one, or the last part of its address.
func pullRequest(p *v1alpha1.Proposal) string {
	n := p.Number
	if n == 0 {
		last := p.URL[strings.LastIndexByte(p.URL, '/')+1:]
		n, _ = strconv.ParseInt(last, 10, 64) // 0 if it is not a number
	}
	if n <= 0 {
		return "the pull request"
	}
	return fmt.Sprintf("PR #%d", n)
}
