package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionregv1 "k8s.io/api/admissionregistration/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/yaml"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/injector/certificate"
	"stoker.io/stoker/injector/inject"
	"stoker.io/stoker/internal/daemon"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/test/cluster/kubetest"
	"stoker.io/stoker/test/program"
)

func TestMain(m *testing.M) { kubetest.Main(m) }

// system is the namespace of the manifests in kustomize/.
const system = "stoker-system"

// patience bounds operations that take a moment on an idle machine.
const patience = 2 * time.Minute

// settled replaces repairDelay, mountedInterval and trustInterval: the API server reaches an injector without a Service, and renew writes the
// certificate at once.
const settled = 100 * time.Millisecond

// reviewed is the timeout of a review and its lookup: the maximum of the API server. The shipped two seconds may be too short on a
// busy machine.
const reviewed = 30 * time.Second

// world is a cluster with the shipped manifests except the Deployment. Injectors run in the process of the test, with only the
// permissions of the shipped ServiceAccount.
type world struct {
	*testing.T
	cluster *kubetest.Cluster
	client  kubernetes.Interface
	dynamic dynamic.Interface
	mounted string // directory with the certificate of all replicas, which renew updates as kubelets do
}

// newWorld starts with only the CRDs and permissions. It removes what an earlier test installed.
func newWorld(t *testing.T, opts ...kubetest.Option) *world {
	t.Helper()
	w := &world{T: t, cluster: kubetest.Control(t, opts...), mounted: t.TempDir()}
	w.client = w.cluster.Client(t)
	var err error
	w.dynamic, err = dynamic.NewForConfig(w.cluster.RESTConfig())
	require.NoError(t, err)
	w.cluster.ApplyYAML(t, "", "apiVersion: v1\nkind: Namespace\nmetadata: {name: "+system+"}\n")
	w.cluster.ApplyYAML(t, system, "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: default}\n")
	w.uninstall()
	w.cluster.ApplyYAML(t, "", shipped(t, "ClusterRole/stoker-agent", injectorRights, "ServiceAccount/stoker-injector", "*/stoker-certificate", "Secret/*"))
	for _, of := range []authorizationv1.ResourceAttributes{
		{Group: "stoker.io", Resource: "gatewaysyncs", Verb: "watch"}, {Namespace: system, Group: "coordination.k8s.io", Resource: "leases", Verb: "create"},
	} {
		w.may(true, of)
	}
	w.mayAs(system, "stoker-certificate", true, authorizationv1.ResourceAttributes{Namespace: system, Resource: "secrets", Verb: "update", Name: certificate.SecretName})
	t.Cleanup(w.uninstall)
	return w
}

// may waits until the API server applies a change of the injector's permissions.
func (w *world) may(want bool, what authorizationv1.ResourceAttributes) {
	w.Helper()
	w.mayAs(system, "stoker-injector", want, what)
}

// mayAs is may for any ServiceAccount.
func (w *world) mayAs(namespace, account string, want bool, what authorizationv1.ResourceAttributes) {
	w.Helper()
	w.eventually(fmt.Sprintf("the API server applies the permission: %v", what), func() bool {
		review, err := w.client.AuthorizationV1().SubjectAccessReviews().Create(w.Context(), &authorizationv1.SubjectAccessReview{
			Spec: authorizationv1.SubjectAccessReviewSpec{User: "system:serviceaccount:" + namespace + ":" + account, ResourceAttributes: &what},
		}, metav1.CreateOptions{})
		require.NoError(w, err)
		return review.Status.Allowed == want
	})
}

// injectorRights are roles and bindings of the base.
const injectorRights = "*Role*/stoker-injector"

// shipped returns objects of the base.
func shipped(t testing.TB, patterns ...string) string {
	t.Helper()
	return kubetest.Shipped(t, "../kustomize/base", patterns...)
}

