package plant

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/gatewaypod"
	"stoker.io/stoker/injector/inject"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/test/gateway/simulator"
	"stoker.io/stoker/test/program"
)

// Gateway is a pod that no kubelet runs: a simulated gateway, and the process of its agent.
type Gateway struct {
	// Name is the pod's name, Identity the gateway's.
	Name, Identity string
	Simulator      *simulator.Gateway
	// Agent is the last started process, or nil before the first Start.
	Agent *program.Process

	p              *Plant
	dir            string
	pod            *corev1.Pod
	agentContainer corev1.Container // as injected
}

// Add injects the agent into a pod, creates the pod, and starts its simulated gateway, but not its agent.
func (p *Plant) Add(pod *corev1.Pod) *Gateway {
	p.t.Helper()
	gs, err := p.syncs().Get(p.t.Context(), p.Name)
	require.NoError(p.t, err)
	pod = p.injectAgent(pod, gs)
	pod, err = p.Kube.Core.CoreV1().Pods(p.Namespace).Create(p.t.Context(), pod, metav1.CreateOptions{})
	require.NoError(p.t, err)
	g := &Gateway{Name: pod.Name, p: p, dir: p.t.TempDir(), pod: pod}
	i := slices.IndexFunc(pod.Spec.InitContainers, func(c corev1.Container) bool { return c.Name == inject.Container })
	require.GreaterOrEqual(p.t, i, 0)
	g.agentContainer = pod.Spec.InitContainers[i]
	for _, m := range g.agentContainer.VolumeMounts {
		require.NoError(p.t, os.MkdirAll(g.hostPath(m.MountPath), 0o755))
	}
	g.Identity, err = gatewaypod.GatewayName(pod.Name, pod.Labels, pod.Annotations)
	require.NoError(p.t, err)
	g.Simulator, err = simulator.Start(simulator.Options{Data: g.hostPath(g.env("DATA_PATH")), Name: g.Identity})
	require.NoError(p.t, err)
	p.t.Cleanup(func() { assert.NoError(p.t, g.Simulator.Close()) })
	g.mount(gs)
	p.proxy.add(g.Simulator)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.gateways = append(p.gateways, g)
	return g
}

// injectAgent returns a copy of the pod with its agent, like the injector's webhook.
func (p *Plant) injectAgent(pod *corev1.Pod, gs *v1alpha1.GatewaySync) *corev1.Pod {
	p.t.Helper()
	pod = pod.DeepCopy()
	pod.Namespace = p.Namespace
	ops, decision := inject.Patch(pod, gs, inject.Defaults{Image: v1alpha1.AgentImage{Repository: "agent", Tag: "test"}})
	require.True(p.t, decision.Injected, "%s: %s", decision.Reason, decision.Message)
	before, err := json.Marshal(pod)
	require.NoError(p.t, err)
	encoded, err := json.Marshal(ops)
	require.NoError(p.t, err)
	patch, err := jsonpatch.DecodePatch(encoded)
	require.NoError(p.t, err)
	after, err := patch.Apply(before)
	require.NoError(p.t, err)
	out := &corev1.Pod{}
	require.NoError(p.t, json.Unmarshal(after, out))
	return out
}

// hostPath returns the location of a path of the agent's container on this machine.
func (g *Gateway) hostPath(path string) string { return filepath.Join(g.dir, "root", path) }

// Path returns the location of a file of the gateway's data directory.
func (g *Gateway) Path(file string) string {
	return filepath.Join(g.hostPath(g.env("DATA_PATH")), filepath.FromSlash(file))
}

// mount writes what the kubelet would mount: the Secrets that the spec names, and the pod's labels and annotations.
func (g *Gateway) mount(gs *v1alpha1.GatewaySync) {
	g.p.t.Helper()
	for _, m := range g.agentContainer.VolumeMounts {
		name, ok := strings.CutPrefix(m.MountPath, g.env("SECRETS_DIR")+"/")
		if !ok {
			continue
		}
		for _, listed := range strings.FieldsFunc(g.env("SECRETS"), func(r rune) bool { return r == ',' || r == ' ' }) {
			if key, ok := strings.CutPrefix(listed, name+"/"); ok {
				g.write(filepath.Join(m.MountPath, key), "a secret of this test")
			}
		}
	}
	if ref := gs.Spec.Gateway.APIKey(); ref != nil {
		g.write(filepath.Join(g.env("SECRETS_DIR"), ref.Name, ref.Key), g.Simulator.Token())
	}
	for file, values := range map[string]map[string]string{"labels": g.pod.Labels, "annotations": g.pod.Annotations} {
		var b strings.Builder
		for name, value := range values {
			fmt.Fprintf(&b, "%s=%q\n", name, value)
		}
		g.write(filepath.Join(g.env("PODINFO_DIR"), file), b.String())
	}
}

func (g *Gateway) write(path, content string) {
	g.p.t.Helper()
	file := g.hostPath(path)
	require.NoError(g.p.t, os.MkdirAll(filepath.Dir(file), 0o755))
	require.NoError(g.p.t, os.WriteFile(file, []byte(content), 0o600))
}

// Mount writes a file of a mounted Secret or ConfigMap. path is relative to the agent's directory of Secrets.
func (g *Gateway) Mount(path, content string) {
	g.p.t.Helper()
	g.write(filepath.Join(g.env("SECRETS_DIR"), path), content)
}

