package check

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/gatewaypod"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/internal/status/statustest"
	"stoker.io/stoker/test/clientset"
	"stoker.io/stoker/test/cluster/kubetest"
)

func TestMain(m *testing.M) { kubetest.Main(m) }

func TestTopicsHaveTroubleshootingHeadings(t *testing.T) {
	doc, err := os.ReadFile("../../docs/how-to/troubleshooting.md")
	require.NoError(t, err)
	for _, topic := range Topics {
		assert.Contains(t, string(doc), "\n### check "+string(topic)+"\n")
	}
}

func checker(t *testing.T, config *rest.Config, namespace string) Checker {
	t.Helper()
	clients, err := kube.ConnectTo(config, "test")
	require.NoError(t, err)
	return Checker{Clients: clients, Namespace: namespace, Now: time.Now}
}

// look returns the findings by topic, each as "state: message". It also verifies that the documentation has their anchors.
func look(t *testing.T, l Checker) map[Topic]string {
	t.Helper()
	list, err := l.Check(t.Context())
	require.NoError(t, err)
	doc, err := os.ReadFile("../../docs/how-to/troubleshooting.md")
	require.NoError(t, err)
	headings := strings.ReplaceAll(strings.ToLower(string(doc)), "### check ", "### check-")
	found := map[Topic]string{}
	for _, f := range list {
		anchor, ok := strings.CutPrefix(f.Docs, troubleshooting)
		assert.True(t, ok, f.Docs)
		assert.Contains(t, headings, "\n### "+anchor+"\n")
		assert.Contains(t, Topics, f.Check)
		found[f.Check] += string(f.State) + ": " + f.Message + "\n"
	}
	return found
}

// A check with several findings counts once.
func TestCount(t *testing.T) {
	failed, all := Count([]Finding{
		topicKinds.finding(OK, ""), topicRoles.finding(Failed, "a"), topicRoles.finding(Failed, "b"),
		topicPolicies.finding(Warning, ""), topicWebhook.finding(OK, ""), topicWebhook.finding(Failed, ""),
	})
	assert.Equal(t, []Topic{topicRoles, topicWebhook}, failed)
	assert.Equal(t, 4, all)
}

func TestCheckEmptyCluster(t *testing.T) {
	t.Parallel()
	cluster := kubetest.Control(t, kubetest.WithoutKinds())
	found := look(t, checker(t, cluster.RESTConfig(), "default"))
	for _, topic := range []Topic{topicKinds, topicRoles, topicWebhook, topicInjector} {
		t.Run(string(topic), func(t *testing.T) {
			assert.True(t, strings.HasPrefix(found[topic], "failed: "), found[topic])
			assert.Contains(t, found[topic], "install")
		})
	}
	assert.True(t, strings.HasPrefix(found[topicPolicies], "warning: "), found[topicPolicies])
	assert.NotContains(t, found, topicSyncs, "no GatewaySync kind, no GatewaySyncs to check")
}

func TestCheckUnreachableAPIServer(t *testing.T) {
	_, err := checker(t, &rest.Config{Host: "http://127.0.0.1:1"}, "default").Check(t.Context())
	assert.ErrorIs(t, err, ErrUnreachable)
}

