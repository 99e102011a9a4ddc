package inject

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
)

// I4: whatever the shape of lists and maps, a patch only adds.
func TestPatchesOnlyAdd(t *testing.T) {
	shapes := map[string]func(*corev1.Pod){
		"unchanged":         func(*corev1.Pod) {},
		"no lists":          func(p *corev1.Pod) { p.Spec.InitContainers, p.Labels = nil, nil },
		"empty lists":       func(p *corev1.Pod) { p.Spec.InitContainers, p.Labels = []corev1.Container{}, map[string]string{} },
		"keys to escape":    func(p *corev1.Pod) { p.Annotations["a~b/c"], p.Labels = "x", map[string]string{"~1/~0": "y"} },
		"injected is true":  func(p *corev1.Pod) { p.Annotations[v1alpha1.AnnotationInjected] = "true" },
		"injected is false": func(p *corev1.Pod) { p.Annotations[v1alpha1.AnnotationInjected] = "false" },
	}
	for _, original := range scenes(t) {
		for name, shape := range shapes {
			t.Run(original.name+"/"+name, func(t *testing.T) {
				s := original
				s.pod = s.pod.DeepCopy()
				shape(s.pod)
				raw, err := json.Marshal(s.pod)
				require.NoError(t, err)
				ops, decision := s.patch()
				require.True(t, decision.Injected, decision.Message)
				for _, op := range ops {
					assert.Equal(t, "add", op.Op)
				}
				_, patched := apply(t, raw, ops)
				var before, after any
				require.NoError(t, json.Unmarshal(raw, &before))
				require.NoError(t, json.Unmarshal(patched, &after))
				if name == "injected is false" {
					delete(before.(map[string]any)["metadata"].(map[string]any)["annotations"].(map[string]any), v1alpha1.AnnotationInjected)
				}
				assert.Empty(t, removed(before, after, ""))
			})
		}
	}
}

// removed returns the path of the first value of before that is missing or different in after.
func removed(before, after any, path string) string {
	switch b := before.(type) {
	case map[string]any:
		a, ok := after.(map[string]any)
		if !ok {
			return path
		}
		for key, value := range b {
			if p := removed(value, a[key], path+"/"+key); p != "" {
				return p
			}
		}
		return ""
	case []any:
		a, ok := after.([]any)
		if !ok || len(a) < len(b) {
			return path
		}
		for i := range b {
			if p := removed(b[i], a[i], path+"/-"); p != "" {
				return p
			}
		}
		return ""
	}
	if reflect.DeepEqual(before, after) {
		return ""
	}
	return path
}

// I1: other injectors before or after ours change nothing about the agent, and a second admission adds nothing.
func TestOtherInjectors(t *testing.T) {
	meshes := map[string]func(*corev1.Pod){
		"proxy": func(p *corev1.Pod) {
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "proxy", Image: "example.com/proxy:1"})
			p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "proxy-certs"})
		},
		"native proxy, first": func(p *corev1.Pod) {
			p.Spec.InitContainers = append([]corev1.Container{{Name: "proxy-init", Image: "example.com/init:1", RestartPolicy: new(corev1.ContainerRestartPolicyAlways)}}, p.Spec.InitContainers...)
		},
		"proxy, last": func(p *corev1.Pod) {
			p.Spec.InitContainers = append(p.Spec.InitContainers, corev1.Container{Name: "proxy-init", Image: "example.com/init:1"})
			p.Labels = map[string]string{"mesh": "on"}
		},
		"rewrites probes": func(p *corev1.Pod) {
			for i := range p.Spec.InitContainers {
				if probe := p.Spec.InitContainers[i].StartupProbe; probe != nil {
					probe.HTTPGet.Port.IntVal = 15020
				}
			}
		},
	}
	for _, original := range scenes(t) {
		for before, first := range meshes {
			for after, second := range meshes {
				t.Run(original.name+"/"+before+"/"+after, func(t *testing.T) {
					s := original
					s.pod = s.pod.DeepCopy()
					first(s.pod)
					raw, err := json.Marshal(s.pod)
					require.NoError(t, err)
					ops, decision := s.patch()
					require.True(t, decision.Injected, decision.Message)
					pod, _ := apply(t, raw, ops)
					second(pod)
					again, decision := decide(pod, s.all)
					assert.Empty(t, again)
					assert.Equal(t, v1alpha1.ReasonAlreadyInjected, decision.Reason)
				})
			}
		}
	}
}

