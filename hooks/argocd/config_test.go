//go:build !race

package argocd

import (
	"context"
	"encoding/json"
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

// configSyncs lists ConfigSyncs in the states that matter to Argo CD. Each change alters one that was applied. With -write, the tests
// write them for the modules test/argocd and test/argocd/v3, which check them with Argo CD's own code.
var configSyncs = []struct {
	name, health, message string
	change                func(*v1alpha1.ConfigSync)
}{
	{"new", "Progressing", "no run yet: enable stoker config run, or use stoker config apply", func(cs *v1alpha1.ConfigSync) {
		cs.Status = v1alpha1.ConfigSyncStatus{ObservedGeneration: -1}
	}},
	{"synced", "Healthy", "6 objects of aaaaaaa are applied and healthy", func(*v1alpha1.ConfigSync) {}},
	{"spec_not_seen", "Progressing", "no run of the current spec yet", func(cs *v1alpha1.ConfigSync) { cs.Generation++ }},
	{"request_not_seen", "Progressing", "no run of the current request yet", func(cs *v1alpha1.ConfigSync) {
		cs.Annotations = map[string]string{v1alpha1.AnnotationRequestedAt: requestedAt}
	}},
	{"failed_before_the_spec", "Progressing", "no run of the current spec yet", func(cs *v1alpha1.ConfigSync) {
		ended(v1alpha1.OutcomeFailed, v1alpha1.ReasonManifestInvalid, "site.yaml: line 3: unexpected end")(cs)
		cs.Generation++
	}},
	{"working", "Progressing", "a run is under way: 1 to create, 5 unchanged",
		ended(v1alpha1.OutcomeProgressing, v1alpha1.ReasonProgressing, "a run is under way: 1 to create, 5 unchanged")},
	{"git_unreachable", "Progressing", "GitUnreachable: dial tcp: connection refused",
		ended(v1alpha1.OutcomeProgressing, v1alpha1.ReasonGitUnreachable, "dial tcp: connection refused")},
	{"not_owned", "Suspended", "NotOwned: ConfigMap plant/site belongs to others",
		ended(v1alpha1.OutcomeHeld, v1alpha1.ReasonNotOwned, "ConfigMap plant/site belongs to others")},
	{"manifest_invalid", "Degraded", "ManifestInvalid: site.yaml: line 3: unexpected end",
		ended(v1alpha1.OutcomeFailed, v1alpha1.ReasonManifestInvalid, "site.yaml: line 3: unexpected end")},
	{"paused", "Healthy", "paused by spec.paused or by the annotation stoker.io/paused",
		ended(v1alpha1.OutcomePaused, v1alpha1.ReasonPaused, "paused by spec.paused or by the annotation stoker.io/paused")},
	{"dry_run", "Healthy", "nothing was changed: 1 to create, 5 unchanged",
		ended(v1alpha1.OutcomePaused, v1alpha1.ReasonDryRun, "nothing was changed: 1 to create, 5 unchanged")},
}

// ended makes the last run of a ConfigSync end with an outcome.
func ended(phase v1alpha1.OutcomePhase, reason v1alpha1.Reason, message string) func(*v1alpha1.ConfigSync) {
	return func(cs *v1alpha1.ConfigSync) {
		o := cs.Status.Outcome
		o.Phase, o.Reason, o.Message = phase, reason, message
	}
}

// applied returns a ConfigSync whose last run applied main.
func applied() *v1alpha1.ConfigSync {
	cs := configSync()
	cs.CreationTimestamp, cs.ResourceVersion = metav1.NewTime(noon.Add(-time.Hour)), ""
	cs.Status.ObservedGeneration, cs.Status.ObservedRequest = cs.Generation, desiredref.Key(cs)
	cs.Status.Outcome = &v1alpha1.Outcome{Phase: v1alpha1.OutcomeSucceeded, Ref: "main", Commit: commitA, Reason: v1alpha1.ReasonSynced,
		Message: "6 objects of aaaaaaa are applied and healthy"}
	return cs
}

func TestConfigSyncHealth(t *testing.T) {
	script := load(t, "../ConfigSync/health.lua")
	var tests struct {
		Tests []healthTest `json:"tests"`
	}
	for _, c := range configSyncs {
		t.Run(c.name, func(t *testing.T) {
			cs := applied()
			c.change(cs)
			want := health{c.health, c.message}
			assert.Equal(t, want, script.health(t, object(t, cs)))
			write(t, "ConfigSync/"+c.name+".yaml", cs)
			tests.Tests = append(tests.Tests, healthTest{c.name + ".yaml", want})
		})
	}
	write(t, "ConfigSync/health_test.yaml", tests)
}

// For every outcome, health.lua and "stoker wait" agree on the health, also right after a request.
func TestConfigSyncHealthOfEveryOutcome(t *testing.T) {
	script := load(t, "../ConfigSync/health.lua")
	phases := map[v1alpha1.OutcomePhase]string{v1alpha1.OutcomeProgressing: "Progressing", v1alpha1.OutcomeSucceeded: "Healthy",
		v1alpha1.OutcomePaused: "Healthy", v1alpha1.OutcomeHeld: "Suspended", v1alpha1.OutcomeFailed: "Degraded"}
	for phase, want := range phases {
		t.Run(string(phase), func(t *testing.T) {
			cs := applied()
			ended(phase, v1alpha1.ReasonUnhealthy, "text")(cs)
			assert.Equal(t, health{want, "Unhealthy: text"}, script.health(t, object(t, cs)))
			assert.Equal(t, phase, v1alpha1.OutcomePhase(request.ReadConfig(cs, "").Phase))
			for _, name := range []string{v1alpha1.AnnotationRequestedAt, v1alpha1.AnnotationPaused, v1alpha1.AnnotationRequestedRef} {
				t.Run(name, func(t *testing.T) {
					cs := applied()
					ended(phase, v1alpha1.ReasonUnhealthy, "text")(cs)
					cs.Annotations = map[string]string{name: "v2"}
					assert.Equal(t, "Progressing", script.health(t, object(t, cs)).Status)
					assert.Equal(t, request.Progressing, request.ReadConfig(cs, "").Phase)
				})
			}
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
			assert.Equal(t, withoutBefore(answer.Object.GetAnnotations()), withoutBefore(after.Metadata.Annotations))
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
		"default branch": {func(cs *v1alpha1.ConfigSync) { cs.Spec.Source.Git.Branch, cs.Status.Outcome.Ref = "", "HEAD" }, true, ""},
		"tag":            {func(cs *v1alpha1.ConfigSync) { cs.Spec.Source.Git.Revision, cs.Status.Outcome.Ref = "v2", "v2" }, true, ""},
		"commit":         {func(cs *v1alpha1.ConfigSync) { cs.Spec.Source.Git.Revision, cs.Status.Outcome.Ref = commitB, commitB }, true, ""},
		"requested ref": {func(cs *v1alpha1.ConfigSync) {
			cs.Annotations = map[string]string{v1alpha1.AnnotationRequestedRef: "v3", v1alpha1.AnnotationRequestedCommit: commitB, "plant.example.com/area": "north"}
			cs.Status.Outcome.Ref = "v3"
		}, true, ""},
		"last good commit runs": {func(cs *v1alpha1.ConfigSync) {
			cs.Status.Outcome.Commit, cs.Annotations = commitA, map[string]string{"plant.example.com/area": "north"}
		}, false, ""},
		"no last good commit": {func(cs *v1alpha1.ConfigSync) { cs.Status.LastGood = nil }, false, "nothing to go back to"},
		"not resolved":        {func(cs *v1alpha1.ConfigSync) { cs.Status.Outcome.Commit = "" }, false, "try again soon"},
		"no run":              {func(cs *v1alpha1.ConfigSync) { cs.Status.Outcome = nil }, false, "try again soon"},
		"older spec":          {func(cs *v1alpha1.ConfigSync) { cs.Status.ObservedGeneration = 1 }, false, "try again soon"},
	} {
		t.Run(name, func(t *testing.T) {
			cs := configSync()
			cs.Status.ObservedGeneration = 2
			cs.Status.LastGood = &v1alpha1.CommitRecord{Ref: "main", Commit: commitA}
			cs.Status.Outcome = &v1alpha1.Outcome{Phase: v1alpha1.OutcomeFailed, Ref: "main", Commit: commitB, Reason: v1alpha1.ReasonUnhealthy}
			c.change(cs)
			cs.Status.ObservedRequest = desiredref.Key(cs)
			q := desiredref.InputsOf(cs)
			desired, err := q.Desired("")
			require.NoError(t, err)
			cs.Status.Rollback = desired.Rollback(q, desiredref.RefStatusOf(cs).Commit, cs.Status.LastGood)
			client := fake.NewSimpleDynamicClient(runtime.NewScheme(), &unstructured.Unstructured{Object: object(t, cs)})
			setter := request.NewSetter(client, func() time.Time { return noon.Add(7) }).Of(kube.ConfigSync)
			answer, wanted := setter.Rollback(t.Context(), "plant", "plant", "", "", "argocd", "")
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
			assert.Equal(t, withoutBefore(answer.Object.GetAnnotations()), withoutBefore(after.Metadata.Annotations))
		})
	}
}

func configSync() *v1alpha1.ConfigSync {
	cs := &v1alpha1.ConfigSync{}
	cs.APIVersion, cs.Kind, cs.Namespace, cs.Name, cs.Generation, cs.ResourceVersion = "stoker.io/v1alpha1", "ConfigSync", "plant", "plant", 2, "7"
	cs.Spec.Source.Git = &v1alpha1.ConfigGit{RepoURL: "https://git.example.com/plant.git", Branch: "main", ConfigFiles: v1alpha1.ConfigFiles{Path: "kubernetes"}}
	return cs
}
