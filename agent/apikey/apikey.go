// Package apikey makes the API key with which an agent asks its own gateway (spec.gateway.api.managed), so that no user creates one in
// the gateway's web interface, and no Secret holds it.
//
// The key is 32 random bytes in a file that only the agent reads. In a pod the file is on a volume in memory, so that each pod makes another
// key, and a stolen one is useless after that. The gateway gets the SHA-256 of the key as the resource ignition/api-token/stoker-agent of its
// collection local, to which the agent never writes files of git. The key's security level, Authenticated/Stoker, is added to the levels and the
// permissions of the gateway. Nothing is removed from either.
//
// A gateway reads these files when it starts, or scans its configuration. So the agent writes them before the gateway starts. A gateway with an
// empty volume makes its permissions only at its first start, and accepts the key after one more start.
package apikey

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"stoker.io/stoker/agent/disk"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/file"
	"stoker.io/stoker/internal/secret"
)

// Name is the name of the key, and Folder the folder of its resource in the data directory.
const (
	Name   = "stoker-agent"
	Folder = "config/resources/local/ignition/api-token/" + Name
)

// Names of files in the folder of a Key.
const (
	keyFile   = "api-key"
	stateFile = "api-key.json"
)

// Bounds in bytes: of the agent's own files, and of a file of the gateway.
const (
	maxOwn      = 4 << 10
	maxResource = 4 << 20
)

// restartWait is how long the agent waits for the restart that it asked for, until the status asks a user for it. The injector evicts a pod that is
// young enough, one of a fleet at a time.
const restartWait = 20 * time.Minute

// Key is the API key of one gateway. Its methods may be called from several goroutines.
type Key struct {
	dir string
	now func() time.Time
	// OnDue is called when Install should run at once. It must not block.
	OnDue func()
	// Restart is called once when the gateway must be restarted to accept the key. It must not block. If it is nil, only a user can restart
	// the gateway.
	Restart func()

	mu      sync.Mutex
	current secret.String
	state   state
	due     bool     // Install must run
	checked bool     // the last Install ran when the gateway may have started
	missing []string // what the last Install could not do
	called  bool     // Restart was called
	refused bool     // RecordRestart reported that no restart follows
	logged  string   // the error that Update logged last; "" after success
}

// state survives a restart of the agent.
type state struct {
	// Since is when Install changed the gateway's files while the gateway may have been running; zero if Install ran before a later start.
	Since time.Time `json:"since,omitzero"`
	// Asked is when the agent asked for a restart of the gateway; zero if it did not.
	Asked time.Time `json:"asked,omitzero"`
	// Forgotten means that Forget has removed the key since the last Install.
	Forgotten bool `json:"forgotten,omitzero"`
}

// New returns the key in a folder, which must exist.
func New(dir string, now func() time.Time) *Key {
	k := &Key{dir: dir, now: now, OnDue: func() {}, due: true}
	if raw, err := file.Read(filepath.Join(dir, stateFile), maxOwn); err == nil {
		_ = json.Unmarshal(raw, &k.state) // a damaged file counts as missing
	}
	return k
}

// Read returns the key as the gateway's REST interface takes it, <name>:<key>. If the folder has no valid key, Read makes one. The reason of an
// error is GatewayForbidden.
func (k *Key) Read() (secret.String, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.read()
}

func (k *Key) read() (secret.String, error) {
	if !k.current.Empty() {
		return k.current, nil
	}
	name := filepath.Join(k.dir, keyFile)
	raw, err := file.Read(name, maxOwn)
	if key := strings.TrimSpace(string(raw)); err == nil && valid(key) {
		k.current = secret.New(Name + ":" + key)
		return k.current, nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return secret.String{}, failure.New(v1alpha1.ReasonGatewayForbidden, "the agent's API key cannot be read: %w", err)
	}
	var random [32]byte
	_, _ = rand.Read(random[:]) // never fails
	key := base64.RawURLEncoding.EncodeToString(random[:])
	if err := writePrivate(name, []byte(key)); err != nil {
		return secret.String{}, failure.New(v1alpha1.ReasonGatewayForbidden, "the agent's API key cannot be saved: %w", err)
	}
	k.current = secret.New(Name + ":" + key)
	return k.current, nil
}

// valid reports whether a text has the form of the keys that Read makes.
func valid(key string) bool {
	raw, err := base64.RawURLEncoding.DecodeString(key)
	return err == nil && len(raw) == 32
}

// hash returns the SHA-256 of the key's bytes, as the gateway's resource has it.
func hash(key secret.String) string {
	_, value, _ := strings.Cut(key.Reveal(), ":")
	raw, _ := base64.RawURLEncoding.DecodeString(value) // read has checked it
	sum := sha256.Sum256(raw)
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

// writePrivate replaces a file that only this user may read.
func writePrivate(name string, b []byte) error {
	tmp := name + ".new"
	if err := os.WriteFile(tmp, b, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, name)
}

// Due reports whether Install must run: at first, after an error before the gateway started, after Forget, and when the gateway has
// rejected the key.
func (k *Key) Due() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.due
}

