package check

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/test/cluster/build"
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

const doored = `
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
`

// person runs the commands that messages recommend.
type person struct {
	t       *testing.T
	cluster *kubetest.Cluster
	path    string
}

func newPerson(t *testing.T, cluster *kubetest.Cluster) person {
	t.Helper()
	cache, err := build.Open(build.Cache{Progress: os.Stderr})
	require.NoError(t, err)
	kubernetes, err := cache.Kubernetes(t.Context(), os.Getenv(build.VersionVariable))
	require.NoError(t, err)
	bin := t.TempDir()
	require.NoError(t, os.Symlink(filepath.Join(kubernetes, "kubectl"), filepath.Join(bin, "kubectl")))
	return person{t, cluster, bin}
}

// heeds runs the first command in the lines.
func (p person) heeds(lines string) {
	p.t.Helper()
	_, command, ok := strings.Cut(lines, ": kubectl ")
	require.True(p.t, ok, lines)
	command, _, _ = strings.Cut(command, "\n")
	shell := exec.CommandContext(p.t.Context(), "sh", "-c", "kubectl "+strings.ReplaceAll(command, "openssl rand -hex 32", "echo 0123456789"))
	shell.Env = append(os.Environ(), "PATH="+p.path+":"+os.Getenv("PATH"), "KUBECONFIG="+p.cluster.Kubeconfig(), "HOME="+p.path)
	out, err := shell.CombinedOutput()
	require.NoError(p.t, err, "%s\n%s", command, out)
}

// The test runs the commands exactly as printed, until no finding remains.
func TestReceiverRightsSuggestedCommands(t *testing.T) {
	cluster := kubetest.Control(t)
	system, namespace := cluster.Namespace(t), cluster.Namespace(t)
	cluster.ApplyYAML(t, namespace, doored)
	l := checker(t, cluster.RESTConfig(), namespace)
	found := look(t, l)[topicReceiver]
	assert.Contains(t, found, "ok: no receiver is installed")
	assert.Contains(t, found, "warning: line: spec.webhook.secretRef is set, but no receiver is installed")
	assert.Equal(t, 3, strings.Count(found, "\n"), found)

	cluster.ApplyYAML(t, system, withReceiver)
	assert.Contains(t, look(t, l)[topicReceiver], "failed: Deployment "+system+"/stoker-receiver has no ready pod: requests over HTTP fail")
	ready(t, l, system, "stoker-receiver", 2)
	found = look(t, l)[topicReceiver]
	assert.Contains(t, found, "ok: Deployment "+system+"/stoker-receiver: 2 pods are ready\n")
	assert.Contains(t, found, "failed: line: the receiver may not read Secret line-webhook and rejects every request: list {namespace: "+namespace+", name: line-webhook} in webhookReceiver.secrets, or run: kubectl ")
	assert.Contains(t, found, "failed: mill: the receiver may not read Secret mill-webhook")
	assert.Contains(t, found, "failed: line: there is no Secret line-webhook")
	assert.NotContains(t, found, "shut")
	assert.NotContains(t, found, "plain")

	who := newPerson(t, cluster)
	who.heeds(found)
	found = look(t, l)[topicReceiver]
	assert.Contains(t, found, "ok: line: the receiver may read Secret line-webhook\n")
	assert.Contains(t, found, "ok: mill: the receiver may read Secret mill-webhook\n")
	who.heeds(found)
	found = look(t, l)[topicReceiver]
	assert.NotContains(t, found, "there is no Secret line-webhook")
	who.heeds(found)
	assert.NotContains(t, look(t, l)[topicReceiver], "failed")

	// These objects exist but do not suffice: a Secret with another key, a Role for another Secret, and a RoleBinding for another
	// account.
	api := l.Core.RbacV1()
	role, err := api.Roles(namespace).Get(t.Context(), receiverSecrets+"-line-webhook", metav1.GetOptions{})
	require.NoError(t, err)
	role.Rules[0].ResourceNames = []string{"line-webhook"}
	_, err = api.Roles(namespace).Update(t.Context(), role, metav1.UpdateOptions{})
	require.NoError(t, err)
	binding, err := api.RoleBindings(namespace).Get(t.Context(), receiverSecrets+"-line-webhook", metav1.GetOptions{})
	require.NoError(t, err)
	binding.Subjects[0].Namespace = "elsewhere"
	_, err = api.RoleBindings(namespace).Update(t.Context(), binding, metav1.UpdateOptions{})
	require.NoError(t, err)
	secret, err := l.Core.CoreV1().Secrets(namespace).Get(t.Context(), "mill-webhook", metav1.GetOptions{})
	require.NoError(t, err)
	secret.Data = map[string][]byte{"token": []byte("\n")}
	_, err = l.Core.CoreV1().Secrets(namespace).Update(t.Context(), secret, metav1.UpdateOptions{})
	require.NoError(t, err)
	found = look(t, l)[topicReceiver]
	assert.Equal(t, 3, strings.Count(found, "failed: "), found)
	who.heeds(found)
	found = look(t, l)[topicReceiver]
	assert.Equal(t, 1, strings.Count(found, "failed: "), found)
	assert.Contains(t, found, "failed: mill: Secret mill-webhook has no value for the key token")
	who.heeds(found)
	assert.NotContains(t, look(t, l)[topicReceiver], "failed")
}

