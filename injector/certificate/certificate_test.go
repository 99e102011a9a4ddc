package certificate_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionregv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	k8stesting "k8s.io/client-go/testing"

	"stoker.io/stoker/injector/certificate"
	"stoker.io/stoker/internal/keypair"
	"stoker.io/stoker/test/clientset"
	"stoker.io/stoker/test/cluster/pki"
	"stoker.io/stoker/test/program"
)

const (
	host   = "stoker-injector.stoker-system.svc"
	system = "stoker-system"
)

func configuration() *admissionregv1.MutatingWebhookConfiguration {
	return &admissionregv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "stoker-injector"},
		Webhooks:   []admissionregv1.MutatingWebhook{{Name: "pods.stoker.io"}, {Name: "require.pods.stoker.io"}},
	}
}

// empty is the Secret that the chart creates.
func empty() *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: certificate.SecretName, Labels: map[string]string{"team": "north"}}}
}

func settings(client kubernetes.Interface) certificate.Config {
	return certificate.Config{
		Client: client, Namespace: system, Configuration: "stoker-injector", Names: []string{host, "127.0.0.1"}, PublishTime: time.Hour,
		Log: slog.New(slog.DiscardHandler), Now: time.Now,
	}
}

func renew(t *testing.T, c certificate.Config) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	require.NoError(t, certificate.Renew(ctx, c))
}

func stored(t *testing.T, client kubernetes.Interface) *corev1.Secret {
	t.Helper()
	s, err := client.CoreV1().Secrets(system).Get(t.Context(), certificate.SecretName, metav1.GetOptions{})
	require.NoError(t, err)
	return s
}

func bundles(t *testing.T, client kubernetes.Interface) [][]byte {
	t.Helper()
	c, err := client.AdmissionregistrationV1().MutatingWebhookConfigurations().Get(t.Context(), "stoker-injector", metav1.GetOptions{})
	require.NoError(t, err)
	require.Len(t, c.Webhooks, 2)
	return [][]byte{c.Webhooks[0].ClientConfig.CABundle, c.Webhooks[1].ClientConfig.CABundle}
}

// verify checks a certificate as the API server does: it trusts only the bundle.
func verify(c *tls.Certificate, bundle []byte) error {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(bundle)
	_, err := c.Leaf.Verify(x509.VerifyOptions{DNSName: host, Roots: roots, CurrentTime: time.Now()})
	return err
}

func pairOf(t *testing.T, s *corev1.Secret) *tls.Certificate {
	t.Helper()
	c, err := tls.X509KeyPair(s.Data["tls.crt"], s.Data["tls.key"])
	require.NoError(t, err)
	return &c
}

// kubelet mounts the Secret of a replica. Like a volume with items, it keeps the last content while a key is missing.
type kubelet struct{ dir string }

func (k kubelet) update(t *testing.T, client kubernetes.Interface) {
	t.Helper()
	data := stored(t, client).Data
	if data["tls.crt"] == nil || data["tls.key"] == nil {
		return
	}
	for _, name := range []string{"tls.crt", "tls.key"} {
		require.NoError(t, os.WriteFile(filepath.Join(k.dir, name), data[name], 0o600))
	}
}

// I8: three replicas over 400 days, whose kubelets deliver the Secret up to three hours late, and an API server that loads a new bundle
// half an hour late. The renewal runs every hour, and not at all for two days once. The content of the Secret is lost once. Every
// replica is trusted in every hour, and gets each new certificate without a restart.
func TestRotationBreaksNoConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := clientset.New(configuration(), empty())
		ctx, cancel := context.WithCancel(t.Context())
		var group sync.WaitGroup
		defer group.Wait()
		defer cancel()
		renew(t, settings(client))
		var kubelets []kubelet
		var replicas []*keypair.Mounted
		for range 3 {
			k := kubelet{t.TempDir()}
			k.update(t, client)
			m := keypair.NewMounted(k.dir, 20*time.Minute, slog.New(slog.DiscardHandler), nil)
			group.Go(func() { assert.NoError(t, m.Run(ctx)) })
			kubelets, replicas = append(kubelets, k), append(replicas, m)
		}
		synctest.Wait()
		days, lost, renewals := 400, 200, 5
		if testing.Short() {
			days, lost, renewals = 150, 100, 2
		}
		leaves := map[string]bool{}
		known := bundles(t, client)[0]
		for hour := range days * 24 {
			if hour == lost*24 {
				s := stored(t, client)
				s.Data = nil
				_, err := client.CoreV1().Secrets(system).Update(ctx, s, metav1.UpdateOptions{})
				require.NoError(t, err)
			}
			if hour < 59*24 || hour >= 61*24 {
				renew(t, settings(client))
			}
			for i, m := range replicas {
				if hour%3 == i {
					kubelets[i].update(t, client)
				}
				c, err := m.GetCertificate(nil)
				require.NoError(t, err)
				require.NoError(t, verify(c, known), "replica %d in hour %d", i, hour)
				leaves[c.Leaf.SerialNumber.String()] = true
			}
			time.Sleep(30 * time.Minute)
			now := bundles(t, client)
			assert.Equal(t, now[0], now[1], "both entries must trust the same authority")
			known = now[0]
			time.Sleep(30 * time.Minute)
		}
		assert.Greater(t, len(leaves), renewals, "the certificate must be renewed every 60 days")
	})
}

