package display

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/syntax"
	"stoker.io/stoker/hooks/output"
	"stoker.io/stoker/hooks/sites"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/internal/request"
)

// runningCommit counts the gateways that run one commit, in JSON and YAML. If Unknown is set, it says why the commit is not known.
type runningCommit struct {
	Commit  string   `json:"commit,omitempty"`
	Refs    []string `json:"refs,omitempty"`
	Unknown string   `json:"unknown,omitempty"`
	// Gateways is absent if even their number is not known.
	Gateways int            `json:"gateways,omitempty"`
	Fleets   []runningFleet `json:"fleets,omitempty"`
}

// runningFleet counts the gateways of one fleet that run the commit of a runningCommit.
type runningFleet struct {
	Site      string `json:"site,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	Gateways  int    `json:"gateways,omitempty"`
}

// maxShownFleets bounds the fleets of a row of a table.
const maxShownFleets = 6

// ByCommit returns which gateways of all sites run which commit, the commit of most gateways first. Gateways whose commit is not known follow,
// and at the end each site that did not answer. several means that there are several sites, so that rows name theirs.
func ByCommit(list []sites.Answer, several bool) *output.Result {
	known, unknown := map[string]*runningCommit{}, map[string]*runningCommit{}
	var silent []runningCommit
	for _, a := range list {
		if a.Err != nil {
			silent = append(silent, runningCommit{Unknown: sites.Problem(a.Err, kube.GatewaySync), Fleets: []runningFleet{{Site: a.Context}}})
			continue
		}
		for _, u := range a.Undecodable {
			if u.Kind != v1alpha1.KindGatewaySync {
				continue
			}
			addTo(unknown, "the GatewaySync cannot be read", "", runningFleet{Site: siteName(a, several), Namespace: u.Namespace, Name: u.Name})
		}
		for _, gs := range a.Fleets {
			one := runningFleet{Site: siteName(a, several), Namespace: gs.Namespace, Name: gs.Name, Gateways: 1}
			away := request.Read(gs, "", a.Leads.Target(gs), a.Clients.Now()).Reason == v1alpha1.ReasonAgentsAway
			for _, g := range gs.Status.DiscoveredGateways {
				switch {
				case away:
					addTo(unknown, "no agent leads", "", one)
				case g.SyncStatus == v1alpha1.GatewayMissingSidecar:
					addTo(unknown, "no agent runs beside the gateway", "", one)
				case g.SyncedCommit == "":
					addTo(unknown, "no commit was synced yet", "", one)
				default:
					addTo(known, g.SyncedCommit, g.SyncedRef, one)
				}
			}
		}
	}
	data := []runningCommit{}
	for _, commit := range slices.SortedFunc(maps.Keys(known), func(x, y string) int { return cmp.Or(known[y].Gateways-known[x].Gateways, strings.Compare(x, y)) }) {
		c := *known[commit]
		c.Commit = commit
		data = append(data, c)
	}
	for _, why := range slices.Sorted(maps.Keys(unknown)) {
		c := *unknown[why]
		c.Unknown = why
		data = append(data, c)
	}
	data = append(data, silent...)
	r := &output.Result{Data: data, Head: []string{"COMMIT", "REF", "GATEWAYS", "FLEETS"}}
	for _, c := range data {
		number := "?"
		if c.Gateways > 0 {
			number = strconv.Itoa(c.Gateways)
		}
		if c.Unknown != "" {
			r.Rows = append(r.Rows, []string{"unknown", "", number, output.Shorten(c.Unknown) + ": " + c.places()})
			continue
		}
		r.Add(c.Commit, syntax.ShortCommit(c.Commit), output.Shorten(strings.Join(c.Refs, ", ")), number, c.places())
	}
	return r
}

// siteName returns the name of a site, or "" if there is only one.
func siteName(a sites.Answer, several bool) string {
	if several {
		return a.Context
	}
	return ""
}

// addTo adds the gateways of a fleet to the entry of a commit, or of a reason why none is known.
func addTo(entries map[string]*runningCommit, key, ref string, fleet runningFleet) {
	c := entries[key]
	if c == nil {
		c = &runningCommit{}
		entries[key] = c
	}
	c.Gateways += fleet.Gateways
	if syntax.IsCommit(ref) {
		ref = ""
	}
	if ref != "" && !slices.Contains(c.Refs, ref) {
		c.Refs = append(c.Refs, ref)
	}
	if n := len(c.Fleets) - 1; n >= 0 && c.Fleets[n].Site == fleet.Site && c.Fleets[n].Namespace == fleet.Namespace && c.Fleets[n].Name == fleet.Name {
		c.Fleets[n].Gateways += fleet.Gateways
		return
	}
	c.Fleets = append(c.Fleets, fleet)
}

// places returns the fleets of c for a cell of a table.
func (c runningCommit) places() string {
	var list []string
	for i, f := range c.Fleets {
		if i == maxShownFleets {
			list = append(list, "and "+strconv.Itoa(len(c.Fleets)-i)+" more")
			break
		}
		name := strings.TrimSuffix(f.Site+"/"+f.Namespace+"/"+f.Name, "//")
		name = strings.TrimPrefix(name, "/")
		if f.Gateways > 0 {
			name += " (" + strconv.Itoa(f.Gateways) + ")"
		}
		list = append(list, name)
	}
	return strings.Join(list, ", ")
}
