package charts

import (
	"bytes"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"stoker.io/stoker/test/program"
)

// rightsOf applies the RBAC objects that the chart renders for a component and waits until they are in
// force.
func (s *server) rightsOf(t *testing.T, component string, v values) {
	t.Helper()
	applied := objects{}
	for name, o := range rendered(t, v) {
		switch o.GetKind() {
		case "ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding":
			if o.GetLabels()["app.kubernetes.io/component"] == component {
				_, err := s.apply(t.Context(), o, false)
				require.NoError(t, err, name)
				applied[name] = o
			}
		}
	}
	require.Greater(t, len(applied), 1)
	s.bound(t, applied)
}

// heldToAnnotations checks that an account can patch the request annotations of a GatewaySync and nothing
// else.
func heldToAnnotations(t *testing.T, syncs dynamic.ResourceInterface) {
	t.Helper()
	dry := metav1.PatchOptions{FieldManager: "stoker-request", DryRun: []string{metav1.DryRunAll}}
	_, err := syncs.Patch(t.Context(), "plant", types.MergePatchType,
		[]byte(`{"metadata":{"annotations":{"stoker.io/requested-ref":"v2","stoker.io/requested-over":"v2@main","stoker.io/requested-ids":"{}"}}}`), dry)
	assert.NoError(t, err)
	for _, patch := range everything {
		_, err := syncs.Patch(t.Context(), "plant", types.MergePatchType, []byte(patch), dry)
		denied(t, err, "stoker-gatewaysyncs", "may patch GatewaySyncs and not update them")
	}
}

func webhookSecret(t *testing.T, p *plant, name, value string) {
	t.Helper()
	_, err := p.core.CoreV1().Secrets(p.namespace).Create(t.Context(),
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, StringData: map[string]string{"token": value}}, metav1.CreateOptions{})
	require.NoError(t, err)
}