func (w *world) uninstall() {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	for _, err := range []error{
		w.client.AdmissionregistrationV1().MutatingWebhookConfigurations().Delete(ctx, "stoker-injector", metav1.DeleteOptions{}),
		w.client.CoreV1().Secrets(system).Delete(ctx, certificate.SecretName, metav1.DeleteOptions{}),
		w.client.CoordinationV1().Leases(system).Delete(ctx, leaseName, metav1.DeleteOptions{}),
	} {
		if !apierrors.IsNotFound(err) {
			assert.NoError(w, err)
		}
	}
}

// injector is one replica.
type injector struct {
	stop    func()
	log     *program.Log
	webhook string // address
	health  string
	// restarted is set if the API server restarts, because it then refuses requests until it has loaded the roles.
	restarted bool
	without   string // a namespace without permissions
}

// start runs a replica until stop or the end of the test. It returns when the replica listens.
func (w *world) start(args ...string) *injector {
	w.Helper()
	in := &injector{log: &program.Log{}}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan int, 1)
	args = append([]string{"--agent-image=ghcr.io/stoker-io/agent:1", "--kubeconfig=" + kubetest.KubeconfigFor(w, w.cluster.As(w, system, "stoker-injector", ""), ""),
		"--namespace=" + system, "--webhook-addr=127.0.0.1:0", "--health-addr=127.0.0.1:0", "--metrics-addr=127.0.0.1:0", "--certificate-dir=" + w.mounted}, args...)
	s, err := parse(args, noEnv, in.log)
	require.NoError(w, err, "%s", in.log)
	s.RepairDelay, s.MountedInterval, s.TrustInterval = settled, settled, settled
	go func() {
		done <- daemon.Exit(serveUntilDone(ctx, s, daemon.Log(in.log, s.LogFormat, s.LogLevel), reviewed), "injector", in.log)
	}()
	in.stop = sync.OnceFunc(func() {
		cancel()
		if w.Failed() {
			w.Logf("the injector said:\n%s", in.log)
		}
		assert.Equal(w, daemon.ExitDone, <-done)
		// C5: the shipped permissions must suffice.
		for line := range strings.Lines(in.log.String()) {
			if !in.restarted && (in.without == "" || !strings.Contains(line, in.without)) {
				assert.NotContains(w, line, "in API group", "a permission is missing")
			}
		}
	})
	w.Cleanup(in.stop)
	w.eventually("the injector listens", func() bool { return in.log.Address("metrics-addr") != "" })
	in.webhook, in.health = in.log.Address("webhook-addr"), in.log.Address("health-addr")
	return in
}

// configure creates the shipped webhook configuration with the address of a replica instead of the Service.
func (w *world) configure(in *injector, change ...func(*admissionregv1.MutatingWebhook)) {
	w.Helper()
	configuration := &admissionregv1.MutatingWebhookConfiguration{}
	require.NoError(w, yaml.UnmarshalStrict([]byte(shipped(w, "MutatingWebhookConfiguration/*")), configuration))
	_, port, _ := strings.Cut(in.webhook, ":")
	for i := range configuration.Webhooks {
		hook := &configuration.Webhooks[i]
		hook.TimeoutSeconds = new(int32(reviewed.Seconds()))
		hook.ClientConfig = admissionregv1.WebhookClientConfig{URL: new("https://localhost:" + port + *hook.ClientConfig.Service.Path)}
		for _, c := range change {
			c(hook)
		}
	}
	_, err := w.client.AdmissionregistrationV1().MutatingWebhookConfigurations().Create(w.Context(), configuration, metav1.CreateOptions{})
	require.NoError(w, err)
}

// renew runs the command of the Job, with the permissions of its account only, and delivers the certificate as the kubelet does.
func (w *world) renew() {
	w.Helper()
	log := &program.Log{}
	code := run(w.Context(), []string{"renew", "--namespace=" + system, "--host=localhost", "--kubeconfig=" + kubetest.KubeconfigFor(w, w.cluster.As(w, system, "stoker-certificate", ""), "")}, noEnv, io.Discard, log)
	require.Equal(w, daemon.ExitDone, code, "%s", log)
	secret, err := w.client.CoreV1().Secrets(system).Get(w.Context(), certificate.SecretName, metav1.GetOptions{})
	require.NoError(w, err)
	for _, key := range []string{corev1.TLSCertKey, corev1.TLSPrivateKeyKey} {
		require.NoError(w, os.WriteFile(filepath.Join(w.mounted, key), secret.Data[key], 0o600))
	}
}