// env returns a variable of the agent's container, as the kubelet would set it.
func (g *Gateway) env(name string) string {
	for _, v := range g.agentContainer.Env {
		switch {
		case v.Name != name:
		case v.ValueFrom == nil || v.ValueFrom.FieldRef == nil:
			return strings.ReplaceAll(v.Value, "$$(", "$(")
		default:
			return map[string]string{"metadata.name": g.pod.Name, "metadata.namespace": g.pod.Namespace, "metadata.uid": string(g.pod.UID)}[v.ValueFrom.FieldRef.FieldPath]
		}
	}
	return ""
}

// Start starts the gateway's agent with the environment of its container.
func (g *Gateway) Start() {
	g.p.t.Helper()
	g.StartProgram(program.Build(g.p.t, "agent"))
}

// StartProgram is Start with another build of the agent.
func (g *Gateway) StartProgram(binary string) {
	t := g.p.t
	t.Helper()
	cmd := exec.Command(binary, "--kubeconfig", g.p.Kubeconfig(podAccount, g.Name), "--health-addr", "127.0.0.1:0", "--metrics-addr", "127.0.0.1:0", "--log-format", "json")
	cmd.Env = []string{"HOME=" + g.dir}
	for _, v := range g.agentContainer.Env {
		value := g.env(v.Name)
		if filepath.IsAbs(value) {
			value = g.hostPath(value)
		}
		cmd.Env = append(cmd.Env, v.Name+"="+value)
	}
	g.Agent = program.Start(t, g.Name, cmd)
}

// Title returns the title of the project "line" on the gateway.
func (g *Gateway) Title() string {
	b, err := os.ReadFile(g.Path("projects/line/project.json"))
	var project struct{ Title string }
	if err != nil || json.Unmarshal(b, &project) != nil {
		return ""
	}
	return project.Title
}

func (p *Plant) syncs() *kube.Objects[v1alpha1.GatewaySync] {
	return kube.GatewaySyncs(p.Kube.Dynamic, p.Namespace)
}

// GatewaySync returns the current object, or an empty one if it cannot be read.
func (p *Plant) GatewaySync() *v1alpha1.GatewaySync {
	gs, err := p.syncs().Get(p.t.Context(), p.Name)
	if err != nil {
		return &v1alpha1.GatewaySync{}
	}
	return gs
}

// Status returns the current status, or an empty one if it cannot be read.
func (p *Plant) Status() *v1alpha1.GatewaySyncStatus { return &p.GatewaySync().Status }

// Target returns the current SyncTarget spec, or an empty one if it cannot be read.
func (p *Plant) Target() v1alpha1.SyncTargetSpec {
	t, err := kube.SyncTargets(p.Kube.Dynamic, p.Namespace).Get(p.t.Context(), p.Name)
	if err != nil {
		return v1alpha1.SyncTargetSpec{}
	}
	return t.Spec
}

// Lead returns the gateway whose agent leads, or nil.
func (p *Plant) Lead() *Gateway {
	name, _, _ := strings.Cut(p.Target().Lead.Holder, "_")
	for _, g := range p.Gateways() {
		if g.Name == name {
			return g
		}
	}
	return nil
}

// Watch records every state of the GatewaySync from now on, including the current one; seen returns them. It passes each
// state to the functions before it records it.
func (p *Plant) Watch(functions ...func(*v1alpha1.GatewaySync)) (seen func() []v1alpha1.GatewaySync) {
	p.t.Helper()
	resource, selector := p.Kube.Dynamic.Resource(kube.GatewaySync.Resource()).Namespace(p.Namespace), fields.OneTermEqualSelector("metadata.name", p.Name).String()
	current, err := resource.List(p.t.Context(), metav1.ListOptions{FieldSelector: selector})
	require.NoError(p.t, err)
	require.Len(p.t, current.Items, 1)
	// Without a version, the watch might begin with an older state.
	w, err := resource.Watch(p.t.Context(), metav1.ListOptions{FieldSelector: selector, ResourceVersion: current.GetResourceVersion()})
	require.NoError(p.t, err)
	var mu sync.Mutex
	var all []v1alpha1.GatewaySync
	record := func(object any) {
		data, err := json.Marshal(object)
		var gs v1alpha1.GatewaySync
		if err == nil && json.Unmarshal(data, &gs) == nil {
			for _, f := range functions {
				f(&gs)
			}
			mu.Lock()
			all = append(all, gs)
			mu.Unlock()
		}
	}
	record(&current.Items[0])
	done := make(chan struct{})
	p.t.Cleanup(func() { w.Stop(); <-done })
	go func() {
		defer close(done)
		for e := range w.ResultChan() {
			record(e.Object)
		}
	}()
	return func() []v1alpha1.GatewaySync {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(all)
	}
}

// Converges waits until all gateways run the commit whose project has this title, and the status reports that.
func (p *Plant) Converges(title, commit string) {
	p.t.Helper()
	p.Eventually(title+" everywhere", func() bool {
		for _, g := range p.Gateways() {
			if g.Title() != title {
				return false
			}
		}
		return p.Ready(commit)
	})
}

// Ready reports whether the status reports that all gateways run a commit.
func (p *Plant) Ready(commit string) bool {
	st := p.Status()
	return meta.IsStatusConditionTrue(st.Conditions, v1alpha1.ConditionReady) && st.LastGood != nil && st.LastGood.Commit == commit
}

// Eventually waits until ok returns true. After Liveness it ends the test, and shows what and the status.
func (p *Plant) Eventually(what string, ok func() bool) {
	p.t.Helper()
	deadline := time.Now().Add(Liveness)
	for !ok() {
		if time.Now().After(deadline) {
			st, err := json.MarshalIndent(p.Status(), "", "  ")
			require.NoError(p.t, err)
			p.t.Fatalf("never: %s\n%s", what, st)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
