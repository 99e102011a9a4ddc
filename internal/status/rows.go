package status

import (
	"encoding/json"
	"slices"
	"strings"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

const (
	// maxRows bounds the rows of status.discoveredGateways.
	maxRows = 2000
	// rowBytes limits the size of all rows. The API server stores objects up to 1.5 MiB, including the managed fields of every
	// row.
	rowBytes = 400 << 10
)

// fitRows returns the rows that fit into the object. With many gateways it reduces the detail, and with too many it omits rows,
// synced gateways first.
func fitRows(all fleet) []v1alpha1.DiscoveredGateway {
	rows := slices.Clone(all)
	if len(rows) > maxRows {
		slices.SortStableFunc(rows, func(a, b gateway) int {
			switch {
			case a.synced == b.synced:
				return 0
			case b.synced:
				return -1
			}
			return 1
		})
		rows = rows[:maxRows]
		slices.SortFunc(rows, func(a, b gateway) int { return strings.Compare(a.Name, b.Name) })
	}
	var out []v1alpha1.DiscoveredGateway
	for _, reduce := range detail {
		out = make([]v1alpha1.DiscoveredGateway, len(rows))
		for i := range rows {
			out[i] = rows[i].DiscoveredGateway
			if most := historyLength(len(rows)); len(out[i].SyncHistory) > most {
				out[i].SyncHistory = out[i].SyncHistory[:most]
			}
			reduce(&out[i])
		}
		if size(out) <= rowBytes {
			break
		}
	}
	return out
}

// historyLength returns how many syncs the row of each gateway shows.
func historyLength(gateways int) int {
	switch {
	case gateways <= 32:
		return maxGatewayHistory
	case gateways <= 100:
		return 3
	}
	return 0
}

// detail are all levels of detail of a row, from full to minimal. The state of the proposal and an automatic rollback are in all of
// them, because each change of them causes an Event.
var detail = []func(*v1alpha1.DiscoveredGateway){
	func(*v1alpha1.DiscoveredGateway) {},
	func(g *v1alpha1.DiscoveredGateway) { g.SyncHistory = nil },
	func(g *v1alpha1.DiscoveredGateway) {
		g.SyncHistory = nil
		g.ProjectsSynced = g.ProjectsSynced[:min(len(g.ProjectsSynced), 3)]
		g.Message, g.PodName = failure.Cut(g.Message, 200), failure.Cut(g.PodName, 128)
		if len(g.Notes) > 0 {
			g.Notes = []string{failure.Cut(g.Notes[0], 128)}
		}
	},
	func(g *v1alpha1.DiscoveredGateway) {
		g.ProjectsSynced, g.LastScanResult, g.LastSyncDuration = nil, "", ""
		g.LastSnapshot, g.SyncHistory, g.Notes = nil, nil, nil
		g.Message, g.PodName = failure.Cut(g.Message, 80), failure.Cut(g.PodName, 128)
	},
	func(g *v1alpha1.DiscoveredGateway) {
		*g = v1alpha1.DiscoveredGateway{Name: g.Name, PodName: failure.Cut(g.PodName, 64), Profile: g.Profile, SyncStatus: g.SyncStatus, Reason: g.Reason,
			SyncedCommit: g.SyncedCommit, Message: failure.Cut(g.Message, 32), Drift: g.Drift, FilesSaved: g.FilesSaved,
			GatewayDetails: v1alpha1.GatewayDetails{AutoRollback: g.AutoRollback}, ProposalState: g.ProposalState}
	},
	func(g *v1alpha1.DiscoveredGateway) {
		*g = v1alpha1.DiscoveredGateway{Name: g.Name, SyncStatus: g.SyncStatus, Reason: g.Reason, SyncedCommit: g.SyncedCommit, Drift: g.Drift,
			FilesSaved: g.FilesSaved, GatewayDetails: v1alpha1.GatewayDetails{AutoRollback: g.AutoRollback}, ProposalState: g.ProposalState}
	},
}

func size(rows []v1alpha1.DiscoveredGateway) int {
	b, err := json.Marshal(rows)
	if err != nil {
		return 1 << 30 // impossible: every field of a row can be encoded
	}
	return len(b)
}
