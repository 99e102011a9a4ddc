//go:build !race

package argocd

import (
	"cmp"
	"encoding/json"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic/fake"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/annotation"
	"stoker.io/stoker/api/v1alpha1/desiredref"
	"stoker.io/stoker/internal/request"
)

func action(t testing.TB, name string) *script {
	return load(t, filepath.Join("actions", name, "action.lua"))
}

// click runs an action and returns the object that Argo CD writes.
func (s *script) click(t testing.TB, gs *v1alpha1.GatewaySync) (*v1alpha1.GatewaySync, error) {
	t.Helper()
	raw, err := s.run(object(t, gs), noon)
	if err != nil {
		return nil, err
	}
	after := map[string]any{}
	require.NoError(t, json.Unmarshal(raw, &after))
	before := object(t, gs)
	require.Equal(t, before["spec"], withEmptyObjects(before["spec"], after["spec"]), "an action must not change the spec")
	require.Equal(t, before["status"], withEmptyObjects(before["status"], after["status"]), "an action must not change the status")
	meta := after["metadata"].(map[string]any)
	notes, _ := meta["annotations"].(map[string]any)
	out := gs.DeepCopy()
	out.Annotations = nil
	for name, value := range notes {
		if out.Annotations == nil {
			out.Annotations = map[string]string{}
		}
		out.Annotations[name] = value.(string)
	}
	return out, nil
}

// withEmptyObjects restores empty objects, which Lua returns as empty lists, as Argo CD does.
func withEmptyObjects(before, after any) any {
	old, isMap := before.(map[string]any)
	is, stillMap := after.(map[string]any)
	switch list, isList := after.([]any); {
	case isMap && stillMap:
		for k, v := range is {
			is[k] = withEmptyObjects(old[k], v)
		}
	case isMap && isList && len(list) == 0:
		return before
	case isList:
		was, _ := before.([]any)
		for i := range list {
			if i < len(was) {
				list[i] = withEmptyObjects(was[i], list[i])
			}
		}
	}
	return after
}

// at returns the time that Argo CD and the command line write for a request at noon.
func at(t testing.TB, gs *v1alpha1.GatewaySync) time.Time {
	t.Helper()
	version, err := strconv.ParseInt(gs.ResourceVersion, 10, 64)
	require.NoError(t, err)
	return noon.Add(time.Duration(version))
}

// asked makes the same change with the code of the command line.
func asked(t testing.TB, gs *v1alpha1.GatewaySync, do func(*request.Setter) (request.Answer, error)) (*v1alpha1.GatewaySync, request.Answer, error) {
	t.Helper()
	u := &unstructured.Unstructured{Object: object(t, gs)}
	u.SetAPIVersion("stoker.io/v1alpha1")
	u.SetKind("GatewaySync")
	client := fake.NewSimpleDynamicClient(runtime.NewScheme(), u)
	answer, err := do(request.NewSetter(client, func() time.Time { return at(t, gs) }))
	return answer.GatewaySync(), answer, err
}

// everyFleet returns the GatewaySyncs of all statuses and fleets by name.
func everyFleet(t *testing.T) map[string]*v1alpha1.GatewaySync {
	all := map[string]*v1alpha1.GatewaySync{}
	for _, c := range statuses { // setup: of TestHealth
		all[c.name] = arranged(t, c.arrange)
	}
	for _, f := range fleets { // setup: of TestActions
		all[f.file] = arranged(t, f.arrange)
	}
	return all
}

