package sync

import (
	"bytes"
	"encoding/json"
	"slices"

	"stoker.io/stoker/agent/disk"
)

// keptHistory is how many syncs a report's history has.
const keptHistory = 10

// history are the last syncs in the audit record of an open data directory, oldest first.
type history struct {
	known bool
	taken int // see Engine.Taken
	list  []Audit
}

// add adds a sync.
func (h *history) add(a Audit) {
	h.list = append(h.list[max(0, len(h.list)-keptHistory+1):len(h.list):len(h.list)], a)
}

// history returns the last syncs that changed the gateway or failed. It reads the audit record once, so that the history outlives the pod.
func (j *job) history() []Audit {
	if h := &j.past; !h.known || h.taken != j.taken {
		raw, err := disk.ReadAudit(j.DataDir)
		if err != nil {
			j.Log.Warn("audit record unreadable", "error", err)
		}
		*h = history{known: true, taken: j.taken, list: lastAudits(raw, j.t.Facts.GatewayName)}
	}
	return j.past.list
}

// lastAudits returns the last entries of a gateway in an audit record. The gateway can write to the record, so a line may be anything.
func lastAudits(raw []byte, gateway string) []Audit {
	var list []Audit
	for len(raw) > 0 && len(list) < keptHistory {
		at := bytes.LastIndexByte(bytes.TrimSuffix(raw, []byte("\n")), '\n') + 1
		var a Audit
		if json.Unmarshal(raw[at:], &a) == nil && a.Schema >= 1 && a.Gateway == gateway {
			list = append(list, a)
		}
		raw = raw[:at]
	}
	slices.Reverse(list)
	return list
}
