//go:build !race

package argocd

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/annotation"
	"stoker.io/stoker/api/v1alpha1/desiredref"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/request"
	"stoker.io/stoker/internal/status"
)

var writeTo = flag.String("write", "", "write the statuses and what Argo CD must show for them into this `folder`")

const (
	commitA = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	commitB = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
)

const requestedAt = "2026-01-02T12:00:00.000000001Z"

// statuses lists fleets in every state that matters to Argo CD. Each arrange changes a fleet of two synced gateways, and health and message
// are what health.lua must return for its status.
var statuses = []struct {
	name, health, message string
	arrange               func(*scene)
}{
	{"synced", "Healthy", "all 2 gateways run main at aaaaaaa", func(*scene) {}},
	{"synced_standby", "Healthy", "all 2 gateways run main at aaaaaaa", func(s *scene) {
		s.report(1, v1alpha1.GatewayStandby, v1alpha1.ReasonStandby, "")
		s.write()
	}},
	{"synced_git_away", "Healthy", "all 2 gateways run main at aaaaaaa", func(s *scene) {
		s.resolve("", failed(v1alpha1.ReasonGitUnreachable, "dial tcp: connection refused"))
		s.write()
	}},
	{"git_away_during_request", "Progressing", "GitUnreachable: dial tcp: connection refused; the gateways stay at aaaaaaa", requestedWhileGitIsAway},
	{"git_stays_away_during_request", "Degraded", "ProgressDeadlineExceeded: not done within 10m0s, still trying: GitUnreachable: dial tcp: connection refused; the gateways stay at aaaaaaa", late(requestedWhileGitIsAway)},
	{"synced_request", "Healthy", "all 2 gateways run v2 at bbbbbbb", func(s *scene) {
		s.annotate(v1alpha1.AnnotationRequestedRef, "v2", v1alpha1.AnnotationRequestedOver, desiredref.RequestOver("v2", "main", requestedAt), v1alpha1.AnnotationRequestedAt, requestedAt)
		s.resolve(commitB, nil)
		s.reportSynced(0)
		s.reportSynced(1)
		s.write()
	}},
	{"rolled_back", "Healthy", "rolled back: bbbbbbb of main is blocked; all 2 gateways run aaaaaaa", rolledBack},
	{"rolled_back_and_broken", "Degraded", "ConfigSyntaxError: line-1: projects/a/project.json: line 3: unexpected end", func(s *scene) {
		rolledBack(s)
		broken(s)
	}},
	{"new", "Progressing", "WaitingForLead: neither an agent nor the injector has read this GatewaySync yet", func(s *scene) { s.GatewaySync.Status = v1alpha1.GatewaySyncStatus{} }},
	{"spec_not_seen", "Progressing", "WaitingForLead: the lead has not read the current spec yet", func(s *scene) {
		s.editSpec(func(spec *v1alpha1.GatewaySyncSpec) { spec.Git.Ref = "release" })
	}},
	{"request_not_seen", "Progressing", "WaitingForLead: the lead has not read the request yet", func(s *scene) {
		s.annotate(v1alpha1.AnnotationRequestedRef, "v2")
	}},
	{"request_again_not_seen", "Progressing", "WaitingForLead: the lead has not read the request yet", func(s *scene) {
		s.annotate(v1alpha1.AnnotationRequestedAt, requestedAt)
	}},
	{"request_not_handled", "Progressing", "0 of 2 gateways run main at aaaaaaa; line-0: has not begun to sync the current target; before: Synced; 1 more", func(s *scene) {
		s.annotate(v1alpha1.AnnotationRequestedAt, requestedAt)
		s.resolve(commitA, nil)
		s.write()
	}},
	{"no_gateways", "Healthy", `NoGateways: no pod asks for this GatewaySync: annotate one with stoker.io/inject: "true" and stoker.io/cr-name: site; if a workload has these annotations and no pods, its Events say why (kubectl describe)`, noGateways},
	{"no_gateways_of_an_earlier_spec", "Progressing", "WaitingForLead: the lead has not read the current spec yet", func(s *scene) {
		noGateways(s)
		s.editSpec(func(spec *v1alpha1.GatewaySyncSpec) { spec.Git.Ref = "release" })
	}},
	{"no_gateways_before_the_request", "Progressing", "WaitingForLead: the lead has not read the request yet", func(s *scene) {
		noGateways(s)
		s.annotate(v1alpha1.AnnotationRequestedAt, requestedAt)
	}},
	{"agents_away", "Progressing", "AgentsAway: no gateway runs; terminating pods: line-0, line-1", (*scene).endPods},
	{"agents_away_as_the_injector_writes", "Progressing", "AgentsAway: no agent leads; pods: line-0, line-1", func(s *scene) {
		s.GatewaySync.Status = *status.WithoutLead(status.Leaderless{GatewaySync: s.GatewaySync, Pods: s.Pods, Now: s.Now})
	}},
	{"no_agent_confirms", "Progressing", "AgentsAway: no agent confirms this status: look for pods without an agent and for a missing injector (stoker check)", func(s *scene) {
		s.GatewaySync.Status.ConfirmedAt = &metav1.Time{Time: noon.Add(-v1alpha1.ConfirmedFor - time.Second)}
	}},
	{"confirmed_in_the_future", "Progressing", "AgentsAway: no agent confirms this status: look for pods without an agent and for a missing injector (stoker check)", func(s *scene) {
		s.GatewaySync.Status.ConfirmedAt = &metav1.Time{Time: time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)}
	}},
	{"agents_gone", "Degraded", "ProgressDeadlineExceeded: not done within 10m0s: AgentsAway: no gateway runs; terminating pods: line-0, line-1", late((*scene).endPods)},
	{"working", "Progressing", "1 of 2 gateways run main at bbbbbbb; line-1", moved(v1alpha1.GatewaySyncing, v1alpha1.ReasonProgressing, "")},
	{"waiting_for_the_gateway", "Progressing", "WaitingForGateway: 1 of 2 gateways run main at bbbbbbb; line-1: it starts", moved(v1alpha1.GatewayApplied, v1alpha1.ReasonWaitingForGateway, "it starts")},
	{"resolving", "Progressing", "polling git for release", func(s *scene) {
		s.editSpec(func(spec *v1alpha1.GatewaySyncSpec) { spec.Git.Ref = "release" })
		s.Ref = status.Ref{Desired: desiredref.Desired{Ref: "release"}, Polling: true}
		s.write()
	}},
	{"git_unreachable", "Progressing", "GitUnreachable: dial tcp: connection refused", func(s *scene) {
		s.editSpec(func(spec *v1alpha1.GatewaySyncSpec) { spec.Git.Ref = "release" })
		s.resolve("", failed(v1alpha1.ReasonGitUnreachable, "dial tcp: connection refused"))
		s.write()
	}},
	{"gateway_unreachable", "Progressing", "GatewayUnreachable: 1 of 2 gateways run main at aaaaaaa; line-0: connection refused", unreachable},
	{"deadline", "Degraded", "ProgressDeadlineExceeded: not done within 10m0s, still trying: GatewayUnreachable: 1 of 2 gateways run main at aaaaaaa; line-0: connection refused", late(unreachable)},
	{"ref_not_found", "Degraded", "RefNotFound: release is neither a branch nor a tag", func(s *scene) {
		s.editSpec(func(spec *v1alpha1.GatewaySyncSpec) { spec.Git.Ref = "release" })
		s.resolve("", failed(v1alpha1.ReasonRefNotFound, "release is neither a branch nor a tag"))
		s.write()
	}},
	{"request_is_no_ref", "Degraded", `RefNotFound: annotation stoker.io/requested-ref: "v2 " is not a ref: it contains a space, a control character, or one of ~ ^ : ? * [ \; set another one, or remove the annotation`, func(s *scene) {
		s.annotate(v1alpha1.AnnotationRequestedRef, "v2 ")
		_, err := desiredref.Of(s.GatewaySync, "")
		s.Ref = status.Ref{Polled: true, Err: err}
		s.write()
	}},
	{"profiles_invalid", "Degraded", "ProfilesInvalid: spec.sync.profiles[default].mappings[0].source: it is absolute", func(s *scene) {
		s.editSpec(func(spec *v1alpha1.GatewaySyncSpec) { spec.Sync.Profiles["default"].Mappings[0].Source = "/projects" })
		s.Invalid = failed(v1alpha1.ReasonProfilesInvalid, "spec.sync.profiles[default].mappings[0].source: it is absolute")
		s.write()
	}},
	{"config_syntax_error", "Degraded", "ConfigSyntaxError: line-1: projects/a/project.json: line 3: unexpected end", badCommit},
	{"failed_before_the_request", "Progressing", "WaitingForLead: the lead has not read the request yet", func(s *scene) {
		broken(s)
		s.annotate(v1alpha1.AnnotationRequestedAt, requestedAt)
	}},
	{"designer_open", "Suspended", "DesignerSessionActive: 1 of 2 gateways run main at bbbbbbb; line-1: ann edits line", held(v1alpha1.ReasonDesignerSessionActive, "ann edits line")},
	{"designer_open_and_not_waited_for", "Degraded", "DesignerSessionActive: line-1: ann edits line", moved(v1alpha1.GatewayError, v1alpha1.ReasonDesignerSessionActive, "ann edits line")},
	{"conflict", "Suspended", "ConflictDetected: 1 of 2 gateways run main at bbbbbbb; line-1: 1 file", held(v1alpha1.ReasonConflictDetected, "1 file")},
	{"mass_deletion", "Suspended", "MassDeletion: 1 of 2 gateways run main at bbbbbbb; line-1: 40 files", held(v1alpha1.ReasonMassDeletion, "40 files")},
	{"held_beyond_the_deadline", "Degraded", "ProgressDeadlineExceeded: not done within 10m0s, still trying: ConflictDetected: 1 of 2 gateways run main at bbbbbbb; line-1: 1 file", late(held(v1alpha1.ReasonConflictDetected, "1 file"))},
	{"redundant_node_waits", "Progressing", "NoConfigAccess: 1 of 2 gateways run main at bbbbbbb; line-1: it takes over", held(v1alpha1.ReasonNoConfigAccess, "it takes over")},
	{"paused", "Healthy", "paused; 0 of 2 gateways run main at bbbbbbb", func(s *scene) {
		s.annotate(v1alpha1.AnnotationPaused, "true")
		s.resolve(commitB, nil)
		s.write()
	}},
	{"paused_synced", "Healthy", "all 2 gateways run main at aaaaaaa; paused", func(s *scene) {
		s.annotate(v1alpha1.AnnotationPaused, "true")
		for i := range 2 {
			s.report(i, v1alpha1.GatewaySynced, v1alpha1.ReasonPaused, "syncing is paused; aaaaaaa is on the disk already")
		}
		s.write()
	}},
	{"paused_request_not_seen", "Progressing", "WaitingForLead: the lead has not read the request yet", func(s *scene) {
		s.annotate(v1alpha1.AnnotationPaused, "true", v1alpha1.AnnotationRequestedAt, requestedAt)
	}},
	{"profile_paused", "Healthy", "1 of 2 gateways run main at bbbbbbb; line-1: syncing is paused", held(v1alpha1.ReasonPaused, "syncing is paused")},
	{"dry_run", "Healthy", "DryRun: 0 of 2 gateways run main at bbbbbbb; line-0: dry run, nothing was written: 1 file added; 1 more", late(func(s *scene) {
		s.resolve(commitB, nil)
		for i := range 2 {
			s.report(i, v1alpha1.GatewayPending, v1alpha1.ReasonDryRun, "dry run, nothing was written: 1 file added")
		}
		s.write()
	})},
	{"pod_without_agent", "Progressing", "MissingSidecar: 1 of 2 gateways run main at aaaaaaa; line-1: the pod asks for an agent and has none; its Events say why it was not injected", func(s *scene) {
		s.Pods[1].Agent, s.Reports = false, s.Reports[:1]
		s.write()
	}},
}

