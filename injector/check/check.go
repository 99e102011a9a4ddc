// Package check lets the API server call the webhook. `helm test` runs it. The check does not call the webhook itself: a pod may reach a
// webhook that the API server cannot reach, and NetworkPolicies may admit only the API server.
package check

import (
	"context"
	"fmt"
	"io"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/backoff"
	"stoker.io/stoker/internal/kube"
)

// Config configures Run.
type Config struct {
	Client kube.Core
	// Configuration is the name of the MutatingWebhookConfiguration.
	Configuration string
	// Namespace is where the API server tries to create a pod, in a dry run.
	Namespace string
	// Out receives the result.
	Out io.Writer
	// Timeout is how long to retry, for a new installation, and Interval how often.
	Timeout, Interval time.Duration
}

const (
	// attemptTimeout is the time limit of one attempt.
	attemptTimeout = 10 * time.Second
	// podName is the name of the pod of a dry run.
	podName = "stoker-check"
)

// Run returns nil if the API server calls a working injector, or if the webhook configuration does not select the namespace. It prints which
// of both. The error is that of the last attempt.
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
	for _, w := range configuration.Webhooks {
		if len(w.ClientConfig.CABundle) == 0 {
			return fmt.Errorf("webhook configuration %s, entry %s: clientConfig.caBundle has no certificate yet: see the log of the Job stoker-certificate, or of cert-manager if it issues the certificate", c.Configuration, w.Name)
		}
	}
	result, err := c.dryRun(ctx)
	if err == nil {
		_, err = fmt.Fprintln(c.Out, result)
	}
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
		return fmt.Sprintf("not checked: the webhook configuration does not select namespace %s", c.Namespace), nil
	case apierrors.HasStatusCause(err, metav1.CauseType(v1alpha1.ReasonGatewaySyncNotFound)): // the injector's own answer
		return "the API server calls the injector", nil
	case apierrors.IsForbidden(err):
		return "", fmt.Errorf("the API server refuses the pod of the check before it calls the injector, or without it: %w", err)
	}
	return "", fmt.Errorf("the API server cannot call the injector: %w", err)
}
