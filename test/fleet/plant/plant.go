// Package plant provides tests with a whole fleet: a GatewaySync on a real API server, a real git server, and simulated
// gateways, each with the real agent as a process beside it. The injector's code assembles the pods as in a cluster,
// and agents have the permissions that the chart gives them.
//
//	func TestMain(m *testing.M) { plant.Main(m) }
//
//	func TestSomething(t *testing.T) {
//		p := plant.New(t, 2)               // GatewaySync "site" on branch main, pods gw-0 and gw-1
//		p.Start()                          // their agents
//		p.Converges("first", p.First)
//		second := p.Push("second")
//		p.Converges("second", second)
//	}
//
// Plants of one test process share a control plane; each has its own namespace and git server.
package plant

import (
	"fmt"
	"io"
	"log"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/test/cluster/build"
	"stoker.io/stoker/test/cluster/kubetest"
	"stoker.io/stoker/test/gateway/simulator"
	"stoker.io/stoker/test/gitserver"
	"stoker.io/stoker/test/program"
)

// Liveness is the timeout of every wait: ten times what a loaded machine needs.
const Liveness = 90 * time.Second

// M runs the tests of a package, then ends their control plane and removes the programs that they built.
type M struct{ *testing.M }

// Run runs the tests.
func (m M) Run() int { return program.M{Tests: kubetest.M{M: m.M}}.Run() }

// Main is the TestMain of a package that uses plants.
func Main(m *testing.M) { os.Exit(M{m}.Run()) }

// Plant is a GatewaySync with its repository and its gateways.
type Plant struct {
	*gitserver.Repo
	Git     *gitserver.Server
	Cluster *kubetest.Cluster
	Kube    kube.Clients // with all permissions
	// Namespace is the namespace of all objects, Name the name of the GatewaySync.
	Namespace, Name string
	// First is the first commit of the repository.
	First string

	t         testing.TB
	moduleDir string // of this Go module
	proxy     *proxy
	mu        sync.Mutex
	gateways  []*Gateway
}

// New returns a plant with running gateways gw-0, gw-1, …; Start starts their agents. change is applied to the
// GatewaySync before it is created.
func New(t testing.TB, gateways int, change ...func(*v1alpha1.GatewaySync)) *Plant {
	t.Helper()
	return NewIn(t, kubetest.Control(t), gateways, change...)
}

// NewIn is New on the control plane cluster.
func NewIn(t testing.TB, cluster *kubetest.Cluster, gateways int, change ...func(*v1alpha1.GatewaySync)) *Plant {
	t.Helper()
	p := newPlant(t, cluster, cluster.Namespace(t))
	p.First = p.Push("first")
	return p.withGateways("site", gateways, change)
}

// NewAt is NewIn with a given namespace and a given name of the GatewaySync. Pods are named after the GatewaySync.
func NewAt(t testing.TB, cluster *kubetest.Cluster, namespace, name string, gateways int, change ...func(*v1alpha1.GatewaySync)) *Plant {
	t.Helper()
	p := newPlant(t, cluster, cluster.NamespaceNamed(t, namespace))
	p.First = p.Push("first")
	return p.withGateways(name, gateways, change)
}

// Another creates a second GatewaySync with its own gateways in the same namespace, for the same repository: the next
// stage of a pipeline.
func (p *Plant) Another(name string, gateways int, change ...func(*v1alpha1.GatewaySync)) *Plant {
	p.t.Helper()
	other := &Plant{Repo: p.Repo, Git: p.Git, Cluster: p.Cluster, Kube: p.Kube, Namespace: p.Namespace, First: p.First, t: p.t, moduleDir: p.moduleDir, proxy: p.proxy}
	return other.withGateways(name, gateways, change)
}

