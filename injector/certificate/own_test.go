package certificate_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionregv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	k8stesting "k8s.io/client-go/testing"

	"stoker.io/stoker/injector/certificate"
	"stoker.io/stoker/test/clientset"
)

const host = "stoker-injector.stoker-system.svc"

func configuration() *admissionregv1.MutatingWebhookConfiguration {
	return &admissionregv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "stoker-injector"},
		Webhooks:   []admissionregv1.MutatingWebhook{{Name: "pods.stoker.io"}, {Name: "require.pods.stoker.io"}},
	}
}

func newOwn(client kubernetes.Interface, every, settle time.Duration) *certificate.SelfSigned {
	return certificate.NewSelfSigned(certificate.Config{
		Client: client, Namespace: "stoker-system", Secret: "stoker-injector-cert", Configuration: "stoker-injector",
		Names: []string{host, "127.0.0.1"}, Interval: every, PublishTime: settle, Log: slog.New(slog.DiscardHandler), Now: time.Now,
	})
}

func bundles(t *testing.T, client kubernetes.Interface) [][]byte {
	t.Helper()
	c, err := client.AdmissionregistrationV1().MutatingWebhookConfigurations().Get(t.Context(), "stoker-injector", metav1.GetOptions{})
	require.NoError(t, err)
	require.Len(t, c.Webhooks, 2)
	return [][]byte{c.Webhooks[0].ClientConfig.CABundle, c.Webhooks[1].ClientConfig.CABundle}
}

// connect performs a TLS handshake as the API server does: it trusts only the bundle.
func connect(o *certificate.SelfSigned, bundle []byte) error {
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(bundle) {
		return fmt.Errorf("the bundle is empty")
	}
	client, server := net.Pipe()
	defer client.Close()
	var served error
	var group sync.WaitGroup
	group.Go(func() {
		defer server.Close()
		served = tls.Server(server, &tls.Config{GetCertificate: o.GetCertificate, MinVersion: tls.VersionTLS13}).Handshake()
	})
	c := tls.Client(client, &tls.Config{RootCAs: roots, ServerName: host, MinVersion: tls.VersionTLS13})
	err := c.Handshake()
	_ = client.Close()
	group.Wait()
	if err != nil {
		return fmt.Errorf("%w (server: %w)", err, served)
	}
	return nil
}

// I8: three replicas over 400 days, with a client every hour that sees a new bundle only minutes later. No connection fails. One
// replica stops for days, one restarts every month, and the Secret is deleted once.
func TestRotationBreaksNoConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := clientset.New(configuration())
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var group sync.WaitGroup
		defer group.Wait()
		defer cancel()
		run := func() (*certificate.SelfSigned, context.CancelFunc) {
			o := newOwn(client, 3*time.Hour, 12*time.Hour)
			ctx, stop := context.WithCancel(ctx)
			group.Go(func() { assert.NoError(t, o.Run(ctx)) })
			return o, stop
		}
		replicas := make([]*certificate.SelfSigned, 3)
		stops := make([]context.CancelFunc, 3)
		for i := range replicas {
			replicas[i], stops[i] = run()
			time.Sleep(7 * time.Minute)
		}
		known := bundles(t, client)[0]
		leaves, days, lost, renewals := map[string]bool{}, 400, 200, 5
		if testing.Short() {
			days, lost, renewals = 150, 100, 2
		}
		for hour := range days * 24 {
			if hour%(24*30) == 24*29 {
				stops[0]()
				replicas[0], stops[0] = run()
				synctest.Wait()
			}
			switch hour {
			case 24 * 59: // down during the first renewal, which happens after 60 days
				stops[1]()
			case 24 * 63:
				replicas[1], stops[1] = run()
				synctest.Wait()
			case 24 * lost:
				require.NoError(t, client.CoreV1().Secrets("stoker-system").Delete(ctx, "stoker-injector-cert", metav1.DeleteOptions{}))
			}
			for i, o := range replicas {
				if hour%8 == 0 && i == hour/8%3 { // a real handshake now and then, otherwise only the checks of a client
					require.NoError(t, connect(o, known), "replica %d in hour %d", i, hour)
					continue
				}
				require.NoError(t, verify(o, known), "replica %d in hour %d", i, hour)
			}
			c, err := replicas[2].GetCertificate(nil)
			require.NoError(t, err)
			leaves[c.Leaf.SerialNumber.String()] = true
			time.Sleep(10 * time.Minute)
			now := bundles(t, client)
			assert.Equal(t, now[0], now[1], "both entries must trust the same authority")
			time.Sleep(50 * time.Minute)
			known = now[0]
		}
		assert.Greater(t, len(leaves), renewals, "the certificate must be renewed every 60 days")
	})
}

