package follow

import (
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/test/gitserver"
)

func TestTargetOfNewerGenerationWaits(t *testing.T) {
	w := onSharedCluster(t)
	p := w.pod("line-0")
	first := w.commit("one")
	gs := w.gatewaySync(p)
	p.start()
	w.lead(targetCommit(first))
	p.awaitSynced(first, "one")

	second := w.moves("two", generation(gs.Generation+1))
	before := p.agent.traffic.count("GET gatewaysyncs")
	eventually(t, "the agent reads the GatewaySync again", func() bool { return p.agent.traffic.count("GET gatewaysyncs") > before+1 })
	assert.Equal(t, "one", p.title(), "the old target and spec stay in force")
	assert.Equal(t, first, p.report().Status.Commit)

	gs = w.edit(func(gs *v1alpha1.GatewaySync) {
		gs.Spec.Sync.Profiles["default"] = v1alpha1.SyncProfile{Mappings: []v1alpha1.Mapping{{Source: "other/projects", Destination: "projects"}}}
	})
	s := p.awaitSynced(second, "two of other")
	assert.Equal(t, gs.Generation, s.Generation)
}

// A commit that returns needs a new report: only the agent knows that its files were checked again.
func TestTargetRevisions(t *testing.T) {
	w := onSharedCluster(t)
	p := w.pod("line-0")
	first := w.commit("one")
	w.gatewaySync(p)
	p.start()
	w.lead(targetCommit(first))
	s := p.awaitSynced(first, "one")
	assert.EqualValues(t, 1, s.Revision)
	answered := func(revision int64) v1alpha1.SyncReportStatus {
		t.Helper()
		return p.await(fmt.Sprintf("revision %d", revision), func(s v1alpha1.SyncReportStatus) bool {
			return s.Revision == revision && s.Phase == v1alpha1.GatewaySynced
		})
	}
	w.lead(func(s *v1alpha1.SyncTargetSpec) { s.Revision += 40 })
	before := p.agent.traffic.writes()
	s = answered(42)
	assert.Equal(t, first, s.Commit)
	assert.LessOrEqual(t, p.agent.traffic.writes()-before, 1, "one write of the report")
	assert.Equal(t, v1alpha1.FileCounts{Added: 1}, s.Files, "the counts are those of the last sync with changes")

	w.moves("two")
	answered(43)
	w.lead(targetCommit(first))
	s = answered(44)
	assert.Equal(t, "one", p.title())
	assert.Equal(t, first, s.Commit)
}

func TestSpecWaitsForResolvedRef(t *testing.T) {
	w := onSharedCluster(t)
	p := w.pod("line-0")
	first := w.commit("one")
	gs := w.gatewaySync(p)
	w.lead(generation(0), func(s *v1alpha1.SyncTargetSpec) { s.Ref, s.RefName = "", "" })
	p.start()
	eventually(t, "the agent reports that it waits", func() bool {
		r, err := kube.SyncReports(w.clients.Dynamic, w.ns).Get(t.Context(), p.name)
		return err == nil && strings.Contains(r.Status.Message, "has not resolved its ref yet")
	})
	assert.Equal(t, 1, p.agent.traffic.count("GET gatewaysyncs"), "the read at the start, which looks for an earlier report")

	w.lead(targetCommit(first), generation(gs.Generation), func(s *v1alpha1.SyncTargetSpec) { s.Ref, s.RefName = "main", "refs/heads/main" })
	p.awaitSynced(first, "one")
	assert.Equal(t, 2, p.agent.traffic.count("GET gatewaysyncs"))
}

