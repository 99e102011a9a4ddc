package lead

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/annotation"
	"stoker.io/stoker/api/v1alpha1/desiredref"
	"stoker.io/stoker/internal/status"
)

const (
	commitA = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	commitB = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

// newFleet returns a GatewaySync with ref main at commitA, and n gateways that run it.
func newFleet(n int) status.Seen {
	gs := &v1alpha1.GatewaySync{}
	gs.Namespace, gs.Name, gs.UID, gs.Generation, gs.ResourceVersion = "plant", "site", "uid-site", 1, "1"
	gs.Spec.Git.Repo, gs.Spec.Git.Ref = "https://git.example.com/site.git", "main"
	gs.Spec.Sync.Profiles = map[string]v1alpha1.SyncProfile{"default": {Mappings: []v1alpha1.Mapping{{Source: "projects", Destination: "projects"}}}}
	s := status.Seen{GatewaySync: gs, Now: noon, Ref: status.Ref{Polled: true, Desired: desiredref.Desired{Ref: "main"}},
		Target: v1alpha1.SyncTargetSpec{Format: 1, Revision: 1, Generation: 1, Ref: "main", RefName: "refs/heads/main", Commit: commitA, Requests: annotation.Hash(gs)}}
	for i := range n {
		addGateway(&s, fmt.Sprintf("gw-%d", i))
	}
	return s
}

// addGateway adds a pod whose agent reports Synced.
func addGateway(s *status.Seen, name string) *v1alpha1.SyncReport {
	uid := types.UID("uid-" + name)
	s.Pods = append(s.Pods, status.Pod{Namespace: "plant", Name: name + "-0", UID: uid, Agent: true,
		Labels: map[string]string{v1alpha1.LabelCRName: "site"}, Annotations: map[string]string{v1alpha1.AnnotationInject: "true", v1alpha1.AnnotationGatewayName: name}})
	started := metav1.NewTime(noon.Add(-time.Minute))
	r := &v1alpha1.SyncReport{ObjectMeta: metav1.ObjectMeta{Name: name + "-0", Namespace: "plant", OwnerReferences: []metav1.OwnerReference{{Kind: "Pod", Name: name + "-0", UID: uid}}}}
	r.Status = v1alpha1.SyncReportStatus{Format: 1, Gateway: name, Profile: "default", Phase: v1alpha1.GatewaySynced, Reason: v1alpha1.ReasonSynced,
		Ref: "main", Commit: commitA, Target: commitA, Revision: 1, Generation: 1, Started: &started, Duration: "1.2s", GatewayDetails: v1alpha1.GatewayDetails{AgentVersion: "v1"}}
	s.Reports = append(s.Reports, r)
	return r
}

func statusOf(s status.Seen) *v1alpha1.GatewaySyncStatus {
	sum := status.Summarize(s)
	return &sum.Status
}

// condition formats a condition as "True/Synced". It returns "" if the condition does not exist.
func condition(st *v1alpha1.GatewaySyncStatus, name string) string {
	if c := meta.FindStatusCondition(st.Conditions, name); c != nil {
		return string(c.Status) + "/" + c.Reason
	}
	return ""
}

func messageOf(st *v1alpha1.GatewaySyncStatus, name string) string {
	if c := meta.FindStatusCondition(st.Conditions, name); c != nil {
		return c.Message
	}
	return ""
}

// unreachable makes the agent of a gateway report that it cannot be reached.
func (p *paper) unreachable(i int) {
	r := &p.Reports[i].Status
	r.Phase, r.Reason, r.Message, r.Commit = v1alpha1.GatewayError, v1alpha1.ReasonGatewayUnreachable, "refused", ""
	r.Target, r.Revision, r.Generation = commitA, p.Target.Revision, p.Target.Generation
}
