package charts

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"stoker.io/stoker/internal/kube"
)

const spec = `{"git":{"repo":"https://git.example.com/plant.git","ref":"main"}}`

func resource(plural string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "stoker.io", Version: "v1alpha1", Resource: plural}
}

// plant is a namespace in an installed cluster. It has a GatewaySync and two gateway pods that share a
// ServiceAccount, like the pods of one StatefulSet.
type plant struct {
	*server
	namespace string
	pods      [2]*corev1.Pod
}

func newPlant(t *testing.T, s *server) *plant {
	t.Helper()
	p := &plant{server: s, namespace: s.Namespace(t)}
	accounts(t, s, p.namespace, "gateway", "setter", "editor", "approver")
	for i := range p.pods {
		var err error
		p.pods[i], err = s.core.CoreV1().Pods(p.namespace).Create(t.Context(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("line-%d", i)},
			Spec: corev1.PodSpec{ServiceAccountName: "gateway", AutomountServiceAccountToken: new(bool),
				Containers: []corev1.Container{{Name: "gateway", Image: "gateway"}}},
		}, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	p.bind(t, "stoker-agent", "gateway")
	p.bind(t, "stoker-setter", "setter")
	p.bind(t, "stoker-edit", "editor")
	_, err := p.as(t, s.RESTConfig(), "gatewaysyncs").Create(t.Context(), parseOne(t, `
apiVersion: stoker.io/v1alpha1
kind: GatewaySync
metadata:
  name: plant
  labels: {team: north}
  annotations: {note: theirs, stoker.io/requested-by: cli}
spec: `+spec), metav1.CreateOptions{})
	require.NoError(t, err)
	return p
}

func (p *plant) bind(t *testing.T, role, account string) {
	t.Helper()
	made, err := p.core.RbacV1().RoleBindings(p.namespace).Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: role},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: account, Namespace: p.namespace}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	p.inForce(t, made)
}

func (p *plant) as(t *testing.T, who *rest.Config, plural string) dynamic.ResourceInterface {
	t.Helper()
	client, err := dynamic.NewForConfig(who)
	require.NoError(t, err)
	return client.Resource(resource(plural)).Namespace(p.namespace)
}

// agent returns a client with the token of the agent in pod i.
func (p *plant) agent(t *testing.T, i int, plural string) dynamic.ResourceInterface {
	t.Helper()
	return p.as(t, p.As(t, p.namespace, "gateway", p.pods[i].Name), plural)
}

func parseOne(t *testing.T, text string) *object {
	t.Helper()
	for _, o := range parse(t, []byte(text)) {
		return o
	}
	require.Fail(t, "the object was not found")
	return nil
}

func report(name string, owner *corev1.Pod) *object {
	o := &object{Object: map[string]any{
		"apiVersion": "stoker.io/v1alpha1", "kind": "SyncReport", "metadata": map[string]any{"name": name},
		"status": map[string]any{"format": int64(1), "gateway": "line", "phase": "Pending"},
	}}
	if owner != nil {
		o.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: owner.Name, UID: owner.UID}})
	}
	return o
}