func TestRollbackActionMatchesCLI(t *testing.T) {
	t.Parallel()
	rollback, discovery := action(t, "rollback"), load(t, "actions/discovery.lua")
	seen := map[string]int{}
	for name, gs := range everyFleet(t) {
		t.Run(name, func(t *testing.T) {
			after, err := rollback.click(t, gs)
			want, answer, wantErr := asked(t, gs, func(s *request.Setter) (request.Answer, error) {
				return s.Rollback(t.Context(), "plant", "site", "", "", "argocd", "")
			})
			if wantErr != nil {
				require.Error(t, err, "the command line reports %v", wantErr)
				seen["refused"]++
				return
			}
			require.NoError(t, err)
			seen[string(answer.Outcome)]++
			assert.Equal(t, answer.Outcome == request.Set, !offers(t, discovery, gs)["rollback"].Disabled, "an action must be offered only if it has an effect")
			assert.Equal(t, notes(want), notes(after))
			if answer.Outcome == request.Set {
				d, err := desiredref.Of(after, "")
				require.NoError(t, err)
				assert.Equal(t, gs.Status.LastGood.Commit, d.Ref, "the request must be in force")
			}
		})
	}
	for _, outcome := range []string{"refused", "Set", "Unchanged"} {
		assert.NotZero(t, seen[outcome], "%v", seen)
	}
}

// An approval by a click counts like one by the command line, and what was approved before stays.
func TestApproveActions(t *testing.T) {
	discovery := load(t, "actions/discovery.lua")
	for _, kind := range []struct {
		name, stage, nothing string
		approval             v1alpha1.Approval
	}{
		{"approve", "prod", "nothing waits for an approval", v1alpha1.Approval{Commit: commitB, Stage: "prod"}},
		{"approve-window", v1alpha1.WindowApproval, "no gateway waits for a maintenance window", v1alpha1.Approval{Commit: commitB, Window: true}},
	} {
		script := action(t, kind.name)
		for name, c := range map[string]struct {
			approval *v1alpha1.Approval
			have     string
			offered  bool
		}{
			"first approval":         {&kind.approval, "", true},
			"another approval":       {&kind.approval, "dev@" + commitA, true},
			"invalid entries":        {&kind.approval, "garbage", true},
			"too many entries":       {&kind.approval, strings.Repeat("dev@"+commitA+",", 46), true},
			"nothing waits":          {nil, "", false},
			"forged":                 {&v1alpha1.Approval{Commit: commitB + ",", Stage: "window@" + commitA + ",prod", Window: true}, "", true},
			"another approval waits": {&v1alpha1.Approval{Commit: commitB, Stage: map[string]string{"approve-window": "prod"}[kind.name], Window: kind.name == "approve"}, "", false},
		} {
			t.Run(kind.name+"/"+name, func(t *testing.T) {
				gs := &v1alpha1.GatewaySync{}
				gs.Spec.Deployment = &v1alpha1.DeploymentSpec{Stages: []v1alpha1.Stage{{Name: "dev", Gateways: []string{"dev-*"}}, {Name: "prod", Gateways: []string{"*"}}}}
				gs.Status.Approval, gs.Annotations = c.approval, map[string]string{v1alpha1.AnnotationApproved: c.have}
				before := annotation.Approved(gs, "dev", commitA)
				assert.Equal(t, c.offered, !offers(t, discovery, gs)[kind.name].Disabled)
				after, err := script.click(t, gs)
				if !c.offered || name == "forged" {
					require.ErrorContains(t, err, kind.nothing)
					return
				}
				require.NoError(t, err)
				assert.True(t, annotation.Approved(after, kind.stage, commitB))
				assert.False(t, annotation.Approved(after, kind.stage, commitA))
				assert.Equal(t, before, annotation.Approved(after, "dev", commitA))
			})
		}
	}
}

