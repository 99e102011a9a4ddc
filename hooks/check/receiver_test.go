package check

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"

	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/test/clientset"
	"stoker.io/stoker/test/cluster/kubetest"
)

const withReceiver = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: stoker-receiver, labels: {app.kubernetes.io/name: stoker, app.kubernetes.io/component: receiver}}
spec:
  replicas: 2
  selector: {matchLabels: {a: b}}
  template: {metadata: {labels: {a: b}}, spec: {serviceAccountName: stoker-receiver, containers: [{name: receiver, image: receiver}]}}
`

const withWebhooks = `
apiVersion: stoker.io/v1alpha1
kind: GatewaySync
metadata: {name: line}
spec: {git: {repo: "https://git.example.com/plant.git", ref: main}, webhook: {secretRef: {name: line-webhook, key: token}}}
---
apiVersion: stoker.io/v1alpha1
kind: GatewaySync
metadata: {name: mill}
spec: {git: {repo: "https://git.example.com/plant.git", ref: main}, webhook: {secretRef: {name: mill-webhook, key: token}}}
---
apiVersion: stoker.io/v1alpha1
kind: GatewaySync
metadata: {name: shut}
spec: {git: {repo: "https://git.example.com/plant.git", ref: main}, webhook: {enabled: false, secretRef: {name: none, key: token}}}
---
apiVersion: stoker.io/v1alpha1
kind: GatewaySync
metadata: {name: plain}
spec: {git: {repo: "https://git.example.com/plant.git", ref: main}}
---
apiVersion: stoker.io/v1alpha1
kind: ConfigSync
metadata: {name: plant}
spec: {source: {git: {repoURL: "https://git.example.com/config.git", branch: main}}, webhook: {secretRef: {name: plant-webhook, key: token}}}
`

// person runs the commands that messages recommend.
type person struct {
	t       *testing.T
	cluster *kubetest.Cluster
	path    string
}

func newPerson(t *testing.T, cluster *kubetest.Cluster) person {
	t.Helper()
	kubectl, _ := kubetest.Kubectl(t)
	bin := t.TempDir()
	require.NoError(t, os.Symlink(kubectl, filepath.Join(bin, "kubectl")))
	return person{t, cluster, bin}
}

// runFirst runs the first command in the lines. A constant replaces the random value of openssl.
func (p person) runFirst(lines string) {
	p.t.Helper()
	_, command, ok := strings.Cut(lines, ": kubectl ")
	require.True(p.t, ok, lines)
	command, _, _ = strings.Cut(command, "\n")
	shell := exec.CommandContext(p.t.Context(), "sh", "-c", "kubectl "+strings.ReplaceAll(command, "openssl rand -hex 32", "echo 0123456789"))
	shell.Env = append(os.Environ(), "PATH="+p.path+":"+os.Getenv("PATH"), "KUBECONFIG="+p.cluster.Kubeconfig(), "HOME="+p.path)
	out, err := shell.CombinedOutput()
	require.NoError(p.t, err, "%s\n%s", command, out)
}

// configured makes the webhook configuration name a namespace. It matches no pod.
func configured(t *testing.T, cluster *kubetest.Cluster, system string) {
	t.Helper()
	_, text, _ := strings.Cut(installed, "apiVersion: admissionregistration")
	cluster.ApplyYAML(t, "", strings.NewReplacer("CA", certificate(t, time.Now()), "namespace: default", "namespace: "+system).Replace("apiVersion: admissionregistration"+text))
	l := checker(t, cluster.RESTConfig(), system)
	t.Cleanup(func() {
		assert.NoError(t, l.Core.AdmissionregistrationV1().MutatingWebhookConfigurations().Delete(context.WithoutCancel(t.Context()), injectorName, metav1.DeleteOptions{}))
	})
}

// The test runs the commands as printed, but for the value of openssl, until no finding has failed.
func TestReceiverRightsSuggestedCommands(t *testing.T) {
	cluster := kubetest.Control(t)
	system, namespace := cluster.Namespace(t), cluster.Namespace(t)
	configured(t, cluster, system)
	cluster.ApplyYAML(t, namespace, withWebhooks+"---"+withReceiver+"---"+strings.ReplaceAll(withReceiver, "receiver", "injector")) // those of a tenant do not count
	l := checker(t, cluster.RESTConfig(), namespace)
	assert.Contains(t, look(t, l)[topicInjector], "failed: namespace "+system+" has no Deployment of the injector")
	found := look(t, l)[topicReceiver]
	assert.Contains(t, found, "ok: no receiver is installed")
	assert.Contains(t, found, "warning: line: spec.webhook.secretRef is set, but no receiver is installed")
	assert.Contains(t, found, "warning: ConfigSync plant: spec.webhook.secretRef is set, but no receiver is installed")
	assert.Equal(t, 4, strings.Count(found, "\n"), found)

	cluster.ApplyYAML(t, system, withReceiver)
	assert.Contains(t, look(t, l)[topicReceiver], "failed: Deployment "+system+"/stoker-receiver has no ready pod: requests over HTTP fail")
	setReadyPods(t, l, system, "stoker-receiver", 2)
	found = look(t, l)[topicReceiver]
	assert.Contains(t, found, "ok: Deployment "+system+"/stoker-receiver: 2 pods are ready\n")
	assert.Contains(t, found, "failed: line: the receiver may not read Secret line-webhook and rejects every request: list {namespace: "+namespace+", name: line-webhook} in webhookReceiver.secrets, or run: kubectl ")
	assert.Contains(t, found, "failed: mill: the receiver may not read Secret mill-webhook")
	assert.Contains(t, found, "failed: line: there is no Secret line-webhook")
	assert.NotContains(t, found, "shut")
	assert.NotContains(t, found, "plain")

	who := newPerson(t, cluster)
	for range 6 { // sequence: two commands for each of three objects
		who.runFirst(look(t, l)[topicReceiver])
	}
	found = look(t, l)[topicReceiver]
	assert.Contains(t, found, "ok: line: the receiver may read Secret line-webhook\n")
	assert.Contains(t, found, "ok: ConfigSync plant: the receiver may read Secret plant-webhook\n")
	assert.NotContains(t, found, "failed")

	secret, err := l.Core.CoreV1().Secrets(namespace).Get(t.Context(), "mill-webhook", metav1.GetOptions{})
	require.NoError(t, err)
	secret.Data = map[string][]byte{"token": []byte("\n")}
	_, err = l.Core.CoreV1().Secrets(namespace).Update(t.Context(), secret, metav1.UpdateOptions{})
	require.NoError(t, err)
	found = look(t, l)[topicReceiver]
	assert.Equal(t, 1, strings.Count(found, "failed: "), found)
	assert.Contains(t, found, "failed: mill: Secret mill-webhook has no value for the key token")
	who.runFirst(found)
	assert.NotContains(t, look(t, l)[topicReceiver], "failed")
}

// A right may come from any binding, and to a group.
func TestReceiverRightsByAnyBinding(t *testing.T) {
	cluster := kubetest.Control(t)
	system, namespace := cluster.Namespace(t), cluster.Namespace(t)
	cluster.ApplyYAML(t, namespace, withWebhooks+strings.NewReplacer("SYSTEM", system, "NAMESPACE", namespace).Replace(`---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: NAMESPACE-one}
