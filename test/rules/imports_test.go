package rules

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// floors are the rooms from bottom to top. A room is the path of a package in the module. A package may import only
// from floors below its own, so rooms on one floor cannot import each other. A room that is missing here has no floor yet.
var floors = [][]string{
	{"api/v1alpha1", "api/v1alpha1/internal/fielderr", "api/v1alpha1/syntax", "docs"},
	{"api/v1alpha1/annotation", "api/v1alpha1/decode", "api/v1alpha1/desiredref", "api/v1alpha1/gatewaypod", "api/v1alpha1/secretrefs"},
	{"api/v1alpha1/schedule"},
	{"api/v1alpha1/validation"},
	{"api/v1alpha1/effective"},
	{"internal/backoff", "internal/cosign", "internal/limit", "internal/suggest"},
	{"internal/failure", "internal/secret", "internal/kube", "internal/file", "internal/giturl", "internal/daemon", "internal/lease"},
	{"internal/sender", "internal/httpclient", "internal/kube/podexec"},
	{"internal/request", "internal/status"},
	{"agent/ignition/resource"},
	{"agent/plan/render"},
	{"agent/plan/relpath"},
	{"agent/plan"},
	{"agent/plan/desired", "agent/decide"},
	{"agent/plan/planner", "agent/plan/references"},
	{"agent/repo/store", "agent/disk/safe"},
	{"agent/repo/wire", "agent/disk/format", "agent/disk/lock"},
	{"agent/disk/lostfound", "agent/disk/records", "agent/disk/snapshot", "agent/repo/oci"},
	{"agent/disk/single"},
	{"agent/repo", "agent/disk", "agent/ignition"},
	{"agent/apikey"},
	{"agent/forge", "agent/gitauth", "agent/propose/guard", "agent/archive"},
	{"agent/redundancy", "agent/propose", "agent/archive/s3", "agent/archive/rest"},
	{"agent/archive/azure", "agent/archive/gcs"},
	{"agent/audit", "agent/record", "agent/review", "agent/unloaded"},
	{"agent/sync", "agent/textdiff"},
	{"agent/connect", "agent/loop"},
	{"agent/storage"},
	{"agent/standalone", "agent/follow", "agent/lead"},
	{"agent"},
	{"injector/inject"},
	{"injector/lookup"},
	{"injector/admission", "injector/certificate", "injector/check", "injector/reconcile"},
	{"injector"},
	{"receiver/credential", "receiver/queue", "receiver/lookup"},
	{"receiver/secrets"},
	{"receiver/server"},
	{"receiver"},
	{"internal/configsync/manifest"},
	{"internal/configsync/builder"},
	{"internal/configsync/builder/buildertest"},
	{"internal/configsync/chart", "internal/configsync/jsonnet", "internal/configsync/kustomize"},
	{"internal/configsync/plan", "internal/configsync/render"},
	{"internal/configsync/apply", "internal/configsync/source"},
	{"internal/configsync"},
	{"internal/configsync/reconcile"},
	{"hooks/agents", "hooks/browser", "hooks/bundle", "hooks/create", "hooks/exit", "hooks/offline", "hooks/migrate", "hooks/specfile"},
	{"hooks/output"},
	{"hooks/push", "hooks/sites"},
	{"hooks/application", "hooks/check", "hooks/completion", "hooks/diff", "hooks/display", "internal/notify"},
	{"hooks/daemons", "hooks/preflight", "hooks/ui"},
	{"hooks/config", "hooks/create/command"},
	{"hooks"},
}

// ban forbids imports to some rooms.
type ban struct {
	rooms   []string // rooms with everything below them; "" is the whole module
	but     []string // exceptions among them
	ships   bool     // only packages that ship, not test helpers
	imports []string // import paths with everything below them; a trailing $ matches only the path itself
	deep    bool     // also transitive imports
	tests   bool     // also imports of tests
	why     string
}

// apiLogic are the packages beside the types of the API.
var apiLogic = []string{"api/v1alpha1/annotation", "api/v1alpha1/decode", "api/v1alpha1/desiredref", "api/v1alpha1/effective",
	"api/v1alpha1/gatewaypod", "api/v1alpha1/schedule", "api/v1alpha1/secretrefs", "api/v1alpha1/syntax",
	"api/v1alpha1/validation"}

