package charts

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
)

// C16: Only the verb approve opens a stage. Requesting refs, editing the spec and creating GatewaySyncs do not give it.
func TestApprovals(t *testing.T) {
	t.Parallel()
	p := policed(t)
	p.bind(t, "stoker-approver", "approver")
	as := map[string]dynamic.ResourceInterface{}
	for _, who := range []string{"setter", "editor", "approver"} { // setup: a client for each account
		as[who] = p.as(t, p.As(t, p.namespace, who, ""), "gatewaysyncs")
	}
	dry := []string{metav1.DryRunAll}
	a, b := strings.Repeat("a", 40), strings.Repeat("b", 40)
	annotated := func(value string) []byte {
		return []byte(`{"metadata":{"annotations":{"stoker.io/approved":` + value + `}}}`)
	}
	gs := parseOne(t, `
apiVersion: stoker.io/v1alpha1
kind: GatewaySync
metadata:
  name: approved
  annotations: {stoker.io/approved: prod@`+a+`}
spec: `+spec)
	require.Eventually(t, func() bool {
		_, err := as["editor"].Create(t.Context(), gs, metav1.CreateOptions{DryRun: dry})
		return apierrors.IsForbidden(err)
	}, eventually, pause, "the policy is in force")

	for _, who := range []string{"setter", "editor"} {
		t.Run(who+" does not approve", func(t *testing.T) {
			_, err := as[who].Patch(t.Context(), "plant", types.MergePatchType, annotated(`"prod@`+a+`"`), metav1.PatchOptions{})
			denied(t, err, "stoker-approvals", who+" may not approve: changing the annotation stoker.io/approved requires the verb approve on gatewaysyncs")
		})
	}
	t.Run("editor creates an approved object", func(t *testing.T) {
		_, err := as["editor"].Create(t.Context(), gs, metav1.CreateOptions{})
		denied(t, err, "stoker-approvals", "ClusterRole stoker-approver")
		nameless := gs.DeepCopy()
		nameless.SetName("")
		nameless.SetGenerateName("approved-")
		_, err = as["editor"].Create(t.Context(), nameless, metav1.CreateOptions{})
		denied(t, err, "stoker-approvals", "ClusterRole stoker-approver")
		plain := gs.DeepCopy()
		plain.SetAnnotations(nil)
		_, err = as["editor"].Create(t.Context(), plain, metav1.CreateOptions{DryRun: dry})
		assert.NoError(t, err)
	})
	t.Run("approver approves", func(t *testing.T) {
		for _, value := range []string{`"prod@` + a + `"`, `"prod@` + a + `,prod@` + b + `"`} { // sequence: the second adds to the first
			_, err := as["approver"].Patch(t.Context(), "plant", types.MergePatchType, annotated(value), metav1.PatchOptions{FieldManager: "stoker-request"})
			require.NoError(t, err)
		}
	})
	t.Run("only the approver's own name", func(t *testing.T) {
		own := "system:serviceaccount:" + p.namespace + ":approver"
		patch := func(value string) error {
			_, err := as["approver"].Patch(t.Context(), "plant", types.MergePatchType, annotated(value), metav1.PatchOptions{DryRun: dry})
			return err
		}
		before := "prod@" + a + ",prod@" + b
		require.NoError(t, patch(`"`+before+`,dev@`+a+` `+own+`"`))
		for name, value := range map[string]string{
			"another user":     before + ",dev@" + a + " ann",
			"added to another": "prod@" + a + " ann,prod@" + b,
			"longer name":      before + ",dev@" + a + " ann " + own + "x",
			"too long":         before + strings.Repeat(",", 4096),
		} {
			t.Run(name, func(t *testing.T) {
				denied(t, patch(`"`+value+`"`), "stoker-approvals", own+" may add approvals (stoker.io/approved, at most 4096 characters) without a user or with its own name only")
			})
		}
		require.NoError(t, patch(`"prod@`+b+`"`), "approvals must be removable")
		for _, value := range []string{before + ", dev@" + a + " " + own, before} { // sequence: the second one removes the first
			_, err := as["approver"].Patch(t.Context(), "plant", types.MergePatchType, annotated(`"`+value+`"`), metav1.PatchOptions{})
			require.NoError(t, err)
			require.NoError(t, patch(`"`+strings.ReplaceAll(value, ", ", ",")+`,pilot@`+a+`"`), "what was there may lose its spaces")
		}
	})
	t.Run("approver changes the spec", func(t *testing.T) {
		heldToAnnotations(t, as["approver"])
		_, err := as["approver"].Create(t.Context(), gs, metav1.CreateOptions{})
		assert.True(t, apierrors.IsForbidden(err), "%v", err)
	})
	t.Run("approved object stays", func(t *testing.T) {
		for _, who := range []string{"setter", "editor"} {
			_, err := as[who].Patch(t.Context(), "plant", types.MergePatchType, annotated("null"), metav1.PatchOptions{})
			denied(t, err, "stoker-approvals", who+" may not approve")
			_, err = as[who].Patch(t.Context(), "plant", types.MergePatchType, []byte(`{"metadata":{"annotations":{"stoker.io/requested-ref":"v2"}}}`), metav1.PatchOptions{DryRun: dry})
			assert.NoError(t, err, "other annotations must be allowed")
		}
		live, err := as["approver"].Get(t.Context(), "plant", metav1.GetOptions{})
		require.NoError(t, err)
		require.NoError(t, unstructured.SetNestedField(live.Object, true, "spec", "paused"))
		live, err = as["editor"].Update(t.Context(), live, metav1.UpdateOptions{})
		require.NoError(t, err, "an editor must be allowed to change other fields")
		assert.Equal(t, "prod@"+a+",prod@"+b, live.GetAnnotations()["stoker.io/approved"])
		live.SetAnnotations(nil)
		_, err = as["editor"].Update(t.Context(), live, metav1.UpdateOptions{})
		denied(t, err, "stoker-approvals", "editor may not approve")
	})
	t.Run("editor with the verb approve", func(t *testing.T) {
		_, err := p.core.RbacV1().Roles(p.namespace).Create(t.Context(), &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "approve"},
			Rules: []rbacv1.PolicyRule{{APIGroups: []string{"stoker.io"}, Resources: []string{"gatewaysyncs"}, Verbs: []string{"approve"}}}}, metav1.CreateOptions{})
		require.NoError(t, err)
		_, err = p.core.RbacV1().RoleBindings(p.namespace).Create(t.Context(), &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "approve"},
			RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "approve"},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: "editor", Namespace: p.namespace}}}, metav1.CreateOptions{})
		require.NoError(t, err)
		require.Eventually(t, func() bool {
			_, err = as["editor"].Create(t.Context(), gs, metav1.CreateOptions{DryRun: dry})
			return err == nil
		}, eventually, pause, "%v", err)
	})
}