// The time of a request has the last nine digits of the resourceVersion as its fraction of a second. So two clicks on one version of the object
// are one request. The time is valid for any other resourceVersion, too.
func TestTwoClicksWithinOneSecond(t *testing.T) {
	for _, name := range []string{"force-sync", "rollback"} {
		gs := &v1alpha1.GatewaySync{}
		gs.Spec.Git.Ref, gs.ResourceVersion = commitB, "1234567890123"
		gs.Status.LastGood, gs.Status.Rollback = &v1alpha1.CommitRecord{Commit: commitA, At: metav1.NewTime(noon)}, &v1alpha1.Rollback{Commit: commitA, Unless: commitB, Over: commitA + "@" + commitB}
		gs.Status.Outcome = &v1alpha1.Outcome{Phase: v1alpha1.OutcomeFailed, Ref: commitB, Commit: commitB}
		script := action(t, name)
		once, err := script.click(t, gs)
		require.NoError(t, err)
		assert.Equal(t, "2026-01-02T12:00:00.567890123Z", desiredref.InputsOf(once).At())
		again, err := script.click(t, gs)
		require.NoError(t, err)
		assert.Equal(t, once, again, "a repeated click must be one request")
		for _, odd := range []string{"", "x", "99999999999999999999"} {
			t.Run(odd, func(t *testing.T) {
				gs.ResourceVersion = odd
				after, err := script.click(t, gs)
				require.NoError(t, err)
				_, err = time.Parse(time.RFC3339Nano, desiredref.InputsOf(after).At())
				assert.NoError(t, err, "version %q", odd)
			})
		}
	}
}

func notes(gs *v1alpha1.GatewaySync) map[string]string {
	return withoutBefore(gs.Annotations)
}

// withoutBefore removes the annotation in which the command line notes what a request replaced. Actions do not write it, because Argo CD
// withdraws no request.
func withoutBefore(annotations map[string]string) map[string]string {
	left := map[string]string{}
	for name, value := range annotations {
		if name != v1alpha1.AnnotationRequestedBefore {
			left[name] = value
		}
	}
	return left
}

type offer struct {
	Disabled               bool
	DisplayName, IconClass string
}

// offers returns the actions that Argo CD shows.
func offers(t testing.TB, discovery *script, gs *v1alpha1.GatewaySync) map[string]offer {
	t.Helper()
	raw, err := discovery.run(object(t, gs), noon)
	require.NoError(t, err)
	out := map[string]offer{}
	require.NoError(t, json.Unmarshal(raw, &out))
	return out
}

func TestPauseAndResumeDiscovery(t *testing.T) {
	discovery := load(t, "actions/discovery.lua")
	for _, c := range []struct {
		name          string
		spec          bool
		note          string
		pause, resume bool
	}{
		{"running", false, "", true, false},
		{"paused by annotation", false, "true", false, true},
		{"paused by spec", true, "", false, false},
		{"paused by both", true, "true", false, true},
		{"invalid annotation", false, "yes", true, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			gs := &v1alpha1.GatewaySync{}
			gs.Spec.Paused = c.spec
			if c.note != "" {
				gs.Annotations = map[string]string{v1alpha1.AnnotationPaused: c.note}
			}
			got := offers(t, discovery, gs)
			assert.Len(t, got, 7)
			assert.Equal(t, c.pause, !got["pause"].Disabled)
			assert.Equal(t, c.resume, !got["resume"].Disabled)
			assert.False(t, got["force-sync"].Disabled)
			for name, o := range got {
				assert.NotEmpty(t, o.DisplayName, name)
				assert.NotEmpty(t, o.IconClass, name)
			}
		})
	}
}