func TestMetadataChangeSyncsWithoutCommit(t *testing.T) {
	w := onSharedCluster(t)
	p := w.pod("line-0")
	commit := w.repo.Commit("one",
		gitserver.Write("gw/projects/line/project.json", fmt.Sprintf(project, `{{index .Labels "example.com/hall"}} {{.SiteNumber}} {{.GatewayName}}`)),
		gitserver.Write("other/projects/line/project.json", fmt.Sprintf(project, "other")))
	p.writePodInfo(map[string]string{"example.com/hall": "north \"1\""}, nil)
	w.gatewaySync(p, func(gs *v1alpha1.GatewaySync) {
		mapping := gs.Spec.Sync.Profiles["default"].Mappings[0]
		mapping.Template = true
		gs.Spec.Sync.Profiles["default"] = v1alpha1.SyncProfile{Mappings: []v1alpha1.Mapping{mapping}, SyncSettings: v1alpha1.SyncSettings{Vars: map[string]v1alpha1.VarValue{"SiteNumber": "7"}}}
	})
	w.lead(targetCommit(commit))
	p.writePodInfo(map[string]string{"example.com/hall": "north"}, nil)
	p.start()
	p.awaitSynced(commit, "north 7 line-0")

	title := func(want string) { t.Helper(); eventually(t, want, func() bool { return p.title() == want }) }
	p.writePodInfo(map[string]string{"example.com/hall": "south"}, nil)
	title("south 7 line-0")
	p.writePodInfo(map[string]string{"example.com/hall": "south"}, map[string]string{"ignition-sync.io/profile": "other"}) // the older prefix counts, too
	title("other")
	p.await("the profile", func(s v1alpha1.SyncReportStatus) bool {
		return s.Profile == "other" && s.Phase == v1alpha1.GatewaySynced
	})
	p.writePodInfo(map[string]string{"example.com/hall": "south"}, map[string]string{"example.com/nothing": "of ours"})
	title("south 7 line-0")
	gs := w.edit(func(gs *v1alpha1.GatewaySync) {
		profile := gs.Spec.Sync.Profiles["default"]
		profile.Vars["SiteNumber"] = "8"
		gs.Spec.Sync.Profiles["default"] = profile
	})
	w.lead(generation(gs.Generation))
	title("south 8 line-0")
	p.writePodInfo(map[string]string{"example.com/hall": "south"}, map[string]string{"stoker.io/profile": "not a name"})
	s := p.await("an annotation that is not a name", func(s v1alpha1.SyncReportStatus) bool { return s.Reason == v1alpha1.ReasonInvalidAnnotation })
	assert.Equal(t, v1alpha1.GatewayError, s.Phase)
	assert.Equal(t, "south 8 line-0", p.title())
}

func TestRequestAcknowledgement(t *testing.T) {
	w, p, first := synced(t)

	w.lead(func(s *v1alpha1.SyncTargetSpec) { s.RequestedAt = "2026-01-01T00:00:00.000000001Z" })
	p.await("the echo", func(s v1alpha1.SyncReportStatus) bool {
		return s.HandledRequest == "2026-01-01T00:00:00.000000001Z" && s.Phase == v1alpha1.GatewaySynced
	})

	// A commit that cannot be synced counts as handled. A git server that is unavailable does not.
	w.git.Inject(gitserver.Status(http.StatusServiceUnavailable))
	second := w.moves("two", func(s *v1alpha1.SyncTargetSpec) { s.RequestedAt = "2" })
	s := p.await("git is unreachable", func(s v1alpha1.SyncReportStatus) bool { return s.Reason == v1alpha1.ReasonGitUnreachable })
	assert.Equal(t, "2026-01-01T00:00:00.000000001Z", s.HandledRequest)
	assert.Equal(t, second, s.Target)
	assert.Equal(t, first, s.Commit)
	w.git.Heal()
	p.await("the second echo", func(s v1alpha1.SyncReportStatus) bool { return s.HandledRequest == "2" && s.Commit == second })
	broken := w.repo.Commit("broken", gitserver.Write("gw/projects/line/project.json", "{"))
	w.lead(targetCommit(broken), func(s *v1alpha1.SyncTargetSpec) { s.RequestedAt = "3" })
	s = p.await("the third echo", func(s v1alpha1.SyncReportStatus) bool { return s.HandledRequest == "3" })
	assert.Equal(t, v1alpha1.ReasonConfigSyntaxError, s.Reason)
	assert.Equal(t, second, s.Commit, "the last good commit stays")

	p.follows("three")
	p.edits("by hand")
	s = p.await("drift", func(s v1alpha1.SyncReportStatus) bool { return s.Drift.Files == 1 })
	assert.Equal(t, v1alpha1.GatewaySynced, s.Phase, "drift is its own figure")
	assert.Contains(t, s.Drift.Paths[0], "projects/line/project.json")
	assert.Empty(t, s.HandledForceSync)
	w.annotate(v1alpha1.AnnotationForceSync, "now")
	w.lead()
	s = p.await("the forced sync", func(s v1alpha1.SyncReportStatus) bool { return s.HandledForceSync == "now" })
	assert.Zero(t, s.Drift.Files, "repaired drift is not counted")
	assert.Equal(t, v1alpha1.GatewaySynced, s.Phase)
	assert.Equal(t, "three", p.title())
}

