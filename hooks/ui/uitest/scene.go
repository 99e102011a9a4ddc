// Package uitest creates fleets for tests and screenshots of the page of "stoker ui": GatewaySyncs on a real API server, with a
// status like one that a lead writes, and fake agents that answer the requests of the page. The gateways of a fleet are in many
// different states.
package uitest

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"

	"stoker.io/stoker/agent/audit"
	"stoker.io/stoker/agent/disk"
	"stoker.io/stoker/agent/loop"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/sync"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/desiredref"
	"stoker.io/stoker/api/v1alpha1/gatewaypod"
	"stoker.io/stoker/hooks/agents/agentstest"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/internal/status/statustest"
	"stoker.io/stoker/test/cluster/kubetest"
)

// The commits of all fleets: Target is the desired one. Gateways that are behind run Old, except for one whose scan of Target failed.
const (
	Old    = "3abea812817f08376beec80744660b4fbcb76fc2"
	Target = "8a9ef4f0c1d2e3f405162738495a6b7c8d9e0f12"
)

// Scene is a namespace for fleets.
type Scene struct {
	Cluster   *kubetest.Cluster
	Namespace string
	Agents    *agentstest.Proxy
	t         testing.TB
	fleets    []string
}

// New returns a Scene in a namespace of its own.
func New(t testing.TB, cluster *kubetest.Cluster) *Scene {
	t.Helper()
	return NewIn(t, cluster, cluster.Namespace(t))
}

// NewIn returns a Scene in a namespace that exists.
func NewIn(t testing.TB, cluster *kubetest.Cluster, namespace string) *Scene {
	t.Helper()
	return &Scene{cluster, namespace, agentstest.New(t, cluster), t, nil}
}

// trouble is what a gateway that is behind reports.
type trouble struct {
	state   v1alpha1.GatewaySyncState
	reason  v1alpha1.Reason
	message string
}

var troubles = []trouble{
	{v1alpha1.GatewayHeld, v1alpha1.ReasonDesignerSessionActive, "Designer session of maria on project filling since 07:42; the sync continues when the session is closed"},
	{v1alpha1.GatewayError, v1alpha1.ReasonGatewayForbidden, "POST /data/api/v1/scan/projects: 403: the API key lacks the permission Write"},
	{v1alpha1.GatewaySyncing, v1alpha1.ReasonProgressing, "syncing to " + Target[:7]},
	{v1alpha1.GatewayHeld, v1alpha1.ReasonMassDeletion, "would delete 214 of 530 owned files; to confirm: stoker sync line --confirm-deletion=" + Target[:7]},
	{v1alpha1.GatewayPending, v1alpha1.ReasonWaitingForGateway, "the gateway at 127.0.0.1:8088 refuses connections"},
}