// moved makes main move to a commit that the first gateway runs, while the second reports something else.
func moved(phase v1alpha1.GatewaySyncState, reason v1alpha1.Reason, message string) func(*scene) {
	return func(s *scene) {
		s.resolve(commitB, nil)
		s.reportSynced(0)
		s.report(1, phase, reason, message)
		s.write()
	}
}

// held makes the second gateway hold back a new commit.
func held(reason v1alpha1.Reason, message string) func(*scene) {
	return moved(v1alpha1.GatewayHeld, reason, message)
}

// late arranges a fleet and lets its deadline pass.
func late(arrange func(*scene)) func(*scene) {
	return func(s *scene) {
		arrange(s)
		s.advance(11 * time.Minute)
		s.write()
	}
}

// broken makes a gateway report a broken file.
func broken(s *scene) {
	s.report(1, v1alpha1.GatewayError, v1alpha1.ReasonConfigSyntaxError, "projects/a/project.json: line 3: unexpected end")
	s.write()
}

// requestedWhileGitIsAway makes a request that git does not answer.
func requestedWhileGitIsAway(s *scene) {
	s.annotate(v1alpha1.AnnotationRequestedAt, requestedAt)
	s.resolve("", failed(v1alpha1.ReasonGitUnreachable, "dial tcp: connection refused"))
	s.write()
}

