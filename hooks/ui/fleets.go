package ui

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/syntax"
	"stoker.io/stoker/hooks/leads"
	"stoker.io/stoker/internal/kube"
)

// notices returns a notice for each kind of object that cannot be read.
func (s *Server) notices(l leads.Leads) (list []notice) {
	if since, err := s.watcher.failure(); err != nil {
		text := "The page shows what was seen last, " + (moment{since, s.Clients.Now()}).Ago() + ", and does not know what the gateways run."
		if !s.watcher.fleets.HasSynced() {
			text = "So the page shows no fleet."
		}
		list = append(list, s.readNotice(err, "GatewaySyncs", "get, list and watch gatewaysyncs.stoker.io", text))
	}
	if l.Err != nil && !errors.Is(l.Err, context.Canceled) {
		list = append(list, s.readNotice(l.Err, "SyncTargets", "list synctargets.stoker.io",
			"So it takes up to "+v1alpha1.ConfirmedFor.String()+" until the page shows that no agent leads."))
	}
	return list
}

// readNotice returns a notice about objects that could not be read: which right is missing, or why the API server does not
// answer. what names the objects, and text is the consequence.
func (s *Server) readNotice(err error, what, right, text string) notice {
	switch {
	case apierrors.IsForbidden(err):
		scope := "in namespace " + s.Namespace
		if s.Namespace == "" {
			scope = "in all namespaces (or choose one with --namespace)"
		}
		return notice{toneHeld, "You may not read " + what, text + " Your user lacks the right to " + right + " " + scope +
			". The ClusterRole stoker-view grants what this page reads of Stoker; pods and pods/proxy need a role of your own."}
	case apierrors.IsUnauthorized(err):
		return notice{toneFail, "The API server rejects your credentials", text + " Log in again, then restart stoker ui."}
	case apierrors.IsNotFound(err):
		return notice{toneFail, "The cluster does not serve " + what, text + " Install the chart, or its custom resource definitions."}
	}
	return notice{toneFail, what + " cannot be read", text + " " + clean(err.Error(), 400)}
}

// lost returns why what the page shows may be wrong, because the API server does not answer; "" if it does. A right that the user lacks is
// another matter: then the age of a status decides.
func (s *Server) lost(l leads.Leads) string {
	_, err := s.watcher.failure()
	if err == nil && l.Err != nil && !errors.Is(l.Err, context.Canceled) && kube.Passing(l.Err) {
		err = l.Err
	}
	if err == nil {
		return ""
	}
	return "GatewaySyncs cannot be read, so what the gateways run is not known"
}

// fleets returns all fleets, those that need attention first.
func (s *Server) fleets(l leads.Leads) []fleet {
	now := s.Clients.Now()
	var list []fleet
	lost := s.lost(l)
	for _, gs := range s.watcher.fleets.List() {
		list = append(list, s.newFleet(gs, l.Target(gs), lost, now))
	}
	for _, u := range s.watcher.fleets.Undecodable() {
		list = append(list, fleet{Namespace: u.Namespace, Name: u.Name, Path: PathOf(u.Namespace, u.Name), State: unreadable,
			Unreadable: clean(u.Error(), maxMessage)})
	}
	slices.SortFunc(list, func(a, b fleet) int {
		return cmp.Or(b.State.rank(b.reason)-a.State.rank(a.reason), compareNatural(a.Namespace, b.Namespace), compareNatural(a.Name, b.Name))
	})
	return list
}

type fleetsPage struct {
	frame
	Loading                         bool
	Unavailable                     bool // no fleet was ever read
	Fleets                          []fleet
	More                            int // fleets that the page does not list
	Total, Behind, Waiting, Unknown int
	NeedAttention                   int
	Since                           moment
	Causes                          []cause
	MoreCauses                      int // causes that the page does not list
	Search                          string
}

// cause is a reason for which gateways are behind, with the fleets that have the most of them.
type cause struct {
	group
	Fleets []fleetShare
	More   int // fleets that the page does not list
}

// fleetShare is the number of gateways of one fleet that are behind for a reason.
type fleetShare struct {
	Name, Path string
	N          int
}

// Bounds of what the first page lists of causes.
const (
	maxCauses = 12
	maxShares = 5
)