var bans = []ban{
	{
		rooms:   []string{"agent/plan", "agent/ignition/resource"},
		imports: []string{"os", "net", "syscall", "io/ioutil", "golang.org/x/sys", "math/rand", "crypto/rand"},
		why:     "a plan is pure: agent, diff and dry run must get the same plan from the same input",
	},
	{
		rooms: []string{"agent/plan", "agent/ignition", "agent/repo", "agent/disk", "agent/archive", "agent/redundancy",
			"agent/sync", "agent/gitauth", "agent/connect", "agent/loop", "agent/standalone"},
		imports: []string{"k8s.io/client-go"},
		deep:    true,
		why:     "a sync works without Kubernetes; only follow and lead call the API server",
	},
	{
		rooms:   []string{"injector"},
		imports: []string{"github.com/go-git/go-git", module + "/agent/repo"},
		deep:    true,
		why:     "admission answers from the pod alone and never waits for git",
	},
	{
		rooms:   []string{"receiver"},
		ships:   true,
		imports: []string{"github.com/go-git/go-git", module + "/agent", module + "/injector", "golang.org/x/crypto/ssh"},
		deep:    true,
		why:     "the receiver writes requests and calls only the API server: refs are resolved by the lead",
	},
	{
		rooms:   []string{"internal/sender"},
		imports: []string{"os", "net$", "syscall", "k8s.io/client-go"},
		why:     "a parser of untrusted input is pure",
	},
	{
		rooms:   []string{"internal/configsync/manifest", "internal/configsync/plan", "internal/configsync/render"},
		imports: []string{"os", "net", "syscall", "k8s.io/client-go", "math/rand", "crypto/rand"},
		why:     "the plan depends on the commit and the live objects only",
	},
	{
		rooms:   []string{"internal/configsync/builder"},
		imports: []string{"net", "k8s.io/client-go", "math/rand", "crypto/rand"},
		why:     "a build depends on the commit only; os, os/exec and syscall are for the child that builds",
	},
	{
		rooms:   []string{"internal/configsync/chart", "internal/configsync/jsonnet", "internal/configsync/kustomize"},
		imports: []string{"os", "net", "syscall", "k8s.io/client-go", "math/rand", "crypto/rand"},
		why:     "a build depends on the commit only",
	},
	{
		rooms:   []string{"internal/configsync"},
		ships:   true,
		imports: []string{module + "/agent/disk", module + "/agent/sync", module + "/agent/ignition$"},
		deep:    true,
		why:     "a ConfigSync reads git and calls the API server; it needs no data directory",
	},
	{
		rooms:   []string{"internal/notify"},
		ships:   true,
		imports: []string{module + "/agent/disk", module + "/agent/repo", module + "/agent/sync", module + "/agent/propose", module + "/agent/ignition$"},
		deep:    true,
		why:     "the notifier reads statuses and sends messages; of the agent it uses only the clients of forges, with a transport that checks what it dials",
	},
	{
		rooms:   []string{""},
		but:     []string{"internal/configsync/kustomize"},
		ships:   true,
		imports: []string{"sigs.k8s.io/kustomize"},
		why:     "kustomize fetches from elsewhere and starts programs: package kustomize reads every kustomization before it builds one (trust G1)",
	},
	{
		rooms:   []string{""},
		but:     []string{"internal/configsync/chart"},
		ships:   true,
		imports: []string{"helm.sh/helm"},
		why:     "Helm fetches from elsewhere: package chart renders nothing but a commit (trust G1)",
	},
	{
		rooms:   []string{"agent", "injector", "receiver"},
		imports: []string{module + "/hooks"},
		deep:    true,
		why:     "agents do not know about ConfigSyncs: no program of the cluster applies objects of users",
	},
	{
		rooms:   []string{"agent/repo/store"},
		imports: []string{"net", "github.com/go-git/go-git", "golang.org/x/crypto/ssh"},
		why:     "the store keeps objects on disk; package wire talks to servers",
	},
	{
		rooms:   []string{"agent", "hooks"},
		but:     []string{"agent/repo"},
		imports: []string{module + "/agent/repo/store", module + "/agent/repo/wire"},
		why:     "callers use package repo; wire and store are its parts",
	},
	{
		rooms:   []string{"agent", "hooks"},
		but:     []string{"agent/disk"},
		imports: []string{module + "/agent/disk/safe", module + "/agent/disk/format", module + "/agent/disk/lock", module + "/agent/disk/lostfound", module + "/agent/disk/records", module + "/agent/disk/snapshot"},
		why:     "callers use package disk; the packages below it are its parts",
	},
	{
		rooms:   []string{"api/v1alpha1"},
		but:     apiLogic,
		imports: []string{module},
		why:     "the API imports no other package: others import it as a library",
	},
	{
		rooms:   apiLogic,
		imports: []string{module + "/agent", module + "/hooks", module + "/injector", module + "/internal", module + "/receiver"},
		deep:    true,
		why:     "packages below the API depend on the API alone: others import them as a library",
	},
	{
		rooms:   []string{""},
		imports: []string{"sigs.k8s.io/controller-runtime"},
		deep:    true,
		why:     "the agents use plain client-go informers; there is no controller",
	},
	{
		rooms:   []string{""},
		imports: []string{"k8s.io/client-go/kubernetes/fake"},
		deep:    true,
		tests:   true,
		why:     "it compiles a fake of every API group, for half a minute: use test/clientset",
	},
	{
		rooms:   []string{""},
		but:     []string{"hooks/browser", "internal/configsync/builder"},
		ships:   true,
		imports: []string{"os/exec", "plugin"},
		why:     "the product starts no other program (trust F5 to F7), except the browser of a user; kustomizations and charts are built by a child with limits",
	},
	{
		rooms:   []string{""},
		imports: []string{"github.com/go-git/go-git/v5/plumbing/transport/file"},
		why:     "go-git's own file transport starts a process (trust F6)",
	},
	{
		rooms:   []string{""},
		ships:   true,
		imports: []string{"log$", "github.com/prometheus/client_golang/prometheus/promauto"},
		why:     "loggers and metrics are handed in: a *slog.Logger, a prometheus.Registerer",
	},
	{
		rooms:   []string{""},
		ships:   true,
		imports: []string{module + "/test", "github.com/stretchr/testify", "testing"},
		why:     "test helpers do not ship",
	},
}