func agentOf(t *testing.T, s scene) corev1.Container {
	t.Helper()
	ops, decision := s.patch()
	require.True(t, decision.Injected, decision.Message)
	pod, _ := apply(t, s.raw, ops)
	return pod.Spec.InitContainers[len(pod.Spec.InitContainers)-1]
}

func TestGuaranteedPodResources(t *testing.T) {
	list := func(cpu, memory string) corev1.ResourceList {
		l := corev1.ResourceList{}
		if cpu != "" {
			l[corev1.ResourceCPU] = resource.MustParse(cpu)
		}
		if memory != "" {
			l[corev1.ResourceMemory] = resource.MustParse(memory)
		}
		return l
	}
	s := named(t, "guaranteed-pod")
	for name, c := range map[string]struct {
		resources   *corev1.ResourceRequirements
		cpu, memory string
	}{
		"the injector's": {nil, "500m", "256Mi"},
		"none":           {&corev1.ResourceRequirements{}, "500m", "256Mi"},
		"small requests": {&corev1.ResourceRequirements{Requests: list("20m", "64Mi")}, "500m", "256Mi"},
		"large requests": {&corev1.ResourceRequirements{Requests: list("1500m", "1Gi")}, "1500m", "1Gi"},
		"limits":         {&corev1.ResourceRequirements{Requests: list("20m", "1Mi"), Limits: list("250m", "300Mi")}, "250m", "300Mi"},
		"limit on CPU":   {&corev1.ResourceRequirements{Limits: list("500m", "")}, "500m", "256Mi"},
	} {
		t.Run(name, func(t *testing.T) {
			s.all.Readable[0].Spec.Agent.Resources = c.resources
			r := agentOf(t, s).Resources
			for what, want := range map[corev1.ResourceName]string{corev1.ResourceCPU: c.cpu, corev1.ResourceMemory: c.memory} {
				t.Run(string(what), func(t *testing.T) {
					limit, request := r.Limits[what], r.Requests[what]
					assert.Equal(t, want, limit.String())
					assert.Equal(t, want, request.String())
				})
			}
		})
	}
	assert.Equal(t, "64Mi", defaults.Resources.Requests.Memory().String(), "the defaults must not change")
}

// The agent of a Guaranteed pod takes at most half of the gateway's CPU, so that both fit on a node that has room for one and a half.
func TestGuaranteedAgentLeavesRoom(t *testing.T) {
	for gateway, want := range map[string]string{"100m": "100m", "1": "500m", "1500m": "750m", "2": "900m", "4": "1100m", "64": "1100m"} {
		t.Run(gateway, func(t *testing.T) {
			r := Guaranteed(corev1.ResourceRequirements{}, resource.MustParse(gateway))
			assert.Equal(t, want, r.Limits.Cpu().String())
			assert.Equal(t, r.Limits, r.Requests)
		})
	}
}

func TestNoLimitOnEphemeralStorage(t *testing.T) {
	for _, s := range scenes(t) {
		t.Run(s.name, func(t *testing.T) {
			c := agentOf(t, s)
			assert.NotContains(t, c.Resources.Limits, corev1.ResourceEphemeralStorage)
			ops, _ := s.patch()
			pod, _ := apply(t, s.raw, ops)
			for _, v := range pod.Spec.Volumes {
				if strings.HasPrefix(v.Name, "stoker-") && v.EmptyDir != nil && v.EmptyDir.Medium != corev1.StorageMediumMemory {
					assert.Nil(t, v.EmptyDir.SizeLimit)
				}
			}
			assert.Nil(t, c.ReadinessProbe, "a failing agent must not remove the gateway from its Services")
		})
	}
}

