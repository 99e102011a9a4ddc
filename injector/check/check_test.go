package check_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
	admissionregv1 "k8s.io/api/admissionregistration/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/injector/admission"
	"stoker.io/stoker/injector/check"
	"stoker.io/stoker/injector/lookup"
	"stoker.io/stoker/test/clientset"
)

const host = "stoker-injector.stoker-system.svc"

// service is an injector behind a Service, with the authority of its certificate.
type service struct {
	address   string
	authority []byte
	// namespace is where a dry run is tried, allowed whether the check may, and answer what the API server says.
	namespace string
	allowed   bool
	answer    error

	mu    sync.Mutex
	asked []string
}

func serve(t *testing.T, h http.Handler) *service {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	c := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{host}, IsCA: true, BasicConstraintsValid: true, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	require.NoError(t, err)
	s := httptest.NewUnstartedServer(h)
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	s.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
	s.StartTLS()
	t.Cleanup(s.Close)
	return &service{allowed: true, address: s.Listener.Addr().String(), authority: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}
}

// check runs the check against a webhook configuration with the bundle.
func (s *service) check(t *testing.T, bundle []byte, entries ...admissionregv1.MutatingWebhook) (string, error) {
	t.Helper()
	if entries == nil {
		for _, name := range []string{"pods.stoker.io", "require.pods.stoker.io"} {
			entries = append(entries, admissionregv1.MutatingWebhook{Name: name, ClientConfig: admissionregv1.WebhookClientConfig{
				Service: &admissionregv1.ServiceReference{Name: "stoker-injector", Namespace: "stoker-system", Path: new(admission.Path), Port: new(int32(443))},
			}})
		}
	}
	for i := range entries {
		entries[i].ClientConfig.CABundle = bundle
	}
	var out bytes.Buffer
	client := clientset.New(&admissionregv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: admission.ConfigurationName}, Webhooks: entries})
	client.PrependReactor("create", "selfsubjectaccessreviews", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, &authorizationv1.SelfSubjectAccessReview{Status: authorizationv1.SubjectAccessReviewStatus{Allowed: s.allowed}}, nil
	})
	client.PrependReactor("create", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		assert.Equal(t, []string{metav1.DryRunAll}, a.(clienttesting.CreateActionImpl).CreateOptions.DryRun)
		return true, &corev1.Pod{}, s.answer
	})
	err := check.Run(t.Context(), check.Config{
		Client:        client,
		Configuration: admission.ConfigurationName, Out: &out, Namespace: s.namespace,
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			s.mu.Lock()
			s.asked = append(s.asked, address)
			s.mu.Unlock()
			var d net.Dialer
			return d.DialContext(ctx, network, s.address)
		},
	})
	return out.String(), err
}

type nothing struct{}

func (nothing) For(context.Context, string, string) ([]*v1alpha1.GatewaySync, error) { return nil, nil }
func (nothing) Injection(string, v1alpha1.Reason)                                    {}

func injector() http.Handler {
	return admission.New(admission.Config{
		Find: nothing{}, Metrics: nothing{}, Scope: lookup.Scope{Own: "stoker-system"}, Log: slog.New(slog.DiscardHandler),
	}).Routes()
}

func TestCheckPasses(t *testing.T) {
	s := serve(t, injector())
	out, err := s.check(t, s.authority)
	require.NoError(t, err)
	assert.Equal(t, "pods.stoker.io: answered by "+host+":443\nrequire.pods.stoker.io: answered by "+host+":443\n", out)
	assert.Equal(t, []string{host + ":443", host + ":443"}, s.asked)
}

func TestCheckRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, tries := clientset.New(), 0
		client.PrependReactor("get", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
			tries++
			return true, nil, errors.New("not yet")
		})
		began := time.Now()
		err := check.Run(t.Context(), check.Config{Client: client, Configuration: "x", Out: io.Discard, Timeout: time.Minute, Interval: 2 * time.Second})
		assert.ErrorContains(t, err, "read the webhook configuration x: not yet")
		assert.Equal(t, 32, tries)
		assert.Equal(t, 62*time.Second, time.Since(began))
	})
}

