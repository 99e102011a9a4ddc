package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	gosync "sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"stoker.io/stoker/agent/lead"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/test/gitserver"
)

// size is a number of GatewaySyncs, each in its own namespace, and of agents for each.
type size struct{ sites, agents int }

func (s size) total() int { return s.sites * s.agents }

func (s size) String() string {
	if s.sites == 1 {
		return fmt.Sprint(s.agents)
	}
	return fmt.Sprintf("%d × %d", s.sites, s.agents)
}

// site is a GatewaySync and its agents.
type site struct {
	testbed   *testbed
	namespace string
	agents    []*agent
}

// testbed has everything that a measurement needs: namespaces on an API server, a git server, gateways and agents.
type testbed struct {
	dir      string
	admin    kube.Clients
	log      *slog.Logger
	timing   lead.Timing // of the leads; the zero value is that of agents in pods
	git      *gitserver.Server
	repo     *gitserver.Repo
	gateways *gateways
	sites    []*site
	agents   []*agent // of all sites

	syncs      *kube.Informer[v1alpha1.GatewaySync]
	changed    chan struct{}
	agentLoops gosync.WaitGroup
	stop       context.CancelFunc // ends the agents
	unwatch    context.CancelFunc
}

const (
	// stopTimeout is the timeout for the end of all agents.
	stopTimeout = time.Minute
	repository  = "site.git"
	// files is the number of files that a gateway gets from git.
	files = 11
)

// parallelPods is how many pods are created at the same time.
const parallelPods = 8

// openFiles is what checkOpenFiles counts for an agent. In a first sync, 200 agents had 3,300 files open.
const openFiles = 19

// checkOpenFiles returns an error if the agents of this process would reach its limit of open files. An agent in a pod has its own.
func checkOpenFiles(agents int) error {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	if need := uint64(agents * openFiles); need > limit.Cur {
		return fmt.Errorf("%d agents in one process need %d open files, and its limit is %d: raise it (ulimit -n), or measure fewer agents", agents, need, limit.Cur)
	}
	return nil
}

// newTestbed creates namespaces, pods and gateways, without running agents. change is applied to every GatewaySync.
func newTestbed(ctx context.Context, admin kube.Clients, dir string, of size, log *slog.Logger, change ...func(*v1alpha1.GatewaySync)) (_ *testbed, err error) {
	if err := checkOpenFiles(of.total()); err != nil {
		return nil, err
	}
	b := &testbed{dir: dir, admin: admin, log: log, changed: make(chan struct{}, 1)}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.close())
		}
	}()
	root := filepath.Join(dir, "git")
	if err := os.MkdirAll(root, 0o755); err != nil {
		return nil, err
	}
	if b.git, err = gitserver.Start(root, gitserver.Options{}); err != nil {
		return nil, err
	}
	if b.gateways, err = startGateways(context.WithoutCancel(ctx)); err != nil {
		return nil, err
	}
	err = gitserver.Try(func(t gitserver.TB) { b.repo = gitserver.NewRepo(t, filepath.Join(root, repository)) })
	if err != nil {
		return nil, err
	}
	if _, err := b.commit(0); err != nil {
		return nil, err
	}
	if err := b.watch(ctx); err != nil {
		return nil, err
	}
	for i := range of.sites {
		if err := b.site(ctx, i, of.agents, change); err != nil {
			return nil, err
		}
	}
	return b, nil
}

