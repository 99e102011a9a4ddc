// Package check calls the webhook as the API server does: through the Service and with the CA bundle of the webhook
// configuration. `helm test` runs it.
package check

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"stoker.io/stoker/internal/backoff"
)

// Config configures Run.
type Config struct {
	Client kubernetes.Interface
	// Configuration is the name of the MutatingWebhookConfiguration.
	Configuration string
	// Out receives a line for each entry of the configuration.
	Out io.Writer
	// Dial connects to an address in the cluster; nil means the default dialer.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Timeout is how long to retry, for a new installation, and Interval how often.
	Timeout, Interval time.Duration
}

const (
	// maxAnswer bounds the answer, which is short for a plain pod.
	maxAnswer = 64 << 10
	// attemptTimeout is the time limit of one attempt.
	attemptTimeout = 10 * time.Second
	uid            = types.UID("stoker-injector-check")
)

// Run returns nil when every entry of the webhook configuration leads to a working injector. The error is that of the last
// attempt.
func Run(ctx context.Context, c Config) error {
	for end := time.Now().Add(c.Timeout); ; {
		err := c.attempt(ctx)
		if err == nil || time.Now().After(end) {
			return err
		}
		if !backoff.Wait(ctx, c.Interval) {
			return err
		}
	}
}

func (c Config) attempt(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	configuration, err := c.Client.AdmissionregistrationV1().MutatingWebhookConfigurations().Get(ctx, c.Configuration, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read the webhook configuration %s: %w", c.Configuration, err)
	}
	if len(configuration.Webhooks) == 0 {
		return fmt.Errorf("webhook configuration %s has no entry: upgrade or reinstall the chart", c.Configuration)
	}
	var found bytes.Buffer
	for i := range configuration.Webhooks {
		w := &configuration.Webhooks[i]
		address, err := c.call(ctx, w)
		if err != nil {
			return fmt.Errorf("webhook configuration %s, entry %s: %w", c.Configuration, w.Name, err)
		}
		fmt.Fprintf(&found, "%s: answered by %s\n", w.Name, address)
	}
	_, err = c.Out.Write(found.Bytes())
	return err
}

// call posts the review of a plain pod to the Service of an entry, and returns the address of the Service.
func (c Config) call(ctx context.Context, w *admissionregv1.MutatingWebhook) (string, error) {
	service := w.ClientConfig.Service
	if service == nil || service.Path == nil || service.Port == nil {
		return "", errors.New("clientConfig has no Service with path and port")
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(w.ClientConfig.CABundle) {
		return "", errors.New("clientConfig.caBundle has no certificate yet: see the log of the Job stoker-certificate, or of cert-manager if it issues the certificate")
	}
	host := service.Name + "." + service.Namespace + ".svc"
	address := net.JoinHostPort(host, strconv.Itoa(int(*service.Port)))
	client := &http.Client{Transport: &http.Transport{
		DialContext: c.Dial, TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: host, MinVersion: tls.VersionTLS12}, DisableKeepAlives: true,
	}}
	body, err := review()
	if err != nil {
		return "", err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+address+*service.Path, bytes.NewReader(body))
	if err != nil {
		return "", err
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return "", fmt.Errorf("%s: %w", address, err)
	}
	if res.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s answers %s: %.200s", address, res.Status, answer)
	}
	return address, checkAnswer(address, answer)
}

func checkAnswer(address string, answer []byte) error {
	var got admissionv1.AdmissionReview
	if err := json.Unmarshal(answer, &got); err != nil {
		return fmt.Errorf("%s does not answer with an AdmissionReview: %w", address, err)
	}
	switch {
	case got.Response == nil || got.Response.UID != uid:
		return fmt.Errorf("%s answers with another uid", address)
	case !got.Response.Allowed:
		return fmt.Errorf("%s denies a pod without annotations", address)
	case len(got.Response.Patch) > 0:
		return fmt.Errorf("%s changes a pod without annotations", address)
	}
	return nil
}

// review returns the dry-run review of a pod that does not request an agent.
func review() ([]byte, error) {
	pod, err := json.Marshal(&corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Name: "check", Namespace: "default"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "check", Image: "check"}}},
	})
	if err != nil {
		return nil, err
	}
	dryRun := true
	return json.Marshal(&admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: admissionv1.SchemeGroupVersion.String(), Kind: "AdmissionReview"},
		Request: &admissionv1.AdmissionRequest{
			UID: uid, Operation: admissionv1.Create, Namespace: "default", Name: "check", DryRun: &dryRun,
			Kind:     metav1.GroupVersionKind{Version: "v1", Kind: "Pod"},
			Resource: metav1.GroupVersionResource{Version: "v1", Resource: "pods"},
			Object:   runtime.RawExtension{Raw: pod},
		},
	})
}
