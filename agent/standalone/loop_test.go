package standalone

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/apikey"
	"stoker.io/stoker/agent/connect"
	"stoker.io/stoker/agent/loop"
	"stoker.io/stoker/agent/sync"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/metrics"
	"stoker.io/stoker/test/gitserver"
)

// desk is a Loop whose GatewaySync file a test edits.
type desk struct {
	t    *testing.T
	loop *Loop
	repo *gitserver.Repo
}

func newDesk(t *testing.T) *desk {
	dir := t.TempDir()
	return &desk{t: t, repo: gitserver.NewRepo(t, filepath.Join(dir, "git")), loop: New(Config{
		File: filepath.Join(dir, "line-1.yaml"), Gateway: Identity{Name: "line-1"}, Log: slog.New(slog.DiscardHandler),
		Metrics: metrics.NewAgent(prometheus.NewRegistry(), "v", "n", "s", "g"),
	})}
}

// saved writes the GatewaySync file and returns the Decision that follows.
func (d *desk) saved(annotations, ref, spec, profile string) loop.Decision {
	d.t.Helper()
	d.write(annotations, ref, spec, profile)
	return d.loop.Decide(d.t.Context(), true)
}

func (d *desk) write(annotations, ref, spec, profile string) {
	d.t.Helper()
	require.NoError(d.t, os.WriteFile(d.loop.File, []byte(fmt.Sprintf(`apiVersion: stoker.io/v1alpha1
kind: GatewaySync
metadata: {annotations: {%s}}
spec:
  git: {repo: %q, ref: %q}
  sync: {profiles: {default: {mappings: [{source: a, destination: projects}]%s}}}
%s
`, annotations, d.repo.Dir, ref, profile, spec)), 0o600))
}

// equalOrders compares orders without their functions.
func equalOrders(t *testing.T, want, got loop.Order) {
	t.Helper()
	want.Stop, got.Stop = nil, nil
	assert.Equal(t, want, got)
}

// The disk content came from the old ref, repository and profile. All of them stay in force until git resolves the new ref.
func TestUnresolvedRefKeepsLastOrder(t *testing.T) {
	const mirror = ", prune: mirror"
	d := newDesk(t)
	w := d.saved("", "nowhere", "", "")
	require.Len(t, w.Problems, 1)
	assert.True(t, w.Order.Commit.IsZero())
	assert.Equal(t, "nowhere", w.Order.Ref)

	first := d.repo.Commit("first", gitserver.Write("a/x", "x"))
	good := d.saved("", "main", "", "").Order
	require.Equal(t, first, good.Commit.String())

	for _, w := range []loop.Decision{ // mian is a typing mistake: no ref has this name
		d.saved("", "mian", "", ""),
		d.saved("", "mian", "", mirror),
		d.saved("stoker.io/requested-ref: v9", "main", "", mirror),
		d.saved(`stoker.io/requested-ref: "-x"`, "main", "", mirror),
	} {
		require.Len(t, w.Problems, 1)
		assert.Equal(t, v1alpha1.ReasonRefNotFound, w.Problems[0].Reason)
		assert.Same(t, good, w.Order)
	}

	// A pause and a forced sync take effect at once.
	stopped := d.saved("stoker.io/force-sync: now", "mian", "  paused: true", mirror).Order
	assert.Same(t, stopped, d.loop.Decide(t.Context(), false).Order, "an unchanged order is returned again")
	want := *good
	want.Profile.Paused, want.Force = true, "now"
	equalOrders(t, want, *stopped)
	equalOrders(t, *good, *d.saved("", "mian", "", mirror).Order)

	name := d.loop.Gateway.Name
	assert.Equal(t, name+" now", d.saved("stoker.io/propose: "+name+" now", "mian", "", mirror).Order.Propose)
	assert.Empty(t, d.saved("stoker.io/propose: other now", "mian", "", mirror).Order.Propose, "a request for another gateway")
	id := name + "-20260212-102000"
	assert.Equal(t, id+" ", d.saved("stoker.io/restore: "+id, "mian", "", mirror).Order.Restore)
	assert.Empty(t, d.saved("stoker.io/restore: other-20260212-102000", "mian", "", mirror).Order.Restore, "a request for another gateway")

	d.repo.Branch("mian", first)
	next := d.saved("", "mian", "", mirror)
	assert.Empty(t, next.Problems)
	assert.Equal(t, "mian", next.Order.Ref)
	assert.Equal(t, v1alpha1.PruneMirror, next.Order.Profile.Prune)
}

