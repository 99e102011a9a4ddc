package fleet

import (
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/request"
	"stoker.io/stoker/test/cluster/kubetest"
	"stoker.io/stoker/test/document"
	"stoker.io/stoker/test/fleet/plant"
	"stoker.io/stoker/test/fleet/receivertest"
	"stoker.io/stoker/test/gitserver"
	"stoker.io/stoker/test/program"
)

// kubectl returns the path of kubectl.
func kubectl(t *testing.T) string {
	t.Helper()
	program, _ := kubetest.Kubectl(t)
	return program
}

// terminal returns the shell of a user who may only request refs, in the namespace of a plant.
func terminal(t *testing.T, p *plant.Plant, dir string) *document.Shell {
	t.Helper()
	p.Allow("setter", "stoker-setter")
	return document.NewShell(t, dir, map[string]string{"stoker": program.Build(t, "hooks")}, "KUBECONFIG="+p.Kubeconfig("setter", ""))
}

// office returns the shell of a user with all rights. It has its own kubeconfig, because kubectl writes to
// it.
func office(t *testing.T, cluster *kubetest.Cluster, programs map[string]string) *document.Shell {
	t.Helper()
	programs["kubectl"] = kubectl(t)
	config, err := os.ReadFile(cluster.Kubeconfig())
	require.NoError(t, err)
	own := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, os.WriteFile(own, config, 0o600))
	return document.NewShell(t, document.Root(t), programs, "KUBECONFIG="+own)
}

// The documented commands work with running agents.
func TestDocumentedCommands(t *testing.T) {
	t.Parallel()
	lines := document.Open(t)
	cluster := kubetest.Control(t, kubetest.Private())
	t.Run("by the examples", func(t *testing.T) {
		t.Parallel()
		admin := office(t, cluster, map[string]string{"stoker": program.Build(t, "hooks")})
		for _, folder := range []string{"single", "services", "areas", "frontends", "stages", "pull-requests"} { // the last one changes "services"
			for c := range lines.Of("examples/" + folder + "/README.md") {
				admin.Type(t, c.Text)
			}
		}
		said, _ := admin.Try(t, "stoker check --namespace works") // the chart is not installed here
		assert.Contains(t, said, "works: ")
		assert.NotContains(t, said, "works: spec.", "a warning about the spec")
	})
	t.Run("by the README", func(t *testing.T) {
		t.Parallel()
		p := plant.NewAt(t, cluster, "line", "line", 1)
		p.Start()
		p.Tag("v1.3.0", p.First)
		second := p.Push("second")
		p.Converges("second", second)
		seen := p.Watch()
		person := terminal(t, p, t.TempDir())
		for _, page := range []string{"docs/how-to/troubleshooting.md", "README.md"} {
			for c := range lines.Of(page) {
				person.Type(t, c.Text)
			}
		}
		p.Converges("second", second)
		ran := slices.ContainsFunc(seen(), func(gs v1alpha1.GatewaySync) bool { return gs.Status.LastGood.Commit == p.First })
		assert.True(t, ran, "v1.3.0 must run in between")

		p.Commit("broken", gitserver.Files(map[string]string{"projects/line/project.json": `{"title": `}))
		person.Type(t, "stoker sync line")
		p.Eventually("the commit failed", func() bool {
			outcome := p.Status().Outcome
			return outcome != nil && outcome.Reason == v1alpha1.ReasonConfigSyntaxError
		})
		for c := range lines.Of("docs/how-to/rollback.md") {
			person.Type(t, c.Text)
		}
	})
	t.Run("by the references", func(t *testing.T) {
		t.Parallel()
		w := newWorkplace(t, cluster)
		for c := range lines.Of("docs/reference/cli.md") {
			w.types(c)
		}
		for c := range lines.Of("docs/how-to/pull-requests.md") {
			w.person.Type(t, c.Text)
		}
		for c := range lines.Of("docs/how-to/kargo.md") {
			command := strings.Replace(c.Text, " line-dev ", " line ", 1)
			assert.Contains(t, w.person.Type(t, command), "there is nothing to withdraw")
		}
		for c := range lines.Of("docs/how-to/kargo-argocd.md") {
			assert.Contains(t, w.person.Type(t, c.Text), "all 2 gateways run")
		}
		w.admin.Type(t, "kubectl config set-context --current --namespace plant")
		for c := range lines.Of("docs/reference/status.md") {
			assert.Contains(t, w.admin.Type(t, c.Text), "line", c.Text)
		}
		w.receives(lines)
	})
}

