package inject_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/injector/inject"
	"stoker.io/stoker/test/podcase"
)

// withSettings returns settings with variables and flags for all agents. The cases of testdata have none.
func withSettings() inject.Defaults {
	d := defaults
	d.Env = []corev1.EnvVar{{Name: "HTTPS_PROXY", Value: "http://proxy.example.com:3128"}, {Name: "NO_PROXY", Value: "a,$(b)"}}
	d.Args = []string{"--max-files=7", "--log-level=debug"}
	return d
}

func TestAgentSettingsAreAdded(t *testing.T) {
	for _, s := range scenes(t) {
		t.Run(s.name, func(t *testing.T) {
			settings := withSettings()
			ops, decision := s.patch()
			gs, _ := inject.Choose(s.pod, s.all)
			withOps, with := inject.Patch(s.pod, gs, settings)
			assert.Equal(t, decision, with)
			plain, _ := apply(t, s.raw, ops)
			pod, _ := apply(t, s.raw, withOps)
			agent := &pod.Spec.InitContainers[len(pod.Spec.InitContainers)-1]
			require.Len(t, agent.Args, 4)
			assert.Equal(t, settings.Args, agent.Args[2:])
			agent.Args = agent.Args[:2]
			var added []corev1.EnvVar
			agent.Env = slices.DeleteFunc(agent.Env, func(v corev1.EnvVar) bool {
				is := v.Name == "HTTPS_PROXY" || v.Name == "NO_PROXY"
				if is {
					added = append(added, v)
				}
				return is
			})
			assert.Equal(t, []corev1.EnvVar{settings.Env[0], {Name: "NO_PROXY", Value: "a,$$(b)"}}, added)
			assert.Equal(t, plain, pod, "the settings must change nothing else")
			assert.Len(t, settings.Args, 2, "the settings must not be modified")
		})
	}
}

// A pod that was injected with other settings already has its agent, so neither the webhook nor the reconciler changes it.
func TestInjectedPodKeepsItsSettings(t *testing.T) {
	s := named(t, podcase.Base)
	ops, decision := s.patch()
	require.True(t, decision.Injected)
	pod, _ := apply(t, s.raw, ops)
	again, decision := inject.Patch(pod, s.all.Read[0], withSettings())
	assert.Empty(t, again)
	assert.Equal(t, v1alpha1.ReasonAlreadyInjected, decision.Reason)
}

// I11: variables of a pod reach the agent only under our prefix, whatever names a subPathExpr references.
func TestSubPathExprVariables(t *testing.T) {
	settings := defaults
	settings.Env = []corev1.EnvVar{{Name: "HTTP_PROXY", Value: "http://proxy:3128"}}
	for _, name := range []string{
		"HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR", "GODEBUG", "GOMEMLIMIT", "LD_PRELOAD", "HOME",
		"KUBERNETES_SERVICE_HOST", "POD_NAME", "DATA_PATH", "GATEWAY_MOUNTS", "STOKER_SUBPATH_X", "-", "not.an-identifier",
	} {
		t.Run(name, func(t *testing.T) {
			s := named(t, "nested-mounts-and-subpath")
			plain, decision := inject.Patch(s.pod, s.all.Read[0], settings)
			require.True(t, decision.Injected, decision.Message)
			c := &s.pod.Spec.Containers[0]
			c.Env = append(c.Env, corev1.EnvVar{Name: name, Value: "site-b"})
			c.VolumeMounts[0].SubPathExpr = "$$(KEY)-$(SITE)/$(" + name + ")$"
			ops, decision := inject.Patch(s.pod, s.all.Read[0], settings)
			require.True(t, decision.Injected, decision.Message)

			before, after := values(lastInit(t, s.raw, plain)), values(lastInit(t, s.raw, ops))
			assert.Equal(t, "site-b", after["STOKER_SUBPATH_"+name])
			assert.Equal(t, "a", after["STOKER_SUBPATH_SITE"])
			for key := range after {
				if key != "STOKER_SUBPATH_"+name {
					assert.Equal(t, before[key], after[key], key)
				}
			}
			assert.Equal(t, "$$(KEY)-$(STOKER_SUBPATH_SITE)/$(STOKER_SUBPATH_"+name+")$", lastInit(t, s.raw, ops).VolumeMounts[0].SubPathExpr)
		})
	}
}

func lastInit(t *testing.T, raw []byte, ops []inject.Op) corev1.Container {
	t.Helper()
	pod, _ := apply(t, raw, ops)
	return pod.Spec.InitContainers[len(pod.Spec.InitContainers)-1]
}

func values(c corev1.Container) map[string]string {
	m := map[string]string{}
	for _, v := range c.Env {
		m[v.Name] = v.Value
	}
	return m
}

func TestForeignAgentWarning(t *testing.T) {
	s := named(t, podcase.Base)
	ops, _ := s.patch()
	own, _ := apply(t, s.raw, ops)
	s.pod.Spec.Containers = append(s.pod.Spec.Containers, corev1.Container{Name: inject.Container, Env: []corev1.EnvVar{{Name: "POD_NAME", Value: "x"}}})
	for name, c := range map[string]struct {
		pod     *corev1.Pod
		foreign bool
	}{"another program's": {s.pod, true}, "the injector's": {own, false}} {
		t.Run(name, func(t *testing.T) {
			ops, decision := decide(c.pod, s.all)
			assert.Empty(t, ops)
			assert.Equal(t, v1alpha1.ReasonAlreadyInjected, decision.Reason)
			assert.Equal(t, c.foreign, inject.Foreign(c.pod))
			assert.Equal(t, c.foreign, len(decision.Warnings) == 1)
			assert.False(t, inject.Has(inject.WithoutForeign(c.pod)))
		})
	}
}