// fleets lists fleets, each with the actions that are offered and the actions that the test runs.
var fleets = []struct {
	file    string
	offered []string
	run     []string
	arrange func(*scene)
}{
	{"synced", []string{"force-sync", "pause"}, []string{"force-sync", "pause"}, func(*scene) {}},
	{"bad_commit", []string{"force-sync", "pause", "rollback"}, []string{"rollback"}, badCommit},
	{"bad_request", []string{"force-sync", "pause", "rollback"}, []string{"force-sync", "rollback"}, func(s *scene) {
		asksForV2(s)
		badCommit(s)
	}},
	{"paused_alone", []string{"force-sync", "resume"}, []string{"resume"}, func(s *scene) {
		s.annotate(v1alpha1.AnnotationPaused, "true")
		s.write()
	}},
	{"waiting_for_approval", []string{"approve", "force-sync", "pause", "rollback"}, []string{"approve"}, func(s *scene) {
		s.GatewaySync.Spec.Deployment = &v1alpha1.DeploymentSpec{Stages: []v1alpha1.Stage{{Name: "dev", Gateways: []string{"line-0"}}, {Name: "prod", Gateways: []string{"line-1"}, RequireApproval: true}}}
		s.resolve(commitB, nil)
		s.reportSynced(0)
		s.report(1, v1alpha1.GatewayHeld, v1alpha1.ReasonApprovalNeeded, "waits for an approval")
		s.Rollout = &v1alpha1.RolloutStatus{Commit: commitB, From: commitA, Stage: "prod", Step: 1, Steps: 2, Phase: v1alpha1.RolloutWaiting}
		s.write()
	}},
	{"waiting_for_window", []string{"approve-window", "force-sync", "pause", "rollback"}, []string{"approve-window"}, func(s *scene) {
		s.GatewaySync.Spec.Deployment = &v1alpha1.DeploymentSpec{Windows: []v1alpha1.MaintenanceWindow{{Name: "nights", Schedule: "0 22 * * *", Duration: "8h"}}}
		held(v1alpha1.ReasonMaintenanceWindow, "waits for its window")(s)
	}},
	{"went_back", []string{"force-sync", "pause", "retry", "rollback"}, []string{"retry"}, func(s *scene) {
		s.resolve(commitB, nil)
		s.reportSynced(0)
		s.report(1, v1alpha1.GatewayError, v1alpha1.ReasonRolledBack, "rolled back automatically")
		s.Reports[1].Status.AutoRollback = commitB
		s.write()
	}},
	{"new", []string{"force-sync", "pause"}, nil, func(s *scene) { s.GatewaySync.Status = v1alpha1.GatewaySyncStatus{} }},
}

func asksForV2(s *scene) {
	s.annotate(v1alpha1.AnnotationRequestedRef, "v2", v1alpha1.AnnotationRequestedOver, desiredref.RequestOver("v2", "main", requestedAt),
		v1alpha1.AnnotationRequestedAt, requestedAt, v1alpha1.AnnotationRequestedBy, "kargo")
}

// rolledBack makes a fleet that runs well after a rollback, while main is still at the bad commit.
func rolledBack(s *scene) {
	badCommit(s)
	s.annotate(v1alpha1.AnnotationRequestedRef, commitA, v1alpha1.AnnotationRequestedOver, desiredref.RequestOver(commitA, "main", requestedAt),
		v1alpha1.AnnotationRequestedUnless, commitB, v1alpha1.AnnotationRequestedAt, requestedAt)
	s.resolve(commitA, nil)
	s.reportSynced(0)
	s.reportSynced(1)
	s.write()
}

// badCommit resolves main to a commit that one gateway cannot run.
func badCommit(s *scene) {
	s.resolve(commitB, nil)
	s.reportSynced(0)
	broken(s)
}

var menu = []menuRow{
	{"approve", false, "fa fa-fw fa-check-circle", "Approve the waiting stage"},
	{"approve-window", false, "fa fa-fw fa-clock", "Deliver outside the maintenance windows"},
	{"force-sync", false, "fa fa-fw fa-sync", "Force sync"},
	{"pause", false, "fa fa-fw fa-pause-circle", "Pause"},
	{"resume", false, "fa fa-fw fa-play-circle", "Resume"},
	{"retry", false, "fa fa-fw fa-redo", "Retry the commit"},
	{"rollback", false, "fa fa-fw fa-history", "Roll back to the last good commit"},
}

