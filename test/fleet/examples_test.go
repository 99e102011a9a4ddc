package fleet

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/internal/request"
	"stoker.io/stoker/test/document"
	"stoker.io/stoker/test/fleet/plant"
	"stoker.io/stoker/test/gitserver"
	"stoker.io/stoker/test/program"
)

// example is a folder of examples/, installed as its README describes.
type example struct {
	*plant.Plant
	t         *testing.T
	folder    string
	templates map[string]*appsv1.StatefulSet
	before    map[*plant.Gateway]map[string]string // files of a gateway before its agent started
	lines     *document.Commands
}

// install creates the objects in the manifests of a folder, and a pod for each replica. The pods have the
// names and labels that the StatefulSet controller sets. Only the addresses in the GatewaySync differ from
// the manifests.
func install(t *testing.T, name string, lines *document.Commands) *example {
	t.Helper()
	e := &example{t: t, lines: lines, folder: filepath.Join("..", "..", "examples", name), templates: map[string]*appsv1.StatefulSet{}, before: map[*plant.Gateway]map[string]string{}}
	var gs *v1alpha1.GatewaySync
	var rest bytes.Buffer
	for _, document := range bytes.Split(e.manifests(), []byte("---\n")) {
		if len(bytes.TrimSpace(document)) == 0 {
			continue
		}
		var kind metav1.TypeMeta
		require.NoError(t, yaml.Unmarshal(document, &kind))
		if kind.Kind == "GatewaySync" {
			gs = &v1alpha1.GatewaySync{}
			require.NoError(t, yaml.UnmarshalStrict(document, gs))
			continue
		}
		if kind.Kind == "StatefulSet" {
			set := &appsv1.StatefulSet{}
			require.NoError(t, yaml.UnmarshalStrict(document, set))
			e.templates[set.Name] = set
		}
		rest.WriteString("---\n")
		rest.Write(document)
	}
	require.NotNil(t, gs)
	e.Plant = plant.FromFolder(t, gs, filepath.Join(e.folder, "repository"))
	e.Cluster.ApplyYAML(t, e.Namespace, rest.String())
	for _, name := range slices.Sorted(maps.Keys(e.templates)) {
		for i := range int(*e.templates[name].Spec.Replicas) {
			e.replica(name, i)
		}
	}
	return e
}

// manifests returns what kubectl applies: the folder's kustomization, or its files.
func (e *example) manifests() []byte {
	e.t.Helper()
	if _, err := os.Stat(filepath.Join(e.folder, "kustomization.yaml")); err == nil {
		made, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), e.folder)
		require.NoError(e.t, err)
		all, err := made.AsYaml()
		require.NoError(e.t, err)
		return all
	}
	files, err := filepath.Glob(filepath.Join(e.folder, "*.yaml"))
	require.NoError(e.t, err)
	var all bytes.Buffer
	for _, file := range files {
		content, err := os.ReadFile(file)
		require.NoError(e.t, err)
		all.WriteString("---\n")
		all.Write(content)
	}
	return all.Bytes()
}

// replica creates a pod of a StatefulSet.
func (e *example) replica(set string, index int) *plant.Gateway {
	e.t.Helper()
	s := e.templates[set]
	pod := &corev1.Pod{ObjectMeta: *s.Spec.Template.ObjectMeta.DeepCopy(), Spec: *s.Spec.Template.Spec.DeepCopy()}
	pod.Name = set + "-" + strconv.Itoa(index)
	pod.Labels["apps.kubernetes.io/pod-index"] = strconv.Itoa(index)
	pod.Labels["statefulset.kubernetes.io/pod-name"] = pod.Name
	for _, claim := range s.Spec.VolumeClaimTemplates {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: claim.Name, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim.Name + "-" + pod.Name}}})
	}
	g := e.Add(pod)
	e.before[g] = e.files(g)
	return g
}

