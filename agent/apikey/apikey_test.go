package apikey_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/apikey"
	"stoker.io/stoker/agent/disk"
	"stoker.io/stoker/agent/disk/safe"
	"stoker.io/stoker/agent/ignition"
	"stoker.io/stoker/agent/ignition/resource"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/test/gateway/simulator"
)

// site is a simulated gateway, and the key that its agent makes.
type site struct {
	t         *testing.T
	gw        *simulator.Gateway
	dir       *disk.Dir
	key       *apikey.Key
	own, data string // the folders of the key and of the gateway
	now       time.Time
}

func newSite(t *testing.T, o simulator.Options) *site {
	t.Helper()
	o.Data = t.TempDir()
	s := &site{t: t, own: t.TempDir(), data: o.Data, now: time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)}
	var err error
	s.gw, err = simulator.Start(o)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, s.gw.Close()) })
	s.dir, err = disk.Open(o.Data, disk.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, s.dir.Close()) })
	s.restartAgent()
	return s
}

func (s *site) restartAgent() { s.key = apikey.New(s.own, func() time.Time { return s.now }) }

// file returns where a path of the data directory is.
func (s *site) file(path string) string { return filepath.Join(s.data, path) }

// scan asks the gateway for something that needs the permission Write.
func (s *site) scan() error {
	s.t.Helper()
	c, err := ignition.New(ignition.Config{URL: s.gw.URL(), Key: s.key.Read, Rejected: s.key.Rejected, Log: slog.New(slog.DiscardHandler)})
	require.NoError(s.t, err)
	defer c.Close()
	_, err = c.Scan(s.t.Context(), ignition.Projects)
	return err
}

// install installs the key and reports whether a file changed.
func (s *site) install(started bool) bool {
	s.t.Helper()
	changed, err := s.key.Install(s.dir, started)
	require.NoError(s.t, err)
	return changed
}

// A key that is installed before a start works after that start, whichever undocumented behavior the gateway has.
func TestKeyWorksAfterStart(t *testing.T) {
	for name, o := range map[string]simulator.Options{
		"seeded":                     {},
		"levels must be declared":    {DeclaredLevels: true},
		"insecure tokens get 401":    {Unknowns: simulator.Unknowns{InsecureIs401: true}},
		"a deployment mode":          {Mode: "prod"},
		"config scans sign":          {Unknowns: simulator.Unknowns{SignConfig: true}},
		"resources load by metadata": {Unknowns: simulator.Unknowns{SkipUnchanged: true}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, o)
			require.NoError(t, s.gw.SetState(simulator.Down))
			assert.True(t, s.install(false))
			assert.False(t, s.install(false), "nothing to do")
			require.NoError(t, s.gw.SetState(simulator.Running))
			require.NoError(t, s.scan())
			s.restartAgent()
			require.NoError(t, s.scan(), "a restart of the agent keeps the key")
			assert.NoError(t, s.gw.Canaries.Check())
			assert.Empty(t, s.gw.Data.LoadErrors())
		})
	}
}

// The gateway drops grants at its first start: the key needs one more.
func TestFirstStart(t *testing.T) {
	for name, o := range map[string]simulator.Options{
		"drops those in core":                  {ResetPermissions: true},
		"drops those in the mode":              {ResetPermissions: true, Mode: "prod", Unknowns: simulator.Unknowns{ResetInMode: true}},
		"drops them at every start":            {ResetAlways: true},
		"ignores keys in the collection local": {ResetPermissions: true, NoLocalTokens: true},
	} {
		t.Run(name, func(t *testing.T) {
			o.Seeding = simulator.SeedChart
			s := newSite(t, o)
			due := 0
			s.key.OnDue = func() { due++ }
			err := s.scan()
			assert.True(t, failure.Is(err, v1alpha1.ReasonWaitingForGateway), "%v", err)
			assert.Equal(t, 1, due)

			var restarts int
			s.key.Restart = func() { restarts++ }
			assert.True(t, s.key.Due())
			assert.True(t, s.install(true))
			for range 3 { // sequence: the agent asks again and again
				err = s.scan()
				assert.True(t, failure.Is(err, v1alpha1.ReasonWaitingForGateway), "%v", err)
			}
			assert.Equal(t, 1, restarts, "one restart is asked for")
			require.NoError(t, s.key.RecordRestart(true))
			s.restartAgent()
			assert.True(t, failure.Is(s.scan(), v1alpha1.ReasonWaitingForGateway), "the agent remembers that it has asked")

			// The next pod has a new key, and installs it before the start.
			s.own = t.TempDir()
			s.restartAgent()
			require.NoError(t, s.gw.SetState(simulator.Down))
			assert.True(t, s.install(false))
			require.NoError(t, s.gw.SetState(simulator.Running))
			err = s.scan()
			if !o.ResetAlways && !o.NoLocalTokens {
				require.NoError(t, err)
				return
			}
			// These gateways never accept the key. Once no restart follows, the agent asks a user for help instead of waiting.
			assert.True(t, failure.Is(err, v1alpha1.ReasonWaitingForGateway), "%v", err)
			s.install(true)
			s.key.Restart = func() {}
			require.NoError(t, s.key.RecordRestart(false)) // as for a volume whose earlier pod has asked already
			s.key.OnDue = func() { t.Error("Install and OnDue must not call each other in a loop") }
			for range 3 { // sequence: the agent asks again and again
				err = s.scan()
				assert.True(t, failure.Is(err, v1alpha1.ReasonGatewayForbidden), "%v", err)
				s.install(true)
			}
		})
	}
}