func TestAllowedImagePrefix(t *testing.T) {
	const notAllowed, invalid = "does not match --allow-agent-image", "is not a valid image"
	for _, c := range []struct {
		prefix, image string
		warning       string // "" if the image is admitted
	}{
		{"acme.example/agent", "acme.example/agent:1", ""},
		{"acme.example/agent", "acme.example/agent", ""},
		{"acme.example/agent", "acme.example/agent/sub:1", ""},
		{"acme.example/agent", "acme.example/agent-of-another:1", notAllowed},
		{"acme.example/", "acme.example/x@sha256:" + strings.Repeat("0a", 32), ""},
		{"acme.example/", "acme.example/x@sha256:00", invalid},
		{"acme.example/", "acme.example/x:1:2", invalid},
		{"acme.example", "acme.example.evil/x", notAllowed},
		{"acme.example", "acme.example:5000/x", ""}, // another port of a host without a port is admitted
		{"", "acme.example/x", notAllowed},
		{"acme.example/", "acme.example/x y", invalid},
		{"acme.example/", "acme.example/" + strings.Repeat("x", 600), invalid},
	} {
		t.Run(c.prefix+" "+c.image[:min(len(c.image), 40)], func(t *testing.T) {
			s := named(t, "allowed-image-annotation")
			s.pod.Annotations[v1alpha1.AnnotationAgentImage] = c.image
			gs := s.all.Readable[0]
			d := defaults
			d.AllowedImages = []string{c.prefix}
			ops, decision := Patch(s.pod, gs, d)
			require.True(t, decision.Injected)
			pod, _ := apply(t, s.raw, ops)
			got := pod.Spec.InitContainers[len(pod.Spec.InitContainers)-1].Image
			if c.warning == "" {
				assert.Equal(t, c.image, got)
				assert.Empty(t, decision.Warnings)
				return
			}
			assert.NotEqual(t, c.image, got)
			require.Len(t, decision.Warnings, 1)
			assert.Contains(t, decision.Warnings[0], c.warning)
		})
	}
}

// I5: an image that the operator has not admitted is ignored, because it would run with the agent's token and Secrets. An invalid
// image is ignored as well, because an init container that cannot start blocks the gateway. The API server refuses invalid images
// today but may hold older objects.
func TestImageOfGatewaySync(t *testing.T) {
	for _, c := range []struct {
		image v1alpha1.AgentImage
		want  string // "" means the injector's own image and a warning
	}{
		{v1alpha1.AgentImage{Repository: "registry.example.com/trusted/agent"}, "registry.example.com/trusted/agent:1.2.3"},
		{v1alpha1.AgentImage{Repository: "ghcr.io/stoker-io/agent", Tag: "2"}, "ghcr.io/stoker-io/agent:2"},
		{v1alpha1.AgentImage{Repository: "registry.example.com/stranger"}, ""},
		{v1alpha1.AgentImage{Repository: "ghcr.io/stoker-io/agent/x"}, ""},
		{v1alpha1.AgentImage{Tag: "2"}, "ghcr.io/stoker-io/agent:2"},
		{v1alpha1.AgentImage{Repository: "registry.example.com/agent:1.0"}, ""},
		{v1alpha1.AgentImage{Repository: "registry.example.com/agent", Tag: "a b"}, ""},
		{v1alpha1.AgentImage{Digest: "sha256:0"}, ""},
	} {
		t.Run(c.image.Repository+c.image.Tag+c.image.Digest, func(t *testing.T) {
			s := named(t, "allowed-image-annotation")
			delete(s.pod.Annotations, v1alpha1.AnnotationAgentImage)
			s.all.Readable[0].Spec.Agent.Image = c.image
			ops, decision := Patch(s.pod, s.all.Readable[0], defaults)
			require.True(t, decision.Injected)
			pod, _ := apply(t, s.raw, ops)
			got := pod.Spec.InitContainers[len(pod.Spec.InitContainers)-1].Image
			if c.want != "" {
				assert.Equal(t, c.want, got)
				assert.Empty(t, decision.Warnings)
				return
			}
			assert.Equal(t, "ghcr.io/stoker-io/agent:1.2.3", got, "the injector's image must replace %v", c.image)
			require.Len(t, decision.Warnings, 1)
			assert.Contains(t, decision.Warnings[0], "spec.agent.image of GatewaySync")
		})
	}
}

