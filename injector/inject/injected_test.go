package inject

import (
	"encoding/json"
	"errors"
	"flag"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	psa "k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/test/podcase"
)

var update = flag.Bool("update", false, "write the expected decisions and pods into testdata")

var defaults = Defaults{
	Image:         v1alpha1.AgentImage{Repository: "ghcr.io/stoker-io/agent", Tag: "1.2.3", PullPolicy: corev1.PullIfNotPresent},
	AllowedImages: []string{"registry.example.com/trusted"},
	Resources: corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("20m"), corev1.ResourceMemory: resource.MustParse("64Mi")},
		Limits:   corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("256Mi")},
	},
}

// scene is a pod and the GatewaySyncs of its namespace.
type scene struct {
	name string
	pod  *corev1.Pod
	raw  []byte // the pod as JSON
	all  Candidates
}

func (s scene) patch() ([]Op, Decision) { return decide(s.pod, s.all) }

func sceneOf(c podcase.Case) scene {
	return scene{c.Name, c.Pod, c.Raw, Candidates{Readable: c.GatewaySyncs}}
}

// named returns a case of testdata.
func named(tb testing.TB, name string) scene {
	tb.Helper()
	return sceneOf(podcase.Named(tb, "testdata", name))
}

// scenes returns all cases of testdata.
func scenes(tb testing.TB) []scene {
	tb.Helper()
	var list []scene
	for _, c := range podcase.All(tb, "testdata") {
		list = append(list, sceneOf(c))
	}
	require.Greater(tb, len(list), 20)
	return list
}

func decide(pod *corev1.Pod, all Candidates) ([]Op, Decision) {
	if !Requested(pod.Annotations) || Has(pod) {
		return Patch(pod, nil, defaults)
	}
	gs, decision := Choose(pod, all)
	if gs == nil {
		return nil, decision
	}
	return Patch(pod, gs, defaults)
}

// apply patches the pod as the API server does.
func apply(t *testing.T, raw []byte, ops []Op) (*corev1.Pod, []byte) {
	t.Helper()
	if len(ops) > 0 {
		encoded, err := json.Marshal(ops)
		require.NoError(t, err)
		patch, err := jsonpatch.DecodePatch(encoded)
		require.NoError(t, err)
		raw, err = patch.Apply(raw)
		require.NoError(t, err)
	}
	pod := &corev1.Pod{}
	require.NoError(t, json.Unmarshal(raw, pod))
	return pod, raw
}

// I9, I1, I6: each case of testdata gets exactly the expected pod. It passes the Pod Security Standard restricted, and a second
// admission does not change it.
//
// To add a case, add its input to one of the archives in testdata: <case>/pod.yaml is a strategic merge patch of the pod in
// testdata/base.yaml, <case>/gatewaysync.yaml a JSON merge patch of the GatewaySync. Either may be omitted. Then run
//
//	go test ./injector/inject -run TestInjectedPods -update
//
// and read <case>/decision.yaml and <case>/injected.diff, which it adds. A pod that gets no agent belongs in TestSkippedPods.
func TestInjectedPods(t *testing.T) {
	for _, c := range podcase.All(t, "testdata") {
		t.Run(c.Name, func(t *testing.T) {
			s := sceneOf(c)
			before := s.pod.DeepCopy()
			ops, decision := s.patch()
			assert.Equal(t, before, s.pod, "Patch must not change its argument")
			require.True(t, decision.Injected, decision.Message)
			assert.Empty(t, decision.Reason)
			pod, _ := apply(t, s.raw, ops)
			c.Check(t, "testdata", decision, pod, *update)
			assert.Equal(t, Container, pod.Spec.InitContainers[len(pod.Spec.InitContainers)-1].Name, "the agent must start after the pod's own init containers")
			restricted(t, pod)

			again, second := decide(pod, s.all)
			assert.Empty(t, again)
			assert.Equal(t, v1alpha1.ReasonAlreadyInjected, second.Reason)
		})
	}
}

// restricted checks a pod with the Pod Security evaluator of the API server.
func restricted(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	require.NoError(t, err)
	pod = pod.DeepCopy()
	pod.Spec.HostNetwork = false // set by the pod itself; such a pod violates the standard even without an agent
	for _, r := range evaluator.EvaluatePod(psa.LevelVersion{Level: psa.LevelRestricted, Version: psa.LatestVersion()}, &pod.ObjectMeta, &pod.Spec) {
		assert.True(t, r.Allowed, "%s: %s", r.ForbiddenReason, r.ForbiddenDetail)
	}
}

