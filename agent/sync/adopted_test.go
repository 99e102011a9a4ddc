package sync_test

import (
	"hash/fnv"
	"math/bits"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/sync"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/test/gateway/simulator"
	"stoker.io/stoker/test/gitserver"
)

// A commit with an invalid file must fail even if that file is already on the gateway, for example through a copy.
func TestExistingFilesAreValidated(t *testing.T) {
	for name, c := range map[string]struct {
		file, content string
		reason        v1alpha1.Reason
	}{
		"a pointer":    {"image.png", "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n", v1alpha1.ReasonLFSPointer},
		"broken JSON":  {"other.json", `{"broken": `, v1alpha1.ReasonConfigSyntaxError},
		"a bad shape":  {"in/resource.json", `{"scope":"G","version":1,"files":[]}`, v1alpha1.ReasonConfigSyntaxError},
		"a large file": {"large.json", `"` + strings.Repeat("x", 1<<20) + `"`, v1alpha1.ReasonLimitExceeded},
		"a good file":  {"good.json", `{}`, v1alpha1.ReasonSynced},
	} {
		t.Run(name, func(t *testing.T) {
			for place, there := range map[string]bool{"on the gateway": true, "only in git": false} {
				t.Run(place, func(t *testing.T) {
					b := newBench(t, simulator.Options{})
					b.push(append(firstCommit(), gitserver.Write(viewDir+"/"+c.file, c.content))...)
					if there {
						at := filepath.Join(b.data, viewDir, c.file)
						require.NoError(t, os.MkdirAll(filepath.Dir(at), 0o755))
						require.NoError(t, os.WriteFile(at, []byte(c.content), 0o644))
					}
					b.target.Profile.DryRun = true
					planned := b.sync()
					b.target.Profile.DryRun = false
					r := b.sync()
					assert.Equal(t, c.reason, r.Reason, "%s", r)
					if c.reason == v1alpha1.ReasonSynced {
						assert.Equal(t, v1alpha1.GatewaySynced, r.Phase, "%s", r)
						return
					}
					assert.Equal(t, c.reason, planned.Reason, "dry run: %s", planned)
					assert.Zero(t, planned.Files.Total)
					assert.Zero(t, r.Files.Total, "the agent owns no file")
				})
			}
		})
	}
}

// Another program may bring the files of a commit to a gateway that runs. That they are on the disk does not mean that it has loaded them.
func TestExistingFilesAreLoaded(t *testing.T) {
	const changed, config = "projects/line/project.json", db + "/config.json"
	write := func(t *testing.T, b *bench, path, content string) {
		t.Helper()
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(b.data, path)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(b.data, path), []byte(content), 0o644))
	}
	scans := func(b *bench) [2]int {
		return [2]int{b.gw.Requests.Count("POST /data/api/v1/scan/projects"), b.gw.Requests.Count("POST /data/api/v1/scan/config")}
	}
	const next = `{"title":"Next","description":"","parent":"","enabled":true,"inheritable":false}`
	start := func(t *testing.T) *bench {
		b := newBench(t, simulator.Options{})
		b.push(firstCommit()...)
		b.synced()
		b.gw.Requests.Reset()
		return b
	}
	t.Run("of the next commit", func(t *testing.T) {
		b := start(t)
		write(t, b, changed, next)
		b.push(gitserver.Write(changed, next))
		r := b.synced()
		assert.Equal(t, [2]int{1, 0}, scans(b))
		assert.Equal(t, []string{"line"}, r.Projects)
	})
	t.Run("a failed scan", func(t *testing.T) {
		b := start(t)
		write(t, b, config, `{"url": "other"}`)
		b.push(gitserver.Write(config, `{"url": "other"}`))
		require.NoError(t, b.gw.Scans.Fault("config", simulator.ScanFault{Fails: 99}))
		b.ended(v1alpha1.GatewayError, v1alpha1.ReasonScanFailed)
		require.NoError(t, b.gw.Scans.Fault("config", simulator.ScanFault{}))
		b.synced()
	})
	t.Run("a deleted project", func(t *testing.T) {
		b := start(t)
		require.NoError(t, os.RemoveAll(filepath.Join(b.data, "projects/line")))
		b.push(gitserver.Delete(changed), gitserver.Delete(view), gitserver.Delete(viewDir+"/resource.json"))
		b.target.ConfirmDeletion = b.target.Commit.String()
		b.synced()
		assert.Equal(t, [2]int{1, 0}, scans(b))
	})
	t.Run("a lost manifest while a scan is pending", func(t *testing.T) {
		b := start(t)
		b.push(gitserver.Write(changed, next))
		require.NoError(t, b.gw.Scans.Fault("projects", simulator.ScanFault{Fails: 99}))
		b.ended(v1alpha1.GatewayError, v1alpha1.ReasonScanFailed)
		require.NoError(t, os.RemoveAll(filepath.Join(b.data, ".stoker")))
		b.ended(v1alpha1.GatewayError, v1alpha1.ReasonScanFailed)
		require.NoError(t, b.gw.Scans.Fault("projects", simulator.ScanFault{}))
		b.synced()
	})
	t.Run("a removed note while a scan is pending", func(t *testing.T) {
		b := start(t)
		b.push(gitserver.Write(changed, next))
		require.NoError(t, b.gw.Scans.Fault("projects", simulator.ScanFault{Fails: 99}))
		b.ended(v1alpha1.GatewayError, v1alpha1.ReasonScanFailed)
		require.NoError(t, os.Remove(filepath.Join(b.data, ".stoker/note-unloaded")))
		b.ended(v1alpha1.GatewayError, v1alpha1.ReasonScanFailed)

		// Another lock file makes the agent open the directory again.
		lock := filepath.Join(b.data, ".stoker/lock")
		content, err := os.ReadFile(lock)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(lock+".new", content, 0o600))
		require.NoError(t, os.Rename(lock+".new", lock))
		b.ended(v1alpha1.GatewayError, v1alpha1.ReasonScanFailed)
	})
	t.Run("of the same meaning", func(t *testing.T) {
		b := start(t)
		write(t, b, config, "{\n  \"url\": \"other\"\n}")
		b.push(gitserver.Write(config, `{"url": "other"}`))
		b.synced()
		assert.Equal(t, [2]int{0, 1}, scans(b))
	})
	t.Run("only the time of a file is new", func(t *testing.T) {
		b := start(t)
		write(t, b, view, `{"one": 1}`)
		b.target.Force = "again"
		b.synced()
		b.gw.Requests.Reset()
		write(t, b, view, `{"one": 1}`)
		b.push(gitserver.Write(config, `{"url": "other"}`))
		b.synced()
		assert.Equal(t, [2]int{0, 1}, scans(b))
	})
}

