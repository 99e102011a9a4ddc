package kargo

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/test/fleet/plant"
	"stoker.io/stoker/test/fleet/receivertest"
	"stoker.io/stoker/test/gitserver"
)

// These types are the parts of a Stage that the example uses. Unknown fields are errors.
type (
	verification struct {
		AnalysisTemplates []struct {
			Name string `json:"name"`
			Kind string `json:"kind,omitempty"`
		} `json:"analysisTemplates"`
		Args []variable `json:"args"`
	}
	stage struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
		Metadata   struct {
			Name      string `json:"name"`
			Namespace string `json:"namespace"`
		} `json:"metadata"`
		Spec struct {
			RequestedFreight []struct {
				Origin  map[string]string `json:"origin"`
				Sources struct {
					Direct bool     `json:"direct,omitempty"`
					Stages []string `json:"stages,omitempty"`
				} `json:"sources"`
			} `json:"requestedFreight"`
			PromotionTemplate struct {
				Spec struct {
					Steps []step `json:"steps"`
				} `json:"spec"`
			} `json:"promotionTemplate"`
			Verification *verification `json:"verification,omitempty"`
		} `json:"spec"`
	}
)

// stages returns the Stages of the example by name.
func stages(t *testing.T) map[string]stage {
	t.Helper()
	all := map[string]stage{}
	for _, text := range documents(t, "../../examples/kargo/pipeline.yaml") {
		if !strings.Contains(text, "\nkind: Stage\n") {
			continue
		}
		var s stage
		require.NoError(t, yaml.UnmarshalStrict([]byte(text), &s))
		all[s.Metadata.Name] = s
	}
	require.Len(t, all, 3)
	return all
}

// gatewaySyncs returns the GatewaySyncs of the example by name.
func gatewaySyncs(t *testing.T) map[string]*v1alpha1.GatewaySync {
	t.Helper()
	all := map[string]*v1alpha1.GatewaySync{}
	for _, text := range documents(t, "../../examples/kargo/gatewaysyncs.yaml") {
		gs := &v1alpha1.GatewaySync{}
		require.NoError(t, yaml.UnmarshalStrict([]byte(text), gs))
		all[gs.Name] = gs
	}
	require.Len(t, all, 3)
	return all
}

func documents(t *testing.T, file string) []string {
	t.Helper()
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	return strings.Split(string(b), "\n---\n")
}

// pipeline runs the Stages of the example as Kargo would: Freight must be verified in one Stage before it enters the next.
type pipeline struct {
	*line
	stages   map[string]stage
	verified map[string][]string // tags by Stage
}

const exampleRepo = "https://git.example.com/plants/ignition.git"

// promote promotes a tag to a Stage and verifies the result. It returns an error if the Freight is not available to the Stage.
func (l *pipeline) promote(name, tag string) (*promotion, error) {
	l.t.Helper()
	s := l.stages[name]
	for _, f := range s.Spec.RequestedFreight {
		for _, before := range f.Sources.Stages {
			if !slices.Contains(l.verified[before], tag) {
				return nil, fmt.Errorf("%s was not verified in %s", tag, before)
			}
		}
	}
	l.promoted++
	p := &promotion{
		name: fmt.Sprintf("%s.01m7vmb2qdrn90aaqkkr%06d.51f97f6", name, l.promoted), project: s.Metadata.Namespace, stage: name, freight: "51f97f6", scale: 50, real: true,
		secrets: map[string]map[string]string{"stoker-webhook": {"token": receivertest.Token}}, commits: []commit{{RepoURL: exampleRepo, Tag: tag, ID: strings.TrimSpace(l.Repo.Git("rev-parse", tag))}},
		vars: []variable{{"receiver", l.receiver.URL}},
	}
	for _, one := range s.Spec.PromotionTemplate.Spec.Steps {
		one.Vars = here(one.Vars, l.Namespace)
		p.steps = append(p.steps, one)
	}
	require.NoError(l.t, p.inflate(tasks(l.t)))
	require.NoError(l.t, p.run(l.t.Context(), nil))
	if p.phase == succeeded && l.verify(s, p) {
		l.verified[name] = append(l.verified[name], tag)
	}
	return p, nil
}

// here sets the var namespace to the namespace of this test.
func here(vars []variable, namespace string) []variable {
	vars = slices.Clone(vars)
	for i := range vars {
		if vars[i].Name == "namespace" {
			vars[i].Value = namespace
		}
	}
	return vars
}