func within(path string, parents []string) bool {
	return slices.ContainsFunc(parents, func(parent string) bool {
		return parent == "" || path == strings.TrimSuffix(parent, "$") || strings.HasPrefix(path, parent+"/")
	})
}

// brokenBans returns the imports that a ban forbids.
func brokenBans(packages []pkg) []string {
	var broken []string
	for _, p := range packages {
		for _, b := range bans {
			if !within(room(p.ImportPath), b.rooms) || within(room(p.ImportPath), b.but) || b.ships && forTests(room(p.ImportPath)) {
				continue
			}
			imports := p.Imports
			if b.deep {
				imports = p.Deps
			}
			if b.tests {
				imports = slices.Concat(imports, p.TestImports, p.XTestImports)
			}
			for _, path := range imports {
				if within(path, b.imports) {
					broken = append(broken, fmt.Sprintf("%s imports %s: %s", room(p.ImportPath), path, b.why))
				}
			}
		}
	}
	return broken
}

// brokenArrows returns the imports to the same or a higher floor and to test helpers, and the packages without a floor that need one.
func brokenArrows(packages []pkg) []string {
	floor := map[string]int{}
	for i, rooms := range floors {
		for _, r := range rooms {
			floor[r] = i
		}
	}
	var broken []string
	for _, p := range packages {
		from := room(p.ImportPath)
		if forTests(from) {
			continue
		}
		mine, placed := floor[from]
		if !placed && within(from, []string{"agent"}) {
			broken = append(broken, from+" has no place among the rooms: add it to floors, where its imports allow it")
		}
		if !placed {
			continue
		}
		for _, path := range p.Imports {
			to := room(path)
			theirs, placed := floor[to]
			switch {
			case forTests(to):
				broken = append(broken, fmt.Sprintf("%s imports %s: test helpers do not ship", from, to))
			case to == "" || within(to, []string{"internal"}) && !placed:
			case !placed:
				broken = append(broken, fmt.Sprintf("%s imports %s, which has no place among the rooms", from, to))
			case theirs >= mine:
				broken = append(broken, fmt.Sprintf("%s imports %s: arrows point down only (follow, lead → sync → {repo, disk, ignition} → plan → {ignition/resource, api})", from, to))
			}
		}
	}
	return broken
}

func TestImportsPointDown(t *testing.T) { report(t, brokenArrows(packages(t))) }

func TestImportsBetweenParts(t *testing.T) { report(t, brokenBans(packages(t))) }