func TestPauseAndResume(t *testing.T) {
	w := onSharedCluster(t)
	p := w.pod("line-0")
	first := w.commit("one")
	w.gatewaySync(p, func(gs *v1alpha1.GatewaySync) { gs.Annotations = map[string]string{v1alpha1.AnnotationPaused: "true"} })
	w.lead(targetCommit(first))
	p.start()
	p.awaitSynced(first, "one") // the target decides, not the annotation that the agent read earlier
	second := w.commit("two")
	w.annotate(v1alpha1.AnnotationForceSync, "now")
	w.lead(targetCommit(second), func(s *v1alpha1.SyncTargetSpec) { s.Paused = true; s.RequestedAt = "1" })
	s := p.await("Paused", func(s v1alpha1.SyncReportStatus) bool { return s.Reason == v1alpha1.ReasonPaused })
	assert.Equal(t, v1alpha1.GatewayHeld, s.Phase)
	assert.True(t, s.Paused)
	assert.Equal(t, first, s.Commit)
	assert.Equal(t, "1", s.HandledRequest)
	assert.Empty(t, s.HandledForceSync)
	assert.Equal(t, "one", p.title())
	w.lead(func(s *v1alpha1.SyncTargetSpec) { s.Paused = false })
	s = p.awaitSynced(second, "two")
	assert.False(t, s.Paused)
	assert.Equal(t, "now", s.HandledForceSync)
}

// A gateway of a closed step resumes with the others, and not when its step opens.
func TestResumeInClosedStep(t *testing.T) {
	resume := func(s *v1alpha1.SyncTargetSpec) { s.Paused = false }
	for name, lead := range map[string]func(w *world, p *pod, first string){
		"after the commit": func(w *world, p *pod, first string) {
			w.moves("three", rollout(3, 0, first))
			p.await("Paused", held(v1alpha1.ReasonPaused))
			w.lead(resume, rollout(3, 1, first))
		},
		"with the commit": func(w *world, _ *pod, first string) { w.moves("three", rollout(3, 0, first), resume) },
		"paused by the spec": func(w *world, p *pod, first string) {
			pause := func(paused bool) (generation int64) {
				return w.edit(func(gs *v1alpha1.GatewaySync) { gs.Spec.Paused = paused }).Generation
			}
			paused := pause(true)
			w.moves("three", rollout(3, 0, first), generation(paused), func(s *v1alpha1.SyncTargetSpec) { s.Paused = true })
			p.await("Paused", func(s v1alpha1.SyncReportStatus) bool {
				return held(v1alpha1.ReasonPaused)(s) && s.Generation == paused
			})
			w.lead(generation(pause(false)), resume)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := onSharedCluster(t)
			p, _ := w.staged(func(gs *v1alpha1.GatewaySync) {
				gs.Spec.Sync.Defaults.DriftPolicy, gs.Spec.Snapshots = v1alpha1.DriftRepair, &v1alpha1.SnapshotsSpec{Enabled: true}
			})
			second := p.follows("two")
			snapshot := p.await("a snapshot", func(s v1alpha1.SyncReportStatus) bool { return s.LastSnapshot != nil }).LastSnapshot.ID
			w.lead(func(s *v1alpha1.SyncTargetSpec) { s.Paused = true })
			p.await("Paused", func(s v1alpha1.SyncReportStatus) bool { return s.Paused })
			p.edits("by hand")
			lead(w, p, second)
			assert.False(t, p.await("a closed gate", held(v1alpha1.ReasonGateClosed)).Paused)
			eventually(t, "the agent repairs the file", func() bool { return p.title() == "two" })
			w.restores(snapshot)
			eventually(t, "the agent restores the snapshot", func() bool { return p.title() == "one" })
		})
	}
}

// repairing returns a pod that runs its first commit and repairs drift.
func repairing(t *testing.T) (w *world, p *pod, first string) {
	t.Helper()
	w = onSharedCluster(t)
	p = w.pod("line-0")
	first = w.commit("one")
	w.gatewaySync(p, func(gs *v1alpha1.GatewaySync) { gs.Spec.Sync.Defaults.DriftPolicy = v1alpha1.DriftRepair })
	w.lead(targetCommit(first))
	p.start()
	p.awaitSynced(first, "one")
	return w, p, first
}