// I8: a run that stops after any of its writes leaves the replicas with a certificate that the API server trusts, and the next run ends
// what it began.
func TestRenewalStopsAfterAnyWrite(t *testing.T) {
	for name, begin := range map[string]func(t *testing.T, client *clientset.Fake){
		"first certificate": func(*testing.T, *clientset.Fake) {},
		"lost content": func(t *testing.T, client *clientset.Fake) {
			renew(t, settings(client))
			s := stored(t, client)
			s.Data = nil
			_, err := client.CoreV1().Secrets(system).Update(t.Context(), s, metav1.UpdateOptions{})
			require.NoError(t, err)
		},
		"renewal": func(t *testing.T, client *clientset.Fake) {
			renew(t, settings(client))
			time.Sleep(61 * 24 * time.Hour)
		},
	} {
		for writes := range 4 {
			t.Run(fmt.Sprintf("%s/%d", name, writes), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					client := clientset.New(configuration(), empty())
					begin(t, client)
					before := stored(t, client)
					ctx, stop := context.WithCancel(t.Context())
					left := writes
					limit := func(k8stesting.Action) (bool, runtime.Object, error) {
						if left == 0 {
							stop()
							return true, nil, errors.New("stopped")
						}
						left--
						return false, nil, nil
					}
					client.PrependReactor("update", "secrets", func(a k8stesting.Action) (bool, runtime.Object, error) {
						if ctx == nil {
							return false, nil, nil
						}
						return limit(a)
					})
					client.PrependReactor("patch", "mutatingwebhookconfigurations", func(a k8stesting.Action) (bool, runtime.Object, error) {
						if ctx == nil {
							return false, nil, nil
						}
						return limit(a)
					})
					err := certificate.Renew(ctx, settings(client))
					assert.Equal(t, ctx.Err() != nil, err != nil, "a write was refused, and the result is %v", err)
					stop()
					ctx = nil
					for _, s := range []*corev1.Secret{before, stored(t, client)} { // before: a kubelet that is late
						if s.Data["tls.crt"] != nil {
							assert.NoError(t, verify(pairOf(t, s), bundles(t, client)[1]))
						}
					}
					renew(t, settings(client))
					time.Sleep(2 * time.Hour)
					renew(t, settings(client))
					assert.NoError(t, verify(pairOf(t, stored(t, client)), bundles(t, client)[1]))
					if name != "first certificate" {
						assert.NotEqual(t, before.Data["tls.crt"], stored(t, client).Data["tls.crt"])
					}
				})
			})
		}
	}
}

// I8: the Job of an upgrade and the CronJob run at the same time.
func TestRenewalsAgreeOnFirstCertificate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := clientset.New(configuration(), empty())
		var group sync.WaitGroup
		for range 8 {
			group.Go(func() {
				assert.NoError(t, certificate.Renew(t.Context(), settings(client)))
			})
		}
		group.Wait()
		s := stored(t, client)
		assert.NoError(t, verify(pairOf(t, s), bundles(t, client)[0]))
		renew(t, settings(client))
		assert.Equal(t, s.Data, stored(t, client).Data, "nothing is left to do")
	})
}

func TestAuthorityKeyIsNotStored(t *testing.T) {
	client := clientset.New(configuration(), empty())
	renew(t, settings(client))
	s := stored(t, client)
	assert.ElementsMatch(t, []string{"ca.crt", "tls.crt", "tls.key"}, slices.Collect(maps.Keys(s.Data)))
	assert.Equal(t, empty().Labels, s.Labels, "the rest of the Secret is the chart's")
}

