package fields

import (
	"context"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"stoker.io/stoker/agent/connect"
	"stoker.io/stoker/agent/disk"
	"stoker.io/stoker/agent/follow"
	"stoker.io/stoker/agent/loop"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/agent/standalone"
	agentsync "stoker.io/stoker/agent/sync"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/annotation"
	"stoker.io/stoker/internal/metrics"
	"stoker.io/stoker/test/gateway/simulator"
	"stoker.io/stoker/test/gitserver"
)

const (
	view = "projects/line/com.inductiveautomation.perspective/views/main/"
	db   = "config/resources/core/ignition/database-connection/db/"
)

// site is a repository with two commits, of which main is the second.
type site struct {
	repo          *gitserver.Repo
	first, second string
}

func newSite(t *testing.T) *site {
	t.Helper()
	resource := func(file string) string {
		return fmt.Sprintf(`{"scope":"G","version":1,"restricted":false,"overridable":true,"files":[%q],"attributes":{}}`, file)
	}
	s := &site{repo: gitserver.NewRepo(t, filepath.Join(t.TempDir(), "plant.git"))}
	s.first = s.repo.Commit("first",
		gitserver.Write("gw/projects/line/project.json", `{"title":"Line","enabled":true,"inheritable":false,"parent":""}`),
		gitserver.Write("gw/"+view+"view.json", `{"one": 1}`), gitserver.Write("gw/"+view+"resource.json", resource("view.json")),
		gitserver.Write("gw/"+view+"drift.json", "1"), gitserver.Write("gw/"+view+"gone.json", "1"),
		gitserver.Write("gw/"+db+"config.json", `{"url": "jdbc"}`), gitserver.Write("gw/"+db+"resource.json", resource("config.json")),
		gitserver.Write("other/projects/line/project.json", `{"title":"Other","enabled":true,"inheritable":false,"parent":""}`))
	s.second = s.repo.Commit("second",
		gitserver.Write("gw/"+view+"view.json", `{"one": 2, "root": {"props": {"path": "gone"}, "type": "ia.display.view"}}`), gitserver.Delete("gw/"+view+"gone.json"),
		gitserver.Write("gw/"+view+"text.json", `{"line": "{{.Vars.line}}{{.line}}"}`), gitserver.Write("gw/"+view+"skipped.bak", "1"),
		gitserver.Write("gw/"+db+"config.json", `{"url": "jdbc", "password": {"type": "Embedded", "data": {"encrypted_key": "k", "iv": "i", "ciphertext": "c"}}}`))
	return s
}

// gateway is a data directory, and the gateway that uses it, if a probe needs one.
type gateway struct {
	t    *testing.T
	site *site
	dir  string
	sim  *simulator.Gateway // nil for files only
	// secrets are written into files.
	secrets secrets
	now     func() time.Time
	engine  *agentsync.Engine
}

// newGateway returns a gateway that no agent has synced yet.
func newGateway(t *testing.T, s *site, known secrets, simulated bool) *gateway {
	t.Helper()
	g := &gateway{t: t, site: s, dir: t.TempDir(), secrets: maps.Clone(known), now: time.Now}
	if g.secrets == nil {
		g.secrets = secrets{}
	}
	require.NoError(t, os.Mkdir(filepath.Join(g.dir, "data"), 0o755))
	if simulated {
		var err error
		g.sim, err = simulator.Start(simulator.Options{Data: filepath.Join(g.dir, "data")})
		require.NoError(t, err)
		t.Cleanup(func() { _ = g.sim.Close() })
		g.secrets["gateway/apiKey"] = g.sim.Token()
	}
	for name, value := range g.secrets {
		file := filepath.Join(g.dir, "secrets", name)
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o700))
		require.NoError(t, os.WriteFile(file, []byte(value), 0o600))
	}
	log := slog.New(slog.DiscardHandler)
	store, err := repo.Open(filepath.Join(g.dir, "objects"), repo.StoreOptions{})
	require.NoError(t, err)
	g.engine = agentsync.New(agentsync.Config{DataDir: filepath.Join(g.dir, "data"), Store: store, Log: log, Disk: disk.Options{Log: log, AllowUnseeded: true}, MaxBlob: 1 << 20})
	t.Cleanup(func() {
		require.NoError(t, g.engine.Close())
		require.NoError(t, store.Close())
	})
	return g
}

