package fleet

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/request"
	"stoker.io/stoker/test/document"
	"stoker.io/stoker/test/fleet/plant"
	"stoker.io/stoker/test/gitserver"
	"stoker.io/stoker/test/program"
)

// The environment of a gateway and the scripts that need it are of one commit, when the gateway goes forward and when it goes back.
func TestExamplePaired(t *testing.T) {
	t.Parallel()
	e := &example{t: t, folder: filepath.Join("..", "..", "examples", "config", "paired"), templates: map[string]*appsv1.StatefulSet{}, before: map[*plant.Gateway]map[string]string{}}
	text, err := os.ReadFile(filepath.Join(e.folder, "gatewaysync.yaml"))
	require.NoError(t, err)
	gs := &v1alpha1.GatewaySync{}
	require.NoError(t, yaml.UnmarshalStrict(text, gs))
	e.Plant = plant.FromFolder(t, gs, filepath.Join(e.folder, "repository"))
	e.Cluster.ApplyYAML(t, e.Namespace, "{apiVersion: v1, kind: Secret, metadata: {name: git-credentials}, stringData: {token: a secret of this test}}")
	for _, file := range []string{"account.yaml", "configsync.yaml"} {
		text, err := os.ReadFile(filepath.Join(e.folder, file))
		require.NoError(t, err)
		// No kubelet runs the pods here, so the StatefulSet does not become healthy.
		e.Cluster.ApplyYAML(t, e.Namespace, strings.Replace(string(text), "      path: kubernetes\n", "      path: kubernetes\n  apply: {wait: false}\n", 1))
	}
	e.WaitAllowed("stoker-config", authorizationv1.ResourceAttributes{Namespace: e.Namespace, Group: "apps", Resource: "statefulsets", Verb: "patch"})
	job := document.NewShell(t, t.TempDir(), map[string]string{"stoker": program.Build(t, "hooks"), "kubectl": kubectl(t)}, "KUBECONFIG="+e.Kubeconfig("stoker-config", ""))

	said, code := job.Try(t, "stoker config apply line")
	assert.NotZero(t, code, "without gateways, there is no commit to apply")
	assert.Contains(t, said, "has no commit")
	job.Type(t, "stoker config render line --ref main -o yaml --show-secrets | kubectl apply -f -")
	first := e.environment("8")
	g := e.replica("line", 0)
	e.Start()
	e.Eventually("the gateway runs the first commit", func() bool { return e.Ready(e.First) })
	assert.Contains(t, job.Type(t, "stoker config apply line"), "3 to configure", "equal objects must be adopted")
	assert.Contains(t, job.Type(t, "stoker config apply line"), "3 unchanged")

	script := "projects/line/ignition/script-python/shift/code.py"
	second := e.Commit("longer shifts", gitserver.Write("kubernetes/line.env", "SHIFT_HOURS=12\nTZ=Europe/Berlin\n"), gitserver.Write(script, "# twelve hours\n"))
	setter := request.NewSetter(e.Kube.Dynamic, nil)
	_, err = setter.Ask(t.Context(), e.Namespace, e.Name, request.Request{By: "cli"}) // without waiting for a poll
	require.NoError(t, err)
	e.Eventually("the gateway runs the second commit", func() bool { return e.Ready(second) })
	e.Commit("not yet on gateways", gitserver.Write("README.md", "x\n"), gitserver.Write("kubernetes/line.env", "SHIFT_HOURS=99\n"))
	job.Type(t, "stoker config apply line")
	assert.NotEqual(t, first, e.environment("12"), "the pods must be recreated")
	assert.Equal(t, "# twelve hours\n", e.files(g)[script])

	_, err = setter.Ask(t.Context(), e.Namespace, e.Name, request.Request{By: "cli", Ref: e.First})
	require.NoError(t, err)
	e.Eventually("the gateway runs again", func() bool { return e.Ready(e.First) })
	job.Type(t, "stoker config apply line")
	assert.Equal(t, first, e.environment("8"))
	assert.Contains(t, e.files(g)[script], "SHIFT_HOURS")
	assert.Empty(t, g.Simulator.Data.LoadErrors())
}

// environment returns the name of the ConfigMap that the StatefulSet takes its environment from, which is the only one, and has these hours.
func (e *example) environment(hours string) string {
	e.t.Helper()
	set, err := e.Kube.Core.AppsV1().StatefulSets(e.Namespace).Get(e.t.Context(), "line", metav1.GetOptions{})
	require.NoError(e.t, err)
	e.templates["line"] = set
	name := set.Spec.Template.Spec.Containers[0].EnvFrom[0].ConfigMapRef.Name
	list, err := e.Kube.Core.CoreV1().ConfigMaps(e.Namespace).List(e.t.Context(), metav1.ListOptions{})
	require.NoError(e.t, err)
	found := map[string]string{}
	for _, m := range list.Items {
		if strings.HasPrefix(m.Name, "line-env-") {
			found[m.Name] = m.Data["SHIFT_HOURS"]
		}
	}
	assert.Equal(e.t, []string{name}, slices.Collect(maps.Keys(found)))
	assert.Equal(e.t, hours, found[name])
	return name
}