// certificate returns a certificate that is valid for one day from the given time.
func certificate(t *testing.T, from time.Time) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: from, NotAfter: from.Add(24 * time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	return base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

const installed = `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: stoker-agent}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: stoker-setter}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: stoker-injector, labels: {app.kubernetes.io/name: stoker, app.kubernetes.io/component: injector}}
spec:
  replicas: 2
  selector: {matchLabels: {a: b}}
  template: {metadata: {labels: {a: b}}, spec: {containers: [{name: injector, image: injector}]}}
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingWebhookConfiguration
metadata: {name: stoker-injector}
webhooks:
  - name: pods.stoker.io
    admissionReviewVersions: [v1]
    sideEffects: None
    failurePolicy: Ignore
    clientConfig: {caBundle: "CA", service: {name: stoker-injector, namespace: default, path: /mutate}}
    objectSelector: {matchLabels: {no: pod}}
    rules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}]
`

func TestCheckInstallation(t *testing.T) {
	t.Parallel()
	cluster := kubetest.Control(t)
	namespace := cluster.Namespace(t)
	l, installed := checker(t, cluster.RESTConfig(), namespace), strings.ReplaceAll(installed, "namespace: default", "namespace: "+namespace)
	cluster.ApplyYAML(t, namespace, strings.ReplaceAll(installed, "CA", certificate(t, time.Now().Add(-48*time.Hour))))
	found := look(t, l)
	assert.Equal(t, "ok: GatewaySync, SyncTarget, SyncReport and ConfigSync are served\n", found[topicKinds])
	assert.True(t, strings.HasPrefix(found[topicRoles], "ok: "))
	assert.Contains(t, found[topicWebhook], "failed: pods.stoker.io: caBundle has no valid certificate")
	assert.Contains(t, found[topicInjector], "failed: Deployment "+namespace+"/stoker-injector has no ready pod")
	assert.Contains(t, found[topicSyncs], "warning: there is no GatewaySync in namespace "+namespace)
	assert.Contains(t, found[topicPods], "warning: no pod of namespace")

	cluster.ApplyYAML(t, namespace, strings.ReplaceAll(installed, "CA", certificate(t, time.Now().Add(-time.Hour))))
	setReadyPods(t, l, namespace, "stoker-injector", 1)
	found = look(t, l)
	assert.Contains(t, found[topicWebhook], "ok: ")
	assert.Contains(t, found[topicInjector], "warning: Deployment "+namespace+"/stoker-injector: 1 of 2 pods are ready")
	setReadyPods(t, l, namespace, "stoker-injector", 2)
	assert.True(t, strings.HasPrefix(look(t, l)[topicInjector], "ok: "))
}

func setReadyPods(t *testing.T, l Checker, namespace, name string, n int32) {
	t.Helper()
	d, err := l.Core.AppsV1().Deployments(namespace).Get(t.Context(), name, metav1.GetOptions{})
	require.NoError(t, err)
	d.Status = appsv1.DeploymentStatus{Replicas: n, ReadyReplicas: n}
	_, err = l.Core.AppsV1().Deployments(namespace).UpdateStatus(t.Context(), d, metav1.UpdateOptions{})
	require.NoError(t, err)
}

const gateways = `
apiVersion: stoker.io/v1alpha1
kind: GatewaySync
metadata: {name: plant}
spec: {git: {repo: "https://git.example.com/plant.git", ref: main}}
---
apiVersion: v1
kind: Pod
metadata: {name: good, annotations: {stoker.io/inject: "true"}}
spec: {serviceAccountName: default, containers: [{name: gateway, image: gateway}], initContainers: [{name: stoker-agent, image: agent}]}
---
apiVersion: v1
kind: Pod
metadata: {name: unrelated}
spec: {containers: [{name: other, image: other}]}
`

const reportingRole = `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: stoker-agent}
rules: [{apiGroups: [stoker.io], resources: [syncreports], verbs: [create, get, patch]}]
`

func reporting(namespace string) authorizationv1.ResourceAttributes {
	return authorizationv1.ResourceAttributes{Namespace: namespace, Verb: "patch", Group: "stoker.io", Resource: "syncreports"}
}

const badPods = `
apiVersion: v1
kind: Pod
metadata: {name: naked, annotations: {ignition-sync.io/inject: "true", stoker.io/cr-name: plant}}
spec: {containers: [{name: gateway, image: gateway}]}
---
apiVersion: v1
kind: Pod
metadata: {name: lost, annotations: {stoker.io/inject: "true", stoker.io/cr-name: elsewhere}}
spec: {containers: [{name: gateway, image: gateway}]}
`

func TestCheckNamespace(t *testing.T) {
	cluster := kubetest.Control(t)
	namespace := cluster.Namespace(t)
	cluster.ApplyYAML(t, namespace, gateways)
	l := checker(t, cluster.RESTConfig(), namespace)
	found := look(t, l)
	assert.Contains(t, found[topicSyncs], "warning: plant: neither an agent nor the injector has read this GatewaySync yet")
	assert.Contains(t, found[topicPods], "ok: all 1 pods")
	assert.Contains(t, found[topicBindings], "failed: ClusterRole stoker-agent of the agents does not exist")
	assert.Contains(t, found[topicRights], "ok: you may request refs")
	assert.Equal(t, "ok: there are no objects of an earlier product\n", found[topicLeftovers])
	assert.NotContains(t, found, topicLead)

	cluster.ApplyYAML(t, namespace, badPods+`---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: stoker-agent}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: stoker-agent}
subjects: [{kind: ServiceAccount, name: default, namespace: `+namespace+`}]
---
apiVersion: stoker.io/v1alpha1
kind: SyncTarget
metadata: {name: plant}
spec: {format: 1, lead: {holder: good-abc_3f9c2d1a, renewed: "`+time.Now().UTC().Format("2006-01-02T15:04:05.000000Z")+`", durationSeconds: 15}}
`)
	patchStatus(t, l, "plant", `{"status":{"observedGeneration":1,"confirmedAt":"`+time.Now().UTC().Format(time.RFC3339)+`","discoveredGateways":[{"name":"good","syncStatus":"Error","reason":"ConfigSyntaxError","message":"a.json"}],
		"target":{"ref":"main","commit":"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"},
		"conditions":[{"type":"Ready","status":"False","reason":"ConfigSyntaxError","message":"m","observedGeneration":1,"lastTransitionTime":"2026-01-01T00:00:00Z"}]}}`)
	assert.Contains(t, look(t, l)[topicBindings], "failed: ClusterRole stoker-agent of the agents does not exist")
	cluster.ApplyYAML(t, namespace, "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {name: stoker-agent}\n")
	assert.Contains(t, look(t, l)[topicBindings], "does not let them write SyncReports")
	cluster.ApplyYAML(t, namespace, reportingRole)
	cluster.WaitAllowed(t, namespace, "default", reporting(namespace))
	found = look(t, l)
	assert.Contains(t, found[topicSyncs], "failed: plant: good: a.json")
	assert.Contains(t, found[topicPods], "failed: naked requests an agent and has none")
	assert.Contains(t, found[topicPods], "failed: lost requests GatewaySync elsewhere")
	assert.Contains(t, found[topicBindings], "ok: ")
	assert.Contains(t, found[topicLead], "ok: plant: good-abc is the lead")
	l.Now = func() time.Time { return time.Now().Add(time.Hour) }
	assert.Contains(t, look(t, l)[topicLead], "warning: plant: the lead good-abc has not confirmed the status since ")
	l.Now = func() time.Time { return time.Now().Add(-time.Hour) }
	assert.Contains(t, look(t, l)[topicLead], "warning: plant: good-abc renewed its lock at")
}

// The rule is that of stoker status. The time at which the API server recorded a renewal counts, not the clock of the lead's node.
func TestLead(t *testing.T) {
	now := time.Now().UTC().Truncate(time.Second)
	for name, c := range map[string]struct {
		node, written, confirmed time.Duration // ago: spec.lead.renewed, managedFields, status.confirmedAt
		want                     string
	}{
		"renewed":                  {time.Second, time.Second, time.Minute, "ok: plant: good-abc is the lead"},
		"clock of the node behind": {4 * time.Minute, time.Second, time.Minute, "ok: plant: good-abc is the lead"},
		"clock of the node ahead":  {-time.Hour, time.Second, time.Minute, "warning: plant: good-abc renewed its lock at "},
		"lock expired":             {30 * time.Second, 30 * time.Second, time.Minute, "warning: plant: the lead good-abc has not renewed its lock since " + now.Add(-30*time.Second).Format(time.RFC3339)},
		"no SyncTarget":            {0, 0, time.Minute, "warning: plant: there is no lead, so no agent polls git"},
		"status not confirmed":     {time.Second, time.Second, time.Hour, "warning: plant: the lead good-abc has not confirmed the status since " + now.Add(-time.Hour).Format(time.RFC3339)},
	} {
		t.Run(name, func(t *testing.T) {
			gs := &v1alpha1.GatewaySync{ObjectMeta: metav1.ObjectMeta{Namespace: "site", Name: "plant"}}
			gs.Status.DiscoveredGateways = []v1alpha1.DiscoveredGateway{{Name: "good"}}
			gs.Status.ConfirmedAt = &metav1.Time{Time: now.Add(-c.confirmed)}
			target := &unstructured.Unstructured{Object: map[string]any{
				"apiVersion": "stoker.io/v1alpha1", "kind": "SyncTarget", "metadata": map[string]any{"namespace": "site", "name": "plant"},
				"spec": map[string]any{"format": int64(1), "lead": map[string]any{
					"holder": "good-abc_3f9c2d1a", "durationSeconds": int64(15), "renewed": now.Add(-c.node).Format("2006-01-02T15:04:05.000000Z"),
				}},
			}}
			written := metav1.NewTime(now.Add(-c.written))
			target.SetManagedFields([]metav1.ManagedFieldsEntry{{Manager: "stoker-agent", Time: &written, FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:lead":{"f:renewed":{}}}}`)}})
			l := Checker{Namespace: "site", Now: func() time.Time { return now }}
			l.Dynamic = dynamicfake.NewSimpleDynamicClient(runtime.NewScheme(), map[bool][]runtime.Object{true: {target}}[c.written != 0]...)
			found := l.lead(t.Context(), gs)
			require.Len(t, found, 1)
			assert.Contains(t, string(found[0].State)+": "+found[0].Message, c.want)
		})
	}
}

// The check finds a right that comes from any kind of binding, also from one to a group.
func TestBindingsOfAgents(t *testing.T) {
	cluster := kubetest.Control(t)
	cluster.ApplyYAML(t, "", reportingRole)
	for name, subject := range map[string]string{
		"account":            "{kind: ServiceAccount, name: default, namespace: NAMESPACE}",
		"group of namespace": "{kind: Group, name: 'system:serviceaccounts:NAMESPACE', apiGroup: rbac.authorization.k8s.io}",
		"user":               "{kind: User, name: 'system:serviceaccount:NAMESPACE:default', apiGroup: rbac.authorization.k8s.io}",
		"another namespace":  "",
	} {
		for _, kind := range []string{"RoleBinding", "ClusterRoleBinding"} {
			t.Run(kind+"/"+name, func(t *testing.T) {
				namespace := cluster.Namespace(t)
				cluster.ApplyYAML(t, namespace, gateways)
				l := checker(t, cluster.RESTConfig(), namespace)
				assert.Contains(t, look(t, l)[topicBindings], "failed: no binding grants ClusterRole stoker-agent to ServiceAccount default: its agents cannot report")
				if subject == "" {
					return
				}
				binding := "apiVersion: rbac.authorization.k8s.io/v1\nkind: " + kind + "\nmetadata: {name: stoker-agent-NAMESPACE}\n" +
					"roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: stoker-agent}\nsubjects: [" + subject + "]\n"
				cluster.ApplyYAML(t, namespace, strings.ReplaceAll(binding, "NAMESPACE", namespace))
				assert.Eventually(t, func() bool {
					return look(t, l)[topicBindings] == "ok: the ServiceAccounts of the agents may report\n"
				}, 10*time.Second, 50*time.Millisecond)
			})
		}
	}
}

// The review names the groups of the account, in which a binding may grant the right.
func TestBindingsReview(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "site", Name: "good", Annotations: map[string]string{v1alpha1.AnnotationInject: "true"}}}
	pod.Spec.ServiceAccountName = "gateway"
	pod.Spec.InitContainers = []corev1.Container{{Name: gatewaypod.AgentContainer}}
	core := clientset.New(pod)
	core.PrependReactor("create", "localsubjectaccessreviews", func(action clienttesting.Action) (bool, runtime.Object, error) {
		review := action.(clienttesting.CreateAction).GetObject().(*authorizationv1.LocalSubjectAccessReview).DeepCopy()
		assert.Equal(t, "site", action.GetNamespace())
		assert.Equal(t, "system:serviceaccount:site:gateway", review.Spec.User)
		assert.Equal(t, reporting("site"), *review.Spec.ResourceAttributes)
		review.Status.Allowed = slices.Contains(review.Spec.Groups, "system:serviceaccounts:site")
		return true, review, nil
	})
	l := Checker{Namespace: "site", Now: time.Now}
	l.Core = core
	found := l.pods(t.Context(), nil)
	require.Len(t, found, 2)
	assert.Equal(t, "all 1 pods that request an agent have one", found[0].Message)
	assert.Equal(t, "the ServiceAccounts of the agents may report", found[1].Message)
}

func TestTooManyAccountsToReview(t *testing.T) {
	cluster := kubetest.Control(t)
	cluster.ApplyYAML(t, "", reportingRole)
	config := rest.CopyConfig(cluster.RESTConfig())
	l := checker(t, config, cluster.Namespace(t))
	accounts := make([]string, maxReviews+3)
	for i := range accounts { // setup: names
		accounts[i] = fmt.Sprintf("a%d", i)
	}
	found := l.bindings(t.Context(), accounts)
	require.Len(t, found, 2)
	assert.Equal(t, "3 of 53 ServiceAccounts of agents were not checked", found[0].Message)
	assert.Equal(t, Unknown, found[0].State)
	assert.Equal(t, Failed, found[1].State)
}

// onePerPage makes the API server return every list in pages of one object.
type onePerPage struct{ http.RoundTripper }

func (p onePerPage) RoundTrip(r *http.Request) (*http.Response, error) {
	if q := r.URL.Query(); q.Has("limit") {
		r = r.Clone(r.Context())
		q.Set("limit", "1")
		r.URL.RawQuery = q.Encode()
	}
	return p.RoundTripper.RoundTrip(r)
}

func TestListsAreReadCompletely(t *testing.T) {
	cluster := kubetest.Control(t)
	namespace := cluster.Namespace(t)
	cluster.ApplyYAML(t, namespace, gateways+"---"+badPods)
	config := rest.CopyConfig(cluster.RESTConfig())
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return onePerPage{next} })
	found := look(t, checker(t, config, namespace))
	assert.Contains(t, found[topicPods], "failed: naked requests an agent and has none")
	assert.Contains(t, found[topicPods], "failed: lost requests GatewaySync elsewhere")
}