// pauseProfile sets whether the profile of the pods is paused.
func pauseProfile(gs *v1alpha1.GatewaySync, paused bool) {
	p := gs.Spec.Sync.Profiles["default"]
	p.Paused = paused
	gs.Spec.Sync.Profiles["default"] = p
}

// An operator who pauses syncing to repair a gateway by hand expects this even if the pod cannot follow the spec.
func TestPauseWithInvalidSpec(t *testing.T) {
	w, p, first := repairing(t)
	stays := func(what string, generation int64, paused bool) {
		t.Helper()
		p.await(what, func(s v1alpha1.SyncReportStatus) bool {
			return s.Generation == generation && s.Reason == v1alpha1.ReasonPodRestartNeeded && s.Paused == paused
		})
	}

	gs := w.edit(func(gs *v1alpha1.GatewaySync) { gs.Spec.Git.Auth.Token.SecretRef.Name = "not-mounted" })
	w.lead(generation(gs.Generation), func(s *v1alpha1.SyncTargetSpec) { s.Paused = true })
	stays("the pause", gs.Generation, true)
	p.edits("by hand")
	p.await("drift", func(s v1alpha1.SyncReportStatus) bool { return s.Drift.Files == 1 })
	assert.Equal(t, "by hand", p.title())

	w.lead(func(s *v1alpha1.SyncTargetSpec) { s.Paused = false })
	stays("the end of the pause, same spec", gs.Generation, false)
	eventually(t, "the agent repairs the file under the last valid spec", func() bool { return p.title() == "one" })

	gs = w.edit(func(gs *v1alpha1.GatewaySync) { pauseProfile(gs, true) })
	w.lead(generation(gs.Generation))
	stays("a pause of the profile", gs.Generation, true)
	gs = w.edit(func(gs *v1alpha1.GatewaySync) { pauseProfile(gs, false) })
	w.lead(generation(gs.Generation))
	stays("the end of the pause, another invalid spec", gs.Generation, true)
	p.edits("by hand again")
	p.await("drift", func(s v1alpha1.SyncReportStatus) bool { return s.Drift.Files == 1 })
	assert.Equal(t, "by hand again", p.title())

	gs = w.edit(func(gs *v1alpha1.GatewaySync) { gs.Spec.Git.Auth.Token.SecretRef.Name = "git" })
	w.lead(generation(gs.Generation))
	eventually(t, "the agent repairs the file under the valid spec", func() bool { return p.title() == "one" })
	assert.False(t, p.awaitSynced(first, "one").Paused)

	w.lead(targetCommit(""), func(s *v1alpha1.SyncTargetSpec) { s.Paused = true })
	p.await("a pause while no commit is known", func(s v1alpha1.SyncReportStatus) bool {
		return s.Reason == v1alpha1.ReasonWaitingForLead && s.Paused
	})
}

// One edit may both pause and break the spec, or the pod may have an invalid annotation. A pause keeps manual repairs even then.
func TestPauseOfProfile(t *testing.T) {
	for name, c := range map[string]struct {
		reason v1alpha1.Reason
		edit   func(*v1alpha1.GatewaySync)
		says   map[string]string
	}{
		"missing profile, paused GatewaySync": {v1alpha1.ReasonProfileNotFound, func(gs *v1alpha1.GatewaySync) {
			gs.Spec.Paused = true
			delete(gs.Spec.Sync.Profiles, "default")
		}, nil},
		"paused profile, invalid annotation of the pod": {v1alpha1.ReasonInvalidAnnotation, func(gs *v1alpha1.GatewaySync) {
			pauseProfile(gs, true)
		}, map[string]string{"stoker.io/sync-period": "banana"}},
	} {
		t.Run(name, func(t *testing.T) {
			w, p, _ := repairing(t)
			p.writePodInfo(nil, c.says)
			gs := w.edit(c.edit)
			w.lead(generation(gs.Generation))
			p.await("the agent is paused", func(s v1alpha1.SyncReportStatus) bool {
				return s.Generation == gs.Generation && s.Reason == c.reason && s.Paused
			})
			p.keepsManualEdit()

			q := w.pod("line-1") // has no earlier spec to keep
			q.writePodInfo(nil, c.says)
			q.start()
			q.await("the agent is paused", func(s v1alpha1.SyncReportStatus) bool { return s.Reason == c.reason && s.Paused })
		})
	}
}

