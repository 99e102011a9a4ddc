//go:build !race

package argocd

import (
	"context"
	"encoding/json"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic/fake"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/desiredref"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/internal/request"
)

// configSyncs lists ConfigSyncs in the states that matter to Argo CD. They are written to testdata, where the modules test/argocd and
// test/argocd/v3 check them with Argo CD's own code.
var configSyncs = []struct {
	name, health, message string
	observed              int64 // generation; that of the spec is 2
	conditions            []metav1.Condition
}{
	{"new", "Progressing", "no run yet: enable stoker config run, or use stoker config apply", -1, nil},
	{"synced", "Healthy", "6 objects of aaaaaaa are applied and healthy", 2, []metav1.Condition{
		ofConfig(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonSynced, "6 objects of aaaaaaa are applied and healthy"),
	}},
	{"spec_not_seen", "Progressing", "no run of the current spec yet", 1, []metav1.Condition{
		ofConfig(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonSynced, "6 objects of aaaaaaa are applied and healthy"),
	}},
	{"failed_before_the_spec", "Progressing", "no run of the current spec yet", 1, []metav1.Condition{
		ofConfig(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonManifestInvalid, "site.yaml: line 3: unexpected end"),
		ofConfig(v1alpha1.ConditionStalled, metav1.ConditionTrue, v1alpha1.ReasonManifestInvalid, "site.yaml: line 3: unexpected end"),
	}},
	{"working", "Progressing", "a run is under way: 1 to create, 5 unchanged", 2, []metav1.Condition{
		ofConfig(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonProgressing, "a run is under way: 1 to create, 5 unchanged"),
		ofConfig(v1alpha1.ConditionReconciling, metav1.ConditionTrue, v1alpha1.ReasonProgressing, "a run is under way"),
	}},
	{"git_unreachable", "Progressing", "GitUnreachable: dial tcp: connection refused", 2, []metav1.Condition{
		ofConfig(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonGitUnreachable, "dial tcp: connection refused"),
		ofConfig(v1alpha1.ConditionReconciling, metav1.ConditionTrue, v1alpha1.ReasonGitUnreachable, "the next run tries again"),
	}},
	{"not_owned", "Suspended", "NotOwned: ConfigMap plant/site belongs to others", 2, []metav1.Condition{
		ofConfig(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonNotOwned, "ConfigMap plant/site belongs to others"),
		ofConfig(v1alpha1.ConditionStalled, metav1.ConditionTrue, v1alpha1.ReasonNotOwned, "ConfigMap plant/site belongs to others"),
	}},
	{"manifest_invalid", "Degraded", "ManifestInvalid: site.yaml: line 3: unexpected end", 2, []metav1.Condition{
		ofConfig(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonManifestInvalid, "site.yaml: line 3: unexpected end"),
		ofConfig(v1alpha1.ConditionStalled, metav1.ConditionTrue, v1alpha1.ReasonManifestInvalid, "site.yaml: line 3: unexpected end"),
	}},
	{"paused", "Healthy", "paused by spec.paused or by the annotation stoker.io/paused", 2, []metav1.Condition{
		ofConfig(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonPaused, "paused by spec.paused or by the annotation stoker.io/paused"),
	}},
	{"dry_run", "Healthy", "nothing was changed: 1 to create, 5 unchanged", 2, []metav1.Condition{
		ofConfig(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonDryRun, "nothing was changed: 1 to create, 5 unchanged"),
	}},
}

func ofConfig(kind string, is metav1.ConditionStatus, reason v1alpha1.Reason, message string) metav1.Condition {
	return metav1.Condition{Type: kind, Status: is, Reason: string(reason), Message: message, LastTransitionTime: metav1.NewTime(noon)}
}

func TestConfigSyncHealth(t *testing.T) {
	script := load(t, "../ConfigSync/health.lua")
	var tests struct {
		Tests []healthTest `json:"tests"`
	}
	for _, c := range configSyncs {
		t.Run(c.name, func(t *testing.T) {
			cs := &v1alpha1.ConfigSync{}
			cs.APIVersion, cs.Kind, cs.Namespace, cs.Name, cs.Generation = "stoker.io/v1alpha1", "ConfigSync", "plant", "plant", 2
			cs.CreationTimestamp = metav1.NewTime(noon.Add(-time.Hour))
			cs.Spec.Source.Git = &v1alpha1.ConfigGit{RepoURL: "https://git.example.com/plant.git", Branch: "main", Path: "kubernetes"}
			cs.Status.ObservedGeneration, cs.Status.Conditions = c.observed, c.conditions
			want := health{c.health, c.message}
			assert.Equal(t, want, script.health(t, object(t, cs)))
			golden(t, "../ConfigSync/testdata/"+c.name+".yaml", cs)
			tests.Tests = append(tests.Tests, healthTest{"testdata/" + c.name + ".yaml", want})
		})
	}
	golden(t, "../ConfigSync/health_test.yaml", tests)
	there, err := filepath.Glob(filepath.Join(folder, "..", "ConfigSync", "testdata", "*.yaml"))
	require.NoError(t, err)
	assert.Len(t, there, len(configSyncs), "a file in testdata belongs to no status: delete it")
}