// site creates a namespace with a GatewaySync and its pods.
func (b *testbed) site(ctx context.Context, i, agents int, change []func(*v1alpha1.GatewaySync)) error {
	core := b.admin.Core
	ns, err := core.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: fmt.Sprintf("fleet-%d-", i)}}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	s := &site{testbed: b, namespace: ns.Name}
	b.sites = append(b.sites, s)
	if _, err := core.CoreV1().ServiceAccounts(ns.Name).Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: account}}, metav1.CreateOptions{}); err != nil {
		return err
	}
	_, err = core.RbacV1().RoleBindings(ns.Name).Create(ctx, &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "stoker-agent"},
		RoleRef:  rbacv1.RoleRef{APIGroup: "rbac.authorization.k8s.io", Kind: "ClusterRole", Name: "stoker-agent"},
		Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Name: account, Namespace: ns.Name}}}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	gs := &v1alpha1.GatewaySync{ObjectMeta: metav1.ObjectMeta{Name: crName, Namespace: ns.Name}}
	gs.Spec.Git.Repo, gs.Spec.Git.Ref = b.git.URL(repository), "main"
	gs.Spec.Polling.Interval = "30m" // the measurement requests its syncs
	gs.Spec.Gateway.Port = &b.gateways.port
	gs.Spec.Gateway.API = &v1alpha1.GatewayAPI{SecretName: "gateway"}
	gs.Spec.Sync.Profiles = map[string]v1alpha1.SyncProfile{"default": {Mappings: []v1alpha1.Mapping{{Source: "projects", Destination: "projects"}}}}
	for _, c := range change {
		c(gs)
	}
	if _, err := kube.GatewaySyncs(b.admin.Dynamic, ns.Name).Create(ctx, gs, metav1.CreateOptions{}); err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallelPods)
	for n := range agents {
		a := &agent{site: s, name: fmt.Sprintf("gw-%d", n), dir: filepath.Join(b.dir, ns.Name, fmt.Sprint(n))}
		s.agents, b.agents = append(s.agents, a), append(b.agents, a)
		group.Go(func() error { return a.prepare(ctx) })
	}
	return group.Wait()
}

// start assembles and runs all agents.
func (b *testbed) start(ctx context.Context) error {
	group, wiring := errgroup.WithContext(ctx)
	group.SetLimit(parallelPods)
	for _, a := range b.agents {
		group.Go(func() error { return a.assemble(wiring, b.log.With("namespace", a.site.namespace, "gateway", a.name)) })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	ctx, b.stop = context.WithCancel(context.WithoutCancel(ctx))
	for _, a := range b.agents {
		b.agentLoops.Go(func() { _ = a.follower.Run(ctx) }) // both always return nil
		b.agentLoops.Go(func() { _ = a.lead.Run(ctx) })
	}
	return nil
}

// stopAgents stops all agents and waits for them.
func (b *testbed) stopAgents() error {
	if b.stop == nil {
		return nil
	}
	b.stop()
	b.stop = nil
	ended := make(chan struct{})
	go func() { b.agentLoops.Wait(); close(ended) }()
	select {
	case <-ended:
		return nil
	case <-time.After(stopTimeout):
		return fmt.Errorf("agents still run %s after they were stopped", stopTimeout)
	}
}

// close ends everything. The namespaces stay on the API server.
func (b *testbed) close() error {
	errs := []error{b.stopAgents()}
	for _, a := range b.agents {
		errs = append(errs, a.close())
	}
	if b.unwatch != nil {
		b.unwatch()
	}
	if b.gateways != nil {
		errs = append(errs, b.gateways.close())
	}
	if b.git != nil {
		errs = append(errs, b.git.Close())
	}
	return errors.Join(errs...)
}

// commit commits a change of one file (the first commit adds all files), and returns its id.
func (b *testbed) commit(n int) (id string, err error) {
	edits := map[string]string{"projects/line/project.json": fmt.Sprintf(`{"title": "commit %d", "description": "", "parent": "", "enabled": true, "inheritable": false}`, n)}
	if n == 0 {
		for i := range (files - 1) / 2 {
			dir := fmt.Sprintf("projects/line/ignition/script-python/module%d/", i)
			edits[dir+"code.py"] = strings.Repeat(fmt.Sprintf("def f%d():\n    return %d\n", i, i), 40)
			edits[dir+"resource.json"] = `{"scope": "A", "version": 1, "restricted": false, "overridable": true, "files": ["code.py"], "attributes": {}}`
		}
	}
	err = gitserver.Try(func(gitserver.TB) { id = b.repo.Commit(fmt.Sprintf("commit %d", n), gitserver.Files(edits)) })
	return id, err
}

// watch watches all GatewaySyncs over a connection that is not counted.
func (b *testbed) watch(ctx context.Context) error {
	var err error
	b.syncs, err = kube.GatewaySyncs(b.admin.Dynamic, "").Informer(nil, func(string, string) {
		select {
		case b.changed <- struct{}{}:
		default:
		}
	})
	if err != nil {
		return err
	}
	ctx, b.unwatch = context.WithCancel(context.WithoutCancel(ctx))
	go b.syncs.Run(ctx)
	return nil
}

// requestSync annotates all GatewaySyncs at once with a new request to poll git, identified by request.
func (b *testbed) requestSync(ctx context.Context, request string) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{
		v1alpha1.AnnotationRequestedAt: request, v1alpha1.AnnotationRequestedBy: "cli"}}})
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, s := range b.sites {
		group.Go(func() error {
			_, err := kube.GatewaySyncs(b.admin.Dynamic, s.namespace).Patch(ctx, crName, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: "stoker-request"})
			return err
		})
	}
	return group.Wait()
}

