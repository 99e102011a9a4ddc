package fields

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/agent/connect"
	"stoker.io/stoker/agent/decide"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/agent/review"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/effective"
	"stoker.io/stoker/internal/configsync"
	"stoker.io/stoker/internal/configsync/reconcile"
	"stoker.io/stoker/internal/configsync/source"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/internal/secret"
	"stoker.io/stoker/test/gitserver"
)

// noon is the time of syncs whose outcome depends on it.
var noon = time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC)

// reviewGroups are the fields of the validation webhook.
func reviewGroups(t *testing.T, s *site) []group[v1alpha1.GatewaySync] {
	server := newWeb(t, "", "validation.example.com", func(w http.ResponseWriter, _ *http.Request, _ string) bool {
		_, err := w.Write([]byte(`{"uid":"1","allowed":true}`))
		return err == nil
	})
	known := secrets{"ca/value": server.ca, "key/value": "K3Y"}
	webhook := func(url string) func(*v1alpha1.GatewaySync) {
		return func(gs *v1alpha1.GatewaySync) {
			gs.Spec.Validation = &v1alpha1.ValidationSpec{Webhook: &v1alpha1.ValidationWebhook{URL: url, SecretRef: ref("key"), CASecretRef: ref("ca")}}
		}
	}
	see := func(t *testing.T, gs *v1alpha1.GatewaySync) string {
		c, err := connect.New(&gs.Spec, connect.Gateway{}, known, repo.RemoteOptions{}, slog.New(slog.DiscardHandler))
		require.NoError(t, err)
		defer func() { require.NoError(t, c.Remote.Close()) }()
		w := *c.Webhook
		w.Client.Loopback = true
		answer, err := w.Send(t.Context(), review.Request{UID: "1"})
		return fmt.Sprintln(server.take(), w.Client.Timeout, answer.Message, message(err))
	}
	return []group[v1alpha1.GatewaySync]{
		{"requests to the validation webhook", "validation.webhook", webhook(server.url + "/allow"), see, map[string]any{"url": nil, "timeout": "7s", "secretRef": nil, "caSecretRef": nil}},
		// Agents do not contact loopback addresses, so this webhook gets no request.
		{"validation webhook without an answer", "validation.webhook", webhook("https://127.0.0.1:1/"), s.afterwards(known, nil), map[string]any{"failurePolicy": "Ignore"}},
	}
}

// signatureGroups are the fields that say which commits a gateway accepts.
func signatureGroups(t *testing.T, s *site) []group[v1alpha1.GatewaySync] {
	signer, private, err := gitserver.NewSSHKey()
	require.NoError(t, err)
	text := s.repo.Git("cat-file", "commit", s.second) + "\n"
	signature, err := repo.NewSigner(v1alpha1.SigningSSH, "", func() (secret.String, error) { return secret.New(private), nil })([]byte(text))
	require.NoError(t, err)
	head, rest, _ := strings.Cut(text, "\n\n")
	file := filepath.Join(t.TempDir(), "commit")
	require.NoError(t, os.WriteFile(file, []byte(head+"\ngpgsig "+strings.ReplaceAll(strings.TrimSpace(signature), "\n", "\n ")+"\n\n"+rest), 0o600))
	s.repo.Git("update-ref", "refs/heads/signed", s.repo.Git("hash-object", "-t", "commit", "-w", file))
	known := secrets{"keys/value": string(ssh.MarshalAuthorizedKey(signer.PublicKey()))}
	signed := func(v v1alpha1.GitVerify) func(*v1alpha1.GatewaySync) {
		return func(gs *v1alpha1.GatewaySync) { gs.Spec.Git.Ref, gs.Spec.Git.Verify = "signed", v.DeepCopy() }
	}
	admits := func(t *testing.T, gs *v1alpha1.GatewaySync) string {
		url, err := repo.ParseURL(s.repo.Dir)
		require.NoError(t, err)
		remote, err := repo.NewRemote(url, repo.Auth{}, repo.RemoteOptions{})
		require.NoError(t, err)
		defer func() { require.NoError(t, remote.Close()) }()
		store, err := repo.Open(t.TempDir(), repo.StoreOptions{})
		require.NoError(t, err)
		defer func() { require.NoError(t, store.Close()) }()
		commit, err := plan.ParseID(s.second)
		require.NoError(t, err)
		name, err := store.Admit(t.Context(), remote, &gs.Spec.Git, "refs/heads/main", commit)
		return fmt.Sprint(name, message(err))
	}
	return []group[v1alpha1.GatewaySync]{
		{"signatures by keys of a Secret", "git.verify", signed(v1alpha1.GitVerify{KeysSecretRef: ref("keys")}), s.afterwards(known, nil),
			map[string]any{"mode": "Tag", "keysSecretRef": nil, "formats": []string{"openpgp"}}},
		{"signatures by keys of a ConfigMap", "git.verify", signed(v1alpha1.GitVerify{KeysConfigMapRef: ref("keys")}), s.afterwards(known, nil), map[string]any{"keysConfigMapRef": nil}},
		{"requests for a ref", "git", nil, admits, map[string]any{"allowedRefs": []string{"refs/tags/**"}}},
	}
}