const (
	// flipEnv makes the simulated gateways of this package differ from the default in the properties that are unknown
	// of a real gateway: all tests flip the unknown that it names, or with flipSample a half of them that depends on
	// the name of the test.
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

// clocked gives the backup's agent a clock that the test controls.
func (p pair) clocked() *time.Time {
	now := time.Now()
	p.backup.engine.Now = func() time.Time { return now }
	return &now
}

func (p pair) edit(path, content string) {
	p.master.t.Helper()
	require.NoError(p.master.t, os.MkdirAll(filepath.Dir(filepath.Join(p.master.data, path)), 0o755))
	p.master.put(path, content)
	require.NoError(p.master.t, p.Replicate())
	require.Equal(p.master.t, content, p.backup.read(path))
}

func waiting(b *bench) *sync.Report {
	b.t.Helper()
	return b.ended(v1alpha1.GatewayPending, v1alpha1.ReasonProgressing)
}

// The backup's volume is new or lost its .stoker. The agent has no record of a file that was edited on the active node.
func TestNewBackupBesideDrift(t *testing.T) {
	ofPairs(t)
	p := newPair(t, simulator.Options{})
	now := p.clocked()
	p.push(firstCommit()...)
	p.master.synced()
	p.edit(view, `{"mine": 1}`)
	assert.Contains(t, waiting(p.backup).Message, viewDir)
	*now = now.Add(4 * time.Minute)
	assert.True(t, waiting(p.backup).Commit.IsZero(), "the reported commit is never ahead of the disk")
	*now = now.Add(time.Minute)
	assert.Contains(t, p.backup.standby().Message, "that were changed on the gateway ("+viewDir)
	assert.Equal(t, `{"mine": 1}`, p.backup.read(view))

	p.push(gitserver.Write(db+"/config.json", `{"url": "other"}`))
	waiting(p.backup)
	p.master.synced()
	assert.Contains(t, p.backup.standby().Message, "changed on the gateway", "the standby waits only once")

	p.push(gitserver.Write(view, `{"two": 2}`))
	waiting(p.backup)
	p.master.synced()
	assert.NotContains(t, p.backup.standby().Message, "changed on the gateway")
	assert.Equal(t, `{"two": 2}`, p.backup.read(view))
}

// A commit adds a view, and a user edits it on the active node before the backup's agent sees it.
func TestEditedViewIsDriftOnStandby(t *testing.T) {
	ofPairs(t)
	p := newPair(t, simulator.Options{})
	now := p.clocked()
	p.push(firstCommit()...)
	p.master.synced()
	p.backup.standby()
	p.push(gitserver.Write(second+"/view.json", `{"two": 2}`), gitserver.Write(second+"/resource.json", listing("view.json")))
	p.master.synced()
	p.edit(second+"/view.json", `{"mine": 1}`)
	waiting(p.backup)
	*now = now.Add(5 * time.Minute)
	p.backup.standby()

	p.Failover(true)
	p.backup.synced()
	assert.Equal(t, `{"two": 2}`, p.backup.read(second+"/view.json"))
}

// A file without a record may belong to the commit of the other node. The time until it counts as drift runs only while all other
// files match and no replication is pending.
func TestUnrecordedFileOfPairIsNotDrift(t *testing.T) {
	ofPairs(t)
	p := newPair(t, simulator.Options{})
	now := p.clocked()
	look := func(why string) {
		t.Helper()
		for range 2 {
			assert.Contains(t, waiting(p.backup).Message, "replicated files do not match", why)
			*now = now.Add(4 * time.Minute)
		}
	}
	p.push(firstCommit()...)
	p.master.synced() // the backup's agent misses this commit
	p.push(gitserver.Write(view, `{"two": 2}`), gitserver.Write(second+"/view.json", `{}`), gitserver.Write(second+"/resource.json", listing("view.json")))
	look("the second view is missing")
	p.Pause(true)
	p.master.synced()
	look("the replication is pending")
	p.backup.gw.Redundancy.SetConfigAccess(false, false)
	p.backup.ended(v1alpha1.GatewayHeld, v1alpha1.ReasonNoConfigAccess)
	*now = now.Add(4 * time.Minute)
	p.backup.gw.Redundancy.SetConfigAccess(false, true)
	p.Pause(false)
	require.NoError(t, p.Replicate())
	p.edit(view, `{"mine": 1}`)
	waiting(p.backup)
	*now = now.Add(4 * time.Minute)
	p.edit(view, `{"mine": 2}`)
	look("the file was edited again")
	p.backup.standby()
	assert.Equal(t, `{}`, p.backup.read(second+"/view.json"))

	p.push(gitserver.Write(view, `{"three": 3}`))
	look("a new commit changes the file")
}

func TestActiveNodeFileIsDriftOnStandby(t *testing.T) {
	ofPairs(t)
	p := newPair(t, simulator.Options{})
	now := p.clocked()
	for _, b := range []*bench{p.master, p.backup} {
		b.target.Profile.ConflictPolicy = v1alpha1.ConflictGatewayWins
		require.NoError(t, os.MkdirAll(filepath.Join(b.data, viewDir), 0o755))
		b.put("projects/line/project.json", project("", false))
		b.put(view, `{"of": "the plant"}`)
		b.put(viewDir+"/resource.json", listing("view.json"))
	}
	p.push(firstCommit()...)
	p.master.synced()
	assert.Equal(t, `{"of": "the plant"}`, p.master.read(view))
	waiting(p.backup)
	*now = now.Add(5 * time.Minute)
	p.backup.standby()
}

// With prune mirror, the next sync of the active node deletes the view. Until then the backup need not wait, because no file is
// missing.
func TestLateViewUnderMirror(t *testing.T) {
	ofPairs(t)
	p := newPair(t, simulator.Options{})
	for _, b := range []*bench{p.master, p.backup} {
		b.target.Profile.Prune = v1alpha1.PruneMirror
		b.target.Profile.Mappings = []v1alpha1.Mapping{{Source: "projects", Destination: "projects"}}
	}
	p.push(firstCommit()...)
	p.master.synced()
	p.backup.standby()
	p.push(gitserver.Write(view, `{"two": 2}`))
	p.master.synced()
	p.edit(second+"/resource.json", listing("view.json"))
	p.edit(second+"/view.json", `{"mine": 1}`)
	assert.Contains(t, p.backup.standby().Message, second, "the message names the view")

	p.push(gitserver.Write(view, `{"three": 3}`))
	p.master.synced()
	assert.NotContains(t, p.backup.standby().Message, second)
	assert.Empty(t, p.backup.read(second+"/view.json"))
}

func TestDriftWaitsTogether(t *testing.T) {
	ofPairs(t)
	p := newPair(t, simulator.Options{})
	now := p.clocked()
	p.push(firstCommit()...)
	p.master.synced()
	p.backup.standby()
	p.push(gitserver.Write(second+"/view.json", `{"two": 2}`), gitserver.Write(second+"/resource.json", listing("view.json")))
	p.master.synced()
	p.edit(view, `{"mine": 1}`)
	p.edit(second+"/view.json", `{"mine": 2}`)
	waiting(p.backup)
	*now = now.Add(5 * time.Minute)
	p.backup.standby()
}