rules: [{apiGroups: [""], resources: [secrets], resourceNames: [line-webhook], verbs: [get]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: NAMESPACE-all}
rules: [{apiGroups: ["*"], resources: ["*"], verbs: ["*"]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: NAMESPACE-one}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: NAMESPACE-one}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: Group, name: "system:serviceaccounts:SYSTEM"}]
`))
	configured(t, cluster, system)
	cluster.ApplyYAML(t, system, withReceiver)
	l := checker(t, cluster.RESTConfig(), namespace)
	shows := func(want string) (found string) {
		t.Helper()
		require.Eventually(t, func() bool {
			found = look(t, l)[topicReceiver]
			return strings.Contains(found, want)
		}, time.Minute, 20*time.Millisecond, want)
		return found
	}
	found := shows("ok: line: the receiver may read Secret line-webhook\n")
	assert.Contains(t, found, "failed: mill: the receiver may not read Secret mill-webhook")
	assert.Contains(t, found, "failed: ConfigSync plant: the receiver may not read Secret plant-webhook")
	assert.Contains(t, found, "failed: ConfigSync plant: there is no Secret plant-webhook")

	cluster.ApplyYAML(t, namespace, strings.NewReplacer("SYSTEM", system, "NAMESPACE", namespace).Replace(`
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: all}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: NAMESPACE-all}
subjects: [{kind: ServiceAccount, name: stoker-receiver, namespace: SYSTEM}]
`))
	shows("warning: line: the receiver may read Secret line-webhook, and every other Secret of namespace " + namespace)
}

// The user has permissions in one namespace, but not for its Secrets.
func TestReceiverRightsWithoutListingReceivers(t *testing.T) {
	cluster := kubetest.Control(t)
	namespace := cluster.Namespace(t)
	cluster.ApplyYAML(t, namespace, withWebhooks+`---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: reader}
