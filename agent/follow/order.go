package follow

import (
	"errors"
	"maps"
	"net"
	"reflect"
	"strconv"

	"stoker.io/stoker/agent/audit"
	"stoker.io/stoker/agent/connect"
	"stoker.io/stoker/agent/decide"
	"stoker.io/stoker/agent/loop"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/storage"
	"stoker.io/stoker/agent/sync"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/effective"
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
	earlier         bool          // the commit replaces that of the target: this gateway, or all of them, ran it before
	pausedBySpec    bool          // the spec pauses this gateway; the target can pause it, too
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

// pause pauses or continues the order in force as a target asks, even if the target cannot be followed otherwise. If a closed gate keeps the order,
// kept has the settings of the target's spec: if they differ from those of the order only in the pause, their pause counts. Otherwise kept is nil.
func (c *currentOrder) pause(in *instruction, kept *effective.Settings) {
	o := c.order
	if o == nil {
		return
	}
	onlyPause := false // other settings may be the fix for which syncing was paused
	if kept != nil {
		was, is := c.inputs.profile, *kept
		was.Paused, is.Paused = false, false
		onlyPause = reflect.DeepEqual(was, is)
	}
	if onlyPause {
		c.inputs.pausedBySpec = kept.Paused
	}
	paused := in.paused || c.inputs.pausedBySpec
	var apply bool
	if c.paused, apply = c.paused.Apply(in.pause(), paused); !apply && !onlyPause {
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

// connections are the connections of a sync, made for one GatewaySync.
type connections struct {
	sync.Connections
	madeFor *v1alpha1.GatewaySync // nil before the first
}

// update makes new connections if gs is not the GatewaySync of the last call.
func (c *connections) update(config *Config, gs *v1alpha1.GatewaySync) error {
	if c.madeFor == gs {
		return nil
	}
	gateway := connect.Gateway{URL: gatewayURL(&gs.Spec.Gateway, config.Port, config.TLS), Key: config.Key}
	made, err := connect.New(&gs.Spec, gateway, config.Secrets, config.Remote, config.Log)
	if err != nil {
		return err
	}
	if made.Storage, err = storage.New(&gs.Spec, config.Secrets); err != nil {
		return errors.Join(err, made.Remote.Close())
	}
	if c.madeFor != nil {
		_ = c.Remote.Close() // only closes connections
	}
	c.madeFor, c.Connections = gs, made
	return nil
}

// gatewayURL returns the address of the gateway's web server, which is in the same pod. port and tls apply if the spec sets no
// port.
func gatewayURL(g *v1alpha1.GatewaySpec, port int32, tls bool) string {
	tls = g.TLS || g.Port == nil && tls
	if g.Port != nil || port == 0 {
		port = g.EffectivePort()
	}
	scheme := "http"
	if tls {
		scheme = "https"
	}
	return scheme + "://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(int(port)))
}