func TestUnusableCertificateIsReissued(t *testing.T) {
	for name, spoil := range map[string]func(map[string][]byte){
		"empty":       func(d map[string][]byte) { clear(d) },
		"no PEM":      func(d map[string][]byte) { d["tls.crt"] = []byte("x") },
		"another key": func(d map[string][]byte) { d["tls.key"] = d["tls.crt"] },
		"huge bundle": func(d map[string][]byte) {
			for range 200 { // setup: a bundle that is longer than any of ours
				d["ca.crt"] = append(d["ca.crt"], d["tls.crt"]...)
			}
			d["tls.crt"] = nil
		},
		"invalid next authority": func(d map[string][]byte) {
			d["tls.crt"], d["next.crt"], d["next-since"] = nil, []byte("x"), []byte("never")
		},
	} {
		t.Run(name, func(t *testing.T) {
			client := clientset.New(configuration(), empty())
			renew(t, settings(client))
			served := pairOf(t, stored(t, client))
			s := stored(t, client)
			spoil(s.Data)
			_, err := client.CoreV1().Secrets(system).Update(t.Context(), s, metav1.UpdateOptions{})
			require.NoError(t, err)
			renew(t, settings(client))
			assert.NoError(t, verify(pairOf(t, stored(t, client)), bundles(t, client)[0]))
			assert.NoError(t, verify(served, bundles(t, client)[0]), "a replica serves it until its kubelet updates the mount")
		})
	}
}

// An entry that lost its bundle, for example through kubectl replace, gets the bundle back.
func TestLostBundleIsRestored(t *testing.T) {
	client := clientset.New(configuration(), empty())
	renew(t, settings(client))
	before := bundles(t, client)[0]
	_, err := client.AdmissionregistrationV1().MutatingWebhookConfigurations().Update(t.Context(), configuration(), metav1.UpdateOptions{})
	require.NoError(t, err)
	renew(t, settings(client))
	assert.Equal(t, [][]byte{before, before}, bundles(t, client))
}

// The Job may start before the rest of the installation exists. Without it, the error names what is missing.
func TestRenewalWaitsForTheInstallation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := clientset.New()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		assert.ErrorContains(t, certificate.Renew(ctx, settings(client)), "stoker-system/stoker-injector-cert")
		done := make(chan error, 1)
		go func() { done <- certificate.Renew(t.Context(), settings(client)) }()
		synctest.Wait()
		_, err := client.CoreV1().Secrets(system).Create(t.Context(), empty(), metav1.CreateOptions{})
		require.NoError(t, err)
		time.Sleep(time.Minute)
		assert.Empty(t, stored(t, client).Data, "no certificate is served before the API server trusts it")
		_, err = client.AdmissionregistrationV1().MutatingWebhookConfigurations().Create(t.Context(), configuration(), metav1.CreateOptions{})
		require.NoError(t, err)
		require.NoError(t, <-done)
		assert.NoError(t, verify(pairOf(t, stored(t, client)), bundles(t, client)[0]))
	})
}

// Without a time server, the clock of a node may be wrong by hours or years. The API server does not trust certificates from its
// future, and a certificate expired by one node's clock is in use by replicas.
func TestCertificateUsesAPIServerClock(t *testing.T) {
	for _, ahead := range []time.Duration{-10 * 365 * 24 * time.Hour, -2 * time.Hour, 2 * time.Hour, 120 * 24 * time.Hour} {
		t.Run(ahead.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { // the time in the bubble is that of the node
				client := clientset.New(configuration(), empty())
				c := settings(client)
				c.Now = func() time.Time { return time.Now().Add(-ahead) }
				renew(t, c)
				roots := x509.NewCertPool()
				require.True(t, roots.AppendCertsFromPEM(bundles(t, client)[0]))
				for _, at := range []time.Time{c.Now(), c.Now().Add(89 * 24 * time.Hour)} {
					_, err := pairOf(t, stored(t, client)).Leaf.Verify(x509.VerifyOptions{DNSName: host, Roots: roots, CurrentTime: at})
					assert.NoError(t, err, "%s ahead", ahead)
				}
			})
		})
	}
}

// One API server with a wrong clock may cause a new certificate. The certificates that replicas serve must stay trusted.
func TestAuthorityExpiresByBothClocks(t *testing.T) {
	const months = 120 * 24 * time.Hour
	for _, apiServer := range []time.Duration{-months, months} {
		t.Run("API server "+apiServer.String()+" ahead", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := clientset.New(configuration(), empty())
				renew(t, settings(client))
				served := pairOf(t, stored(t, client))
				bad := settings(client)
				bad.Now = func() time.Time { return time.Now().Add(apiServer) }
				renew(t, bad)
				require.NoError(t, verify(served, bundles(t, client)[0]))
			})
		})
	}
}

// mount is a directory with a certificate, and a webhook configuration that another program manages.
type mount struct {
	*testing.T
	served *certificate.Trusted
	client *clientset.Fake
	dir    string
	log    program.Log
}