// newCauses merges the groups of all fleets by reason, the most urgent first.
func newCauses(list []fleet) (all []cause) {
	for _, f := range list {
		for _, g := range f.Groups {
			i := slices.IndexFunc(all, func(c cause) bool { return c.Advice.Reason == g.Advice.Reason && c.Tone == g.Tone })
			if i < 0 {
				i = len(all)
				all = append(all, cause{group: group{Advice: g.Advice, Rank: g.Rank, Tone: g.Tone, First: g.First}})
			}
			c := &all[i]
			c.N += g.N
			c.Fleets = append(c.Fleets, fleetShare{f.Name, g.Path, g.N})
		}
	}
	for i := range all {
		c := &all[i]
		slices.SortStableFunc(c.Fleets, func(a, b fleetShare) int { return b.N - a.N })
		c.More = max(len(c.Fleets)-maxShares, 0)
		c.Fleets = c.Fleets[:min(len(c.Fleets), maxShares)]
	}
	slices.SortStableFunc(all, func(a, b cause) int { return compareGroups(a.group, b.group) })
	return all
}

func (s *Server) serveFleets(w http.ResponseWriter, r *http.Request) {
	l := s.watcher.readLeads(r.Context())
	p := fleetsPage{frame: s.newFrame("Fleets"), Search: clean(r.URL.Query().Get("q"), 100)}
	p.follow("/live", s.lost(l))
	p.Notices = s.notices(l)
	p.Unavailable = !s.watcher.fleets.HasSynced() && len(p.Notices) > 0
	p.Loading = !s.watcher.fleets.HasSynced() && !p.Unavailable
	p.add(s.fleets(l))
	s.writePage(w, http.StatusOK, "fleets", p)
}

// add adds the summary of all fleets, and lists those that the search finds.
func (p *fleetsPage) add(all []fleet) {
	causes := newCauses(all)
	p.Causes = causes[:min(len(causes), maxCauses)]
	p.MoreCauses = len(causes) - len(p.Causes)
	for _, f := range all {
		p.Total += f.Total
		p.Behind += f.Behind
		p.Waiting += f.Waiting
		p.Unknown += f.Unknown
		if f.Behind > 0 || f.State.Tone == toneFail || f.State.Tone == toneUnknown {
			p.NeedAttention++
		}
		if f.Since.Known() && (!p.Since.Known() || f.Since.at.Before(p.Since.at)) {
			p.Since = f.Since
		}
		if !strings.Contains(f.Namespace+"/"+f.Name, strings.ToLower(p.Search)) {
			continue
		}
		if len(p.Fleets) == maxFleets {
			p.More++
			continue
		}
		p.Fleets = append(p.Fleets, f)
	}
}

// requestedFleet returns the fleet of a request. If there is none, it writes an error page and returns false.
func (s *Server) requestedFleet(w http.ResponseWriter, r *http.Request) (fleet, leads.Leads, bool) {
	namespace, name := r.PathValue("namespace"), r.PathValue("name")
	l := s.watcher.readLeads(r.Context())
	gs, err := s.watcher.fleets.Get(namespace, name)
	_, undecodable := errors.AsType[*kube.UndecodableError](err)
	switch {
	case err == nil:
		return s.newFleet(gs, l.Target(gs), s.lost(l), s.Clients.Now()), l, true
	case undecodable:
		s.writeProblem(w, http.StatusOK, "This fleet cannot be read", clean(err.Error(), maxMessage))
	case !s.watcher.fleets.HasSynced():
		text := "The list of fleets is not complete yet. Load this page again."
		if _, err := s.watcher.failure(); err != nil {
			n := s.readNotice(err, "GatewaySyncs", "get, list and watch gatewaysyncs.stoker.io", "")
			text = n.Title + "." + n.Text
		}
		s.writeProblem(w, http.StatusServiceUnavailable, "Not there yet", text)
	default:
		s.writeProblem(w, http.StatusNotFound, "There is no such fleet",
			"No GatewaySync "+clean(name, maxWord)+" was found in namespace "+clean(namespace, maxWord)+". It may have been deleted.")
	}
	return fleet{}, l, false
}