// FromFolder returns a plant without gateways, with the GatewaySync gs and a repository with the content of a folder. In
// a copy of gs it sets only the namespace, the addresses of the repository and of the gateways, and their API key.
func FromFolder(t testing.TB, gs *v1alpha1.GatewaySync, folder string) *Plant {
	t.Helper()
	cluster := kubetest.Control(t)
	p := newPlant(t, cluster, cluster.Namespace(t))
	var edits []gitserver.Edit
	require.NoError(t, filepath.WalkDir(folder, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(folder, path)
		edits = append(edits, gitserver.Write(filepath.ToSlash(name), string(content)))
		return err
	}))
	p.First = p.Commit("as it is", edits...)
	gs = gs.DeepCopy()
	gs.Spec.Git.Repo = p.Git.URL("site.git")
	p.create(gs)
	return p
}

// newPlant sets up the agents' permissions in a namespace, and creates an empty repository.
func newPlant(t testing.TB, cluster *kubetest.Cluster, namespace string) *Plant {
	t.Helper()
	p := &Plant{t: t, Cluster: cluster, Namespace: namespace, proxy: newProxy(t)}
	var err error
	p.Kube, err = kube.ConnectTo(cluster.RESTConfig(), "test")
	require.NoError(t, err)
	sources, err := build.Open(build.Cache{})
	require.NoError(t, err)
	p.moduleDir = sources.SourceDir
	p.apply("ClusterRole/stoker-agent", "ValidatingAdmissionPolicy*/*")
	p.bind("stoker-agent", podAccount)
	root := t.TempDir()
	p.Repo = gitserver.NewRepo(t, filepath.Join(root, "site.git"))
	p.Git, err = gitserver.Start(root, gitserver.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { _ = p.Git.Close() }) // a test may have closed it
	return p
}

// withGateways creates the GatewaySync that most tests use, and its gateways.
func (p *Plant) withGateways(name string, gateways int, change []func(*v1alpha1.GatewaySync)) *Plant {
	p.t.Helper()
	gs := &v1alpha1.GatewaySync{ObjectMeta: metav1.ObjectMeta{Name: name}}
	gs.Spec.Git.Repo, gs.Spec.Git.Ref = p.Git.URL("site.git"), "main"
	gs.Spec.Polling.Interval = "1s"
	gs.Spec.Gateway.API = &v1alpha1.GatewayAPI{SecretName: "gateway"}
	gs.Spec.Sync.Defaults.SyncPeriod = new(int32(5))
	gs.Spec.Sync.Profiles = map[string]v1alpha1.SyncProfile{"default": {Mappings: []v1alpha1.Mapping{{Source: "projects", Destination: "projects"}}}}
	for _, c := range change {
		c(gs)
	}
	p.create(gs)
	prefix := "gw"
	if name != "site" {
		prefix = name
	}
	for i := range gateways {
		p.Add(p.pod(fmt.Sprintf("%s-%d", prefix, i)))
	}
	return p
}

// create sets the namespace, the address and the API key of the gateways in a GatewaySync, and creates it. The proxy knows a gateway by the key
// that its simulator issued, so no agent may make a key of its own.
func (p *Plant) create(gs *v1alpha1.GatewaySync) {
	p.t.Helper()
	p.Name, gs.Namespace = gs.Name, p.Namespace
	gs.Spec.Gateway.Port = &p.proxy.port
	if gs.Spec.Gateway.ManagedKey() {
		gs.Spec.Gateway.API = &v1alpha1.GatewayAPI{SecretName: "gateway", SecretKey: "apiKey"}
	}
	_, err := p.syncs().Create(p.t.Context(), gs, metav1.CreateOptions{})
	require.NoError(p.t, err)
}

// pod returns a small pod that requests an agent.
func (p *Plant) pod(name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{
			v1alpha1.AnnotationInject: "true", v1alpha1.AnnotationCRName: p.Name, v1alpha1.AnnotationGatewayName: name}},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "gateway", Image: "gateway", VolumeMounts: []corev1.VolumeMount{{Name: "data", MountPath: "/usr/local/bin/ignition/data"}}}},
			Volumes:    []corev1.Volume{{Name: "data"}},
		},
	}
}

// Push commits a project with this title, and returns the commit.
func (p *Plant) Push(title string) string {
	p.t.Helper()
	return p.Commit(title, gitserver.Files(map[string]string{
		"projects/line/project.json": fmt.Sprintf(`{"title": %q, "description": "", "parent": "", "enabled": true, "inheritable": false}`, title),
	}))
}