// A pause counts even if the rest of the target is invalid, or for newer agents only.
func TestPauseWithInvalidTarget(t *testing.T) {
	w, p, first := repairing(t)
	w.lead(func(s *v1alpha1.SyncTargetSpec) { s.Paused, s.RefName = true, "refs/heads/../x" })
	p.await("the agent is paused", func(s v1alpha1.SyncReportStatus) bool { return s.Reason == v1alpha1.ReasonWaitingForLead && s.Paused })
	p.keepsManualEdit()
	w.lead(func(s *v1alpha1.SyncTargetSpec) {
		s.Format = v1alpha1.TargetFormat + 1
	})
	p.await("the agent is still paused", func(s v1alpha1.SyncReportStatus) bool { return s.Reason == v1alpha1.ReasonPodRestartNeeded && s.Paused })
	w.lead(func(s *v1alpha1.SyncTargetSpec) {
		s.Format, s.RefName, s.Paused = 1, "refs/heads/main", false
	})
	eventually(t, "the agent repairs the file after the pause", func() bool { return p.title() == "one" })
	assert.False(t, p.awaitSynced(first, "one").Paused)
}

// keepsManualEdit changes a file and checks that the agent does not repair it.
func (p *pod) keepsManualEdit() {
	p.w.t.Helper()
	file := filepath.Join(p.data, "projects", "line", "project.json")
	require.NoError(p.w.t, os.WriteFile(file, []byte(fmt.Sprintf(project, "by hand")), 0o600))
	p.await("drift", func(s v1alpha1.SyncReportStatus) bool { return s.Drift.Files == 1 }) // repaired drift is not counted
	assert.Equal(p.w.t, "by hand", p.title())
}

func TestTargetBurstSyncsLast(t *testing.T) {
	w, p, first := synced(t)
	w.git.Inject(gitserver.Slow(2000)) // keeps the current sync busy, without failing it
	age, titles := map[string]int{first: 0}, map[string]int{"one": 0}
	var last string
	for i := range 20 {
		last = w.commit(fmt.Sprintf("burst %d", i))
		age[last], titles[fmt.Sprintf("burst %d", i)] = i+1, i+1
		w.lead(targetCommit(last))
	}
	eventually(t, "the last title", func() bool {
		said := p.report().Status.Commit
		require.GreaterOrEqual(t, titles[p.title()], age[said], "a report is never ahead of the disk")
		return said == last
	})
	p.awaitSynced(last, "burst 19")
	assert.Less(t, strings.Count(p.agent.log.String(), "msg=sync "), 20)
}

func TestDeletedTargetKeepsGateway(t *testing.T) {
	w, p, first := synced(t)
	second := w.commit("two")
	require.NoError(t, kube.SyncTargets(w.clients.Dynamic, w.ns).Delete(t.Context(), crName, metav1.DeleteOptions{}))
	s := p.await("the agent reports the deleted target", func(s v1alpha1.SyncReportStatus) bool { return strings.Contains(s.Message, "is gone") })
	assert.Equal(t, v1alpha1.GatewayPending, s.Phase)
	assert.Equal(t, first, s.Commit)
	require.NoError(t, kube.GatewaySyncs(w.clients.Dynamic, w.ns).Delete(t.Context(), crName, metav1.DeleteOptions{}))
	assert.Equal(t, "one", p.title())

	// A new GatewaySync with this name starts at the same generation, but the agent must read it again.
	w.gatewaySync(p, func(gs *v1alpha1.GatewaySync) {
		gs.Spec.Sync.Profiles["default"] = v1alpha1.SyncProfile{Mappings: []v1alpha1.Mapping{{Source: "other/projects", Destination: "projects"}}}
	})
	w.lead(targetCommit(second))
	p.awaitSynced(second, "two of other")
}