func unreachable(s *scene) {
	s.report(0, v1alpha1.GatewayError, v1alpha1.ReasonGatewayUnreachable, "connection refused")
	s.write()
}

func noGateways(s *scene) {
	s.Pods, s.Reports = nil, nil
	s.GatewaySync.Status = v1alpha1.GatewaySyncStatus{}
	s.write()
}

// endPods makes all pods of the fleet end.
func (s *scene) endPods() {
	for i := range s.Pods {
		s.Pods[i].Ended, s.Pods[i].Ending = true, true
	}
	s.write()
}

// healthTest is a row of health_test.yaml, in the format of Argo CD's own tests.
type healthTest struct {
	InputPath    string `json:"inputPath"`
	HealthStatus health `json:"healthStatus"`
}

// files names the statuses that -write writes for the modules test/argocd and test/argocd/v3, which check them with Argo CD's own code.
var files = []string{"synced", "rolled_back", "new", "spec_not_seen", "request_not_seen", "no_gateways", "agents_away", "no_agent_confirms",
	"working", "config_syntax_error", "designer_open", "paused"}

// arranged returns the GatewaySync of a fleet.
func arranged(t testing.TB, arrange func(*scene)) *v1alpha1.GatewaySync {
	s := newScene(t)
	arrange(s)
	return s.GatewaySync
}