// Fleet writes a GatewaySync with n gateways. Every step-th gateway is behind, or none if step is 0. A few others have drift or
// an open proposal.
func (s *Scene) Fleet(name string, n, step int) *v1alpha1.GatewaySync {
	s.t.Helper()
	now := time.Now().UTC().Truncate(time.Second)
	at := func(ago time.Duration) metav1.Time { return metav1.Time{Time: now.Add(-ago)} }
	gs := &v1alpha1.GatewaySync{ObjectMeta: metav1.ObjectMeta{Name: name}}
	gs.Spec.Git.Repo, gs.Spec.Git.Ref = "https://github.com/plant/"+name+".git", "main"
	gs.Spec.Snapshots = &v1alpha1.SnapshotsSpec{Enabled: true, GatewayBackup: v1alpha1.GatewayBackupBeforeSync, Storage: &v1alpha1.SnapshotStorage{Type: v1alpha1.StorageS3,
		Bucket: "plant-snapshots"}}
	st := v1alpha1.GatewaySyncStatus{
		Target:  &v1alpha1.TargetStatus{Ref: "main", RefShort: "main", Commit: Target, CommitShort: Target[:7], Subject: "Take the new alarm views (Ann Berg)"},
		History: []v1alpha1.CommitRecord{{Ref: "main", Commit: Old, Subject: "Fill tank 4 to 80 percent (Li Wei)", At: at(26 * time.Hour)}, {Ref: "v2.3.0", Commit: strings.Repeat("5c", 20), At: at(9 * 24 * time.Hour)}},
	}
	synced := 0
	for i := range n {
		g := v1alpha1.DiscoveredGateway{
			Name: fmt.Sprintf("%s-%d", name, i+1), PodName: fmt.Sprintf("%s-%d", name, i), Profile: []string{"edge", "hmi", "historian"}[i%3],
			SyncStatus: v1alpha1.GatewaySynced, Reason: v1alpha1.ReasonSynced, SyncedCommit: Target, SyncedRef: "main", GatewayDetails: v1alpha1.GatewayDetails{AgentVersion: "v0.1.0"},
			LastSyncDuration: "2.4s", FilesChanged: 12, LastScanResult: "projects: done in 1.1s", ProjectsSynced: []string{"filling", "packaging"},
		}
		when := at(time.Duration(20+i%40) * time.Minute)
		g.LastSyncTime = &when
		if step > 0 && i%step == step-1 {
			x := troubles[(i/step)%len(troubles)]
			g.SyncStatus, g.Reason, g.Message, g.SyncedCommit = x.state, x.reason, x.message, Old
			when := at(26 * time.Hour)
			g.LastSyncTime, g.Notes = &when, []string{"the trial of the gateway has expired"}
		} else {
			synced++
			if i%17 == 5 {
				g.Drift = 2
			}
			if i%23 == 7 {
				g.ProposalState, g.Proposal = v1alpha1.ProposalOpen, "https://git.example.com/plant/pulls/"+fmt.Sprint(40+i)
			}
		}
		g.LastSnapshot = &v1alpha1.GatewaySnapshot{ID: g.Name + "-" + g.LastSyncTime.UTC().Format("20060102-150405"), Size: "341Ki", Timestamp: g.LastSyncTime, Stored: v1alpha1.StoredBoth}
		if n <= 100 { // as the lead does, so that the object is not too large
			g.SyncHistory = []v1alpha1.SyncRecord{{Timestamp: *g.LastSyncTime, Commit: g.SyncedCommit, Ref: "main", FilesChanged: 12, Duration: "2.4s", Result: v1alpha1.ReasonSynced, SnapshotID: g.LastSnapshot.ID},
				{Timestamp: at(27 * time.Hour), Commit: Old, Ref: "main", Duration: "2m0s", Result: v1alpha1.ReasonScanFailed}}
		}
		st.DiscoveredGateways = append(st.DiscoveredGateways, g)
	}
	st.GatewaysReady = fmt.Sprintf("%d/%d", synced, n)
	condition := func(kind string, is bool, reason v1alpha1.Reason, message string) {
		c := metav1.Condition{Type: kind, Status: metav1.ConditionFalse, Reason: string(reason), Message: message, LastTransitionTime: at(3*time.Hour + 12*time.Minute), ObservedGeneration: 1}
		if is {
			c.Status = metav1.ConditionTrue
		}
		meta.SetStatusCondition(&st.Conditions, c)
	}
	condition(v1alpha1.ConditionRefResolved, true, v1alpha1.ReasonRefResolved, "main is "+Target[:7])
	condition(v1alpha1.ConditionProfilesValid, true, v1alpha1.ReasonProfilesValid, "3 profiles are valid")
	if synced == n {
		condition(v1alpha1.ConditionAllGatewaysSynced, true, v1alpha1.ReasonSynced, fmt.Sprintf("all %d gateways run main at %s", n, Target[:7]))
		condition(v1alpha1.ConditionReady, true, v1alpha1.ReasonSynced, fmt.Sprintf("all %d gateways run main at %s", n, Target[:7]))
	} else {
		message := fmt.Sprintf("%d of %d gateways run main at %s", synced, n, Target[:7])
		condition(v1alpha1.ConditionAllGatewaysSynced, false, v1alpha1.ReasonDesignerSessionActive, message)
		condition(v1alpha1.ConditionReady, false, v1alpha1.ReasonDesignerSessionActive, message)
	}
	return s.Write(gs, st)
}