func TestUnmountedSecretIsReported(t *testing.T) {
	w, p, first := synced(t)
	second := w.commit("two")
	gs := w.edit(func(gs *v1alpha1.GatewaySync) { gs.Spec.Git.Auth.Token.SecretRef.Name = "renewed" })
	w.lead(targetCommit(second), generation(gs.Generation), func(s *v1alpha1.SyncTargetSpec) { s.RequestedAt = "1" })
	s := p.await("PodRestartNeeded", func(s v1alpha1.SyncReportStatus) bool { return s.Reason == v1alpha1.ReasonPodRestartNeeded })
	assert.Equal(t, v1alpha1.GatewayError, s.Phase)
	assert.Contains(t, s.Message, "spec.git.auth.token")
	assert.Contains(t, s.Message, "renewed")
	assert.Equal(t, gs.Generation, s.Generation, "the report names the generation that the agent cannot follow")
	assert.Equal(t, second, s.Target)
	assert.Equal(t, first, s.Commit)
	assert.Equal(t, "1", s.HandledRequest)
	assert.Equal(t, "one", p.title())

	p.agent.end() // the pod restarts with the Secret
	p.writeSecretFile("renewed", "token", "S3CR3T-2")
	p.recreate()
	p.start()
	p.awaitSynced(second, "two")
}

func TestReportAcrossRestarts(t *testing.T) {
	w := onSharedCluster(t)
	p := w.pod("line-0")
	first := w.commit("one")
	w.gatewaySync(p)
	w.lead(targetCommit(first), func(s *v1alpha1.SyncTargetSpec) { s.RequestedAt = "1" })
	p.start()
	p.awaitSynced(first, "one")
	p.agent.end()
	before := p.report()

	a := p.start()
	eventually(t, "the agent is synced", func() bool { return a.follower.State().Phase == v1alpha1.GatewaySynced })
	eventually(t, "the agent has read its report", func() bool { return a.traffic.count("GET syncreports") == 2 })
	a.iterates(1)
	a.end()
	assert.Zero(t, a.traffic.writes())
	assert.Equal(t, before.ResourceVersion, p.report().ResourceVersion)

	p.recreate()
	p.start()
	eventually(t, "the report is the new pod's", func() bool {
		r := p.report()
		return len(r.OwnerReferences) == 1 && string(r.OwnerReferences[0].UID) == p.uid
	})
	assert.Equal(t, before.UID, p.report().UID)
}

func TestTwoAgentsOnOneVolume(t *testing.T) {
	w := onSharedCluster(t)
	p, q := w.pod("line-0"), w.pod("line-1")
	q.data, q.gw = p.data, p.gw
	first := w.commit("one")
	w.gatewaySync(p)
	w.lead(targetCommit(first))
	p.start()
	p.awaitSynced(first, "one")
	q.start()
	s := q.await("the agent reports the other one", func(s v1alpha1.SyncReportStatus) bool {
		return strings.Contains(s.Message, "another agent uses the data directory")
	})
	assert.Equal(t, v1alpha1.GatewayError, s.Phase)
	assert.Empty(t, s.Commit)
	p.agent.end()
	second := w.moves("two")
	q.awaitSynced(second, "two")
}

// C7: no log has a credential, also if the URL of the repository contains it, and if the gateway and git reject theirs.
func TestCredentialsNeverLogged(t *testing.T) {
	w := onSharedCluster(t)
	p := w.pod("line-0")
	first := w.commit("one")
	u, err := url.Parse(w.git.URL("site.git"))
	require.NoError(t, err)
	u.User = url.UserPassword("plant", "S3CR3T-url")
	w.gatewaySync(p, func(gs *v1alpha1.GatewaySync) { gs.Spec.Git.Repo, gs.Spec.Git.Auth = u.String(), nil })
	w.lead(targetCommit(first))
	p.start()
	p.awaitSynced(first, "one")
	// sequence: one pod follows one commit after the other
	for _, fault := range []gitserver.Fault{gitserver.Status(http.StatusUnauthorized), gitserver.Status(http.StatusBadGateway),
		gitserver.Redirect("http://other.example"), gitserver.Truncate(10)} {
		w.git.Inject(fault)
		next := w.moves("next")
		s := p.await("the sync fails", func(s v1alpha1.SyncReportStatus) bool { return s.Target == next && s.Phase == v1alpha1.GatewayError })
		assert.NotEmpty(t, s.Message)
		w.git.Heal()
	}
	p.writeSecretFile("gateway", "apiKey", "stoker:S3CR3T-wrong")
	w.moves("last")
	p.await("the gateway rejects the token", func(s v1alpha1.SyncReportStatus) bool { return s.Reason == v1alpha1.ReasonGatewayForbidden })
}
