// Package check calls the webhook as the API server does: through the Service and with the CA bundle of the webhook
// configuration. `helm test` runs it.
package check

import (
	"bytes"
	"context"
	"crypto/tls"
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
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/backoff"
	"stoker.io/stoker/internal/httpclient"
	"stoker.io/stoker/internal/kube"
)

// Config configures Run.
type Config struct {
	Client kube.Core
	// Configuration is the name of the MutatingWebhookConfiguration.
	Configuration string
	// Namespace is where the API server tries to create a pod, in a dry run; empty to omit that.
	Namespace string
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
	// podName is the name of the pod of a dry run.
	podName = "stoker-check"
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
	if c.Namespace != "" {
		result, err := c.dryRun(ctx)
		if err != nil {
			return err
		}
		fmt.Fprintln(&found, result)
	}
	_, err = c.Out.Write(found.Bytes())
	return err
}

// dryRun lets the API server create a pod that requires its agent and names no existing GatewaySync, in a dry run. The injector denies it.
// If the API server cannot call the injector, the error is another one.
func (c Config) dryRun(ctx context.Context) (string, error) {
	review, err := c.Client.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{
		Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: c.Namespace, Verb: "create", Resource: "pods"}},
	}, metav1.CreateOptions{})
	switch {
	case err != nil:
		return "", fmt.Errorf("review the right to create pods in namespace %s: %w", c.Namespace, err)
	case !review.Status.Allowed: // a new binding takes a moment
		return "", fmt.Errorf("the check may not create pods in namespace %s, not even in a dry run", c.Namespace)
	}
	_, err = c.Client.CoreV1().Pods(c.Namespace).Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: podName, Annotations: map[string]string{v1alpha1.AnnotationInject: "true", v1alpha1.AnnotationRequire: "true", v1alpha1.AnnotationCRName: podName}},
		Spec:       corev1.PodSpec{AutomountServiceAccountToken: new(bool), Containers: []corev1.Container{{Name: "check", Image: "check"}}},
	}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	switch {
	case err == nil:
		return fmt.Sprintf("the API server was not tried: the webhook configuration does not select namespace %s", c.Namespace), nil
	case apierrors.IsForbidden(err):
		return "the API server calls the injector", nil
	}
	return "", fmt.Errorf("the API server cannot call the injector: %w", err)
}

// call posts the review of a plain pod to the Service of an entry, and returns the address of the Service.
func (c Config) call(ctx context.Context, w *admissionregv1.MutatingWebhook) (string, error) {
	service := w.ClientConfig.Service
	if service == nil || service.Path == nil || service.Port == nil {
		return "", errors.New("clientConfig has no Service with path and port")
	}
	roots, err := httpclient.Roots(w.ClientConfig.CABundle, false)
	if err != nil {
		return "", errors.New("clientConfig.caBundle has no certificate yet: see the log of the Job stoker-certificate, or of cert-manager if it issues the certificate")
	}
	host := service.Name + "." + service.Namespace + ".svc"
	address := net.JoinHostPort(host, strconv.Itoa(int(*service.Port)))
	client := httpclient.Policy{Dial: c.Dial, TLS: &tls.Config{RootCAs: roots, ServerName: host, MinVersion: tls.VersionTLS12}}.Client()
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