// The health follows from the class of the reason. Reasons that only GatewaySyncs have are not asked for.
func TestConfigSyncHealthByReason(t *testing.T) {
	script := load(t, "../ConfigSync/health.lua")
	own := []v1alpha1.Reason{v1alpha1.ReasonNotOwned, v1alpha1.ReasonApplyConflict, v1alpha1.ReasonMassDeletion}
	for _, r := range v1alpha1.Reasons {
		if r.Class == v1alpha1.ClassHeld && !slices.Contains(own, r.Reason) {
			continue
		}
		t.Run(string(r.Reason), func(t *testing.T) {
			cs := &v1alpha1.ConfigSync{}
			cs.Generation, cs.Status.ObservedGeneration = 1, 1
			cs.Status.Conditions = []metav1.Condition{ofConfig(v1alpha1.ConditionReady, metav1.ConditionFalse, r.Reason, "text")}
			want := map[v1alpha1.Class]string{v1alpha1.ClassHeld: "Suspended", v1alpha1.ClassStalled: "Degraded"}[r.Class]
			if want != "" {
				cs.Status.Conditions = append(cs.Status.Conditions, ofConfig(v1alpha1.ConditionStalled, metav1.ConditionTrue, r.Reason, "text"))
			}
			switch {
			case r.Reason == v1alpha1.ReasonPaused:
				want = "Suspended"
			case r.Reason == v1alpha1.ReasonDryRun:
				want = "Healthy"
			case want == "":
				want = "Progressing"
			}
			got := script.health(t, object(t, cs))
			assert.Equal(t, want, got.Status)
			assert.Contains(t, got.Message, "text")
		})
	}
}

// The actions of a ConfigSync write what the commands write.
func TestConfigSyncActions(t *testing.T) {
	discovery := load(t, "../ConfigSync/actions/discovery.lua")
	for _, c := range []struct {
		name, note    string
		spec          bool
		rollback      *v1alpha1.Rollback
		pause, resume bool
	}{
		{"running", "", false, nil, true, false},
		{"paused by annotation", "true", false, nil, false, true},
		{"paused by spec", "", true, nil, false, false},
		{"invalid annotation", "yes", false, nil, true, false},
		{"runs the last good commit", "", false, &v1alpha1.Rollback{Unless: commitB}, true, false},
		{"can go back", "", false, &v1alpha1.Rollback{Commit: commitA}, true, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			cs := configSync()
			if cs.Spec.Paused = c.spec; c.note != "" {
				cs.Annotations = map[string]string{v1alpha1.AnnotationPaused: c.note}
			}
			cs.Status.Rollback = c.rollback
			raw, err := discovery.run(object(t, cs), noon)
			require.NoError(t, err)
			got := map[string]offer{}
			require.NoError(t, json.Unmarshal(raw, &got))
			assert.Len(t, got, 4)
			assert.Equal(t, []bool{true, c.pause, c.resume, c.name == "can go back"},
				[]bool{!got["force-sync"].Disabled, !got["pause"].Disabled, !got["resume"].Disabled, !got["rollback"].Disabled})
		})
	}
	for name, do := range map[string]func(context.Context, *request.Setter) (request.Answer, error){
		"pause": func(ctx context.Context, s *request.Setter) (request.Answer, error) {
			return s.Pause(ctx, "plant", "plant", true)
		},
		"resume": func(ctx context.Context, s *request.Setter) (request.Answer, error) {
			return s.Pause(ctx, "plant", "plant", false)
		},
		"force-sync": func(ctx context.Context, s *request.Setter) (request.Answer, error) {
			return s.Ask(ctx, "plant", "plant", request.Request{Force: true, By: "argocd"})
		},
	} {
		t.Run(name, func(t *testing.T) {
			cs := configSync()
			if name == "resume" {
				cs.Annotations = map[string]string{v1alpha1.AnnotationPaused: "true", "plant.example.com/area": "north"}
			}
			raw, err := action(t, name).run(object(t, cs), noon)
			require.NoError(t, err)
			var after struct {
				Metadata struct{ Annotations map[string]string }
			}
			require.NoError(t, json.Unmarshal(raw, &after))
			client := fake.NewSimpleDynamicClient(runtime.NewScheme(), &unstructured.Unstructured{Object: object(t, cs)})
			answer, err := do(t.Context(), request.NewSetter(client, func() time.Time { return noon.Add(7) }).Of(kube.ConfigSync))
			require.NoError(t, err)
			assert.Equal(t, answer.Object.GetAnnotations(), after.Metadata.Annotations)
		})
	}
}

