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

	"stoker.io/stoker/api/v1alpha1"
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
