package charts

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// stolen says what the holder of an account's token could do at most. The table in docs/internals/security.md has the rights beside it.
var stolen = map[string]string{
	"agents":             "report wrongly, pause, or choose an older commit of an admitted ref, in that namespace ([more](#what-a-shared-serviceaccount-means))",
	"stoker-injector":    "evict any pod of the served namespaces; give any of their ServiceAccounts the rights of an agent; report wrongly about fleets without a lead; read all pods. A program that answers in its place chooses what is added to pods that request an agent",
	"stoker-certificate": "**everything**: a webhook configuration may send each object of the cluster to an address of the attacker's, and change it. Nothing can narrow this: policies do not apply to webhook configurations. So it listens to nothing, runs for seconds, and is absent with cert-manager or your own certificate",
	"stoker-receiver":    "request any admitted ref, pause, resume and force a sync, everywhere it serves; read the named Secrets",
	"stoker-notifier":    "read names, refs and states everywhere it serves, and the named Secrets; keep notifications from being sent",
	"stoker-configsync":  "what the named ServiceAccounts can, in these namespaces; report wrongly about ConfigSyncs, and request refs of them, in all",
	"stoker-hooks":       "request any admitted ref in that namespace; read the named Applications",
}

// blastRadius renders the table: each account with what it reads and changes, by place.
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
	const page, begin, end = "../../docs/internals/security.md", "<!-- rights by account: test/charts/blast_test.go -->\n", "<!-- end -->\n"
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
