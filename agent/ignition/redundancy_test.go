package ignition_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/ignition"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/test/gateway/simulator"
)

func TestRoleFromRedundancyXML(t *testing.T) {
	const head = `<?xml version="1.0" encoding="UTF-8" standalone="no"?>
<!DOCTYPE properties SYSTEM "http://java.sun.com/dtd/properties.dtd">
<properties>
<comment>Redundancy Settings</comment>
`
	for name, c := range map[string]struct{ content, want string }{
		"backup":              {head + `<entry key="redundancy.noderole">Backup</entry></properties>`, ignition.RoleBackup},
		"master, with spaces": {head + "<entry key=\"redundancy.gan.host\">10.0.0.1</entry>\n<entry key=\"redundancy.noderole\"> MASTER\n</entry></properties>", ignition.RoleMaster},
		"independent":         {head + `<entry key="redundancy.noderole">Independent</entry></properties>`, ignition.RoleIndependent},
		"no role":             {head + `</properties>`, ignition.RoleIndependent},
		"empty file":          {"", ignition.RoleIndependent},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ignition.NodeRole([]byte(c.content))
			require.NoError(t, err)
			assert.Equal(t, c.want, got)
		})
	}
	for name, content := range map[string]string{
		"too large": "<properties>" + strings.Repeat(" ", ignition.MaxRedundancyFile) + "</properties>",
		"truncated": `<properties><entry key="redundancy.noderole">Backup`, "unbalanced": `<properties><entry></properties>`,
		"entity":            `<!DOCTYPE p [<!ENTITY a "Backup">]><properties><entry key="redundancy.noderole">&a;</entry></properties>`,
		"invalid character": head + `<entry key="redundancy.noderole">Tertiary&#x1b;</entry></properties>`,
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ignition.NodeRole([]byte(content))
			assert.Error(t, err)
		})
	}
}

func TestRedundancyRoles(t *testing.T) {
	for role, paired := range map[string]bool{ignition.RoleIndependent: false, ignition.RoleMaster: true, ignition.RoleBackup: true} {
		t.Run(role, func(t *testing.T) {
			c := client(t, start(t, simulator.Options{Role: role}))
			red, err := c.Redundancy(t.Context())
			require.NoError(t, err)
			assert.Equal(t, role, red.Role)
			assert.Equal(t, paired, red.Paired())
			assert.Equal(t, role != ignition.RoleBackup, red.HasConfigAccess)
			p, err := c.Platform(t.Context())
			require.NoError(t, err)
			assert.Equal(t, ignition.Platform{Version: ignition.Version{Major: 8, Minor: 3, Patch: 8}, Role: role}, p)
		})
	}
}

func TestScanModule(t *testing.T) {
	for _, version := range []string{"8.1.44", "8.3.8"} {
		t.Run(version, func(t *testing.T) {
			_, err := client(t, start(t, simulator.Options{Version: version})).ScanByModule(t.Context(), true)
			require.ErrorIs(t, err, ignition.ErrNoScanModule)

			g := start(t, simulator.Options{Version: version, ScanModule: true})
			_, err = g.Designers.Open("ann", "P")
			require.NoError(t, err)
			c := client(t, g)
			done, err := c.ScanByModule(t.Context(), true)
			require.NoError(t, err)
			assert.True(t, done.DesignersNotified)
			assert.Equal(t, 1, g.Designers.Notifications())

			require.NoError(t, g.Faults.Add(simulator.Fault{Route: "POST /data/project-scan-endpoint/scan", Status: 200, Body: `{"gatewayProjectScanSuccess":false}`}))
			_, err = c.ScanByModule(t.Context(), true)
			requireReason(t, v1alpha1.ReasonScanFailed, err)
			require.NoError(t, g.Faults.Add(simulator.Fault{Route: "GET /data/project-scan-endpoint/confirm-support", Status: 200, Body: `{"supported":false}`}))
			_, err = c.ScanByModule(t.Context(), true)
			require.ErrorIs(t, err, ignition.ErrNoScanModule)
		})
	}
}

const view = "com.inductiveautomation.perspective/views/Main"

// designer opens a Designer session on a new project P.
func designer(t *testing.T, g *simulator.Gateway, dir string) string {
	t.Helper()
	put(t, dir, "projects/P/project.json", projectJSON)
	require.NoError(t, g.Scans.Run("projects"))
	id, err := g.Designers.Open("ann", "P")
	require.NoError(t, err)
	return id
}