// Config writes a ConfigSync whose condition Ready has a reason. It is ready if the reason is Synced.
func (s *Scene) Config(name string, reason v1alpha1.Reason, message string) {
	s.t.Helper()
	client, err := dynamic.NewForConfig(s.Cluster.RESTConfig())
	require.NoError(s.t, err)
	syncs := kube.ConfigSyncs(client, s.Namespace)
	cs := &v1alpha1.ConfigSync{ObjectMeta: metav1.ObjectMeta{Name: name}}
	cs.Spec.Source.Git = &v1alpha1.ConfigGit{RepoURL: "https://git.example.com/plant/config.git", Branch: "main"}
	cs, err = syncs.Create(s.t.Context(), cs, metav1.CreateOptions{})
	require.NoError(s.t, err)
	since := metav1.Time{Time: time.Now().UTC().Truncate(time.Second).Add(-47 * time.Minute)}
	c := metav1.Condition{Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: string(reason), Message: message, LastTransitionTime: since, ObservedGeneration: 1}
	o := &v1alpha1.Outcome{Phase: v1alpha1.OutcomeProgressing, Ref: "main", Commit: Target, Reason: reason, Message: message}
	ready := "3/4"
	if reason == v1alpha1.ReasonSynced {
		c.Status, o.Phase, ready = metav1.ConditionTrue, v1alpha1.OutcomeSucceeded, "4/4"
	}
	cs.Status = v1alpha1.ConfigSyncStatus{ObservedGeneration: cs.Generation, ObservedRequest: desiredref.Key(cs), Outcome: o, SourceRef: "main", SourceRevision: Target,
		SourceRevisionShort: Target[:7], SourcePath: "kubernetes", TargetsReady: ready, Conditions: []metav1.Condition{c}}
	_, err = syncs.Update(s.t.Context(), cs, metav1.UpdateOptions{}, "status")
	require.NoError(s.t, err)
}