// start delivers the first commit with plain settings, and then changes files as a user does.
func (g *gateway) start(change func(*v1alpha1.GatewaySync)) {
	g.t.Helper()
	gs := plant()
	gs.Spec.Git.Ref = g.site.first
	change(gs)
	text := g.sync(gs)
	require.Contains(g.t, text, "jdbc")
	for name, content := range map[string]string{"view.json": `{"one": "mine"}`, "drift.json": "mine", "extra.json": "mine"} {
		require.NoError(g.t, os.WriteFile(filepath.Join(g.dir, "data", view, name), []byte(content), 0o644))
	}
}

// changing matches what differs between two equal runs: times, ids with a time, addresses of servers, and signatures.
var changing = regexp.MustCompile(`[0-9]{8}-[0-9]{6}(-[0-9a-z]+)?|[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]+Z|127\.0\.0\.1:[0-9]+|sha256=[0-9a-f]{64}`)

// sync runs the standalone agent once with a GatewaySync in a file, and returns what it says and what is on the disk then.
func (g *gateway) sync(gs *v1alpha1.GatewaySync) string {
	g.t.Helper()
	if gs = gs.DeepCopy(); !strings.Contains(gs.Spec.Git.Repo, "127.0.0.1") {
		gs.Spec.Git.Repo = g.site.repo.Dir
	}
	url := ""
	if g.sim != nil {
		url = g.sim.URL()
		gs.Spec.Gateway.API = &v1alpha1.GatewayAPI{SecretName: "gateway"}
	}
	text, err := yaml.Marshal(gs)
	require.NoError(g.t, err)
	file := filepath.Join(g.dir, "gatewaysync.yaml")
	require.NoError(g.t, os.WriteFile(file, text, 0o600))
	g.engine.Now = g.now
	loop := standalone.New(standalone.Config{
		File: file, Gateway: standalone.Identity{Name: "line-1"}, GatewayURL: url, Secrets: connect.LocalSecrets{Dir: filepath.Join(g.dir, "secrets")}, Engine: g.engine,
		Log: slog.New(slog.DiscardHandler), Metrics: metrics.NewAgent(prometheus.NewRegistry(), "", "", "", ""), Now: g.now,
	})
	s, timedOut := loop.Once(g.t.Context())
	lines := []string{fmt.Sprint(s.Phase, " ", s.Reason, " ", s.Message, " ", timedOut, " ", s.Problems)}
	if s.Report != nil {
		lines = append(lines, s.Report.Notes...)
	}
	for _, p := range s.Snapshots {
		lines = append(lines, "snapshot "+p.ID+" "+string(p.Stored))
	}
	return changing.ReplaceAllString(strings.ReplaceAll(strings.Join(append(lines, g.files()...), "\n"), g.dir, ""), "…")
}

// files returns the files of the site on the disk, and how many others the agent keeps.
func (g *gateway) files() (list []string) {
	kept := map[string]int{}
	require.NoError(g.t, filepath.WalkDir(filepath.Join(g.dir, "data"), func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		path, _ := filepath.Rel(filepath.Join(g.dir, "data"), name)
		folder, _, _ := strings.Cut(strings.TrimPrefix(path, ".stoker/"), "/")
		switch {
		case strings.HasPrefix(path, ".stoker/"):
			if folder == "lost+found" || folder == "snapshots" || folder == "backups" {
				kept[folder]++
			}
		case strings.Contains(path, "line") || strings.HasPrefix(path, db):
			content, err := os.ReadFile(name)
			list = append(list, fmt.Sprintf("%s %.120q", path, content))
			return err
		}
		return nil
	}))
	for _, folder := range slices.Sorted(maps.Keys(kept)) {
		list = append(list, fmt.Sprint(folder, " has ", kept[folder]))
	}
	return list
}