// files returns the projects and configuration of a gateway by path, without the files that the gateway
// manages itself.
func (e *example) files(g *plant.Gateway) map[string]string {
	e.t.Helper()
	all := map[string]string{}
	for _, top := range []string{"projects", "config"} {
		err := filepath.WalkDir(g.Path(top), func(path string, d os.DirEntry, err error) error {
			switch {
			case errors.Is(err, fs.ErrNotExist):
				return nil
			case err != nil:
				return err
			case d.IsDir() && (d.Name() == ".resources" || d.Name() == "local"):
				return filepath.SkipDir
			case d.IsDir():
				return nil
			}
			content, err := os.ReadFile(path)
			in, _ := filepath.Rel(g.Path("."), path)
			all[filepath.ToSlash(in)] = string(content)
			return err
		})
		require.NoError(e.t, err)
	}
	return all
}

// folders maps folders of the repository to folders on a gateway. values maps a file to a text in it and
// its replacement.
type (
	folders map[string]string
	values  map[string][2]string
)

// has asserts that a gateway has the files of some folders, with some values replaced, and otherwise only those that it had
// before its agent started.
func (e *example) has(g *plant.Gateway, from folders, set values) {
	e.t.Helper()
	want := map[string]string{}
	for source, destination := range from {
		require.NoError(e.t, filepath.WalkDir(filepath.Join(e.folder, "repository", source), func(path string, d os.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			content, err := os.ReadFile(path)
			in, _ := filepath.Rel(filepath.Join(e.folder, "repository", source), path)
			want[destination+"/"+filepath.ToSlash(in)] = string(content)
			return err
		}))
	}
	signed := map[string]bool{} // resources with a rendered file, which need a new signature
	for file, v := range set {
		signed[filepath.Dir(file)+"/resource.json"] = v[0] != v[1]
		require.Contains(e.t, want, file)
		require.Equal(e.t, 1, strings.Count(want[file], v[0]))
		want[file] = strings.Replace(want[file], v[0], v[1], 1)
	}
	got := e.files(g)
	for path, content := range want {
		if signed[path] {
			assert.NotEqual(e.t, signature(e.t, content), signature(e.t, got[path]), "%s: %s must be signed again", g.Identity, path)
		} else {
			assert.Equal(e.t, content, got[path], "%s: %s", g.Identity, path)
		}
		delete(got, path)
		delete(e.before[g], path)
	}
	assert.Equal(e.t, e.before[g], got, "%s: no other file may change", g.Identity)
	assert.Empty(e.t, g.Simulator.Data.LoadErrors())
}

func signature(t *testing.T, resource string) string {
	t.Helper()
	var r struct {
		Attributes struct{ LastModificationSignature string }
	}
	require.NoError(t, json.Unmarshal([]byte(resource), &r))
	require.NotEmpty(t, r.Attributes.LastModificationSignature)
	return r.Attributes.LastModificationSignature
}

// run starts the agents, waits until all gateways run a commit, and types the commands of the example's README.
func (e *example) run(commit string) {
	e.t.Helper()
	e.Start()
	e.Eventually("all gateways run the commit", func() bool { return e.Ready(commit) })
	assert.Len(e.t, e.Status().DiscoveredGateways, len(e.Gateways()))
	// The commands use a namespace named after the GatewaySync.
	person := terminal(e.t, e.Plant, e.t.TempDir())
	for c := range e.lines.Of("examples/" + filepath.Base(e.folder) + "/README.md") {
		require.Contains(e.t, c.Text, " --namespace "+e.Name)
		person.Type(e.t, strings.Replace(c.Text, " --namespace "+e.Name, " --namespace "+e.Namespace, 1))
	}
}

// names returns the gateways by their names, which may differ from those of their pods.
func (e *example) names() map[string]*plant.Gateway {
	by := map[string]*plant.Gateway{}
	for _, g := range e.Gateways() {
		by[g.Identity] = g
	}
	return by
}

func TestExampleSingleGateway(t *testing.T) {
	t.Parallel()
	e := install(t, "single", document.Open(t))
	e.run(e.First)
	require.Len(t, e.Gateways(), 1)
	e.has(e.names()["press"], folders{"projects": "projects", "config": "config"}, nil)
}