// Rollout writes a GatewaySync with six gateways in three stages, whose rollout has reached the second one.
func (s *Scene) Rollout(name string, phase v1alpha1.RolloutPhase) *v1alpha1.GatewaySync {
	s.t.Helper()
	now := time.Now().UTC().Truncate(time.Second)
	at := func(ago time.Duration) metav1.Time { return metav1.Time{Time: now.Add(-ago)} }
	gs := &v1alpha1.GatewaySync{ObjectMeta: metav1.ObjectMeta{Name: name}}
	gs.Spec.Git.Repo, gs.Spec.Git.Ref = "https://git.example.com/plant/"+name+".git", "main"
	gs.Spec.Deployment = &v1alpha1.DeploymentSpec{Stages: []v1alpha1.Stage{
		{Name: "dev", Gateways: []string{name + "-1"}},
		{Name: "canary", Gateways: []string{name + "-2", name + "-3"}, PostSyncWait: "30m", HealthCheck: &v1alpha1.HealthCheck{URL: "http://" + name + "-2:8088/StatusPing"}},
		{Name: "plant", Gateways: []string{"*"}, RequireApproval: true}}}
	since := at(12 * time.Minute)
	o := &v1alpha1.RolloutStatus{Commit: Target, From: Old, Step: 2, Steps: 3, Stage: "canary", Phase: phase, Since: &since}
	reason, synced, waits := v1alpha1.ReasonProgressing, 3, v1alpha1.DiscoveredGateway{SyncStatus: v1alpha1.GatewayHeld, Reason: v1alpha1.ReasonGateClosed,
		Message: Target[:7] + " waits: 2 of 3 steps are open, and this gateway is in step 3"}
	switch phase {
	case v1alpha1.RolloutWaiting:
		o.Stage, o.Message, reason = "plant", "stage plant waits for the approval plant@"+Target, v1alpha1.ReasonApprovalNeeded
		waits.Reason, waits.Message = reason, Target[:7]+" waits for an approval of stage plant: stoker approve "+name+" plant"
	case v1alpha1.RolloutSoaking:
		o.Message, reason = "stage canary runs "+Target[:7]+" and waits until it is "+now.Add(18*time.Minute).Format(time.RFC3339), v1alpha1.ReasonRolloutSoaking
	case v1alpha1.RolloutAborted:
		o.Message, reason, synced = "stage canary: "+name+"-3 ScanFailed: the scan did not end within 2m0s; 2 of 6 got "+Target[:7]+" and stay for inspection, 4 never got it",
			v1alpha1.ReasonCanaryStageFailed, 2
		waits.Message = "the rollout of " + Target[:7] + " was aborted, and this gateway does not have it"
	}
	st := v1alpha1.GatewaySyncStatus{Target: &v1alpha1.TargetStatus{Ref: "main", RefShort: "main", Commit: Target, CommitShort: Target[:7]}, Rollout: o,
		GatewaysReady: fmt.Sprintf("%d/6", synced), LastGood: &v1alpha1.CommitRecord{Ref: "main", Commit: Old, At: at(26 * time.Hour)},
		History: []v1alpha1.CommitRecord{{Ref: "main", Commit: Old, At: at(26 * time.Hour)}}}
	for i := range 6 {
		g := waits
		if i < synced {
			g = v1alpha1.DiscoveredGateway{SyncStatus: v1alpha1.GatewaySynced, Reason: v1alpha1.ReasonSynced, SyncedCommit: Target}
		} else if g.SyncedCommit = Old; i == 2 {
			g = v1alpha1.DiscoveredGateway{SyncStatus: v1alpha1.GatewayError, Reason: v1alpha1.ReasonScanFailed, Message: "the scan did not end within 2m0s", SyncedCommit: Target}
		}
		g.Name, g.PodName, g.SyncedRef = fmt.Sprintf("%s-%d", name, i+1), fmt.Sprintf("pod-%s-%d", name, i), "main"
		when := at(time.Duration(14+i) * time.Minute)
		g.LastSyncTime = &when
		st.DiscoveredGateways = append(st.DiscoveredGateways, g)
	}
	for _, kind := range []string{v1alpha1.ConditionAllGatewaysSynced, v1alpha1.ConditionReady} {
		meta.SetStatusCondition(&st.Conditions, metav1.Condition{Type: kind, Status: metav1.ConditionFalse, Reason: string(reason), ObservedGeneration: 1,
			Message: fmt.Sprintf("%d of 6 gateways run main at %s; %s", synced, Target[:7], o.Message), LastTransitionTime: since})
	}
	return s.Write(gs, st)
}

// Write writes the status of a GatewaySync, as a lead that is alive does. It creates the GatewaySync if it does not exist. An existing one keeps
// its spec.
func (s *Scene) Write(gs *v1alpha1.GatewaySync, st v1alpha1.GatewaySyncStatus) *v1alpha1.GatewaySync {
	s.t.Helper()
	ctx := s.t.Context()
	client, err := dynamic.NewForConfig(s.Cluster.RESTConfig())
	require.NoError(s.t, err)
	syncs := kube.GatewaySyncs(client, s.Namespace)
	made, err := syncs.Create(ctx, gs, metav1.CreateOptions{})
	if err != nil {
		made, err = syncs.Get(ctx, gs.Name)
	}
	require.NoError(s.t, err)
	st.ObservedGeneration = made.Generation
	st.ConfirmedAt = &metav1.Time{Time: time.Now().UTC().Truncate(time.Second)}
	made.Status = st
	statustest.Complete(made)
	made, err = syncs.Update(ctx, made, metav1.UpdateOptions{}, "status")
	require.NoError(s.t, err)
	s.Lead(gs.Name)
	if !slices.Contains(s.fleets, gs.Name) {
		s.fleets = append(s.fleets, gs.Name)
	}
	return made
}

