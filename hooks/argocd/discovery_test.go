//go:build !race

package argocd

import (
	"cmp"
	"encoding/json"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/desiredref"
	"stoker.io/stoker/internal/request"
)

// fleets lists the fleets of the test data, each with the actions that are offered and the actions that the test runs.
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
		s.resolve(commitB, nil)
		s.reportSynced(0)
		s.report(1, v1alpha1.GatewayHeld, v1alpha1.ReasonMaintenanceWindow, "waits for its window")
		s.write()
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
	s.report(1, v1alpha1.GatewayError, v1alpha1.ReasonConfigSyntaxError, "projects/a/project.json: line 3: unexpected end")
	s.write()
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

// actionRows returns the rows of action_test.yaml and the objects that they name. The verbs define what an action must write.
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
