// Package fleet runs whole fleets: the real agent binary, one process for each gateway, against a real API server, a real
// git server and simulated gateways. Agents have the rights that the chart gives them.
package fleet

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/test/cluster/kubetest"
	"stoker.io/stoker/test/gateway/simulator"
	"stoker.io/stoker/test/gitserver"
)

// liveness bounds every wait: ten times what a loaded machine needs.
const liveness = 90 * time.Second

var agentBinary string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "stoker-fleet")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer func() { _ = os.RemoveAll(dir) }()
		agentBinary = filepath.Join(dir, "agent")
		if out, err := exec.Command("go", "build", "-o", agentBinary, "stoker.io/stoker/agent").CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "build the agent: %v\n%s", err, out)
			return 1
		}
		if err := flag.Set("test.parallel", "4"); err != nil { // these tests wait
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return kubetest.M{M: m}.Run()
	}())
}

// plant is a GatewaySync with its repository and its gateways.
type plant struct {
	*gitserver.Repo
	t       *testing.T
	cluster *kubetest.Cluster
	ns      string
	kube    kube.Clients
	git     *gitserver.Server
	mu      sync.Mutex // guards gw while agents run
	gw      []*gateway
	first   string
}

// gateway is a pod: a simulated gateway and the process of an agent.
type gateway struct {
	p    *plant
	name string
	uid  types.UID
	dir  string
	gw   *simulator.Gateway
	cmd  *exec.Cmd
	log  *lines
	done chan struct{}
}

func newPlant(t *testing.T, n int) *plant {
	t.Helper()
	return newPlantIn(t, kubetest.Control(t), n)
}

func newPlantIn(t *testing.T, cluster *kubetest.Cluster, n int) *plant {
	t.Helper()
	p := &plant{t: t, cluster: cluster, ns: cluster.Namespace(t)}
	var err error
	p.kube, err = kube.ConnectTo(cluster.RESTConfig(), "test")
	require.NoError(t, err)
	p.bind()
	root := t.TempDir()
	p.Repo = gitserver.NewRepo(t, filepath.Join(root, "site.git"))
	p.git, err = gitserver.Start(root, gitserver.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { _ = p.git.Close() })
	p.first = p.commit("first")

	gs := &v1alpha1.GatewaySync{ObjectMeta: metav1.ObjectMeta{Name: "site", Namespace: p.ns}}
	gs.Spec.Git.Repo, gs.Spec.Git.Ref = p.git.URL("site.git"), "main"
	gs.Spec.Polling.Interval = "1s"
	gs.Spec.Gateway.Port = p.front()
	gs.Spec.Gateway.API = &v1alpha1.GatewayAPI{SecretName: "gateway"}
	gs.Spec.Sync.Profiles = map[string]v1alpha1.SyncProfile{"default": {Mappings: []v1alpha1.Mapping{{Source: "projects", Destination: "projects"}}}}
	_, err = p.syncs().Create(t.Context(), gs, metav1.CreateOptions{})
	require.NoError(t, err)
	for i := range n {
		p.add(fmt.Sprintf("gw-%d", i))
	}
	return p
}

// front stands for the address 127.0.0.1 of every pod: what comes with a gateway's token goes to that gateway.
func (p *plant) front() *int32 {
	proxy := &httputil.ReverseProxy{ErrorLog: log.New(io.Discard, "", 0), Rewrite: func(r *httputil.ProxyRequest) {
		p.mu.Lock()
		defer p.mu.Unlock()
		for i, g := range p.gw {
			if to, err := url.Parse(g.gw.URL()); err == nil && (i == 0 || r.In.Header.Get("X-Ignition-API-Token") == g.gw.Token()) {
				r.SetURL(to)
			}
		}
	}}
	srv := httptest.NewServer(proxy)
	p.t.Cleanup(srv.Close)
	_, text, _ := strings.Cut(strings.TrimPrefix(srv.URL, "http://"), ":")
	n, err := strconv.ParseInt(text, 10, 32)
	require.NoError(p.t, err)
	port := int32(n)
	return &port
}

