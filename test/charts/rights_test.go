package charts

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/injector/inject"
)

var update = flag.Bool("update", false, "write the golden files again")

// C5, C6, I12: The golden files list every right of an installation, one per line. Changing a golden file changes
// the rights of Stoker. docs/internals/security.md has the reason for each line.
func TestGoldenRights(t *testing.T) {
	t.Parallel()
	for name, v := range map[string]values{
		"rights-default": nil,
		"rights-least": with(set("watchNamespaces", []any{"north"}), set("rbac.autoBindAgent.enabled", false), set("injector.repair", "report"),
			set("rbac.aggregateToDefaultRoles", false), set("webhook.certManager.enabled", true)),
		"rights-namespaced": set("watchNamespaces", []any{"north", "south"}),
		"rights-asking": with(on, set("webhookReceiver.secrets", []any{values{"namespace": "line", "name": "stoker-webhook"}}),
			set("hooks.namespaces", []any{"line"}), set("hooks.applications.names", []any{"plant"})),
		"rights-configsync": with(set("watchNamespaces", []any{"line"}), onConfigSync),
		"rights-asking-namespaced": with(on, set("watchNamespaces", []any{"line"}),
			set("webhookReceiver.secrets", []any{values{"namespace": "line", "name": "stoker-webhook"}})),
	} {
		t.Run(name, func(t *testing.T) {
			path := "testdata/" + name + ".txt"
			got := strings.Join(rights(t, rendered(t, v)), "\n") + "\n"
			if *update {
				require.NoError(t, os.WriteFile(path, []byte(got), 0o644))
			}
			want, err := os.ReadFile(path)
			require.NoError(t, err)
			assert.Equal(t, string(want), got, "check docs/internals/security.md, then run go test -update")
		})
	}
}

// rights lists every right: role, API group, resource (and names), verb and subject. It also lists the labels that add a role to another one.
func rights(t *testing.T, all objects) []string {
	t.Helper()
	var lines []string
	for _, o := range all {
		switch o.GetKind() {
		case "Role", "ClusterRole":
			for _, r := range rulesOf(t, o) {
				for _, group := range r.APIGroups {
					for _, resource := range r.Resources {
						for _, verb := range r.Verbs {
							lines = append(lines, strings.TrimSpace(fmt.Sprintf("%s: %s %s.%s %s", key(o), verb, resource, group, strings.Join(r.ResourceNames, ","))))
						}
					}
				}
				assert.Empty(t, r.NonResourceURLs, key(o))
			}
			for label := range o.GetLabels() {
				if strings.HasPrefix(label, "rbac.authorization.k8s.io/") {
					lines = append(lines, key(o)+": "+label)
				}
			}
		case "RoleBinding", "ClusterRoleBinding":
			var b rbacv1.RoleBinding
			require.NoError(t, runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &b))
			for _, s := range b.Subjects {
				lines = append(lines, fmt.Sprintf("%s: %s %s to %s %s/%s", key(o), b.RoleRef.Kind, b.RoleRef.Name, s.Kind, s.Namespace, s.Name))
			}
		}
	}
	slices.Sort(lines)
	return lines
}

func rulesOf(t *testing.T, o *object) []rbacv1.PolicyRule {
	t.Helper()
	var role rbacv1.ClusterRole
	require.NoError(t, runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &role))
	require.NotEmpty(t, role.Rules, key(o))
	return role.Rules
}