// timeGroups are the fields of maintenance windows and of snapshots.
func timeGroups(s *site) []group[v1alpha1.GatewaySync] {
	snapshots := func(gs *v1alpha1.GatewaySync) {
		gs.Spec.Snapshots = &v1alpha1.SnapshotsSpec{Enabled: true, RetentionCount: 2}
	}
	windows := func(gs *v1alpha1.GatewaySync) {
		gs.Spec.Deployment = &v1alpha1.DeploymentSpec{Windows: []v1alpha1.MaintenanceWindow{
			{Name: "night", Kind: v1alpha1.WindowAllow, Schedule: "0 22 * * *", Duration: "2h", TimeZone: "Europe/Berlin", Gateways: []string{"line-*"}}}}
	}
	atNoon := func(g *gateway) { g.now = func() time.Time { return noon } }
	// afterMany makes a snapshot an hour before noon, and another one at noon.
	afterMany := func(t *testing.T, gs *v1alpha1.GatewaySync) string {
		g := newGateway(t, s, nil, false)
		g.now = func() time.Time { return noon.Add(-time.Hour) }
		g.start(snapshots)
		step := plant()
		snapshots(step)
		g.sync(step)
		g.now = func() time.Time { return noon }
		step.Spec.Git.Ref = s.first
		if gs.Spec.Rollback == nil {
			g.sync(step)
		}
		return g.sync(gs)
	}
	return []group[v1alpha1.GatewaySync]{
		{"maintenance windows", "deployment.windows[]", windows, s.afterwards(nil, atNoon),
			map[string]any{"name": nil, "kind": "deny", "schedule": "0 12 * * *", "duration": "16h", "timeZone": "Australia/Brisbane", "gateways": []string{"area-*"}}},
		{"several snapshots", "snapshots", snapshots, afterMany, map[string]any{"retentionCount": 1}},
		{"restored snapshots", "rollback", func(gs *v1alpha1.GatewaySync) {
			snapshots(gs)
			gs.Spec.Rollback = &v1alpha1.RollbackSpec{}
		}, afterMany, map[string]any{"toSnapshot": "line-1-20261124-110000"}},
	}
}

// goesBack is a probe that sees after which failures an agent rolls its gateway back.
func goesBack(t *testing.T, gs *v1alpha1.GatewaySync) string {
	e, err := effective.Of(gs, "", nil)
	require.NoError(t, err)
	var lines []string
	for _, symptom := range v1alpha1.AutoRollbackTriggers() {
		var f decide.Failures
		var due v1alpha1.AutoRollbackTrigger
		for i := range 10 { // sequence: the gateway fails for some time
			f, due, _ = f.Add(decide.LoadFailure{Target: plan.ID{1}, Symptoms: []v1alpha1.AutoRollbackTrigger{symptom}, Triggers: e.AutoRollback, HasBaseline: true, Running: true,
				Now: noon.Add(time.Duration(i) * 10 * time.Second)})
		}
		lines = append(lines, string(symptom)+": "+string(due))
	}
	return strings.Join(lines, "\n")
}

