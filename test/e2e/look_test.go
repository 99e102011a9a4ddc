//go:build linux

package e2e

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/test/cluster/kubetest"
)

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
