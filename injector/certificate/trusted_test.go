package certificate_test

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionregv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	k8stesting "k8s.io/client-go/testing"

	"stoker.io/stoker/injector/certificate"
	"stoker.io/stoker/internal/keypair"
	"stoker.io/stoker/test/clientset"
	"stoker.io/stoker/test/cluster/pki"
	"stoker.io/stoker/test/program"
)

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
