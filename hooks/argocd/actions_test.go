//go:build !race

package argocd

import (
	"encoding/json"
	"path/filepath"
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

// asked makes the same change with the verbs.
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
			"another approval waits": {&v1alpha1.Approval{Commit: commitB, Stage: map[string]string{"approve-window": "prod"}[kind.name], Window: kind.name == "approve"}, "", false},
		} {
			t.Run(kind.name+"/"+name, func(t *testing.T) {
				gs := &v1alpha1.GatewaySync{}
				gs.Status.Approval, gs.Annotations = c.approval, map[string]string{v1alpha1.AnnotationApproved: c.have}
				before := annotation.Approved(gs, "dev", commitA)
				assert.Equal(t, c.offered, !offers(t, discovery, gs)[kind.name].Disabled)
				after, err := script.click(t, gs)
				if !c.offered {
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

// withoutBefore removes what the request replaced: actions do not note it, because Argo CD withdraws no request.
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