// policed installs the chart and waits until the policies are in force, a moment after they were created.
func policed(t *testing.T) *plant {
	t.Helper()
	p := newPlant(t, installed(t))
	agent, setter := p.agent(t, 0, "syncreports"), p.as(t, p.As(t, p.namespace, "setter", ""), "gatewaysyncs")
	require.Eventually(t, func() bool {
		_, err := agent.Create(t.Context(), report("somebody-else", nil), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		_, err2 := setter.Patch(t.Context(), "plant", types.MergePatchType, []byte(`{"spec":{"paused":true}}`), metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
		return apierrors.IsForbidden(err) && apierrors.IsForbidden(err2)
	}, eventually, pause)
	return p
}

// denied checks that RBAC allowed a request and a policy denied it.
func denied(t *testing.T, err error, policy, words string) {
	t.Helper()
	if assert.Error(t, err) {
		assert.True(t, apierrors.IsForbidden(err), "%v", err)
		assert.ErrorContains(t, err, "ValidatingAdmissionPolicy '"+policy+"'")
		assert.ErrorContains(t, err, words)
	}
}

func TestPolicies(t *testing.T) {
	t.Parallel()
	p := policed(t)
	t.Run("report of the own pod", func(t *testing.T) {
		for i := range p.pods {
			reports, name := p.agent(t, i, "syncreports"), p.pods[i].Name
			made, err := reports.Create(t.Context(), report(name, p.pods[i]), metav1.CreateOptions{})
			require.NoError(t, err)
			_, err = reports.Update(t.Context(), made, metav1.UpdateOptions{})
			require.NoError(t, err)
			_, err = reports.Patch(t.Context(), name, types.MergePatchType, []byte(`{"status":{"phase":"Synced"}}`), metav1.PatchOptions{})
			require.NoError(t, err)
			labeled := report(name, p.pods[i])
			labeled.SetLabels(map[string]string{"stoker.io/cr-name": "plant"})
			live, err := reports.Get(t.Context(), name, metav1.GetOptions{})
			require.NoError(t, err)
			labeled.SetResourceVersion(live.GetResourceVersion())
			_, err = reports.Update(t.Context(), labeled, metav1.UpdateOptions{FieldManager: "stoker-agent"})
			require.NoError(t, err)
		}
	})
	t.Run("report of another pod of the ServiceAccount", func(t *testing.T) {
		reports := p.agent(t, 0, "syncreports")
		_, err := reports.Patch(t.Context(), "line-1", types.MergePatchType, []byte(`{"status":{"phase":"Error"}}`), metav1.PatchOptions{})
		denied(t, err, "stoker-syncreports", "only the agent of pod "+p.namespace+"/line-1 writes this SyncReport")
		_, err = reports.Create(t.Context(), report("line-7", nil), metav1.CreateOptions{})
		denied(t, err, "stoker-syncreports", "is pod line-0")
	})
	t.Run("token without pod", func(t *testing.T) {
		_, err := p.as(t, p.As(t, p.namespace, "gateway", ""), "syncreports").Create(t.Context(), report("line-0", nil), metav1.CreateOptions{})
		denied(t, err, "stoker-syncreports", "came with a token that is bound to none")
	})
	t.Run("pod of the same name in another namespace", func(t *testing.T) {
		elsewhere := newPlant(t, p.server)
		_, err := p.core.RbacV1().RoleBindings(p.namespace).Create(t.Context(), &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "stranger"},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "stoker-agent"},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: "gateway", Namespace: elsewhere.namespace}},
		}, metav1.CreateOptions{})
		require.NoError(t, err)
		stranger := p.as(t, elsewhere.As(t, elsewhere.namespace, "gateway", "line-0"), "syncreports")
		require.Eventually(t, func() bool {
			_, err = stranger.Patch(t.Context(), "line-0", types.MergePatchType, []byte(`{"status":{"phase":"Error"}}`), metav1.PatchOptions{})
			return err != nil && strings.Contains(err.Error(), "ValidatingAdmissionPolicy")
		}, eventually, pause, "the binding is in force")
		denied(t, err, "stoker-syncreports", "only the agent of pod "+p.namespace+"/line-0")
	})
	t.Run("owner of a report", func(t *testing.T) {
		reports := p.agent(t, 0, "syncreports")
		impostor := p.pods[0].DeepCopy()
		impostor.UID = "00000000-0000-0000-0000-000000000000"
		for _, owner := range []*corev1.Pod{p.pods[1], impostor} {
			_, err := reports.Patch(t.Context(), "line-0", types.MergePatchType, []byte(mustJSON(t, map[string]any{
				"metadata": map[string]any{"ownerReferences": report("line-0", owner).GetOwnerReferences()}})), metav1.PatchOptions{})
			denied(t, err, "stoker-syncreports", "owned by its own pod")
		}
	})
	t.Run("cluster administrator", func(t *testing.T) {
		accounts(t, p.server, p.namespace, "root")
		_, err := p.core.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: p.namespace},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: "root", Namespace: p.namespace}},
		}, metav1.CreateOptions{})
		require.NoError(t, err)
		root := p.as(t, p.As(t, p.namespace, "root", ""), "syncreports")
		require.Eventually(t, func() bool {
			_, err = root.Patch(t.Context(), "line-0", types.MergePatchType, []byte(`{"status":{"message":"by hand"}}`), metav1.PatchOptions{})
			return err == nil
		}, eventually, pause, "%v", err)
	})
	t.Run("garbage collection", func(t *testing.T) {
		zero := int64(0)
		require.NoError(t, p.core.CoreV1().Pods(p.namespace).Delete(t.Context(), "line-1", metav1.DeleteOptions{GracePeriodSeconds: &zero}))
		reports := p.as(t, p.RESTConfig(), "syncreports")
		require.Eventually(t, func() bool {
			_, err := reports.Get(t.Context(), "line-1", metav1.GetOptions{})
			return apierrors.IsNotFound(err)
		}, eventually, pause)
	})
	t.Run("agent and GatewaySync", func(t *testing.T) {
		syncs := p.agent(t, 0, "gatewaysyncs")
		before, err := syncs.Get(t.Context(), "plant", metav1.GetOptions{})
		require.NoError(t, err)
		for _, patch := range everything {
			_, err := syncs.Patch(t.Context(), "plant", types.MergePatchType, []byte(patch), metav1.PatchOptions{})
			assert.True(t, apierrors.IsForbidden(err), "%s: %v", patch, err)
		}
		// A patch of the status subresource changes only the status.
		after, err := syncs.Patch(t.Context(), "plant", types.MergePatchType,
			[]byte(`{"metadata":{"labels":{"a":"b"},"annotations":{"a":"b","stoker.io/requested-ref":"v2"},"finalizers":["a.example.com/b"]},"spec":{"paused":true},"status":{"gatewaysReady":"1/2"}}`),
			metav1.PatchOptions{}, "status")
		require.NoError(t, err)
		ready, _ := at(after.Object, "status/gatewaysReady")
		assert.Equal(t, "1/2", ready)
		assert.Equal(t, before.Object["spec"], after.Object["spec"])
		for _, field := range []string{"labels", "annotations", "finalizers"} {
			was, _ := at(before.Object, "metadata/"+field)
			is, _ := at(after.Object, "metadata/"+field)
			assert.Equal(t, was, is, field)
		}
	})
	t.Run("setter and GatewaySync", func(t *testing.T) {
		setter := p.as(t, p.As(t, p.namespace, "setter", ""), "gatewaysyncs")
		for _, patch := range []string{
			`{"metadata":{"annotations":{"stoker.io/requested-ref":"v2","stoker.io/requested-at":"2030-01-01T00:00:00Z"}}}`,
			`{"metadata":{"annotations":{"stoker.io/requested-ref":"v3"}}}`,
			`{"metadata":{"annotations":{"stoker.io/requested-ref":null,"stoker.io/requested-by":null}}}`,
		} {
			_, err := setter.Patch(t.Context(), "plant", types.MergePatchType, []byte(patch), metav1.PatchOptions{FieldManager: "stoker-request"})
			assert.NoError(t, err, patch)
		}
		for _, patch := range everything {
			_, err := setter.Patch(t.Context(), "plant", types.MergePatchType, []byte(patch), metav1.PatchOptions{FieldManager: "stoker-request"})
			denied(t, err, "stoker-gatewaysyncs", "may patch GatewaySyncs and not update them")
		}
		live, err := setter.Get(t.Context(), "plant", metav1.GetOptions{})
		require.NoError(t, err)
		_, err = setter.Update(t.Context(), live, metav1.UpdateOptions{})
		assert.True(t, apierrors.IsForbidden(err), "%v", err)
		_, err = setter.Patch(t.Context(), "plant", types.MergePatchType, []byte(`{"status":{"gatewaysReady":"9/9"}}`), metav1.PatchOptions{}, "status")
		assert.True(t, apierrors.IsForbidden(err), "%v", err)
		assert.True(t, apierrors.IsForbidden(setter.Delete(t.Context(), "plant", metav1.DeleteOptions{})))
	})
	t.Run("editor and GatewaySync", func(t *testing.T) {
		editor := p.as(t, p.As(t, p.namespace, "editor", ""), "gatewaysyncs")
		for _, patch := range everything {
			_, err := editor.Patch(t.Context(), "plant", types.MergePatchType, []byte(patch), metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
			assert.NoError(t, err, patch)
		}
	})
}