// I5: whatever the annotations of a pod request, its agent has the same image, account and permissions as every agent. A warning
// tells the author of the pod.
func TestAnnotationsGrantNoPrivileges(t *testing.T) {
	patched := func(t *testing.T, key, value string) (string, Decision) {
		s := named(t, podcase.Base)
		if key != "" {
			s.pod.Annotations[key] = value
		}
		ops, decision := decide(s.pod, s.all)
		require.True(t, decision.Injected, "%s: %s", key, decision.Message)
		raw, err := json.Marshal(s.pod)
		require.NoError(t, err)
		pod, _ := apply(t, raw, ops)
		restricted(t, pod)
		delete(pod.Annotations, key)
		after, err := json.Marshal(pod)
		require.NoError(t, err)
		return string(after), decision
	}
	plain, decision := patched(t, "", "")
	require.Empty(t, decision.Warnings)
	for key, value := range map[string]string{
		v1alpha1.AnnotationAgentImage:          "evil.example/agent:1",
		"ignition-sync.io/agent-image":         "evil.example/agent:1",
		"stoker.io/image":                      "evil.example/agent:1",
		"stoker.io/host-path":                  "/etc",
		"stoker.io/hostPath":                   "/etc",
		"stoker.io/volumes":                    `[{"name":"x","hostPath":{"path":"/"}}]`,
		"stoker.io/volume-mounts":              `[{"name":"x","mountPath":"/host"}]`,
		"stoker.io/privileged":                 "true",
		"stoker.io/security-context":           `{"privileged":true}`,
		"stoker.io/run-as-user":                "0",
		"stoker.io/capabilities":               "SYS_ADMIN",
		"stoker.io/service-account":            "cluster-admin",
		"stoker.io/service-account-name":       "cluster-admin",
		"ignition-sync.io/serviceaccount":      "cluster-admin",
		"stoker.io/args":                       "--kubeconfig=/etc/admin.conf",
		"stoker.io/env":                        "SECRETS_DIR=/",
		"stoker.io/" + strings.Repeat("x", 63): "true",
	} {
		t.Run(key, func(t *testing.T) {
			after, decision := patched(t, key, value)
			assert.Equal(t, plain, after)
			require.Len(t, decision.Warnings, 1)
			_, name, _ := strings.Cut(key, "/")
			assert.Contains(t, decision.Warnings[0], name[:min(len(name), 40)])
			assert.Contains(t, decision.Warnings[0], "ignored")
		})
	}
	s := named(t, podcase.Base)
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		s.pod.Annotations["stoker.io/"+name] = "x"
	}
	s.pod.Annotations["example.com/privileged"] = "theirs"
	_, decision = decide(s.pod, s.all)
	assert.Equal(t, []string{`unknown annotations are ignored: "stoker.io/a", "stoker.io/b", "stoker.io/c", and 2 more`}, decision.Warnings)
}

// The annotation can only select a volume of the pod itself.
func TestDataVolumeAnnotationSelectsOwnVolume(t *testing.T) {
	for _, value := range []string{"/etc", "../x", "host", `{"hostPath":{"path":"/"}}`, "stoker-token"} {
		t.Run(value, func(t *testing.T) {
			s := named(t, podcase.Base)
			s.pod.Annotations[v1alpha1.AnnotationDataVolume] = value
			ops, decision := s.patch()
			assert.Empty(t, ops)
			assert.False(t, decision.Injected)
			assert.Equal(t, v1alpha1.ReasonNoDataVolume, decision.Reason)
		})
	}
}

