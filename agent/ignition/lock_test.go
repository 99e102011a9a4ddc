package ignition_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/ignition"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/test/gateway/simulator"
)

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
