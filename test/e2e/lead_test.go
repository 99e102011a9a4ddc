//go:build linux

package e2e

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/kube"
)

func aKilledLeadIsReplaced(t *testing.T, w *world) {
	p := w.plant(t)
	p.gatewaySync()
	p.gateways()
	p.synced(p.head(), 3)
	for _, pod := range p.pods() {
		// Long enough to see the phase Syncing in a report, which may come a second or more later.
		p.tell(pod.Name, "/scan-faults", `{"kind":"projects","delay":"20s"}`)
	}
	before := p.target()
	lead, _, _ := strings.Cut(before.Spec.Lead.Holder, "_")
	second := p.push("second")
	p.eventually(t, "a sync is in progress", func() string {
		reports, _, err := kube.SyncReports(p.dynamic, p.namespace).List(p.ctx, metav1.ListOptions{})
		if err != nil {
			return err.Error()
		}
		for _, r := range reports {
			if r.Status.Target == second && r.Status.Phase == v1alpha1.GatewaySyncing {
				return ""
			}
		}
		return "no gateway syncs the second commit"
	})
	pods := p.pods()
	i := slices.IndexFunc(pods, func(pod corev1.Pod) bool { return pod.Name == lead })
	require.NotEqual(t, -1, i, "no pod is named like the lead %s", lead)
	p.keepLogs(pods[i])
	restarts := 0 // a new pod counts from 0
	if p.killAgent(&pods[i]) {
		restarts = 1
	}
	// The agent that starts in its place has another identity, so it also waits for the lock to expire.
	p.eventually(t, "another agent leads", func() string {
		if now := p.target().Spec.Lead; now.Holder == "" || now.Holder == before.Spec.Lead.Holder {
			return now.Holder + " leads"
		}
		return ""
	})
	assert.Greater(t, p.target().Spec.Lead.Transitions, before.Spec.Lead.Transitions)
	p.synced(second, 3)
	p.eventually(t, "the kubelet reports the restart of a killed agent", func() string {
		if n := p.restarts(); n < restarts {
			return fmt.Sprintf("%d of %d restarts", n, restarts)
		}
		return ""
	})
	for _, pod := range p.pods() {
		p.tell(pod.Name, "/scan-faults", `{"kind":"projects"}`)
	}
	p.synced(p.push("third"), 3)
	assert.Equal(t, restarts, p.restarts(), "only the killed agent may restart")
}

func (p *plant) target() *v1alpha1.SyncTarget {
	p.t.Helper()
	target, err := kube.SyncTargets(p.dynamic, p.namespace).Get(p.ctx, "line")
	require.NoError(p.t, err)
	return target
}

// tell posts to the admin interface of the simulator in a pod.
func (p *plant) tell(pod, path, body string) {
	p.t.Helper()
	require.NoError(p.t, p.told(pod, path, body))
}

// told is tell for a goroutine, which cannot end the test.
func (p *plant) told(pod, path, body string) error {
	err := p.client.CoreV1().RESTClient().Post().Namespace(p.namespace).Resource("pods").SubResource("proxy").
		Name("http:" + pod + ":9088").Suffix(path).Body([]byte(body)).Do(p.ctx).Error()
	if err != nil {
		return fmt.Errorf("%s: %s: %w", pod, path, err)
	}
	return nil
}

// killAgent sends SIGKILL to the agent of a pod, so that it cannot release its lock. If the nodes are not
// on this machine, killAgent deletes the pod without a grace period instead, and returns false.
func (p *plant) killAgent(pod *corev1.Pod) bool {
	p.t.Helper()
	pid, err := agentProcess(pod.UID)
	require.NoError(p.t, err)
	if pid == 0 {
		p.say("%s: deleted, for its processes are not on this machine", pod.Name)
		require.NoError(p.t, p.client.CoreV1().Pods(p.namespace).Delete(p.ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}))
		return false
	}
	require.NoError(p.t, syscall.Kill(pid, syscall.SIGKILL), "the agent of %s", pod.Name)
	return true
}

// agentProcess finds the agent of a pod among the processes of this machine by its cgroup. It returns 0 if
// there is none.
func agentProcess(uid types.UID) (int, error) {
	found, err := filepath.Glob("/proc/[0-9]*/comm")
	if err != nil {
		return 0, err
	}
	var pids []int
	for _, name := range found {
		comm, err := os.ReadFile(name)
		if err != nil || string(bytes.TrimSpace(comm)) != "agent" {
			continue // the process has ended or is another program
		}
		dir := filepath.Dir(name)
		cgroup, err := os.ReadFile(filepath.Join(dir, "cgroup"))
		if err != nil || !bytes.Contains(cgroup, []byte(uid)) && !bytes.Contains(cgroup, []byte(strings.ReplaceAll(string(uid), "-", "_"))) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil {
			return 0, err
		}
		pids = append(pids, pid)
	}
	switch len(pids) {
	case 0:
		return 0, nil
	case 1:
		return pids[0], nil
	}
	return 0, fmt.Errorf("pod %s has agents %v", uid, pids)
}
