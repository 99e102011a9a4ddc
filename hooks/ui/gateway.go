package ui

import (
	"cmp"
	"context"
	"net/http"
	"net/url"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"stoker.io/stoker/agent/audit"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/annotation"
	"stoker.io/stoker/api/v1alpha1/gatewaypod"
	"stoker.io/stoker/api/v1alpha1/syntax"
	"stoker.io/stoker/hooks/agents"
	"stoker.io/stoker/hooks/display"
	"stoker.io/stoker/hooks/sites"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/kube"
)

// Bounds of what one page shows of an agent's answer.
const (
	maxPlan      = 400
	maxRecords   = 50
	maxSnapshots = 100
	maxNotes     = 20
	maxChanges   = 2000
)

// gatewayPage is the page of one gateway.
type gatewayPage struct {
	frame
	Fleet         fleet
	Gateway       gateway
	Runs          commit
	Advice        Advice
	AgentNotice   notice // why the agent did not answer
	AgentAnswered bool
	Problems      []problem
	Plan          []planLine
	PlanMore      int
	Drift         []driftedFile
	Drifted       int
	Notes         []string
	Proposal      *proposal

	Stage          string
	Last           *snapshot // from the status
	SnapshotPolicy string    // what the spec keeps
	Snapshots      []snapshot
	HasStored      bool // some snapshots say where they are
	HasBackups     bool // some snapshots have a backup of the whole gateway
	Records        []record
	AuditError     string // the audit record has invalid lines
	Command        string
}

type problem struct {
	Advice  Advice
	Message string
}

// planLine is a line of the plan. Op says what happens to its file: added, modified, deleted or "".
type planLine struct{ Op, Text string }

type driftedFile struct {
	Path, What string
	Text       string // address of the page with its text, or ""
}

type proposal struct {
	State, Branch, Message string
	Link                   link
	Files, Refused         int
	Advice                 Advice
}

type snapshot struct {
	ID, Commit, To, Size string
	At                   moment
	Files                int
	Stored               string // where it is, in words
	Backup               bool
	Restore              string // the command that restores it
}

// storedText says in words where a snapshot is.
var storedText = map[v1alpha1.SnapshotStored]string{v1alpha1.StoredLocal: "data volume", v1alpha1.StoredRemote: "object storage", v1alpha1.StoredBoth: "data volume, object storage"}

// record is a past sync.
type record struct {
	At                       moment
	Ref, From, To            string
	By, Author, Subject      string
	Result, Message          string
	Tone                     tone
	Advice                   Advice
	Added, Modified, Deleted int
	Path                     string // of the page with the changed files; "" if they are unknown
	Summary                  bool   // only the number of changed files is known, and not who requested the sync
	Changed                  int    // files, of a summary
	Duration                 string
	Compare                  string // address of the text of the change, or ""
}

// requestedGateway returns the gateway of a request and its fleet. If there is none, it writes an error page and returns false.
func (s *Server) requestedGateway(w http.ResponseWriter, r *http.Request) (fleet, gateway, sites.Leads, bool) {
	f, l, ok := s.requestedFleet(w, r)
	if !ok {
		return f, gateway{}, l, false
	}
	name := r.URL.Query().Get("name")
	i := slices.IndexFunc(f.Gateways, func(g gateway) bool { return g.row.Name == name })
	if i < 0 {
		s.writeProblem(w, http.StatusNotFound, "There is no such gateway", "The fleet "+f.Name+" has no gateway "+clean(name, maxWord)+". Its pod may have been deleted.")
		return f, gateway{}, l, false
	}
	return f, f.Gateways[i], l, true
}

func (s *Server) serveGateway(w http.ResponseWriter, r *http.Request) {
	f, g, l, ok := s.requestedGateway(w, r)
	if !ok {
		return
	}
	p := gatewayPage{frame: s.newFrame(f.site, g.Name, crumb{"Fleets", "/"}, crumb{f.Name, f.Path}), Fleet: f, Gateway: g, Runs: f.newCommit(g.row.SyncedCommit),
		Advice: s.advisor.adviceOf(f, g.Reason)}
	p.Notices = f.site.notices(l)
	p.follow(f.live(), f.site.silent(l).link())
	if gatewaypod.ValidName(g.row.Name) { // a report may have any name, and users paste the command into a shell
		p.Command = "stoker history " + f.Name + f.flags + " --audit --gateway " + g.row.Name
	}
	patience := queryTimeout
	if f.Lost != "" {
		patience = pageWait
	}
	ctx, cancel := context.WithTimeout(r.Context(), patience)
	defer cancel()
	p.Stage, p.SnapshotPolicy, p.Last = stageOf(f.gs, g.row.Name, g.row.PodName), snapshotPolicy(f.gs.Spec.Snapshots), p.newLastSnapshot(g.row.LastSnapshot)
	if err := s.addAgentAnswer(ctx, &p); err != nil {
		p.AgentNotice = s.agentNotice(err, f.Namespace)
		s.addReport(ctx, &p)
	}
	s.writePage(w, http.StatusOK, "gateway", p)
}

