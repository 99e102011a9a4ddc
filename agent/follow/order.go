package follow

import (
	"context"
	"errors"
	"maps"
	"reflect"

	"stoker.io/stoker/agent/apikey"
	"stoker.io/stoker/agent/audit"
	"stoker.io/stoker/agent/decide"
	"stoker.io/stoker/agent/loop"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/agent/sync"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/annotation"
	"stoker.io/stoker/api/v1alpha1/desiredref"
	"stoker.io/stoker/api/v1alpha1/effective"
	"stoker.io/stoker/internal/failure"
)

// inputs are what an order is made of. If they have not changed, the order stays the same.
type inputs struct {
	in              instruction
	generation      int64
	profile         effective.Settings
	facts           plan.Facts
	beforeStart     bool
	newVolume       bool
	rotated         int64         // how often a secret file has changed; a sync that failed with the old one is retried
	rollback        bool          // an operator requested to go back to the commit
	rolloutRollback bool          // the rollout went back to it
	request         audit.Request // who requested the ref
}

// currentOrder is the order in force. It stays in force while the SyncTarget cannot be followed.
type currentOrder struct {
	order    *loop.Order // nil before the first
	inputs   inputs
	admitted *admission // of the order's commit
	paused   decide.Pause
	dryRun   dryRun
	planned  *planned // the outcome of the dry run of the target; nil until it has ended
}

// fits reports whether the order in force is right for m, which may differ in the lead's term, its problem and the state of the rollout.
func (c *currentOrder) fits(m inputs, connections sync.Connections) bool {
	same := m
	same.in.Term, same.in.problem, same.in.rollout = c.inputs.in.Term, c.inputs.in.problem, c.inputs.in.rollout
	return c.order != nil && !c.order.RestoreOnly && c.order.Connections == connections && c.order.Profile.Paused == m.profile.Paused && reflect.DeepEqual(same, c.inputs)
}

// inForce describes the order in force.
func (c *currentOrder) inForce() decide.InForce {
	if c.order == nil {
		return decide.InForce{}
	}
	return decide.InForce{Exists: true, Commit: c.order.Commit}
}

// pause pauses or continues the order in force because of a target that may not be followed otherwise.
func (c *currentOrder) pause(in *instruction) {
	o := c.order
	if o == nil {
		return
	}
	paused := in.paused || c.inputs.profile.Paused
	var apply bool
	if c.paused, apply = c.paused.Apply(decide.Pause{Owner: in.owner, Generation: in.Generation}, paused); !apply {
		return
	}
	if o.Profile.Paused != paused {
		next := *o
		next.Profile.Paused = paused
		c.order = &next
	}
}

// dryRun is a dry run before a rollout, and the order that it interrupts.
type dryRun struct {
	on     bool
	order  *loop.Order
	inputs inputs
}

// setDryRun begins or ends a dry run. When it ends, the order from before it is in force again.
func (c *currentOrder) setDryRun(n decide.Step) {
	if !n.Planned {
		c.planned = nil
	}
	on := n.Do == decide.DryRun
	switch r := &c.dryRun; {
	case on && !r.on:
		*r = dryRun{true, c.order, c.inputs}
	case !on && r.on:
		c.order, c.inputs = r.order, r.inputs
		*r = dryRun{}
	}
}

// planned is the outcome of a dry run before a rollout.
type planned struct {
	of      inputs
	commit  string
	message string
}

// recordDryRun records the outcome of the dry run before a rollout, and reports whether it is new. s is the state after an iteration.
func (c *currentOrder) recordDryRun(s loop.State) bool {
	if !c.dryRun.on || s.Of != c.order || !s.DryRun() || c.planned != nil && reflect.DeepEqual(c.planned.of, c.inputs) {
		return false
	}
	c.planned = &planned{c.inputs, c.order.Commit.String(), s.Message}
	return true
}

// outcome returns why a gateway waits that has made the dry run of a target with its current settings and labels; nil if it has not.
func (p *planned) outcome(in instruction, settings effective.Settings, labels map[string]string) *decide.Hold {
	if p == nil {
		return nil
	}
	of := p.of.in
	settings.DryRun, settings.Paused = p.of.profile.DryRun, p.of.profile.Paused
	if of.Commit != in.Commit || of.Ref != in.Ref || of.Generation != in.Generation || of.Retry != in.Retry ||
		!reflect.DeepEqual(settings, p.of.profile) || !maps.Equal(labels, p.of.facts.Labels) {
		return nil
	}
	return &decide.Hold{Reason: v1alpha1.ReasonDryRun, Message: p.message}
}