// simulatedGroups are the fields whose effect needs a gateway that runs.
func simulatedGroups(s *site) []group[v1alpha1.GatewaySync] {
	run := func(prepare func(g *gateway)) func(*testing.T, *v1alpha1.GatewaySync) string {
		return func(t *testing.T, gs *v1alpha1.GatewaySync) string {
			g := newGateway(t, s, nil, true)
			g.start(func(*v1alpha1.GatewaySync) {})
			prepare(g)
			gs.Spec.ProgressDeadline = "1s"
			return g.sync(gs)
		}
	}
	designer := func(project string) func(*testing.T, *v1alpha1.GatewaySync) string {
		return run(func(g *gateway) {
			_, err := g.sim.Designers.Open("anna", project)
			require.NoError(g.t, err)
		})
	}
	waits := func(gs *v1alpha1.GatewaySync) { gs.Spec.Sync.Defaults.DesignerSessionPolicy = v1alpha1.DesignerWait }
	rollback := func(gs *v1alpha1.GatewaySync) {
		gs.Spec.Snapshots.Enabled, gs.Spec.AutoRollback = true, &v1alpha1.AutoRollbackSpec{Enabled: true}
		gs.Spec.Validation = &v1alpha1.ValidationSpec{DryRunBefore: true}
	}
	return []group[v1alpha1.GatewaySync]{
		{"Designer sessions", "sync.defaults", nil, designer("line"), map[string]any{"designerSessionPolicy": "wait"}},
		{"Designer sessions on other projects", "sync.defaults", waits, designer("other"), map[string]any{"designerSessionScope": "gateway"}},
		{"Designer sessions by a profile", "sync.profiles{}", nil, func(t *testing.T, gs *v1alpha1.GatewaySync) string {
			e, err := effective.Of(gs, "", nil)
			require.NoError(t, err)
			return fmt.Sprint(e.DesignerSessionPolicy, e.DesignerSessionScope) // which the groups above prove to have an effect
		}, map[string]any{"designerSessionPolicy": "wait", "designerSessionScope": "gateway"}},
		{"backups of the gateway", "snapshots", func(gs *v1alpha1.GatewaySync) { gs.Spec.Snapshots.Enabled = true }, run(func(*gateway) {}), map[string]any{"gatewayBackup": "beforeSync"}},
		{"automatic rollbacks", "autoRollback", rollback, goesBack, map[string]any{"enabled": false, "triggers": []string{"configError"}, "scope": "rollout"}},
	}
}

// manifests is a repository of a git server with objects for a ConfigSync.
type manifests struct {
	url           string
	first, second string
}

func configMap(name, value string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: %s}\ndata: {a: %q}\n---\n", name, value)
}

func newManifests(t *testing.T) *manifests {
	t.Helper()
	root := t.TempDir()
	r := gitserver.NewRepo(t, filepath.Join(root, "plant.git"))
	server, err := gitserver.Start(root, gitserver.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Close()) })
	m := &manifests{url: server.URL("plant.git")}
	m.first = r.Commit("first", gitserver.Write("k8s/a.yaml", configMap("a", "first")), gitserver.Write("other/a.yaml", configMap("other", "1")),
		gitserver.Write("overlay/a.yaml", configMap("a", "overlaid")), gitserver.Write("chart/Chart.yaml", "{apiVersion: v2, name: line, version: 1.0.0}"), gitserver.Write("chart/values.yaml", "a: b"), gitserver.Write("values.yaml", "a: c"),
		gitserver.Write("chart/templates/a.yaml", configMap("{{ .Release.Name }}", "{{ .Values.a }}")), gitserver.Write("built/kustomization.yaml", "resources: [a.yaml]"), gitserver.Write("built/a.yaml", configMap("built", "1")),
		gitserver.Write("file.txt", "text"))
	m.second = r.Commit("second", gitserver.Write("k8s/a.yaml", configMap("a", `{{if .Vars}}{{.Vars}}{{end}}`)), gitserver.Write("k8s/b.yaml", configMap("b", "1")))
	r.Branch("side", m.first)
	return m
}

// config returns a valid ConfigSync that applied the first commit, with an object that git no longer has.
func (m *manifests) config() *v1alpha1.ConfigSync {
	cs := &v1alpha1.ConfigSync{TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.KindConfigSync}}
	cs.ObjectMeta = metav1.ObjectMeta{Namespace: "site", Name: "plant", UID: "uid-plant", Generation: 1}
	cs.Spec.Source.Git = &v1alpha1.ConfigGit{RepoURL: m.url, Branch: "main", ConfigFiles: v1alpha1.ConfigFiles{Path: "k8s"}}
	cs.Status.Inventory = []string{"_ConfigMap_site_old_uid-old"}
	cs.Status.SourceRevision = m.first
	return cs
}