// agentNotice returns a notice about an agent that did not answer.
func (s *Server) agentNotice(err error, namespace string) notice {
	const text = "The plan, the changed files and the list of snapshots are not shown: they come from the agent."
	switch {
	case apierrors.IsForbidden(err):
		return notice{toneHeld, "You may not ask the agent", text + " Your user lacks the right to get pods and pods/proxy in namespace " + clean(namespace, maxWord) + "."}
	case failure.Is(err, v1alpha1.ReasonMissingSidecar):
		return notice{toneFail, "The pod has no agent", text}
	case apierrors.IsNotFound(err):
		return notice{toneUnknown, "The pod is gone", text}
	}
	return notice{toneUnknown, "The agent does not answer", text + " " + clean(err.Error(), 400)}
}

// snapshotPolicy says in words what spec.snapshots keeps. It returns "" if no snapshots are taken.
func snapshotPolicy(o *v1alpha1.SnapshotsSpec) string {
	if o == nil || !o.Enabled {
		return ""
	}
	text := "Up to " + counted(int(cmp.Or(o.RetentionCount, v1alpha1.DefaultRetentionCount)), "snapshot") + " of " + clean(cmp.Or(o.MaxSize, v1alpha1.DefaultMaxSnapshotSize), 16) +
		" in all stay on the data volume"
	if remote := o.ObjectStorage(); remote != nil {
		text += ", with copies in the bucket " + clean(remote.Bucket, 63)
	}
	text += "."
	if o.GatewayBackup == v1alpha1.GatewayBackupBeforeSync {
		text += " Before each sync, the gateway also saves a backup of itself (.gwbk)."
	}
	return text
}

// newLastSnapshot returns the newest snapshot of the status, or nil.
func (p *gatewayPage) newLastSnapshot(last *v1alpha1.GatewaySnapshot) *snapshot {
	if last == nil {
		return nil
	}
	sn := &snapshot{ID: clean(last.ID, maxWord), Size: clean(last.Size, 32), Stored: storedText[last.Stored]}
	if last.Timestamp != nil {
		sn.At = moment{last.Timestamp.Time, p.Now.now}
	}
	if annotation.RestoresOn(last.ID, p.Gateway.row.Name) == last.ID {
		sn.Restore = p.restoreCommand(last.ID)
	}
	return sn
}

func (p *gatewayPage) restoreCommand(id string) string {
	return "stoker snapshots " + p.Fleet.Name + p.Fleet.flags + " --restore " + id
}

func (p *gatewayPage) addNotes(list []string) {
	for _, n := range list[:min(len(list), maxNotes)] {
		p.Notes = append(p.Notes, clean(n, maxMessage))
	}
}

// addReport adds the past syncs of an agent that did not answer, from its last report or else from the status, and its notes from the status.
func (s *Server) addReport(ctx context.Context, p *gatewayPage) {
	list := p.Gateway.row.SyncHistory
	p.addNotes(p.Gateway.row.Notes)
	report, err := kube.SyncReports(p.Fleet.site.Clients.Dynamic, p.Fleet.Namespace).Get(ctx, p.Gateway.row.PodName)
	if err == nil && report.Status.Gateway == p.Gateway.row.Name {
		list = report.Status.SyncHistory
	}
	for _, h := range list[:min(len(list), maxRecords)] {
		state := v1alpha1.GatewayError
		switch h.Result.Class() {
		case v1alpha1.ClassDone:
			state = v1alpha1.GatewaySynced
		case v1alpha1.ClassHeld:
			state = v1alpha1.GatewayHeld
		}
		r := s.newRecord(p, audit.Entry{Time: h.Timestamp.Time, Ref: h.Ref, Result: state, Reason: h.Result, Duration: h.Duration,
			Files: audit.Files{Modified: int(h.FilesChanged)}})
		r.Summary, r.To, r.Changed = true, clean(syntax.ShortCommit(h.Commit), 7), int(h.FilesChanged)
		p.Records = append(p.Records, r)
	}
}

