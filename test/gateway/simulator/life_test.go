package simulator_test

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/test/gateway/simulator"
)

func TestProjectScanTimer(t *testing.T) {
	b := withProject(t, simulator.Options{})
	b.put(viewDir+"/view.json", `{"v":2}`)
	before := b.Data.Loaded(viewDir)
	require.NoError(t, b.Advance(200*time.Second)) // of 300; the gateway's clock also runs by itself
	assert.Equal(t, before, b.Data.Loaded(viewDir))
	require.NoError(t, b.Advance(101*time.Second))
	assert.NotEqual(t, before, b.Data.Loaded(viewDir))
	require.NoError(t, b.Advance(time.Hour))
	assert.Equal(t, 13, b.Scans.Timed())
	assert.Empty(t, b.Requests.Counts(), "timed scans must not count as requests")

	b = withProject(t, simulator.Options{ProjectsTimer: -1})
	require.NoError(t, b.Advance(24*time.Hour))
	assert.Zero(t, b.Scans.Timed())
}

func TestTimerInRealTime(t *testing.T) {
	b := start(t, simulator.Options{ProjectsTimer: 10 * time.Millisecond})
	require.Eventually(t, func() bool { return b.Scans.Timed() > 1 }, bound, time.Millisecond)
}

func TestTimerSkipsWhileLocked(t *testing.T) {
	for _, ignores := range []bool{false, true} {
		t.Run(fmt.Sprintf("ignores lock %t", ignores), func(t *testing.T) {
			b := start(t, simulator.Options{Unknowns: simulator.Unknowns{TimerIgnoresLock: ignores}})
			require.NoError(t, b.Locks.Hold("projects", "maria", time.Hour))
			require.NoError(t, b.Advance(301*time.Second))
			assert.Equal(t, map[bool]int{false: 0, true: 1}[ignores], b.Scans.Timed())
			require.NoError(t, b.Advance(time.Hour))
			assert.Positive(t, b.Scans.Timed(), "scans must continue after the lock expires")
		})
	}
}

// Noise changes only files that no user edits. Loaded resources stay loaded and signatures stay valid.
func TestNoiseLeavesNothingToSign(t *testing.T) {
	b := withProject(t, simulator.Options{})
	b.put(viewDir+"/thumbnail.png", "old")
	b.put(viewDir+"/view.json", `{"a":1,"b":2}`)
	b.put(viewDir+"/resource.json", `{"scope":"G","version":1,"restricted":false,"overridable":true,"files":["view.json","thumbnail.png"],"attributes":{}}`)
	require.NoError(t, b.Scans.Run("projects"))
	require.NoError(t, b.Advance(time.Minute))
	for _, c := range []struct {
		kind simulator.Noise
		file string
	}{
		{simulator.NoiseTimestamp, viewDir + "/resource.json"},
		{simulator.NoiseKeyOrder, viewDir + "/view.json"},
		{simulator.NoiseThumbnail, viewDir + "/thumbnail.png"},
		{simulator.NoiseModuleTags, "config/resources/core/ignition/tag-definition/MQTT Engine/Edge Nodes/tags.json"},
	} {
		t.Run(string(c.kind), func(t *testing.T) {
			before, _ := os.ReadFile(filepath.Join(b.dir, c.file))
			require.NoError(t, b.Noise.Make(c.kind))
			assert.NotEqual(t, string(before), b.read(c.file))
			signed := b.read(viewDir + "/resource.json")
			require.NoError(t, b.Scans.Run("projects"))
			assert.Equal(t, signed, b.read(viewDir+"/resource.json"), "the scan must not sign anything")
		})
	}
	require.NoError(t, b.Noise.Make(simulator.NoiseValueStore))
	assert.NoFileExists(t, filepath.Join(b.dir, "config/ignition/tags/valueStore.idb-wal"))
	assert.JSONEq(t, `{"a":1,"b":2}`, b.read(viewDir+"/view.json"))
	require.NoError(t, b.Canaries.Check())
	assert.Empty(t, b.Data.LoadErrors())
	require.Error(t, b.Noise.Make("music"))
}

func TestNoiseTimer(t *testing.T) {
	b := withProject(t, simulator.Options{NoiseEvery: time.Millisecond})
	dir := filepath.Join(b.dir, "config/resources/core/ignition/tag-definition/MQTT Engine")
	require.Eventually(t, func() bool { _, err := os.Stat(dir); return err == nil }, bound, time.Millisecond)
}

