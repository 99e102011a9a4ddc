package display

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"stoker.io/stoker/agent/audit"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/syntax"
	"stoker.io/stoker/hooks/agents"
	"stoker.io/stoker/hooks/output"
	"stoker.io/stoker/internal/giturl"
)

// Commits returns a table of the commits that ran on every gateway. JSON and YAML have their links at the git host.
func Commits(list []v1alpha1.CommitRecord, web giturl.Web) *output.Result {
	type linked struct {
		v1alpha1.CommitRecord
		Link string `json:"link,omitempty"`
	}
	data := []linked{}
	r := &output.Result{Head: []string{"SINCE", "REF", "COMMIT", "AGE", "SUBJECT"}}
	for _, h := range list {
		data = append(data, linked{h, web.Commit(h.Commit)})
		ref := h.Ref
		if ref == h.Commit { // the ref is a commit
			ref = syntax.ShortCommit(ref)
		}
		r.Add(h.Commit, h.At.Local().Format(time.RFC3339), ref, syntax.ShortCommit(h.Commit), output.Age(h.At.Time), h.Subject)
	}
	r.Data = data
	return r
}

// AuditRecords returns a table of audit records. JSON and YAML have links to what each sync changed, at the git host.
func AuditRecords(list []audit.Entry, web giturl.Web) *output.Result {
	type linked struct {
		audit.Entry
		Compare string `json:"compare,omitempty"`
	}
	data := []linked{}
	r := &output.Result{Head: []string{"TIME", "GATEWAY", "FROM", "TO", "REF", "REQUESTED BY", "AUTHOR", "SUBJECT", "FILES", "PROJECTS", "RESULT", "DIFF"}}
	for _, a := range list {
		data = append(data, linked{a, web.Compare(a.From.String(), a.To.String())})
		by := a.By
		if a.For != "" {
			by += " (" + a.For + ")"
		}
		if a.ApprovedBy != "" {
			by = strings.TrimPrefix(by+"; approved "+a.ApprovedBy, "; ")
		}
		r.Add(a.To.String(), a.Time.Local().Format(time.RFC3339), a.Gateway, shortID(a.From), shortID(a.To), a.Ref, by, a.Author, audit.Line(a.Subject, 40),
			strconv.Itoa(a.Files.Added+a.Files.Modified+a.Files.Deleted), projects(a), Result(a.Reason, a.Files.Added+a.Files.Modified+a.Files.Deleted > 0), a.Diff)
	}
	r.Data = data
	return r
}

// projects returns the names of at most two projects of a record, and how many more it has. A gateway can write anything to its record, so the
// number may be smaller than that of the names.
func projects(a audit.Entry) string {
	names := a.ProjectNames[:min(len(a.ProjectNames), 2)]
	text := plan.Enumerate(names, len(names))
	if more := a.Projects - len(names); more > 0 && len(names) > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// Result returns the reason, or Written if a sync wrote its files and then only waited for the gateway.
func Result(r v1alpha1.Reason, wrote bool) string {
	if wrote && r.Class() == v1alpha1.ClassWorking {
		return "Written"
	}
	return string(r)
}

// shortID returns the first digits of a commit, or "-" if there was none.
func shortID(id plan.ID) string {
	if id.IsZero() {
		return "-"
	}
	return id.Short()
}

// Syncs returns a table of the syncs of a gateway, as its agent reports them. JSON and YAML have the links of their commits at the git host.
func Syncs(list []v1alpha1.SyncRecord, web giturl.Web) *output.Result {
	type linked struct {
		v1alpha1.SyncRecord
		Link string `json:"link,omitempty"`
	}
	data := []linked{}
	r := &output.Result{
		Head: []string{"TIME", "COMMIT", "REF", "FILES", "PROJECTS", "DURATION", "RESULT", "SNAPSHOT"}}
	for _, s := range list {
		data = append(data, linked{s, web.Commit(s.Commit)})
		r.Add(s.Commit, s.Timestamp.Local().Format(time.RFC3339), syntax.ShortCommit(s.Commit), s.Ref, strconv.Itoa(int(s.FilesChanged)),
			strconv.Itoa(int(s.ProjectsSynced)), s.Duration, Result(s.Result, s.FilesChanged > 0), s.SnapshotID)
	}
	r.Data = data
	return r
}

// ChangedFiles returns a table of the files that a sync changed.
func ChangedFiles(d audit.Diff) *output.Result {
	r := &output.Result{Data: d, Head: []string{"ACTION", "FILE", "BEFORE", "AFTER"}}
	for _, f := range d.Changes {
		r.Add(f.Path, f.Action, f.Path, shortChecksum(f.Checksum.Before), shortChecksum(f.Checksum.After))
	}
	return r
}

func shortChecksum(sum string) string { return syntax.ShortCommit(strings.TrimPrefix(sum, "git:")) }

// Snapshots returns a table of snapshots. The column STORED is in it only with object storage, and BACKUP only if a snapshot has
// a backup.
func Snapshots(list []agents.Snapshot, objectStorage bool) *output.Result {
	r := &output.Result{Data: list, Head: []string{"GATEWAY", "SNAPSHOT", "COMMIT", "SYNCED", "FILES", "SIZE"}}
	if objectStorage {
		r.Head = append(r.Head, "STORED")
	}
	backups := slices.ContainsFunc(list, func(s agents.Snapshot) bool { return s.Backup })
	if backups {
		r.Head = append(r.Head, "BACKUP")
	}
	for _, s := range list {
		cells := []string{s.Gateway, s.ID, shortID(s.Commit), s.To.Short(), strconv.Itoa(s.Files), syntax.SizeText(s.Bytes)}
		if objectStorage {
			cells = append(cells, string(s.Stored))
		}
		if backups {
			cells = append(cells, map[bool]string{true: "yes", false: "-"}[s.Backup])
		}
		r.Add(s.ID, cells...)
	}
	return r
}

// proposal is the state of the pull request with changes of a gateway, in JSON and YAML.
type proposal struct {
	Gateway string                 `json:"gateway"`
	State   v1alpha1.ProposalState `json:"state"`
	// PullRequest is the URL of the pull request, or the branch if no pull request was opened.
	PullRequest string `json:"pullRequest,omitempty"`
}

// Proposals returns a table of the pull requests with changes of gateways.
func Proposals(gateways []v1alpha1.DiscoveredGateway) *output.Result {
	list := []proposal{}
	r := &output.Result{Head: []string{"GATEWAY", "STATE", "PULL REQUEST"}}
	for _, g := range gateways {
		if g.ProposalState != "" {
			list = append(list, proposal{g.Name, g.ProposalState, g.Proposal})
			r.Add(g.Name, g.Name, string(g.ProposalState), g.Proposal)
		}
	}
	r.Data = list
	return r
}