// Without profiles, each gateway gets the folder that its pod names. Files that are not in this folder are
// not mapped.
func TestExampleServices(t *testing.T) {
	t.Parallel()
	e := install(t, "services", document.Open(t))
	e.run(e.First)
	gateways := e.names()
	require.Len(t, gateways, 2)
	e.has(gateways["bottling"], folders{"services/bottling/projects": "projects", "services/bottling/config": "config", "services/bottling/udts": udts}, nil)
	e.has(gateways["glass"], folders{"services/glass/projects": "projects", "services/glass/config": "config"}, nil)

	was := e.files(gateways["bottling"])
	second := e.Commit("types of glass", gitserver.Write("services/glass/udts/Ovens/udts.json", "[]\n"))
	_, err := request.NewSetter(e.Kube.Dynamic, nil).Ask(t.Context(), e.Namespace, e.Name, request.Request{By: "cli"}) // without waiting for a poll
	require.NoError(t, err)
	e.run(second)
	assert.Equal(t, "[]\n", e.files(gateways["glass"])[udts+"/Ovens/udts.json"])
	assert.Equal(t, was, e.files(gateways["bottling"]), "a commit in one folder must change one gateway")
}

// udts is the folder of a gateway for the types of tags.
const udts = "config/resources/core/ignition/tag-type-definition/default"

func quoted(name string) string { return `"` + name + `"` }

const systemProperties = "config/resources/core/ignition/system-properties/config.json"

// Five gateways share one repository and two profiles. Each gets the files of its profile and of the
// folder with its name.
func TestExampleSiteAndAreas(t *testing.T) {
	t.Parallel()
	e := install(t, "areas", document.Open(t))
	e.run(e.First)
	gateways := e.names()
	require.Len(t, gateways, 5)
	e.has(gateways["site"], folders{"shared/projects": "projects", "site/projects": "projects", "site/config": "config"}, nil)
	for _, area := range []string{"mixing", "filling", "packing", "utilities"} {
		t.Run(area, func(t *testing.T) {
			require.Contains(t, gateways, area)
			e.has(gateways[area], folders{"shared/projects": "projects", "area/projects": "projects", "area/config": "config", "areas/" + area + "/config": "config"},
				values{systemProperties: {`"area"`, quoted(area)},
					"projects/operate/com.inductiveautomation.perspective/views/Area/view.json": {`"an area"`, quoted(area)}})
		})
	}

	tags := "config/resources/core/ignition/tag-definition/default/Area/tags.json"
	was := map[string]map[string]string{}
	for name, g := range gateways {
		was[name] = e.files(g)
	}
	second := e.Commit("more nozzles", gitserver.Write("areas/filling/"+tags, "[]\n"))
	_, err := request.NewSetter(e.Kube.Dynamic, nil).Ask(t.Context(), e.Namespace, e.Name, request.Request{By: "cli"}) // without waiting for a poll
	require.NoError(t, err)
	e.run(second)
	was["filling"][tags] = "[]\n"
	for name, g := range gateways {
		assert.Equal(t, was[name], e.files(g), "%s: a commit of one area must change one gateway", name)
	}
}