// A gateway may have no security-levels on the disk. Then the agent relies on the permissions, and still asks for a restart.
func TestNoSecurityLevels(t *testing.T) {
	s := newSite(t, simulator.Options{})
	require.NoError(t, os.RemoveAll(s.file(levels)))
	var restarts int
	s.key.Restart = func() { restarts++ }
	s.install(true)
	assert.True(t, failure.Is(s.scan(), v1alpha1.ReasonWaitingForGateway))
	assert.Equal(t, 1, restarts)
	require.NoError(t, s.gw.Restart(0))
	require.NoError(t, s.scan())
}

// An installation that failed is repeated before the gateway starts. The log has each error once.
func TestUpdateAfterAnError(t *testing.T) {
	s := newSite(t, simulator.Options{})
	require.NoError(t, s.gw.SetState(simulator.Down))
	require.NoError(t, s.dir.Close())
	full := true
	var err error
	s.dir, err = disk.Open(s.data, disk.Options{Around: func(e safe.Effect, do func() error) error {
		if full && e.Op == "create" {
			return syscall.ENOSPC
		}
		return do()
	}})
	require.NoError(t, err)
	var log bytes.Buffer
	update := func() {
		s.key.Update(func() (*disk.Dir, error) { return s.dir, nil }, func() bool { return false }, slog.New(slog.NewTextHandler(&log, nil)))
	}
	for range 3 { // sequence: iterations of the agent
		update()
	}
	assert.Equal(t, 1, strings.Count(log.String(), "API key not installed"), &log)
	full = false
	update()
	assert.False(t, s.key.Due())
	require.NoError(t, s.gw.SetState(simulator.Running))
	require.NoError(t, s.scan())
}

// A gateway that has read its files already, but whose port is still closed, starts without the key that the agent writes then.
func TestKeyIsWrittenDuringStart(t *testing.T) {
	s := newSite(t, simulator.Options{})
	require.True(t, s.install(false))
	assert.True(t, failure.Is(s.scan(), v1alpha1.ReasonWaitingForGateway))
	require.False(t, s.install(true))
	err := s.scan()
	assert.True(t, failure.Is(err, v1alpha1.ReasonGatewayForbidden))
	assert.ErrorContains(t, err, "restart the gateway")

	s.key.Restart = func() { assert.Fail(t, "another cause may be more likely, and a restart stops the gateway") }
	assert.True(t, failure.Is(s.scan(), v1alpha1.ReasonGatewayForbidden))
	require.NoError(t, s.gw.Restart(0))
	require.NoError(t, s.scan())
}

// An agent whose request for a restart is not fulfilled says so after a while.
func TestRestartThatDoesNotHappen(t *testing.T) {
	s := newSite(t, simulator.Options{})
	require.True(t, s.install(true))
	require.NoError(t, s.key.RecordRestart(true))
	assert.True(t, failure.Is(s.scan(), v1alpha1.ReasonWaitingForGateway))
	s.now = s.now.Add(2 * time.Hour)
	err := s.scan()
	assert.True(t, failure.Is(err, v1alpha1.ReasonGatewayForbidden))
	assert.ErrorContains(t, err, "restart the gateway")
}

const levels, properties = "config/resources/core/ignition/security-levels/", "config/resources/core/ignition/security-properties/"

