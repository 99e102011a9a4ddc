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
	"stoker.io/stoker/hooks/sites"
	"stoker.io/stoker/internal/request"
	"stoker.io/stoker/internal/status"
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

// tones has all tones, worst first.
var tones = []tone{toneFail, toneUnknown, toneHeld, toneBusy, toneOff, toneGood}

// The ranks of states beside those that status.Weight gives to reasons.
const (
	rankFailed  = 1000
	rankUnknown = 999
	rankGood    = -1
)

// rank returns how urgent a state is. Reasons have the order in which the status chooses the one that explains a fleet, so that a state and
// the message beside it never speak of different causes.
func (c chip) rank(reason v1alpha1.Reason) int {
	switch {
	case c == failed || c == unreadable:
		return rankFailed
	case c.Tone == toneUnknown:
		return rankUnknown
	case c.Tone == toneGood:
		return rankGood
	}
	return status.Weight(reason)
}

// States that have no reason of their own.
var (
	failed      = chip{toneFail, "Failed"}
	unreadable  = chip{toneFail, "Unreadable"}
	unconfirmed = chip{toneUnknown, "Not confirmed"}
	waiting     = chip{toneBusy, "Waiting"}
)

// chip is a state with its tone.
type chip struct {
	Tone tone
	Word string
}

// fleet is a GatewaySync as pages show it.
type fleet struct {
	Site                  string // name of its site; "" if there is only one
	Namespace, Name, Path string
	State                 chip
	Ref, Commit, Origin   string
	Repo                  string
	Total, Synced         int
	Behind                int // gateways that should run another commit now
	Waiting               int // gateways that follow by themselves: a rollout or a maintenance window makes them wait
	Unknown               int // gateways whose commit is not known now
	Bar                   []segment
	Advice                Advice
	Message               string
	Since                 moment // when gateways began to be behind or unknown
	Confirmed             moment
	Groups                []group
	Gateways              []gateway
	Lost                  string // why the API server does not answer; "" if it does
	Unreadable            string // why the GatewaySync cannot be decoded; then only its names, its path, its state and its site are set

	site   *site
	flags  string // of the commands about this fleet
	gs     *v1alpha1.GatewaySync
	reason v1alpha1.Reason
}

// label returns the name of the fleet among those of all sites.
func (f fleet) label() string {
	if f.Site == "" {
		return f.Name
	}
	return f.Site + "/" + f.Name
}

// live returns the address of the events of the pages of the fleet.
func (f fleet) live() string {
	return "/live?" + url.Values{"fleet": {f.site.key(f.Namespace, f.Name)}}.Encode()
}

// segment is a part of the bar of gateways: those with the same tone.
type segment struct {
	Tone tone
	X, W float64 // position and width, in percent
}