// A commit reaches dev, then test, then prod after an approval. Outside its window prod waits, until a user lets the commit through. Only the
// waits, the address of the health check, the window and the polling interval differ from the manifests.
func TestExampleStages(t *testing.T) {
	t.Parallel()
	e := install(t, "stages", document.Open(t))
	health := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) }))
	t.Cleanup(health.Close)
	e.edit(func(gs *v1alpha1.GatewaySync) {
		d := gs.Spec.Deployment
		d.Stages[0].PostSyncWait, d.Stages[1].PostSyncWait, d.Stages[0].HealthCheck.URL = "1s", "1s", health.URL+"/StatusPing"
		d.Windows[0].Schedule = fmt.Sprintf("0 %d * * *", time.Now().UTC().Add(12*time.Hour).Hour())
		d.Windows[0].Duration, d.Windows[0].TimeZone, gs.Spec.Polling.Interval = "1h", "UTC", "5s"
	})
	e.Start()
	e.Eventually("the first commit skips the stages", func() bool { return e.Ready(e.First) })
	require.Len(t, e.Gateways(), 4)
	e.Allow("approver", "stoker-approver")
	person := document.NewShell(t, t.TempDir(), map[string]string{"stoker": program.Build(t, "hooks")}, "KUBECONFIG="+e.Kubeconfig("approver", ""))

	const script = "projects/pumps/ignition/script-python/cycle/code.py"
	having := func() string {
		var names []string
		for name, g := range e.names() {
			if e.files(g)[script] == "# second\n" {
				names = append(names, name)
			}
		}
		slices.Sort(names)
		return strings.Join(names, " ")
	}
	second := ""
	for c := range e.lines.Of("examples/stages/README.md") {
		switch command := strings.Replace(c.Text, " --namespace pumps", "", 1); command {
		case "stoker status pumps":
			second = e.Commit("second", gitserver.Write(script, "# second\n"))
			e.Eventually("prod waits for approval", func() bool {
				r := e.Status().Rollout
				return r != nil && r.Commit == second && r.Phase == v1alpha1.RolloutWaiting && r.Stage == "prod"
			})
			assert.Equal(t, "dev-gateway test-gateway", having())
		case "stoker approve pumps --window":
			e.Eventually("prod waits for its window", func() bool {
				rows := e.Status().DiscoveredGateways
				return !slices.ContainsFunc(rows, func(g v1alpha1.DiscoveredGateway) bool {
					return strings.HasPrefix(g.Name, "prod-") && g.Reason != v1alpha1.ReasonMaintenanceWindow
				})
			})
			assert.Equal(t, "dev-gateway test-gateway", having())
		}
		person.Type(t, strings.Replace(c.Text, " --namespace pumps", " --namespace "+e.Namespace, 1))
	}
	assert.True(t, e.Ready(second))
	assert.Equal(t, "dev-gateway prod-gateway prod-gateway-1 test-gateway", having())
}

// edit changes the GatewaySync.
func (e *example) edit(change func(*v1alpha1.GatewaySync)) {
	e.t.Helper()
	gs := e.GatewaySync()
	change(gs)
	_, err := kube.GatewaySyncs(e.Kube.Dynamic, e.Namespace).Update(e.t.Context(), gs, metav1.UpdateOptions{})
	require.NoError(e.t, err)
}

// Replicas of one template have their own names. A later replica gets the commit that the others run. The backend gets
// only its own folder.
func TestExampleReplicatedFrontends(t *testing.T) {
	t.Parallel()
	e := install(t, "frontends", document.Open(t))
	e.run(e.First)
	require.Len(t, e.Gateways(), 4)
	e.replica("frontends", 3)
	e.Start()
	e.Eventually("a fifth gateway joins", func() bool { return e.Ready(e.First) && e.Status().GatewaysReady == "5/5" })
	gateways := e.names()
	for _, name := range []string{"frontends", "frontends-1", "frontends-2", "frontends-3"} {
		t.Run(name, func(t *testing.T) {
			require.Contains(t, gateways, name)
			e.has(gateways[name], folders{"projects": "projects", "config": "config"},
				values{systemProperties: {`"frontends"`, quoted(name)},
					"projects/operators/com.inductiveautomation.perspective/views/Served/view.json": {`"a frontend"`, quoted(name)}})
		})
	}
	e.has(gateways["backend"], folders{"backend/config": "config"}, nil)
	var pods []string
	for _, row := range e.Status().DiscoveredGateways {
		pods = append(pods, row.Name+" is "+row.PodName)
	}
	assert.Equal(t, "backend is backend-0, frontends is frontends-0, frontends-1 is frontends-1, frontends-2 is frontends-2, frontends-3 is frontends-3", strings.Join(pods, ", "))
}

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

// environment returns the name of the ConfigMap from which the StatefulSet takes its environment. It checks that there is only one, and that
// it has these hours.
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
