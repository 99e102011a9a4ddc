package daemons

import (
	"context"
	"encoding/pem"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/desiredref"
	"stoker.io/stoker/internal/daemon"
	"stoker.io/stoker/internal/httpclient"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/internal/notify"
	"stoker.io/stoker/test/clientset"
	"stoker.io/stoker/test/program"
)

// A namespace that may not be listed, such as one that was deleted with its Role, stops no message about another one, and its record is kept.
func TestForbiddenNamespaceIsIsolated(t *testing.T) {
	var log program.Log
	arrived := make(chan struct{}, 10)
	slack := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { arrived <- struct{}{} }))
	defer slack.Close()
	gs := &v1alpha1.GatewaySync{TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.KindGatewaySync},
		ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "line", UID: "uid-1", Generation: 1}}
	gs.Spec.Git.Repo, gs.Spec.Git.Ref = "https://git.example.com/plant.git", "main"
	gs.Spec.Alerting = &v1alpha1.AlertingSpec{Enabled: true, Webhooks: []v1alpha1.AlertWebhook{{Type: v1alpha1.AlertSlack, URLSecretRef: &v1alpha1.SecretKeyRef{Name: "alerts", Key: "url"}}}}
	now := metav1.Now()
	gs.Status.ConfirmedAt, gs.Status.ObservedGeneration, gs.Status.ObservedRequest = &now, 1, desiredref.Key(gs)
	gs.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: string(v1alpha1.ReasonTemplateFailed), LastTransitionTime: now}}
	gs.Status.Outcome = &v1alpha1.Outcome{Phase: v1alpha1.OutcomeFailed, Ref: "main", Commit: strings.Repeat("a", 40), Reason: v1alpha1.ReasonTemplateFailed, Message: "no such field"}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(gs)
	require.NoError(t, err)

	resource := kube.GatewaySync.Resource()
	dynamic := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{resource: v1alpha1.KindGatewaySync + "List",
		kube.ConfigSync.Resource(): v1alpha1.KindConfigSync + "List"}, &unstructured.Unstructured{Object: content})
	dynamic.PrependReactor("list", "configsyncs", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if a.GetNamespace() == "b" {
			return true, nil, apierrors.NewForbidden(kube.ConfigSync.Resource().GroupResource(), "", errors.New("no Role"))
		}
		return true, nil, apierrors.NewNotFound(kube.ConfigSync.Resource().GroupResource(), "") // the kind is not installed
	})
	dynamic.PrependReactor("list", "gatewaysyncs", func(a clienttesting.Action) (bool, runtime.Object, error) {
		return a.GetNamespace() == "b", nil, apierrors.NewForbidden(resource.GroupResource(), "", errors.New("no Role"))
	})
	dynamic.PrependWatchReactor("*", func(a clienttesting.Action) (bool, watch.Interface, error) { // as an API server without streaming lists
		w, ok := a.(clienttesting.WatchActionImpl)
		return ok && w.ListOptions.SendInitialEvents != nil, nil, apierrors.NewInvalid(schema.GroupKind{}, "", nil)
	})
	core := clientset.New(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "alerts"}, Data: map[string][]byte{"url": []byte(slack.URL + "/hook")}},
		&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "own", Name: notifyLease, Annotations: map[string]string{annotationSent: `{"of-b":{"NotReady":"2026-11-25T12:00:00Z"}}`}}})

	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: slack.Certificate().Raw})
		done <- Notify(ctx, Cluster{Clients: kube.Clients{Core: core, Dynamic: dynamic}, Namespace: "own"},
			notify.Config{Client: httpclient.Client{CA: ca, Loopback: true}, Log: slog.New(slog.NewTextHandler(&log, nil))},
			daemon.Settings{HealthAddr: "127.0.0.1:0", MetricsAddr: "127.0.0.1:0", WatchNamespace: daemon.Texts{"a", "b"}})
	}()
	select {
	case <-arrived:
	case <-time.After(time.Minute):
		assert.Fail(t, "no message about the other namespace was sent", log.String())
	}
	stop()
	require.NoError(t, <-done)
	is, err := core.CoordinationV1().Leases("own").Get(t.Context(), notifyLease, metav1.GetOptions{})
	require.NoError(t, err)
	assert.Contains(t, is.Annotations[annotationSent], `"of-b":{"NotReady":"2026-11-25T12:00:00Z"}`)
	assert.Equal(t, 2, strings.Count(is.Annotations[annotationSent], "NotReady"))
	assert.Equal(t, 1, strings.Count(log.String(), "no messages about ConfigSyncs"), log.String())
}