func verify(o *certificate.SelfSigned, bundle []byte) error {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(bundle)
	c, err := o.GetCertificate(nil)
	if err != nil {
		return err
	}
	_, err = c.Leaf.Verify(x509.VerifyOptions{DNSName: host, Roots: roots, CurrentTime: time.Now()})
	return err
}

// I8: replicas that start at the same moment without a certificate must agree on one.
func TestReplicasAgreeOnFirstCertificate(t *testing.T) {
	for range 20 {
		client := clientset.New(configuration())
		ctx, cancel := context.WithCancel(t.Context())
		replicas := make([]*certificate.SelfSigned, 8)
		var group sync.WaitGroup
		for i := range replicas {
			replicas[i] = newOwn(client, 20*time.Millisecond, time.Hour)
			group.Go(func() { assert.NoError(t, replicas[i].Run(ctx)) })
		}
		serials := map[string]bool{}
		for _, o := range replicas {
			require.Eventually(t, o.Ready, time.Minute, time.Millisecond)
			c, err := o.GetCertificate(nil)
			require.NoError(t, err)
			serials[c.Leaf.SerialNumber.String()] = true
			assert.NoError(t, connect(o, bundles(t, client)[0]))
		}
		assert.Len(t, serials, 1)
		cancel()
		group.Wait()
	}
}

func TestAuthorityKeyIsNotStored(t *testing.T) {
	client := clientset.New(configuration())
	start(t, newOwn(client, time.Minute, time.Hour))
	secret, err := client.CoreV1().Secrets("stoker-system").Get(t.Context(), "stoker-injector-cert", metav1.GetOptions{})
	require.NoError(t, err)
	var keys []string
	for k := range secret.Data {
		keys = append(keys, k)
	}
	assert.ElementsMatch(t, []string{"ca.crt", "tls.crt", "tls.key"}, keys)
}

// start runs o until the end of the test and returns when it is ready.
func start(t *testing.T, o *certificate.SelfSigned) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- o.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		assert.NoError(t, <-done)
	})
	require.Eventually(t, o.Ready, time.Minute, time.Millisecond)
}

func TestUnusableCertificateIsReissued(t *testing.T) {
	for name, spoil := range map[string]func(map[string][]byte){
		"empty":       func(d map[string][]byte) { clear(d) },
		"no PEM":      func(d map[string][]byte) { d["tls.crt"] = []byte("x") },
		"another key": func(d map[string][]byte) { d["tls.key"] = d["tls.crt"] },
		"no bundle":   func(d map[string][]byte) { d["ca.crt"] = nil },
		"huge bundle": func(d map[string][]byte) {
			for range 200 {
				d["ca.crt"] = append(d["ca.crt"], d["tls.crt"]...)
			}
			d["tls.crt"] = nil
		},
		"invalid next authority": func(d map[string][]byte) { d["next.crt"], d["next-since"] = []byte("x"), []byte("never") },
	} {
		t.Run(name, func(t *testing.T) {
			client := clientset.New(configuration())
			start(t, newOwn(client, time.Minute, time.Hour))
			secret, err := client.CoreV1().Secrets("stoker-system").Get(t.Context(), "stoker-injector-cert", metav1.GetOptions{})
			require.NoError(t, err)
			spoil(secret.Data)
			_, err = client.CoreV1().Secrets("stoker-system").Update(t.Context(), secret, metav1.UpdateOptions{})
			require.NoError(t, err)
			again := newOwn(client, time.Minute, time.Hour)
			start(t, again)
			assert.NoError(t, connect(again, bundles(t, client)[0]))
		})
	}
}

// An entry that lost its bundle, for example through kubectl replace, gets the bundle back.
func TestLostBundleIsRestored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := clientset.New(configuration())
		o := newOwn(client, time.Minute, time.Hour)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- o.Run(ctx) }()
		synctest.Wait()
		require.True(t, o.Ready())
		before := bundles(t, client)[0]
		c := configuration()
		_, err := client.AdmissionregistrationV1().MutatingWebhookConfigurations().Update(ctx, c, metav1.UpdateOptions{})
		require.NoError(t, err)
		time.Sleep(2 * time.Minute)
		assert.Equal(t, [][]byte{before, before}, bundles(t, client))
		cancel()
		assert.NoError(t, <-done)
	})
}