// afterwards returns a probe that sees what a sync of the second commit does to a gateway.
func (s *site) afterwards(known secrets, prepare func(g *gateway)) func(*testing.T, *v1alpha1.GatewaySync) string {
	return func(t *testing.T, gs *v1alpha1.GatewaySync) string {
		g := newGateway(t, s, known, false)
		g.start(func(*v1alpha1.GatewaySync) {})
		if prepare != nil {
			prepare(g)
		}
		return g.sync(gs)
	}
}

// syncGroups are the fields that say what a sync writes.
func syncGroups(s *site) []group[v1alpha1.GatewaySync] {
	profile := func(change func(*v1alpha1.SyncProfile)) func(*v1alpha1.GatewaySync) {
		return func(gs *v1alpha1.GatewaySync) {
			p := gs.Spec.Sync.Profiles["default"]
			p.Mappings = append(p.Mappings, v1alpha1.Mapping{Source: "gw/" + view + "text.json", Destination: view + "text.json", Template: true})
			change(&p)
			gs.Spec.Sync.Profiles["default"] = p
		}
	}
	policies := map[string]any{"excludePatterns": []string{"**/*.bak"}, "vars": nil, "conflictPolicy": "hold", "driftPolicy": "repair", "embeddedSecretPolicy": "refuse",
		"prune": "mirror", "dryRun": true}
	ofProfile := maps.Clone(policies)
	ofProfile["paused"], ofProfile["vars"] = true, map[string]string{"line": "3"}
	mapped := func(gs *v1alpha1.GatewaySync) {
		profile(func(p *v1alpha1.SyncProfile) {
			p.Vars = map[string]v1alpha1.VarValue{"line": "1"}
			first := v1alpha1.Mapping{Source: "gw/" + view + "text.json", Destination: view + "first.json", Template: true, Type: v1alpha1.MappingFile,
				Patches: []v1alpha1.Patch{{Set: map[string]v1alpha1.PatchValue{"more": "patched"}}}}
			p.Mappings = append([]v1alpha1.Mapping{first}, p.Mappings...)
		})(gs)
	}
	folder := func(gs *v1alpha1.GatewaySync) {
		mapped(gs)
		m := &gs.Spec.Sync.Profiles["default"].Mappings[0]
		m.Source, m.Destination, m.Type = "gw/config", "config", ""
		m.Patches = []v1alpha1.Patch{{File: "**/db/config.json", Set: map[string]v1alpha1.PatchValue{"url": "patched"}}}
	}
	missing := func(gs *v1alpha1.GatewaySync) {
		mapped(gs)
		gs.Spec.Sync.Profiles["default"].Mappings[0].Source = "none"
	}
	syncs := s.afterwards(nil, nil)
	mapping := "sync.profiles{}.mappings[]"
	return []group[v1alpha1.GatewaySync]{
		{"sync by defaults", "sync.defaults", func(gs *v1alpha1.GatewaySync) {
			profile(func(*v1alpha1.SyncProfile) {})(gs)
			gs.Spec.Sync.Defaults.Vars = map[string]v1alpha1.VarValue{"line": "1"}
		}, syncs, policies},
		{"sync by a profile", "sync.profiles{}", func(gs *v1alpha1.GatewaySync) {
			profile(func(p *v1alpha1.SyncProfile) { p.Vars = map[string]v1alpha1.VarValue{"line": "1"} })(gs)
			gs.Spec.Sync.Defaults.Vars = map[string]v1alpha1.VarValue{"line": "2"}
		}, syncs, ofProfile},
		{"sync of a file", mapping, mapped, syncs, map[string]any{"source": "other/projects/line/project.json", "destination": view + "second.json", "type": "dir", "template": false, "patches[].set": nil}},
		{"sync of a folder", mapping, folder, syncs, map[string]any{"patches[].file": "**/none.json"}},
		{"sync of a missing file", mapping, missing, syncs, map[string]any{"required": true}},
		{"sync of a view that embeds a missing view", "validation", func(gs *v1alpha1.GatewaySync) { gs.Spec.Validation = &v1alpha1.ValidationSpec{} }, syncs, map[string]any{"references": "refuse"}},
		{"sync of a ref", "", nil, syncs, map[string]any{"git.ref": s.first, "paused": true}},
		{"sync with snapshots", "snapshots", func(gs *v1alpha1.GatewaySync) { gs.Spec.Snapshots.Enabled = true }, syncs, map[string]any{"enabled": false, "maxSize": "1"}},
	}
}

