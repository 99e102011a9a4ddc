// Package certificate issues the self-signed certificate of the webhook, makes the webhook configuration trust it, serves a mounted
// certificate, and reports whether the configuration trusts that one. Renew and Trusted run in different programs: an account that may change a
// webhook configuration is in effect an administrator of the cluster, so the program with that account listens on no port.
package certificate

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	admissionregv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"stoker.io/stoker/internal/backoff"
	"stoker.io/stoker/internal/kube"
)

// SecretName is the name of the Secret with the self-signed certificate. The chart creates it without content, so that no account of
// Stoker needs the right to create Secrets.
const SecretName = "stoker-injector-cert"

// Keys of the Secret. A certificate is stored as the next one before it is served. Its authority is published in the bundle and the
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
const fieldManager = "stoker-certificate"

// retryInterval is the pause after a failed attempt, and absentInterval that while the installation or a renewal is in progress.
const retryInterval, absentInterval = 5 * time.Second, time.Second

// Config says where the certificate is stored and which webhook configuration must trust it.
type Config struct {
	Client    kube.Core
	Namespace string
	// Configuration is the MutatingWebhookConfiguration whose entries contain the bundle.
	Configuration string
	// Names are the DNS names and addresses of the certificate.
	Names []string
	// Interval is how often Trusted checks the webhook configuration. PublishTime is how long the authority of the next certificate is
	// published before that certificate is served: much longer than the API server needs to load it.
	Interval, PublishTime time.Duration
	Log                   *slog.Logger
	// Now returns the API server's time, because the API server verifies the certificate by its own clock. The clock of this
	// node may be wrong.
	Now func() time.Time
}

// errChanged is returned if another program wrote an object first.
var errChanged = errors.New("another program changed it at the same time")

// Renew issues or renews the certificate if it is time, and publishes its authority in the webhook configuration. It tries again until
// both objects are as they should be or ctx is done; the error then is that of the last failed attempt. Several programs may run it at the
// same time.
func Renew(ctx context.Context, c Config) error {
	lastError := ""
	for {
		done, err := c.attempt(ctx)
		switch {
		case done:
			return nil
		case errors.Is(err, errChanged):
		case err != nil && err.Error() != lastError && ctx.Err() == nil:
			lastError = err.Error()
			c.Log.Warn("renewing the certificate failed", "error", err)
		}
		pause := retryInterval
		if err == nil || apierrors.IsNotFound(err) || errors.Is(err, errChanged) {
			pause = absentInterval
		}
		if !backoff.Wait(ctx, backoff.Jitter(pause)) {
			if lastError == "" {
				return context.Cause(ctx)
			}
			return errors.New(lastError)
		}
	}
}

// attempt updates the Secret, then the webhook configuration. done is false if there is no certificate to serve yet: the next attempt
// serves the one that this attempt issued, because its authority is published by then.
func (c Config) attempt(ctx context.Context) (done bool, err error) {
	secret, err := c.Client.CoreV1().Secrets(c.Namespace).Get(ctx, SecretName, metav1.GetOptions{})
	if err != nil {
		return false, fmt.Errorf("read Secret %s/%s, which the chart creates: %w", c.Namespace, SecretName, err)
	}
	configuration, err := c.Client.AdmissionregistrationV1().MutatingWebhookConfigurations().Get(ctx, c.Configuration, metav1.GetOptions{})
	if err != nil {
		return false, fmt.Errorf("read webhook configuration %s: %w", c.Configuration, err)
	}
	next := rotation{names: c.Names, publishTime: c.PublishTime, now: c.Now(), nodeNow: time.Now(), data: secret.Data, published: published(configuration)}
	changed, err := next.update()
	if err != nil {
		return false, err
	}
	if changed {
		secret.Data = next.data
		if _, err = c.Client.CoreV1().Secrets(c.Namespace).Update(ctx, secret, metav1.UpdateOptions{FieldManager: fieldManager}); err != nil {
			return false, writeError(err, "write Secret %s/%s", c.Namespace, SecretName)
		}
		c.Log.Info(next.action, "secret", SecretName)
	}
	err = c.publish(ctx, configuration, next.data[keyBundle])
	return err == nil && next.usable, err
}

// writeError wraps the error of a write. It wraps errChanged instead of a conflict.
func writeError(err error, format string, a ...any) error {
	what := fmt.Sprintf(format, a...)
	if apierrors.IsConflict(err) {
		return fmt.Errorf("%s: %w", what, errChanged)
	}
	return fmt.Errorf("%s: %w", what, err)
}

// published returns our authorities that every entry trusts now.
func published(c *admissionregv1.MutatingWebhookConfiguration) []*x509.Certificate {
	var all []*x509.Certificate
	for i, w := range c.Webhooks {
		list := authorities(w.ClientConfig.CABundle)
		if i == 0 {
			all = list
			continue
		}
		all = slices.DeleteFunc(all, func(a *x509.Certificate) bool { return !slices.ContainsFunc(list, a.Equal) })
	}
	return slices.DeleteFunc(all, func(a *x509.Certificate) bool { return a.Subject.CommonName != authorityName })
}

// publish writes the bundle to every entry of the webhook configuration.
func (c Config) publish(ctx context.Context, configuration *admissionregv1.MutatingWebhookConfiguration, bundle []byte) error {
	type clientConfig struct {
		CABundle []byte `json:"caBundle"`
	}
	type entry struct {
		Name         string       `json:"name"`
		ClientConfig clientConfig `json:"clientConfig"`
	}
	var entries []entry
	for _, w := range configuration.Webhooks {
		if !bytes.Equal(w.ClientConfig.CABundle, bundle) {
			entries = append(entries, entry{w.Name, clientConfig{bundle}})
		}
	}
	if len(entries) == 0 {
		return nil
	}
	// The patch merges entries by name. The resourceVersion prevents it from restoring a part of an entry that was just
	// removed.
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"resourceVersion": configuration.ResourceVersion}, "webhooks": entries})
	if err != nil {
		return err
	}
	_, err = c.Client.AdmissionregistrationV1().MutatingWebhookConfigurations().Patch(ctx, configuration.Name, types.StrategicMergePatchType, patch,
		metav1.PatchOptions{FieldManager: fieldManager})
	if err != nil {
		return writeError(err, "write webhook configuration %s", configuration.Name)
	}
	c.Log.Info("webhook configuration trusts the certificate", "name", configuration.Name)
	return nil
}