// The messages are those of the kubelet. If the agent does not start, neither does the gateway.
func TestCheckAgentDoesNotStart(t *testing.T) {
	cluster := kubetest.Control(t)
	namespace := cluster.Namespace(t)
	cluster.ApplyYAML(t, namespace, gateways+"---"+reportingRole)
	l := checker(t, cluster.RESTConfig(), namespace)
	for state, want := range map[string]string{
		`"waiting":{"reason":"PodInitializing"}`: "ok: all 1 pods",
		`"running":{}`:                           "ok: all 1 pods",
		`"waiting":{"reason":"ImagePullBackOff","message":"Back-off pulling image agent"}`: "failed: good: its agent does not start: ImagePullBackOff: Back-off pulling image agent",
		`"waiting":{"reason":"CrashLoopBackOff"}`:                                          "failed: good: its agent does not start: CrashLoopBackOff",
	} {
		t.Run(state, func(t *testing.T) {
			patch := `{"status":{"initContainerStatuses":[{"name":"stoker-agent","image":"agent","imageID":"","ready":false,"restartCount":0,"state":{` + state + `}}]}}`
			_, err := l.Core.CoreV1().Pods(namespace).Patch(t.Context(), "good", types.MergePatchType, []byte(patch), metav1.PatchOptions{}, "status")
			require.NoError(t, err)
			found := look(t, l)
			assert.Contains(t, found[topicPods], want)
			assert.Contains(t, found[topicBindings], "failed: no binding grants ClusterRole stoker-agent to ServiceAccount default", "the binding must be reported in every state of the agent")
		})
	}
}