type fleetPage struct {
	frame
	Fleet      fleet
	Rows       []gateway
	Range      string // the rows that this page shows, such as "1 to 100 of 250"; "" for all
	Pages      []pageLink
	Filters    []filter
	Columns    []column
	Search     string
	Sort, Dir  string
	State      string
	Reason     string
	Stage      string
	History    []pastCommit
	Conditions []condition
	Rollout    *rollout
	Command    string
}

// filter is a link to the list of some of the gateways.
type filter struct {
	Text, Path string
	Tone       tone
	N          int
	On         bool
}

// rowsPerPage bounds the gateways on a page. A list of a thousand keeps browsers and screen readers busy for seconds.
const rowsPerPage = 100

// pageLink leads to a page of the list of gateways.
type pageLink struct {
	Text, Path string
	On         bool
}

// column is the head of a column. Its link sorts by the column.
type column struct {
	Text, Path, Class string
	Sort              string // ascending, descending or none
}

// pastCommit is a commit that ran on every gateway.
type pastCommit struct {
	Ref, Commit string
	At          moment
}

// condition is a condition of a GatewaySync that reports a problem.
type condition struct {
	Type, Message string
	Advice        Advice
	Since         moment
}

func (s *Server) serveFleet(w http.ResponseWriter, r *http.Request) {
	f, l, ok := s.requestedFleet(w, r)
	if !ok {
		return
	}
	query := r.URL.Query()
	p := fleetPage{frame: s.newFrame(f.Name, crumb{"Fleets", "/"}), Fleet: f, Search: clean(query.Get("q"), 100), Sort: clean(query.Get("sort"), 10),
		Dir: clean(query.Get("dir"), 4), State: clean(query.Get("state"), 20), Reason: clean(query.Get("reason"), 64), Stage: clean(query.Get("stage"), 63)}
	p.Notices = s.notices(l)
	p.follow("/live?"+url.Values{"fleet": {f.Namespace + "/" + f.Name}}.Encode(), s.lost(l))
	p.Command = "stoker status " + f.Name + " --namespace " + f.Namespace
	p.addFilters()
	p.addColumns()
	for _, g := range f.Gateways {
		if p.matches(g) {
			p.Rows = append(p.Rows, g)
		}
	}
	sortGateways(p.Rows, p.Sort, p.Dir == "desc")
	p.paginate(query.Get("page"))
	for _, h := range f.gs.Status.History {
		ref := clean(h.Ref, maxWord)
		if syntax.IsCommit(h.Ref) {
			ref = syntax.ShortCommit(h.Ref)
		}
		p.History = append(p.History, pastCommit{ref, clean(syntax.ShortCommit(h.Commit), 7), moment{h.At.Time, p.Now.now}})
	}
	p.Conditions = s.conditions(f, p.Now)
	p.Rollout = s.newRollout(f, p.Now, func(stage string) string { return p.link(map[string]string{"stage": stage, "state": "", "reason": ""}) })
	s.writePage(w, http.StatusOK, "fleet", p)
}

// conditions returns the conditions that report a problem, without those that say what the summary says.
func (s *Server) conditions(f fleet, now moment) (list []condition) {
	for _, c := range f.gs.Status.Conditions {
		bad := c.Status != metav1.ConditionTrue
		if c.Type == v1alpha1.ConditionStalled {
			bad = c.Status == metav1.ConditionTrue
		}
		switch c.Type {
		case v1alpha1.ConditionReady, v1alpha1.ConditionAllGatewaysSynced, v1alpha1.ConditionReconciling:
			continue
		}
		if bad && (c.Type != v1alpha1.ConditionStalled || f.Advice.Reason != c.Reason) {
			list = append(list, condition{clean(c.Type, 64), clean(c.Message, maxMessage), s.advisor.advice(v1alpha1.Reason(c.Reason)), moment{c.LastTransitionTime.Time, now.now}})
		}
	}
	return list
}