// These types are the rows of action_test.yaml, in the format of Argo CD's own tests.
type (
	menuRow struct {
		Name        string `json:"name"`
		Disabled    bool   `json:"disabled"`
		IconClass   string `json:"iconClass"`
		DisplayName string `json:"displayName"`
	}
	discoveryTest struct {
		InputPath string    `json:"inputPath"`
		Result    []menuRow `json:"result"`
	}
	actionTest struct {
		Action             string `json:"action"`
		InputPath          string `json:"inputPath"`
		ExpectedOutputPath string `json:"expectedOutputPath"`
	}
	actionTests struct {
		DiscoveryTests []discoveryTest `json:"discoveryTests"`
		ActionTests    []actionTest    `json:"actionTests"`
	}
)

// actionRows returns the rows of action_test.yaml and the objects that they name. What the command line writes is what an action must write.
func actionRows(t *testing.T) (tests actionTests, objects map[string]*v1alpha1.GatewaySync) {
	t.Helper()
	objects = map[string]*v1alpha1.GatewaySync{}
	// sequence: each fleet adds its rows
	for _, f := range fleets {
		s := newScene(t)
		f.arrange(s)
		input := f.file + ".yaml"
		objects[input] = s.GatewaySync
		row := discoveryTest{InputPath: input}
		for _, m := range menu {
			m.Disabled = !slices.Contains(f.offered, m.Name)
			row.Result = append(row.Result, m)
		}
		tests.DiscoveryTests = append(tests.DiscoveryTests, row)
		for _, name := range f.run {
			output := f.file + "_" + name + ".yaml"
			after, _, err := asked(t, s.GatewaySync, func(v *request.Setter) (request.Answer, error) {
				switch name {
				case "approve":
					return v.Approve(t.Context(), "plant", "site", "", "", "")
				case "approve-window":
					return v.ApproveWindow(t.Context(), "plant", "site", "", "")
				case "rollback":
					return v.Rollback(t.Context(), "plant", "site", "", "", "argocd", "")
				case "retry":
					return v.Retry(t.Context(), "plant", "site")
				case "force-sync":
					return v.Ask(t.Context(), "plant", "site", request.Request{By: "argocd", Force: true})
				}
				return v.Pause(t.Context(), "plant", "site", name == "pause")
			})
			require.NoError(t, err)
			want := s.GatewaySync.DeepCopy()
			want.Annotations = notes(after)
			if name == "resume" && len(after.Annotations) == 0 {
				want.Annotations = map[string]string{v1alpha1.AnnotationPaused: "false"}
			}
			objects[output] = want
			tests.ActionTests = append(tests.ActionTests, actionTest{name, input, output})
		}
	}
	return tests, objects
}

// The modules test/argocd and test/argocd/v3 run the same rows with Argo CD.
func TestActions(t *testing.T) {
	tests, objects := actionRows(t)
	write(t, "GatewaySync/actions/action_test.yaml", tests)
	// setup: the objects for Argo CD
	for path, gs := range objects {
		write(t, "GatewaySync/actions/"+path, gs)
	}
	require.Len(t, tests.DiscoveryTests, len(fleets))
	discovery := load(t, "actions/discovery.lua")
	for _, c := range tests.DiscoveryTests {
		t.Run(c.InputPath, func(t *testing.T) {
			raw, err := discovery.run(object(t, objects[c.InputPath]), noon)
			require.NoError(t, err)
			found := map[string]menuRow{}
			require.NoError(t, json.Unmarshal(raw, &found))
			var rows []menuRow
			for name, row := range found {
				row.Name = name
				rows = append(rows, row)
			}
			slices.SortFunc(rows, func(a, b menuRow) int { return cmp.Compare(a.Name, b.Name) })
			assert.Equal(t, c.Result, rows)
		})
	}
	require.NotEmpty(t, tests.ActionTests)
	for _, c := range tests.ActionTests {
		t.Run(c.ExpectedOutputPath, func(t *testing.T) {
			after, err := action(t, c.Action).click(t, objects[c.InputPath].DeepCopy())
			require.NoError(t, err)
			assert.Equal(t, notes(objects[c.ExpectedOutputPath]), notes(after))
		})
	}
}