// forbidden returns the reason why a role must not have a rule, or "".
func forbidden(role string, r rbacv1.PolicyRule) string {
	has := func(list []string, these ...string) bool {
		return slices.ContainsFunc(these, func(s string) bool { return slices.Contains(list, s) })
	}
	switch {
	case has(r.APIGroups, "*") || has(r.Resources, "*") || has(r.Verbs, "*"):
		return "a wildcard includes future resources"
	case has(r.Verbs, "impersonate") && strings.HasPrefix(role, "Role/") && strings.HasSuffix(role, "/stoker-configsync-accounts"):
		if !slices.Equal(r.Verbs, []string{"impersonate"}) || !slices.Equal(r.Resources, []string{"serviceaccounts"}) || len(r.ResourceNames) == 0 {
			return "only the named accounts of one namespace may be impersonated"
		}
	case has(r.Verbs, "escalate", "impersonate"):
		return "the verb voids every other limit"
	case has(r.Verbs, "bind") && !slices.Equal(r.ResourceNames, []string{"stoker-agent"}):
		return "only the role of the agents may be bound"
	case has(r.Resources, "secrets") && has(r.Verbs, "list", "watch", "deletecollection"):
		return "Secrets must be read by name"
	case has(r.Resources, "secrets") && strings.HasPrefix(role, "Role/") &&
		(strings.HasSuffix(role, "/stoker-receiver-secrets") || strings.HasSuffix(role, "/stoker-notifier-secrets")):
		if !slices.Equal(r.Verbs, []string{"get"}) || len(r.ResourceNames) == 0 {
			return "only the named Secrets may be read"
		}
	case has(r.Resources, "secrets") && !(role == "Role/stoker-system/stoker-certificate" && slices.Equal(r.ResourceNames, []string{"stoker-injector-cert"}) && slices.Equal(r.Verbs, []string{"get", "update"})):
		return "only the renewal of the certificate may write a Secret, and only that one; a created Secret may be the token of another account"
	case has(r.Resources, "applications") && (!slices.Equal(r.Verbs, []string{"get"}) || len(r.ResourceNames) == 0):
		return "only the named Applications may be read"
	case has(r.Resources, "gatewaysyncs") && has(r.Verbs, "update") && role != "ClusterRole/stoker-edit":
		return "a setter must not have update, because the policy admits editors"
	case has(r.Verbs, "approve") && role != "ClusterRole/stoker-approver":
		return "a role that requests refs or edits the spec must not approve"
	case has(r.Resources, "configmaps", "nodes", "nodes/proxy", "serviceaccounts/token", "pods/exec", "pods/attach", "pods/portforward", "pods/ephemeralcontainers", "pods/proxy", "certificatesigningrequests"):
		return "no program needs it"
	case has(r.Resources, "pods") && has(r.Verbs, "create", "update", "patch", "delete"):
		return "pods must be changed at admission only"
	case has(r.Resources, "clusterroles", "roles", "clusterrolebindings") && !slices.Equal(r.Verbs, []string{"bind"}):
		return "only the chart writes roles"
	case has(r.Resources, "mutatingwebhookconfigurations", "validatingwebhookconfigurations"):
		if !slices.Equal(r.ResourceNames, []string{"stoker-injector"}) {
			return "only the injector's own webhook configuration may be read"
		}
		if role != "ClusterRole/stoker-certificate" && !slices.Equal(r.Verbs, []string{"get"}) {
			return "an account that listens must not write a webhook configuration: its holder could have every object sent to it"
		}
	}
	return ""
}

// ruleName names a sub-test by its rule.
func ruleName(r rbacv1.PolicyRule) string {
	return strings.Join(slices.Concat(r.Verbs, r.APIGroups, r.Resources, r.ResourceNames), " ")
}

// Checks the roles of every installation in valueCases.
func TestForbiddenRights(t *testing.T) {
	t.Parallel()
	for _, c := range valueCases {
		for name, o := range rendered(t, c.values()) {
			if o.GetKind() == "Role" || o.GetKind() == "ClusterRole" {
				for _, r := range rulesOf(t, o) {
					assert.Empty(t, forbidden(name, r), "%s with %s: %v", name, c.path, r)
				}
			}
		}
	}
	for _, bad := range []rbacv1.PolicyRule{
		{APIGroups: []string{"*"}}, {Resources: []string{"*"}}, {Verbs: []string{"*"}}, {Verbs: []string{"escalate"}},
		{Resources: []string{"clusterroles"}, Verbs: []string{"bind"}},
		{Resources: []string{"secrets"}, Verbs: []string{"list"}, ResourceNames: []string{"stoker-injector-cert"}},
		{Resources: []string{"secrets"}, Verbs: []string{"get"}}, {Resources: []string{"configmaps"}, Verbs: []string{"get"}},
		{Resources: []string{"pods/exec"}, Verbs: []string{"create"}}, {Resources: []string{"pods"}, Verbs: []string{"patch"}},
		{Resources: []string{"clusterroles"}, Verbs: []string{"update"}}, {Resources: []string{"mutatingwebhookconfigurations"}, Verbs: []string{"patch"}},
		{Resources: []string{"mutatingwebhookconfigurations"}, Verbs: []string{"get", "patch"}, ResourceNames: []string{"stoker-injector"}},
		{Resources: []string{"secrets"}, Verbs: []string{"create"}}, {Resources: []string{"secrets"}, Verbs: []string{"get", "update"}, ResourceNames: []string{"stoker-injector-cert"}},
		{Resources: []string{"applications"}, Verbs: []string{"get"}}, {Resources: []string{"applications"}, Verbs: []string{"patch"}, ResourceNames: []string{"plant"}},
		{Resources: []string{"gatewaysyncs"}, Verbs: []string{"get", "patch", "update"}}, {Resources: []string{"gatewaysyncs"}, Verbs: []string{"patch", "approve"}}, {Resources: []string{"secrets"}, Verbs: []string{"get"}, ResourceNames: []string{"theirs"}},
	} {
		t.Run(ruleName(bad), func(t *testing.T) {
			assert.NotEmpty(t, forbidden("ClusterRole/stoker-receiver", bad))
		})
	}
	for _, bad := range []rbacv1.PolicyRule{
		{Resources: []string{"secrets"}, Verbs: []string{"get"}}, {Resources: []string{"secrets"}, Verbs: []string{"get", "update"}, ResourceNames: []string{"a"}},
		{Resources: []string{"secrets"}, Verbs: []string{"get", "list"}, ResourceNames: []string{"a"}},
	} {
		t.Run(ruleName(bad), func(t *testing.T) {
			assert.NotEmpty(t, forbidden("Role/line/stoker-receiver-secrets", bad))
		})
	}
}