// A sync may run for long after the Decide that began it.
func TestPauseDuringSync(t *testing.T) {
	d := newDesk(t)
	d.repo.Commit("first", gitserver.Write("a/x", "x"))
	order := d.saved("", "main", "", "").Order
	for name, c := range map[string]struct {
		annotations, spec, profile string
		stops                      bool
	}{
		"unchanged":                 {},
		"another spec":              {"stoker.io/force-sync: now", "  progressDeadline: 5m", ", prune: mirror", false},
		"paused":                    {spec: "  paused: true", stops: true},
		"paused by annotation":      {annotations: `stoker.io/paused: "true"`, stops: true},
		"paused by profile":         {profile: ", paused: true", stops: true},
		"paused, spec is not valid": {spec: "  paused: true\n  unknown: 1"},
	} {
		t.Run(name, func(t *testing.T) {
			d.write(c.annotations, "main", c.spec, c.profile)
			err := order.Stop(t.Context())
			assert.Equal(t, c.stops, failure.Is(err, v1alpha1.ReasonProgressing), "%v", err)
			assert.Equal(t, c.stops, err != nil, "%v", err)
		})
	}
	require.NoError(t, os.Remove(d.loop.File))
	assert.NoError(t, order.Stop(t.Context()))
}

// A volume that was briefly unavailable returns without an event, and the file has the same bytes as before.
func TestRestoredSpecFile(t *testing.T) {
	d := newDesk(t)
	first := d.repo.Commit("first", gitserver.Write("a/x", "x"))
	require.Empty(t, d.saved("", "main", "", "").Problems)

	require.NoError(t, os.Rename(d.loop.File, d.loop.File+".away"))
	w := d.loop.Decide(t.Context(), false)
	require.Len(t, w.Problems, 1)
	assert.Equal(t, v1alpha1.ReasonProfilesInvalid, w.Problems[0].Reason)
	assert.Equal(t, first, w.Order.Commit.String())

	require.NoError(t, os.Rename(d.loop.File+".away", d.loop.File))
	w = d.loop.Decide(t.Context(), false)
	assert.Empty(t, w.Problems)
	assert.Equal(t, first, w.Order.Commit.String())
	assert.Same(t, w.Order, d.loop.Decide(t.Context(), false).Order, "the new order is returned again")
}

// Some volumes send no events, so each call of Decide notices a changed secret and returns a new order.
func TestDecideNoticesChangedSecrets(t *testing.T) {
	d := newDesk(t)
	d.loop.Secrets = connect.LocalSecrets{Dir: t.TempDir()}
	first := d.repo.Commit("first", gitserver.Write("a/x", "x"))
	const apiKey = "  gateway: {api: {secretName: gateway}}"
	order := d.saved("", "main", apiKey, "").Order
	require.Equal(t, first, order.Commit.String())
	assert.Same(t, order, d.loop.Decide(t.Context(), false).Order)

	key := filepath.Join(d.loop.Secrets.Dir, "gateway", "apiKey")
	require.NoError(t, os.Mkdir(filepath.Dir(key), 0o700))
	// sequence: one value after the other
	for _, value := range []string{"one", "two"} {
		require.NoError(t, os.WriteFile(key, []byte(value), 0o600))
		next := d.loop.Decide(t.Context(), false).Order
		assert.NotSame(t, order, next, "a changed secret is a new order")
		assert.Same(t, next, d.loop.Decide(t.Context(), false).Order)
		order = next
	}
	require.NoError(t, os.Remove(key))
	next := d.loop.Decide(t.Context(), false).Order
	assert.NotSame(t, order, next)
}

