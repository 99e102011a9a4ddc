package argocd

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/test/fleet/plant"
)

func TestMain(m *testing.M) { plant.Main(m) }

// server is Argo CD's API server: an account that runs the scripts on the live GatewaySync.
type server struct {
	*plant.Plant
	t       *testing.T
	objects dynamic.ResourceInterface
}

func (s *server) run(script string) (before map[string]any, result []byte) {
	s.t.Helper()
	live, err := s.objects.Get(s.t.Context(), s.Name, metav1.GetOptions{})
	require.NoError(s.t, err)
	before = object(s.t, live)
	result, err = load(s.t, script).run(object(s.t, live), time.Now())
	require.NoError(s.t, err)
	return before, result
}

// shows waits until the GatewaySync has a health and a message.
func (s *server) shows(status, message string) {
	s.t.Helper()
	s.Eventually(status+": "+message, func() bool {
		var h health
		_, raw := s.run("health.lua")
		require.NoError(s.t, json.Unmarshal(raw, &h), "%s", raw)
		return h.Status == status && strings.Contains(h.Message, message)
	})
}

// offered reports whether an action is enabled.
func (s *server) offered(name string) bool {
	s.t.Helper()
	var actions map[string]struct{ Disabled bool }
	_, raw := s.run(filepath.Join("actions", "discovery.lua"))
	require.NoError(s.t, json.Unmarshal(raw, &actions), "%s", raw)
	require.Contains(s.t, actions, name)
	return !actions[name].Disabled
}

// click runs an action, and patches the GatewaySync with what the script changed.
func (s *server) click(name string) error {
	s.t.Helper()
	require.True(s.t, s.offered(name), name)
	before, after := s.run(filepath.Join("actions", name, "action.lua"))
	was, err := json.Marshal(map[string]any{"metadata": before["metadata"]})
	require.NoError(s.t, err)
	var changed map[string]any
	require.NoError(s.t, json.Unmarshal(after, &changed))
	is, err := json.Marshal(map[string]any{"metadata": changed["metadata"]})
	require.NoError(s.t, err)
	patch, err := jsonpatch.CreateMergePatch(was, is)
	require.NoError(s.t, err)
	_, err = s.objects.Patch(s.t.Context(), s.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// A failed canary is Degraded until the action retry. The gateways after it wait, Suspended, for the action approve, which needs a right of
// its own.
func TestFleetRollout(t *testing.T) {
	var answer atomic.Int32
	check := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(int(answer.Load())) }))
	t.Cleanup(check.Close)
	p := plant.New(t, 2, func(gs *v1alpha1.GatewaySync) {
		gs.Spec.AutoRollback = &v1alpha1.AutoRollbackSpec{Enabled: true, Scope: v1alpha1.AutoRollbackRollout}
		gs.Spec.Deployment = &v1alpha1.DeploymentSpec{Stages: []v1alpha1.Stage{
			{Name: "dev", Gateways: []string{"gw-0"}, HealthCheck: &v1alpha1.HealthCheck{URL: check.URL, FailureThreshold: 1}},
			{Name: "prod", Gateways: []string{"gw-*"}, RequireApproval: true},
		}}
	})
	const account = "argocd-server"
	p.Allow(account, "stoker-setter")
	clients, err := kube.Connect(p.Kubeconfig(account, ""), account)
	require.NoError(t, err)
	argo := &server{p, t, clients.Dynamic.Resource(kube.GatewaySync.Resource()).Namespace(p.Namespace)}
	canary, other := p.Gateways()[0], p.Gateways()[1]
	p.Start()
	p.Converges("first", p.First)
	argo.shows("Healthy", "")

	answer.Store(http.StatusServiceUnavailable)
	second := p.Push("second")
	argo.shows("Degraded", "CanaryStageFailed: stage dev: the health check failed 1 times")
	p.Eventually("the canary runs the first commit again", func() bool { return canary.Title() == "first" })
	assert.False(t, argo.offered("approve"))

	answer.Store(http.StatusOK)
	require.NoError(t, argo.click("retry"))
	argo.shows("Suspended", "prod@"+second)
	assert.Equal(t, "second", canary.Title())
	assert.Equal(t, "first", other.Title())

	err = argo.click("approve")
	require.True(t, apierrors.IsForbidden(err), "%v", err)
	require.ErrorContains(t, err, "may not approve")
	p.Allow(account, "stoker-approver")
	p.WaitAllowed(account, authorizationv1.ResourceAttributes{Namespace: p.Namespace, Group: "stoker.io", Resource: "gatewaysyncs", Verb: "approve"})
	require.NoError(t, argo.click("approve"))
	p.Converges("second", second)
	argo.shows("Healthy", "")
	assert.Equal(t, "prod@"+second, p.GatewaySync().Annotations[v1alpha1.AnnotationApproved])
}
