// Package certificate provides the certificate of the webhook: a self-signed one that the replicas share in a Secret and renew,
// or a mounted one. The certificate can change without a restart.
package certificate

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	admissionregv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"stoker.io/stoker/internal/backoff"
)

// Keys of the Secret. The next certificate is stored before it is served. Its authority is published in the bundle and the
// webhook configuration meanwhile, so that the API server trusts it in time.
const (
	keyBundle    = "ca.crt"
	keyCert      = corev1.TLSCertKey
	keyKey       = corev1.TLSPrivateKeyKey
	keyNextCert  = "next.crt"
	keyNextKey   = "next.key"
	keyNextSince = "next-since"
)

// fieldManager is the field manager of all writes.
const fieldManager = "stoker-injector"

const (
	// maxTries bounds the attempts of one check when other replicas write the Secret first.
	maxTries = 5
	// retryInterval is the pause after a failed check.
	retryInterval = 5 * time.Second
	// absentInterval is the pause while there is no webhook configuration.
	absentInterval = time.Second
)

// Config says where the certificate is stored and which webhook configuration must trust it.
type Config struct {
	Client    kubernetes.Interface
	Namespace string
	Secret    string
	// Configuration is the MutatingWebhookConfiguration whose entries contain the bundle.
	Configuration string
	// Names are the DNS names and addresses of the certificate.
	Names []string
	// Interval is the interval of the checks. PublishTime is how long the authority of a new certificate is published before
	// the certificate is served. It is much longer than Interval, and than the API server needs to load the authority.
	Interval, PublishTime time.Duration
	Log                   *slog.Logger
	// OnExpiry is called with the expiry of each new certificate that is served.
	OnExpiry func(time.Time)
	// Now returns the API server's time, because the API server verifies the certificate by its own clock. The clock of this
	// node may be wrong.
	Now func() time.Time
}

// SelfSigned manages a self-signed certificate. Any number of replicas share it.
type SelfSigned struct {
	Config
	serving    atomic.Pointer[tls.Certificate]
	trusted    atomic.Bool
	servedPair [2][]byte // the pair that is served, in PEM
	absent     bool      // there was no webhook configuration at the last check
}

// NewSelfSigned returns a SelfSigned that has no certificate until Run makes or finds one.
func NewSelfSigned(c Config) *SelfSigned { return &SelfSigned{Config: c} }

// GetCertificate implements the callback of tls.Config.
func (o *SelfSigned) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if c := o.serving.Load(); c != nil {
		return c, nil
	}
	return nil, errNoCertificate
}

// Ready reports whether a certificate is served that the webhook configuration trusts. It is false without a webhook
// configuration.
func (o *SelfSigned) Ready() bool { return o.serving.Load() != nil && o.trusted.Load() }

// Run maintains the certificate until ctx is done.
func (o *SelfSigned) Run(ctx context.Context) error {
	for {
		pause := backoff.Jitter(o.Interval)
		if err := o.check(ctx); err != nil && ctx.Err() == nil {
			o.Log.Error("checking the certificate failed", "error", err)
			pause = backoff.Jitter(min(retryInterval, o.Interval))
		} else if o.absent {
			pause = backoff.Jitter(min(absentInterval, o.Interval)) // the installation is in progress
		}
		if !backoff.Wait(ctx, pause) {
			return nil
		}
	}
}

func (o *SelfSigned) check(ctx context.Context) error {
	for range maxTries {
		done, err := o.attempt(ctx)
		if done || err != nil {
			return err
		}
	}
	return fmt.Errorf("secret %s/%s changed during every attempt to update it", o.Namespace, o.Secret)
}