// Confirm confirms all statuses and renews the locks of their leads, in a test that takes minutes.
func (s *Scene) Confirm() {
	s.t.Helper()
	client, err := dynamic.NewForConfig(s.Cluster.RESTConfig())
	require.NoError(s.t, err)
	syncs := kube.GatewaySyncs(client, s.Namespace)
	for _, name := range s.fleets {
		gs, err := syncs.Get(s.t.Context(), name)
		require.NoError(s.t, err)
		gs.Status.ConfirmedAt = &metav1.Time{Time: time.Now().UTC().Truncate(time.Second)}
		_, err = syncs.Update(s.t.Context(), gs, metav1.UpdateOptions{}, "status")
		require.NoError(s.t, err)
		s.Lead(name)
	}
}

// Lead renews the lock of a fleet's lead, so that the status counts as confirmed.
func (s *Scene) Lead(name string) {
	s.t.Helper()
	client, err := dynamic.NewForConfig(s.Cluster.RESTConfig())
	require.NoError(s.t, err)
	targets := kube.SyncTargets(client, s.Namespace)
	lock := v1alpha1.LeadRecord{Holder: name + "-0_1", DurationSeconds: 60, Renewed: &metav1.MicroTime{Time: time.Now()}}
	t := &v1alpha1.SyncTarget{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.SyncTargetSpec{Format: v1alpha1.TargetFormat, Lead: lock}}
	if _, err := targets.Create(s.t.Context(), t, metav1.CreateOptions{}); err == nil {
		return
	}
	t, err = targets.Get(s.t.Context(), name)
	require.NoError(s.t, err)
	t.Spec.Lead = lock
	_, err = targets.Update(s.t.Context(), t, metav1.UpdateOptions{})
	require.NoError(s.t, err)
}

// Pod creates the pod of a gateway, with an agent.
func (s *Scene) Pod(name string) {
	s.t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{Containers: []corev1.Container{
		{Name: "gateway", Image: "gateway"}, {Name: gatewaypod.AgentContainer, Image: "agent"}}}}
	_, err := s.Cluster.Client(s.t).CoreV1().Pods(s.Namespace).Create(s.t.Context(), pod, metav1.CreateOptions{})
	require.NoError(s.t, err)
}

