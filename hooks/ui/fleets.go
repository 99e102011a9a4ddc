package ui

import (
	"cmp"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"

	"stoker.io/stoker/hooks/sites"
	"stoker.io/stoker/internal/kube"
)

// fleets returns the fleets of a site. quiet is its silence, with a nil err if the site answers.
func (s *Server) fleets(x *site, l sites.Leads, quiet silence) (list []fleet) {
	if x.fleets == nil {
		return nil
	}
	now := x.Clients.Now()
	for _, gs := range x.fleets.List() {
		list = append(list, s.newFleet(x, gs, l.Target(gs), quiet.String(), now))
	}
	for _, u := range x.fleets.Undecodable() {
		list = append(list, fleet{Site: x.label(), Namespace: u.Namespace, Name: u.Name, Path: x.path + PathOf(u.Namespace, u.Name), State: unreadable,
			Unreadable: clean(u.Error(), maxMessage), site: x})
	}
	return list
}

// fleetsPage is the first page: all fleets, or those of one site.
type fleetsPage struct {
	frame
	Loading                         bool      // the first list of a site is not complete
	Headline                        string    // if a site does not answer
	Silent                          []string  // why sites do not answer, at most maxSilent, with their names if there are several sites
	MoreSilent                      int       // sites that Silent does not name
	Others                          string    // what is known of the other sites
	Lost                            int       // gateways of sites that do not answer
	Sites                           []siteRow // if there are several
	Fleets                          []fleet
	More                            int // fleets that the page does not list
	Total, Behind, Waiting, Unknown int
	NeedAttention                   int
	Since                           moment
	Causes                          []cause
	MoreCauses                      int // causes that the page does not list
	Configs                         []configRow
	ConfigsMore, ConfigsFailing     int
	ConfigNote                      string
	Search, Site                    string
}

