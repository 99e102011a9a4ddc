//go:build linux

package e2e

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/injector/inject"
)

// credentials reports whether the git server accepts a request. A push needs another password than a fetch.
func (w *world) credentials(r *http.Request) bool {
	user, password, ok := r.BasicAuth()
	push := strings.HasSuffix(r.URL.Path, "/git-receive-pack") || r.URL.Query().Get("service") == "git-receive-pack"
	return ok && user == gitUser && (push && password == w.pushPassword || !push && (password == w.password || password == w.pushPassword))
}

// merge merges a branch into the branch that the gateways follow, and returns the merge commit.
func (p *plant) merge(branch string) string {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	id := p.repo.Merge("merge "+branch, branch)
	p.commits, p.views = append(p.commits, id), append(p.views, digestOf(p.repo.Content(id, inGit)))
	return id
}

func digestOf(view string) string {
	sum := sha256.Sum256([]byte(view))
	return hex.EncodeToString(sum[:])
}

// isSaved reports whether digest is that of the view that a user saved on a gateway.
func (p *plant) isSaved(digest string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.saved == digest
}

// A user saves a view in the Designer on one of two gateways. The agent of this gateway pushes the view to a branch. After the branch is
// merged, both gateways run the view, and the agent deletes the branch.
func designerSaveIsProposed(t *testing.T, w *world) {
	p := w.plant(t)
	p.secret("git-push", "token", w.pushPassword)
	p.gatewaySync(func(gs *v1alpha1.GatewaySync) {
		gs.Spec.Bidirectional = &v1alpha1.BidirectionalSpec{
			Enabled: true, Provider: "none", Debounce: "1s", WatchPaths: []string{"projects/site-a/**"},
			Auth: &v1alpha1.Credential{Token: &v1alpha1.TokenAuth{Username: gitUser, SecretRef: v1alpha1.SecretKeyRef{Name: "git-push", Key: "token"}}},
		}
	})
	p.gateways(replicas(2))
	p.synced(p.head(), 2)
	for _, pod := range p.pods() {
		assert.Equal(t, []string{inject.Container}, mountsOf(&pod, "git-push"), pod.Name)
	}

	view := strings.Replace(p.repo.Content(p.head(), inGit), "{", `{ "savedBy": "maria",`, 1)
	p.mu.Lock()
	p.saved = digestOf(view)
	p.mu.Unlock()
	resource := strings.TrimPrefix(overview, "projects/site-a/")
	p.tell("line-1", "/designers", `{"user":"maria","project":"site-a"}`)
	p.tell("line-1", "/designers/designer-1/open", `{"resource":"`+resource+`"}`)
	body, err := json.Marshal(map[string]any{"resource": resource, "files": map[string]string{"view.json": view}})
	require.NoError(t, err)
	p.tell("line-1", "/designers/designer-1/save", string(body))
	const prefix = "gateway-changes/" // of all branches that agents push
	p.eventually(t, "line-1 has pushed its change", func() string {
		for _, g := range p.get().Status.DiscoveredGateways {
			if g.PodName == "line-1" && g.ProposalState == v1alpha1.ProposalPushed {
				return ""
			}
		}
		return describe(p.get())
	})
	pushed := prefix + p.namespace + "/line-1"
	assert.Equal(t, view, p.repo.Content(pushed, inGit))
	assert.Equal(t, pushed, p.repo.Git("for-each-ref", "--format=%(refname:short)", "refs/heads/"+prefix), "only the changed gateway may have a branch")
	p.waitForCondition(v1alpha1.ConditionBidirectionalReady, metav1.ConditionTrue, v1alpha1.ReasonProposalsReady)
	p.waitForCondition(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonSynced)
	listed := p.run(t, p.module, p.stokerPath, "proposals", "line", "--namespace", p.namespace, "--kubeconfig", p.Kubeconfig())
	assert.Contains(t, listed, "Pushed")

	p.synced(p.merge(pushed), 2)
	p.eventually(t, "the branch is deleted", func() string {
		return p.repo.Git("for-each-ref", "--format=%(refname:short)", "refs/heads/"+prefix)
	})
}

// mountsOf returns the names of the containers of a pod that mount a Secret.
func mountsOf(pod *corev1.Pod, secret string) (containers []string) {
	var volumes []string
	for _, v := range pod.Spec.Volumes {
		if v.Secret != nil && v.Secret.SecretName == secret {
			volumes = append(volumes, v.Name)
		}
	}
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		if slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return slices.Contains(volumes, m.Name) }) {
			containers = append(containers, c.Name)
		}
	}
	return containers
}