// follows returns a probe that sees what an agent in a pod says about the start of its gateway, which runs another commit than the target, and
// whether it reaches the gateway. The agent starts twice, because it knows the spec only at its second start.
func follows(s *site, server *web) func(*testing.T, *v1alpha1.GatewaySync) string {
	return func(t *testing.T, gs *v1alpha1.GatewaySync) string {
		g := newGateway(t, s, nil, false)
		g.start(func(*v1alpha1.GatewaySync) {})
		gs.Spec.Git.Repo = s.repo.Dir
		api := newAPI()
		api.put(t, stokerPath+"gatewaysyncs/plant", gs)
		api.put(t, stokerPath+"synctargets/plant", v1alpha1.SyncTarget{Spec: v1alpha1.SyncTargetSpec{Format: v1alpha1.TargetFormat, Revision: 1, Generation: 1, Ref: "main",
			RefName: "refs/heads/main", Commit: s.second, Requests: annotation.Hash(gs), Lead: v1alpha1.LeadRecord{Holder: "test", Transitions: 1}}})
		var lines string
		for i := range 2 { // sequence: the second start knows the spec of the first
			ctx, stop := context.WithTimeout(t.Context(), 30*time.Second)
			var f *follow.Follower
			var started string
			f, err := follow.New(follow.Config{
				Identity:    follow.Identity{Namespace: "site", Pod: "line-1", PodUID: strconv.Itoa(i), GatewaySync: "plant", Gateway: "line-1"},
				StartupFile: filepath.Join(g.dir, fmt.Sprint("startup-", i)), API: api.clients(t).Dynamic, Secrets: secrets{}, Engine: g.engine, Log: slog.New(slog.DiscardHandler),
				Metrics: metrics.NewAgent(prometheus.NewRegistry(), "", "", "", ""),
				OnSyncTarget: func(*v1alpha1.SyncTarget, error) {
					if started == "" {
						w := httptest.NewRecorder()
						loop.Handler(f.Routes()).ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "/startupz", nil))
						started = fmt.Sprint(w.Code, w.Body)
					}
				},
				OnState: func(s loop.State) {
					if s.Of != nil && s.Report != nil {
						stop()
					}
				},
			})
			require.NoError(t, err)
			require.NoError(t, f.Run(ctx))
			stop()
			lines = fmt.Sprint(started, "contacts the gateway: ", server.take() != "")
		}
		return lines
	}
}

func followGroups(t *testing.T, s *site) []group[v1alpha1.GatewaySync] {
	server := newWeb(t, "", "gateway.example.com", nil)
	u, err := url.Parse(server.url)
	require.NoError(t, err)
	port, err := strconv.ParseInt(u.Port(), 10, 32)
	require.NoError(t, err)
	given := func(gs *v1alpha1.GatewaySync) {
		gs.Spec.Gateway = v1alpha1.GatewaySpec{Port: new(int32(port)), TLS: true, TLSConfig: &v1alpha1.GatewayTLSConfig{InsecureSkipVerify: true}}
	}
	see := follows(s, server)
	return []group[v1alpha1.GatewaySync]{
		{"start of a gateway", "", given, see, map[string]any{"gateway.port": 1, "gateway.tls": false, "sync.defaults.startup": "wait", "sync.profiles{}.startup": "wait"}},
	}
}
