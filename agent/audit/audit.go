// Package audit has the record of the syncs that changed a gateway or failed: an entry for each, and a report of what it changed.
package audit

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"slices"
	"strings"
	"time"

	"stoker.io/stoker/agent/disk"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
)

// Schema is the version of the fields of Entry and Diff. It increases when a field is removed or changes its meaning.
const Schema = 1

// Entry is the record of a sync that changed a gateway, or failed. docs/how-to/audit.md describes it.
type Entry struct {
	Schema      int       `json:"schema"`
	Time        time.Time `json:"time"`
	Namespace   string    `json:"namespace,omitempty"`
	GatewaySync string    `json:"gatewaySync,omitempty"`
	Gateway     string    `json:"gateway"`
	// From and To are the commits on the gateway before and after the sync, Target is the requested one.
	From   plan.ID `json:"from,omitzero"`
	To     plan.ID `json:"to,omitzero"`
	Target plan.ID `json:"target"`
	Ref    string  `json:"ref"`
	// Request is who requested the ref.
	Request
	// Restore and Retry are the values of the annotations that requested the sync, or "".
	Restore string `json:"restore,omitempty"`
	Retry   string `json:"retry,omitempty"`
	// Author and Subject are the author of the target and the first line of its message, as git has them.
	Author  string                    `json:"author,omitempty"`
	Subject string                    `json:"subject,omitempty"`
	Files   Files                     `json:"files"`
	Result  v1alpha1.GatewaySyncState `json:"result"`
	Reason  v1alpha1.Reason           `json:"reason"`
	// AutoRollback describes the automatic rollback; nil without one.
	AutoRollback *AutoRollback `json:"autoRollback,omitempty"`
	// Diff is the id of the report of what the sync changed; "" if it changed nothing.
	Diff string `json:"diff,omitempty"`
	// Snapshot is the id of the snapshot of what the sync displaced; "" if it took no snapshot.
	Snapshot string `json:"snapshot,omitempty"`
	// Projects is how many projects the sync made the gateway load, and ProjectNames has the first of them.
	Projects     int      `json:"projects,omitempty"`
	ProjectNames []string `json:"projectNames,omitempty"`
	// Message explains a result other than Synced.
	Message  string `json:"message,omitempty"`
	Duration string `json:"duration"`
}

// Files are numbers of files.
type Files struct {
	Added    int `json:"added"`
	Modified int `json:"modified"`
	Deleted  int `json:"deleted"`
	Saved    int `json:"saved"` // to lost+found
}

// Request says who requested the ref of a target, unless it is spec.git.ref, and who approved its commit.
type Request struct {
	By         string `json:"requestedBy,omitempty"`
	For        string `json:"requestedFor,omitempty"`
	At         string `json:"requestedAt,omitempty"`
	ApprovedBy string `json:"approvedBy,omitempty"`
}

// AutoRollback describes an automatic rollback of a gateway.
type AutoRollback struct {
	// Commit is the commit that failed and is blocked.
	Commit   plan.ID                      `json:"commit"`
	Trigger  v1alpha1.AutoRollbackTrigger `json:"trigger"`
	Snapshot string                       `json:"snapshot"`
}

// maxHistory bounds the entries that History has, and maxProjectNames the projects that an entry names.
const maxHistory, maxProjectNames = 10, 8

// SetProjects sets the number of projects, and the names of the first of them.
func (e *Entry) SetProjects(names []string) {
	e.Projects, e.ProjectNames = len(names), nil
	for _, name := range names[:min(len(names), maxProjectNames)] {
		e.ProjectNames = append(e.ProjectNames, Line(name, 64))
	}
}

// Bound bounds the texts of an entry. Users, gateways and git choose most of them.
func (e *Entry) Bound() {
	for _, text := range []struct {
		of  *string
		max int
	}{
		{&e.Gateway, 253}, {&e.Ref, 255}, {&e.By, 64}, {&e.For, 512}, {&e.At, 64}, {&e.ApprovedBy, 512}, {&e.Restore, 512}, {&e.Retry, 128},
		{&e.Author, 255}, {&e.Subject, 255}, {&e.Message, 512},
	} {
		*text.of = Line(*text.of, text.max)
	}
}