func TestOwnReadiness(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := clientset.New()
		o := newOwn(client, time.Minute, time.Hour)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- o.Run(ctx) }()
		synctest.Wait()
		_, err := o.GetCertificate(nil)
		require.NoError(t, err)
		assert.False(t, o.Ready())
		_, err = client.AdmissionregistrationV1().MutatingWebhookConfigurations().Create(ctx, configuration(), metav1.CreateOptions{})
		require.NoError(t, err)
		time.Sleep(5 * time.Second)
		assert.True(t, o.Ready())
		assert.NoError(t, connect(o, bundles(t, client)[0]))
		cancel()
		assert.NoError(t, <-done)
	})
}

// An installation switches to cert-manager. cert-manager's authority replaces ours in the bundle, and the injector no longer has
// permission to restore it.
func TestNotReadyWithoutAuthority(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := clientset.New(configuration())
		var refuses atomic.Bool
		// The operator has moved these permissions to cert-manager.
		no := func(k8stesting.Action) (bool, runtime.Object, error) {
			return refuses.Load(), nil, errors.New("forbidden")
		}
		client.PrependReactor("patch", "mutatingwebhookconfigurations", no)
		client.PrependReactor("get", "secrets", no)
		own := newOwn(client, time.Minute, time.Hour)
		often := own.Config
		often.Interval = 5 * time.Second
		o := certificate.NewTrusted(own, often)
		go func() { _ = o.Run(t.Context()) }()
		ready := func(within time.Duration) bool {
			time.Sleep(within)
			synctest.Wait()
			return o.Ready()
		}
		require.True(t, ready(10*time.Second))
		_, theirs := authority(t, "cert-manager")
		refuses.Store(true)
		c := configuration()
		for i := range c.Webhooks {
			c.Webhooks[i].ClientConfig.CABundle = []byte(theirs)
		}
		_, err := client.AdmissionregistrationV1().MutatingWebhookConfigurations().Update(t.Context(), c, metav1.UpdateOptions{})
		require.NoError(t, err)
		assert.False(t, ready(10*time.Second), "not ready while the API server does not trust the certificate")
		refuses.Store(false)
		assert.True(t, ready(2*time.Minute), "ready after the trust is restored")
	})
}

// Without a time server, the clock of a node may be wrong by hours or years. The API server does not trust certificates from its
// future, and a certificate expired by one node's clock is in use by other replicas.
func TestCertificateUsesAPIServerClock(t *testing.T) {
	for _, ahead := range []time.Duration{-10 * 365 * 24 * time.Hour, -2 * time.Hour, 2 * time.Hour, 120 * 24 * time.Hour} {
		t.Run(ahead.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { // the time in the bubble is that of the node
				client := clientset.New(configuration())
				apiServer := func() time.Time { return time.Now().Add(-ahead) }
				o := newOwn(client, time.Minute, time.Hour)
				o.Now = apiServer
				start(t, o)
				c, err := o.GetCertificate(nil)
				require.NoError(t, err)
				roots := x509.NewCertPool()
				require.True(t, roots.AppendCertsFromPEM(bundles(t, client)[0]))
				for _, at := range []time.Time{apiServer(), apiServer().Add(89 * 24 * time.Hour)} {
					_, err = c.Leaf.Verify(x509.VerifyOptions{DNSName: host, Roots: roots, CurrentTime: at})
					assert.NoError(t, err, "%s ahead", ahead)
				}
			})
		})
	}
}

// One API server with a wrong clock may cause a new certificate. The certificates of other replicas must stay trusted.
func TestAuthorityExpiresByBothClocks(t *testing.T) {
	const months = 120 * 24 * time.Hour
	for _, apiServer := range []time.Duration{-months, months} {
		t.Run(fmt.Sprintf("API server %s ahead", apiServer), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := clientset.New(configuration())
				good := newOwn(client, time.Hour, 24*time.Hour)
				start(t, good)
				bad := newOwn(client, time.Hour, 24*time.Hour)
				bad.Now = func() time.Time { return time.Now().Add(apiServer) }
				start(t, bad)
				require.NoError(t, verify(good, bundles(t, client)[0]), "the API server %s ahead", apiServer)
			})
		})
	}
}
