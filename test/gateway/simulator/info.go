package simulator

import (
	"encoding/json"
	"net/http"
	"strings"

	"stoker.io/stoker/test/gateway/simulator/ordered"
)

// info answers what the gateway says about itself.
type info struct {
	opts       *Options
	data       *Data
	designers  *Designers
	redundancy *Redundancy
}

func (i *info) getInfo(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, ordered.Object{
		{"name", i.name()}, {"redundancyRole", i.opts.Role}, {"edition", "standard"},
		{"ignitionVersion", i.opts.Version + " (b2026042713)"}, {"deploymentMode", i.opts.Mode},
		{"timeZone", "Coordinated Universal Time"}, {"timeZoneId", "UTC"}, {"allowUnsignedModules", false},
		{"license", ordered.Object{{"mode", "Trial"}}},
	})
}

// name returns the systemName of the configuration, unless the gateway was started with a fixed name [LIVE 8.3.8:
// systemName takes effect after a scan].
func (i *info) name() string {
	if r, _, _ := i.data.loadedConfig().Effective("ignition/system-properties"); r != nil && !i.opts.FixedName {
		if name, ok := ordered.Dig(r.Config, "systemName").(string); ok && name != "" {
			return name
		}
	}
	return i.opts.Name
}

func (i *info) getRedundancy(w http.ResponseWriter, _ *http.Request) {
	m, activity := i.redundancy.status(), "Active"
	if !m.active {
		activity = "Warm"
	}
	writeJSON(w, http.StatusOK, ordered.Object{
		{"role", i.opts.Role}, {"projectState", "Good"}, {"activityLevel", activity}, {"localId", i.opts.Name},
		{"peerConnected", m.peer}, {"peerId", i.opts.Name + "-peer"}, {"hasConfigAccess", m.access},
		{"syncPending", m.pair != nil && m.pair.isPaused()},
		{"failoverPending", false}, {"uptime", json.Number("1000")}, {"lastSyncTimestamp", json.Number("0")},
	})
}

func (i *info) getModules(w http.ResponseWriter, r *http.Request) {
	items := make([]ordered.Value, 0, len(i.opts.Modules))
	for _, id := range i.opts.Modules {
		items = append(items, ordered.Object{{"id", id}, {"name", id}, {"state", "ACTIVE"}})
	}
	writeList(w, r, items)
}

// getOverview answers with the data of the start page.
func (i *info) getOverview(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, ordered.Object{
		{"name", i.opts.Name}, {"version", i.opts.Version}, {"designerSessions", i.designers.open()},
		{"projects", len(i.data.loadedProjects())},
	})
}

func (i *info) statusPing(s State) ordered.Value {
	if s == Starting && i.opts.Unknowns.OtherStates {
		return ordered.Object{{"state", "INITIALIZING"}}
	}
	if s == Commissioning {
		return ordered.Object{{"state", string(Running)}, {"details", string(Commissioning)}}
	}
	return ordered.Object{{"state", string(s)}}
}

// gwinfo returns the text that the vendor's health checks read.
func (i *info) gwinfo(s State) string {
	status := string(s)
	if s == Commissioning {
		status = "NEEDS_COMMISSIONING"
	}
	node := "Active"
	if !i.redundancy.status().active {
		node = "Warm"
	}
	return strings.Join([]string{
		"ContextStatus=" + status, "PlatformName=" + i.opts.Name, "Version=" + i.opts.Version, "PlatformEdition=standard",
		"RedundancyStatus=" + i.opts.Role, "RedundantState=Good", "RedundantNodeActiveStatus=" + node,
	}, ";")
}
