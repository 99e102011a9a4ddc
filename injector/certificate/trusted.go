package certificate

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	admissionregv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/internal/backoff"
	"stoker.io/stoker/internal/keypair"
)

// readTimeout is the time limit for reading the webhook configuration.
const readTimeout = 10 * time.Second

// Trusted serves a mounted certificate and checks that the webhook configuration trusts it. With cert-manager, both change at different
// times: the configuration within a second, the mounted file up to a minute later. The API server cannot call the webhook in
// between.
type Trusted struct {
	*keypair.Mounted
	Config
	trusted atomic.Bool
	problem string // the last one that was logged
}

// NewTrusted returns a Trusted. It uses Client, Configuration, Interval, Log and Now of c.
func NewTrusted(from *keypair.Mounted, c Config) *Trusted { return &Trusted{Mounted: from, Config: c} }

// Ready reports whether a certificate is served that every entry of the webhook configuration trusts. If the configuration
// cannot be read, the last result stays valid.
func (m *Trusted) Ready() bool { return m.Mounted.Ready() && m.trusted.Load() }

// Run rereads the certificate and checks the webhook configuration until ctx is done.
func (m *Trusted) Run(ctx context.Context) error {
	var mounted sync.WaitGroup
	defer mounted.Wait()
	mounted.Go(func() { _ = m.Mounted.Run(ctx) }) // always nil
	for {
		m.checkTrust(ctx)
		pause := m.Interval
		if !m.trusted.Load() {
			pause = min(absentInterval, m.Interval) // the installation or a renewal is in progress
		}
		if !backoff.Wait(ctx, backoff.Jitter(pause)) {
			return nil
		}
	}
}

func (m *Trusted) checkTrust(ctx context.Context) {
	pair, err := m.GetCertificate(nil)
	if err != nil {
		return // Mounted logs the reason
	}
	bounded, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	c, err := m.Client.AdmissionregistrationV1().MutatingWebhookConfigurations().Get(bounded, m.Configuration, metav1.GetOptions{})
	var why string
	switch {
	case ctx.Err() != nil:
		return
	case apierrors.IsNotFound(err):
		why, err = "webhook configuration not found", nil
	case err != nil:
		m.logOnce("reading the webhook configuration failed", err)
		return
	default:
		why, err = trustProblem(c, pair, m.Now())
	}
	if why != "" {
		m.trusted.Store(false)
		m.logOnce(why+"; no pod is injected", err)
		return
	}
	m.problem = ""
	if !m.trusted.Swap(true) {
		m.Log.Info("webhook configuration trusts the certificate", "name", m.Configuration)
	}
}

// logOnce logs a problem unless it is the same as the last one. It does not compare errors, because their texts contain the time.
func (m *Trusted) logOnce(what string, err error) {
	if what == m.problem {
		return
	}
	m.problem = what
	log := m.Log.With("name", m.Configuration)
	if err != nil {
		log = log.With("error", err)
	}
	log.Warn(what)
}

// trustProblem returns why the API server would reject the certificate, with the error of x509 if there is one, or "".
func trustProblem(c *admissionregv1.MutatingWebhookConfiguration, pair *tls.Certificate, now time.Time) (string, error) {
	intermediates := x509.NewCertPool()
	for _, raw := range pair.Certificate[1:] {
		if authority, err := x509.ParseCertificate(raw); err == nil {
			intermediates.AddCert(authority)
		}
	}
	if len(c.Webhooks) == 0 {
		return "the webhook configuration has no entry", nil
	}
	for i := range c.Webhooks {
		w := &c.Webhooks[i]
		roots := x509.NewCertPool()
		// Without a bundle the API server uses its system roots, which are unknown here.
		if !roots.AppendCertsFromPEM(w.ClientConfig.CABundle) {
			return fmt.Sprintf("entry %s of the webhook configuration has no caBundle", w.Name), nil
		}
		_, err := pair.Leaf.Verify(x509.VerifyOptions{DNSName: serverName(w), Roots: roots, Intermediates: intermediates, CurrentTime: now})
		if err != nil {
			return fmt.Sprintf("the caBundle of entry %s of the webhook configuration does not match the certificate", w.Name), err
		}
	}
	return "", nil
}

// serverName returns the host name by which the API server calls the webhook of an entry, or "".
func serverName(w *admissionregv1.MutatingWebhook) string {
	if s := w.ClientConfig.Service; s != nil {
		return s.Name + "." + s.Namespace + ".svc"
	}
	if w.ClientConfig.URL != nil {
		if u, err := url.Parse(*w.ClientConfig.URL); err == nil {
			return u.Hostname()
		}
	}
	return ""
}