// C5, R7: The receiver sets request annotations in all namespaces. It reads only the Secrets listed in
// webhookReceiver.secrets.
func TestReceiverRights(t *testing.T) {
	t.Parallel()
	p := policed(t)
	elsewhere := newPlant(t, p.server)
	for _, in := range []*plant{p, elsewhere} {
		webhookSecret(t, in, "stoker-webhook", "not told")
	}
	theirs(t, p.server, p.namespace, namespace)
	p.rightsOf(t, "receiver", with(on, set("webhookReceiver.secrets", []any{values{"namespace": p.namespace, "name": "stoker-webhook"}})))
	who := p.As(t, namespace, "stoker-receiver", "")
	ctx, c := t.Context(), core(t, who)
	syncs := p.as(t, who, "gatewaysyncs")
	list, get, create, patch := metav1.ListOptions{}, metav1.GetOptions{}, metav1.CreateOptions{}, metav1.PatchOptions{}
	everywhere := &plant{server: p.server}
	verbs{
		"list GatewaySyncs everywhere": func() error { return second(everywhere.as(t, who, "gatewaysyncs").List(ctx, list)) },
		"get a GatewaySync":            func() error { return second(syncs.Get(ctx, "plant", get)) },
		"watch GatewaySyncs": func() error {
			w, err := syncs.Watch(ctx, list)
			if err == nil {
				w.Stop()
			}
			return err
		},
		"get the named Secret": func() error {
			return second(c.CoreV1().Secrets(p.namespace).Get(ctx, "stoker-webhook", get))
		},
	}.allowed(t)
	heldToAnnotations(t, syncs)
	heldToAnnotations(t, elsewhere.as(t, who, "gatewaysyncs"))
	live, err := syncs.Get(ctx, "plant", get)
	require.NoError(t, err)
	verbs{
		"list SyncReports":                        func() error { return second(p.as(t, who, "syncreports").List(ctx, list)) },
		"get another Secret":                      func() error { return second(c.CoreV1().Secrets(p.namespace).Get(ctx, "theirs", get)) },
		"list Secrets":                            func() error { return second(c.CoreV1().Secrets(p.namespace).List(ctx, list)) },
		"list Secrets of its own":                 func() error { return second(c.CoreV1().Secrets(namespace).List(ctx, list)) },
		"get a Secret of its own":                 func() error { return second(c.CoreV1().Secrets(namespace).Get(ctx, "theirs", get)) },
		"get a Secret of the same name elsewhere": func() error { return second(c.CoreV1().Secrets(elsewhere.namespace).Get(ctx, "stoker-webhook", get)) },
		"write the Secret it reads": func() error {
			return second(c.CoreV1().Secrets(p.namespace).Patch(ctx, "stoker-webhook", types.MergePatchType, []byte(`{}`), patch))
		},
		"list ConfigMaps":      func() error { return second(c.CoreV1().ConfigMaps(p.namespace).List(ctx, list)) },
		"list pods":            func() error { return second(c.CoreV1().Pods(p.namespace).List(ctx, list)) },
		"list namespaces":      func() error { return second(c.CoreV1().Namespaces().List(ctx, list)) },
		"list leases":          func() error { return second(c.CoordinationV1().Leases(namespace).List(ctx, list)) },
		"update a GatewaySync": func() error { return second(syncs.Update(ctx, live, metav1.UpdateOptions{})) },
		"delete a GatewaySync": func() error { return syncs.Delete(ctx, "plant", metav1.DeleteOptions{}) },
		"write a GatewaySync's status": func() error {
			return second(syncs.Patch(ctx, "plant", types.MergePatchType, []byte(`{"status":{"gatewaysReady":"9/9"}}`), patch, "status"))
		},
		"list SyncTargets": func() error { return second(p.as(t, who, "synctargets").List(ctx, list)) },
		"patch a SyncTarget": func() error {
			return second(p.as(t, who, "synctargets").Patch(ctx, "plant", types.MergePatchType, []byte(`{}`), patch))
		},
		"patch a SyncReport": func() error {
			return second(p.as(t, who, "syncreports").Patch(ctx, "line-0", types.MergePatchType, []byte(`{}`), patch))
		},
		"give itself a right": func() error {
			return second(c.RbacV1().RoleBindings(p.namespace).Create(ctx, binding("x", "stoker-agent"), create))
		},
		"token of an account": func() error {
			return second(c.CoreV1().ServiceAccounts(p.namespace).CreateToken(ctx, "gateway", &authenticationv1.TokenRequest{}, create))
		},
	}.forbidden(t)
}

// A disabled receiver leaves no object behind, whatever its other values are.
func TestDisabledReceiver(t *testing.T) {
	t.Parallel()
	off := with(onIngress, onTLS, onNetworking, set("webhookReceiver.secrets", []any{values{"namespace": "line", "name": "stoker-webhook"}}),
		set("metrics.serviceMonitor.enabled", true), set("watchNamespaces", []any{"north"}), set("webhookReceiver.enabled", false))
	for name := range all(t, off) {
		assert.NotContains(t, name, "receiver")
	}
}

// C6: With namespaces listed, the receiver cannot reach GatewaySyncs in other namespaces.
func TestReceiverRightsInListedNamespaces(t *testing.T) {
	t.Parallel()
	all := rendered(t, with(on, set("watchNamespaces", []any{"north", "south"})))
	for name, o := range all {
		if strings.HasPrefix(o.GetKind(), "Cluster") {
			assert.NotContains(t, name, "receiver")
		}
	}
	inNamespace := rulesOf(t, all["Role/north/stoker-receiver-watch"])
	assert.Equal(t, rulesOf(t, rendered(t, on)["ClusterRole/stoker-receiver"]), inNamespace, "the rules of the Role must match those of the ClusterRole")
	look(t, all, "RoleBinding/south/stoker-receiver-watch", "subjects/0", values{"kind": "ServiceAccount", "name": "stoker-receiver", "namespace": namespace})
	look(t, all, receiver, receiverArgs, has{element: "--watch-namespace=north"})
	look(t, all, receiver, receiverArgs, has{element: "--watch-namespace=south"})
}