// Gateways returns all gateways.
func (p *Plant) Gateways() []*Gateway {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.gateways)
}

// Start starts the agents of all gateways without a running one.
func (p *Plant) Start() {
	p.t.Helper()
	for _, g := range p.Gateways() {
		if g.Agent == nil || g.Agent.Ended() {
			g.Start()
		}
	}
}

// apply applies objects of the kustomize base.
func (p *Plant) apply(patterns ...string) {
	p.t.Helper()
	p.Cluster.ApplyYAML(p.t, "", kubetest.Shipped(p.t, filepath.Join(p.moduleDir, "kustomize", "base"), patterns...))
}

// podAccount is the service account of the gateways' pods.
const podAccount = "default"

// Allow creates a service account if needed, and binds it to one of the roles for users, such as stoker-setter, in the
// plant's namespace.
func (p *Plant) Allow(account, role string) {
	p.t.Helper()
	p.apply("ClusterRole/*")
	_, err := p.Kube.Core.CoreV1().ServiceAccounts(p.Namespace).Create(p.t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: account}}, metav1.CreateOptions{})
	p.requireCreated(err)
	p.bind(role, account)
}

// bind binds an account to a ClusterRole in the plant's namespace, and waits until the binding is effective. The role
// must allow watching GatewaySyncs.
func (p *Plant) bind(role, account string) {
	p.t.Helper()
	_, err := p.Kube.Core.RbacV1().RoleBindings(p.Namespace).Create(p.t.Context(), &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: role + "." + account},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: account, Namespace: p.Namespace}}}, metav1.CreateOptions{})
	p.requireCreated(err)
	p.WaitAllowed(account, authorizationv1.ResourceAttributes{Namespace: p.Namespace, Group: "stoker.io", Resource: "gatewaysyncs", Verb: "watch"})
}

// requireCreated ends the test if a create failed, unless the object existed before.
func (p *Plant) requireCreated(err error) {
	p.t.Helper()
	if !apierrors.IsAlreadyExists(err) {
		require.NoError(p.t, err)
	}
}

// WaitAllowed waits until the API server allows an action to an account of the plant's namespace.
func (p *Plant) WaitAllowed(account string, what authorizationv1.ResourceAttributes) {
	p.t.Helper()
	p.Cluster.WaitAllowed(p.t, p.Namespace, account, what)
}

// Kubeconfig writes a kubeconfig for an account of the plant's namespace and returns its path. If pod is set, the token
// is bound to that pod. The file is removed at the end of the test.
func (p *Plant) Kubeconfig(account, pod string) string {
	p.t.Helper()
	return kubetest.KubeconfigFor(p.t, p.Cluster.As(p.t, p.Namespace, account, pod), p.Namespace)
}

// proxy stands in for 127.0.0.1 of every pod: it forwards requests to the gateway of their token, and those with an
// unknown or no token to the first gateway.
type proxy struct {
	port int32

	mu       sync.Mutex
	gateways map[string]*simulator.Gateway // by token; the first also by ""
}

func newProxy(t testing.TB) *proxy {
	t.Helper()
	p := &proxy{gateways: map[string]*simulator.Gateway{}}
	srv := httptest.NewServer(&httputil.ReverseProxy{ErrorLog: log.New(io.Discard, "", 0), Rewrite: func(r *httputil.ProxyRequest) {
		p.mu.Lock()
		defer p.mu.Unlock()
		g, known := p.gateways[r.In.Header.Get("X-Ignition-API-Token")]
		if !known {
			g = p.gateways[""]
		}
		if g == nil {
			return
		}
		if to, err := url.Parse(g.URL()); err == nil {
			r.SetURL(to)
		}
	}})
	t.Cleanup(srv.Close)
	u, err := url.Parse(srv.URL)
	require.NoError(t, err)
	n, err := strconv.ParseInt(u.Port(), 10, 32)
	require.NoError(t, err)
	p.port = int32(n)
	return p
}

func (p *proxy) add(g *simulator.Gateway) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.gateways[g.Token()] = g
	if p.gateways[""] == nil {
		p.gateways[""] = g
	}
}