const earlierObjects = `
apiVersion: stoker.io/v1alpha1
kind: GatewaySync
metadata: {name: plant, finalizers: [stoker.io/finalizer]}
spec: {git: {repo: "http://git.example.com/plant.git", ref: main}}
---
apiVersion: v1
kind: Pod
metadata: {name: wrong, annotations: {stoker.io/inject: "yes"}}
spec: {containers: [{name: gateway, image: gateway}]}
---
apiVersion: v1
kind: Pod
metadata: {name: old, annotations: {stoker.io/inject: "true"}}
spec: {containers: [{name: gateway, image: gateway}], initContainers: [{name: stoker-agent, image: other, env: [{name: POD_NAME, value: x}]}]}
`

func TestCheckLeftoversAndWarnings(t *testing.T) {
	cluster := kubetest.Control(t)
	namespace := cluster.Namespace(t)
	cluster.ApplyYAML(t, namespace, earlierObjects)
	found := look(t, checker(t, cluster.RESTConfig(), namespace))
	assert.Contains(t, found[topicLeftovers], "warning: "+namespace+" gatewaysyncs.stoker.io/plant: no controller removes stoker.io/finalizer")
	assert.Contains(t, found[topicSyncs], "warning: plant: spec.git.repo: http:// is not encrypted")
	assert.Contains(t, found[topicPods], `warning: wrong: the annotation stoker.io/inject is "yes", which requests nothing`)
	assert.Contains(t, found[topicPods], "failed: old: its container stoker-agent belongs to another program")
}