func TestConfigSyncRollbackMatchesCLI(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*v1alpha1.ConfigSync)
		set    bool
		fails  string
	}{
		"branch":         {func(*v1alpha1.ConfigSync) {}, true, ""},
		"default branch": {func(cs *v1alpha1.ConfigSync) { cs.Spec.Source.Git.Branch, cs.Status.SourceRef = "", "HEAD" }, true, ""},
		"tag":            {func(cs *v1alpha1.ConfigSync) { cs.Spec.Source.Git.Revision, cs.Status.SourceRef = "v2", "v2" }, true, ""},
		"commit":         {func(cs *v1alpha1.ConfigSync) { cs.Spec.Source.Git.Revision, cs.Status.SourceRef = commitB, commitB }, true, ""},
		"requested ref": {func(cs *v1alpha1.ConfigSync) {
			cs.Annotations = map[string]string{v1alpha1.AnnotationRequestedRef: "v3", v1alpha1.AnnotationRequestedCommit: commitB, "plant.example.com/area": "north"}
			cs.Status.SourceRef = "v3"
		}, true, ""},
		"last good commit runs": {func(cs *v1alpha1.ConfigSync) {
			cs.Status.SourceRevision, cs.Annotations = commitA, map[string]string{"plant.example.com/area": "north"}
		}, false, ""},
		"no last good commit": {func(cs *v1alpha1.ConfigSync) { cs.Status.LastGood = nil }, false, "nothing to go back to"},
		"not resolved": {func(cs *v1alpha1.ConfigSync) {
			cs.Status.Conditions = []metav1.Condition{ofConfig(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonGitUnreachable, "")}
		}, false, "try again soon"},
		"older spec": {func(cs *v1alpha1.ConfigSync) { cs.Status.ObservedGeneration = 1 }, false, "try again soon"},
	} {
		t.Run(name, func(t *testing.T) {
			cs := configSync()
			cs.Status.ObservedGeneration, cs.Status.SourceRef, cs.Status.SourceRevision = 2, "main", commitB
			cs.Status.LastGood = &v1alpha1.CommitRecord{Ref: "main", Commit: commitA}
			cs.Status.Conditions = []metav1.Condition{
				ofConfig(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonUnhealthy, ""),
				ofConfig(v1alpha1.ConditionRefResolved, metav1.ConditionTrue, v1alpha1.ReasonRefResolved, ""),
			}
			c.change(cs)
			cs.Status.ObservedRequest = desiredref.Key(cs)
			q := desiredref.RequestsOf(cs)
			desired, err := q.Desired("")
			require.NoError(t, err)
			cs.Status.Rollback = desired.Rollback(q, desiredref.StandingOf(cs).Commit, cs.Status.LastGood)
			client := fake.NewSimpleDynamicClient(runtime.NewScheme(), &unstructured.Unstructured{Object: object(t, cs)})
			setter := request.NewSetter(client, func() time.Time { return noon.Add(7) }).Of(kube.ConfigSync)
			answer, wanted := setter.Rollback(t.Context(), "plant", "plant", "", "argocd", "")
			raw, err := action(t, "rollback").run(object(t, cs), noon)
			if c.fails != "" {
				require.Error(t, wanted)
				require.ErrorContains(t, err, c.fails)
				return
			}
			require.NoError(t, wanted)
			require.NoError(t, err)
			var after struct {
				Metadata struct{ Annotations map[string]string }
			}
			require.NoError(t, json.Unmarshal(raw, &after))
			assert.Equal(t, c.set, answer.Outcome == request.Set)
			assert.Equal(t, answer.Object.GetAnnotations(), after.Metadata.Annotations)
		})
	}
}

func configSync() *v1alpha1.ConfigSync {
	cs := &v1alpha1.ConfigSync{}
	cs.APIVersion, cs.Kind, cs.Namespace, cs.Name, cs.Generation, cs.ResourceVersion = "stoker.io/v1alpha1", "ConfigSync", "plant", "plant", 2, "7"
	cs.Spec.Source.Git = &v1alpha1.ConfigGit{RepoURL: "https://git.example.com/plant.git", Branch: "main", Path: "kubernetes"}
	return cs
}