func newMount(t *testing.T) *mount {
	t.Helper()
	m := &mount{T: t, client: clientset.New(), dir: t.TempDir()}
	log := slog.New(slog.NewTextHandler(&m.log, nil))
	m.served = certificate.NewTrusted(keypair.NewMounted(m.dir, 10*time.Second, log, nil), certificate.Config{
		Client: m.client, Configuration: "stoker-injector", Interval: 5 * time.Second, Log: log, Now: time.Now,
	})
	return m
}

// brings writes a key pair for the names to the directory.
func (m *mount) brings(a *pki.Authority, names ...string) {
	m.Helper()
	pair, err := a.Server(pki.Subject{Name: "stoker-injector"}, names...)
	require.NoError(m, err)
	require.NoError(m, os.WriteFile(filepath.Join(m.dir, "tls.crt"), pair.Cert, 0o600))
	require.NoError(m, os.WriteFile(filepath.Join(m.dir, "tls.key"), pair.Key, 0o600))
}

// trusts creates or replaces the webhook configuration, with one entry per bundle.
func (m *mount) trusts(bundles ...string) {
	m.Helper()
	c := configuration()
	c.Webhooks = c.Webhooks[:len(bundles)]
	for i, bundle := range bundles {
		c.Webhooks[i].ClientConfig = admissionregv1.WebhookClientConfig{CABundle: []byte(bundle),
			Service: &admissionregv1.ServiceReference{Namespace: "stoker-system", Name: "stoker-injector"}}
	}
	api := m.client.AdmissionregistrationV1().MutatingWebhookConfigurations()
	_, err := api.Update(m.Context(), c, metav1.UpdateOptions{})
	if err != nil {
		_, err = api.Create(m.Context(), c, metav1.CreateOptions{})
	}
	require.NoError(m, err)
}

// after returns Ready after the next check.
func (m *mount) after() bool {
	time.Sleep(20 * time.Second)
	synctest.Wait()
	return m.served.Ready()
}

func authority(t *testing.T, name string) (*pki.Authority, string) {
	t.Helper()
	a, err := pki.NewAuthority(name)
	require.NoError(t, err)
	pair, err := a.Pair()
	require.NoError(t, err)
	return a, string(pair.Cert)
}

// cert-manager updates the webhook configuration first; the kubelet delivers the certificate later.
func TestMountedReadiness(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		old, oldBundle := authority(t, "old")
		next, nextBundle := authority(t, "next")
		m := newMount(t)
		go func() { _ = m.served.Run(t.Context()) }()
		assert.False(t, m.after(), "not ready without a certificate")
		m.brings(old, host)
		assert.False(t, m.after(), "webhook configuration not found")
		assert.Contains(t, m.log.String(), "webhook configuration not found")
		m.trusts()
		assert.False(t, m.after(), "not ready without an entry")
		m.trusts("", "")
		assert.False(t, m.after(), "not ready before caBundle is set")
		assert.Contains(t, m.log.String(), "has no caBundle")
		m.trusts(oldBundle, "")
		assert.False(t, m.after(), "not ready until every entry trusts the certificate")
		m.trusts(oldBundle, oldBundle)
		assert.True(t, m.after())

		m.trusts(nextBundle, nextBundle)
		assert.False(t, m.after(), "not ready with the old certificate")
		assert.Contains(t, m.log.String(), "does not match the certificate")
		lines := strings.Count(m.log.String(), "\n")
		time.Sleep(time.Hour)
		synctest.Wait()
		assert.Equal(t, lines, strings.Count(m.log.String(), "\n"), "the reason must be logged once")
		m.brings(next, host)
		assert.True(t, m.after())
		m.trusts(oldBundle+nextBundle, oldBundle+nextBundle)
		assert.True(t, m.after(), "ready while both authorities are trusted")
		m.brings(next, "stoker-injector.elsewhere.svc")
		assert.False(t, m.after(), "not ready with the certificate of another name")
	})
}

func TestMountedReadinessWhileAPIServerFails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a, bundle := authority(t, "a")
		m := newMount(t)
		m.brings(a, host)
		m.trusts(bundle, bundle)
		var away atomic.Bool
		m.client.PrependReactor("get", "mutatingwebhookconfigurations", func(k8stesting.Action) (bool, runtime.Object, error) {
			return away.Load(), nil, errors.New("refused")
		})
		go func() { _ = m.served.Run(t.Context()) }()
		require.True(t, m.after())
		away.Store(true)
		assert.True(t, m.after())
		assert.Equal(t, 1, strings.Count(m.log.String(), "reading the webhook configuration failed"), "the reason must be logged once")
		m.trusts(strings.Repeat("x", 10), bundle)
		away.Store(false)
		assert.False(t, m.after())
	})
}
