package ui

import (
	"cmp"
	"errors"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/syntax"
	"stoker.io/stoker/internal/status"
)

// fleetPage is the page of a fleet: the gateways of one GatewaySync.
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
	Ref    string
	Commit commit
	At     moment
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
	p := fleetPage{frame: s.newFrame(f.site, f.Name, crumb{"Fleets", "/"}), Fleet: f, Search: clean(query.Get("q"), 100), Sort: clean(query.Get("sort"), 10),
		Dir: clean(query.Get("dir"), 4), State: clean(query.Get("state"), 20), Reason: clean(query.Get("reason"), 64), Stage: clean(query.Get("stage"), 63)}
	p.Notices = f.site.notices(l)
	p.follow(f.live(), f.site.silent(l).link())
	p.Command = "stoker status " + f.Name + f.flags
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
		p.History = append(p.History, pastCommit{ref, f.newCommit(h.Commit), moment{h.At.Time, p.Now.now}})
	}
	p.Conditions = s.conditions(f, p.Now)
	p.Rollout = s.newRollout(f, p.Now, func(stage string) string { return p.link(map[string]string{"stage": stage, "state": "", "reason": ""}) })
	s.writePage(w, http.StatusOK, "fleet", p)
}

// conditions returns Stoker's conditions that report a problem, without those that say what the summary says.
func (s *Server) conditions(f fleet, now moment) (list []condition) {
	for _, row := range status.Conditions {
		bad := metav1.ConditionFalse
		switch row.Type {
		case v1alpha1.ConditionReady, v1alpha1.ConditionAllGatewaysSynced, v1alpha1.ConditionReconciling:
			continue
		case v1alpha1.ConditionStalled:
			bad = metav1.ConditionTrue
		}
		c := meta.FindStatusCondition(f.gs.Status.Conditions, row.Type)
		if c != nil && c.Status == bad && (c.Type != v1alpha1.ConditionStalled || f.Advice.Reason != c.Reason) {
			list = append(list, condition{clean(c.Type, 64), clean(c.Message, maxMessage), s.advisor.advice(v1alpha1.Reason(c.Reason)), moment{c.LastTransitionTime.Time, now.now}})
		}
	}
	return list
}

// paginate reduces the rows to those of one page. wanted is the number of a page, from 1; a number that does not exist gives the nearest page,
// and no number the first.
func (p *fleetPage) paginate(wanted string) {
	n := (len(p.Rows) + rowsPerPage - 1) / rowsPerPage
	if n < 2 {
		return
	}
	page, err := strconv.Atoi(wanted)
	if errors.Is(err, strconv.ErrSyntax) {
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