// group is the gateways of a fleet that are behind, wait or are unknown for one reason.
type group struct {
	Advice Advice
	Rank   int
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
	Waiting      bool // it follows by itself
	Unknown      bool // its commit is not known now
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

// PathOf returns the path of the page of a GatewaySync, without the prefix that it has if there are several sites.
func PathOf(namespace, name string) string {
	return "/fleets/" + url.PathEscape(namespace) + "/" + url.PathEscape(name)
}

// Unfinished reports whether the gateway does not run the desired commit, or whether that is not known.
func (g gateway) Unfinished() bool { return g.Behind || g.Waiting || g.Unknown }

// newFleet returns a GatewaySync of a site as pages show it. target is its SyncTarget, or nil if it is unknown. lost is why the API server does
// not answer, or "" if it does. With lost, the page shows what it read last, and counts nothing as known.
func (s *Server) newFleet(x *site, gs *v1alpha1.GatewaySync, target *v1alpha1.SyncTarget, lost string, now time.Time) fleet {
	v := request.Read(gs, "", target, now)
	f := fleet{
		Namespace: gs.Namespace, Name: gs.Name, Path: x.path + PathOf(gs.Namespace, gs.Name), Repo: address(gs.Spec.Git.Repo),
		Ref: clean(v.Ref, maxWord), Commit: syntax.ShortCommit(v.Commit), Origin: clean(request.Origin(gs, v.Ref), maxWord),
		Total: v.Gateways.Total, Synced: v.Gateways.Synced, Message: clean(v.Message, maxMessage), gs: gs, reason: v.Reason,
		site: x, Site: x.label(), Lost: lost,
	}
	f.flags = sites.Flags(gs.Namespace, "")
	if f.Site != "" {
		f.flags = sites.Flags(gs.Namespace, x.Context)
	}
	f.Advice = s.advisor.adviceOf(f, v.Reason)
	if syntax.IsCommit(v.Ref) {
		f.Ref = syntax.ShortCommit(v.Ref)
	}
	f.State = fleetState(v)
	noLead := v.Reason == v1alpha1.ReasonAgentsAway
	if lost != "" {
		f.State, f.Message, f.Advice, f.Synced = unconfirmed, lost, Advice{}, 0
	}
	if t := gs.Status.ConfirmedAt; t != nil {
		f.Confirmed = moment{t.Time, now}
	}
	behind := map[string]bool{}
	for _, b := range v.Behind {
		behind[b.Name] = true
	}
	for _, row := range gs.Status.DiscoveredGateways {
		g := s.newGateway(f, row, behind[row.Name], now)
		if g.Waiting {
			f.Waiting++
		}
		f.Gateways = append(f.Gateways, g)
	}
	if f.Behind = max(f.Total-f.Synced-f.Waiting, 0); f.State.Tone == toneUnknown {
		f.Behind, f.Unknown = 0, f.Total
	}
	f.Since = behindSince(f, v.Since, now)
	f.Bar = newBar(f.Gateways)
	f.Groups = s.newGroups(f, noLead)
	return f
}

// behindSince returns when gateways began to be behind or unknown. silent is when an agent last led, or zero. If the gateways were behind
// before that time, the earlier time counts.
func behindSince(f fleet, silent, now time.Time) moment {
	c := meta.FindStatusCondition(f.gs.Status.Conditions, v1alpha1.ConditionAllGatewaysSynced)
	switch {
	case f.Behind == 0 && f.Unknown == 0:
		return moment{}
	case c == nil || c.Status == metav1.ConditionTrue || !silent.IsZero() && silent.Before(c.LastTransitionTime.Time):
		return moment{silent, now}
	}
	return moment{c.LastTransitionTime.Time, now}
}

func fleetState(v request.Verdict) chip {
	switch {
	case v.Reason == v1alpha1.ReasonAgentsAway:
		return unconfirmed
	case v.Phase == request.Succeeded:
		return chip{toneGood, "Up to date"}
	case v.Phase == request.Failed:
		return failed
	case status.WaitsAsPlanned(v.Reason, v.Rollout):
		return waiting
	case v.Phase == request.Held:
		return chip{toneHeld, "Held"}
	case v.Phase == request.Paused:
		return chip{toneOff, "Paused"}
	case v.Reason == v1alpha1.ReasonNoGateways:
		return chip{toneOff, "No gateways"}
	}
	switch v.Reason.Class() { // of the gateway that the message is about
	case v1alpha1.ClassRetry, v1alpha1.ClassStalled, v1alpha1.ClassNotInjected:
		return chip{toneFail, "Error"}
	case v1alpha1.ClassHeld:
		return chip{toneHeld, "Held"}
	case v1alpha1.ClassDone, v1alpha1.ClassWorking:
	}
	return chip{toneBusy, "Updating"}
}

// gatewayState returns the state of a gateway of a fleet that is known. Its tone is never good if the gateway is behind.
func gatewayState(row v1alpha1.DiscoveredGateway, behind, waits bool) chip {
	switch {
	case waits:
		return waiting
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

func (s *Server) newGateway(f fleet, row v1alpha1.DiscoveredGateway, behind bool, now time.Time) gateway {
	waits := behind && status.WaitsAsPlanned(row.Reason, f.gs.Status.Rollout)
	g := gateway{
		Name: clean(row.Name, maxWord), Path: f.Path + "/gateway?" + url.Values{"name": {row.Name}}.Encode(), Behind: behind && !waits, Waiting: waits,
		State: gatewayState(row, behind, waits), Reason: row.Reason, Message: clean(row.Message, maxMessage), Commit: clean(syntax.ShortCommit(row.SyncedCommit), 7),
		Ref: clean(row.SyncedRef, maxWord), Profile: clean(row.Profile, 63), Pod: clean(row.PodName, maxWord), Drift: int(row.Drift),
		Proposal: clean(string(row.ProposalState), 16), Link: newLink(row.Proposal), Duration: clean(row.LastSyncDuration, 32),
		FilesChanged: int(row.FilesChanged), Scan: clean(row.LastScanResult, 512), Agent: clean(row.AgentVersion, 64), row: row,
	}
	if g.Reason == "" || string(g.Reason) == string(row.SyncStatus) && behind {
		g.Reason = v1alpha1.ReasonProgressing
	}
	if f.State.Tone == toneUnknown {
		g.State, g.Reason, g.Behind, g.Waiting, g.Unknown = unconfirmed, f.reason, false, false, true
		if f.Advice.Reason == "" { // not for the reason that was seen last
			g.Reason = ""
		}
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

// newGroups returns the reasons for which gateways do not run the commit, the most urgent first. noLead means that no agent leads: the message of
// the fleet then replaces that of a single group.
func (s *Server) newGroups(f fleet, noLead bool) []group {
	var list []group
	for _, g := range f.Gateways {
		if !g.Unfinished() || g.Reason == "" {
			continue
		}
		i := slices.IndexFunc(list, func(o group) bool { return o.Advice.Reason == g.Word && o.Tone == g.State.Tone })
		if i < 0 {
			i = len(list)
			path := f.Path + "?" + url.Values{"reason": {string(g.Reason)}}.Encode() + "#gateways"
			list = append(list, group{s.advisor.advice(g.Reason), g.State.rank(g.Reason), g.State.Tone, 0, path, clean(g.Message, maxCell)})
		}
		list[i].N++
	}
	if noLead && len(list) == 1 {
		list[0].First = clean(f.Message, maxCell)
	}
	slices.SortStableFunc(list, compareGroups)
	return list
}

// compareGroups orders groups, the most urgent first.
func compareGroups(a, b group) int { return cmp.Or(b.Rank-a.Rank, b.N-a.N) }

// newBar returns the share of the gateways of each tone, the best first.
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
			list = append(list, segment{t, x, w})
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
		return b.State.rank(b.Reason) - a.State.rank(a.Reason)
	}
	slices.SortStableFunc(list, func(a, b gateway) int {
		c := cmp.Or(compare(a, b), compareNatural(a.Name, b.Name))
		if reverse {
			return -c
		}
		return c
	})
}
