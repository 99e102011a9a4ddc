package status

import (
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/annotation"
	"stoker.io/stoker/api/v1alpha1/gatewaypod"
	"stoker.io/stoker/api/v1alpha1/syntax"
	"stoker.io/stoker/api/v1alpha1/validation"
	"stoker.io/stoker/internal/failure"
)

// Bounds of what a row takes from a report. The markers of DiscoveredGateway allow as much.
const (
	maxGatewayHistory = 10
	maxProjects       = 32
	maxScan           = 256 // bytes of the result of a scan
	maxNotes          = 8
	maxNote           = 256 // bytes of a note
)

// gateway is a row of the status with internal fields.
type gateway struct {
	v1alpha1.DiscoveredGateway
	pods []Pod
	// proposal is what its agent reports of its changes, verified; nil if it reports none.
	proposal *v1alpha1.Proposal
	// synced means that it reports the target commit for this generation, verified.
	synced bool
	// stale means that it reported the target commit, verified, for an earlier revision of the target.
	stale bool
	// delivered means that it reports some commit, verified.
	delivered bool
	// handled means that it has handled the target's request.
	handled bool
	// planned is the commit of its dry run before a rollout.
	planned string
}

// gateways returns the gateways of a GatewaySync, sorted by name: its live pods with the reports of their agents, and terminating pods
// with an agent whose gateway no live pod replaces. With rollout it returns all of those. Otherwise it leaves out a gateway that ran the target until
// its pod was deleted, so that removing a gateway changes nothing. Without any live pod it returns none. It ignores reports without a pod.
func gateways(s *Seen, rollout bool) fleet {
	reports := make(map[string]*v1alpha1.SyncReport, len(s.Reports))
	for _, r := range s.Reports {
		reports[r.Name] = r
	}
	known := make(map[string]*v1alpha1.DiscoveredGateway, len(s.GatewaySync.Status.DiscoveredGateways))
	for i := range s.GatewaySync.Status.DiscoveredGateways {
		g := &s.GatewaySync.Status.DiscoveredGateways[i]
		known[g.Name] = g
	}
	pods := slices.Clone(s.Pods)
	slices.SortFunc(pods, func(a, b Pod) int { return strings.Compare(a.Name, b.Name) })
	var out, ending fleet
	index := map[string]int{}
	for _, p := range pods {
		report := reports[p.Name]
		if report != nil && !Owns(p, report) {
			report = nil
		}
		if p.Ended && !p.Ending || !p.belongsTo(s.GatewaySync.Name, report != nil, s.Sole) {
			continue
		}
		g := s.gateway(p, report, known)
		if p.Ended {
			if p.Agent && (rollout || !g.synced) {
				ending = append(ending, g)
			}
			continue
		}
		if i, ok := index[g.Name]; ok {
			out[i].merge(g)
			continue
		}
		index[g.Name] = len(out)
		out = append(out, g)
	}
	if len(out) > 0 { // otherwise see absentGateways
		for _, g := range ending {
			if _, ok := index[g.Name]; !ok {
				index[g.Name] = len(out)
				g.synced, g.stale, g.delivered, g.handled, g.planned = false, false, false, false, ""
				if !rollout || g.Reason != v1alpha1.ReasonPaused && g.Reason != v1alpha1.ReasonDryRun { // a rollout leaves out gateways with these reasons
					g.SyncStatus, g.Reason, g.Message = v1alpha1.GatewayPending, v1alpha1.ReasonProgressing, "its pod is terminating"
				}
				out = append(out, g)
			}
		}
	}
	slices.SortFunc(out, func(a, b gateway) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// Owns reports whether a report belongs to this pod. An earlier pod with the same name, and another volume, may have left one.
// A report without an owner belongs to no pod.
func Owns(p Pod, r *v1alpha1.SyncReport) bool {
	return p.UID != "" && slices.ContainsFunc(r.OwnerReferences, func(o metav1.OwnerReference) bool { return o.Kind == "Pod" && o.UID == p.UID })
}

// gateway returns the row of a pod.
func (s *Seen) gateway(p Pod, r *v1alpha1.SyncReport, known map[string]*v1alpha1.DiscoveredGateway) gateway {
	g := gateway{pods: []Pod{p}}
	g.PodName = p.Name
	name, err := gatewaypod.GatewayName(p.Name, p.Labels, p.Annotations)
	g.Name = name
	switch {
	case err != nil:
		g.Name = p.Name
		g.SyncStatus, g.Reason, g.Message = v1alpha1.GatewayError, v1alpha1.ReasonInvalidAnnotation, err.Error()
		return g
	case r == nil && !p.Agent:
		g.SyncStatus, g.Reason = v1alpha1.GatewayMissingSidecar, v1alpha1.ReasonMissingSidecar
		g.Message = "the pod asks for an agent and has none; its Events say why it was not injected"
		return g
	case r == nil:
		g.copyFrom(known[g.Name])
		g.SyncStatus, g.Reason, g.Message = v1alpha1.GatewayPending, v1alpha1.ReasonProgressing, "its agent has not reported yet"
		if p.Stuck != "" {
			g.Message += ": " + p.Stuck
		}
		if err := s.Unreadable[p.Name]; err != nil {
			g.Message = failure.Cut(err.Error(), maxMessage)
		}
		return g
	case r.Status.Gateway != "":
		g.Name = failure.Cut(r.Status.Gateway, 253) // the agent may have started with this name before the annotation changed
	}
	g.copyFrom(known[g.Name])
	g.report(s, &r.Status)
	if g.Name != name && p.Labels[v1alpha1.LabelCRName] != "" { // otherwise the agent was added by hand with its own name
		says := fmt.Sprintf("its pod asks for the name %s, which takes effect when it is recreated", name)
		if g.Message != "" {
			says += "; " + g.Message
		}
		g.Message = failure.Cut(says, maxMessage)
	}
	return g
}

// profile returns the profile of a gateway, or the one that its pod asks for if it has not reported.
func (g *gateway) profile() string {
	if g.Profile != "" {
		return g.Profile
	}
	for _, p := range g.pods {
		if name, _ := gatewaypod.Annotation(p.Annotations, v1alpha1.AnnotationProfile); name != "" {
			return name
		}
	}
	return v1alpha1.DefaultProfile
}

// copyFrom copies fields of the last row that the agent may not report yet.
func (g *gateway) copyFrom(was *v1alpha1.DiscoveredGateway) {
	if was != nil {
		g.LastSyncTime, g.LastSyncDuration = was.LastSyncTime.DeepCopy(), was.LastSyncDuration
		g.SyncedCommit, g.SyncedRef = was.SyncedCommit, was.SyncedRef
		g.Profile, g.AgentVersion = was.Profile, was.AgentVersion
		g.ProposalState, g.Proposal = was.ProposalState, was.Proposal
		g.LastSnapshot, g.AutoRollback = was.LastSnapshot.DeepCopy(), was.AutoRollback
		g.SyncHistory = slices.Clone(was.SyncHistory)
	}
}

// setHistory copies the reported records that the API server accepts.
func (g *gateway) setHistory(list []v1alpha1.SyncRecord) {
	g.SyncHistory = nil
	for _, r := range list[:min(len(list), maxGatewayHistory)] {
		if validation.SyncRecordValid(&r) {
			g.SyncHistory = append(g.SyncHistory, r)
		}
	}
}

// snapshot copies a reported snapshot if it is valid: the API server rejects a status with an invalid field.
func (g *gateway) snapshot(s *v1alpha1.GatewaySnapshot) {
	g.LastSnapshot = nil
	if s != nil && annotation.RestoresOn(s.ID, g.Name) == s.ID && s.ID != "" {
		g.LastSnapshot = &v1alpha1.GatewaySnapshot{ID: s.ID, Size: failure.Cut(s.Size, 32), Timestamp: s.Timestamp.DeepCopy()}
		if s.Stored == v1alpha1.StoredLocal || s.Stored == v1alpha1.StoredRemote || s.Stored == v1alpha1.StoredBoth {
			g.LastSnapshot.Stored = s.Stored
		}
	}
}

// report copies what an agent reports. A report about an earlier target or spec does not describe the current state.
func (g *gateway) report(s *Seen, r *v1alpha1.SyncReportStatus) {
	g.Profile, g.AgentVersion = failure.Cut(r.Profile, 63), failure.Cut(r.AgentVersion, 64)
	g.SyncStatus, g.Reason, g.Message = r.Phase, v1alpha1.Reason(failure.Cut(string(r.Reason), maxReason)), failure.Cut(r.Message, maxMessage)
	g.LastScanResult, g.Drift = failure.Cut(r.Scan, maxScan), r.Drift.Files
	g.propose(r.Proposal)
	g.snapshot(r.LastSnapshot)
	g.AutoRollback = ""
	if len(r.AutoRollback) == 40 && syntax.IsCommitPrefix(r.AutoRollback) {
		g.AutoRollback = r.AutoRollback
	}
	g.setHistory(r.SyncHistory)
	g.FilesChanged, g.FilesSaved = changed(r.Files), max(0, r.Files.Saved)
	g.Notes = nil
	for _, note := range r.Notes[:min(len(r.Notes), maxNotes)] {
		g.Notes = append(g.Notes, failure.Cut(note, maxNote))
	}
	g.ProjectsSynced = r.Projects[:min(len(r.Projects), maxProjects)]
	if r.Revision == s.Target.Revision {
		g.planned = r.Planned
	}
	g.delivered = r.Phase.Synced()
	switch { // the ref of the commit is known only while the commit is the target
	case r.Commit == r.Target || r.Target == "":
		g.SyncedRef = failure.Cut(r.Ref, 255)
	case r.Commit != g.SyncedCommit:
		g.SyncedRef = ""
	}
	g.SyncedCommit = failure.Cut(r.Commit, 40)
	if !reportable(r.Phase) { // the API server would reject the whole status
		g.SyncStatus, g.Message = v1alpha1.GatewayError, failure.Cut(fmt.Sprintf("its agent reports %.40q, which is not a state; %s", r.Phase, r.Message), maxMessage)
	}
	if g.delivered && r.Started != nil {
		g.LastSyncTime, g.LastSyncDuration = &metav1.Time{Time: r.Started.Time}, failure.Cut(r.Duration, 32)
	}
	g.handled = s.Target.RequestedAt == "" || r.HandledRequest == s.Target.RequestedAt
	of := s.GatewaySync.Generation
	current := s.Target.Generation == of && r.Generation == of && r.Revision == s.Target.Revision && (r.Target == s.Target.Commit || r.Target == "")
	g.synced = g.delivered && current && r.Commit != "" && r.Commit == s.Target.Commit
	g.stale = g.delivered && !current && r.Commit != "" && r.Commit == s.Target.Commit
	g.explain(current, s.GatewaySync.Paused() || r.Paused)
}

// explain says why the gateway does not run the target, with the words of its report. current means that the report is about the target.
func (g *gateway) explain(current, paused bool) {
	says := string(g.Reason)
	if g.Message != "" && !g.delivered {
		says += ": " + g.Message
	}
	switch {
	case g.synced:
	case current && !g.delivered:
		if stuck := g.pods[0].Stuck; stuck != "" && retriesByItself(g.Reason) { // such as a gateway that crashes while the agent waits for it
			g.Message = failure.Cut(g.Message+"; "+stuck, maxMessage)
		}
		if paused && retriesByItself(g.Reason) { // nothing waits for a paused gateway: neither a deadline nor a request
			g.SyncStatus, g.Reason, g.Message = v1alpha1.GatewayHeld, v1alpha1.ReasonPaused, failure.Cut("paused; "+says, maxMessage)
			g.handled = true
		}
	case paused && g.SyncStatus == v1alpha1.GatewaySyncing:
		g.Message = "a sync that began before the pause is still running"
	case paused:
		g.SyncStatus, g.Reason, g.Message = v1alpha1.GatewayHeld, v1alpha1.ReasonPaused, "paused"
	default:
		g.SyncStatus, g.Reason = v1alpha1.GatewayPending, v1alpha1.ReasonProgressing
		g.Message = failure.Cut("has not begun to sync the current target; before: "+says, maxMessage)
	}
}

// retriesByItself reports whether an agent retries without another spec or commit.
func retriesByItself(r v1alpha1.Reason) bool {
	return r.Class() == v1alpha1.ClassWorking || r.Class() == v1alpha1.ClassRetry || r == v1alpha1.ReasonGatewayForbidden || r == v1alpha1.ReasonGatewayUntrusted
}

// reportable reports whether an agent may report a state.
func reportable(s v1alpha1.GatewaySyncState) bool {
	return s != v1alpha1.GatewayMissingSidecar && slices.Contains(v1alpha1.GatewayStates, s)
}

// changed returns how many files a sync changed.
func changed(f v1alpha1.FileCounts) int32 {
	sum := int64(f.Added) + int64(f.Modified) + int64(f.Deleted)
	return int32(max(0, min(sum, 1<<31-1)))
}

// merge adds another live pod with the same gateway name to the row. It is unknown which of them is the gateway.
func (g *gateway) merge(other gateway) {
	g.pods = append(g.pods, other.pods...)
	names := make([]string, len(g.pods))
	for i, p := range g.pods {
		names[i] = p.Name
	}
	g.PodName = failure.Cut(strings.Join(names, ", "), 1024)
	g.synced, g.stale, g.delivered, g.handled, g.planned = false, false, false, false, ""
	g.SyncStatus, g.Reason = v1alpha1.GatewayHeld, v1alpha1.ReasonDuplicateGateway
	g.Message = failure.Cut("live pods "+list(names)+" claim the same gateway name: give each its own name with the annotation "+v1alpha1.AnnotationGatewayName, maxMessage)
}
