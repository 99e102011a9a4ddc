package check_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	admissionregv1 "k8s.io/api/admissionregistration/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/injector/admission"
	"stoker.io/stoker/injector/check"
	"stoker.io/stoker/test/clientset"
)

// server is an API server with a webhook configuration.
type server struct {
	bundles [][]byte // of each entry
	allowed bool     // the check may create pods
	answer  error    // to the creation of a pod
}

func (s server) check(t *testing.T) (string, error) {
	t.Helper()
	configuration := &admissionregv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: admission.ConfigurationName}}
	for i, bundle := range s.bundles {
		configuration.Webhooks = append(configuration.Webhooks, admissionregv1.MutatingWebhook{
			Name: fmt.Sprintf("entry-%d", i), ClientConfig: admissionregv1.WebhookClientConfig{CABundle: bundle},
		})
	}
	client := clientset.New(configuration)
	client.PrependReactor("create", "selfsubjectaccessreviews", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, &authorizationv1.SelfSubjectAccessReview{Status: authorizationv1.SubjectAccessReviewStatus{Allowed: s.allowed}}, nil
	})
	client.PrependReactor("create", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		assert.Equal(t, []string{metav1.DryRunAll}, a.(clienttesting.CreateActionImpl).CreateOptions.DryRun)
		return true, &corev1.Pod{}, s.answer
	})
	var out bytes.Buffer
	err := check.Run(t.Context(), check.Config{Client: client, Configuration: admission.ConfigurationName, Out: &out, Namespace: "line"})
	return out.String(), err
}

func TestCheckRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, tries := clientset.New(), 0
		client.PrependReactor("get", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
			tries++
			return true, nil, errors.New("not yet")
		})
		began := time.Now()
		err := check.Run(t.Context(), check.Config{Client: client, Configuration: "x", Out: io.Discard, Timeout: time.Minute, Interval: 2 * time.Second})
		assert.ErrorContains(t, err, "read the webhook configuration x: not yet")
		assert.Equal(t, 32, tries) // from 0 to 62 seconds: the last one is the first after the timeout
		assert.Equal(t, 62*time.Second, time.Since(began))
	})
}

func TestCheck(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	published := [][]byte{[]byte("CA"), []byte("CA")}
	quota := apierrors.NewForbidden(pods, "stoker-check", errors.New("exceeded quota"))
	denied := apierrors.NewForbidden(pods, "stoker-check", errors.New("no GatewaySync"))
	denied.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: metav1.CauseType(v1alpha1.ReasonGatewaySyncNotFound)}}
	for name, c := range map[string]struct {
		server
		out, problem string
	}{
		"the injector denies the pod": {server{published, true, denied}, "the API server calls the injector", ""},
		"another refusal":             {server{published, true, quota}, "", "before it calls the injector, or without it: pods \"stoker-check\" is forbidden: exceeded quota"},
		"it cannot call the injector": {server{published, true, apierrors.NewInternalError(errors.New("failed calling webhook"))}, "",
			"the API server cannot call the injector: Internal error occurred: failed calling webhook"},
		"it does not call it there":  {server{published, true, nil}, "not checked: the webhook configuration does not select namespace line", ""},
		"no right":                   {server{published, false, denied}, "", "may not create pods in namespace line"},
		"no entry":                   {server{nil, true, denied}, "", "has no entry"},
		"an entry with no authority": {server{[][]byte{[]byte("CA"), nil}, true, denied}, "", "entry entry-1: clientConfig.caBundle has no certificate yet"},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := c.check(t)
			assert.Contains(t, out, c.out)
			if c.problem == "" {
				assert.NoError(t, err)
			} else {
				assert.ErrorContains(t, err, c.problem)
				assert.Empty(t, out)
			}
		})
	}
}
