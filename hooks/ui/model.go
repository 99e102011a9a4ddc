package ui

import (
	"cmp"
	"net/url"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/syntax"
	"stoker.io/stoker/internal/request"
)

// tone is how a state looks: a color and an icon. A word beside the icon says the same.
type tone string

// The tones, worst first.
const (
	toneFail    tone = "fail"
	toneUnknown tone = "unknown"
	toneHeld    tone = "hold"
	toneBusy    tone = "work"
	toneOff     tone = "off"
	toneGood    tone = "good"
)

// compareTones orders tones, the worst first.
func compareTones(a, b tone) int { return slices.Index(tones, a) - slices.Index(tones, b) }

var tones = []tone{toneFail, toneUnknown, toneHeld, toneBusy, toneOff, toneGood}

// chip is a state with its tone.
type chip struct {
	Tone tone
	Word string
}

// fleet is a GatewaySync as pages show it.
type fleet struct {
	Namespace, Name, Path string
	State                 chip
	Ref, Commit, Origin   string
	Repo                  string
	Total, Synced, Behind int
	Bar                   []segment
	Advice                Advice
	Message               string
	Since                 moment // when gateways began to be behind
	Confirmed             moment
	Groups                []group
	Gateways              []gateway
	Unreadable            string // why the GatewaySync cannot be decoded; the other fields are then empty

	gs *v1alpha1.GatewaySync
}

// segment is a part of the bar of gateways: N gateways with the same tone.
type segment struct {
	Tone tone
	X, W float64 // position and width, in percent
	N    int
}

// group is the gateways of a fleet that are behind for one reason.
type group struct {
	Advice Advice
	Tone   tone
	N      int
	Path   string
	First  string // message of the first gateway
}

// gateway is a row of the status as pages show it.
type gateway struct {
	Name, Path   string
	State        chip
	Behind       bool
	Reason       v1alpha1.Reason
	Word         string // Reason without unsafe characters
	Message      string
	Commit       string
	Ref          string
	Profile      string
	Pod          string
	Drift        int
	Proposal     string // its state
	Link         link   // to the proposal
	LastSync     moment
	Duration     string
	FilesChanged int
	Projects     []string
	Scan         string
	Agent        string

	row v1alpha1.DiscoveredGateway
}

// link is a web address, or only a text if a browser must not open it.
type link struct{ Text, URL string }

func newLink(s string) link {
	l := link{Text: clean(s, 512)}
	if u, err := url.Parse(s); err == nil && (u.Scheme == "https" || u.Scheme == "http") && u.Host != "" && u.User == nil {
		l.URL = u.String()
	}
	return l
}

// address returns the URL of a repository without credentials.
func address(s string) string {
	if u, err := url.Parse(s); err == nil && u.User != nil {
		u.User = nil
		s = u.String()
	}
	return clean(s, maxWord)
}

// PathOf returns the path of the page of a GatewaySync.
func PathOf(namespace, name string) string {
	return "/fleets/" + url.PathEscape(namespace) + "/" + url.PathEscape(name)
}

// newFleet returns a GatewaySync as pages show it. target is its SyncTarget, or nil if it is unknown.
func (s *Server) newFleet(gs *v1alpha1.GatewaySync, target *v1alpha1.SyncTarget, now time.Time) fleet {
	v := request.Read(gs, "", target, now)
	f := fleet{
		Namespace: gs.Namespace, Name: gs.Name, Path: PathOf(gs.Namespace, gs.Name), Repo: address(gs.Spec.Git.Repo),
		Ref: clean(v.Ref, maxWord), Commit: syntax.ShortCommit(v.Commit), Origin: clean(request.Origin(gs, v.Ref), maxWord),
		Total: v.Gateways.Total, Synced: v.Gateways.Synced, Message: clean(v.Message, maxMessage), Advice: s.advisor.advice(v.Reason), gs: gs,
	}
	if syntax.IsCommit(v.Ref) {
		f.Ref = syntax.ShortCommit(v.Ref)
	}
	f.Behind = max(f.Total-f.Synced, 0)
	f.State = fleetState(v)
	if t := gs.Status.ConfirmedAt; t != nil {
		f.Confirmed = moment{t.Time, now}
	}
	noLead := v.Reason == v1alpha1.ReasonAgentsAway
	if c := meta.FindStatusCondition(gs.Status.Conditions, v1alpha1.ConditionAllGatewaysSynced); noLead {
		f.Since = moment{v.Since, now}
	} else if f.Behind > 0 && c != nil && c.Status != metav1.ConditionTrue {
		f.Since = moment{c.LastTransitionTime.Time, now}
	}
	behind := map[string]bool{}
	for _, b := range v.Behind {
		behind[b.Name] = true
	}
	for _, row := range gs.Status.DiscoveredGateways {
		f.Gateways = append(f.Gateways, s.newGateway(f, row, behind[row.Name], noLead, now))
	}
	f.Bar = newBar(f.Gateways)
	if f.State.Tone == toneBusy { // some gateways may progress while others do not
		f.State = worstState(f.Gateways, f.State)
	}
	f.Groups = s.newGroups(f, noLead)
	return f
}

// fleetState returns the state of a fleet.
func fleetState(v request.Verdict) chip {
	switch {
	case v.Reason == v1alpha1.ReasonAgentsAway:
		return chip{toneUnknown, "Not confirmed"}
	case v.Phase == request.Succeeded:
		return chip{toneGood, "Up to date"}
	case v.Phase == request.Failed:
		return chip{toneFail, "Failed"}
	case v.Phase == request.Held:
		return chip{toneHeld, "Held"}
	case v.Phase == request.Paused:
		return chip{toneOff, "Paused"}
	case v.Reason == v1alpha1.ReasonNoGateways:
		return chip{toneOff, "No gateways"}
	case v.Gateways.Failed > 0, v.Reason.Class() == v1alpha1.ClassRetry, v.Reason.Class() == v1alpha1.ClassStalled:
		return chip{toneFail, "Error"}
	}
	return chip{toneBusy, "Updating"}
}