// world is an API server with what the runs of a ConfigSync find.
func (m *manifests) world(t *testing.T, cs *v1alpha1.ConfigSync) *apiServer {
	api := newAPI()
	api.put(t, stokerPath+"configsyncs/plant", cs)
	object := func(kind, name string, data object) {
		owner := object{}
		if name == "old" {
			owner[v1alpha1.AnnotationConfigSync] = "site/plant"
		}
		api.put(t, corePath+strings.ToLower(kind)+"s/"+name, map[string]any{"kind": kind, "apiVersion": "v1", "metadata": map[string]any{"annotations": owner}, "data": data})
	}
	object("ConfigMap", "old", map[string]any{"a": "1"})
	object("ConfigMap", "vars", map[string]any{"site": "north"})
	object("Secret", "vars", map[string]any{"site": []byte("south")})
	object("Secret", "git", map[string]any{"username": []byte("bot"), "password": []byte("T0KEN")})
	return api
}

// applies is a probe that sees what one run writes and reports.
func (m *manifests) applies(t *testing.T, cs *v1alpha1.ConfigSync) string {
	return m.run(t, cs, m.world(t, cs))
}

func (m *manifests) run(t *testing.T, cs *v1alpha1.ConfigSync, api *apiServer) string {
	t.Helper()
	clients := api.clients(t)
	engine := &configsync.Engine{Connect: func() (kube.Clients, error) { return clients, nil }}
	ctx, stop := context.WithTimeout(t.Context(), 30*time.Second)
	defer stop()
	_, err := engine.Apply(ctx, cs.DeepCopy(), configsync.Options{})
	lines := append([]string{message(err)}, strings.Split(api.taken(), "\n")...) // in any order, because a run applies in parallel
	for path, o := range api.all() {
		if strings.Contains(path, "/configmaps/") {
			lines = append(lines, fmt.Sprint(path, o["data"]))
		}
	}
	slices.Sort(lines)
	is, err := kube.ConfigSyncs(clients.Dynamic, "site").Get(ctx, "plant")
	require.NoError(t, err)
	for _, c := range is.Status.Conditions {
		lines = append(lines, fmt.Sprint(c.Type, c.Status, c.Reason, c.Message))
	}
	return changing.ReplaceAllString(strings.Join(append(lines, fmt.Sprint(is.Status.SourcePath, " ", is.Status.SourceRef, " ", is.Status.Inventory)), "\n"), "…")
}

// afterDrift is a probe that sees what a run does to an object that was changed since the run before.
func (m *manifests) afterDrift(t *testing.T, cs *v1alpha1.ConfigSync) string {
	api := m.world(t, cs)
	m.run(t, cs, api)
	a := corePath + "configmaps/a"
	drifted := api.all()[a]
	drifted["data"] = object{"a": "drifted"}
	api.put(t, a, drifted)
	is, err := kube.ConfigSyncs(api.clients(t).Dynamic, "site").Get(t.Context(), "plant")
	require.NoError(t, err)
	return m.run(t, is, api)
}

// beside returns a probe that sees what a run does if the cluster has another object.
func (m *manifests) beside(path string, o object) func(*testing.T, *v1alpha1.ConfigSync) string {
	return func(t *testing.T, cs *v1alpha1.ConfigSync) string {
		api := m.world(t, cs)
		api.put(t, path, o)
		return m.run(t, cs, api)
	}
}

// unhealthy is a probe that sees what a run does about an object that does not become healthy.
func (m *manifests) unhealthy(t *testing.T, cs *v1alpha1.ConfigSync) string {
	api := m.world(t, cs)
	api.onWrite = func(path string, o object) {
		if strings.HasSuffix(path, "/configmaps/a") {
			o["status"] = object{"conditions": []any{object{"type": "Reconciling", "status": "True", "message": "not yet"}}}
		}
	}
	return m.run(t, cs, api)
}

// follows is a probe that sees what a run applies of the commit of a GatewaySync.
func (m *manifests) follows(t *testing.T, cs *v1alpha1.ConfigSync) string {
	api := m.world(t, cs)
	gs := plant()
	gs.Spec.Git.Repo = m.url
	api.put(t, stokerPath+"gatewaysyncs/gateways", gs)
	api.put(t, stokerPath+"synctargets/gateways", v1alpha1.SyncTarget{Spec: v1alpha1.SyncTargetSpec{Format: v1alpha1.TargetFormat, Generation: 1, Ref: "main", Commit: m.second}})
	return m.run(t, cs, api)
}