// install calls configure and renew, and waits until the API server calls the replica.
func (w *world) install(in *injector, change ...func(*admissionregv1.MutatingWebhook)) {
	w.Helper()
	w.configure(in, change...)
	w.renew()
	probe := w.cluster.Namespace(w)
	w.eventually("the API server calls the injector", func() bool {
		p := gatewayPod("probe")
		p.Annotations[v1alpha1.AnnotationRequire] = "true"
		_, err := w.client.CoreV1().Pods(probe).Create(w.Context(), p, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return apierrors.IsForbidden(err) && strings.Contains(err.Error(), v1alpha1.AnnotationRequire) // not a failed call
	})
}

func (w *world) eventually(what string, ok func() bool) {
	w.Helper()
	require.Eventually(w, ok, patience, 50*time.Millisecond, what)
}

// updates runs an update and retries it after a conflict with a controller or an injector.
func (w *world) updates(update func() error) {
	w.Helper()
	require.NoError(w, retry.RetryOnConflict(retry.DefaultBackoff, update))
}

func gatewayPod(name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{v1alpha1.AnnotationInject: "true", v1alpha1.AnnotationCRName: "line"}},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "gateway", Image: "example.com/ignition:8", VolumeMounts: []corev1.VolumeMount{{Name: "data", MountPath: inject.IgnitionData}}}},
			Volumes:    []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}},
		},
	}
}

func (w *world) pod(namespace string, p *corev1.Pod) *corev1.Pod {
	w.Helper()
	made, err := w.client.CoreV1().Pods(namespace).Create(w.Context(), p, metav1.CreateOptions{})
	require.NoError(w, err)
	return made
}

// gatewaySync creates a GatewaySync with the name line.
func (w *world) gatewaySync(namespace string, change ...func(*v1alpha1.GatewaySync)) *v1alpha1.GatewaySync {
	w.Helper()
	gs := &v1alpha1.GatewaySync{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "line"}}
	gs.Spec.Git = v1alpha1.GitSpec{Repo: "https://git.example.com/plant.git", Ref: "main"}
	gs.Spec.Gateway.API = &v1alpha1.GatewayAPI{SecretName: "ignition-api"}
	gs.Spec.Sync.Profiles = map[string]v1alpha1.SyncProfile{"default": {Mappings: []v1alpha1.Mapping{{Source: "projects", Destination: "projects"}}}}
	for _, c := range change {
		c(gs)
	}
	made, err := kube.GatewaySyncs(w.dynamic, namespace).Create(w.Context(), gs, metav1.CreateOptions{})
	require.NoError(w, err)
	return made
}

// seen waits until the reconciler has seen the GatewaySync. The reconciler watches pods separately, and for a pod that it sees first it would
// report that there is no GatewaySync.
func (w *world) seen(namespace string) {
	w.Helper()
	w.eventually("the reconciler has processed the GatewaySync", func() bool { return w.status(namespace)["Ready"] != "" })
}

func (w *world) status(namespace string) map[string]string {
	w.Helper()
	gs, err := kube.GatewaySyncs(w.dynamic, namespace).Get(w.Context(), "line")
	require.NoError(w, err)
	out := map[string]string{}
	for _, c := range gs.Status.Conditions {
		out[c.Type] = string(c.Status) + "/" + c.Reason
	}
	return out
}

// events counts the Events of a namespace by reason and object.
func (w *world) events(namespace string) map[string]int {
	w.Helper()
	list, err := w.client.EventsV1().Events(namespace).List(w.Context(), metav1.ListOptions{})
	require.NoError(w, err)
	out := map[string]int{}
	for _, e := range list.Items {
		if e.ReportingController == "stoker.io/injector" {
			out[e.Reason+" "+e.Regarding.Kind+"/"+e.Regarding.Name]++
		}
	}
	return out
}
