//go:build linux

package e2e

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/injector/inject"
)

const playRole = `case "$INDEX" in 0) role=Master ;; *) role=Backup ;; esac; `

// aPairIsSynced has two pods like those of the official chart: index 0 is the master, index 1 its backup.
func aPairIsSynced(t *testing.T, w *world) {
	p := w.plant(t)
	p.gatewaySync()
	p.gateways(replicas(2), func(set *appsv1.StatefulSet) {
		spec := &set.Spec.Template.Spec
		index := []corev1.EnvVar{{Name: "INDEX", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.labels['apps.kubernetes.io/pod-index']"}}}}
		role := *spec.InitContainers[0].DeepCopy()
		role.Name, role.Env = "redundancy", index
		role.Args = []string{playRole + `sed -i "s/Independent/$role/" /data/redundancy.xml`}
		spec.InitContainers = append(spec.InitContainers, role)
		gateway := &spec.Containers[0]
		gateway.Env, gateway.Command = index, []string{"/bin/sh", "-c"}
		gateway.Args = []string{playRole + strings.Replace(startGateway, `"$@"`, `--role "$role"`, 1)}
	})
	first := p.head()
	p.ready(2)
	defer p.link(t)()
	p.tell("line-1", "/redundancy", `{"configAccess":false,"peerConnected":true}`)
	states := func(gs *v1alpha1.GatewaySync) map[string]v1alpha1.GatewaySyncState {
		all := map[string]v1alpha1.GatewaySyncState{}
		for _, g := range gs.Status.DiscoveredGateways {
			all[g.PodName] = g.SyncStatus
		}
		return all
	}
	want := map[string]v1alpha1.GatewaySyncState{"line-0": v1alpha1.GatewaySynced, "line-1": v1alpha1.GatewayStandby}
	assert.Equal(t, want, states(p.synced(first, 2)))
	assert.Equal(t, want, states(p.synced(p.push("second"), 2)))
}

// link simulates the connection between the two nodes. It copies the files that the master has from git to
// the backup, which loads them.
func (p *plant) link(t *testing.T) (cut func()) {
	from, to := p.volume("data-line-0"), p.volume("data-line-1")
	ctx, stop := context.WithCancel(p.ctx)
	var done sync.WaitGroup
	done.Go(func() {
		for ctx.Err() == nil {
			if changed, err := p.replicate(from, to); err != nil {
				t.Errorf("the link between the two: %v", err)
				return
			} else if changed {
				for _, kind := range []string{"config", "projects"} {
					if err := p.told("line-1", "/scan/"+kind, ""); err != nil {
						t.Errorf("the link between the two: %v", err)
						return
					}
				}
			}
			select {
			case <-ctx.Done():
			case <-time.After(500 * time.Millisecond):
			}
		}
	})
	return func() { stop(); done.Wait() }
}

func (p *plant) replicate(from, to string) (changed bool, err error) {
	for _, mapping := range []string{"shared/", "services/site-a/"} {
		for name := range strings.Lines(p.repo.Git("ls-tree", "-r", "--name-only", "HEAD", mapping)) {
			name = strings.TrimPrefix(strings.TrimSpace(name), mapping)
			content, err := os.ReadFile(filepath.Join(from, name))
			if os.IsNotExist(err) {
				continue // the master does not have the file yet
			} else if err != nil {
				return changed, err
			}
			if there, err := os.ReadFile(filepath.Join(to, name)); err == nil && string(there) == string(content) {
				continue
			}
			changed = true
			if err := put(to, name, content); err != nil {
				return changed, err
			}
		}
	}
	return changed, nil
}

// put writes a file as the user of the gateway.
func put(root, name string, content []byte) error {
	const user = 2003
	for i, c := range name {
		if c != '/' {
			continue
		}
		if err := os.Mkdir(filepath.Join(root, name[:i]), 0o755); os.IsExist(err) {
			continue
		} else if err != nil {
			return err
		}
		if err := os.Chown(filepath.Join(root, name[:i]), user, user); err != nil {
			return err
		}
	}
	path := filepath.Join(root, name)
	temporary := filepath.Join(root, "var", "link")
	if err := os.WriteFile(temporary, content, 0o644); err != nil {
		return err
	}
	if err := os.Chown(temporary, user, user); err != nil {
		return err
	}
	return os.Rename(temporary, path)
}

// volume returns the directory of a claim's volume on this machine.
func (p *plant) volume(claim string) string {
	p.t.Helper()
	c, err := p.client.CoreV1().PersistentVolumeClaims(p.namespace).Get(p.ctx, claim, metav1.GetOptions{})
	require.NoError(p.t, err)
	v, err := p.client.CoreV1().PersistentVolumes().Get(p.ctx, c.Spec.VolumeName, metav1.GetOptions{})
	require.NoError(p.t, err)
	if v.Spec.Local == nil {
		p.t.Skip("the two gateways' own replication is played on their volumes, which are not on this machine")
	}
	return v.Spec.Local.Path
}

// The README's way from a repository to gateways that run its commit.
func threeGatewaysFollowAPush(t *testing.T, w *world) {
	p := w.plant(t)
	p.follow()
	gs := p.synced(p.head(), 3)
	p.ready(3) // the agents may know that their gateways run before the kubelet does
	for _, pod := range p.pods() {
		p.gated(&pod)
		assert.Equal(t, "at the start: plant-library site-a", p.projectsAtStart(pod.Name), "the first sync comes before the gateway's first start")
	}
	var names []string
	for _, g := range gs.Status.DiscoveredGateways {
		names = append(names, g.Name)
	}
	assert.ElementsMatch(t, []string{"line", "line-1", "line-2"}, names)
	second := p.push("second")
	p.synced(second, 3)
	third := p.push("third")
	p.synced(third, 3)
	p.isSeenByAPerson(t, third, second)
}

// follow types the commands of the README from a repository to gateways that run its commit. The git server of the tests has an authority
// of its own, and the gateways are simulated.
func (p *plant) follow() {
	p.t.Helper()
	shell := p.reader()
	set, err := yaml.Marshal(p.statefulSet(func(set *appsv1.StatefulSet) { set.Spec.Template.Annotations[v1alpha1.AnnotationProfile] = "site-a" }))
	require.NoError(p.t, err)
	require.NoError(p.t, os.MkdirAll(filepath.Join(shell.Dir, "examples", "kubernetes"), 0o700))
	for name, content := range map[string]string{"token.txt": p.password + "\n", "ca.crt": string(p.git.CA()) + "\n", "examples/kubernetes/statefulset.yaml": string(set)} {
		require.NoError(p.t, os.WriteFile(filepath.Join(shell.Dir, name), []byte(content), 0o600))
	}
	own := strings.NewReplacer("--namespace line", "--namespace "+p.namespace, "https://git.example.com/plants/ignition.git", p.git.URL(p.repoName))
	var typed int
	for c := range p.lines.Of("README.md") { // sequence: as the reader types them
		line := own.Replace(c.Text)
		switch {
		case strings.HasPrefix(line, "helm test "): // documentedNodeCommands runs it
			continue
		case strings.HasPrefix(line, "stoker create "):
			said := shell.Type(p.t, line+" --secret git-ca/ca.crt=ca.crt")
			assert.Contains(p.t, said, "gatewaysync.stoker.io/line created")
			assert.Contains(p.t, said, `profile site-a: stoker.io/inject: "true", stoker.io/cr-name: line, stoker.io/profile: site-a`)
			assert.True(p.t, p.get().Spec.Gateway.ManagedKey())
			quicker := []byte(`{"spec": {"polling": {"interval": "1s"}, "sync": {"defaults": {"syncPeriod": 5}}}}`)
			_, err := p.syncs().Patch(p.ctx, "line", types.MergePatchType, quicker, metav1.PatchOptions{})
			require.NoError(p.t, err)
		case strings.HasSuffix(line, " --watch"):
			p.synced(p.head(), 3)
			shell.Watch(p.t, line, " 3/3 ", " True ")
		default:
			shell.Type(p.t, line)
		}
		typed++
	}
	require.Equal(p.t, 3, typed)
}

func anUnseededGatewayIsSynced(t *testing.T, w *world) {
	p := w.plant(t)
	p.gatewaySync()
	p.gateways(replicas(1), func(set *appsv1.StatefulSet) {
		spec := &set.Spec.Template.Spec
		spec.InitContainers = nil
		spec.Containers[0].Args = []string{"--seed", "--reset-permissions"}
	})
	var atStart string
	p.eventually(t, "the gateway starts", func() string {
		if pods := p.pods(); len(pods) != 1 || containerState(&pods[0], "gateway") == nil {
			return "it does not run"
		}
		if atStart = p.projectsAtStart("line-0"); atStart == noStart { // the kubelet knows of a container before its log has a line
			return atStart
		}
		return ""
	})
	assert.Equal(t, "at the start:", atStart, "Ignition seeds an empty volume only")
	// The first start makes the permissions. The gateway accepts the agent's key only after another start, for which
	// the injector evicts the pod once.
	p.synced(p.head(), 1)
	p.ready(1)
	p.checkRepaired(1)
	p.synced(p.push("second"), 1)
	assert.Zero(t, p.restarts(), "no container may restart")
}

// gated checks that the gateway's container started after the startup probe of the agent succeeded.
func (p *plant) gated(pod *corev1.Pod) {
	p.t.Helper()
	agent, gateway := containerState(pod, inject.Container), containerState(pod, "gateway")
	require.NotNil(p.t, agent, "%s: its agent runs", pod.Name)
	require.NotNil(p.t, gateway, "%s: its gateway runs", pod.Name)
	assert.True(p.t, *agent.Started, "%s: the agent's startup probe", pod.Name)
	assert.False(p.t, gateway.State.Running.StartedAt.Before(&agent.State.Running.StartedAt), "%s: the gateway started before its agent", pod.Name)
}

func containerState(pod *corev1.Pod, name string) *corev1.ContainerStatus {
	for _, list := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for i := range list {
			if list[i].Name == name && list[i].State.Running != nil {
				return &list[i]
			}
		}
	}
	return nil
}

// projectsAtStart returns what the image's entrypoint found in the projects directory.
func (p *plant) projectsAtStart(pod string) string {
	p.t.Helper()
	raw, err := p.client.CoreV1().Pods(p.namespace).GetLogs(pod, &corev1.PodLogOptions{Container: "gateway"}).DoRaw(p.ctx)
	require.NoError(p.t, err)
	for line := range strings.Lines(string(raw)) { // the line may follow one of the other output
		if strings.HasPrefix(line, "at the start:") {
			return strings.TrimRight(line, "\n ")
		}
	}
	return noStart
}

const noStart = "the log has no line of the start"

// restarts counts the container restarts in the plant.
func (p *plant) restarts() (n int) {
	p.t.Helper()
	for _, pod := range p.pods() {
		for _, list := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
			for _, s := range list {
				n += int(s.RestartCount)
			}
		}
	}
	return n
}