// connects returns a git server, and a probe that sees the requests of a run to that server.
func connects(t *testing.T) (server *web, see func(*testing.T, *v1alpha1.ConfigSync) string) {
	server = newWeb(t, "", "git.example.com", nil)
	return server, func(t *testing.T, cs *v1alpha1.ConfigSync) string {
		remote, err := source.GitRemote(t.Context(), cs.Spec.Source.Git, func(_ context.Context, name string) (map[string][]byte, error) {
			return map[string][]byte{"ca.crt": []byte(server.ca), "username": []byte("bot"), "password": []byte("T0KEN of " + name)}, nil
		}, repo.RemoteOptions{})
		if err != nil {
			return err.Error()
		}
		defer func() { require.NoError(t, remote.Close()) }()
		_, err = remote.Refs(t.Context())
		return server.take() + message(err)
	}
}

// reconciles is a probe that sees, in virtual time, how often stoker config run runs, as whom, and what it writes.
func (m *manifests) reconciles(t *testing.T, cs *v1alpha1.ConfigSync) (text string) {
	synctest.Test(t, func(t *testing.T) {
		api := m.world(t, cs)
		clients := api.clients(t)
		accounts, err := clients.Accounts()
		require.NoError(t, err)
		runs := 0
		r := reconcile.New(reconcile.Config{ProgramClients: clients, Log: slog.New(slog.DiscardHandler),
			AccountClients: accounts,
			ConfigSync:     func(string, string) (*v1alpha1.ConfigSync, error) { return cs, nil },
			ConfigSyncs:    func() []*v1alpha1.ConfigSync { return []*v1alpha1.ConfigSync{cs} },
			OnRun:          func(v1alpha1.Class, time.Duration) { runs++ }, OnPrune: func(int, int) {},
		})
		ctx, stop := context.WithTimeout(t.Context(), 30*time.Second)
		defer stop()
		r.Run(ctx)
		lines := slices.Sorted(strings.SplitSeq(api.taken(), "\n"))
		text = fmt.Sprint("often ", runs > 2, " with ", slices.Compact(lines), api.all()[stokerPath+"configsyncs/plant"]["metadata"].(object)["finalizers"])
	})
	return text
}