// waitVerified waits until every status reports that all gateways run the commit, verified, and that the request is
// handled.
func (b *testbed) waitVerified(ctx context.Context, commit, request string) error {
	waiting := slices.Clone(b.sites)
	for {
		waiting = slices.DeleteFunc(waiting, func(s *site) bool { return s.verified(commit, request) })
		if len(waiting) == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d of %d GatewaySyncs do not reach commit %s: %w: %s", len(waiting), len(b.sites), commit, ctx.Err(), waiting[0].describe())
		case <-b.changed:
		}
	}
}

func (s *site) verified(commit, request string) bool {
	gs, err := s.testbed.syncs.Get(s.namespace, crName)
	if err != nil {
		return false
	}
	st := &gs.Status
	return meta.IsStatusConditionTrue(st.Conditions, v1alpha1.ConditionReady) && st.Outcome != nil && st.Outcome.Commit == commit &&
		st.GatewaysReady == fmt.Sprintf("%d/%d", len(s.agents), len(s.agents)) && (request == "" || st.LastHandledRequest == request)
}

// describe describes the state of a GatewaySync.
func (s *site) describe() string {
	gs, err := s.testbed.syncs.Get(s.namespace, crName)
	if err != nil {
		return err.Error()
	}
	text := gs.Status.GatewaysReady + " ready"
	if c := meta.FindStatusCondition(gs.Status.Conditions, v1alpha1.ConditionReady); c != nil {
		text += ", " + c.Reason + ": " + c.Message
	}
	return text
}

// leads returns the agents that lead.
func (b *testbed) leads() map[*agent]bool {
	all := map[*agent]bool{}
	for _, a := range b.agents {
		if a.lead.Leading() {
			all[a] = true
		}
	}
	return all
}

// proxy stands in for 127.0.0.1 of every pod: it forwards each request to the gateway of its token.
type proxy struct {
	port   int32
	server *http.Server
	pool   *http.Transport
	served gosync.WaitGroup

	mu         gosync.RWMutex
	gateways   map[string]*url.URL // by token
	anyGateway *url.URL            // for requests without a token
}

// tokenHeader has a gateway's API token.
const tokenHeader = "X-Ignition-API-Token"

func newProxy(ctx context.Context) (*proxy, error) {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	addr, ok := listener.Addr().(*net.TCPAddr)
	if !ok {
		return nil, errors.Join(errors.New("the proxy does not listen on TCP"), listener.Close())
	}
	f := &proxy{port: int32(addr.Port), gateways: map[string]*url.URL{}, pool: &http.Transport{MaxIdleConnsPerHost: 1, IdleConnTimeout: 5 * time.Second}}
	silent := log.New(io.Discard, "", 0)
	proxy := &httputil.ReverseProxy{ErrorLog: silent, Transport: f.pool, Rewrite: func(r *httputil.ProxyRequest) {
		f.mu.RLock()
		defer f.mu.RUnlock()
		to, ok := f.gateways[r.In.Header.Get(tokenHeader)]
		if !ok {
			to = f.anyGateway
		}
		r.SetURL(to)
	}}
	f.server = &http.Server{Handler: proxy, ErrorLog: silent, ReadHeaderTimeout: 10 * time.Second}
	f.served.Go(func() { _ = f.server.Serve(listener) })
	return f, nil
}

func (f *proxy) add(token string, gateway *url.URL) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.gateways[token], f.anyGateway = gateway, gateway
}

func (f *proxy) close() error {
	err := f.server.Close()
	f.served.Wait()
	f.pool.CloseIdleConnections()
	return err
}