// C5: The Jobs of a namespace may make requests there and read the listed Applications.
func TestHookRights(t *testing.T) {
	t.Parallel()
	p := policed(t)
	elsewhere := newPlant(t, p.server)
	theirs(t, p.server, p.namespace)
	argocd := p.Namespace(t)
	p.rightsOf(t, "hooks", with(set("hooks.namespaces", []any{p.namespace}),
		set("hooks.applications", values{"namespace": argocd, "names": []any{"plant"}})))
	who := p.As(t, p.namespace, "stoker-hooks", "")
	ctx, c := t.Context(), core(t, who)
	syncs := p.as(t, who, "gatewaysyncs")
	heldToAnnotations(t, syncs)
	list, get, create, patch := metav1.ListOptions{}, metav1.GetOptions{}, metav1.CreateOptions{}, metav1.PatchOptions{}
	applications := func(in string) dynamic.ResourceInterface {
		client, err := dynamic.NewForConfig(who)
		require.NoError(t, err)
		return client.Resource(schema.GroupVersionResource{Group: "argoproj.io", Version: "v1alpha1", Resource: "applications"}).Namespace(in)
	}
	// The cluster does not have this kind, so an allowed request returns NotFound.
	_, err := applications(argocd).Get(ctx, "plant", get)
	assert.True(t, apierrors.IsNotFound(err), "%v", err)
	verbs{
		"list GatewaySyncs": func() error { return second(syncs.List(ctx, list)) },
		"list SyncTargets":  func() error { return second(p.as(t, who, "synctargets").List(ctx, list)) },
		"list SyncReports":  func() error { return second(p.as(t, who, "syncreports").List(ctx, list)) },
	}.allowed(t)
	verbs{
		"get another Application": func() error { return second(applications(argocd).Get(ctx, "other", get)) },
		"list Applications":       func() error { return second(applications(argocd).List(ctx, list)) },
		"patch its Application": func() error {
			return second(applications(argocd).Patch(ctx, "plant", types.MergePatchType, []byte(`{}`), patch))
		},
		"get an Application of the same name elsewhere": func() error { return second(applications(p.namespace).Get(ctx, "plant", get)) },
		"request a ref elsewhere": func() error {
			return second(elsewhere.as(t, who, "gatewaysyncs").Patch(ctx, "plant", types.MergePatchType, []byte(`{"metadata":{"annotations":{"stoker.io/requested-by":"cli"}}}`), patch))
		},
		"get a GatewaySync elsewhere": func() error { return second(elsewhere.as(t, who, "gatewaysyncs").Get(ctx, "plant", get)) },
		"get a Secret":                func() error { return second(c.CoreV1().Secrets(p.namespace).Get(ctx, "theirs", get)) },
		"list Secrets":                func() error { return second(c.CoreV1().Secrets(p.namespace).List(ctx, list)) },
		"list ConfigMaps":             func() error { return second(c.CoreV1().ConfigMaps(p.namespace).List(ctx, list)) },
		"list pods":                   func() error { return second(c.CoreV1().Pods(p.namespace).List(ctx, list)) },
		"create a pod":                func() error { return second(c.CoreV1().Pods(p.namespace).Create(ctx, p.pods[0].DeepCopy(), create)) },
		"delete a GatewaySync":        func() error { return syncs.Delete(ctx, "plant", metav1.DeleteOptions{}) },
		"patch a SyncTarget": func() error {
			return second(p.as(t, who, "synctargets").Patch(ctx, "plant", types.MergePatchType, []byte(`{}`), patch))
		},
		"list GatewaySyncs of all": func() error { return second((&plant{server: p.server}).as(t, who, "gatewaysyncs").List(ctx, list)) },
	}.forbidden(t)
}

