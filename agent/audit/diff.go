package audit

import (
	"time"

	"stoker.io/stoker/agent/plan"
)

// Diff is the report of what a sync changed. docs/how-to/audit.md describes it.
type Diff struct {
	Schema        int       `json:"schema"`
	Gateway       string    `json:"gateway"`
	Timestamp     time.Time `json:"timestamp"`
	FromCommit    plan.ID   `json:"fromCommit,omitzero"`
	ToCommit      plan.ID   `json:"toCommit,omitzero"`
	FilesAdded    int       `json:"filesAdded"`
	FilesModified int       `json:"filesModified"`
	FilesDeleted  int       `json:"filesDeleted"`
	Projects      []string  `json:"projectsAffected"`
	Changes       []Change  `json:"changes"`
	// Truncated reports that Changes lacks some changes, because the report would be too large.
	Truncated bool `json:"truncated,omitempty"`
}

// Change is what a sync did to one file.
type Change struct {
	Path     string   `json:"path"`
	Action   string   `json:"action"` // added, modified or deleted
	Checksum Checksum `json:"checksum"`
}

// Checksum is git's id of the content of a file before and after a sync, as git:<id>; "" if there is no file.
type Checksum struct {
	Before string `json:"before,omitempty"`
	After  string `json:"after,omitempty"`
}

// maxProjects bounds the projects in a Diff.
const maxProjects = 100

// Add adds the changes of a plan and their projects. The JSON of the diff takes at most limit bytes.
func (d *Diff) Add(changes *plan.Changes, limit int) {
	projects := changes.Projects()
	d.Projects, d.Changes = append([]string{}, projects[:min(len(projects), maxProjects)]...), []Change{} // not null as JSON
	room := limit - 8<<10
	for _, c := range changes.List {
		action := c.Op.Action()
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
		d.Changes = append(d.Changes, Change{c.Path, action, sum})
	}
}

func checksum(id plan.ID) string {
	if id.IsZero() {
		return ""
	}
	return "git:" + id.String()
}
