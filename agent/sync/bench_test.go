package sync_test

import (
	"hash/fnv"
	"log/slog"
	"math/bits"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/disk"
	"stoker.io/stoker/agent/ignition"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/agent/sync"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/effective"
	"stoker.io/stoker/internal/secret"
	"stoker.io/stoker/test/gateway/simulator"
	"stoker.io/stoker/test/gitserver"
)

const (
	viewDir = "projects/line/com.inductiveautomation.perspective/views/main"
	view    = viewDir + "/view.json"
	db      = "config/resources/core/ignition/database-connection/db"
)

// bench is an engine with a real repository and a simulated gateway.
type bench struct {
	t      *testing.T
	repo   *gitserver.Repo
	gw     *simulator.Gateway
	data   string
	engine *sync.Engine
	conn   sync.Connections
	target sync.Task
}

func newBench(t *testing.T, o simulator.Options) *bench {
	t.Helper()
	b := &bench{t: t, repo: gitserver.NewRepo(t, filepath.Join(t.TempDir(), "git"))}
	u, err := repo.ParseURL(b.repo.Dir)
	require.NoError(t, err)
	b.conn.Remote, err = repo.NewRemote(u, repo.Auth{}, repo.RemoteOptions{})
	require.NoError(t, err)
	b.target.Profile = effective.Settings{Mappings: []v1alpha1.Mapping{
		{Source: "projects", Destination: "projects"}, {Source: "config", Destination: "config"}}}
	b.start(o)
	return b
}

// start starts the gateway and the engine.
func (b *bench) start(o simulator.Options) {
	b.t.Helper()
	b.data = filepath.Join(b.t.TempDir(), "data")
	require.NoError(b.t, os.MkdirAll(b.data, 0o755))
	o.Data, o.Strict, o.Unknowns = b.data, true, unknowns(b.t, o.Unknowns)
	var err error
	b.gw, err = simulator.Start(o)
	require.NoError(b.t, err)
	b.t.Cleanup(func() { assert.NoError(b.t, b.gw.Close()) })
	b.connect(ignition.Config{})
	log := slog.New(slog.DiscardHandler)
	b.open(sync.Config{DataDir: b.data, Log: log, Disk: disk.Options{Log: log}, MaxBlob: 1 << 20, DriftFetchTimeout: time.Minute}, b.t.TempDir())
}

// open creates an engine with the store in dir.
func (b *bench) open(c sync.Config, dir string) {
	b.t.Helper()
	var err error
	c.Store, err = repo.Open(dir, repo.StoreOptions{})
	require.NoError(b.t, err)
	b.engine = sync.New(c)
	b.t.Cleanup(func() {
		assert.NoError(b.t, b.engine.Close())
		assert.NoError(b.t, c.Store.Close())
	})
}

// restart starts another agent, with the store in dir.
func (b *bench) restart(dir string) {
	b.t.Helper()
	require.NoError(b.t, b.engine.Close())
	require.NoError(b.t, b.engine.Store.Close())
	c := b.engine.Config
	c.Record = nil
	b.open(c, dir)
}

// again starts another agent with the same store.
func (b *bench) again() {
	b.t.Helper()
	require.NoError(b.t, b.engine.Close())
	b.engine = sync.New(b.engine.Config)
}

// clock gives the engine a clock that the test controls. It starts at the present.
func (b *bench) clock() *time.Time {
	now := time.Now()
	b.engine.Now = func() time.Time { return now }
	return &now
}

// at calls do when a sync reports progress of a step; "" is none. At "apply", the plan is made and no file has moved.
func (b *bench) at(step string, do func()) {
	b.engine.Progress = func(now string, _, _ int) {
		if now == step {
			do()
		}
	}
}

// connect creates the client of the gateway from c.
func (b *bench) connect(c ignition.Config) {
	b.t.Helper()
	if c.URL == "" {
		c.URL = b.gw.URL()
	}
	c.Key = func() (secret.String, error) { return secret.New(b.gw.Token()), nil }
	c.PollInterval, c.LockWait = 5*time.Millisecond, time.Second
	client, err := ignition.New(c)
	require.NoError(b.t, err)
	b.conn.Gateway, b.conn.HasAPIToken = client, true
}

// push creates a commit and makes it the target.
func (b *bench) push(edits ...gitserver.Edit) plan.ID {
	b.t.Helper()
	id, err := plan.ParseID(b.repo.Commit("c", edits...))
	require.NoError(b.t, err)
	b.target.Ref, b.target.Name, b.target.Commit = "main", "refs/heads/main", id
	return id
}

// firstCommit returns the edits of the first commit of most tests: a project with a view, and a database connection.
func firstCommit() []gitserver.Edit {
	resource := func(file string) string {
		return `{"scope":"G","version":1,"restricted":false,"overridable":true,"files":["` + file + `"],"attributes":{}}`
	}
	return []gitserver.Edit{
		gitserver.Write("projects/line/project.json", `{"title":"Line","description":"","parent":"","enabled":true,"inheritable":false}`),
		gitserver.Write(view, `{"one": 1}`),
		gitserver.Write(viewDir+"/resource.json", resource("view.json")),
		gitserver.Write(db+"/config.json", `{"url": "jdbc"}`),
		gitserver.Write(db+"/resource.json", resource("config.json")),
	}
}

func (b *bench) sync() *sync.Report { return b.engine.Sync(b.t.Context(), b.conn, b.target) }

// synced runs a sync and expects it to succeed.
func (b *bench) synced() *sync.Report {
	b.t.Helper()
	r := b.sync()
	require.Equal(b.t, v1alpha1.GatewaySynced, r.Phase, r.String())
	require.Equal(b.t, b.target.Commit, r.Commit)
	require.NoError(b.t, b.gw.Canaries.Check())
	return r
}

