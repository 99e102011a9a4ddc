package fleet

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	gosync "sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/agent/connect"
	"stoker.io/stoker/agent/disk"
	"stoker.io/stoker/agent/follow"
	"stoker.io/stoker/agent/lead"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/agent/sync"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/internal/metrics"
	"stoker.io/stoker/test/gateway/simulator"
)

// agent is a gateway's pod: a pod object that does not run, a gateway in the process of the gateways, and the loops of an agent in this
// process, assembled as agent/run.go does.
type agent struct {
	site *site
	name string
	dir  string
	pod  *corev1.Pod

	traffic  *traffic
	registry *prometheus.Registry
	store    *repo.Store
	engine   *sync.Engine
	follower *follow.Follower
	lead     *lead.Lead
}

// Names that are the same in every namespace.
const (
	crName  = "site"
	account = "default"
)

// prepare creates the pod and its gateway.
func (a *agent) prepare(ctx context.Context) error {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: a.name, Labels: map[string]string{v1alpha1.LabelCRName: crName},
			Annotations: map[string]string{v1alpha1.AnnotationInject: "true", v1alpha1.AnnotationCRName: crName, v1alpha1.AnnotationGatewayName: a.name}},
		Spec: corev1.PodSpec{InitContainers: []corev1.Container{{Name: "stoker-agent", Image: "agent"}}, Containers: []corev1.Container{{Name: "gateway", Image: "gateway"}}},
	}
	var err error
	if a.pod, err = a.site.testbed.admin.Core.CoreV1().Pods(a.site.namespace).Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		return err
	}
	for _, dir := range []string{"data", "repo", "secrets/gateway"} {
		if err := os.MkdirAll(filepath.Join(a.dir, dir), 0o755); err != nil {
			return err
		}
	}
	token, err := a.site.testbed.gateways.add(order{Name: a.name, Data: filepath.Join(a.dir, "data")})
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(a.dir, "secrets/gateway/apiKey"), []byte(token), 0o600)
}

// token requests the token that a kubelet would mount into the pod.
func (a *agent) token(ctx context.Context) (string, error) {
	r := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: a.name, UID: a.pod.UID}}}
	token, err := a.site.testbed.admin.Core.CoreV1().ServiceAccounts(a.site.namespace).CreateToken(ctx, account, r, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	return token.Status.Token, nil
}

// fleetMetrics are the metrics of a lead, which lead.Config takes as one value.
type fleetMetrics struct {
	*metrics.Agent
	*metrics.Fleet
}

const version = "bench"

// assemble creates the agent's loops without running them.
func (a *agent) assemble(ctx context.Context, log *slog.Logger) error {
	b, ns := a.site.testbed, a.site.namespace
	token, err := a.token(ctx)
	if err != nil {
		return err
	}
	if a.traffic, err = newTraffic(b.admin.Config); err != nil {
		return err
	}
	clients, err := kube.ConnectTo(a.traffic.config(b.admin.Config.Host, token), "stoker-agent/"+version)
	if err != nil {
		return err
	}
	if a.store, err = repo.Open(filepath.Join(a.dir, "repo"), repo.StoreOptions{Log: log}); err != nil {
		return err
	}
	a.engine = sync.New(sync.Config{DataDir: filepath.Join(a.dir, "data"), Store: a.store, Log: log, Grace: 15 * time.Second,
		Disk: disk.Options{Log: log}, Limits: plan.DefaultLimits, MaxBlob: 512 << 20})
	a.registry = prometheus.NewRegistry()
	agentMetrics := metrics.NewAgent(a.registry, version, ns, crName, a.name)
	secrets := connect.Mounted{Dir: filepath.Join(a.dir, "secrets")}
	remote := repo.RemoteOptions{Log: log}
	a.lead, err = lead.New(lead.Config{
		Namespace: ns, GatewaySync: crName, Pod: a.name, Clients: clients, Store: a.store, Log: log, Timing: b.timing,
		Metrics:  fleetMetrics{agentMetrics, metrics.NewFleet(a.registry, ns, crName)},
		Connect:  func(gs *v1alpha1.GatewaySync) (*repo.Remote, error) { return connect.Git(gs.Spec.Git, secrets, remote) },
		Eligible: func(gs *v1alpha1.GatewaySync) error { return connect.Reachable(&gs.Spec, secrets) },
	})
	if err != nil {
		return err
	}
	a.follower, err = follow.New(follow.Config{
		Identity: follow.Identity{Namespace: ns, Pod: a.name, PodUID: string(a.pod.UID), GatewaySync: crName, Gateway: a.name},
		Version:  version, StartupFile: filepath.Join(a.dir, "repo", "startup.json"),
		API: clients.Dynamic, Secrets: secrets, Remote: remote, Engine: a.engine, Log: log, Metrics: agentMetrics, OnSyncTarget: a.lead.Saw,
	})
	return err
}

