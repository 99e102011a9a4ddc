package sync

import (
	"encoding/json"
	"time"

	"stoker.io/stoker/agent/disk"
	"stoker.io/stoker/agent/plan"
)

// Diff is the report of what a sync changed. docs/how-to/audit.md describes it.
type Diff struct {
	Schema        int          `json:"schema"`
	Gateway       string       `json:"gateway"`
	Timestamp     time.Time    `json:"timestamp"`
	FromCommit    plan.ID      `json:"fromCommit,omitzero"`
	ToCommit      plan.ID      `json:"toCommit,omitzero"`
	FilesAdded    int          `json:"filesAdded"`
	FilesModified int          `json:"filesModified"`
	FilesDeleted  int          `json:"filesDeleted"`
	Projects      []string     `json:"projectsAffected"`
	Changes       []DiffChange `json:"changes"`
	// Truncated reports that Changes lacks some changes, because the report would be too large.
	Truncated bool `json:"truncated,omitempty"`
}

// DiffChange is what a sync did to one file.
type DiffChange struct {
	Path     string   `json:"path"`
	Action   string   `json:"action"` // added, modified or deleted
	Checksum Checksum `json:"checksum"`
}

// Checksum is git's id of the content of a file before and after a sync, as git:<id>; "" if there is no file.
type Checksum struct {
	Before string `json:"before,omitempty"`
	After  string `json:"after,omitempty"`
}

// maxDiffProjects bounds the projects in a Diff.
const maxDiffProjects = 100

// saveDiff saves the report of what the sync changed on the data volume, and returns its id.
func (j auditor) saveDiff(changes *plan.Changes) (string, error) {
	r := j.r
	projects := changes.Projects()
	d := Diff{
		Schema: AuditSchema, Gateway: j.t.Facts.GatewayName, Timestamp: r.Started.UTC().Truncate(time.Second), FromCommit: j.from, ToCommit: r.Commit,
		FilesAdded: r.Files.Added, FilesModified: r.Files.Modified, FilesDeleted: r.Files.Deleted,
		Projects: append([]string{}, projects[:min(len(projects), maxDiffProjects)]...), Changes: []DiffChange{}, // not null as JSON
	}
	room := disk.MaxDiff - 8<<10
	for _, c := range changes.List {
		action := actionOf(c.Op)
		if action == "" {
			continue
		}
		sum := Checksum{checksum(c.FoundID), checksum(c.ID)}
		if c.Op == plan.Delete {
			sum.After = ""
		}
		// In JSON, a byte of a path takes at most six bytes.
		if room -= 6*len(c.Path) + 200; room < 0 {
			d.Truncated = true
			continue
		}
		d.Changes = append(d.Changes, DiffChange{c.Path, action, sum})
	}
	b, err := json.Marshal(d)
	if err != nil {
		return "", err
	}
	return j.dir.AddDiff(d.Gateway, d.Timestamp, b)
}

// actionOf returns what an operation does to a file, or "" if it does not change the file.
func actionOf(op plan.Op) string {
	switch op {
	case plan.Create:
		return "added"
	case plan.Update:
		return "modified"
	case plan.Delete:
		return "deleted"
	}
	return ""
}

func checksum(id plan.ID) string {
	if id.IsZero() {
		return ""
	}
	return "git:" + id.String()
}