// workplace is a plant whose GatewaySync has two profiles and credentials, with the shells of a user and
// an administrator. The user works in a clone of the repository.
type workplace struct {
	*plant.Plant
	t             *testing.T
	person, admin *document.Shell
	release, head string // commits: the one with the tag v2.4.0, and the last good one of main
}

// settersRights are the rights that the examples need in addition to stoker-setter: reading Applications,
// and GatewaySyncs in all namespaces.
const settersRights = `{apiVersion: v1, kind: Namespace, metadata: {name: argocd}}
---
{apiVersion: rbac.authorization.k8s.io/v1, kind: Role, metadata: {name: applications}, rules: [{apiGroups: [argoproj.io], resources: [applications], verbs: [get]}]}
---
{apiVersion: rbac.authorization.k8s.io/v1, kind: RoleBinding, metadata: {name: applications},
  roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: applications}, subjects: [{kind: ServiceAccount, namespace: plant, name: setter}]}
---
{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: setter},
  roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: stoker-view}, subjects: [{kind: ServiceAccount, namespace: plant, name: setter}]}
`

func newWorkplace(t *testing.T, cluster *kubetest.Cluster) *workplace {
	t.Helper()
	w := &workplace{t: t}
	w.Plant = plant.NewAt(t, cluster, "plant", "line", 2, func(gs *v1alpha1.GatewaySync) {
		gs.Spec.Git.Auth = &v1alpha1.Credential{Token: &v1alpha1.TokenAuth{SecretRef: v1alpha1.SecretKeyRef{Name: "git-credentials", Key: "token"}}}
		receivertest.SetSecret(gs)
		gs.Spec.Bidirectional = &v1alpha1.BidirectionalSpec{Enabled: true, Provider: "none"}
		area := gs.Spec.Sync.Profiles["default"]
		area.Mappings = append(slices.Clone(area.Mappings), v1alpha1.Mapping{Source: "config", Destination: "config"})
		gs.Spec.Sync.Profiles["area"] = area
	})
	w.Start()
	w.Converges("first", w.First)
	properties := filepath.Join("..", "..", "examples", "areas", "repository", "area", filepath.Dir(systemProperties))
	files := map[string]string{}
	for _, name := range []string{"config.json", "resource.json"} {
		content, err := os.ReadFile(filepath.Join(properties, name))
		require.NoError(t, err)
		files[filepath.Dir(systemProperties)+"/"+name] = string(content)
	}
	w.Commit("an area", gitserver.Files(files))
	w.release = w.Push("release")
	w.Tag("v2.4.0", w.release)
	w.Ask()
	w.Converges("release", w.release)
	w.head = w.Push("head")
	w.Ask()
	w.Converges("head", w.head)

	clone := filepath.Join(t.TempDir(), "plant")
	git := exec.CommandContext(t.Context(), "git", "clone", "--quiet", w.Git.URL("site.git"), clone)
	git.Env = gitserver.Env()
	said, err := git.CombinedOutput()
	require.NoError(t, err, "%s", said)
	gs := w.GatewaySync()
	manifest, err := yaml.Marshal(&v1alpha1.GatewaySync{TypeMeta: gs.TypeMeta, ObjectMeta: metav1.ObjectMeta{Name: gs.Name}, Spec: gs.Spec})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(clone, "gatewaysync.yaml"), manifest, 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(clone, "token.txt"), []byte("a secret of this test\n"), 0o600))

	w.admin = office(t, cluster, map[string]string{})
	cluster.Apply(t, filepath.Join("..", "..", "hooks", "testdata", "applications.yaml"))
	cluster.ApplyYAML(t, "argocd", settersRights)
	w.person = terminal(t, w.Plant, clone)
	w.WaitAllowed("setter", authorizationv1.ResourceAttributes{Namespace: "argocd", Group: "argoproj.io", Resource: "applications", Verb: "get"})
	w.WaitAllowed("setter", authorizationv1.ResourceAttributes{Group: "stoker.io", Resource: "gatewaysyncs", Verb: "list"})
	w.person.Set("REVISION", w.release)
	w.person.Set("POD_NAMESPACE", "plant")
	w.person.Set("JOB_UID", "0b7a4f52-0d1c-4d5e-9d0e-1c1f0f7a9a10")
	w.job("stoker-rollback-1")
	w.person.Set("PROMOTION", "line.01kbcz4x8r5c7q2w9e6t3y1u0a.3abea81") // of the examples in the reference
	return w
}