func TestPackageNames(t *testing.T) {
	for _, p := range packages(t) {
		name := room(p.ImportPath)[strings.LastIndex(room(p.ImportPath), "/")+1:]
		for _, empty := range []string{"util", "utils", "helper", "helpers", "common", "manager", "handler", "misc"} {
			t.Run(room(p.ImportPath)+" is not "+empty, func(t *testing.T) {
				assert.NotEqual(t, empty, name, "%s: name the package after its subject", p.ImportPath)
			})
		}
	}
}

func TestImportRules(t *testing.T) {
	own := func(room string) string { return module + "/" + room }
	for _, c := range []struct{ from, to string }{
		{"agent/plan", "os"},
		{"agent/plan", "net/http"},
		{"agent/plan", own("agent/repo")},
		{"agent/repo", own("agent/disk")},
		{"agent/repo/store", own("agent/repo/wire")},
		{"agent/repo/store", "net/http"},
		{"agent/repo/wire", own("agent/repo")},
		{"agent/sync", own("agent/repo/store")},
		{"hooks/offline", own("agent/repo/wire")},
		{"agent/ignition", own("agent/repo")},
		{"agent/ignition", own("agent/sync")},
		{"agent/ignition/resource", own("agent/plan")},
		{"agent/sync", "k8s.io/client-go/rest"},
		{"agent/sync", own("agent/standalone")},
		{"agent/sync", own("injector")},
		{"agent/unheard", "fmt"},
		{"api/v1alpha1", own("internal/failure")},
		{"api/v1alpha1", own("api/v1alpha1/validation")},
		{"api/v1alpha1/validation", own("api/v1alpha1/effective")},
		{"api/v1alpha1/validation", own("internal/failure")},
		{"injector", "github.com/go-git/go-git/v5/plumbing"},
		{"hooks", "os/exec"},
		{"hooks", own("test/gateway")},
		{"agent/sync", own("agent/plan/plantest")},
		{"agent/plan/plantest", "sigs.k8s.io/controller-runtime"},
		{"receiver", "sigs.k8s.io/controller-runtime/pkg/client"},
		{"receiver", "log"},
		{"test/fleet", "k8s.io/client-go/kubernetes/fake"},
		{"internal/configsync", own("agent/sync")},
		{"internal/notify", own("agent/repo")},
		{"internal/configsync/source", own("agent/disk")},
		{"internal/configsync/plan", "k8s.io/client-go/dynamic"},
		{"internal/configsync/render", "os"},
		{"internal/configsync/kustomize", "net/http"},
		{"internal/configsync/builder", "net/http"},
		{"internal/configsync/kustomize", "os/exec"},
		{"internal/configsync/source", "helm.sh/helm/v3/pkg/engine"},
		{"internal/configsync/apply", "sigs.k8s.io/kustomize/api/krusty"},
		{"agent/lead", own("internal/configsync")},
		{"receiver/server", "github.com/go-git/go-git/v5/plumbing"},
		{"receiver/server", own("agent/repo")},
		{"internal/sender", "k8s.io/client-go/kubernetes"},
		{"internal/sender", own("receiver/server")},
	} {
		t.Run(c.from+" imports "+c.to, func(t *testing.T) {
			bad := []pkg{{ImportPath: own(c.from), Imports: []string{c.to}, Deps: []string{c.to}}}
			assert.NotEmpty(t, append(brokenArrows(bad), brokenBans(bad)...), "%s imports %s", c.from, c.to)
		})
	}
	fake := []string{"k8s.io/client-go/kubernetes/fake"}
	assert.Len(t, brokenBans([]pkg{{ImportPath: own("injector"), TestImports: fake}, {ImportPath: own("injector"), XTestImports: fake}}), 2)
	good := []pkg{
		{ImportPath: own("agent/sync"), Imports: []string{own("agent/repo"), own("agent/plan"), own("internal/failure"), "log/slog", "os"}},
		{ImportPath: own("test/rules"), Imports: []string{"os/exec", "testing"}},
		{ImportPath: own("agent/plan/plantest"), Imports: []string{"testing", own("agent/plan")}},
		{ImportPath: own("injector"), TestImports: []string{"testing", "k8s.io/client-go/dynamic/fake", own("test/clientset")}},
		{ImportPath: own("agent/disk"), Imports: []string{"os", own("agent/ignition/resource"), own("internal/secret")}},
	}
	assert.Empty(t, append(brokenArrows(good), brokenBans(good)...))
}