// verify runs the analysis templates of the Stage.
func (l *pipeline) verify(s stage, p *promotion) bool {
	l.t.Helper()
	if s.Spec.Verification == nil {
		return true
	}
	args := map[string]string{"receiver": l.receiver.URL, "token": receivertest.Token}
	for _, a := range here(s.Spec.Verification.Args, l.Namespace) {
		value, err := evaluate(a.Value, map[string]any{"ctx": map[string]any{"stage": p.stage}}, p.functions(step{})...)
		require.NoError(l.t, err)
		args[a.Name] = value.(string)
	}
	for _, template := range s.Spec.Verification.AnalysisTemplates {
		run, err := analyse(l.t, template.Name, args)
		require.NoError(l.t, err)
		for _, m := range run.Spec.Metrics {
			phase, _, err := m.verify(l.t.Context())
			require.NoError(l.t, err)
			if phase != "Successful" {
				return false
			}
		}
	}
	return true
}

// stagePod returns a gateway pod with the annotations from the README of the example.
func stagePod(sync string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: sync + "-0", Annotations: map[string]string{v1alpha1.AnnotationInject: "true", v1alpha1.AnnotationCRName: sync}},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "gateway", Image: "ignition", VolumeMounts: []corev1.VolumeMount{{Name: "data", MountPath: "/usr/local/bin/ignition/data"}}}},
			Volumes:    []corev1.Volume{{Name: "data"}},
		},
	}
}

func TestExamplePipeline(t *testing.T) {
	t.Parallel()
	syncs := gatewaySyncs(t)
	folder := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(folder, "projects/line"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(folder, "projects/line/project.json"), []byte(`{"title": "first", "description": "", "parent": "", "enabled": true, "inheritable": false}`), 0o644))
	dev := plant.FromFolder(t, syncs["line-dev"], folder)
	plants := map[string]*plant.Plant{"dev": dev}
	for _, name := range []string{"test", "prod"} {
		plants[name] = dev.Another("line-"+name, 0, func(gs *v1alpha1.GatewaySync) {
			repo := gs.Spec.Git.Repo
			gs.Spec = syncs["line-"+name].Spec
			gs.Spec.Git.Repo = repo
		})
	}
	dev.Tag("v1.0.0", dev.First)
	for name, p := range plants {
		p.Add(stagePod("line-" + name))
		p.Start()
	}
	l := &pipeline{line: newLine(t, dev), stages: stages(t), verified: map[string][]string{}}
	for _, p := range plants {
		p.Converges("first", dev.First)
	}
	titles := func(want map[string]string) {
		t.Helper()
		for name, p := range plants {
			for _, g := range p.Gateways() {
				assert.Equal(t, want[name], g.Title(), name)
			}
		}
	}

	second := dev.Push("second")
	dev.Tag("v1.10.0+plant.2", second)
	_, err := l.promote("prod", "v1.10.0+plant.2")
	require.EqualError(t, err, "v1.10.0+plant.2 was not verified in test")
	want := map[string]string{"dev": "first", "test": "first", "prod": "first"}
	// sequence: a stage takes what the stage before it has verified
	for _, name := range []string{"dev", "test", "prod"} {
		p, err := l.promote(name, "v1.10.0+plant.2")
		require.NoError(t, err)
		require.Equal(t, succeeded, p.phase, "%s: %s", name, p.message)
		assert.Equal(t, second, p.state["stoker"].(map[string]any)["commit"])
		want[name] = "second"
		titles(want)
		assert.Equal(t, []string{"v1.10.0+plant.2"}, l.verified[name], "verified in %s", name)
	}

	dev.Tag("v1.11.0", dev.Commit("broken", gitserver.Files(map[string]string{"projects/line/project.json": `{"title": `})))
	p, err := l.promote("dev", "v1.11.0")
	require.NoError(t, err)
	assert.Equal(t, failed, p.phase)
	assert.Contains(t, p.message, "ConfigSyntaxError")
	_, err = l.promote("test", "v1.11.0")
	require.EqualError(t, err, "v1.11.0 was not verified in dev")
	titles(want)

	p, err = l.promote("dev", "v1.10.0+plant.2")
	require.NoError(t, err)
	assert.Equal(t, succeeded, p.phase, "the promotion back must succeed: %s", p.message)
}
