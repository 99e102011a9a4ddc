// Package receivertest runs the real receiver for a plant, with the permissions that the chart gives it.
package receivertest

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

// SetSecret makes the receiver accept requests for gs only with Token.
func SetSecret(gs *v1alpha1.GatewaySync) {
	gs.Spec.Webhook.SecretRef = &v1alpha1.SecretKeyRef{Name: secret, Key: key}
}

// Receiver is a running receiver.
type Receiver struct {
	URL string
	p   *plant.Plant
}

// Start creates the Secret of SetSecret and a service account with the permissions of the chart, and calls StartAs with
// that account.
func Start(t testing.TB, p *plant.Plant) *Receiver {
	t.Helper()
	core, namespace := p.Kube.Core, p.Namespace
	_, err := core.CoreV1().Secrets(namespace).Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: secret}, StringData: map[string]string{key: Token}}, metav1.CreateOptions{})
	require.NoError(t, err)
	p.Allow(account, "stoker-setter")
	// As the templates of charts/stoker do for webhookReceiver.secrets.
	_, err = core.RbacV1().Roles(namespace).Create(t.Context(), &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "stoker-receiver-secrets"},
		Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"secrets"}, ResourceNames: []string{secret}, Verbs: []string{"get"}}}}, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = core.RbacV1().RoleBindings(namespace).Create(t.Context(), &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "stoker-receiver-secrets"},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "stoker-receiver-secrets"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: account, Namespace: namespace}}}, metav1.CreateOptions{})
	require.NoError(t, err)
	p.WaitAllowed(account, authorizationv1.ResourceAttributes{Namespace: namespace, Resource: "secrets", Name: secret, Verb: "get"})

	return StartAs(t, p, p.Cluster.As(t, namespace, account, ""))
}

// StartAs starts the receiver of a plant with the client configuration config, and waits until it has seen the
// GatewaySyncs. The receiver ends with the test.
func StartAs(t testing.TB, p *plant.Plant, config *rest.Config) *Receiver {
	t.Helper()
	clients, err := kube.ConnectTo(config, "stoker-receiver/test")
	require.NoError(t, err)
	srv, err := server.New(server.Config{Clients: clients, Namespace: p.Namespace, Watch: []string{p.Namespace},
		Metrics: metrics.NewReceiver(prometheus.NewRegistry(), "test"), Log: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context())) // t.Context() ends before the cleanup
	done := make(chan error, 1)
	go func() { done <- srv.Run(ctx) }()
	listener := httptest.NewServer(srv.Routes())
	t.Cleanup(func() {
		listener.Close()
		srv.Close()
		stop()
		assert.NoError(t, <-done)
	})
	p.Eventually("the receiver has seen all GatewaySyncs", srv.Ready)
	return &Receiver{URL: listener.URL, p: p}
}

// Answer is an answer of the receiver.
type Answer struct {
	Code                        int
	Result, Phase, Ref, Message string
}

// Request requests a ref with Token. It repeats the request while the receiver answers 429 or 503.
func (r *Receiver) Request(ctx context.Context, source, id, ref string) (Answer, error) {
	body, err := json.Marshal(map[string]string{"source": source, "id": id, "ref": ref})
	if err != nil {
		return Answer{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, plant.Liveness)
	defer cancel()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.URL+"/webhook/"+r.p.Namespace+"/"+r.p.Name, bytes.NewReader(body))
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
		time.Sleep(100 * time.Millisecond)
	}
}
