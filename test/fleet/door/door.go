// Package door runs the real receiver in front of a plant, with the permissions that the chart gives it.
package door

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/internal/metrics"
	"stoker.io/stoker/receiver/server"
	"stoker.io/stoker/test/fleet/plant"
)

const (
	secret  = "stoker-webhook"
	key     = "token"
	account = "stoker-receiver"
	// Token is the credential of a sender.
	Token = "S3CR3T-0123456789abcdef0123456789abcdef"
)

// Locked gives a GatewaySync its own webhook secret.
func Locked(gs *v1alpha1.GatewaySync) {
	gs.Spec.Webhook.SecretRef = &v1alpha1.SecretKeyRef{Name: secret, Key: key}
}

// Door is a running receiver.
type Door struct {
	URL string
	p   *plant.Plant
}

// Open starts the receiver of a plant whose GatewaySyncs are Locked, and waits until it has seen them. It ends with the
// test.
func Open(t testing.TB, p *plant.Plant) *Door {
	t.Helper()
	core, in := p.Kube.Core, p.Namespace
	_, err := core.CoreV1().Secrets(in).Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: secret}, StringData: map[string]string{key: Token}}, metav1.CreateOptions{})
	require.NoError(t, err)
	p.Allow(account, "stoker-setter")
	_, err = core.RbacV1().Roles(in).Create(t.Context(), &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "stoker-receiver-secrets"},
		Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"secrets"}, ResourceNames: []string{secret}, Verbs: []string{"get"}}}}, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = core.RbacV1().RoleBindings(in).Create(t.Context(), &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "stoker-receiver-secrets"},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "stoker-receiver-secrets"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: account, Namespace: in}}}, metav1.CreateOptions{})
	require.NoError(t, err)
	p.May(account, authorizationv1.ResourceAttributes{Namespace: in, Resource: "secrets", Name: secret, Verb: "get"})

	return Serve(t, p, p.Cluster.As(t, in, account, ""))
}

// Serve starts the receiver of a plant with a client configuration, and waits until it has seen the GatewaySyncs. It
// ends with the test.
func Serve(t testing.TB, p *plant.Plant, config *rest.Config) *Door {
	t.Helper()
	clients, err := kube.ConnectTo(config, "stoker-receiver/test")
	require.NoError(t, err)
	srv, err := server.New(server.Config{Clients: clients, Namespace: p.Namespace, Watch: []string{p.Namespace},
		Metrics: metrics.NewReceiver(prometheus.NewRegistry(), "test"), Log: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context())) // it outlives the requests: see Cleanup
	done := make(chan error, 1)
	go func() { done <- srv.Run(ctx) }()
	front := httptest.NewServer(srv.Routes())
	t.Cleanup(func() {
		front.Close()
		srv.Close()
		stop()
		assert.NoError(t, <-done)
	})
	p.Eventually("the receiver has seen what there is", srv.Ready)
	return &Door{URL: front.URL, p: p}
}

// Answer is an answer of the receiver.
type Answer struct {
	Code                        int
	Result, Phase, Ref, Message string
}

// Ask requests a ref, as a sender that knows the secret. It asks again while the receiver answers 429 or 503.
func (d *Door) Ask(ctx context.Context, source, id, ref string) (Answer, error) {
	body, err := json.Marshal(map[string]string{"source": source, "id": id, "ref": ref})
	if err != nil {
		return Answer{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, plant.Liveness)
	defer cancel()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, d.URL+"/webhook/"+d.p.Namespace+"/"+d.p.Name, bytes.NewReader(body))
		if err != nil {
			return Answer{}, err
		}
		req.Header.Set("Authorization", "Bearer "+Token)
		req.Header.Set("Content-Type", "application/json")
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			return Answer{}, err
		}
		raw, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
		res.Body.Close()
		a := Answer{Code: res.StatusCode}
		switch {
		case err != nil:
			return a, err
		case a.Code != http.StatusServiceUnavailable && a.Code != http.StatusTooManyRequests:
			err := json.Unmarshal(raw, &a)
			return a, err
		}
		time.Sleep(100 * time.Millisecond) // the receiver asks for a retry
	}
}