// A key that the spec asks for no more is removed from the gateway, also if a backup of the data directory brings it back.
func TestKeyStaysRemoved(t *testing.T) {
	own, data := t.TempDir(), t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(data, "config/resources/core"), 0o755))
	at := filepath.Join(data, apikey.Folder, "config.json")
	for _, name := range []string{"made", "restored"} {
		t.Run(name, func(t *testing.T) {
			d := newDesk(t)
			d.repo.Commit("first", gitserver.Write("a/x", "x"))
			d.loop.GatewayURL, d.loop.Key = "http://127.0.0.1:1", apikey.New(own, time.Now)
			d.loop.Engine = sync.New(sync.Config{DataDir: data, Log: d.loop.Log})
			defer func() { assert.NoError(t, d.loop.Engine.Close()) }()
			if name == "made" {
				_, err := d.loop.Key.Read()
				require.NoError(t, err)
			}
			require.NoError(t, os.MkdirAll(filepath.Dir(at), 0o755))
			require.NoError(t, os.WriteFile(at, []byte("{}"), 0o600))
			require.Empty(t, d.saved("", "main", "", "").Problems)
			assert.NoFileExists(t, at)
			assert.False(t, d.loop.Key.Exists())
		})
	}
}

const minimal = `apiVersion: stoker.io/v1alpha1
kind: GatewaySync
spec:
  git: {repo: "https://git.example.com/plant.git", ref: main}
  sync: {profiles: {default: {mappings: [{source: a, destination: projects}]}}}
`

func writeFile(t *testing.T, name, content string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(file, []byte(content), 0o600))
	return file
}

func TestLoadMultipleDocuments(t *testing.T) {
	gs, _, err := Load(writeFile(t, "line-1.yaml", "kind: ConfigMap\napiVersion: v1\nodd: field\n---\n"+minimal+"---\n# nothing\n"))
	require.NoError(t, err, "the ConfigMap is not read")
	assert.Equal(t, "line-1", gs.Name)
	assert.Equal(t, "standalone", gs.Namespace)
}

func TestLoadErrorsNameTheField(t *testing.T) {
	for broken, names := range map[string]string{
		strings.Replace(minimal, "ref: main", "ref: [main]", 1):                    "ref",
		strings.Replace(minimal, "ref: main", "ref: -x", 1):                        "spec.git.ref",
		strings.Replace(minimal, "destination: projects", "destination: ../up", 1): "destination",
		strings.Replace(minimal, "stoker.io/v1alpha1", "stoker.io/v9", 1):          "stoker.io/v9",
		"kind: ConfigMap":           "GatewaySync",
		minimal + "---\n" + minimal: "more than one",
		"a: [":                      "line",
		minimal + "  unknown: {}\n": `unknown field "spec.unknown"`,
	} {
		t.Run(broken, func(t *testing.T) {
			file := writeFile(t, "gs.yaml", broken)
			_, _, err := Load(file)
			require.Error(t, err, broken)
			assert.Equal(t, v1alpha1.ReasonProfilesInvalid, failure.Reason(err, ""), broken)
			assert.Contains(t, err.Error(), names)
			assert.Contains(t, err.Error(), file)
		})
	}
	_, _, err := Load(filepath.Join(t.TempDir(), "nothing.yaml"))
	assert.ErrorIs(t, err, os.ErrNotExist)
	_, _, err = Load(writeFile(t, "huge.yaml", strings.Repeat("#", maxFile+1)))
	assert.ErrorContains(t, err, "larger than")
}

// clocked replaces the clock of a desk. The result advances it until every poll is due, and returns the Decision that follows.
func clocked(d *desk) (later func() loop.Decision) {
	now := time.Now()
	d.loop.Now = func() time.Time { return now }
	return func() loop.Decision {
		now = now.Add(time.Hour)
		return d.loop.Decide(d.t.Context(), false)
	}
}

func requireOrder(t *testing.T, w loop.Decision, ref, commit string) {
	t.Helper()
	require.Empty(t, w.Problems)
	require.Equal(t, ref, w.Order.Ref)
	require.Equal(t, commit, w.Order.Commit.String())
}

// requireMoved requires that the agent follows no ref, and stays at commit.
func requireMoved(t *testing.T, w loop.Decision, commit string) {
	t.Helper()
	require.Len(t, w.Problems, 1)
	require.Equal(t, v1alpha1.ReasonRefMoved, w.Problems[0].Reason)
	require.Equal(t, commit, w.Order.Commit.String())
}