func patchStatus(t *testing.T, l Checker, name, patch string) {
	t.Helper()
	syncs := kube.GatewaySyncs(l.Dynamic, l.Namespace)
	gs, err := syncs.Patch(t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}, "status")
	require.NoError(t, err)
	statustest.Complete(gs)
	answer, err := json.Marshal(map[string]any{"status": gs.Status})
	require.NoError(t, err)
	_, err = syncs.Patch(t.Context(), name, types.MergePatchType, answer, metav1.PatchOptions{}, "status")
	require.NoError(t, err)
}

// The user may not ask for the rights of others.
func TestBindingsWithoutRightToReviewAreUnknown(t *testing.T) {
	cluster := kubetest.Control(t)
	namespace := cluster.Namespace(t)
	found := checker(t, cluster.As(t, namespace, "default", ""), namespace).bindings(t.Context(), []string{"gateway"})
	require.Len(t, found, 1)
	assert.Equal(t, Unknown, found[0].State)
	assert.Contains(t, found[0].Message, "the rights of ServiceAccount gateway cannot be read: localsubjectaccessreviews.authorization.k8s.io is forbidden")
}

func TestCheckWithoutRightsIsUnknown(t *testing.T) {
	cluster := kubetest.Control(t)
	namespace := cluster.Namespace(t)
	found := look(t, checker(t, cluster.As(t, namespace, "default", ""), namespace))
	for _, topic := range []Topic{topicRoles, topicPolicies, topicWebhook, topicInjector, topicReceiver, topicSyncs} {
		t.Run(string(topic), func(t *testing.T) {
			assert.True(t, strings.HasPrefix(found[topic], "unknown: "), found[topic])
		})
	}
}