// C1: for any annotations of a pod, the injector decides without a panic, and a patched pod is valid.
func FuzzAnnotations(f *testing.F) {
	for _, key := range []string{v1alpha1.AnnotationCRName, v1alpha1.AnnotationProfile, v1alpha1.AnnotationGatewayName, v1alpha1.AnnotationServicePath,
		v1alpha1.AnnotationSyncPeriod, v1alpha1.AnnotationExcludePatterns, v1alpha1.AnnotationDataVolume, v1alpha1.AnnotationAgentImage,
		v1alpha1.AnnotationRequire, "ignition-sync.io/cr-name", "kubernetes.io/config.mirror"} {
		for _, value := range []string{"", "line", "true", "../x", "a,{b,c", "$(POD_NAME)", "\x00", "60", strings.Repeat("~/", 300), "registry.example.com/trusted/x:1"} {
			f.Add(key, value, "site-a-gateway-0", "$(SITE)/$$(X)$(POD_NAME)")
		}
	}
	f.Fuzz(func(t *testing.T, key, value, podName, expr string) {
		s := named(t, "nested-mounts-and-subpath")
		s.pod.Annotations[key], s.pod.Name = value, podName
		s.pod.Spec.Containers[0].VolumeMounts[0].SubPathExpr = expr
		ops, decision := decide(s.pod, s.all)
		if !decision.Injected {
			assert.NotEmpty(t, decision.Reason)
			assert.NotEmpty(t, decision.Message)
			assert.Empty(t, ops)
			return
		}
		raw, err := json.Marshal(s.pod)
		require.NoError(t, err)
		pod, _ := apply(t, raw, ops)
		agent := pod.Spec.InitContainers[len(pod.Spec.InitContainers)-1]
		assert.Equal(t, Container, agent.Name)
		assert.True(t, agent.Image == "ghcr.io/stoker-io/agent:1.2.3" || strings.HasPrefix(agent.Image, "registry.example.com/trusted"))
		assert.False(t, *agent.SecurityContext.AllowPrivilegeEscalation)
		assert.Len(t, pod.Spec.InitContainers, len(s.pod.Spec.InitContainers)+1)
		for _, m := range agent.VolumeMounts {
			assert.NotContains(t, m.MountPath, "..")
		}
	})
}

// A mesh proxy in an ordinary container starts after all init containers, and therefore after the agent.
func TestMeshProxyWarning(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	for name, c := range map[string]struct {
		init []corev1.Container
		main []corev1.Container
		warn string
	}{
		"no mesh":                {init: []corev1.Container{{Name: "seed"}}},
		"ordinary proxy":         {init: []corev1.Container{{Name: "istio-init"}}, main: []corev1.Container{{Name: "istio-proxy"}}, warn: "istio-proxy"},
		"native sidecar":         {init: []corev1.Container{{Name: "istio-init"}, {Name: "istio-proxy", RestartPolicy: &always}}},
		"linkerd":                {init: []corev1.Container{{Name: "linkerd-init"}}, main: []corev1.Container{{Name: "linkerd-proxy"}}, warn: "linkerd-proxy"},
		"linkerd native sidecar": {init: []corev1.Container{{Name: "linkerd-init"}, {Name: "linkerd-proxy", RestartPolicy: &always}}},
	} {
		t.Run(name, func(t *testing.T) {
			s := sidecar{pod: &corev1.Pod{Spec: corev1.PodSpec{InitContainers: c.init, Containers: c.main}}}
			s.warnMesh()
			if c.warn == "" {
				assert.Empty(t, s.warnings)
			} else if assert.Len(t, s.warnings, 1) {
				assert.Contains(t, s.warnings[0], c.warn)
				assert.Less(t, len(s.warnings[0]), 240, "the API server truncates longer warnings")
			}
		})
	}
}