// Install adds, and changes nothing else.
func TestGrantsAreAdded(t *testing.T) {
	admin := `{"children":[{"children":[{"children":[],"name":"Administrator"}],"name":"Roles"}],"name":"Authenticated"}`
	// permission returns a config with one permission, and with an escape that must stay as it is.
	permission := func(kind, levels string) string {
		return `{"writePermissions":{"type":"` + kind + `","securityLevels":[` + levels + `]},"other":"\u003c"}`
	}
	for name, c := range map[string]struct{ config, want, problem string }{ // want is "" if config stays as it is
		"below Authenticated": {permission("AnyOf", admin), `{"writePermissions":{"type":"AnyOf","securityLevels":[{"children":[{"children":[{"children":[],"name":"Administrator"}],"name":"Roles"},{"children":[],"name":"Stoker"}],"name":"Authenticated"}]},"other":"\u003c"}`, ""},
		"beside another":      {permission("AnyOf", `{"name":"Public","children":[]}`), `{"writePermissions":{"type":"AnyOf","securityLevels":[{"name":"Public","children":[]},{"children":[{"children":[],"name":"Stoker"}],"name":"Authenticated"}]},"other":"\u003c"}`, ""},
		"everybody":           {permission("AnyOf", ""), "", ""},
		"all authenticated":   {permission("AnyOf", `{"name":"Authenticated","children":[]}`), "", ""},
		"all of":              {permission("AllOf", admin), "", "AllOf"},
		"not JSON":            {"{", "", "does not have the form"},
		"another form":        {`{"writePermissions":{"securityLevels":"x"}}`, "", "does not have the form"},
		"no permissions":      {`{}`, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, simulator.Options{})
			require.NoError(t, os.Remove(s.file(properties+"config.json")))
			require.NoError(t, os.WriteFile(s.file(properties+"config.json"), []byte(c.config), 0o640))
			_, err := s.key.Install(s.dir, false)
			if c.problem != "" {
				require.ErrorContains(t, err, c.problem)
			} else {
				require.NoError(t, err)
			}
			got, err := os.ReadFile(s.file(properties + "config.json"))
			require.NoError(t, err)
			want := c.want
			if want == "" {
				want = c.config
			}
			assert.Equal(t, want, string(got))
			fi, err := os.Stat(s.file(properties + "config.json"))
			require.NoError(t, err)
			assert.EqualValues(t, 0o640, fi.Mode().Perm())
			lost, err := s.dir.LostAndFound()
			require.NoError(t, err)
			saved := map[string]bool{}
			for _, l := range lost {
				saved[l.Path] = true
			}
			assert.Equal(t, c.want != "", saved[properties+"config.json"], "what is replaced goes to lost+found")
		})
	}
}

// The gateway finds its resources as it would have signed them, also if the agent was killed before it had written all of their files.
func TestGrantsAreSigned(t *testing.T) {
	for _, dir := range []string{levels, properties} {
		// The agent is killed when it moves the file last into its place, by the operation move. If last is "", it is not killed.
		for last, move := range map[string]string{
			"": "", "resource.json": "exchange", "config.json": "exchange",
			"resource.json without exchange and links": "rename", "config.json without exchange and links": "rename",
		} {
			t.Run("killed at "+last+" of "+dir, func(t *testing.T) {
				s := newSite(t, simulator.Options{})
				file, _, _ := strings.Cut(last, " ")
				killed := false
				o := disk.Options{Around: func(e safe.Effect, do func() error) error {
					switch killed = killed || move != "" && e.Op == move && e.Dest == dir+file; {
					case killed:
						return io.ErrUnexpectedEOF
					case move == "rename" && (e.Op == "exchange" || e.Op == "link"):
						return safe.ErrNoExchange
					}
					return do()
				}}
				require.NoError(t, s.dir.Close())
				var err error
				s.dir, err = disk.Open(s.data, o)
				require.NoError(t, err)
				if last != "" {
					_, err = s.key.Install(s.dir, false)
					require.ErrorIs(t, err, io.ErrUnexpectedEOF)
					require.NoError(t, s.dir.Close())
					killed, move = false, ""
					s.dir, err = disk.Open(s.data, o)
					require.NoError(t, err)
				}
				s.install(false)
				raw, err := os.ReadFile(s.file(dir + "resource.json"))
				require.NoError(t, err)
				r, err := resource.ParseSigned(raw)
				require.NoError(t, err)
				config, err := os.ReadFile(s.file(dir + "config.json"))
				require.NoError(t, err)
				assert.Contains(t, string(config), "Stoker")
				want, err := r.Signature(resource.Form83, func(w io.Writer, _ string) error {
					_, err := w.Write(config)
					return err
				})
				require.NoError(t, err)
				assert.Equal(t, want, r.Stored())
			})
		}
	}
}

// F31: the key itself is nowhere but in its file, which only its user may read. A pod without a key removes what the last one installed.
func TestKeyIsPrivate(t *testing.T) {
	s := newSite(t, simulator.Options{})
	s.install(false)
	key, err := s.key.Read()
	require.NoError(t, err)
	_, value, _ := strings.Cut(key.Reveal(), ":")
	fi, err := os.Stat(filepath.Join(s.own, "api-key"))
	require.NoError(t, err)
	assert.EqualValues(t, 0o600, fi.Mode().Perm())
	require.NoError(t, filepath.WalkDir(s.data, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		assert.NotContains(t, string(b), value, path)
		return err
	}))
	var token struct{ Settings struct{ TokenHash string } }
	raw, err := os.ReadFile(s.file(apikey.Folder + "/config.json"))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(raw, &token))
	assert.Len(t, token.Settings.TokenHash, 43, "32 bytes in base64")

	require.NoError(t, apikey.Remove(s.dir))
	require.NoError(t, apikey.Remove(s.dir), "there is nothing left")
	_, err = os.Stat(s.file(apikey.Folder))
	assert.True(t, errors.Is(err, os.ErrNotExist))
}

