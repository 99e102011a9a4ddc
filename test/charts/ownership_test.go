package charts

import (
	"encoding/json"
	"fmt"
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

	"stoker.io/stoker/api/v1alpha1"
)

// fluxApplies is the manifest of a GatewaySync in git.
const fluxApplies = `
apiVersion: stoker.io/v1alpha1
kind: GatewaySync
metadata:
  name: %s
  labels: {app: plant}
spec:
  git: {repo: https://git.example.com/plant.git, ref: main}
`

// shared is a GatewaySync that flux applies and that has more fields set by an administrator.
type shared struct {
	*plant
	name                 string
	root, editor, setter dynamic.ResourceInterface
}

func newShared(t *testing.T, p *plant, name string) shared {
	t.Helper()
	s := shared{plant: p, name: name, root: p.as(t, p.RESTConfig(), "gatewaysyncs"),
		editor: p.as(t, p.As(t, p.namespace, "editor", ""), "gatewaysyncs"),
		setter: p.as(t, p.As(t, p.namespace, "setter", ""), "gatewaysyncs")}
	s.fluxApplies(t)
	_, err := s.root.Patch(t.Context(), name, types.MergePatchType,
		[]byte(`{"metadata":{"labels":{"team":"north"},"annotations":{"note":"theirs","stoker.io/requested-by":"cli","stoker.io/approved":"prod"}},"spec":{"paused":true,"git":{"allowedRefs":["v*"]}}}`),
		metav1.PatchOptions{FieldManager: "admin"})
	require.NoError(t, err)
	return s
}

func (s shared) fluxApplies(t *testing.T) {
	t.Helper()
	_, err := s.root.Apply(t.Context(), s.name, parseOne(t, fmt.Sprintf(fluxApplies, s.name)), metav1.ApplyOptions{FieldManager: "flux", Force: true})
	require.NoError(t, err)
}

// intact checks that applying the unchanged manifest by flux keeps the fields set by the administrator.
func (s shared) intact(t *testing.T) {
	t.Helper()
	s.fluxApplies(t)
	live, err := s.root.Get(t.Context(), s.name, metav1.GetOptions{})
	require.NoError(t, err)
	want := map[string]any{"spec/paused": true, "spec/git/allowedRefs": []any{"v*"}, "metadata/labels/team": "north", "metadata/annotations/note": "theirs"}
	got := map[string]any{}
	for path := range want {
		got[path], _ = at(live.Object, path)
	}
	assert.Equal(t, want, got)
}

// owners returns the managedFields that a setter would write back.
func (s shared) owners(t *testing.T) []metav1.ManagedFieldsEntry {
	t.Helper()
	live, err := s.root.Get(t.Context(), s.name, metav1.GetOptions{})
	require.NoError(t, err)
	return live.GetManagedFields()
}

// owning changes the fields that a manager owns.
func owning(t *testing.T, entries []metav1.ManagedFieldsEntry, manager string, change func(fields map[string]any)) []metav1.ManagedFieldsEntry {
	t.Helper()
	for i, e := range entries {
		if e.Manager != manager {
			continue
		}
		fields := map[string]any{}
		require.NoError(t, json.Unmarshal(e.FieldsV1.Raw, &fields))
		change(fields)
		entries[i].FieldsV1 = &metav1.FieldsV1{Raw: []byte(mustJSON(t, fields))}
		return entries
	}
	require.Fail(t, "no manager "+manager)
	return nil
}

func within(fields map[string]any, keys ...string) map[string]any {
	for _, k := range keys {
		if fields[k] == nil {
			fields[k] = map[string]any{}
		}
		fields = fields[k].(map[string]any)
	}
	return fields
}

func dropped(entries []metav1.ManagedFieldsEntry, manager string) []metav1.ManagedFieldsEntry {
	var left []metav1.ManagedFieldsEntry
	for _, e := range entries {
		if e.Manager != manager {
			left = append(left, e)
		}
	}
	return left
}