// configGroups are all fields of a ConfigSync.
func configGroups(t *testing.T, m *manifests) []group[v1alpha1.ConfigSync] {
	type config = v1alpha1.ConfigSync
	host, connect := connects(t)
	templated := func(cs *config) {
		cs.Spec.Render.Template, cs.Spec.Render.Vars = true, map[string]v1alpha1.VarValue{"line": "1"}
	}
	from := func(v v1alpha1.ConfigVars) func(*config) {
		return func(cs *config) {
			cs.Spec.Render.Template, cs.Spec.Render.VarsFrom = true, []v1alpha1.ConfigVars{*v.DeepCopy()}
		}
	}
	target := func(target v1alpha1.ConfigTarget) func(*config) {
		return func(cs *config) { cs.Spec.Targets = []v1alpha1.ConfigTarget{*target.DeepCopy()} }
	}
	waiting := func(cs *config) {
		cs.Spec.ProgressDeadline = "1s"
		cs.Status.SourcePath, cs.Status.LastGood = "k8s", &v1alpha1.CommitRecord{Ref: "main", Commit: m.first, At: metav1.NewTime(noon)}
	}
	dependent := func(cs *config) { cs.Spec.DependsOn = []v1alpha1.ConfigDependency{{Name: "base"}} }
	requested := func(cs *config) {
		cs.Annotations = map[string]string{v1alpha1.AnnotationRequestedRef: "side", v1alpha1.AnnotationRequestedOver: "side@main"}
	}
	follower := func(cs *config) {
		cs.Spec.Source = v1alpha1.ConfigSource{GatewaySync: &v1alpha1.ConfigFollow{Name: "gateways", ConfigFiles: v1alpha1.ConfigFiles{Path: "k8s"}}}
	}
	paths := map[string]any{"path": "other", "overlays": []string{"overlay"}, "excludes": []string{"k8s/b.yaml"}}
	mine := object{"kind": "ConfigMap", "apiVersion": "v1", "metadata": object{}, "data": object{"a": "mine"}}
	return []group[config]{
		{"runs of a repository", "source.git", nil, m.applies, paths},
		{"runs of a GatewaySync", "source.gatewaySync", follower, m.follows, map[string]any{"name": nil, "path": "other", "overlays": []string{"overlay"}, "excludes": []string{"k8s/b.yaml"}}},
		{"runs", "", nil, m.applies, map[string]any{"source.git.branch": "side", "source.git.revision": "side", "prune": "none", "paused": true, "apply.dryRun": true, "apply.conflictPolicy": "hold",
			"render.template": true}},
		{"requested refs", "source.git", requested, m.applies, map[string]any{"allowedRefs": []string{"main"}}},
		{"requests to a git host", "source.git", func(cs *config) {
			cs.Spec.Source.Git = &v1alpha1.ConfigGit{RepoURL: host.url + "/acme/plant.git", AuthMethod: v1alpha1.ConfigAuthHTTPS, AuthSecretRef: &v1alpha1.ConfigObjectRef{Name: "git"}}
		}, connect, map[string]any{"repoURL": nil, "authMethod": "githubApp", "authSecretRef": nil}},
		{"templates", "render", templated, m.applies, map[string]any{"template": false, "vars": nil}},
		{"variables of a ConfigMap", "render.varsFrom[]", from(v1alpha1.ConfigVars{ConfigMapRef: &v1alpha1.ConfigObjectRef{Name: "vars"}}), m.applies, map[string]any{"configMapRef": nil}},
		{"variables of a Secret", "render.varsFrom[]", from(v1alpha1.ConfigVars{SecretRef: &v1alpha1.ConfigObjectRef{Name: "vars"}}), m.applies, map[string]any{"secretRef": nil}},
		{"variables of nothing", "render.varsFrom[]", from(v1alpha1.ConfigVars{ConfigMapRef: &v1alpha1.ConfigObjectRef{Name: "none"}}), m.applies, map[string]any{"optional": true}},
		{"kustomizations", "render", func(cs *config) { cs.Spec.Source.Git.Path = "built" }, m.applies, map[string]any{"kustomize": "Never"}},
		{"charts", "render", func(cs *config) { cs.Spec.Source.Git.Path = "chart" }, m.applies, map[string]any{"valuesFiles": []string{"values.yaml"}, "releaseName": "other"}},
		{"clusters", "kubeConfig.secretRef", func(cs *config) {
			cs.Spec.KubeConfig = &v1alpha1.ConfigCluster{SecretRef: v1alpha1.ConfigKeyRef{ConfigObjectRef: v1alpha1.ConfigObjectRef{Name: "vars"}, Key: "none"}}
		}, m.applies, map[string]any{"name": "missing", "key": "other"}},
		{"targets", "targets[]", target(v1alpha1.ConfigTarget{Type: "ConfigMap", Name: "a"}), m.applies, map[string]any{"type": "Secret", "name": "b", "namespace": "elsewhere"}},
		{"targets of files", "targets[].fromFiles[]", target(v1alpha1.ConfigTarget{Type: "ConfigMap", Name: "files", FromFiles: []v1alpha1.ConfigFile{{Path: "file.txt"}}}), m.applies,
			map[string]any{"path": "k8s/b.yaml", "key": "key"}},
		{"changes in the cluster", "apply", nil, m.afterDrift, map[string]any{"driftPolicy": "report"}},
		{"objects of others", "apply", nil, m.beside(corePath+"configmaps/a", mine), map[string]any{"adoptPolicy": "always"}},
		{"health", "", waiting, m.unhealthy, map[string]any{"apply.wait": false, "progressDeadline": "2s", "rollbackOnFailure": "LastGood"}},
		{"dependencies", "dependsOn[]", dependent, m.applies, map[string]any{"name": nil, "kind": "GatewaySync"}},
		{"runs of the program", "", nil, m.reconciles, map[string]any{"refreshInterval": "5s", "serviceAccountName": "other", "deletionPolicy": "Delete"}},
		webhookGroup("configsync", func(cs *config) *v1alpha1.WebhookSpec {
			cs.Spec.Source.Git.RepoURL = "https://git.example.com/acme/plant.git"
			return &cs.Spec.Webhook
		}),
	}
}

func TestConfigSync(t *testing.T) {
	m := newManifests(t)
	checkTable(t, m.config, func(cs *v1alpha1.ConfigSync) any { return &cs.Spec }, configGroups(t, m))
}
