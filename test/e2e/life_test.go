//go:build linux

package e2e

import (
	"crypto/rand"
	"encoding/json"
	"io/fs"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/injector/inject"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/test/cluster/image"
	"stoker.io/stoker/test/cluster/kubetest"
	"stoker.io/stoker/test/gateway/simulator"
)

// Pods that start before their GatewaySync exists get no agent. When it exists, the injector evicts them, and their replacements get one.
func gatewaysOlderThanGatewaySync(t *testing.T, w *world) {
	p := w.plant(t)
	p.gateways(replicas(2))
	p.ready(2)
	for _, pod := range p.pods() {
		assert.False(t, inject.Has(&pod), "%s has an agent without a GatewaySync", pod.Name)
	}
	p.gatewaySync()
	p.synced(p.head(), 2)
	p.checkRepaired(2)
}

// checkRepaired checks that all pods have an agent now, and waits until Events report the evictions.
func (p *plant) checkRepaired(evicted int) {
	p.t.Helper()
	for _, pod := range p.pods() {
		assert.True(p.t, inject.Has(&pod), "%s has no agent", pod.Name)
	}
	p.eventually(p.t, "Events report the evictions", func() string {
		events := p.kubectl(p.t, "get", "events.events.k8s.io", "--namespace", p.namespace, "--field-selector", "reason="+v1alpha1.EventPodEvictedForRepair, "-o", "name")
		if n := strings.Count(events, "event"); n < evicted {
			return events
		}
		return ""
	})
}

// After a GatewaySync is deleted, its gateways keep running the last commit and follow no push. A new GatewaySync takes them over.
func deletedGatewaySyncLeavesGateways(t *testing.T, w *world) {
	p := w.plant(t)
	p.gatewaySync()
	p.gateways(replicas(2))
	first := p.head()
	p.synced(first, 2)
	require.NoError(t, p.syncs().Delete(p.ctx, "line", metav1.DeleteOptions{}))
	targets := kube.SyncTargets(p.dynamic, p.namespace)
	p.eventually(t, "the SyncTarget is garbage collected", func() string {
		if _, err := targets.Get(p.ctx, "line"); !apierrors.IsNotFound(err) {
			return "the SyncTarget still exists"
		}
		return ""
	})
	p.push("pushed without a GatewaySync")
	time.Sleep(10 * time.Second) // two sync periods of the agents, in which nothing may happen
	_, err := targets.Get(p.ctx, "line")
	assert.True(t, apierrors.IsNotFound(err), "an agent created a SyncTarget for the deleted GatewaySync: %v", err)
	p.ready(2)
	for _, pod := range p.pods() {
		p.runs(pod.Name, first)
	}
	p.gatewaySync()
	p.synced(p.head(), 2)
	assert.Zero(t, p.restarts())

	p.keepLogs(p.pods()...)
	require.NoError(t, p.client.AppsV1().StatefulSets(p.namespace).Delete(p.ctx, "line", metav1.DeleteOptions{}))
	p.eventually(t, "reports are garbage collected with their pods", func() string {
		reports, _, err := kube.SyncReports(p.dynamic, p.namespace).List(p.ctx, metav1.ListOptions{})
		if err != nil {
			return err.Error()
		}
		if len(reports) > 0 {
			return "report " + reports[0].Name
		}
		return ""
	})
}

// The official chart labels its pods app.kubernetes.io/name: ignition and sets the instance label to the
// name of the release.
func twoReleasesAreTwoGateways(t *testing.T, w *world) {
	p := w.plant(t)
	p.gatewaySync()
	for _, name := range []string{"a", "b"} {
		p.gateways(replicas(1), func(set *appsv1.StatefulSet) {
			labels := map[string]string{"app.kubernetes.io/name": "ignition", "app.kubernetes.io/instance": name}
			set.Name, set.Spec.Selector.MatchLabels, set.Spec.Template.Labels = name+"-gateway", labels, labels
			delete(set.Spec.Template.Annotations, v1alpha1.AnnotationCRName) // optional, because the namespace has only one GatewaySync
		})
	}
	gs := p.synced(p.head(), 2)
	for _, g := range gs.Status.DiscoveredGateways {
		assert.Equal(t, g.Name+"-gateway-0", g.PodName)
	}
	p.synced(p.push("second"), 2)
}

// A pod with the annotation stoker.io/require is not created before its GatewaySync exists. A wrong git password does not keep the gateway
// from starting, and the kubelet delivers the right one to the agent.
func podThatRequiresAgent(t *testing.T, w *world) {
	p := w.plant(t)
	p.password = "wrong-" + randomSecret()
	p.replaceSecret("git-credentials", "token", p.password)
	p.gateways(replicas(1), func(set *appsv1.StatefulSet) {
		set.Spec.Template.Annotations[v1alpha1.AnnotationRequire] = "true"
	})
	p.eventually(t, "the pod is refused", func() string {
		described := p.kubectl(t, "describe", "statefulset", "line", "--namespace", p.namespace)
		return missingFrom(described, "FailedCreate", string(v1alpha1.ReasonGatewaySyncNotFound))
	})
	assert.Empty(t, p.pods())
	p.gatewaySync()
	p.waitForCondition(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonAuthFailed)
	p.ready(1)
	p.replaceSecret("git-credentials", "token", w.password)
	p.synced(p.head(), 1)
}