// I9: a pod that cannot have an agent is not changed, and the decision says why and what to do. Each case changes the base pod,
// which is injected.
func TestSkippedPods(t *testing.T) {
	annotation := func(key, value string) func(*scene) {
		return func(s *scene) { s.pod.Annotations[key] = value }
	}
	volume := func(v corev1.VolumeSource) func(*scene) {
		return func(s *scene) { s.pod.Spec.Volumes[0].VolumeSource = v }
	}
	gateway := func(change func(*corev1.Container)) func(*scene) {
		return func(s *scene) { change(&s.pod.Spec.Containers[0]) }
	}
	const asRoot = `container "gateway" runs as root: set runAsUser to the user of the image (2003 for the official image)`
	const static = "the kubelet runs this static pod from a file, so it cannot get an agent: create the gateway as a StatefulSet"
	const windows = "the pod runs on Windows, and the agent only on Linux: remove the annotation stoker.io/inject, or move the gateway to Linux"
	broken := &kube.UndecodableError{Kind: "GatewaySync", Namespace: "plant", Name: "line", Err: errors.New("spec.git.ref is a number")}
	const unreadable = "GatewaySync plant/line cannot be read: spec.git.ref is a number: correct it, or upgrade the injector"
	seen := map[v1alpha1.Reason]bool{}
	for name, c := range map[string]struct {
		change  func(*scene)
		reason  v1alpha1.Reason
		message string
	}{
		"not requested": {annotation(v1alpha1.AnnotationInject, "True"), v1alpha1.ReasonNotRequested, `the pod has no annotation stoker.io/inject: "true"`},
		"deprecated annotation is overridden": {func(s *scene) {
			s.pod.Annotations = map[string]string{v1alpha1.AnnotationInject: "false", "ignition-sync.io/inject": "true"}
		}, v1alpha1.ReasonNotRequested, `the pod has no annotation stoker.io/inject: "true"`},
		"agent as init container": {func(s *scene) {
			s.pod.Spec.InitContainers = append(s.pod.Spec.InitContainers, corev1.Container{Name: Container, Image: "x"})
		}, v1alpha1.ReasonAlreadyInjected, "the pod already has a container stoker-agent"},
		"agent as container": {func(s *scene) {
			s.pod.Spec.Containers = append(s.pod.Spec.Containers, corev1.Container{Name: Container, Image: "x"})
		}, v1alpha1.ReasonAlreadyInjected, "the pod already has a container stoker-agent"},
		"mirror pod":            {annotation(corev1.MirrorPodAnnotationKey, "abc"), v1alpha1.ReasonUnsupportedPod, static},
		"static pod":            {annotation("kubernetes.io/config.source", "file"), v1alpha1.ReasonUnsupportedPod, static},
		"Windows":               {func(s *scene) { s.pod.Spec.OS = &corev1.PodOS{Name: corev1.Windows} }, v1alpha1.ReasonUnsupportedPod, windows},
		"Windows node selector": {func(s *scene) { s.pod.Spec.NodeSelector = map[string]string{corev1.LabelOSStable: "windows"} }, v1alpha1.ReasonUnsupportedPod, windows},
		"reserved volume name": {func(s *scene) { s.pod.Spec.Volumes = append(s.pod.Spec.Volumes, corev1.Volume{Name: "stoker-repo"}) }, v1alpha1.ReasonUnsupportedPod,
			"the pod has a volume stoker-repo but no container stoker-agent: rename the volume, because names that start with stoker- are reserved"},
		"container as root": {gateway(func(c *corev1.Container) { c.SecurityContext.RunAsUser = new(int64(0)) }), v1alpha1.ReasonGatewayRunsAsRoot, asRoot},
		"pod as root":       {func(s *scene) { s.pod.Spec.SecurityContext.RunAsUser = new(int64(0)) }, v1alpha1.ReasonGatewayRunsAsRoot, asRoot},
		"no GatewaySync": {func(s *scene) { delete(s.pod.Annotations, v1alpha1.AnnotationCRName); s.all.Readable = nil }, v1alpha1.ReasonGatewaySyncNotFound,
			"the namespace has no GatewaySync: create one"},
		"unknown GatewaySync": {func(s *scene) { s.all.Readable[0].Name = "other" }, v1alpha1.ReasonGatewaySyncNotFound,
			`the namespace has no GatewaySync "line", which annotation stoker.io/cr-name names: create it, or correct the annotation`},
		"ambiguous GatewaySync": {func(s *scene) {
			delete(s.pod.Annotations, v1alpha1.AnnotationCRName)
			other := s.all.Readable[0].DeepCopy()
			s.all.Readable[0].Name, other.Name = "b", "a"
			s.all.Readable = append(s.all.Readable, other)
		}, v1alpha1.ReasonGatewaySyncAmbiguous, "the namespace has several GatewaySyncs (a, b): name one with the annotation stoker.io/cr-name"},
		"no GatewaySync that the selector admits": {func(s *scene) {
			delete(s.pod.Annotations, v1alpha1.AnnotationCRName)
			s.all = Candidates{Selector: "fleet=a"}
		},
			v1alpha1.ReasonGatewaySyncNotFound, "the namespace has no GatewaySync: create one; this installation serves only those with the labels fleet=a (watchLabelSelector)"},
		"unreadable GatewaySync": {func(s *scene) { s.all = Candidates{Unreadable: []*kube.UndecodableError{broken}} }, v1alpha1.ReasonGatewaySyncUnreadable, unreadable},
		"the only GatewaySync is unreadable": {func(s *scene) {
			delete(s.pod.Annotations, v1alpha1.AnnotationCRName)
			s.all = Candidates{Unreadable: []*kube.UndecodableError{broken}}
		}, v1alpha1.ReasonGatewaySyncUnreadable, unreadable},
		"one of two GatewaySyncs is unreadable": {func(s *scene) {
			delete(s.pod.Annotations, v1alpha1.AnnotationCRName)
			s.all.Readable[0].Name, s.all.Unreadable = "other", []*kube.UndecodableError{broken}
		}, v1alpha1.ReasonGatewaySyncAmbiguous, "the namespace has several GatewaySyncs (line, other): name one with the annotation stoker.io/cr-name"},
		"unknown profile": {annotation(v1alpha1.AnnotationProfile, "none"), v1alpha1.ReasonProfileNotFound,
			`profile "none" does not exist: spec.sync.profiles has default; name one of them, or add it`},
		"label of another GatewaySync": {func(s *scene) { s.pod.Labels[v1alpha1.LabelCRName] = "other" }, v1alpha1.ReasonInvalidAnnotation,
			`label stoker.io/cr-name is "other", but the pod belongs to GatewaySync line: remove the label; the injector sets it`},
		"invalid gateway name": {annotation(v1alpha1.AnnotationGatewayName, "../x"), v1alpha1.ReasonInvalidAnnotation,
			`annotation stoker.io/gateway-name: "../x" is not a name of a gateway; use letters, digits, '.', '_' and '-', at most 200, a letter or digit first and last`},
		"invalid sync period": {annotation(v1alpha1.AnnotationSyncPeriod, "soon"), v1alpha1.ReasonInvalidAnnotation,
			`annotation stoker.io/sync-period: "soon" is not a number of seconds; use a whole number from 5 to 3600`},
		"no data volume": {func(s *scene) {
			s.pod.Spec.Containers[0].VolumeMounts[0] = corev1.VolumeMount{Name: "files", MountPath: "/x"}
			s.pod.Spec.Volumes[0].Name = "files"
		}, v1alpha1.ReasonNoDataVolume, "no container mounts a volume at /usr/local/bin/ignition/data, and that of the gateway none named data or ignition-data: mount one there, or name the volume with annotation stoker.io/data-volume"},
		"volume data of another container": {func(s *scene) {
			s.pod.Spec.Containers[0].VolumeMounts[0] = corev1.VolumeMount{Name: "files", MountPath: "/x"}
			s.pod.Spec.Volumes = append(s.pod.Spec.Volumes, corev1.Volume{Name: "files"})
			s.pod.Spec.Containers = append(s.pod.Spec.Containers, corev1.Container{Name: "postgres", VolumeMounts: []corev1.VolumeMount{{Name: "data", MountPath: "/var/lib/postgresql/data"}}})
		}, v1alpha1.ReasonNoDataVolume, "no container mounts a volume at /usr/local/bin/ignition/data, and that of the gateway none named data or ignition-data: mount one there, or name the volume with annotation stoker.io/data-volume"},
		"unknown data volume": {annotation(v1alpha1.AnnotationDataVolume, "nowhere"), v1alpha1.ReasonNoDataVolume,
			`the pod has no volume "nowhere", which annotation stoker.io/data-volume names: correct the annotation`},
		"data volume without mount": {func(s *scene) {
			s.pod.Annotations[v1alpha1.AnnotationDataVolume] = "spare"
			s.pod.Spec.Volumes = append(s.pod.Spec.Volumes, corev1.Volume{Name: "spare"})
		}, v1alpha1.ReasonNoDataVolume, `no container mounts volume "spare", which annotation stoker.io/data-volume names: mount it, or correct the annotation`},
		"data volume is a ConfigMap": {volume(corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "x"}}}),
			v1alpha1.ReasonUnsupportedDataVolume, `volume "data" is a ConfigMap: the agent must be able to write the gateway's data directory`},
		"read-only claim": {volume(corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "x", ReadOnly: true}}),
			v1alpha1.ReasonUnsupportedDataVolume, `volume "data" is read-only: the agent must be able to write the gateway's data directory`},
		"read-only mount": {gateway(func(c *corev1.Container) { c.VolumeMounts[0].ReadOnly = true }), v1alpha1.ReasonUnsupportedDataVolume,
			`volume "data" is mounted read-only: the agent must be able to write the gateway's data directory`},
		"subPathExpr with a secret": {gateway(func(c *corev1.Container) {
			c.Env = []corev1.EnvVar{{Name: "KEY", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{Key: "k"}}}}
			c.VolumeMounts[0].SubPathExpr = "$(KEY)"
		}), v1alpha1.ReasonUnsupportedDataVolume, `volume "data": the agent cannot expand subPathExpr "$(KEY)": use only variables with a literal value or a field of the pod`},
	} {
		t.Run(name, func(t *testing.T) {
			s := named(t, podcase.Base)
			c.change(&s)
			before := s.pod.DeepCopy()
			ops, decision := s.patch()
			assert.Empty(t, ops)
			assert.Equal(t, before, s.pod, "Patch changed its argument")
			assert.False(t, decision.Injected)
			assert.Equal(t, c.reason, decision.Reason)
			assert.Equal(t, c.message, decision.Message)
			assert.Empty(t, decision.Warnings)
			if c.reason != v1alpha1.ReasonProfileNotFound { // a reason of the sync as well
				assert.Equal(t, v1alpha1.ClassNotInjected, c.reason.Class())
			}
			if gs, _ := Choose(s.pod, s.all); gs != nil {
				ops, same := Patch(s.pod, gs, withSettings())
				assert.Empty(t, ops, "settings for all agents change nothing")
				assert.Equal(t, decision.Reason, same.Reason)
			}
		})
		seen[c.reason] = true
	}
	// The decision about one pod never has these reasons.
	other := map[v1alpha1.Reason]bool{v1alpha1.ReasonNamespaceExcluded: true, v1alpha1.ReasonMissingSidecar: true}
	for _, r := range v1alpha1.Reasons {
		if r.Class == v1alpha1.ClassNotInjected && !other[r.Reason] {
			assert.True(t, seen[r.Reason], "no case with reason %s", r.Reason)
		}
	}
}