// paginate reduces the rows to those of one page. wanted is its number, from 1. If there are not as many pages, it takes the
// nearest one.
func (p *fleetPage) paginate(wanted string) {
	n := (len(p.Rows) + rowsPerPage - 1) / rowsPerPage
	if n < 2 {
		return
	}
	page, err := strconv.Atoi(wanted)
	if err != nil {
		page = 1
	}
	page = min(max(page, 1), n)
	for i := range n {
		p.Pages = append(p.Pages, pageLink{number(i + 1), p.link(map[string]string{"page": strconv.Itoa(i + 1)}), i+1 == page})
	}
	first, last := (page-1)*rowsPerPage, min(page*rowsPerPage, len(p.Rows))
	p.Range = number(first+1) + " to " + number(last) + " of " + number(len(p.Rows))
	p.Rows = p.Rows[first:last]
}

// link returns the address of the list with some values of the query replaced. It leads to the first page, unless "page" is set.
func (p *fleetPage) link(set map[string]string) string {
	values := url.Values{}
	for name, value := range map[string]string{"state": p.State, "reason": p.Reason, "stage": p.Stage, "q": p.Search, "sort": p.Sort, "dir": p.Dir, "page": ""} {
		if other, ok := set[name]; ok {
			value = other
		}
		if value != "" {
			values.Set(name, value)
		}
	}
	if len(values) == 0 {
		return p.Fleet.Path + "#gateways"
	}
	return p.Fleet.Path + "?" + values.Encode() + "#gateways"
}

func (p *fleetPage) addFilters() {
	count := map[chip]int{}
	behind, drift, proposals := 0, 0, 0
	for _, g := range p.Fleet.Gateways {
		count[g.State]++
		if g.Behind {
			behind++
		}
		if g.Drift > 0 {
			drift++
		}
		if g.Proposal != "" {
			proposals++
		}
	}
	add := func(text, value string, t tone, n int) {
		if n > 0 || value == "" {
			p.Filters = append(p.Filters, filter{text, p.link(map[string]string{"state": value, "reason": "", "stage": ""}), t, n, p.State == value && p.Reason == "" && p.Stage == ""})
		}
	}
	add("All", "", "", len(p.Fleet.Gateways))
	add("Behind", "behind", "", behind)
	states := slices.SortedFunc(maps.Keys(count), func(a, b chip) int {
		return cmp.Or(slices.Index(tones, a.Tone)-slices.Index(tones, b.Tone), strings.Compare(a.Word, b.Word))
	})
	for _, c := range states {
		if c.Word != "Behind" {
			add(c.Word, c.Word, c.Tone, count[c])
		}
	}
	add("Changed on the gateway", "drift", "", drift)
	add("Proposals", "proposals", "", proposals)
	if p.Reason != "" {
		p.Filters = append(p.Filters, filter{p.Reason, p.link(nil), "", 0, true})
	}
	if p.Stage != "" {
		p.Filters = append(p.Filters, filter{"Stage " + p.Stage, p.link(nil), "", 0, true})
	}
}

// matches reports whether a gateway passes the filters of the query.
func (p *fleetPage) matches(g gateway) bool {
	switch p.State {
	case "", g.State.Word:
	case "behind":
		if !g.Behind {
			return false
		}
	case "drift":
		if g.Drift == 0 {
			return false
		}
	case "proposals":
		if g.Proposal == "" {
			return false
		}
	default:
		return false
	}
	if p.Stage != "" && p.Stage != stageOf(p.Fleet.gs, g.row.Name, g.row.PodName) {
		return false
	}
	if p.Reason != "" && (string(g.Reason) != p.Reason || !g.Unfinished()) {
		return false
	}
	return p.Search == "" || strings.Contains(strings.ToLower(g.Name+" "+g.Pod), strings.ToLower(p.Search))
}

func (p *fleetPage) addColumns() {
	for _, c := range []struct{ text, sort, class string }{
		{"Gateway", "name", ""}, {"State", "state", ""}, {"Why", "reason", ""}, {"Commit", "commit", "wide"}, {"Profile", "profile", "wide"}, {"Last sync", "synced", "wide"},
	} {
		order, dir := "none", ""
		if cmp.Or(p.Sort, "state") == c.sort {
			order, dir = "ascending", "desc"
			if p.Dir == "desc" {
				order, dir = "descending", ""
			}
		}
		p.Columns = append(p.Columns, column{c.text, p.link(map[string]string{"sort": c.sort, "dir": dir}), c.class, order})
	}
}