// everything lists patches of a GatewaySync that only an editor may make.
var everything = []string{
	`{"spec":{"git":{"ref":"v2"}}}`,
	`{"spec":{"paused":true}}`,
	`{"spec":{"git":{"repo":"https://elsewhere.example.com/x.git"}}}`,
	`{"metadata":{"labels":{"team":"south"}}}`,
	`{"metadata":{"labels":{"team":null}}}`,
	`{"metadata":{"annotations":{"note":"mine"}}}`,
	`{"metadata":{"annotations":{"note":null}}}`,
	`{"metadata":{"annotations":{"argocd.argoproj.io/sync-wave":"1"}}}`,
	`{"metadata":{"annotations":{"stoker.io.example.com/x":"1"}}}`,
	`{"metadata":{"finalizers":["a.example.com/b"]}}`,
	`{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Pod","name":"line-0","uid":"00000000-0000-0000-0000-000000000000"}]}}`,
}

// docs/reference/gatewaysync.md says what happens to a misspelled field.
func TestUnknownFieldOfGatewaySync(t *testing.T) {
	t.Parallel()
	s := installed(t)
	s.namespaces(t, "unknown-fields")
	syncs := s.dynamic.Resource(kube.GatewaySync.Resource()).Namespace("unknown-fields")
	object := func(name string) *unstructured.Unstructured {
		u := &unstructured.Unstructured{}
		require.NoError(t, yaml.Unmarshal([]byte(`
apiVersion: stoker.io/v1alpha1
kind: GatewaySync
metadata: {name: `+name+`}
spec:
  git: {repo: https://git.example.com/plant.git, ref: main}
  sync:
    defaults: {conflictpolicy: hold}
    profiles: {default: {mappings: [{source: projects, destination: projects}]}}
`), u))
		return u
	}
	t.Run("no validation drops the field", func(t *testing.T) {
		got, err := syncs.Create(t.Context(), object("lenient"), metav1.CreateOptions{})
		require.NoError(t, err)
		defaults, _, err := unstructured.NestedMap(got.Object, "spec", "sync", "defaults")
		require.NoError(t, err)
		assert.NotContains(t, defaults, "conflictpolicy")
		assert.NotEqual(t, "hold", defaults["conflictPolicy"])
	})
	t.Run("strict validation rejects the field", func(t *testing.T) {
		_, err := syncs.Create(t.Context(), object("strict"), metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict})
		require.True(t, apierrors.IsBadRequest(err), "%v", err)
		assert.ErrorContains(t, err, `unknown field "spec.sync.defaults.conflictpolicy"`)
	})
	t.Run("server-side apply rejects the field", func(t *testing.T) {
		_, err := syncs.Apply(t.Context(), "applied", object("applied"), metav1.ApplyOptions{FieldManager: "test"})
		assert.ErrorContains(t, err, ".spec.sync.defaults.conflictpolicy: field not declared in schema")
	})
}

