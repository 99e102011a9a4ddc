//go:build !race

package argocd

import (
	"cmp"
	"encoding/json"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/request"
)

// fleets lists the fleets of the test data, each with the actions that are offered and the actions that the test runs.
var fleets = []struct {
	file    string
	offered []string
	run     []string
	play    func(*scene)
}{
	{"synced", []string{"force-sync", "pause"}, []string{"force-sync", "pause"}, func(*scene) {}},
	{"bad_commit", []string{"force-sync", "pause", "rollback"}, []string{"rollback"}, badCommit},
	{"bad_request", []string{"force-sync", "pause", "rollback"}, []string{"force-sync", "rollback"}, func(s *scene) {
		asksForV2(s)
		badCommit(s)
	}},
	{"paused_alone", []string{"force-sync", "resume"}, []string{"resume"}, func(s *scene) {
		s.asks(v1alpha1.AnnotationPaused, "true")
		s.write()
	}},
	{"new", []string{"force-sync", "pause"}, nil, func(s *scene) { s.GatewaySync.Status = v1alpha1.GatewaySyncStatus{} }},
}

func asksForV2(s *scene) {
	s.asks(v1alpha1.AnnotationRequestedRef, "v2", v1alpha1.AnnotationRequestedOver, v1alpha1.RequestOver("v2", "main", requestedAt),
		v1alpha1.AnnotationRequestedAt, requestedAt, v1alpha1.AnnotationRequestedBy, "kargo")
}

// rolledBack plays a fleet that runs well after a rollback, while main is still at the bad commit.
func rolledBack(s *scene) {
	badCommit(s)
	s.asks(v1alpha1.AnnotationRequestedRef, commitA, v1alpha1.AnnotationRequestedOver, v1alpha1.RequestOver(commitA, "main", requestedAt),
		v1alpha1.AnnotationRequestedUnless, commitB, v1alpha1.AnnotationRequestedAt, requestedAt)
	s.looks(commitA, nil)
	s.takes(0)
	s.takes(1)
	s.write()
}

// badCommit plays a commit that one gateway cannot run.
func badCommit(s *scene) {
	s.looks(commitB, nil)
	s.takes(0)
	s.stands(1, v1alpha1.GatewayError, v1alpha1.ReasonConfigSyntaxError, "projects/a/project.json: line 3: unexpected end")
	s.write()
}

var menu = []menuRow{
	{"force-sync", false, "fa fa-fw fa-sync", "Force sync"},
	{"pause", false, "fa fa-fw fa-pause-circle", "Pause"},
	{"resume", false, "fa fa-fw fa-play-circle", "Resume"},
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

// The verbs define what an action must write.
func TestActionTestdata(t *testing.T) {
	var tests actionTests
	files := 0
	// sequence: each fleet adds its rows to action_test.yaml
	for _, f := range fleets {
		s := newScene(t)
		f.play(s)
		input := "testdata/" + f.file + ".yaml"
		golden(t, "actions/"+input, s.GatewaySync)
		files++
		row := discoveryTest{InputPath: input}
		for _, m := range menu {
			m.Disabled = !slices.Contains(f.offered, m.Name)
			row.Result = append(row.Result, m)
		}
		tests.DiscoveryTests = append(tests.DiscoveryTests, row)
		for _, name := range f.run {
			output := "testdata/" + f.file + "_" + name + ".yaml"
			after, _, err := asked(t, s.GatewaySync, func(v *request.Setter) (request.Answer, error) {
				switch name {
				case "rollback":
					return v.Rollback(t.Context(), "plant", "site", "", "argocd", "")
				case "force-sync":
					return v.Ask(t.Context(), "plant", "site", request.Request{By: "argocd", Force: true})
				}
				return v.Pause(t.Context(), "plant", "site", name == "pause")
			})
			require.NoError(t, err)
			want := s.GatewaySync.DeepCopy()
			want.Annotations = after.Annotations
			if name == "resume" && len(after.Annotations) == 0 {
				want.Annotations = map[string]string{v1alpha1.AnnotationPaused: "false"}
			}
			golden(t, "actions/"+output, want)
			files++
			tests.ActionTests = append(tests.ActionTests, actionTest{name, input, output})
		}
	}
	golden(t, "actions/action_test.yaml", tests)
	there, err := filepath.Glob(filepath.Join(folder, "actions", "testdata", "*.yaml"))
	require.NoError(t, err)
	assert.Len(t, there, files, "no file is left of an earlier test")
}

// The modules test/argocd and test/argocd/v3 run the same file with Argo CD.
func TestActions(t *testing.T) {
	var tests actionTests
	read(t, "actions/action_test.yaml", &tests)
	require.Len(t, tests.DiscoveryTests, len(fleets))
	discovery := load(t, "actions/discovery.lua")
	for _, c := range tests.DiscoveryTests {
		obj := map[string]any{}
		read(t, "actions/"+c.InputPath, &obj)
		raw, err := discovery.run(obj, noon)
		require.NoError(t, err)
		found := map[string]menuRow{}
		require.NoError(t, json.Unmarshal(raw, &found))
		var rows []menuRow
		for name, row := range found {
			row.Name = name
			rows = append(rows, row)
		}
		slices.SortFunc(rows, func(a, b menuRow) int { return cmp.Compare(a.Name, b.Name) })
		assert.Equal(t, c.Result, rows, c.InputPath)
	}
	require.NotEmpty(t, tests.ActionTests)
	for _, c := range tests.ActionTests {
		var before, want v1alpha1.GatewaySync
		read(t, "actions/"+c.InputPath, &before)
		read(t, "actions/"+c.ExpectedOutputPath, &want)
		after, err := action(t, c.Action).click(t, &before)
		require.NoError(t, err)
		assert.Equal(t, want.Annotations, after.Annotations, "%s of %s", c.Action, c.InputPath)
	}
}
