package follow

import (
	"context"
	"errors"

	"stoker.io/stoker/agent/apikey"
)

// ErrRestartGateway is the cause for which Run ends if the gateway has to start once more to accept the agent's API key. The agent then exits
// with gatewaypod.ExitRestartGateway, which the injector sees in the pod's status.
var ErrRestartGateway = errors.New("the gateway has to start once more to accept the agent's API key")

// keyNote is the note on the volume that says that the agent has asked for the restart of its gateway. It asks once for each volume.
const keyNote = "api-key"

// watchKey lets the key wake the loop.
func (f *Follower) watchKey() {
	if f.Key == nil {
		return
	}
	f.Key.OnDue = f.wake
	f.Key.Restart = func() {
		f.restart.Store(true)
		f.wake()
	}
}

// updateKey installs the agent's API key if that is due: before the gateway starts, or when the gateway has rejected the key. If the pod has no
// place for a key, or the spec asks for none, updateKey removes it from the gateway, so that a stolen copy is worth nothing.
func (f *Follower) updateKey() {
	unwanted := f.Key == nil || f.spec.gs == nil && f.Key.Forgotten() || f.spec.gs != nil && !f.spec.gs.Spec.Gateway.ManagedKey()
	if !unwanted {
		f.keyRemoved = false
		f.Key.Update(f.Engine.Open, f.startup.allowed, f.Log)
		return
	}
	if f.keyRemoved {
		return
	}
	d, err := f.Engine.Open()
	if err != nil {
		return // the next iteration tries again
	}
	if f.Key != nil {
		err = f.Key.Forget(d)
	} else {
		err = apikey.Remove(d)
	}
	if f.keyRemoved = err == nil; err != nil {
		f.Log.Warn("API key not removed", "error", err)
	}
}

// restartGateway ends Run with ErrRestartGateway if the key needs another start of the gateway, once for each volume.
func (f *Follower) restartGateway(end context.CancelCauseFunc) {
	if !f.restart.Swap(false) {
		return
	}
	d, err := f.Engine.Open()
	var asked []byte
	if err == nil {
		asked, err = d.Note(keyNote)
	}
	if err == nil && asked == nil {
		err = d.SetNote(keyNote, []byte(f.start()))
	}
	if err != nil {
		f.restart.Store(true) // the next iteration tries again
		f.Log.Warn("restart of the gateway not requested", "error", err)
		return
	}
	first := asked == nil
	if err := f.Key.RecordRestart(first); err != nil {
		f.Log.Warn("restart of the gateway not recorded", "error", err)
	}
	if first {
		f.Log.Info("the gateway has to start once more")
		end(ErrRestartGateway)
	}
}