// The tables of docs/internals/security.md list exactly the rights of the agent and of the receiver.
func TestSecurityPageListsRights(t *testing.T) {
	t.Parallel()
	for heading, role := range map[string]string{"The agent": "ClusterRole/stoker-agent", "The receiver": "ClusterRole/stoker-receiver"} {
		t.Run(heading, func(t *testing.T) {
			given := map[string][]string{}
			for _, r := range rulesOf(t, rendered(t, on)[role]) {
				for _, resource := range r.Resources {
					given[resource] = r.Verbs
				}
			}
			assert.Equal(t, given, documentedRights(t, heading))
		})
	}
}

func documentedRights(t *testing.T, heading string) map[string][]string {
	t.Helper()
	text, err := os.ReadFile("../../docs/internals/security.md")
	require.NoError(t, err)
	_, section, found := strings.Cut(string(text), "\n## "+heading+"\n")
	require.True(t, found)
	section, _, _ = strings.Cut(section, "\n## ")
	documented := map[string][]string{}
	for line := range strings.Lines(section) {
		cell, ok := strings.CutPrefix(line, "| ")
		if !ok || strings.HasPrefix(cell, "right ") {
			continue
		}
		cell, _, _ = strings.Cut(cell, " |")
		resource, verbs, ok := strings.Cut(cell, ": ")
		require.True(t, ok, line)
		documented[resource] = strings.Split(verbs, ", ")
	}
	return documented
}

// Following the notes is enough: the API server accepts the GatewaySync, and an annotated gateway gets its
// agent.
func TestNotesLeadToAgent(t *testing.T) {
	t.Parallel()
	s := installed(t)
	r, err := install(t, nil)
	require.NoError(t, err)
	shown := func(from, to string) []byte {
		_, text, found := strings.Cut(r.Info.Notes, from)
		require.True(t, found, from)
		text, _, _ = strings.Cut(text, to)
		return []byte(text)
	}
	o := parseOne(t, string(shown("kubectl apply -n NAMESPACE -f - <<'YAML'\n", "     YAML\n")))
	o.SetNamespace(s.Namespace(t))
	o, err = s.apply(t.Context(), o, false)
	require.NoError(t, err)
	var gs v1alpha1.GatewaySync
	require.NoError(t, runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &gs))

	pod := plainPod(nil, nil)
	require.NoError(t, yaml.UnmarshalStrict(shown("(spec.template of a StatefulSet):\n\n", "\n\n"), pod))
	pod.Namespace = gs.Namespace
	pod.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
	pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: inject.IgnitionData}}
	chosen, decision := inject.Choose(pod, inject.Candidates{Readable: []*v1alpha1.GatewaySync{&gs}})
	require.NotNil(t, chosen, decision.Message)
	_, decision = inject.Patch(pod, chosen, inject.Defaults{Image: v1alpha1.AgentImage{Repository: "agent", Tag: "1"}})
	assert.True(t, decision.Injected, decision.Message)
	assert.Empty(t, decision.Warnings)
}

// stolen says, for each account, what the holder of its token could do at most. docs/internals/security.md has it as a table.
var stolen = map[string]string{
	"agents":             "report wrongly, pause, or choose an older commit of an admitted ref, in that namespace ([more](#what-a-shared-serviceaccount-means))",
	"stoker-injector":    "evict any pod of the served namespaces; give any of their ServiceAccounts the rights of an agent; report wrongly about fleets without a lead; read all pods. A program that answers in its place chooses what is added to pods that request an agent",
	"stoker-certificate": "**everything**: a webhook configuration may send each object of the cluster to an address of the attacker's, and change it. Nothing can narrow this: policies do not apply to webhook configurations. So it listens to nothing, runs for seconds, and is absent with cert-manager or your own certificate",
	"stoker-receiver":    "make any request of a [setter](#setters), everywhere it serves; read the named Secrets",
	"stoker-notifier":    "read names, refs and states everywhere it serves, and the named Secrets; keep notifications from being sent",
	"stoker-configsync":  "what the named ServiceAccounts can, and requests of ConfigSyncs, in these namespaces; report wrongly about ConfigSyncs in all",
	"stoker-hooks":       "make any request of a [setter](#setters) in that namespace; read the named Applications",
}

