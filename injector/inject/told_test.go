package inject_test

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/injector/inject"
)

// The golden files say what a pod gets of an injector that was told nothing.
func TestWhatTheInjectorIsToldForAllAgentsIsAddedToWhatTheyHave(t *testing.T) {
	told := defaults
	told.Env = []corev1.EnvVar{{Name: "HTTPS_PROXY", Value: "http://proxy.example.com:3128"}, {Name: "NO_PROXY", Value: "a,$(b)"}}
	told.Args = []string{"--max-files=7", "--log-level=debug"}
	injected := 0
	for _, file := range scenes(t) {
		s := readScene(t, file)
		ops, decision := s.patch()
		gs, _ := inject.Choose(s.pod, s.all)
		if !decision.Injected {
			if gs != nil {
				again, same := inject.Patch(s.pod, gs, told)
				assert.Empty(t, again, file)
				assert.Equal(t, decision.Reason, same.Reason, file)
			}
			continue
		}
		injected++
		withOps, with := inject.Patch(s.pod, gs, told)
		assert.Equal(t, decision, with, file)
		plain, _ := apply(t, s.raw, ops)
		pod, _ := apply(t, s.raw, withOps)
		agent := &pod.Spec.InitContainers[len(pod.Spec.InitContainers)-1]
		require.Len(t, agent.Args, 4, file)
		assert.Equal(t, told.Args, agent.Args[2:], file)
		agent.Args = agent.Args[:2]
		var added []corev1.EnvVar
		agent.Env = slices.DeleteFunc(agent.Env, func(v corev1.EnvVar) bool {
			is := v.Name == "HTTPS_PROXY" || v.Name == "NO_PROXY"
			if is {
				added = append(added, v)
			}
			return is
		})
		assert.Equal(t, []corev1.EnvVar{told.Env[0], {Name: "NO_PROXY", Value: "a,$$(b)"}}, added, file)
		assert.Equal(t, plain, pod, "%s: nothing else differs", filepath.Dir(file))
	}
	assert.Greater(t, injected, 10)
	assert.Len(t, told.Args, 2, "the settings were changed")
}

// A pod that an injector of other settings made has its agent: neither webhook nor upkeep finds anything to do about it.
func TestAPodThatWasMadeUnderOtherSettingsIsLeftAsItIs(t *testing.T) {
	s := readScene(t, "testdata/golden/official-chart/input.yaml")
	ops, decision := s.patch()
	require.True(t, decision.Injected)
	pod, _ := apply(t, s.raw, ops)
	told := defaults
	told.Env, told.Args = []corev1.EnvVar{{Name: "HTTPS_PROXY", Value: "proxy:3128"}}, []string{"--max-files=7"}
	again, decision := inject.Patch(pod, s.all[0], told)
	assert.Empty(t, again)
	assert.Equal(t, v1alpha1.ReasonAlreadyInjected, decision.Reason)
}

// The data directory of a gateway is where its own variables say, and not where those of the agent do.
func TestAVariableOfTheGatewaysThatAgentsHaveAnotherValueForIsNotMistaken(t *testing.T) {
	s := readScene(t, "testdata/golden/curated-mounts-and-subpaths/input.yaml")
	s.pod.Spec.Containers[0].Env = append(s.pod.Spec.Containers[0].Env, corev1.EnvVar{Name: "HTTP_PROXY", Value: "site-a"})
	s.pod.Spec.Containers[0].VolumeMounts[0].SubPath, s.pod.Spec.Containers[0].VolumeMounts[0].SubPathExpr = "", "$(HTTP_PROXY)"
	gs, _ := inject.Choose(s.pod, s.all)
	require.NotNil(t, gs)
	_, decision := inject.Patch(s.pod, gs, defaults)
	assert.True(t, decision.Injected, decision.Message)
	told := defaults
	told.Env = []corev1.EnvVar{{Name: "HTTP_PROXY", Value: "http://proxy:3128"}}
	ops, decision := inject.Patch(s.pod, gs, told)
	assert.Empty(t, ops)
	assert.Equal(t, v1alpha1.ReasonUnsupportedDataVolume, decision.Reason)
	raw, err := json.Marshal(decision)
	require.NoError(t, err)
	assert.Contains(t, string(raw), "HTTP_PROXY")
}