// Runs the program of the image with the arguments and rights that the chart sets. It answers the check of
// helm test and accepts requests with the secret of the GatewaySync. It rejects all other requests alike.
func TestReceiverRunsWithChartRights(t *testing.T) {
	t.Parallel()
	p := policed(t)
	webhookSecret(t, p, "stoker-webhook", "S3CR3T-chart")
	_, err := p.as(t, p.RESTConfig(), "gatewaysyncs").Patch(t.Context(), "plant", types.MergePatchType,
		[]byte(`{"spec":{"webhook":{"secretRef":{"name":"stoker-webhook","key":"token"}}}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	v := with(on, set("webhookReceiver.secrets", []any{values{"namespace": p.namespace, "name": "stoker-webhook"}}))
	p.rightsOf(t, "receiver", v)
	who := p.As(t, namespace, "stoker-receiver", "")

	all := pods(t, v)
	arguments := append(all[receiver].Spec.Containers[0].Args, "--kubeconfig="+kubeconfigOf(t, who),
		"--webhook-addr=127.0.0.1:0", "--health-addr=127.0.0.1:0", "--metrics-addr=127.0.0.1:0")
	cmd := exec.Command(shipped(t, "receiver"), arguments...)
	cmd.Env = []string{"POD_NAMESPACE=" + namespace}
	process := program.Start(t, "receiver", cmd)
	require.Eventually(t, func() bool {
		health := process.Log.Address("health-addr")
		if health == "" {
			return false
		}
		response, err := http.Get("http://" + health + "/readyz")
		if err != nil {
			return false
		}
		return response.Body.Close() == nil && response.StatusCode == http.StatusOK
	}, eventually, pause)
	address := "http://" + process.Log.Address("webhook-addr")

	check := all[receiverCheck].Spec.Containers[0].Args
	require.Equal(t, "--url=http://stoker-receiver.stoker-system.svc:9444", check[1])
	said, err := exec.CommandContext(t.Context(), shipped(t, "receiver"), check[0], "--url="+address).CombinedOutput()
	require.NoError(t, err, "%s", said)

	post := func(name, token string) int {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, address+"/webhook/"+p.namespace+"/"+name, bytes.NewBufferString(`{"ref":"v2"}`))
		require.NoError(t, err)
		request.Header.Set("Authorization", "Bearer "+token)
		request.Header.Set("Content-Type", "application/json")
		response, err := http.DefaultClient.Do(request)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		return response.StatusCode
	}
	assert.Equal(t, http.StatusUnauthorized, post("plant", "guess"))
	assert.Equal(t, http.StatusUnauthorized, post("nobody", "S3CR3T-chart"))
	require.Equal(t, http.StatusAccepted, post("plant", "S3CR3T-chart"))
	live, err := p.as(t, p.RESTConfig(), "gatewaysyncs").Get(t.Context(), "plant", metav1.GetOptions{})
	require.NoError(t, err)
	assert.Equal(t, "v2", live.GetAnnotations()["stoker.io/requested-ref"])
	ref, _ := at(live.Object, "spec/git/ref")
	assert.Equal(t, "main", ref)

	began := time.Now()
	require.NoError(t, process.End(t, syscall.SIGTERM))
	grace := time.Duration(*all[receiver].Spec.TerminationGracePeriodSeconds)*time.Second - time.Duration(all[receiver].Spec.Containers[0].Lifecycle.PreStop.Sleep.Seconds)*time.Second
	assert.Less(t, time.Since(began), grace)
	assert.NotContains(t, process.Log.String(), "S3CR3T")
}

// kubeconfigOf writes a kubeconfig for an account.
func kubeconfigOf(t *testing.T, who *rest.Config) string {
	t.Helper()
	kc := clientcmdapi.NewConfig()
	kc.Clusters["c"] = &clientcmdapi.Cluster{Server: who.Host, CertificateAuthorityData: who.CAData, CertificateAuthority: who.CAFile}
	kc.AuthInfos["c"] = &clientcmdapi.AuthInfo{Token: who.BearerToken}
	kc.Contexts["c"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "c"}
	kc.CurrentContext = "c"
	file := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, clientcmd.WriteToFile(*kc, file))
	require.NoError(t, os.Chmod(file, 0o600))
	return file
}