rules:
  - {apiGroups: [stoker.io], resources: [gatewaysyncs, configsyncs], verbs: [get, list]}
  - {apiGroups: [authorization.k8s.io], resources: [localsubjectaccessreviews], verbs: [create]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: reader}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: reader}
subjects: [{kind: ServiceAccount, name: default, namespace: `+namespace+`}]
`)
	cluster.WaitAllowed(t, namespace, "default", authorizationv1.ResourceAttributes{Namespace: namespace, Group: "stoker.io", Resource: "gatewaysyncs", Verb: "list"})
	found := look(t, checker(t, cluster.As(t, namespace, "default", ""), namespace))[topicReceiver]
	assert.Contains(t, found, "unknown: the receiver's Deployment cannot be read")
	assert.Contains(t, found, "unknown: line: a receiver in namespace stoker-system, if there is one, may not read Secret line-webhook")
	assert.Contains(t, found, "--serviceaccount=stoker-system:stoker-receiver")
	assert.Contains(t, found, "unknown: line: Secret line-webhook cannot be read")
	assert.NotContains(t, found, "failed")
}

// The API server says in a dry run what no object shows: that it cannot call the injector, or does not, and what a quota refuses.
func TestCheckDryRun(t *testing.T) {
	cluster := kubetest.Control(t, kubetest.Private())
	namespace := cluster.Namespace(t)
	cluster.ApplyYAML(t, namespace, gateways+"---\napiVersion: v1\nkind: ServiceAccount\nmetadata: {name: default}\n")
	configuration := func(selector string) string {
		_, text, _ := strings.Cut(strings.ReplaceAll(installed, `"CA"`, `"`+certificate(t, time.Now().Add(-time.Hour))+`"`), "apiVersion: admissionregistration")
		return strings.NewReplacer("failurePolicy: Ignore", "failurePolicy: Fail", "objectSelector: {matchLabels: {no: pod}}", selector).Replace("apiVersion: admissionregistration" + text)
	}
	l := checker(t, cluster.RESTConfig(), namespace)
	says := func(want string) {
		t.Helper()
		var found string
		require.Eventually(t, func() bool {
			found = look(t, l)[topicWebhook]
			return strings.Contains(found, want)
		}, 2*time.Minute, 100*time.Millisecond, "%s", want)
	}
	cluster.ApplyYAML(t, "", configuration("objectSelector: {matchLabels: {no: pod}}"))
	says("failed: the API server does not call the injector for namespace " + namespace)
	cluster.ApplyYAML(t, namespace, "apiVersion: v1\nkind: ResourceQuota\nmetadata: {name: pods}\nspec: {hard: {pods: 0}}\nstatus: {hard: {pods: 0}, used: {pods: 0}}\n")
	_, err := l.Core.CoreV1().ResourceQuotas(namespace).Patch(t.Context(), "pods", types.MergePatchType, []byte(`{"status":{"hard":{"pods":"0"},"used":{"pods":"0"}}}`), metav1.PatchOptions{}, "status")
	require.NoError(t, err)
	says("warning: plant: the API server would refuse a gateway pod with an agent (dry run): pods \"stoker-check\" is forbidden: exceeded quota: pods")
	cluster.ApplyYAML(t, "", configuration("objectSelector: {}"))
	says("failed: the API server cannot call the injector, so pods start without agents: Internal error occurred: failed calling webhook")
	pods, err := l.Core.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	for _, p := range pods.Items {
		assert.NotEqual(t, "stoker-check", p.Name, "a check changes nothing")
	}
}

// If the API server does not answer, the finding is Unknown, and DryRun returns an error.
func TestUnansweredDryRun(t *testing.T) {
	busy := apierrors.NewTooManyRequestsError("busy")
	for name, c := range map[string]struct {
		resource string
		err      error
		state    State
	}{
		"rights not answered":  {"selfsubjectaccessreviews", busy, Unknown},
		"dry run not answered": {"pods", busy, Unknown},
		"dry run refused":      {"pods", apierrors.NewBadRequest("no"), Warning},
	} {
		t.Run(name, func(t *testing.T) {
			core := clientset.New()
			core.PrependReactor("create", "selfsubjectaccessreviews", func(clienttesting.Action) (bool, runtime.Object, error) {
				return true, &authorizationv1.SelfSubjectAccessReview{Status: authorizationv1.SubjectAccessReviewStatus{Allowed: true}}, nil
			})
			core.PrependReactor("create", c.resource, func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, c.err })
			found, err := Checker{Clients: kube.Clients{Core: core}, Namespace: "plant"}.DryRun(t.Context(), "line", nil)
			assert.Equal(t, c.state, found.State, found.Message)
			assert.Equal(t, c.state == Unknown, err != nil)
		})
	}
}

func TestCompareVersions(t *testing.T) {
	for name, c := range map[string]struct {
		parts []Part
		want  []string // problems
	}{
		"one version":                 {[]Part{{Name: "stoker", Version: "0.3.0"}, {Name: "injector", Version: "0.3.0"}}, []string{"", ""}},
		"another patch version":       {[]Part{{Name: "stoker", Version: "0.3.9"}, {Name: "injector", Version: "0.3.0"}}, []string{"", ""}},
		"one minor apart":             {[]Part{{Name: "stoker", Version: "0.4.0"}, {Name: "injector", Version: "0.3.0"}}, []string{"", ""}},
		"two minors apart":            {[]Part{{Name: "stoker", Version: "0.5.0"}, {Name: "injector", Version: "0.3.0"}}, []string{"", "too old beside 0.5.0: upgrade it"}},
		"an old command line":         {[]Part{{Name: "stoker", Version: "0.1.0"}, {Name: "injector", Version: "0.3.0"}}, []string{"too old beside 0.3.0: upgrade it", ""}},
		"agents four minors older":    {[]Part{{Name: "injector", Version: "0.6.0"}, {Name: agents, Version: "0.2.0"}}, []string{"", ""}},
		"agents five minors older":    {[]Part{{Name: "injector", Version: "0.7.0"}, {Name: agents, Version: "0.2.0"}}, []string{"", "too old beside 0.7.0: restart their pods"}},
		"agents newer than the rest":  {[]Part{{Name: "injector", Version: "0.1.0"}, {Name: agents, Version: "0.3.0"}}, []string{"", "newer than 0.1.0: upgrade the release, or restart their pods"}},
		"a pod that reports anything": {[]Part{{Name: "injector", Version: "0.1.0"}, {Name: "receiver", Version: "0.1.0"}, {Name: agents, Version: "999.0.0"}}, []string{"", "", "newer than 0.1.0: upgrade the release, or restart their pods"}},
		"only agents":                 {[]Part{{Name: "stoker", Version: "dev"}, {Name: agents, Version: "0.1.0"}}, []string{`unknown: "dev" is not the version of a release`, ""}},
		"another major":               {[]Part{{Name: "injector", Version: "1.0.0"}, {Name: agents, Version: "0.9.0"}}, []string{"", "too old beside 1.0.0: restart their pods"}},
		"a pre-release":               {[]Part{{Name: "injector", Version: "0.3.0-rc.1"}, {Name: agents, Version: "0.2.0"}}, []string{"", ""}},
		"a build of a checkout":       {[]Part{{Name: "stoker", Version: "dev"}, {Name: agents, Version: ""}}, []string{`unknown: "dev" is not the version of a release`, `unknown: "none" is not the version of a release`}},
		"an unreadable part":          {[]Part{{Name: "injector", Problem: "unknown: forbidden"}}, []string{"unknown: forbidden"}},
	} {
		t.Run(name, func(t *testing.T) {
			Compare(c.parts)
			for i, want := range c.want { // sequence: parts of one installation
				assert.Equal(t, want, c.parts[i].Problem)
			}
		})
	}
}