// C12: An account that may only request a ref cannot change what the next apply of another manager deletes
// or keeps.
func TestSettersCannotChangeFieldOwners(t *testing.T) {
	t.Parallel()
	p := policed(t)
	s := newShared(t, p, "shared")
	type entries = []metav1.ManagedFieldsEntry
	forged := func(e entries, operation metav1.ManagedFieldsOperationType, fields string) entries {
		return append(e, metav1.ManagedFieldsEntry{Manager: "forged", Operation: operation, APIVersion: "stoker.io/v1alpha1", FieldsType: "FieldsV1",
			FieldsV1: &metav1.FieldsV1{Raw: []byte(fields)}})
	}
	flux := func(change func(fields map[string]any)) func(entries) entries {
		return func(e entries) entries { return owning(t, e, "flux", change) }
	}
	takes := flux(func(f map[string]any) {
		within(f, "f:spec", "f:paused")
		within(f, "f:spec", "f:git", "f:allowedRefs")
	})
	for name, change := range map[string]func(entries) entries{
		"only flux owns the administrator's fields": func(e entries) entries { return dropped(takes(e), "admin") },
		"flux also owns the administrator's fields": takes,
		"the administrator owns nothing":            func(e entries) entries { return dropped(e, "admin") },
		"flux owns nothing":                         func(e entries) entries { return dropped(e, "flux") },
		"flux owns fewer fields":                    flux(func(f map[string]any) { delete(within(f, "f:spec", "f:git"), "f:ref") }),
		"flux owns all of git":                      flux(func(f map[string]any) { within(f, "f:spec")["f:git"] = map[string]any{} }),
		"flux owns all of spec":                     flux(func(f map[string]any) { f["f:spec"] = map[string]any{} }),
		"flux owns a label of others":               flux(func(f map[string]any) { within(f, "f:metadata", "f:labels", "f:team") }),
		"flux owns one label less":                  flux(func(f map[string]any) { delete(within(f, "f:metadata", "f:labels"), "f:app") }),
		"flux owns an annotation of others":         flux(func(f map[string]any) { within(f, "f:metadata", "f:annotations", "f:note") }),
		"flux owns the approval":                    flux(func(f map[string]any) { within(f, "f:metadata", "f:annotations", "f:stoker.io/approved") }),
		"flux owns the status":                      flux(func(f map[string]any) { within(f, "f:status", "f:conditions") }),
		"flux with another version": func(e entries) entries {
			for i := range e {
				if e[i].Manager == "flux" {
					e[i].APIVersion = "stoker.io/v9"
				}
			}
			return e
		},
		"flux with a subresource": func(e entries) entries {
			for i := range e {
				if e[i].Manager == "flux" {
					e[i].Subresource = "status"
				}
			}
			return e
		},
		"update by another manager of fields of flux": func(e entries) entries {
			return forged(e, metav1.ManagedFieldsOperationUpdate, `{"f:spec":{"f:git":{"f:ref":{}}}}`)
		},
		"apply by another manager": func(e entries) entries {
			return forged(e, metav1.ManagedFieldsOperationApply, `{"f:spec":{"f:paused":{}}}`)
		},
		"apply of the annotation by another manager": func(e entries) entries {
			return forged(e, metav1.ManagedFieldsOperationApply, `{"f:metadata":{"f:annotations":{"f:note":{}}}}`)
		},
		"all owners removed by an empty entry": func(entries) entries { return entries{{}} },
	} {
		t.Run("refused/"+name, func(t *testing.T) {
			patch := map[string]any{"metadata": map[string]any{"managedFields": change(s.owners(t)), "annotations": map[string]any{"stoker.io/requested-ref": "v2"}}}
			before := s.owners(t)
			_, err := s.setter.Patch(t.Context(), s.name, types.MergePatchType, []byte(mustJSON(t, patch)), metav1.PatchOptions{})
			if name == "flux with another version" && err == nil { // since Kubernetes 1.37, an unknown version is ignored
				assert.Equal(t, before, s.owners(t))
				return
			}
			denied(t, err, "stoker-gatewaysyncs", "not change who owns other fields")
		})
	}
	t.Run("refused/by a JSON patch", func(t *testing.T) {
		_, err := s.setter.Patch(t.Context(), s.name, types.JSONPatchType, []byte(`[{"op":"remove","path":"/metadata/managedFields/0"}]`), metav1.PatchOptions{})
		denied(t, err, "stoker-gatewaysyncs", "not change who owns other fields")
	})
	t.Run("refused/by server-side apply of what is there", func(t *testing.T) {
		for _, manager := range []string{"flux", "pipeline"} {
			o := parseOne(t, fmt.Sprintf(fluxApplies, s.name)+"  paused: true\n")
			_, err := s.setter.Apply(t.Context(), s.name, o, metav1.ApplyOptions{FieldManager: manager, Force: true})
			denied(t, err, "stoker-gatewaysyncs", "not change who owns other fields")
		}
	})
	t.Run("later apply deletes nothing", s.intact)
}

// setterAnnotations returns the names of the annotations that setters may change.
func setterAnnotations() []string {
	var names []string
	for _, a := range v1alpha1.RequestAnnotations() {
		if a.Writer == v1alpha1.WriterSetter {
			names = append(names, a.Name)
		}
	}
	return names
}