// If the destination of an Application names a ServiceAccount, Argo CD syncs and runs actions with the
// rights of this account. It needs get, create and patch for both. An account without update counts as a
// setter.
func TestImpersonatedDeployers(t *testing.T) {
	t.Parallel()
	p := policed(t)
	accounts(t, p.server, p.namespace, "deployer")
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "deployer", Namespace: p.namespace},
		Rules: []rbacv1.PolicyRule{{APIGroups: []string{"stoker.io"}, Resources: []string{"gatewaysyncs"}, Verbs: []string{"get", "list", "create", "patch"}}}}
	role, err := p.core.RbacV1().Roles(p.namespace).Create(t.Context(), role, metav1.CreateOptions{})
	require.NoError(t, err)
	binding, err := p.core.RbacV1().RoleBindings(p.namespace).Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "deployer"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "deployer"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: "deployer", Namespace: p.namespace}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	p.inForce(t, binding)
	who := rest.CopyConfig(p.RESTConfig())
	who.Impersonate = rest.ImpersonationConfig{UserName: "system:serviceaccount:" + p.namespace + ":deployer"}
	deployer := p.as(t, who, "gatewaysyncs")
	apply := func(ref string) error {
		o := parseOne(t, fmt.Sprintf("apiVersion: stoker.io/v1alpha1\nkind: GatewaySync\nmetadata: {name: deployed}\nspec: {git: {repo: https://git.example.com/plant.git, ref: %s}}\n", ref))
		_, err := deployer.Apply(t.Context(), "deployed", o, metav1.ApplyOptions{FieldManager: "argocd-controller", Force: true})
		return err
	}
	require.NoError(t, apply("main"), "the deployer must be allowed to create")
	require.NoError(t, apply("main"), "the deployer must be allowed to apply an unchanged object")
	_, err = deployer.Patch(t.Context(), "deployed", types.MergePatchType, []byte(`{"metadata":{"annotations":{"stoker.io/force-sync":"1"}}}`), metav1.PatchOptions{})
	require.NoError(t, err, "the deployer must be allowed to run actions")
	denied(t, apply("v2"), "stoker-gatewaysyncs", "and not the spec")

	role.Rules[0].Verbs = append(role.Rules[0].Verbs, "update")
	_, err = p.core.RbacV1().Roles(p.namespace).Update(t.Context(), role, metav1.UpdateOptions{})
	require.NoError(t, err)
	require.Eventually(t, func() bool { return apply("v2") == nil }, eventually, pause, "with the verb update, the deployer may change the spec")

	t.Run("examples/config/account.yaml", func(t *testing.T) {
		text, err := os.ReadFile(filepath.Join(root, "examples", "config", "account.yaml"))
		require.NoError(t, err)
		p.ApplyYAML(t, p.namespace, string(text))
		account := p.as(t, p.As(t, p.namespace, "stoker-config", ""), "gatewaysyncs")
		var said error
		// sequence: the second commit changes the object
		for _, ref := range []string{"main", "v2"} {
			require.Eventually(t, func() bool {
				o := parseOne(t, "{apiVersion: stoker.io/v1alpha1, kind: GatewaySync, metadata: {name: kept}, spec: {git: {repo: https://git.example.com/plant.git, ref: "+ref+"}}}")
				_, said = account.Apply(t.Context(), "kept", o, metav1.ApplyOptions{FieldManager: "stoker-config", Force: true})
				return said == nil || strings.Contains(said.Error(), "ValidatingAdmissionPolicy")
			}, eventually, pause, "the authorizer learns of the Role a moment later")
			assert.NoError(t, said, ref)
		}
	})
}

// The injector has every right of its own role, so RBAC alone would let it bind that role, too.
func TestInjectorBindsAgentRoleOnly(t *testing.T) {
	t.Parallel()
	p := policed(t)
	p.rightsOf(t, "injector", nil)
	client, err := kubernetes.NewForConfig(p.As(t, namespace, "stoker-injector", ""))
	require.NoError(t, err)
	bind := func(role string) error {
		_, err := client.RbacV1().RoleBindings(p.namespace).Create(t.Context(), &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "bound"},
			RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: "setter", Namespace: p.namespace}}}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	assert.NoError(t, bind("stoker-agent"))
	denied(t, bind("stoker-injector"), "stoker-rolebindings", "binds the ClusterRole stoker-agent only")
}