// wentBack returns how far the gateway is back at what ran before the rollout of aborted. s is the state after the last iteration.
func (c *currentOrder) wentBack(s loop.State, aborted plan.ID) decide.RolloutRollback {
	if c.order == nil || s.Of != c.order || s.Report == nil {
		return decide.RolloutRollback{}
	}
	failed := s.Report.Err != nil
	return decide.RolloutRollback{Synced: !failed && s.Report.Commit == c.order.Commit, Failed: failed, To: c.order.Commit, Aborted: aborted}
}

// Any gateway in the namespace can write the SyncTarget with its service account token, and git hosts also serve the commits of forks and
// pull requests to any client that has their ids. So a follower takes the requests from the GatewaySync, and checks the target against it
// and git:
//   - its hash is that of the annotations (checkRequests);
//   - its ref is spec.git.ref, or the one of stoker.io/requested-ref at the commit that is requested with it (checkRequests);
//   - a requested ref is one that spec.git.allowedRefs admits, and the commit is the tip of the ref or in its history (admit).
//
// A commit that is completely on the disk was admitted before, so the follower accepts it again under the same ref, even while a newer request
// is refused. Another ref can change what templates render.

// checkRequests returns why a GatewaySync that was just read does not ask for what the target says; nil if it does.
func checkRequests(gs *v1alpha1.GatewaySync, in *instruction, onDisk volume) error {
	var err error
	switch commit := desiredref.InputsOf(gs).Commit(); {
	case in.Ref == "" || in.Ref == gs.Spec.Git.Ref || onDisk.holds(in.Ref, in.Commit):
	case in.Ref != gs.Annotations[v1alpha1.AnnotationRequestedRef]:
		err = failure.New(v1alpha1.ReasonWaitingForLead, "the SyncTarget says %q, which neither spec.git.ref nor a request asks for: waiting for its lead", in.Ref)
	case commit != "" && !in.Commit.IsZero() && commit != in.Commit.String():
		err = failure.New(v1alpha1.ReasonWaitingForLead, "the SyncTarget says commit %s for %q, which is requested at %s: waiting for its lead", in.Commit, in.Ref, commit)
	}
	if p, ok := in.unresolved(gs.Generation); ok && err != nil { // the lead refuses the current request: only an operator can help
		err = failure.New(p.Reason, "%s", p.Message)
	}
	if err != nil {
		return err
	}
	if in.hash != annotation.Hash(gs) {
		return failure.New(v1alpha1.ReasonWaitingForLead, "the SyncTarget was made from other requests than the annotations of the GatewaySync: waiting for its lead")
	}
	return nil
}

// admission checks one commit of a SyncTarget against git. After the first success it does not ask again.
type admission struct {
	git    v1alpha1.GitSpec
	remote *repo.Remote
	store  *repo.Store
	ref    string
	commit plan.ID

	admitted bool
	name     string // the full name of the ref, once admitted
	misses   int    // how often git did not confirm the commit
}

// maxMisses is how often a commit that git does not confirm is treated as not there yet, instead of refused. A mirror, or another server
// of the host, may lag behind the one that the lead asked, and a refusal would make a waiting promotion fail.
const maxMisses = 2

// admit returns the full name of the ref that has the commit as its tip or in its history; "" for a commit that was requested by its id.
func (a *admission) admit(ctx context.Context) (string, error) {
	if a.admitted {
		return a.name, nil
	}
	name, err := a.store.Admit(ctx, a.remote, &a.git, a.ref, a.commit)
	a.admitted, a.name = err == nil, name
	if failure.Is(err, v1alpha1.ReasonRefNotFound) || failure.Is(err, v1alpha1.ReasonRefNotAllowed) {
		if a.misses++; a.misses <= maxMisses {
			return "", failure.New(v1alpha1.ReasonWaitingForLead, "git does not confirm the SyncTarget yet; retrying: %w", err)
		}
	}
	return name, err
}

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

// updateKey installs the agent's API key if that is due: before the gateway starts, or when the gateway has rejected the key. A pod without a key
// of the agent removes the key of an earlier pod, so that a stolen copy is worth nothing.
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
	first := err == nil && asked == nil
	if err = errors.Join(err, f.Key.RecordRestart(first)); err != nil {
		f.Log.Warn("restart of the gateway not requested", "error", err)
	}
	if first {
		f.Log.Info("the gateway has to start once more")
		end(ErrRestartGateway)
	}
}