// commit pushes a project that says which commit it is.
func (p *plant) commit(title string) string {
	return p.Commit(title, gitserver.Files(map[string]string{
		"projects/line/project.json": fmt.Sprintf(`{"title": %q, "description": "", "parent": "", "enabled": true, "inheritable": false}`, title),
	}))
}

func (p *plant) syncs() *kube.Objects[v1alpha1.GatewaySync] {
	return kube.GatewaySyncs(p.kube.Dynamic, p.ns)
}

// bind gives the pods' account the role that is shipped, and no other; the policies that narrow it are in force.
func (p *plant) bind() {
	p.t.Helper()
	for _, file := range []string{"agent-role.yaml", "policies.yaml"} {
		p.cluster.Apply(p.t, filepath.Join("..", "..", "kustomize", "base", file))
	}
	_, err := p.kube.Core.RbacV1().RoleBindings(p.ns).Create(p.t.Context(), &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "stoker-agent"},
		RoleRef:  rbacv1.RoleRef{APIGroup: "rbac.authorization.k8s.io", Kind: "ClusterRole", Name: "stoker-agent"},
		Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Name: "default", Namespace: p.ns}}}, metav1.CreateOptions{})
	require.NoError(p.t, err)
}

// add makes a pod with a gateway that runs.
func (p *plant) add(name string) *gateway {
	p.t.Helper()
	pod, err := p.kube.Core.CoreV1().Pods(p.ns).Create(p.t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1alpha1.LabelCRName: "site"},
			Annotations: map[string]string{v1alpha1.AnnotationInject: "true", v1alpha1.AnnotationCRName: "site", v1alpha1.AnnotationGatewayName: name}},
		Spec: corev1.PodSpec{InitContainers: []corev1.Container{{Name: "stoker-agent", Image: "agent"}}, Containers: []corev1.Container{{Name: "gateway", Image: "gateway"}}},
	}, metav1.CreateOptions{})
	require.NoError(p.t, err)
	g := &gateway{p: p, name: name, uid: pod.UID, dir: p.t.TempDir()}
	for _, dir := range []string{"data", "repo", "secrets/gateway"} {
		require.NoError(p.t, os.MkdirAll(filepath.Join(g.dir, dir), 0o755))
	}
	g.gw, err = simulator.Start(simulator.Options{Data: filepath.Join(g.dir, "data"), Name: name})
	require.NoError(p.t, err)
	p.t.Cleanup(func() { assert.NoError(p.t, g.gw.Close()) })
	require.NoError(p.t, os.WriteFile(filepath.Join(g.dir, "secrets/gateway/apiKey"), []byte(g.gw.Token()), 0o600))
	p.mu.Lock()
	defer p.mu.Unlock()
	p.gw = append(p.gw, g)
	return g
}

// start runs the gateway's agent.
func (g *gateway) start() {
	t := g.p.t
	t.Helper()
	config := g.p.cluster.As(t, g.p.ns, "default", g.name)
	kc := clientcmdapi.NewConfig()
	kc.Clusters["c"] = &clientcmdapi.Cluster{Server: config.Host, CertificateAuthorityData: config.CAData, CertificateAuthority: config.CAFile}
	kc.AuthInfos["c"] = &clientcmdapi.AuthInfo{Token: config.BearerToken}
	kc.Contexts["c"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "c"}
	kc.CurrentContext = "c"
	file := filepath.Join(g.dir, "kubeconfig")
	require.NoError(t, clientcmd.WriteToFile(*kc, file))
	g.cmd = exec.Command(agentBinary, "--kubeconfig", file, "--health-addr", "127.0.0.1:0", "--metrics-addr", "127.0.0.1:0", "--log-format", "json")
	g.cmd.Env = []string{"HOME=" + g.dir, "POD_NAME=" + g.name, "POD_NAMESPACE=" + g.p.ns, "POD_UID=" + string(g.uid), "CR_NAME=site", "GATEWAY_NAME=" + g.name,
		"REPO_PATH=" + filepath.Join(g.dir, "repo"), "DATA_PATH=" + filepath.Join(g.dir, "data"), "SYNC_PERIOD=5",
		"SECRETS_DIR=" + filepath.Join(g.dir, "secrets")}
	g.log, g.done = &lines{}, make(chan struct{})
	g.cmd.Stdout, g.cmd.Stderr = g.log, g.log
	require.NoError(t, g.cmd.Start())
	cmd, log, done := g.cmd, g.log, g.done
	go func() { _ = cmd.Wait(); close(done) }()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-done
		if t.Failed() {
			t.Logf("%s:\n%s", g.name, log)
		}
	})
}