// addAgentAnswer adds the state and the audit record of the gateway, which it requests from the agent. It fails if the agent does
// not return the state.
func (s *Server) addAgentAnswer(ctx context.Context, p *gatewayPage) error {
	agent, err := agents.Of(ctx, p.Fleet.site.Clients.Core, p.Fleet.Namespace, p.Gateway.row)
	if err != nil {
		return err
	}
	var entries []audit.Entry
	var errAudit error
	audited := make(chan struct{})
	go func() {
		entries, errAudit = agent.Audit(ctx)
		close(audited)
	}()
	state, err := agent.State(ctx)
	if err != nil {
		return err
	}
	p.AgentAnswered = true
	s.addState(p, agent, state)
	<-audited
	for _, e := range slices.Backward(entries) {
		if len(p.Records) == maxRecords {
			break
		}
		p.Records = append(p.Records, s.newRecord(p, e))
	}
	if errAudit != nil && len(entries) > 0 {
		p.AuditError = clean(errAudit.Error(), maxCell)
	}
	if entries == nil { // there is no audit record, or it cannot be read
		for _, h := range state.History[:min(len(state.History), maxRecords)] {
			p.Records = append(p.Records, s.newRecord(p, audit.Entry{Time: h.At, Ref: h.Ref, To: h.Commit, Result: h.Phase, Reason: h.Reason, Message: h.Message,
				Duration: h.Duration, Files: audit.Files{Added: h.Files.Added, Modified: h.Files.Modified, Deleted: h.Files.Deleted}}))
		}
	}
	return nil
}

func (s *Server) addState(p *gatewayPage, a agents.Agent, state agents.State) {
	for _, e := range state.Problems[:min(len(state.Problems), maxNotes)] {
		p.Problems = append(p.Problems, problem{s.advisor.advice(e.Reason), clean(e.Message, maxMessage)})
	}
	for _, line := range state.Plan[:min(len(state.Plan), maxPlan)] {
		p.Plan = append(p.Plan, newPlanLine(line))
	}
	p.PlanMore = max(len(state.Plan)-maxPlan, 0)
	if d := state.Drift; d != nil {
		p.Drifted = d.Files
		for _, f := range d.Paths[:min(len(d.Paths), maxRecords)] {
			p.Drift = append(p.Drift, driftedFile{clean(f.Path, 1024), clean(f.What, 20), textPath(p.Fleet, p.Gateway, "", f.Path)})
		}
	}
	p.addNotes(state.Report.Notes)
	if o := state.Proposal; o != nil {
		p.Proposal = &proposal{clean(string(o.State), 16), clean(o.Branch, maxWord), clean(o.Message, maxMessage), newLink(o.URL), int(o.Files), int(o.Refused), Advice{}}
		if o.Reason != "" {
			p.Proposal.Advice = s.advisor.advice(o.Reason)
		}
	}
	for _, sn := range slices.Backward(a.Snapshots(state)) {
		if len(p.Snapshots) == maxSnapshots {
			break
		}
		p.Snapshots = append(p.Snapshots, snapshot{sn.ID, sn.Commit.Short(), sn.To.Short(), syntax.SizeText(sn.Bytes), moment{sn.Time, p.Now.now}, sn.Files,
			storedText[sn.Stored], sn.Backup, p.restoreCommand(sn.ID)})
		p.HasStored, p.HasBackups = p.HasStored || sn.Stored != "", p.HasBackups || sn.Backup
	}
}

// newPlanLine returns a line of a plan. The text of a plan begins each change with a mark.
func newPlanLine(line string) planLine {
	line = clean(line, 1024)
	mark, _, _ := strings.Cut(line, " ")
	return planLine{map[string]string{"+": "added", "~": "modified", "-": "deleted"}[mark], line}
}

func (s *Server) newRecord(p *gatewayPage, e audit.Entry) record {
	r := record{
		At: moment{e.Time, p.Now.now}, Ref: clean(e.Ref, maxWord), From: shortID(e.From), To: shortID(e.To), Author: clean(e.Author, 120), Subject: clean(e.Subject, 120),
		By: clean(e.By, 64), Result: clean(string(e.Result), 32), Message: clean(e.Message, maxCell), Advice: s.advisor.advice(e.Reason),
		Added: e.Files.Added, Modified: e.Files.Modified, Deleted: e.Files.Deleted, Duration: clean(e.Duration, 32),
		Tone: gatewayState(v1alpha1.DiscoveredGateway{SyncStatus: e.Result, Reason: e.Reason}, false, false).Tone,
	}
	if display.Result(e.Reason, r.Added+r.Modified+r.Deleted > 0) != string(e.Reason) {
		r.Result, r.Tone, r.Advice = display.Result(e.Reason, true), toneGood, Advice{}
	}
	if syntax.IsCommit(e.Ref) {
		r.Ref = syntax.ShortCommit(e.Ref)
	}
	if e.For != "" {
		r.By = strings.TrimSpace(r.By + " for " + clean(e.For, 120))
	}
	r.Compare = p.Fleet.compare(e.From, e.To)
	if e.Diff != "" && len(e.Diff) <= 300 {
		r.Path = p.Fleet.Path + "/sync?" + url.Values{"name": {p.Gateway.row.Name}, "id": {e.Diff}}.Encode()
	}
	return r
}

// shortID returns the first digits of a commit, or "" if there is none.
func shortID(id plan.ID) string {
	if id.IsZero() {
		return ""
	}
	return id.Short()
}