// The user has permissions in one namespace, but not for its Secrets.
func TestReceiverRightsWithoutListingReceivers(t *testing.T) {
	cluster := kubetest.Control(t)
	namespace := cluster.Namespace(t)
	cluster.ApplyYAML(t, namespace, doored+`---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: reader}
rules:
  - {apiGroups: [stoker.io], resources: [gatewaysyncs], verbs: [get, list]}
  - {apiGroups: [rbac.authorization.k8s.io], resources: [roles, rolebindings], verbs: [get, list]}
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
	assert.Contains(t, found, "warning: line: a receiver, if there is one, may not read Secret line-webhook and rejects every request")
	assert.Contains(t, found, "--serviceaccount=stoker-system:stoker-receiver")
	assert.Contains(t, found, "unknown: line: Secret line-webhook cannot be read")
	assert.NotContains(t, found, "failed")
}

func TestGrantsOfRules(t *testing.T) {
	gs := &v1alpha1.GatewaySync{ObjectMeta: metav1.ObjectMeta{Name: "line"}}
	gs.Spec.Webhook.SecretRef = &v1alpha1.SecretKeyRef{Name: "one", Key: "token"}
	rule := func(verb, group, resource string, names ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{Verbs: []string{verb}, APIGroups: []string{group}, Resources: []string{resource}, ResourceNames: names}
	}
	for name, c := range map[string]struct {
		rule rbacv1.PolicyRule
		want State
	}{
		"names the Secret":                      {rule("get", "", "secrets", "two", "one"), OK},
		"names the Secret, wildcards elsewhere": {rule("*", "*", "*", "one"), OK},
		"names no Secret":                       {rule("get", "", "secrets"), Warning},
		"another":                               {rule("get", "", "secrets", "two"), Failed},
		"another verb":                          {rule("list", "", "secrets", "one"), Failed},
		"another group":                         {rule("get", "apps", "secrets", "one"), Failed},
		"another kind":                          {rule("get", "", "configmaps", "one"), Failed},
	} {
		t.Run(name, func(t *testing.T) {
			g := &grants{namespace: "plant", secrets: map[string]bool{}}
			g.addRules("Role r", []rbacv1.PolicyRule{c.rule})
			list := g.report([]*v1alpha1.GatewaySync{gs})
			require.Len(t, list, 1)
			assert.Equal(t, c.want, list[0].State, list[0].Message)
		})
	}
}

func TestReceiverAccountsOfRoleBindings(t *testing.T) {
	d := receivers{accounts: []account{{"stoker", "stoker-receiver"}}}
	subject := func(kind, namespace, name string) []rbacv1.Subject {
		return []rbacv1.Subject{{Kind: kind, Namespace: namespace, Name: name}}
	}
	assert.True(t, d.includes(subject("ServiceAccount", "stoker", "stoker-receiver")))
	assert.False(t, d.includes(subject("ServiceAccount", "plant", "stoker-receiver")))
	assert.False(t, d.includes(subject("User", "stoker", "stoker-receiver")))
	d = receivers{hidden: true}
	assert.True(t, d.includes(subject("ServiceAccount", "plant", "stoker-receiver")))
	assert.False(t, d.includes(subject("ServiceAccount", "plant", "default")))
}

func TestGrantCommand(t *testing.T) {
	role := func(name string, rules ...rbacv1.PolicyRule) *rbacv1.Role {
		return &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: rules}
	}
	one := rbacv1.PolicyRule{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"secrets"}, ResourceNames: []string{"one"}}
	binding := func(name, role, account string) *rbacv1.RoleBinding {
		return &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: name}, RoleRef: rbacv1.RoleRef{Kind: "Role", Name: role},
			Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: "stoker", Name: account}}}
	}
	const (
		own    = receiverSecrets + "-one" // another name than the chart's, because Helm cannot adopt existing objects
		create = "kubectl create role stoker-receiver-secrets-one --namespace plant --verb=get --resource=secrets --resource-name=one --resource-name=two && "
		bind   = "kubectl create rolebinding stoker-receiver-secrets-one --namespace plant --role=stoker-receiver-secrets-one --serviceaccount=stoker:stoker-receiver"
		rule   = `{"apiGroups":[""],"resources":["secrets"],"resourceNames":["two"],"verbs":["get"]}`
		set    = " --namespace plant --serviceaccount=stoker:stoker-receiver"
	)
	two := rbacv1.PolicyRule{Verbs: one.Verbs, APIGroups: one.APIGroups, Resources: one.Resources, ResourceNames: []string{"two"}}
	for name, c := range map[string]struct {
		role    *rbacv1.Role
		binding *rbacv1.RoleBinding
		want    string
	}{
		"nothing":                            {nil, nil, create + bind},
		"empty role":                         {role(receiverSecrets), binding(receiverSecrets, receiverSecrets, receiverName), `kubectl patch role stoker-receiver-secrets --namespace plant --type=json --patch='[{"op":"add","path":"/rules","value":[` + strings.Replace(rule, `"two"`, `"one","two"`, 1) + `]}]'`},
		"role for one Secret":                {role(receiverSecrets, one), binding(receiverSecrets, receiverSecrets, receiverName), `kubectl patch role stoker-receiver-secrets --namespace plant --type=json --patch='[{"op":"add","path":"/rules/-","value":` + rule + `}]'`},
		"another's":                          {role(receiverSecrets, one, two), binding(receiverSecrets, receiverSecrets, "other"), "kubectl set subject rolebinding stoker-receiver-secrets" + set},
		"binding of another role":            {role(receiverSecrets, one, two), binding(receiverSecrets, "other", receiverName), "kubectl create rolebinding stoker-receiver-secrets-named --namespace plant --role=stoker-receiver-secrets --serviceaccount=stoker:stoker-receiver"},
		"binding of a missing role":          {nil, binding(receiverSecrets, receiverSecrets, receiverName), create + bind},
		"own role":                           {role(own, one), binding(own, own, receiverName), `kubectl patch role stoker-receiver-secrets-one --namespace plant --type=json --patch='[{"op":"add","path":"/rules/-","value":` + rule + `}]'`},
		"own role, bound to another account": {role(own, one, two), binding(own, own, "other"), "kubectl set subject rolebinding stoker-receiver-secrets-one" + set},
	} {
		t.Run(name, func(t *testing.T) {
			g := &grants{receivers: receivers{accounts: []account{{"stoker", receiverName}}}, namespace: "plant", roles: map[string]*rbacv1.Role{}, bindings: map[string]*rbacv1.RoleBinding{}}
			if c.role != nil {
				g.roles[c.role.Name] = c.role
			}
			if c.binding != nil {
				g.bindings[c.binding.Name] = c.binding
			}
			assert.Equal(t, c.want, g.grantCommand([]string{"one", "two"}))
		})
	}
}