// worstState returns Error or Held if a gateway is in that state, and otherwise the given state.
func worstState(gateways []gateway, state chip) chip {
	for _, g := range gateways {
		switch g.State.Tone {
		case toneFail:
			return chip{toneFail, "Error"}
		case toneHeld:
			state = chip{toneHeld, "Held"}
		}
	}
	return state
}

// gatewayState returns the state of a gateway. Its tone is never good if the gateway is behind, or if no lead confirms what the
// gateway runs.
func gatewayState(row v1alpha1.DiscoveredGateway, behind, noLead bool) chip {
	switch {
	case noLead:
		return chip{toneUnknown, "Not confirmed"}
	case row.SyncStatus == v1alpha1.GatewayError:
		return chip{toneFail, "Error"}
	case row.SyncStatus == v1alpha1.GatewayMissingSidecar:
		return chip{toneFail, "No agent"}
	case row.SyncStatus == v1alpha1.GatewayHeld && row.Reason == v1alpha1.ReasonPaused:
		return chip{toneOff, "Paused"}
	case row.SyncStatus == v1alpha1.GatewayHeld:
		return chip{toneHeld, "Held"}
	case behind && row.SyncStatus.Synced():
		return chip{toneBusy, "Behind"}
	case row.SyncStatus.Synced():
		return chip{toneGood, string(row.SyncStatus)}
	}
	return chip{toneBusy, cmp.Or(clean(string(row.SyncStatus), 32), string(v1alpha1.GatewayPending))}
}

// newGateway returns a row of the status as pages show it.
func (s *Server) newGateway(f fleet, row v1alpha1.DiscoveredGateway, behind, noLead bool, now time.Time) gateway {
	g := gateway{
		Name: clean(row.Name, maxWord), Path: f.Path + "/gateway?" + url.Values{"name": {row.Name}}.Encode(), Behind: behind || noLead,
		State: gatewayState(row, behind, noLead), Reason: row.Reason, Message: clean(row.Message, maxMessage), Commit: clean(syntax.ShortCommit(row.SyncedCommit), 7),
		Ref: clean(row.SyncedRef, maxWord), Profile: clean(row.Profile, 63), Pod: clean(row.PodName, maxWord), Drift: int(row.Drift),
		Proposal: clean(string(row.ProposalState), 16), Link: newLink(row.Proposal), Duration: clean(row.LastSyncDuration, 32),
		FilesChanged: int(row.FilesChanged), Scan: clean(row.LastScanResult, 512), Agent: clean(row.AgentVersion, 64), row: row,
	}
	if g.Reason == "" || string(g.Reason) == string(row.SyncStatus) && behind {
		g.Reason = v1alpha1.ReasonProgressing
	}
	if noLead {
		g.Reason = v1alpha1.ReasonAgentsAway
	}
	g.Word = clean(string(g.Reason), 64)
	if row.LastSyncTime != nil {
		g.LastSync = moment{row.LastSyncTime.Time, now}
	}
	for _, p := range row.ProjectsSynced {
		g.Projects = append(g.Projects, clean(p, 64))
	}
	return g
}

// newGroups returns the reasons for which gateways are behind, the most urgent first.
func (s *Server) newGroups(f fleet, noLead bool) []group {
	var list []group
	for _, g := range f.Gateways {
		if !g.Behind {
			continue
		}
		i := slices.IndexFunc(list, func(o group) bool { return o.Advice.Reason == g.Word && o.Tone == g.State.Tone })
		if i < 0 {
			i = len(list)
			path := f.Path + "?" + url.Values{"reason": {string(g.Reason)}}.Encode() + "#gateways"
			list = append(list, group{s.advisor.advice(g.Reason), g.State.Tone, 0, path, clean(g.Message, maxCell)})
		}
		list[i].N++
	}
	if noLead && len(list) == 1 {
		list[0].First = clean(f.Message, maxCell)
	}
	slices.SortStableFunc(list, func(a, b group) int {
		return cmp.Or(compareTones(a.Tone, b.Tone), b.N-a.N)
	})
	return list
}

// newBar returns the number of gateways of each tone, the best first.
func newBar(gateways []gateway) []segment {
	count := map[tone]int{}
	for _, g := range gateways {
		count[g.State.Tone]++
	}
	var list []segment
	x := 0.0
	for _, t := range slices.Backward(tones) {
		if n := count[t]; n > 0 {
			w := 100 * float64(n) / float64(len(gateways))
			list = append(list, segment{t, x, w, n})
			x += w
		}
	}
	return list
}

// sortGateways sorts gateways by a column and then by name. Without a known column, those that need attention come first.
func sortGateways(list []gateway, column string, reverse bool) {
	compare := func(a, b gateway) int {
		switch column {
		case "name":
			return 0
		case "commit":
			return strings.Compare(a.Commit, b.Commit)
		case "profile":
			return compareNatural(a.Profile, b.Profile)
		case "reason":
			return strings.Compare(string(a.Reason), string(b.Reason))
		case "synced":
			return b.LastSync.at.Compare(a.LastSync.at)
		}
		return compareTones(a.State.Tone, b.State.Tone)
	}
	slices.SortStableFunc(list, func(a, b gateway) int {
		c := cmp.Or(compare(a, b), compareNatural(a.Name, b.Name))
		if reverse {
			return -c
		}
		return c
	})
}