// Ask requests a poll of git, so that the test does not wait for the next one.
func (w *workplace) Ask() {
	w.t.Helper()
	_, err := request.NewSetter(w.Kube.Dynamic, nil).Ask(w.t.Context(), w.Namespace, w.Name, request.Request{By: "cli"})
	require.NoError(w.t, err)
}

// job sets the Job that the user's shell stands in for.
func (w *workplace) job(name string) { w.person.Set("JOB_NAME", name) }

// syncing simulates an Application that Argo CD is syncing to the release while the Job runs.
func (w *workplace) syncing(job string) {
	w.t.Helper()
	w.job(job)
	w.Cluster.ApplyYAML(w.t, "argocd", `{apiVersion: argoproj.io/v1alpha1, kind: Application, metadata: {name: line},
  spec: {source: {repoURL: "`+w.Git.URL("site.git")+`", path: .}},
  status: {operationState: {phase: Running, startedAt: "`+time.Now().UTC().Format(time.RFC3339)+`", syncResult: {revision: `+w.release+`, resources: [
    {group: batch, version: v1, kind: Job, namespace: plant, name: `+job+`, hookPhase: Running, hookType: Sync}]}}}}`)
}

// types runs an example of the reference in the state that it is meant for, and checks its output.
func (w *workplace) types(c document.Command) {
	t := w.t
	t.Helper()
	if c.Heading == "Completion" {
		file := filepath.Join(w.person.Dir, "kubectl_complete-stoker")
		program.Script(t, file, "#!/bin/sh\n"+c.Text+"\n")
		assert.Contains(t, w.person.Type(t, "./kubectl_complete-stoker status l"), "line\tmain 2/2\n")
		return
	}
	if to, ok := strings.CutPrefix(c.Text, "stoker rollback line --to "); ok {
		require.True(t, strings.HasPrefix(w.First, to), "write %.7s into the examples: the first commit here is %s", w.First, w.First)
	}
	switch c.Heading + ": " + c.Text {
	case "stoker rollback: stoker rollback line --wait": // the reason to roll back
		w.Commit("broken", gitserver.Files(map[string]string{"projects/line/project.json": `{"title": `}))
		w.person.Type(t, "stoker set-ref line main")
		w.Eventually("the gateways report the failure", func() bool {
			return w.Status().Target != nil && strings.Contains(w.GatewayMessages(), "ConfigSyntaxError")
		})
	case `stoker rollback: stoker rollback line --if-needed --by argocd --id "$JOB_NAME"`:
		w.person.Type(t, "stoker set-ref line main")
	case "stoker set-ref: stoker set-ref line v2.4.0 --wait":
		w.head = w.Push("fixed")
	case `stoker set-ref: stoker set-ref line "$REVISION" --by argocd --id "$JOB_NAME"`:
		w.job("stoker-set-ref-1")
	case "stoker set-ref: stoker set-ref line --application argocd/line":
		w.syncing("stoker-set-ref-2")
	case "stoker wait: stoker wait line --ref v2.4.0 --timeout 5m":
		w.person.Type(t, "stoker set-ref line v2.4.0")
	case "stoker wait: stoker wait line --application argocd/line":
		w.syncing("stoker-set-ref-3")
		w.person.Type(t, "stoker set-ref line --application argocd/line")
	}
	if strings.Contains(c.Text, "--confirm-deletion") {
		w.Allow("setter", "stoker-edit") // setters may not approve deletions
		w.WaitAllowed("setter", authorizationv1.ResourceAttributes{Namespace: w.Namespace, Group: "stoker.io", Resource: "gatewaysyncs", Verb: "update"})
	}
	said := w.person.Type(t, c.Text)
	for _, want := range map[string][]string{
		"stoker get":              {"line", "2/2"},
		"stoker get -A":           {"plant"},
		"stoker get line -o yaml": {"kind: GatewaySync"},
		"stoker history line":     {w.First[:7], w.release[:7], w.head[:7]},
	}[c.Text] {
		assert.Contains(t, said, want, c.Text)
	}
}