func TestHealth(t *testing.T) {
	script := load(t, "health.lua")
	var tests struct {
		Tests []healthTest `json:"tests"`
	}
	for _, c := range statuses {
		t.Run(c.name, func(t *testing.T) {
			s := newScene(t)
			c.arrange(s)
			want := health{c.health, c.message}
			assert.Equal(t, want, script.health(t, object(t, s.GatewaySync)))
			if slices.Contains(files, c.name) {
				write(t, "GatewaySync/"+c.name+".yaml", s.GatewaySync)
				tests.Tests = append(tests.Tests, healthTest{c.name + ".yaml", want})
			}
		})
	}
	write(t, "GatewaySync/health_test.yaml", tests)
	assert.Len(t, tests.Tests, len(files))
}

// health.lua and "stoker wait" agree on the health, except for NoGateways: Argo CD may create the gateways in a later wave.
func TestHealthMatchesOutcome(t *testing.T) {
	script := load(t, "health.lua")
	for _, c := range statuses {
		t.Run(c.name, func(t *testing.T) {
			gs := arranged(t, c.arrange)
			v := request.Read(gs, "", nil, noon)
			want := map[request.Phase]string{request.Succeeded: "Healthy", request.Paused: "Healthy", request.Held: "Suspended", request.Failed: "Degraded"}[v.Phase]
			if want == "" {
				want = "Progressing"
			}
			if v.Reason == v1alpha1.ReasonNoGateways {
				want = "Healthy"
			}
			assert.Equal(t, want, script.health(t, object(t, gs)).Status, "request.Read returns %+v", v)
		})
	}
}

// A sync wave of Argo CD waits during a rollout and its approvals, because the health is Progressing or Suspended. It fails when a stage
// fails.
func TestRolloutHealth(t *testing.T) {
	script := load(t, "health.lua")
	for reason, c := range map[v1alpha1.Reason]struct {
		phase v1alpha1.OutcomePhase
		want  string
	}{
		v1alpha1.ReasonProgressing:       {v1alpha1.OutcomeProgressing, "Progressing"},
		v1alpha1.ReasonRolloutSoaking:    {v1alpha1.OutcomeProgressing, "Progressing"},
		v1alpha1.ReasonApprovalNeeded:    {v1alpha1.OutcomeHeld, "Suspended"},
		v1alpha1.ReasonCanaryStageFailed: {v1alpha1.OutcomeFailed, "Degraded"},
	} {
		t.Run(string(reason), func(t *testing.T) {
			s := newScene(t)
			o := s.GatewaySync.Status.Outcome
			o.Phase, o.Reason, o.Message = c.phase, reason, "stage prod: 1 of 2"
			h := script.health(t, object(t, s.GatewaySync))
			assert.Equal(t, c.want, h.Status)
			assert.Contains(t, h.Message, "stage prod: 1 of 2")
			if reason != v1alpha1.ReasonProgressing {
				assert.Contains(t, h.Message, string(reason)+": ")
			}
		})
	}
}

// health.lua has ConfirmedFor as a number, because scripts have no constants of Go.
func TestConfirmedFor(t *testing.T) {
	script := load(t, "health.lua")
	for _, age := range []time.Duration{v1alpha1.ConfirmedFor, v1alpha1.ConfirmedFor + time.Second, -v1alpha1.ConfirmedFor, -v1alpha1.ConfirmedFor - time.Second} {
		t.Run(age.String(), func(t *testing.T) {
			gs := newScene(t).GatewaySync
			gs.Status.ConfirmedAt = &metav1.Time{Time: noon.Add(-age)}
			assert.Equal(t, gs.Status.Confirmed(noon), script.health(t, object(t, gs)).Status == "Healthy")
		})
	}
}

// write writes a file for test/argocd, with -write.
func write(t *testing.T, path string, v any) {
	t.Helper()
	if *writeTo == "" {
		return
	}
	text, err := yaml.Marshal(v)
	require.NoError(t, err)
	path = filepath.Join(*writeTo, filepath.FromSlash(path))
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, text, 0o644))
}

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