// end sends a signal and waits until the agent has ended.
func (g *gateway) end(with syscall.Signal) {
	g.p.t.Helper()
	require.NoError(g.p.t, g.cmd.Process.Signal(with))
	select {
	case <-g.done:
	case <-time.After(liveness):
		g.p.t.Fatalf("%s does not end", g.name)
	}
}

// title is what the project on the gateway says.
func (g *gateway) title() string {
	b, err := os.ReadFile(filepath.Join(g.dir, "data/projects/line/project.json"))
	var project struct{ Title string }
	if err != nil || json.Unmarshal(b, &project) != nil {
		return ""
	}
	return project.Title
}

// status is the status; empty where it cannot be read.
func (p *plant) status() *v1alpha1.GatewaySyncStatus {
	gs, err := p.syncs().Get(p.t.Context(), "site")
	if err != nil {
		return &v1alpha1.GatewaySyncStatus{}
	}
	return &gs.Status
}

// watch records every status from now on; what it returns lists them.
func (p *plant) watch() (seen func() []v1alpha1.GatewaySyncStatus) {
	p.t.Helper()
	w, err := p.kube.Dynamic.Resource(kube.GatewaySync.Resource()).Namespace(p.ns).Watch(p.t.Context(), metav1.ListOptions{})
	require.NoError(p.t, err)
	p.t.Cleanup(w.Stop)
	var mu sync.Mutex
	var all []v1alpha1.GatewaySyncStatus
	go func() {
		for e := range w.ResultChan() {
			data, err := json.Marshal(e.Object)
			var gs v1alpha1.GatewaySync
			if err == nil && json.Unmarshal(data, &gs) == nil {
				mu.Lock()
				all = append(all, gs.Status)
				mu.Unlock()
			}
		}
	}()
	return func() []v1alpha1.GatewaySyncStatus {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(all)
	}
}

// target is what the agents are told; empty where it cannot be read.
func (p *plant) target() v1alpha1.SyncTargetSpec {
	t, err := kube.SyncTargets(p.kube.Dynamic, p.ns).Get(p.t.Context(), "site")
	if err != nil {
		return v1alpha1.SyncTargetSpec{}
	}
	return t.Spec
}

// lead returns the gateway whose agent leads, nil for none.
func (p *plant) lead() *gateway {
	name, _, _ := strings.Cut(p.target().Lead.Holder, "_")
	for _, g := range p.gw {
		if g.name == name {
			return g
		}
	}
	return nil
}

// converges waits until all gateways run a commit and the status says so.
func (p *plant) converges(title, commit string) {
	p.t.Helper()
	p.eventually(title+" everywhere", func() bool {
		for _, g := range p.gw {
			if g.title() != title {
				return false
			}
		}
		st := p.status()
		ready := meta.FindStatusCondition(st.Conditions, v1alpha1.ConditionReady)
		return ready != nil && ready.Status == metav1.ConditionTrue && st.LastGood != nil && st.LastGood.Commit == commit
	})
}

func (p *plant) eventually(what string, ok func() bool) {
	p.t.Helper()
	deadline := time.Now().Add(liveness)
	for !ok() {
		if time.Now().After(deadline) {
			st, err := json.MarshalIndent(p.status(), "", "  ")
			require.NoError(p.t, err)
			p.t.Fatalf("never: %s\n%s", what, st)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// lines collects output while it is written.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