// Install writes the hash of the key and its permissions into the gateway's data directory, and returns whether a file changed. started
// reports that the gateway may have read the files already, so that it accepts the key only after its next start. What does not exist yet, or
// belongs to git, is not an error: Rejected names it.
func (k *Key) Install(d *disk.Dir, started bool) (changed bool, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	key, err := k.read()
	if err != nil {
		return false, err
	}
	k.state.Forgotten = false
	before := k.state
	if started { // saved first, so that a crash in between does not forget it
		k.state.Since = k.now()
		if err := k.save(); err != nil {
			return false, err
		}
	}
	changed, missing, err := install(d, hash(key), k.now())
	k.missing, k.checked, k.due = missing, started, err != nil && !started
	if err != nil {
		k.missing = append(k.missing, err.Error())
	}
	switch {
	case !started:
		k.state = state{}
	case !changed:
		k.state = before
	}
	return changed, errors.Join(err, k.save())
}

// Exists reports whether the agent has made a key.
func (k *Key) Exists() bool {
	_, err := os.Lstat(filepath.Join(k.dir, keyFile))
	return err == nil
}

// Forget removes the key from a gateway whose spec asks for none any more, and then the agent's copy: while Exists reports true, something may be
// left on the gateway.
func (k *Key) Forget(d *disk.Dir) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := Remove(d); err != nil {
		return err
	}
	k.current, k.state, k.due = secret.String{}, state{Forgotten: true}, true
	if err := k.save(); err != nil {
		return err
	}
	if err := os.Remove(filepath.Join(k.dir, keyFile)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Forgotten reports whether Forget was called after the last Install, also by an earlier agent.
func (k *Key) Forgotten() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.state.Forgotten
}

// RecordRestart records, after a call of Restart, whether the gateway will be restarted.
func (k *Key) RecordRestart(follows bool) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !follows {
		k.refused = true
		return nil
	}
	k.state.Asked = k.now()
	return k.save()
}

func (k *Key) save() error {
	raw, err := json.Marshal(k.state)
	if err == nil {
		err = writePrivate(filepath.Join(k.dir, stateFile), raw)
	}
	if err != nil {
		return fmt.Errorf("save the state of the agent's API key: %w", err)
	}
	return nil
}

// Rejected returns why the gateway rejects the key: WaitingForGateway if waiting helps, otherwise GatewayForbidden with what to do. It makes
// Install due, and calls OnDue or Restart if that helps.
func (k *Key) Rejected() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	s := k.state
	k.due = true // the next sync finds out what is missing by then
	restarting := !s.Asked.IsZero() && k.now().Sub(s.Asked) < restartWait || s.Asked.IsZero() && k.Restart != nil && !k.refused
	switch {
	case !k.checked && s.Since.IsZero():
		k.OnDue()
		return failure.New(v1alpha1.ReasonWaitingForGateway, "the gateway does not know the agent's API key yet; the agent writes it to the gateway's configuration")
	case len(k.missing) > 0:
		return failure.New(v1alpha1.ReasonGatewayForbidden, "the gateway rejects the agent's API key (spec.gateway.api.managed): %s", strings.Join(k.missing, "; "))
	case !s.Since.IsZero() && restarting:
		if s.Asked.IsZero() && !k.called {
			k.called = true
			k.Restart()
		}
		return failure.New(v1alpha1.ReasonWaitingForGateway, "the gateway accepts the agent's API key after its next start: the injector restarts a young pod, otherwise restart it")
	case !s.Since.IsZero():
		return failure.New(v1alpha1.ReasonGatewayForbidden, "the gateway accepts the agent's API key (spec.gateway.api.managed) after its next start: restart the gateway")
	}
	return failure.New(v1alpha1.ReasonGatewayForbidden,
		"the gateway rejects the agent's API key (spec.gateway.api.managed), although it was written before the gateway answered: restart the gateway; if that does not help, create a key in the gateway and name its Secret in spec.gateway.api.secretName")
}

// Update installs the key if that is due. mayRun reports whether the gateway may have read its files already. If the data directory cannot be
// opened, Update does nothing: the sync reports why.
func (k *Key) Update(open func() (*disk.Dir, error), mayRun func() bool, log *slog.Logger) {
	if !k.Due() {
		return
	}
	d, err := open()
	if err != nil {
		return
	}
	runs := mayRun()
	changed, err := k.Install(d, runs)
	message := ""
	if err != nil {
		message = err.Error()
	}
	k.mu.Lock()
	repeated := message == k.logged
	k.logged = message
	k.mu.Unlock()
	switch {
	case err != nil:
		if !repeated {
			log.Warn("API key not installed", "error", err)
		}
	case changed:
		log.Info("API key installed", "resource", Folder, "gatewayRuns", runs)
	}
}