// blastRadius renders two tables: what each account reads and changes, by place, and what a stolen token could do.
func blastRadius(t *testing.T) string {
	t.Helper()
	all := rendered(t, with(on, onConfigSync, set("configSync.namespaces", []any{"line"}), set("webhookReceiver.secrets", []any{values{"namespace": "line", "name": "named"}}),
		set("notifier.enabled", true), set("notifier.secrets", []any{values{"namespace": "line", "name": "named"}}),
		set("hooks.namespaces", []any{"line"}), set("hooks.pods", true), set("hooks.applications.names", []any{"named"})))
	type row struct{ account, place string }
	rights := map[row][]rbacv1.PolicyRule{{"agents", "each namespace with gateways"}: rulesOf(t, all["ClusterRole/stoker-agent"])}
	places := map[string]string{"": "the cluster", namespace: "its own namespace", "line": "namespaces that you name", "argocd": "Argo CD's namespace"}
	for name, o := range all {
		if o.GetKind() != "RoleBinding" && o.GetKind() != "ClusterRoleBinding" {
			continue
		}
		var b rbacv1.RoleBinding
		require.NoError(t, runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &b))
		role := b.RoleRef.Kind + "/" + b.RoleRef.Name
		if b.RoleRef.Kind == "Role" {
			role = "Role/" + b.Namespace + "/" + b.RoleRef.Name
		}
		require.Contains(t, all, role, name)
		require.Contains(t, places, b.Namespace, name)
		for _, s := range b.Subjects {
			require.Equal(t, rbacv1.ServiceAccountKind, s.Kind, name)
			at := row{s.Name, places[b.Namespace]}
			rights[at] = append(rights[at], rulesOf(t, all[role])...)
		}
	}
	var lines []string
	seen := map[string]bool{}
	for at, rules := range rights {
		seen[at.account] = true
		reads, changes := cells(rules)
		lines = append(lines, fmt.Sprintf("| `%s` | %s | %s | %s |", at.account, at.place, reads, changes))
	}
	slices.Sort(lines)
	out := "| account | in | reads | changes |\n|---|---|---|---|\n" + strings.Join(lines, "\n") + "\n\n| account | a stolen token could at most |\n|---|---|\n"
	for _, o := range all {
		if o.GetKind() == "ServiceAccount" {
			assert.True(t, seen[o.GetName()], "%s has no rights", o.GetName())
		}
	}
	lines = nil
	for account := range seen {
		require.Contains(t, stolen, account, "say what a stolen token could do")
		lines = append(lines, fmt.Sprintf("| `%s` | %s |", account, stolen[account]))
	}
	slices.Sort(lines)
	assert.Len(t, lines, len(stolen))
	return out + strings.Join(lines, "\n") + "\n"
}

// cells returns the resources that rules let an account read, and those that it may change, with the verbs.
func cells(rules []rbacv1.PolicyRule) (reads, changes string) {
	var read, change []string
	for _, r := range rules {
		var write []string
		for _, verb := range r.Verbs {
			if !slices.Contains([]string{"get", "list", "watch"}, verb) {
				write = append(write, verb)
			}
		}
		for _, resource := range r.Resources {
			what := resource
			if len(r.ResourceNames) > 0 {
				what += " `" + strings.Join(r.ResourceNames, "`, `") + "`"
			}
			if len(write) < len(r.Verbs) {
				read = append(read, what)
			}
			if len(write) > 0 {
				change = append(change, what+": "+strings.Join(write, ", "))
			}
		}
	}
	join := func(list []string) string {
		slices.Sort(list)
		return strings.ReplaceAll(strings.Join(slices.Compact(list), "; "), "`named`", "*named*")
	}
	return join(read), join(change)
}

// I12, R1: the page has each right of each account, so a right cannot be added unnoticed: go test -run TestBlastRadiusIsDocumented . -update
func TestBlastRadiusIsDocumented(t *testing.T) {
	t.Parallel()
	const page, begin, end = "../../docs/internals/security.md", "<!-- rights by account: test/charts/rights_test.go -->\n", "<!-- end -->\n"
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	before, rest, found := strings.Cut(string(text), begin)
	require.True(t, found)
	documented, after, found := strings.Cut(rest, end)
	require.True(t, found)
	want := "\n" + blastRadius(t) + "\n"
	if *update {
		require.NoError(t, os.WriteFile(page, []byte(before+begin+want+end+after), 0o644))
		return
	}
	assert.Equal(t, want, documented)
}