// withSettings returns settings with variables and flags for all agents. The cases of testdata have none.
func withSettings() Defaults {
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
			gs, _ := Choose(s.pod, s.all)
			withOps, with := Patch(s.pod, gs, settings)
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
	again, decision := Patch(pod, s.all.Readable[0], withSettings())
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
			plain, decision := Patch(s.pod, s.all.Readable[0], settings)
			require.True(t, decision.Injected, decision.Message)
			c := &s.pod.Spec.Containers[0]
			c.Env = append(c.Env, corev1.EnvVar{Name: name, Value: "site-b"})
			c.VolumeMounts[0].SubPathExpr = "$$(KEY)-$(SITE)/$(" + name + ")$"
			ops, decision := Patch(s.pod, s.all.Readable[0], settings)
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

func lastInit(t *testing.T, raw []byte, ops []Op) corev1.Container {
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
	s.pod.Spec.Containers = append(s.pod.Spec.Containers, corev1.Container{Name: Container, Env: []corev1.EnvVar{{Name: "POD_NAME", Value: "x"}}})
	for name, c := range map[string]struct {
		pod     *corev1.Pod
		foreign bool
	}{"another program's": {s.pod, true}, "the injector's": {own, false}} {
		t.Run(name, func(t *testing.T) {
			ops, decision := decide(c.pod, s.all)
			assert.Empty(t, ops)
			assert.Equal(t, v1alpha1.ReasonAlreadyInjected, decision.Reason)
			assert.Equal(t, c.foreign, Foreign(c.pod))
			assert.Equal(t, c.foreign, len(decision.Warnings) == 1)
			assert.False(t, Has(WithoutForeign(c.pod)))
		})
	}
}