// Encode returns the entry as a line of the record, with its texts bounded. If the escapes of JSON make the line too long for the record, Encode
// cuts the longer texts further, and leaves out the names of projects.
func (e Entry) Encode() ([]byte, error) {
	e.Bound()
	line, err := encode(e)
	if err != nil || len(line) <= disk.MaxAuditLine {
		return line, err
	}
	e.ProjectNames = nil
	for _, text := range []*string{&e.Ref, &e.For, &e.ApprovedBy, &e.Restore, &e.Author, &e.Subject, &e.Message} {
		*text = Line(*text, 128)
	}
	return encode(e)
}

// encode does not escape <, > and &, which would make a text six times as long.
func encode(e Entry) ([]byte, error) {
	var b bytes.Buffer
	j := json.NewEncoder(&b)
	j.SetEscapeHTML(false)
	err := j.Encode(e)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}

// History has the last entries of a gateway. They outlive the pod.
type History struct {
	list []Entry
	read bool
}

// Last returns the last entries, oldest first. The first call reads them from the data directory.
func (h *History) Last(dataDir, gateway string, log *slog.Logger) []Entry {
	if !h.read {
		raw, err := disk.ReadAudit(dataDir)
		if err != nil {
			log.Warn("audit record unreadable", "error", err)
		}
		h.list, h.read = last(raw, gateway), true
	}
	return h.list
}

// Add adds an entry. Last must have been called before.
func (h *History) Add(e Entry) {
	h.list = slices.Concat(h.list[max(0, len(h.list)-maxHistory+1):], []Entry{e})
}

// last returns the last entries of a gateway, oldest first. The gateway can write anything to the record.
func last(raw []byte, gateway string) []Entry {
	var list []Entry
	for len(raw) > 0 && len(list) < maxHistory {
		lastLine := bytes.LastIndexByte(bytes.TrimSuffix(raw, []byte("\n")), '\n') + 1
		var e Entry
		if json.Unmarshal(raw[lastLine:], &e) == nil && e.Schema >= 1 && e.Gateway == gateway {
			list = append(list, e)
		}
		raw = raw[:lastLine]
	}
	slices.Reverse(list)
	return list
}

// Line returns at most n bytes of a text as one line.
func Line(text string, n int) string {
	text = strings.Join(strings.FieldsFunc(strings.ToValidUTF8(text, "�"), func(r rune) bool { return r < ' ' || r == 0x7f }), " ")
	return strings.ToValidUTF8(text[:min(len(text), n)], "") // not half a rune
}

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
	Source   string   `json:"source,omitempty"` // path in ToCommit; "" if the file was deleted
	Action   string   `json:"action"`           // added, modified or deleted
	Checksum Checksum `json:"checksum"`
}

// Checksum is git's id of the content of a file before and after a sync, as git:<id>; "" if there is no file.
type Checksum struct {
	Before string `json:"before,omitempty"`
	After  string `json:"after,omitempty"`
}

// maxProjects bounds the projects in a Diff.
const maxProjects = 100

// SetChanges sets Changes and Projects to those of a plan. The JSON of the diff takes at most limit bytes.
func (d *Diff) SetChanges(changes *plan.Changes, limit int) {
	projects := changes.Projects()
	d.Projects, d.Changes = append([]string{}, projects[:min(len(projects), maxProjects)]...), []Change{} // not null as JSON
	// In JSON, a byte of a path or source takes at most six bytes, the rest of a change 200, and the other fields 8 KiB.
	room := limit - 8<<10
	for _, name := range d.Projects {
		room -= 6*len(name) + 3
	}
	for _, c := range changes.List {
		action := c.Op.Action()
		if action == "" {
			continue
		}
		sum, source := Checksum{checksum(c.FoundID), checksum(c.ID)}, ""
		if c.Op == plan.Delete {
			sum.After = ""
		} else {
			source = changes.SourceOf(&c)
		}
		if room -= 6*(len(c.Path)+len(source)) + 200; room < 0 {
			d.Truncated = true
			continue
		}
		d.Changes = append(d.Changes, Change{c.Path, source, action, sum})
	}
}

func checksum(id plan.ID) string {
	if id.IsZero() {
		return ""
	}
	return "git:" + id.String()
}