func TestLockDelaysDesignerSave(t *testing.T) {
	dir := t.TempDir()
	g := start(t, simulator.Options{Data: dir})
	id := designer(t, g, dir)
	c := client(t, g)
	require.NoError(t, c.Lock(t.Context(), ignition.Projects, time.Minute))
	holder, held, err := c.LockHolder(t.Context(), ignition.Projects)
	require.NoError(t, err)
	assert.True(t, held)
	assert.Equal(t, "stoker", holder)

	save := func(ctx context.Context) error {
		return g.Designers.SaveResource(ctx, id, view, map[string][]byte{"view.json": []byte("{}")}, false)
	}
	short, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, save(short), context.DeadlineExceeded)
	done := make(chan error, 1)
	go func() { done <- save(t.Context()) }()
	_, err = c.Scan(t.Context(), ignition.Projects)
	require.NoError(t, err)
	require.NoError(t, <-done)
	_, held, err = c.LockHolder(t.Context(), ignition.Projects)
	require.NoError(t, err)
	assert.False(t, held)
}

func TestLockLapsesByItself(t *testing.T) {
	g := start(t, simulator.Options{})
	c := client(t, g)
	requested := time.Now()
	require.NoError(t, c.Lock(t.Context(), ignition.ConfigScan, time.Millisecond)) // the minimum is one second
	require.Eventually(t, func() bool {
		_, held, err := c.LockHolder(t.Context(), ignition.ConfigScan)
		return err == nil && !held
	}, bound, 10*time.Millisecond)
	assert.GreaterOrEqual(t, time.Since(requested), time.Second, "the gateway holds the lock for at least the requested time")
}

func TestLockHeld(t *testing.T) {
	for name, c := range map[string]struct {
		unknown simulator.Unknowns
		want    error
	}{
		"refused": {simulator.Unknowns{}, ignition.ErrLockHeld},
		"timeout": {simulator.Unknowns{LockWaits: true}, ignition.ErrLockTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			g := start(t, simulator.Options{Unknowns: c.unknown})
			require.NoError(t, g.Locks.Hold("projects", "backup-job", time.Hour))
			impatient := client(t, g, func(cfg *ignition.Config) { cfg.LockWait = time.Millisecond })
			err := impatient.Lock(t.Context(), ignition.Projects, time.Minute)
			require.ErrorIs(t, err, c.want)
			assert.ErrorContains(t, err, "backup-job")
			assert.NoError(t, impatient.Lock(t.Context(), ignition.ConfigScan, time.Minute), "the lock of the other kind is free")
		})
	}
}

func TestLockRefused(t *testing.T) {
	g := start(t, simulator.Options{Commissioning: true})
	err := client(t, g).Lock(t.Context(), ignition.Projects, time.Minute)
	requireReason(t, v1alpha1.ReasonWaitingForCommissioning, err)
	assert.NotErrorIs(t, err, ignition.ErrLockHeld)
}

func TestPing(t *testing.T) {
	for state, want := range map[simulator.State]string{
		simulator.Running: "RUNNING", simulator.Commissioning: "RUNNING/COMMISSIONING", simulator.Starting: "STARTING", simulator.Faulted: "FAULTED",
	} {
		t.Run(string(state), func(t *testing.T) {
			g := start(t, simulator.Options{ClockSkew: -48 * time.Hour})
			require.NoError(t, g.SetState(state))
			ping, err := client(t, g).Ping(t.Context())
			require.NoError(t, err)
			assert.Equal(t, state == simulator.Running, ping.Running())
			assert.Equal(t, state == simulator.Commissioning, ping.Commissioning())
			assert.Equal(t, want, ping.String())
			assert.WithinDuration(t, time.Now().Add(-48*time.Hour), ping.Date, time.Minute)
			for _, r := range g.Requests.List() {
				assert.Empty(t, r.Token, "the status page gets no token")
			}
		})
	}
}

func TestPingFails(t *testing.T) {
	t.Run("gateway down", func(t *testing.T) {
		g := start(t, simulator.Options{})
		require.NoError(t, g.SetState(simulator.Down))
		_, err := client(t, g).Ping(t.Context())
		requireReason(t, v1alpha1.ReasonGatewayUnreachable, err)
		assert.ErrorContains(t, err, "cannot be reached")
	})
	t.Run("redirect to commissioning", func(t *testing.T) {
		g := start(t, simulator.Options{})
		require.NoError(t, g.Faults.Add(simulator.Fault{Route: "GET /StatusPing", Status: 302, Location: "/welcome"}))
		_, err := client(t, g).Ping(t.Context())
		requireReason(t, v1alpha1.ReasonWaitingForCommissioning, err)
		assert.Zero(t, g.Requests.Count("GET /welcome"))
	})
	t.Run("canceled context", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := client(t, start(t, simulator.Options{})).Ping(ctx)
		assert.ErrorIs(t, err, context.Canceled)
	})
}
