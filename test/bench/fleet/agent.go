package fleet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
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
	resign   context.CancelFunc // stops leading and releases the lock, so that another agent takes over; the follower continues
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
	if a.resign != nil {
		a.resign()
	}
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