// The identities of two gateways are equal only if they have the same data. The exception is a folder named after a pod, see DataVolume.
func TestDataVolume(t *testing.T) {
	of := func(v corev1.VolumeSource, change func(*corev1.Pod, *corev1.VolumeMount)) (string, bool) {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "gw-0"}, Spec: corev1.PodSpec{NodeName: "one", Volumes: []corev1.Volume{{Name: "data", VolumeSource: v}}}}
		m := corev1.VolumeMount{Name: "data", MountPath: dataPath}
		change(pod, &m)
		pod.Spec.InitContainers = []corev1.Container{{Name: Container, VolumeMounts: []corev1.VolumeMount{m}}}
		return DataVolume(pod)
	}
	claim := func(name string) corev1.VolumeSource {
		return corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}}
	}
	nfs := func(server, path string) corev1.VolumeSource {
		return corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{Server: server, Path: path}}
	}
	host := func(path string) corev1.VolumeSource {
		return corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: path}}
	}
	renamed := func(p *corev1.Pod, _ *corev1.VolumeMount) { p.Name = "gw-1" }
	moved := func(p *corev1.Pod, _ *corev1.VolumeMount) { p.Spec.NodeName = "two" }
	sub := func(_ *corev1.Pod, m *corev1.VolumeMount) { m.SubPath = "a" }
	for name, c := range map[string]struct {
		volume, other corev1.VolumeSource
		change        func(*corev1.Pod, *corev1.VolumeMount) // of the other pod
		same          bool
	}{
		"pod of the same claim":         {claim("a"), claim("a"), renamed, true},
		"another claim":                 {claim("a"), claim("b"), renamed, false},
		"another folder of a claim":     {claim("a"), claim("a"), sub, false},
		"same export":                   {nfs("s", "/a"), nfs("s", "/a"), renamed, true},
		"another export":                {nfs("s", "/a"), nfs("s", "/b"), renamed, false},
		"another server":                {nfs("s", "/a"), nfs("t", "/a"), renamed, false},
		"same folder of a node":         {host("/a"), host("/a"), renamed, true},
		"another folder of a node":      {host("/a"), host("/b"), renamed, false},
		"same folder of another node":   {host("/a"), host("/a"), moved, false},
		"claim of a node's folder name": {host("/a"), claim("/a"), renamed, false},
	} {
		t.Run(name, func(t *testing.T) {
			id, keeps := of(c.volume, func(*corev1.Pod, *corev1.VolumeMount) {})
			other, otherKeeps := of(c.other, c.change)
			assert.True(t, keeps)
			assert.True(t, otherKeeps)
			assert.Equal(t, c.same, id == other, "%s, %s", id, other)
		})
	}
	for kind, same := range map[string]bool{"StatefulSet": false, "ReplicaSet": true} { // the successor of a ReplicaSet's pod has another name
		t.Run("folders by the name of a pod of a "+kind, func(t *testing.T) {
			byName := func(p *corev1.Pod, m *corev1.VolumeMount) {
				p.OwnerReferences, m.SubPathExpr = []metav1.OwnerReference{{Kind: kind, Controller: new(true)}}, "$(POD_NAME)"
			}
			id, _ := of(claim("a"), byName)
			other, _ := of(claim("a"), func(p *corev1.Pod, m *corev1.VolumeMount) { renamed(p, m); byName(p, m) })
			assert.Equal(t, same, id == other)
		})
	}
	t.Run("emptyDir", func(t *testing.T) {
		_, keeps := of(corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}, renamed)
		assert.False(t, keeps)
	})
}