// ignitionData is the data directory in the image, the same as in the official one.
const ignitionData = "/usr/local/bin/ignition/data"

// startGateway is the script of the image's entrypoint. It prints the projects that exist before the gateway starts, for
// projectsAtStart. --token-out reads an existing token and writes the file again, so it needs a writable copy.
const startGateway = `cp /token /tmp/token && chmod 600 /tmp/token && echo at the start: $(ls ` + ignitionData + `/projects 2>/dev/null) &&
exec /gateway --data ` + ignitionData + ` --listen :8088 --admin :9088 --token-out /tmp/token "$@"`

// randomSecret returns a value that occurs nowhere else.
func randomSecret() string { return strings.ToLower(rand.Text()) }

// gatewayImage returns a simulated gateway in the layout of the official image. It has a seeded data directory for init
// containers to copy, a shell for their scripts, and an entrypoint that accepts further arguments.
func gatewayImage(t *testing.T, token string) image.Image {
	busybox, err := exec.LookPath("busybox")
	require.NoError(t, err)
	i := image.Image{
		Ref: gatewayImageRef, User: "2003:2003",
		Entrypoint: []string{"/bin/sh", "-c", startGateway, "gateway"},
		Files: []image.File{
			{Path: "/bin/busybox", From: busybox},
			{Path: "/token", Content: []byte(token), Mode: 0o444},
		},
	}
	for _, name := range []string{"sh", "cp", "touch", "chmod", "sleep", "cat", "ls", "sed"} {
		i.Files = append(i.Files, image.File{Path: "/bin/" + name, Link: "busybox"})
	}
	data := t.TempDir()
	g, err := simulator.Start(simulator.Options{Data: data, Token: token})
	require.NoError(t, err)
	require.NoError(t, g.Close())
	require.NoError(t, filepath.WalkDir(data, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, err := filepath.Rel(data, path)
		if err != nil {
			return err
		}
		i.Files = append(i.Files, image.File{Path: filepath.Join(ignitionData, name), From: path, Mode: 0o644, UID: 2003, GID: 2003})
		return nil
	}))
	return i
}

// A user who may get GatewaySyncs and proxy to pods sees the files on the gateways of real pods.
func (p *plant) isSeenByAPerson(t *testing.T, now, older string) {
	t.Helper()
	for _, args := range [][]string{
		{"serviceaccount", "person"},
		{"rolebinding", "person-looks", "--clusterrole=view", "--serviceaccount=" + p.namespace + ":person"},
		{"role", "asks-agents", "--verb=get", "--resource=pods/proxy"},
		{"rolebinding", "person-asks", "--role=asks-agents", "--serviceaccount=" + p.namespace + ":person"},
	} {
		p.kubectl(t, append([]string{"create", "--namespace", p.namespace}, args...)...)
	}
	p.eventually(t, "the user may read objects and query agents", func() string {
		for _, what := range []authorizationv1.ResourceAttributes{{Group: "stoker.io", Resource: "gatewaysyncs"}, {Resource: "pods", Subresource: "proxy"}} {
			what.Namespace, what.Verb = p.namespace, "get"
			review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: "system:serviceaccount:" + p.namespace + ":person", ResourceAttributes: &what}}
			review, err := p.client.AuthorizationV1().SubjectAccessReviews().Create(p.ctx, review, metav1.CreateOptions{})
			if err != nil {
				return err.Error()
			}
			if !review.Status.Allowed {
				return what.Resource
			}
		}
		return ""
	})
	person := p.As(t, p.namespace, "person", "")
	file := kubetest.KubeconfigFor(t, person, p.namespace)
	stoker := func(args ...string) string {
		return p.run(t, p.module, p.stokerPath, append(args, "--kubeconfig", file)...)
	}

	assert.Contains(t, stoker("get"), "3/3")
	status := stoker("status", "line")
	for _, gateway := range []string{"line", "line-1", "line-2"} {
		assert.Contains(t, status, gateway)
	}
	assert.Contains(t, status, now[:7])

	var all []struct {
		Gateway, From, To string
		Changes           []struct{ Op, Path string }
	}
	require.NoError(t, json.Unmarshal([]byte(stoker("diff", "line", "--repo", p.repo.Dir, "--ref", older, "--output", "json")), &all))
	require.Len(t, all, 3, "the output must have one entry for each gateway")
	for _, d := range all {
		assert.Equal(t, now, d.From, "%s: the output must name the commit that the agent reported", d.Gateway)
		assert.Equal(t, older, d.To)
		var changes []string
		for _, c := range d.Changes {
			changes = append(changes, c.Op+" "+c.Path)
		}
		// The signature in resource.json changes together with the view.
		assert.ElementsMatch(t, []string{"update " + overview + "/view.json", "update " + overview + "/resource.json"}, changes, d.Gateway)
	}
}