// Agent creates the pod of a gateway, and a fake agent that answers with a plan, drift, a snapshot, a proposal, three past
// syncs, the files that the second of them changed, and the text of files.
func (s *Scene) Agent(gateway, pod string) {
	s.t.Helper()
	s.Pod(pod)
	now := time.Now().UTC().Truncate(time.Second)
	older, old, target := id(s.t, strings.Repeat("5c", 20)), id(s.t, Old), id(s.t, Target)
	state := loop.State{
		GatewayName: gateway, Ref: "main", Commit: old, Target: target,
		Plan: []string{"3abea81 → 8a9ef4f: 2 to add, 2 to update, 1 to delete", "+ projects/filling/com.inductiveautomation.perspective/views/Alarms/view.json",
			"+ projects/filling/com.inductiveautomation.perspective/views/Alarms/resource.json", "~ projects/filling/project.json",
			"~ projects/packaging/ignition/script-python/oee/code.py", "- projects/packaging/ignition/named-query/old/query.sql"},
		Drift: &disk.Drift{Files: 2, Paths: []disk.Drifted{{Path: "projects/filling/com.inductiveautomation.perspective/views/Tank/view.json", What: disk.Modified},
			{Path: "projects/packaging/ignition/script-python/shift/code.py", What: disk.Gone}}},
		Report:    &sync.Report{Started: now.Add(-26 * time.Hour), Duration: 2400 * time.Millisecond, Notes: []string{"3 files below .resources were skipped"}},
		Snapshots: []loop.Snapshot{{Snapshot: disk.Snapshot{ID: gateway + "-" + now.Add(-26*time.Hour).Format("20060102-150405"), Time: now.Add(-26 * time.Hour), Ref: "v2.3.0", Commit: older, To: old, Files: 12, Bytes: 348211, Backup: true}, Stored: v1alpha1.StoredBoth}},
		Proposal:  &v1alpha1.Proposal{State: v1alpha1.ProposalOpen, Branch: "stoker/" + gateway, URL: "https://git.example.com/plant/pulls/42", Number: 42, Files: 2},
	}
	raw, err := json.Marshal(state)
	require.NoError(s.t, err)
	s.Agents.Answer(s.Namespace, pod, string(raw))
	record := gateway + "-diff-" + now.Add(-26*time.Hour).Format("20060102-150405") + ".json"
	var lines strings.Builder
	for _, a := range []audit.Entry{
		{Time: now.Add(-9 * 24 * time.Hour), To: older, Ref: "v2.3.0", Request: audit.Request{By: "kargo", For: "Stage prod"}, Author: "Ann Berg <ann@example.com>", Subject: "Take the new alarm views", Files: audit.Files{Added: 530}, Result: v1alpha1.GatewaySynced, Reason: v1alpha1.ReasonSynced, Duration: "14.2s"},
		{Time: now.Add(-26 * time.Hour), From: older, To: old, Ref: "main", Author: "Li Wei <li@example.com>", Subject: "Fill tank 4 to 80 percent", Files: audit.Files{Added: 3, Modified: 8, Deleted: 1}, Result: v1alpha1.GatewaySynced, Reason: v1alpha1.ReasonSynced, Diff: record, Duration: "2.4s"},
		{Time: now.Add(-192 * time.Minute), From: old, To: old, Ref: "main", Author: "Li Wei <li@example.com>", Result: v1alpha1.GatewayError, Reason: v1alpha1.ReasonScanFailed, Message: "the scan did not end within 2m0s", Duration: "2m0s"},
	} {
		a.Schema, a.Gateway, a.Target = audit.Schema, gateway, a.To
		line, err := json.Marshal(a)
		require.NoError(s.t, err)
		lines.Write(append(line, '\n'))
	}
	s.Agents.Answer(s.Namespace, pod+":8082/audit", lines.String())
	diff, err := json.Marshal(audit.Diff{Schema: audit.Schema, Gateway: gateway, Timestamp: now.Add(-26 * time.Hour), FromCommit: older, ToCommit: old,
		FilesAdded: 1, FilesModified: 1, FilesDeleted: 1, Projects: []string{"filling", "packaging"}, Changes: []audit.Change{
			{Path: "projects/filling/com.inductiveautomation.perspective/views/Tank/view.json", Source: "site/projects/filling/com.inductiveautomation.perspective/views/Tank/view.json", Action: "added", Checksum: audit.Checksum{After: "git:" + Old}},
			{Path: "projects/filling/project.json", Action: "modified", Checksum: audit.Checksum{Before: "git:" + Target, After: "git:" + Old}},
			{Path: "projects/packaging/ignition/named-query/old/query.sql", Action: "deleted", Checksum: audit.Checksum{Before: "git:" + Target}}}})
	require.NoError(s.t, err)
	s.Agents.Answer(s.Namespace, pod+":8082/diffs/"+record, string(diff))
	s.Agents.Execute(s.Namespace, pod, func(command []string, stdout, _ io.Writer) int {
		path := command[len(command)-1]
		fmt.Fprint(stdout, "--- git/"+path+"\n+++ gateway/"+path+"\n@@ -1,3 +1,3 @@\n def total(tank):\n-\treturn tank.level\n+\treturn tank.level * 0.8\n \n")
		return 0
	})
}

func id(t testing.TB, s string) plan.ID {
	t.Helper()
	parsed, err := plan.ParseID(s)
	require.NoError(t, err)
	return parsed
}