func rollbackTo(commit, unless string) string {
	return fmt.Sprintf("stoker.io/requested-ref: %q, stoker.io/requested-unless: %q", commit, unless)
}

func requestAt(ref, commit string) string {
	return fmt.Sprintf("stoker.io/requested-ref: %q, stoker.io/requested-commit: %q", ref, commit)
}

func TestRollbackEndsWhenSpecRefMoves(t *testing.T) {
	d := newDesk(t)
	later := clocked(d)
	first := d.repo.Commit("first", gitserver.Write("a/x", "1"))
	second := d.repo.Commit("second", gitserver.Write("a/x", "2"))
	requireOrder(t, d.saved("", "main", "", ""), "main", second)

	requireOrder(t, d.saved(rollbackTo(first, second), "main", "", ""), first, first)
	requireOrder(t, later(), first, first)
	third := d.repo.Commit("third", gitserver.Write("a/x", "3"))
	requireOrder(t, later(), "main", third)
	d.repo.ForcePush(second)
	requireOrder(t, later(), "main", second) // a lapsed request stays lapsed
}

func TestRollbackWithMissingSpecRef(t *testing.T) {
	d := newDesk(t)
	later := clocked(d)
	first := d.repo.Commit("first", gitserver.Write("a/x", "1"))
	second := d.repo.Commit("second", gitserver.Write("a/x", "2"))
	third := d.repo.Commit("third", gitserver.Write("a/x", "3"))
	requireOrder(t, d.saved(rollbackTo(first, second), "release", "", ""), first, first)
	d.repo.Branch("release", second)
	requireOrder(t, later(), first, first)
	d.repo.DeleteBranch("release")
	requireOrder(t, later(), first, first)
	d.repo.Branch("release", third)
	requireOrder(t, later(), "release", third)
}

// A rollback from one commit to another depends on no ref that can move.
func TestRollbackFromCommitIsNotPolled(t *testing.T) {
	d := newDesk(t)
	clocked(d)
	first := d.repo.Commit("first", gitserver.Write("a/x", "1"))
	second := d.repo.Commit("second", gitserver.Write("a/x", "2"))
	w := d.saved(rollbackTo(first, second), second, "", "")
	requireOrder(t, w, first, first)
	assert.Greater(t, w.Due.Sub(d.loop.Now()), 365*24*time.Hour)
}

func TestRefusedRequestStaysRefused(t *testing.T) {
	d := newDesk(t)
	later := clocked(d)
	first := d.repo.Commit("first", gitserver.Write("a/x", "1"))
	requireOrder(t, d.saved("", "main", "", ""), "main", first)
	w := d.saved(requestAt("v2", first), "main", "", "")
	require.Len(t, w.Problems, 1)
	require.Equal(t, v1alpha1.ReasonRefNotFound, w.Problems[0].Reason, "v2 may be pushed later")

	second := d.repo.Commit("second", gitserver.Write("a/x", "2"))
	d.repo.Branch("v2", second)
	requireMoved(t, later(), first)
	d.repo.Branch("v2", first)
	w = later()
	requireMoved(t, w, first)
	assert.Equal(t, "main", w.Order.Ref, "the refused ref is not followed, even if it returns")
	requireMoved(t, d.saved(requestAt("v2", first), "main", "", ", prune: mirror"), first)
	requireOrder(t, d.saved(requestAt("v2", first)+", stoker.io/requested-over: v2@main again", "main", "", ""), "v2", first)
}

func TestRefThatMovesAfterRequest(t *testing.T) {
	d := newDesk(t)
	later := clocked(d)
	first := d.repo.Commit("first", gitserver.Write("a/x", "1"))
	second := d.repo.Commit("second", gitserver.Write("a/x", "2"))
	d.repo.Branch("v2", first)
	requireOrder(t, d.saved(requestAt("v2", first), "main", "", ""), "v2", first)
	d.repo.Branch("v2", second)
	requireMoved(t, later(), first)
	d.repo.Branch("v2", first)
	requireOrder(t, later(), "v2", first)
}