// attempt checks and updates the Secret and the webhook configuration once. It returns false if another replica wrote the Secret first.
func (o *SelfSigned) attempt(ctx context.Context) (done bool, err error) {
	secret, err := o.Client.CoreV1().Secrets(o.Namespace).Get(ctx, o.Secret, metav1.GetOptions{})
	absent := apierrors.IsNotFound(err)
	if err != nil && !absent {
		return false, fmt.Errorf("secret %s/%s: %w", o.Namespace, o.Secret, err)
	}
	if absent {
		secret = &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: o.Namespace, Name: o.Secret}, Type: corev1.SecretTypeTLS}
	}
	configuration, published, err := o.published(ctx)
	if err != nil {
		return false, err
	}
	k := rotation{names: o.Names, publishTime: o.PublishTime, now: o.Now(), nodeNow: time.Now(), data: secret.Data, published: published, servedPair: o.servedPair}
	changed, err := k.update()
	if err != nil {
		return false, err
	}
	if changed {
		secret.Data = k.data
		if absent {
			_, err = o.Client.CoreV1().Secrets(o.Namespace).Create(ctx, secret, metav1.CreateOptions{FieldManager: fieldManager})
		} else {
			_, err = o.Client.CoreV1().Secrets(o.Namespace).Update(ctx, secret, metav1.UpdateOptions{FieldManager: fieldManager})
		}
		switch {
		case apierrors.IsAlreadyExists(err), apierrors.IsConflict(err), absent && apierrors.IsNotFound(err):
			return false, nil
		case err != nil:
			return false, fmt.Errorf("secret %s/%s: %w", o.Namespace, o.Secret, err)
		}
		o.Log.Info("certificate updated", "action", k.action, "expires", k.serve.Leaf.NotAfter.UTC())
	}
	if err := o.publish(ctx, configuration, k.data[keyBundle]); err != nil {
		return false, err
	}
	if before := o.serving.Swap(k.serve); o.OnExpiry != nil && (before == nil || !before.Leaf.Equal(k.serve.Leaf)) {
		o.OnExpiry(k.serve.Leaf.NotAfter)
	}
	o.servedPair = [2][]byte{k.data[keyCert], k.data[keyKey]}
	o.trusted.Store(configuration != nil)
	return true, nil
}

// published returns the webhook configuration, or nil if there is none, and our authorities that every entry trusts now.
func (o *SelfSigned) published(ctx context.Context) (*admissionregv1.MutatingWebhookConfiguration, []*x509.Certificate, error) {
	c, err := o.Client.AdmissionregistrationV1().MutatingWebhookConfigurations().Get(ctx, o.Configuration, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		if !o.absent {
			o.Log.Warn("webhook configuration not found; no pod is injected", "name", o.Configuration)
		}
		o.absent = true
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("webhook configuration %s: %w", o.Configuration, err)
	}
	o.absent = false
	var all []*x509.Certificate
	for i, w := range c.Webhooks {
		list := authorities(w.ClientConfig.CABundle)
		if i == 0 {
			all = list
			continue
		}
		all = slices.DeleteFunc(all, func(a *x509.Certificate) bool { return !slices.ContainsFunc(list, a.Equal) })
	}
	return c, slices.DeleteFunc(all, func(a *x509.Certificate) bool { return a.Subject.CommonName != authorityName }), nil
}

// publish writes the bundle to every entry of the webhook configuration.
func (o *SelfSigned) publish(ctx context.Context, c *admissionregv1.MutatingWebhookConfiguration, bundle []byte) error {
	if c == nil {
		return nil
	}
	type clientConfig struct {
		CABundle []byte `json:"caBundle"`
	}
	type entry struct {
		Name         string       `json:"name"`
		ClientConfig clientConfig `json:"clientConfig"`
	}
	var entries []entry
	for _, w := range c.Webhooks {
		if !bytes.Equal(w.ClientConfig.CABundle, bundle) {
			entries = append(entries, entry{w.Name, clientConfig{bundle}})
		}
	}
	if len(entries) == 0 {
		return nil
	}
	// The patch merges entries by name. The resourceVersion prevents it from restoring a part of an entry that was just
	// removed.
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"resourceVersion": c.ResourceVersion}, "webhooks": entries})
	if err != nil {
		return err
	}
	_, err = o.Client.AdmissionregistrationV1().MutatingWebhookConfigurations().Patch(ctx, c.Name, types.StrategicMergePatchType, patch,
		metav1.PatchOptions{FieldManager: fieldManager})
	if err != nil {
		return fmt.Errorf("webhook configuration %s: %w", c.Name, err)
	}
	o.Log.Info("webhook configuration trusts the certificate", "name", c.Name)
	return nil
}