func TestPairReplication(t *testing.T) {
	master := withProject(t, simulator.Options{Role: "Master"})
	backup := start(t, simulator.Options{Role: "Backup"})
	pair, err := simulator.NewPair(master.Gateway, backup.Gateway)
	require.NoError(t, err)
	assert.NotNil(t, backup.Data.Loaded(viewDir))
	_, body := backup.ask("GET", "/data/api/v1/redundancy", "")
	assert.Contains(t, body, `"hasConfigAccess":false`)

	const night = "/ignition/schedule/night"
	master.resource("config/resources/core"+night, "config.json", `{}`)
	master.resource("config/resources/external"+night, "config.json", `{}`)
	master.put("projects/P/README.md", "beside")
	master.put(viewDir+"/view.json", `{"v":2}`)
	pair.Pause(true)
	master.scanned("config")
	assert.Nil(t, backup.Data.Loaded("config/resources/core"+night))
	pair.Pause(false)
	master.scanned("projects")
	require.Eventually(t, func() bool {
		return backup.Data.Loaded("config/resources/core"+night) != nil && cmp.Equal(master.Data.Loaded(viewDir), backup.Data.Loaded(viewDir))
	}, bound, time.Millisecond)
	assert.NoFileExists(t, filepath.Join(backup.dir, "config/resources/external"+night, "config.json"))
	assert.NoFileExists(t, filepath.Join(backup.dir, "projects/P/README.md"), "files outside resources must not be copied")
	require.NoError(t, backup.Canaries.Check())

	// After a failover, replication goes the other way, including deletions.
	pair.Failover(true)
	require.NoError(t, os.RemoveAll(filepath.Join(backup.dir, viewDir)))
	require.NoError(t, backup.Scans.Run("projects"))
	assert.Nil(t, master.Data.Loaded(viewDir))
	_, body = master.ask("GET", "/data/api/v1/redundancy", "")
	assert.Contains(t, body, `"hasConfigAccess":false`)

	_, err = simulator.NewPair(backup.Gateway, master.Gateway)
	require.Error(t, err)
}

func TestCertificateRenewal(t *testing.T) {
	b := start(t, simulator.Options{TLS: &simulator.TLSOptions{}})
	get := func(ca []byte) error {
		pool := x509.NewCertPool()
		require.True(t, pool.AppendCertsFromPEM(ca))
		tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, ServerName: "gateway.example"}}
		defer tr.CloseIdleConnections()
		resp, err := (&http.Client{Transport: tr}).Get(b.TLSURL() + "/StatusPing")
		if err == nil {
			err = resp.Body.Close()
		}
		return err
	}
	old := b.CA()
	require.NoError(t, get(old))
	require.NoError(t, b.RotateTLS(nil, time.Time{}))
	require.Error(t, get(old))
	require.NoError(t, get(b.CA()))
	require.Error(t, start(t, simulator.Options{}).RotateTLS(nil, time.Time{}))
}

func TestGateway81WithScanModule(t *testing.T) {
	b := withProject(t, simulator.Options{Version: "8.1.44", ScanModule: true})
	assert.Empty(t, b.Token(), "8.1 has no API tokens")
	status, _ := b.ask("GET", "/data/api/v1/gateway-info", "")
	assert.Equal(t, 404, status)
	status, body := b.ask("GET", "/data/project-scan-endpoint/confirm-support", "")
	assert.Equal(t, 200, status)
	assert.JSONEq(t, `{"supported":true}`, body)
	b.put(viewDir+"/view.json", `{"v":2}`)
	before := b.Data.Loaded(viewDir)
	status, body = b.ask("POST", "/data/project-scan-endpoint/scan?updateDesigners=true&forceUpdate=true", "")
	assert.Equal(t, 200, status)
	assert.JSONEq(t, `{"gatewayProjectScanSuccess":true,"sentDesignerUpdateNotification":true}`, body)
	assert.NotEqual(t, before, b.Data.Loaded(viewDir))
	assert.Contains(t, b.read(viewDir+"/resource.json"), `"external"`)
}

func TestCommissioningRewritesPermissionsOnce(t *testing.T) {
	for _, inMode := range []bool{false, true} {
		t.Run(fmt.Sprintf("in mode %t", inMode), func(t *testing.T) {
			b := start(t, simulator.Options{ResetPermissions: true, Commissioning: true, Mode: "dev", Unknowns: simulator.Unknowns{ResetInMode: inMode}})
			require.Equal(t, "COMMISSIONING", b.state())
			require.NoError(t, b.SetState(simulator.Running))
			status, _ := b.ask("GET", "/data/api/v1/gateway-info", "")
			assert.Equal(t, 403, status)
			mode := filepath.Join(b.dir, "config/resources/dev/ignition/security-properties/config.json")
			_, err := os.Stat(mode)
			assert.Equal(t, inMode, err == nil)
			require.NoError(t, b.Administrator.Grant("Authenticated/ApiKeys/Stoker"))
			if inMode {
				require.NoError(t, os.RemoveAll(filepath.Dir(mode)))
			}
			require.NoError(t, b.Restart(0))
			status, _ = b.ask("GET", "/data/api/v1/gateway-info", "")
			assert.Equal(t, 200, status, "the permissions must be rewritten only once")
		})
	}
}

func TestRestartClearsPendingTasks(t *testing.T) {
	b := start(t, simulator.Options{})
	b.Restarts.SetPending("module X")
	_, body := b.ask("GET", "/data/api/v1/restart-tasks/pending", "")
	assert.JSONEq(t, `{"pending":["module X"]}`, body)
	require.NoError(t, b.Restart(0))
	_, body = b.ask("GET", "/data/api/v1/restart-tasks/pending", "")
	assert.JSONEq(t, `{"pending":[]}`, body)
}

func TestExpiredTrial(t *testing.T) {
	for _, stops := range []bool{false, true} {
		t.Run(fmt.Sprintf("stops %t", stops), func(t *testing.T) {
			b := start(t, simulator.Options{Unknowns: simulator.Unknowns{TrialStopsScans: stops}})
			b.Trial.SetExpired(true)
			status, _ := b.ask("POST", scanPath, "")
			assert.Equal(t, map[bool]int{false: 200, true: 403}[stops], status)
		})
	}
}