func TestSetterRequests(t *testing.T) {
	t.Parallel()
	p := policed(t)
	annotated := func(value any) string {
		return mustJSON(t, map[string]any{"metadata": map[string]any{"annotations": map[string]any{"stoker.io/requested-ref": value}}})
	}
	asks := func(s shared, manager, value string) error {
		_, err := s.setter.Patch(t.Context(), s.name, types.MergePatchType, []byte(annotated(value)), metav1.PatchOptions{FieldManager: manager})
		return err
	}
	applies := func(s shared, manager, value string) error {
		o := parseOne(t, "apiVersion: stoker.io/v1alpha1\nkind: GatewaySync\nmetadata:\n  name: "+s.name+"\n  annotations: {stoker.io/requested-ref: "+value+"}\n")
		_, err := s.setter.Apply(t.Context(), s.name, o, metav1.ApplyOptions{FieldManager: manager, Force: true})
		return err
	}
	t.Run("annotations", func(t *testing.T) {
		s := newShared(t, p, "annotations")
		assert.NoError(t, asks(s, "stoker-request", "v2"))
		assert.NoError(t, asks(s, "flux", "v3"), "any manager name must be allowed")
		assert.NoError(t, applies(s, "pipeline", "v4"))
		assert.NoError(t, asks(s, "stoker-request", "v5"), "a request must take over a field that another manager applied")
		_, err := s.setter.Patch(t.Context(), s.name, types.JSONPatchType, []byte(`[{"op":"add","path":"/metadata/annotations/stoker.io~1requested-at","value":"1"}]`), metav1.PatchOptions{})
		assert.NoError(t, err)
		_, err = s.setter.Patch(t.Context(), s.name, types.MergePatchType,
			[]byte(`{"metadata":{"managedFields":[],"annotations":{"stoker.io/requested-ref":"v6"}}}`), metav1.PatchOptions{})
		assert.NoError(t, err, "an empty list must be allowed, because it changes no owner")
		patch := map[string]any{"metadata": map[string]any{"managedFields": s.owners(t), "annotations": map[string]any{"stoker.io/requested-ref": "v7"}}}
		_, err = s.setter.Patch(t.Context(), s.name, types.MergePatchType, []byte(mustJSON(t, patch)), metav1.PatchOptions{})
		assert.NoError(t, err, "unchanged owners must be allowed")
		fromLua := strings.ReplaceAll(mustJSON(t, patch), "{}", "[]") // Lua has one empty table for both
		_, err = s.setter.Patch(t.Context(), s.name, types.MergePatchType, []byte(strings.Replace(fromLua, "v7", "v8", 1)), metav1.PatchOptions{})
		assert.NoError(t, err, "owners sent back by a script of Argo CD must be allowed")
		s.intact(t)
	})
	t.Run("first and last annotation", func(t *testing.T) {
		s := newShared(t, p, "bare")
		_, err := s.root.Patch(t.Context(), s.name, types.MergePatchType, []byte(`{"metadata":{"annotations":null}}`), metav1.PatchOptions{FieldManager: "admin"})
		require.NoError(t, err)
		assert.NoError(t, asks(s, "stoker-request", "v2"))
		_, err = s.setter.Patch(t.Context(), s.name, types.MergePatchType, []byte(annotated(nil)), metav1.PatchOptions{FieldManager: "stoker-request"})
		assert.NoError(t, err)
		assert.NoError(t, applies(s, "pipeline", "v3"))
	})
	// The API server keeps at most ten managers of updates and merges the oldest ones into one entry.
	t.Run("more managers than the API server keeps", func(t *testing.T) {
		s := newShared(t, p, "managers")
		for i, body := range []string{`{"spec":{"git":{"ref":"v9"}}}`, `{"spec":{"gateway":{"port":8043}}}`, `{"metadata":{"labels":{"team":"north","line":"1"}}}`} {
			_, err := s.root.Patch(t.Context(), s.name, types.MergePatchType, []byte(body), metav1.PatchOptions{FieldManager: fmt.Sprint("person-", i)})
			require.NoError(t, err)
		}
		for i, a := range setterAnnotations() {
			_, err := s.setter.Patch(t.Context(), s.name, types.MergePatchType,
				[]byte(fmt.Sprintf(`{"metadata":{"annotations":{%q:"1"}}}`, a)), metav1.PatchOptions{FieldManager: fmt.Sprint("setter-", i)})
			require.NoError(t, err, i)
		}
		var names []string
		for _, e := range s.owners(t) {
			names = append(names, e.Manager)
		}
		assert.Contains(t, names, "ancient-changes")
		s.intact(t)
	})
	t.Run("more managers than the limit, and later updates", func(t *testing.T) {
		s := newShared(t, p, "appliers")
		var err error
		for i := 0; i < 40 && err == nil; i++ {
			err = applies(s, fmt.Sprint("pipeline-", i), "v2")
		}
		denied(t, err, "stoker-gatewaysyncs", "32 managers of server-side apply")
		assert.NoError(t, asks(s, "stoker-request", "v3"))
		others, requests := map[string]any{}, map[string]any{}
		for i := range 60 {
			others[fmt.Sprint("example.com/x", i)] = "1"
		}
		for _, a := range setterAnnotations() {
			requests[a] = "1"
		}
		_, err = s.root.Patch(t.Context(), s.name, types.MergePatchType, []byte(mustJSON(t, map[string]any{"metadata": map[string]any{"annotations": others}})), metav1.PatchOptions{})
		require.NoError(t, err)
		_, err = s.setter.Patch(t.Context(), s.name, types.MergePatchType, []byte(mustJSON(t, map[string]any{"metadata": map[string]any{"annotations": requests}})), metav1.PatchOptions{})
		denied(t, err, "stoker-gatewaysyncs", "64 annotations")
	})
	t.Run("after a user reset the owners", func(t *testing.T) {
		s := newShared(t, p, "reset")
		_, err := s.editor.Patch(t.Context(), s.name, types.MergePatchType, []byte(`{"metadata":{"managedFields":[{}]}}`), metav1.PatchOptions{})
		require.NoError(t, err)
		require.Empty(t, s.owners(t))
		assert.NoError(t, asks(s, "stoker-request", "v2"))
		patch := `{"metadata":{"managedFields":[{"manager":"flux","operation":"Apply","apiVersion":"stoker.io/v1alpha1","fieldsType":"FieldsV1","fieldsV1":{"f:spec":{"f:paused":{}}}}]}}`
		_, err = s.setter.Patch(t.Context(), s.name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		denied(t, err, "stoker-gatewaysyncs", "not change who owns other fields")
		assert.NoError(t, applies(s, "pipeline", "v3"))
		s.intact(t)
	})
	t.Run("a GatewaySync as large as they get", func(t *testing.T) {
		s := newShared(t, p, "large")
		profiles := map[string]any{}
		for i := range 64 {
			var mappings []any
			for j := range 50 {
				mappings = append(mappings, map[string]any{"source": fmt.Sprintf("sites/%d/%d", i, j), "destination": fmt.Sprintf("projects/%d", j)})
			}
			profiles[fmt.Sprint("line-", i)] = map[string]any{"mappings": mappings}
		}
		_, err := s.root.Patch(t.Context(), s.name, types.MergePatchType,
			[]byte(mustJSON(t, map[string]any{"spec": map[string]any{"sync": map[string]any{"profiles": profiles}}})), metav1.PatchOptions{FieldManager: "generator"})
		require.NoError(t, err)
		assert.NoError(t, asks(s, "stoker-request", "v2"))
		for i := range 12 {
			require.NoError(t, asks(s, fmt.Sprint("setter-", i), fmt.Sprint("v", i)), i)
		}
		assert.NoError(t, applies(s, "pipeline", "v3"))
	})
}

// C16: Only an account with the verb approve can approve a stage. The rights to request refs, edit the spec or create GatewaySyncs do not
// include it.
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
		t.Run("restored by an administrator", func(t *testing.T) {
			named := gs.DeepCopy()
			named.SetAnnotations(map[string]string{"stoker.io/approved": "prod@" + a + " ann"})
			_, err := p.as(t, p.RESTConfig(), "gatewaysyncs").Create(t.Context(), named, metav1.CreateOptions{DryRun: dry})
			assert.NoError(t, err)
			_, err = p.as(t, p.RESTConfig(), "gatewaysyncs").Patch(t.Context(), "plant", types.MergePatchType, annotated(`"prod@`+a+` ann"`), metav1.PatchOptions{DryRun: dry})
			denied(t, err, "stoker-approvals", "with its own name only")
		})
		require.NoError(t, patch(`"prod@`+b+`"`), "approvals must be removable")
		for _, value := range []string{before + ", dev@" + a + " " + own, before} { // sequence: the second one removes the first
			_, err := as["approver"].Patch(t.Context(), "plant", types.MergePatchType, annotated(`"`+value+`"`), metav1.PatchOptions{})
			require.NoError(t, err)
			require.NoError(t, patch(`"`+strings.ReplaceAll(value, ", ", ",")+`,pilot@`+a+`"`), "existing approvals may lose their spaces")
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
