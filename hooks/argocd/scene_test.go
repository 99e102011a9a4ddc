//go:build !race

package argocd

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/annotation"
	"stoker.io/stoker/api/v1alpha1/desiredref"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/status"
)

// scene is a fleet whose status the lead's own code writes, so that the scripts see realistic input.
type scene struct {
	t testing.TB
	status.Seen
}

// newScene returns a GatewaySync for main with two gateways that run it.
func newScene(t testing.TB) *scene {
	gs := &v1alpha1.GatewaySync{}
	gs.APIVersion, gs.Kind = "stoker.io/v1alpha1", "GatewaySync"
	gs.Namespace, gs.Name, gs.UID, gs.Generation, gs.ResourceVersion = "plant", "site", "6f1b0c3e-0d4c-4d8e-9a55-0d3f3f1c2a10", 1, "41"
	gs.CreationTimestamp = metav1.NewTime(noon.Add(-time.Hour))
	gs.Spec.Git.Repo, gs.Spec.Git.Ref = "https://git.example.com/site.git", "main"
	gs.Spec.Sync.Profiles = map[string]v1alpha1.SyncProfile{"default": {Mappings: []v1alpha1.Mapping{{Source: "projects", Destination: "projects"}}}}
	s := &scene{t: t, Seen: status.Seen{GatewaySync: gs, Now: noon}}
	s.Ref = status.Ref{Polled: true, Desired: desiredref.Desired{Ref: "main"}}
	s.Target = v1alpha1.SyncTargetSpec{Format: 1, Revision: 1, Generation: 1, Ref: "main", RefName: "refs/heads/main", Commit: commitA, Requests: annotation.Hash(gs)}
	for i := range 2 {
		name := fmt.Sprintf("line-%d", i)
		uid := types.UID("0d4c4d8e-0000-4000-8000-00000000000" + fmt.Sprint(i))
		s.Pods = append(s.Pods, status.Pod{Namespace: "plant", Name: name, UID: uid, Agent: true,
			Labels: map[string]string{v1alpha1.LabelCRName: "site"}, Annotations: map[string]string{v1alpha1.AnnotationInject: "true", v1alpha1.AnnotationGatewayName: name}})
		r := &v1alpha1.SyncReport{}
		r.Name, r.Namespace = name, "plant"
		r.OwnerReferences = []metav1.OwnerReference{{Kind: "Pod", Name: name, UID: uid}}
		r.Status = v1alpha1.SyncReportStatus{Format: 1, Gateway: name, Profile: "default", GatewayDetails: v1alpha1.GatewayDetails{AgentVersion: "v1"}}
		s.Reports = append(s.Reports, r)
		s.reportSynced(i)
	}
	s.write()
	return s
}

// reportSynced makes a gateway report that it runs the target.
func (s *scene) reportSynced(i int) {
	r := &s.Reports[i].Status
	started := metav1.NewTime(s.Now.Add(-time.Minute))
	r.Phase, r.Reason, r.Message, r.Commit, r.Target = v1alpha1.GatewaySynced, v1alpha1.ReasonSynced, "", s.Target.Commit, s.Target.Commit
	r.Ref, r.Revision, r.Generation, r.Started, r.Duration, r.HandledRequest = s.Target.Ref, s.Target.Revision, s.Target.Generation, &started, "1.2s", s.Target.RequestedAt
}

// report makes a gateway report that it still runs commitA, in the given state, when it should run the target.
func (s *scene) report(i int, phase v1alpha1.GatewaySyncState, reason v1alpha1.Reason, message string) {
	s.reportSynced(i)
	r := &s.Reports[i].Status
	r.Phase, r.Reason, r.Message, r.Commit = phase, reason, message, commitA
}

// annotate sets annotations, as a request does.
func (s *scene) annotate(pairs ...string) {
	s.GatewaySync = s.GatewaySync.DeepCopy()
	if s.GatewaySync.Annotations == nil {
		s.GatewaySync.Annotations = map[string]string{}
	}
	for i := 0; i < len(pairs); i += 2 {
		s.GatewaySync.Annotations[pairs[i]] = pairs[i+1]
	}
}

// resolve makes the lead resolve the desired ref, to a commit or to an error.
func (s *scene) resolve(commit string, err error) {
	s.t.Helper()
	want, bad := desiredref.Of(s.GatewaySync, "")
	require.NoError(s.t, bad)
	s.Ref = status.Ref{Polled: true, Desired: want, Err: err, Answered: want.RequestedAt}
	if err == nil {
		s.Target.Ref, s.Target.Commit, s.Target.RequestedAt, s.Target.Generation = want.Ref, commit, want.RequestedAt, s.GatewaySync.Generation
		s.Target.Revision++
	}
}

// editSpec changes the spec.
func (s *scene) editSpec(change func(*v1alpha1.GatewaySyncSpec)) {
	s.GatewaySync = s.GatewaySync.DeepCopy()
	change(&s.GatewaySync.Spec)
	s.GatewaySync.Generation++
}

// write writes the status as the lead does.
func (s *scene) write() {
	s.t.Helper()
	st := status.Summarize(s.Seen).Status
	st.ConfirmedAt = &metav1.Time{Time: noon} // test/argocd replaces this exact time with now, because Argo CD uses the real clock
	raw, err := json.Marshal(st)
	require.NoError(s.t, err)
	s.GatewaySync = s.GatewaySync.DeepCopy()
	s.GatewaySync.Status = v1alpha1.GatewaySyncStatus{}
	require.NoError(s.t, json.Unmarshal(raw, &s.GatewaySync.Status))
}

func (s *scene) advance(d time.Duration) { s.Now = s.Now.Add(d) }

func failed(reason v1alpha1.Reason, message string) error {
	return failure.New(reason, "%s", message)
}