// The verdict on a GatewaySync is about the way from git. The way back has a condition of its own.
func TestProposalsThatCannotBeMade(t *testing.T) {
	for name, c := range map[string]struct {
		status metav1.ConditionStatus
		reason v1alpha1.Reason
		want   []State
	}{
		"ready":            {metav1.ConditionTrue, v1alpha1.ReasonProposalsReady, nil},
		"unmounted Secret": {metav1.ConditionFalse, v1alpha1.ReasonPodRestartNeeded, []State{Failed}},
		"network":          {metav1.ConditionFalse, v1alpha1.ReasonGitUnreachable, []State{Warning}},
		"refused change":   {metav1.ConditionFalse, v1alpha1.ReasonChangesRefused, []State{Warning}},
	} {
		t.Run(name, func(t *testing.T) {
			gs := &v1alpha1.GatewaySync{}
			gs.Name = "plant"
			gs.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionBidirectionalReady, Status: c.status, Reason: string(c.reason), Message: "line: why"}}
			var states []State
			for _, f := range proposals(gs) {
				states = append(states, f.State)
				assert.Contains(t, f.Message, "plant: changes of gateways are not proposed: line: why")
			}
			assert.Equal(t, c.want, states)
		})
	}
	assert.Empty(t, proposals(&v1alpha1.GatewaySync{}))
}
