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

	"stoker.io/stoker/internal/pace"
)

// lookWithin bounds one question about the webhook configuration.
const lookWithin = 10 * time.Second

// Source is where a certificate comes from.
type Source interface {
	Run(ctx context.Context) error
	Ready() bool
	GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error)
}

// Trusted serves a certificate, and knows whether the API server trusts it. Who puts one into a directory also tells the API
// server whom to trust, and is not done with both at once: cert-manager changes the webhook configuration in a second, and the
// kubelet brings the certificate a minute later. In between the API server calls nobody. So it is with the certificate that
// replicas keep themselves where an upgrade hands that over to cert-manager: they may not put theirs back.
type Trusted struct {
	Source
	Config
	trusted atomic.Bool
	said    string
}

// NewTrusted makes a Trusted. Of c it takes who has to trust the certificate, how often is looked, and by which clock.
func NewTrusted(from Source, c Config) *Trusted { return &Trusted{Source: from, Config: c} }

// Ready reports whether a certificate is served that every entry of the webhook configuration trusts. While the API server does
// not say, what it said last counts.
func (m *Trusted) Ready() bool { return m.Source.Ready() && m.trusted.Load() }

// Run looks after the certificate, and at the webhook configuration, until ctx ends.
func (m *Trusted) Run(ctx context.Context) error {
	var source sync.WaitGroup
	defer source.Wait()
	source.Go(func() { _ = m.Source.Run(ctx) }) // it always returns nil
	for {
		m.look(ctx)
		pause := m.Every
		if !m.trusted.Load() {
			pause = min(absentIn, m.Every) // it is being installed, or renewed
		}
		if !pace.Wait(ctx, pace.Jitter(pause)) {
			return nil
		}
	}
}

func (m *Trusted) look(ctx context.Context) {
	pair, err := m.GetCertificate(nil)
	if err != nil {
		return // who brings it says so
	}
	asked, cancel := context.WithTimeout(ctx, lookWithin)
	defer cancel()
	c, err := m.Client.AdmissionregistrationV1().MutatingWebhookConfigurations().Get(asked, m.Configuration, metav1.GetOptions{})
	var why string
	switch {
	case ctx.Err() != nil:
		return
	case apierrors.IsNotFound(err):
		why, err = "there is no webhook configuration", nil
	case err != nil:
		m.say("the webhook configuration cannot be read; it is tried again", err)
		return
	default:
		why, err = untrusted(c, pair, m.Now())
	}
	if why != "" {
		m.trusted.Store(false)
		m.say(why+": no pod will be injected", err)
		return
	}
	m.said = ""
	if !m.trusted.Swap(true) {
		m.Log.Info("the webhook configuration trusts the certificate", "name", m.Configuration)
	}
}

// say logs what is wrong once. Errors tell the time, so that they are not compared.
func (m *Trusted) say(what string, err error) {
	if what == m.said {
		return
	}
	m.said = what
	log := m.Log.With("name", m.Configuration)
	if err != nil {
		log = log.With("error", err)
	}
	log.Warn(what)
}

// untrusted says why the API server would not take a certificate from the webhook, "" where it would, and what x509 says of it.
func untrusted(c *admissionregv1.MutatingWebhookConfiguration, pair *tls.Certificate, now time.Time) (string, error) {
	between := x509.NewCertPool()
	for _, raw := range pair.Certificate[1:] {
		if authority, err := x509.ParseCertificate(raw); err == nil {
			between.AddCert(authority)
		}
	}
	for i := range c.Webhooks {
		w := &c.Webhooks[i]
		roots := x509.NewCertPool()
		// Without a bundle the API server goes by the authorities of its own system. What those are is seen from nowhere else.
		if !roots.AppendCertsFromPEM(w.ClientConfig.CABundle) {
			return fmt.Sprintf("entry %s of the webhook configuration has no caBundle", w.Name), nil
		}
		_, err := pair.Leaf.Verify(x509.VerifyOptions{DNSName: called(w), Roots: roots, Intermediates: between, CurrentTime: now})
		if err != nil {
			return fmt.Sprintf("the caBundle of entry %s of the webhook configuration does not lead to the certificate", w.Name), err
		}
	}
	return "", nil
}

// called is the name by which the API server calls the webhook of an entry.
func called(w *admissionregv1.MutatingWebhook) string {
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