// GatewayMessages returns the reasons and messages of the gateways in the status.
func (w *workplace) GatewayMessages() string {
	var b strings.Builder
	for _, g := range w.Status().DiscoveredGateways {
		b.WriteString(string(g.Reason) + " " + g.Message + "\n")
	}
	return b.String()
}

// receives runs the commands of the page on webhooks. Names in the cluster's DNS cannot be resolved here,
// so curl gets their addresses.
func (w *workplace) receives(lines *document.Commands) {
	t := w.t
	t.Helper()
	const page = "docs/how-to/webhooks.md"
	curl, err := exec.LookPath("curl")
	if err != nil {
		for c := range lines.Of(page) {
			t.Logf("no curl on this machine: %s", c.Text)
		}
		return
	}
	w.admin.Type(t, "kubectl create namespace stoker-system")
	w.admin.Type(t, "kubectl --namespace stoker-system create serviceaccount stoker-receiver")
	w.admin.Type(t, "kubectl --namespace plant create rolebinding receiver --clusterrole=stoker-setter --serviceaccount=stoker-system:stoker-receiver")
	for c := range lines.Of(page, "In three steps") {
		w.admin.Type(t, c.Text)
	}
	for _, right := range []authorizationv1.ResourceAttributes{
		{Namespace: "plant", Group: "stoker.io", Resource: "gatewaysyncs", Verb: "patch"}, {Namespace: "plant", Resource: "secrets", Name: "stoker-webhook", Verb: "get"},
	} {
		w.Cluster.WaitAllowed(t, "stoker-system", "stoker-receiver", right)
	}
	receiver := receivertest.StartAs(t, w.Plant, w.Cluster.As(t, "stoker-system", "stoker-receiver", ""))
	at, err := url.Parse(receiver.URL)
	require.NoError(t, err)
	wrapped := filepath.Join(t.TempDir(), "curl")
	program.Script(t, wrapped, "#!/bin/sh\nexec "+curl+" --silent --show-error --fail-with-body --connect-to stoker-receiver.stoker-system.svc:9444:"+at.Host+` "$@"`+"\n")
	w.admin.Set("PATH", filepath.Dir(wrapped)+":"+os.Getenv("PATH"))
	for c := range lines.Of(page, "Request a ref", "Withdraw a request") {
		said := w.admin.Type(t, c.Text)
		if strings.Contains(c.Text, "DELETE") {
			assert.Contains(t, said, `"kept"`, "the gateways run it already")
		}
		if strings.Contains(c.Text, "/status/") {
			w.Eventually("the request succeeds", func() bool {
				said = w.admin.Type(t, c.Text)
				return strings.Contains(said, `"Succeeded"`)
			})
			assert.Contains(t, said, "all 2 gateways run v2.4.0")
		}
	}
}
