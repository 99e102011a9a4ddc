package display

import (
	"fmt"
	"io"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/hooks/output"
	"stoker.io/stoker/hooks/sites"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/internal/request"
)

// unknown is the state of what cannot be read.
const unknown = "Unknown"

// siteState is a site in JSON and YAML. If it has an error, Fleets is null, because the gateways are not known.
type siteState struct {
	Context     string        `json:"context,omitempty"`
	Error       string        `json:"error,omitempty"`
	Fleets      []fleetState  `json:"fleets"`
	ConfigSyncs []configState `json:"configSyncs"`
}

type fleetState struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	request.Verdict
}

type configState struct {
	Namespace string          `json:"namespace"`
	Name      string          `json:"name"`
	Commit    string          `json:"commit,omitempty"`
	Ready     string          `json:"ready"`
	Reason    v1alpha1.Reason `json:"reason,omitempty"`
	Message   string          `json:"message"`
}

// SitesBy returns what is known of sites for printing: by commit, as the GatewaySyncs with one name, or as a list of all.
func SitesBy(by, name string, list []sites.Answer, namespaces, onlyBehind bool) *output.Result {
	several := len(list) > 1
	switch {
	case by != "":
		return ByCommit(list, several)
	case name != "":
		return DescribeSites(list, onlyBehind)
	}
	return Sites(list, several, several || namespaces)
}

// Sites returns the GatewaySyncs and ConfigSyncs of sites for printing. With several, each row names its site, and one that did not answer has
// a row of its own. With namespaces, each row has its namespace.
func Sites(list []sites.Answer, several, namespaces bool) *output.Result {
	r := &output.Result{Head: place(several, namespaces, "SITE", "NAMESPACE", "NAME", "REF", "COMMIT", "GATEWAYS", "READY", "CONFIRMED", "AGE", "STATUS")}
	configs := [][]string{}
	data := []siteState{}
	for _, a := range list {
		s := siteState{Context: a.Context}
		if a.Err != nil {
			s.Error = sites.Problem(a.Err, kube.GatewaySync)
			r.Rows = append(r.Rows, place(several, namespaces, a.Context, a.Namespace, "", "", "", "", unknown, "", "", s.Error))
		} else {
			s.Fleets, s.ConfigSyncs = []fleetState{}, []configState{}
		}
		now := a.Clients.Now()
		for _, gs := range a.Fleets {
			target := a.Leads.Target(gs)
			r.Add(ResourceName(gs), place(several, namespaces, a.Context, gs.Namespace, listCells(gs, target, now)...)...)
			s.Fleets = append(s.Fleets, fleetState{gs.Namespace, gs.Name, request.Read(gs, "", target, now)})
		}
		for _, u := range a.Undecodable {
			name := resourceName(u.Kind, u.Name)
			if u.Kind == v1alpha1.KindConfigSync {
				r.Names = append(r.Names, name)
				configs = append(configs, place(several, namespaces, a.Context, u.Namespace, u.Name, "", "", unknown, "", "", output.Shorten(u.Error())))
				s.ConfigSyncs = append(s.ConfigSyncs, configState{Namespace: u.Namespace, Name: u.Name, Ready: unknown, Message: u.Error()})
				continue
			}
			r.Add(name, place(several, namespaces, a.Context, u.Namespace, u.Name, "", "", "", unknown, "", "", output.Shorten(u.Error()))...)
			s.Fleets = append(s.Fleets, fleetState{u.Namespace, u.Name, request.Verdict{Phase: unknown, Message: u.Error()}})
		}
		for _, cs := range a.ConfigSyncs {
			is := ConfigState(cs)
			r.Names = append(r.Names, ResourceName(cs))
			configs = append(configs, place(several, namespaces, a.Context, cs.Namespace, cs.Name, cs.Status.SourceRevisionShort, cs.Status.TargetsReady, is.Ready, string(is.Reason),
				output.Age(is.Since), output.Shorten(is.Message)))
			s.ConfigSyncs = append(s.ConfigSyncs, configState{cs.Namespace, cs.Name, cs.Status.SourceRevision, is.Ready, is.Reason, is.Message})
		}
		data = append(data, s)
	}
	r.Data = map[string]any{"sites": data}
	r.Text = func(w io.Writer) {
		if len(r.Rows) > 0 {
			output.WriteTable(w, r.Head, r.Rows)
		}
		if len(r.Rows) > 0 && len(configs) > 0 {
			fmt.Fprintln(w)
		}
		if len(configs) > 0 {
			output.WriteTable(w, place(several, namespaces, "SITE", "NAMESPACE", "CONFIGSYNC", "COMMIT", "OBJECTS", "READY", "REASON", "SINCE", "STATUS"), configs)
		}
	}
	return r
}

// place returns the cells of a row after those of its site and its namespace, unless the table leaves them out.
func place(several, namespaces bool, site, namespace string, cells ...string) []string {
	var list []string
	if several {
		list = append(list, site)
	}
	if namespaces {
		list = append(list, namespace)
	}
	return append(list, cells...)
}

// DescribeSites returns the GatewaySyncs that sites have with one name, each as Describe prints it.
func DescribeSites(list []sites.Answer, onlyBehind bool) *output.Result {
	r := Sites(list, true, true)
	r.Text = func(w io.Writer) {
		for i, a := range list {
			if i > 0 {
				fmt.Fprintln(w)
			}
			fmt.Fprintf(w, "%-12s %s\n", "Site:", output.OneLine(a.Context))
			switch {
			case a.Err != nil:
				fmt.Fprintf(w, "%-12s %s\n", "Unknown:", output.OneLine(sites.Problem(a.Err, kube.GatewaySync)))
			case len(a.Fleets)+len(a.Undecodable) == 0:
				fmt.Fprintln(w, "No GatewaySync has this name.")
			}
			for _, u := range a.Undecodable {
				fmt.Fprintf(w, "%-12s %s\n", "Unknown:", output.OneLine(u.Error()))
			}
			now := a.Clients.Now()
			for _, gs := range a.Fleets {
				Describe(w, gs, request.Read(gs, "", a.Leads.Target(gs), now), a.Context, onlyBehind)
			}
		}
	}
	return r
}