// ended runs a sync and expects a phase and a reason.
func (b *bench) ended(phase v1alpha1.GatewaySyncState, reason v1alpha1.Reason) *sync.Report {
	b.t.Helper()
	r := b.sync()
	require.Equal(b.t, phase, r.Phase, r.String())
	require.Equal(b.t, reason, r.Reason, r.String())
	return r
}

// delivered syncs the first commit.
func (b *bench) delivered() *bench {
	b.t.Helper()
	b.push(firstCommit()...)
	b.synced()
	return b
}

// drift compares the files with the manifest. If full, it hashes every file.
func (b *bench) drift(full bool) disk.Drift {
	b.t.Helper()
	d, err := b.engine.Drift(b.t.Context(), full)
	require.NoError(b.t, err)
	return d
}

// lost returns the files in lost+found, by path.
func (b *bench) lost() map[string]string {
	b.t.Helper()
	dir, err := b.engine.Open()
	require.NoError(b.t, err)
	list, err := dir.LostAndFound()
	require.NoError(b.t, err)
	found := map[string]string{}
	for _, l := range list {
		found[l.Path] = b.read(filepath.Join(".stoker/lost+found", l.File))
	}
	return found
}

// put writes a file as a user on the gateway would.
func (b *bench) put(path, content string) {
	b.t.Helper()
	file := filepath.Join(b.data, path)
	require.NoError(b.t, os.MkdirAll(filepath.Dir(file), 0o755))
	require.NoError(b.t, os.WriteFile(file, []byte(content), 0o644))
}

// remove removes a file or a directory, which must exist.
func (b *bench) remove(path string) {
	b.t.Helper()
	_, err := os.Lstat(filepath.Join(b.data, path))
	require.NoError(b.t, err)
	require.NoError(b.t, os.RemoveAll(filepath.Join(b.data, path)))
}

// set changes the state of the gateway.
func (b *bench) set(state simulator.State) {
	b.t.Helper()
	require.NoError(b.t, b.gw.SetState(state))
}

func (b *bench) fault(f simulator.Fault) {
	b.t.Helper()
	require.NoError(b.t, b.gw.Faults.Add(f))
}

// beforeStart syncs before the gateway starts, and then starts it.
func (b *bench) beforeStart() {
	b.t.Helper()
	b.target.BeforeStart = true
	b.ended(v1alpha1.GatewayApplied, v1alpha1.ReasonWaitingForGateway)
	b.target.BeforeStart = false
	b.set(simulator.Running)
}

const (
	scanProjects = "POST /data/api/v1/scan/projects"
	scanConfig   = "POST /data/api/v1/scan/config"
)

// scans returns how many scans of projects and of the configuration were requested.
func (b *bench) scans() [2]int {
	return [2]int{b.gw.Requests.Count(scanProjects), b.gw.Requests.Count(scanConfig)}
}

func (b *bench) read(path string) string {
	b.t.Helper()
	raw, err := os.ReadFile(filepath.Join(b.data, path))
	if os.IsNotExist(err) {
		return ""
	}
	require.NoError(b.t, err)
	return string(raw)
}

const (
	// flipEnv names a property that is unknown of a real gateway (a field of simulator.Unknowns). All simulated gateways of this package
	// then have the other value than by default. With flipSample, each test flips half of the properties, chosen by its name.
	flipEnv    = "STOKER_TEST_UNKNOWN"
	flipSample = "sample"
	// fullEnv makes TestUnknowns run the package once for each unknown, which takes about ten minutes.
	fullEnv = "STOKER_TEST_FULL"
)

// unknowns flips the unknowns that flipEnv selects for a test.
func unknowns(t *testing.T, u simulator.Unknowns) simulator.Unknowns {
	t.Helper()
	fields := reflect.ValueOf(&u).Elem()
	flip := func(field reflect.Value) { field.SetBool(!field.Bool()) }
	switch name := os.Getenv(flipEnv); name {
	case "":
	case flipSample:
		row := rowOf(t.Name())
		for i, rows := range columns(t, fields.NumField()) {
			if rows&(1<<row) != 0 {
				flip(fields.Field(i))
			}
		}
	default:
		field := fields.FieldByName(name)
		require.True(t, field.IsValid(), "there is no unknown %s", name)
		flip(field)
	}
	return u
}

// rowCount is the number of rows of the covering array. Eight rows cover the pairs of up to 35 unknowns.
const rowCount = 8

// columns returns a covering array of strength 2 (Kleitman and Spencer): column i is the set of rows that flip unknown
// i, as a bit mask. Each column has half of the rows, and row 0 is in every column; so any two columns have a row with
// both, with neither, and with either one alone.
func columns(t *testing.T, n int) []uint8 {
	t.Helper()
	var list []uint8
	for set := range 1 << rowCount {
		if set&1 == 1 && bits.OnesCount(uint(set)) == rowCount/2 {
			list = append(list, uint8(set))
		}
	}
	require.LessOrEqual(t, n, len(list), "more rows are needed")
	return list[:n]
}

func rowOf(test string) uint32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(test)) // a hash never fails
	return h.Sum32() % rowCount
}

func TestUnknownsCoverPairs(t *testing.T) {
	list := columns(t, reflect.TypeFor[simulator.Unknowns]().NumField())
	for i, a := range list {
		for _, b := range list[:i] {
			for _, rows := range []uint8{a & b, a &^ b, b &^ a, ^(a | b)} {
				assert.NotZero(t, rows)
			}
		}
	}
}