func TestConfigurationErrors(t *testing.T) {
	s := serve(t, injector())
	stranger := serve(t, injector())
	for name, c := range map[string]struct {
		bundle  []byte
		entries []admissionregv1.MutatingWebhook
		words   string
	}{
		"no authority yet":         {nil, nil, "entry pods.stoker.io: clientConfig.caBundle has no certificate yet"},
		"another authority":        {stranger.authority, nil, "entry pods.stoker.io"},
		"an entry with no Service": {s.authority, []admissionregv1.MutatingWebhook{{Name: "x"}}, "entry x: clientConfig has no Service"},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := s.check(t, c.bundle, c.entries...)
			assert.ErrorContains(t, err, c.words)
			assert.Empty(t, out)
		})
	}
	_, err := s.check(t, stranger.authority)
	assert.ErrorAs(t, err, new(x509.UnknownAuthorityError))
}

func TestAnswerErrors(t *testing.T) {
	for name, c := range map[string]struct {
		answer func(admissionv1.AdmissionReview) any
		words  string
	}{
		"another uid": {func(r admissionv1.AdmissionReview) any {
			r.Response = &admissionv1.AdmissionResponse{UID: "x", Allowed: true}
			return r
		}, "another uid"},
		"no response": {func(r admissionv1.AdmissionReview) any { return r }, "another uid"},
		"refused": {func(r admissionv1.AdmissionReview) any {
			r.Response = &admissionv1.AdmissionResponse{UID: r.Request.UID}
			return r
		}, "denies a pod without annotations"},
		"changed": {func(r admissionv1.AdmissionReview) any {
			r.Response = &admissionv1.AdmissionResponse{UID: r.Request.UID, Allowed: true, Patch: []byte("[]")}
			return r
		}, "changes a pod without annotations"},
		"no review": {func(admissionv1.AdmissionReview) any { return "hello" }, "does not answer with an AdmissionReview"},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				var review admissionv1.AdmissionReview
				body, err := io.ReadAll(r.Body)
				if err == nil {
					err = json.Unmarshal(body, &review)
				}
				if err != nil {
					http.Error(w, err.Error(), http.StatusBadRequest)
					return
				}
				_ = json.NewEncoder(w).Encode(c.answer(review))
			}))
			_, err := s.check(t, s.authority)
			assert.ErrorContains(t, err, c.words)
		})
	}
	s := serve(t, http.NotFoundHandler())
	_, err := s.check(t, s.authority)
	assert.ErrorContains(t, err, "404")
}

// The check asks the API server itself, which may not reach the Service that the check reaches.
func TestCheckAsksAPIServer(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	for name, c := range map[string]struct {
		allowed      bool
		answer       error
		out, problem string
	}{
		"the injector denies the pod": {true, apierrors.NewForbidden(pods, "stoker-check", errors.New("no GatewaySync")), "the API server calls the injector", ""},
		"it cannot call the injector": {true, apierrors.NewInternalError(errors.New("failed calling webhook")), "", "the API server cannot call the injector: Internal error occurred: failed calling webhook"},
		"it does not call it there":   {true, nil, "was not tried: the webhook configuration does not select namespace line", ""},
		"no right":                    {false, apierrors.NewForbidden(pods, "stoker-check", errors.New("role")), "", "may not create pods in namespace line"},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, injector())
			s.namespace, s.allowed, s.answer = "line", c.allowed, c.answer
			out, err := s.check(t, s.authority)
			assert.Contains(t, out, c.out)
			if c.problem == "" {
				assert.NoError(t, err)
			} else {
				assert.ErrorContains(t, err, c.problem)
			}
		})
	}
}