// siteRow is a site as the first page shows it.
type siteRow struct {
	Name, Path             string
	State                  chip
	Fleets                 int
	Total, Synced, Unknown int
	Bar                    []segment
	Message                string

	rank int
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

// Bounds of what the first page lists.
const (
	maxCauses = 12
	maxShares = 5
	maxSilent = 3 // sites that the headline names
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
			c.Fleets = append(c.Fleets, fleetShare{f.label(), g.Path, g.N})
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

// serveFleets serves the page of all fleets, or of those of one site.
func (s *Server) serveFleets(w http.ResponseWriter, r *http.Request) {
	list := s.sites
	name := r.URL.Query().Get("site")
	if name != "" && len(s.sites) > 1 {
		if list = slices.DeleteFunc(slices.Clone(s.sites), func(x *site) bool { return x.Context != name }); len(list) == 0 {
			s.writeProblem(w, http.StatusNotFound, "There is no such site", "This page was started for other contexts of the kubeconfig.")
			return
		}
	}
	read := make([]sites.Leads, len(list))
	var all sync.WaitGroup
	for i, x := range list {
		all.Go(func() { read[i] = x.readLeads(r.Context()) })
	}
	all.Wait()
	p := fleetsPage{Search: clean(r.URL.Query().Get("q"), 100)}
	if len(list) == 1 {
		p.frame = s.newFrame(list[0], "Fleets")
		if list[0].path != "" {
			p.Title, p.Site = p.Context, p.Context
			p.Trail = []crumb{{"Fleets", "/"}}
		}
	} else {
		p.frame = s.newFrame(nil, "Fleets")
	}
	p.addSites(s, list, read)
	s.writePage(w, http.StatusOK, "fleets", p)
}

// addSites adds what is known of sites and their fleets, and what is not.
func (p *fleetsPage) addSites(s *Server, list []*site, read []sites.Leads) {
	var fleets []fleet
	var configs []configRow
	var silent []silence
	loading := 0
	for i, x := range list {
		quiet := x.silent(read[i])
		own, ownConfigs := s.fleets(x, read[i], quiet), s.configs(x, quiet)
		if quiet.err != nil {
			silent = append(silent, quiet)
		} else if !x.fleets.HasSynced() {
			loading++
		}
		if len(list) == 1 {
			p.Notices = x.notices(read[i])
		}
		p.ConfigNote = cmp.Or(p.ConfigNote, x.configNote())
		p.Sites = append(p.Sites, newSiteRow(x, own, ownConfigs, quiet, x.notices(read[i])))
		fleets, configs = append(fleets, own...), append(configs, ownConfigs...)
	}
	slices.SortStableFunc(p.Sites, func(a, b siteRow) int { return cmp.Or(b.rank-a.rank, compareNatural(a.Name, b.Name)) })
	p.Loading = loading > 0
	p.addSilence(silent, len(list) > 1)
	if len(list) == 1 {
		p.Sites = nil
	}
	slices.SortFunc(fleets, func(a, b fleet) int {
		return cmp.Or(b.State.rank(b.reason)-a.State.rank(a.reason), compareNatural(a.Namespace, b.Namespace), compareNatural(a.Name, b.Name), compareNatural(a.Site, b.Site))
	})
	p.addConfigs(configs)
	p.add(fleets)
	if len(silent) < len(list) && loading == 0 {
		p.addOthers()
	}
}

// addOthers adds to the names of the sites that do not answer what is known of the others.
func (p *fleetsPage) addOthers() {
	unknown := p.Unknown - p.Lost
	switch total := p.Total - p.Lost; {
	case p.Headline == "" || total == 0:
	case p.Behind > 0:
		p.Others = number(p.Behind) + " of " + counted(total, "gateway") + " of the other sites are behind."
	case unknown > 0:
		p.Others = "What " + number(unknown) + " of " + counted(total, "gateway") + " of the other sites run is not known, too."
	case p.Waiting > 0:
		p.Others = number(p.Waiting) + " of " + counted(total, "gateway") + " of the other sites wait, as planned."
	default:
		p.Others = "The " + counted(total, "gateway") + " of the other sites are up to date."
	}
}

// addSilence makes the headline say which sites do not answer: the colors and numbers of the page must not seem to be true of them.
func (p *fleetsPage) addSilence(silent []silence, several bool) {
	link := ""
	for i, quiet := range silent {
		switch i {
		case 0:
			link = quiet.link()
		case 1:
			link = "sites do not answer"
		}
		if len(p.Silent) < maxSilent {
			text := sentence(quiet.String())
			if several {
				text = quiet.name + ": " + quiet.String() + "."
			}
			p.Silent = append(p.Silent, text)
		} else {
			p.MoreSilent++
		}
	}
	p.follow("/live", link)
	var names []string
	for _, quiet := range silent {
		names = append(names, quiet.name)
	}
	switch {
	case len(silent) == 0:
	case !several && silent[0].since.IsZero():
		p.Headline = "The fleets are not known"
	case !several:
		p.Headline = "What the gateways run is not known"
	case len(silent) == len(p.Sites):
		p.Headline = "No site answers"
	case len(silent) > maxSilent:
		p.Headline = "What the gateways of several sites run is not known"
	default:
		last := len(names) - 1
		list := strings.TrimPrefix(strings.Join(names[:last], ", ")+" and "+names[last], " and ")
		p.Headline = "What the gateways of " + list + " run is not known"
	}
}

// newSiteRow returns a site as the first page shows it: its state is that of its worst fleet or ConfigSync, unless the site does not answer or its
// first list is not complete.
func newSiteRow(x *site, list []fleet, configs []configRow, quiet silence, notices []notice) siteRow {
	r := siteRow{Name: clean(x.Context, maxWord), Path: sitePath(x), Fleets: len(list), State: chip{toneOff, "No fleets"}, rank: rankGood}
	var gateways []gateway
	for i, f := range list {
		r.Total, r.Synced, r.Unknown = r.Total+f.Total, r.Synced+f.Synced, r.Unknown+f.Unknown
		gateways = append(gateways, f.Gateways...)
		if rank := f.State.rank(f.reason); i == 0 || rank > r.rank {
			r.State, r.rank = f.State, rank
		}
	}
	r.Bar = newBar(gateways)
	failing := 0
	for _, c := range configs {
		if !c.failing() {
			continue
		}
		failing++
		if c.rank > r.rank {
			r.State, r.rank = c.State, c.rank
		}
	}
	switch {
	case quiet.err != nil:
		r.State, r.rank = quiet.chip(), rankFailed+1
		r.Message = sentence(quiet.String()) + " " + clean(sites.Cause(quiet.err).Error(), maxCell)
	case !x.fleets.HasSynced():
		r.State = chip{toneBusy, "Reading"}
	case len(notices) > 0:
		r.Message = notices[0].Title + "."
	case failing > 0:
		r.Message = counted(failing, "ConfigSync") + map[bool]string{true: " needs", false: " need"}[failing == 1] + " attention."
	}
	return r
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
		if f.Lost != "" {
			p.Lost += f.Total
		}
		if f.Behind > 0 || f.State.Tone == toneFail || f.State.Tone == toneUnknown {
			p.NeedAttention++
		}
		if f.Since.Known() && (!p.Since.Known() || f.Since.at.Before(p.Since.at)) {
			p.Since = f.Since
		}
		if !strings.Contains(strings.ToLower(f.Site)+"/"+f.Namespace+"/"+f.Name, strings.ToLower(p.Search)) {
			continue
		}
		if len(p.Fleets) == maxFleets {
			p.More++
			continue
		}
		p.Fleets = append(p.Fleets, f)
	}
}

// siteOf returns the site of a request, or nil for an unknown one.
func (s *Server) siteOf(r *http.Request) *site {
	name := r.PathValue("site")
	for _, x := range s.sites {
		if name == "" && len(s.sites) == 1 || name != "" && x.Context == name {
			return x
		}
	}
	return nil
}

// requestedFleet returns the fleet of a request. If there is none, it writes an error page and returns false.
func (s *Server) requestedFleet(w http.ResponseWriter, r *http.Request) (fleet, sites.Leads, bool) {
	namespace, name := r.PathValue("namespace"), r.PathValue("name")
	x := s.siteOf(r)
	if x == nil {
		s.writeProblem(w, http.StatusNotFound, "There is no such site", "The address names no context of this page.")
		return fleet{}, sites.Leads{}, false
	}
	l := x.readLeads(r.Context())
	quiet := x.silent(l)
	gs, err := x.fleet(namespace, name)
	_, undecodable := errors.AsType[*kube.UndecodableError](err)
	switch {
	case err == nil:
		return s.newFleet(x, gs, l.Target(gs), quiet.String(), x.Clients.Now()), l, true
	case undecodable:
		s.writeProblem(w, http.StatusOK, "This fleet cannot be read", clean(err.Error(), maxMessage))
	case x.fleets == nil || !x.fleets.HasSynced():
		text := "The list of fleets is not complete yet. Load this page again."
		if quiet.err != nil {
			n := x.readNotice(quiet.err, "GatewaySyncs", "get, list and watch gatewaysyncs.stoker.io", "")
			text = n.Title + "." + n.Text
		}
		s.writeProblem(w, http.StatusServiceUnavailable, "Not there yet", text)
	case quiet.err != nil:
		s.writeProblem(w, http.StatusServiceUnavailable, "This fleet is not known", sentence(quiet.String()))
	default:
		s.writeProblem(w, http.StatusNotFound, "There is no such fleet",
			"No GatewaySync "+clean(name, maxWord)+" was found in namespace "+clean(namespace, maxWord)+". It may have been deleted.")
	}
	return fleet{}, l, false
}