// close releases everything. The caller has ended the loops.
func (a *agent) close() error {
	var errs []error
	if a.engine != nil {
		errs = append(errs, a.engine.Close())
	}
	if a.store != nil {
		errs = append(errs, a.store.Close())
	}
	if a.traffic != nil {
		a.traffic.close()
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("%s: %w", a.name, err)
	}
	return nil
}

// gateways are the simulated gateways and the proxy before them. They run in a process of their own, because a process may have only so many
// open files, and 1,000 agents take most of them.
type gateways struct {
	port int32 // of the proxy

	process *exec.Cmd
	stderr  bytes.Buffer
	mu      gosync.Mutex // one order at a time
	stdin   io.WriteCloser
	orders  *json.Encoder
	answers *json.Decoder
}

// gatewaysArg is the argument of this program that makes it the process of the gateways.
const gatewaysArg = "fleet-gateways"

// order starts a gateway.
type order struct{ Name, Data string }

// answer is the answer to an order. The first one is not to an order, and has the port of the proxy.
type answer struct {
	Port         int32
	Token, Error string
}

// startGateways starts the process. It ends when ctx is done, too.
func startGateways(ctx context.Context) (*gateways, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	g := &gateways{process: exec.CommandContext(ctx, self, gatewaysArg)}
	g.process.Stderr = &g.stderr
	stdout, err := g.process.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if g.stdin, err = g.process.StdinPipe(); err != nil {
		return nil, err
	}
	g.orders, g.answers = json.NewEncoder(g.stdin), json.NewDecoder(stdout)
	if err := g.process.Start(); err != nil {
		return nil, err
	}
	first, err := g.answer()
	if err != nil {
		return nil, errors.Join(err, g.close())
	}
	g.port = first.Port
	return g, nil
}

// add starts a gateway, and returns its API token.
func (g *gateways) add(o order) (token string, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.orders.Encode(o); err != nil {
		return "", err
	}
	a, err := g.answer()
	return a.Token, err
}

func (g *gateways) answer() (a answer, err error) {
	if err = g.answers.Decode(&a); err == nil && a.Error != "" {
		err = errors.New(a.Error)
	}
	if err != nil {
		err = fmt.Errorf("the process of the gateways: %w", err)
	}
	return a, err
}

func (g *gateways) close() error {
	err := errors.Join(g.stdin.Close(), g.process.Wait())
	if err != nil {
		err = fmt.Errorf("the process of the gateways: %w: %s", err, g.stderr.Bytes())
	}
	return err
}

// RunGateways is the process of the gateways, if args ask for it. It runs until stdin ends.
func RunGateways(ctx context.Context, args []string, stdin io.Reader, stdout io.Writer) (asked bool, err error) {
	if len(args) != 1 || args[0] != gatewaysArg {
		return false, nil
	}
	p, err := newProxy(ctx)
	if err != nil {
		return true, err
	}
	closers := []func() error{p.close}
	defer func() {
		for _, closer := range closers {
			err = errors.Join(err, closer())
		}
	}()
	answers, orders := json.NewEncoder(stdout), json.NewDecoder(stdin)
	if err := answers.Encode(answer{Port: p.port}); err != nil {
		return true, err
	}
	for {
		var o order
		if err := orders.Decode(&o); err != nil {
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return true, err
		}
		var a answer
		if gateway, err := startGateway(p, o); err != nil {
			a.Error = err.Error()
		} else {
			a.Token = gateway.Token()
			closers = append(closers, gateway.Close)
		}
		if err := answers.Encode(a); err != nil {
			return true, err
		}
	}
}

func startGateway(p *proxy, o order) (*simulator.Gateway, error) {
	gateway, err := simulator.Start(simulator.Options{Data: o.Data, Name: o.Name})
	if err != nil {
		return nil, err
	}
	u, err := url.Parse(gateway.URL())
	if err != nil {
		return nil, errors.Join(err, gateway.Close())
	}
	p.add(gateway.Token(), u)
	return gateway, nil
}