// Standalone agents ask Exists whether there is a key to remove, so the agent's copy goes last.
func TestForgetAgainAfterAnError(t *testing.T) {
	s := newSite(t, simulator.Options{})
	require.True(t, s.install(false))
	resource := s.file(apikey.Folder + "/resource.json")
	require.NoError(t, os.Remove(resource))
	require.NoError(t, os.MkdirAll(resource+"/full", 0o700)) // cannot be removed as a file
	require.Error(t, s.key.Forget(s.dir))
	assert.True(t, s.key.Exists())

	require.NoError(t, os.RemoveAll(resource))
	require.NoError(t, s.key.Forget(s.dir))
	assert.NoDirExists(t, s.file(apikey.Folder))
	assert.False(t, s.key.Exists())
	require.NoError(t, s.key.Forget(s.dir), "there is nothing left")
}

// A power cut after Forget does not bring the key back: its removal is durable before the agent's copy goes.
func TestForgetIsDurable(t *testing.T) {
	s := newSite(t, simulator.Options{})
	require.True(t, s.install(false))
	require.NoError(t, s.dir.Close())
	unsynced := map[string]bool{}
	var err error
	s.dir, err = disk.Open(s.data, disk.Options{Around: func(e safe.Effect, do func() error) error {
		switch e.Op {
		case "remove":
			unsynced[filepath.Dir(e.Path)] = true
		case "syncdir":
			delete(unsynced, e.Path)
		}
		return do()
	}})
	require.NoError(t, err)
	require.NoError(t, s.key.Forget(s.dir))
	assert.NotContains(t, unsynced, apikey.Folder)
	assert.NoDirExists(t, s.file(apikey.Folder))
}

// F31: the agent does not follow links that a program of the gateway made.
func TestHostileLinks(t *testing.T) {
	for _, at := range []string{"config/resources/local/ignition", apikey.Folder, properties[:len(properties)-1], properties + "config.json", apikey.Folder + "/config.json"} {
		t.Run(at, func(t *testing.T) {
			s := newSite(t, simulator.Options{})
			outside := t.TempDir()
			require.NoError(t, os.WriteFile(filepath.Join(outside, "config.json"), []byte("{}"), 0o600))
			require.NoError(t, os.RemoveAll(s.file(at)))
			require.NoError(t, os.MkdirAll(filepath.Dir(s.file(at)), 0o755))
			target := outside
			if strings.HasSuffix(at, ".json") {
				target = filepath.Join(outside, "config.json")
			}
			require.NoError(t, os.Symlink(target, s.file(at)))
			_, err := s.key.Install(s.dir, false)
			assert.Error(t, err)
			b, err := os.ReadFile(filepath.Join(outside, "config.json"))
			require.NoError(t, err)
			assert.Equal(t, "{}", string(b))
			list, err := os.ReadDir(outside)
			require.NoError(t, err)
			assert.Len(t, list, 1)
		})
	}
}

// A damaged key is replaced, and one that cannot be saved is an error with a reason.
func TestDamagedKey(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "api-key"), []byte("short\n"), 0o600))
	key, err := apikey.New(dir, time.Now).Read()
	require.NoError(t, err)
	assert.Len(t, key.Reveal(), len("stoker-agent:")+43, "a new key of 32 bytes in base64")
	again, err := apikey.New(dir, time.Now).Read()
	require.NoError(t, err)
	assert.Equal(t, key.Reveal(), again.Reveal())

	_, err = apikey.New(filepath.Join(dir, "missing"), time.Now).Read()
	assert.True(t, failure.Is(err, v1alpha1.ReasonGatewayForbidden))
}

// An agent that starts before it has read the spec knows that the last one removed the key.
func TestForgottenKey(t *testing.T) {
	s := newSite(t, simulator.Options{})
	require.True(t, s.install(true))
	assert.False(t, s.key.Forgotten())
	require.NoError(t, s.key.Forget(s.dir))
	s.restartAgent()
	assert.True(t, s.key.Forgotten())
	for _, started := range []bool{true, false} {
		s.install(started)
		s.restartAgent()
		assert.False(t, s.key.Forgotten(), started)
		require.NoError(t, s.key.Forget(s.dir))
	}
}
