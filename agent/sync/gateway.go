package sync

import (
	"context"
	"errors"
	"log/slog"
	"syscall"
	"time"

	"stoker.io/stoker/agent/disk"
	"stoker.io/stoker/agent/ignition"
	"stoker.io/stoker/agent/redundancy"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// gateway is the gateway during one sync. It embeds the REST client, and keeps what it has read.
type gateway struct {
	Gateway     // nil: none is configured
	hasAPIToken bool
	log         *slog.Logger
	dir         *disk.Dir
	readOnly    bool   // a dry run, which writes no notes
	start       string // see Task.Start
	// seenStart is the last start after which the agent saw the gateway running. The Engine keeps it in case the note cannot be
	// written.
	seenStart   *string
	beforeStart bool // see Task.BeforeStart

	platform ignition.Platform
	info     *ignition.Info // nil: not read yet
}

// gatewayState is the gateway's state as seen by a ping.
type gatewayState int

const (
	noGateway   gatewayState = iota // none is configured
	stopped                         // the port refuses connections: stopped, or just starting
	unavailable                     // starting, waiting for commissioning, or unreachable
	running
)

// state returns the gateway's state, and an error with the reason if it is not running. noGateway is not an error.
func (g *gateway) state(ctx context.Context) (gatewayState, error) {
	if g.Gateway == nil {
		return noGateway, nil
	}
	ping, err := g.Ping(ctx)
	switch {
	case err == nil && ping.Running():
		g.recordRunning()
		return running, nil
	case err == nil && ping.Commissioning():
		return unavailable, failure.New(v1alpha1.ReasonWaitingForCommissioning, "the gateway waits to be commissioned: "+ignition.CommissioningAdvice)
	case err == nil:
		return unavailable, failure.New(v1alpha1.ReasonWaitingForGateway, "the gateway is in state %s", ping)
	case errors.Is(err, syscall.ECONNREFUSED):
		return stopped, failure.New(v1alpha1.ReasonWaitingForGateway, "the gateway is not running: %w", err)
	default:
		// An untrusted certificate or a lost packet says nothing about the gateway: it may be running.
		return unavailable, err
	}
}

// runningNote is the note with the last start after which the agent saw the gateway running, so that a restarted agent does not check again.
const runningNote = "gateway-ran"

// seenRunning reports whether the agent saw the gateway running since g.start, or need not, because g.start is "".
func (g *gateway) seenRunning() bool {
	if g.start != "" && *g.seenStart != g.start && g.note(runningNote) == g.start {
		*g.seenStart = g.start
	}
	return g.start == "" || *g.seenStart == g.start
}

func (g *gateway) recordRunning() {
	if !g.beforeStart && !g.readOnly && !g.seenRunning() {
		*g.seenStart = g.start
		g.setNote(runningNote, g.start)
	}
}

// note returns the text of a note, or "" if there is none. The sync can do without it.
func (g *gateway) note(name string) string {
	b, err := g.dir.Note(name)
	if err != nil {
		g.log.Debug("gateway note unreadable", "note", name, "error", err)
	}
	return string(b)
}

// setNote writes a note, except in a dry run.
func (g *gateway) setNote(name, text string) {
	if g.readOnly {
		return
	}
	if err := g.dir.SetNote(name, []byte(text)); err != nil {
		g.log.Debug("gateway note not written", "note", name, "error", err)
	}
}

// readPlatform reads the gateway's version and role, once. An unknown version counts as a current one.
func (g *gateway) readPlatform(ctx context.Context) error {
	if g.platform != (ignition.Platform{}) {
		return nil
	}
	p, err := g.Platform(ctx)
	if err != nil {
		g.log.Debug("gateway version unknown", "error", err)
		return ctx.Err()
	}
	g.platform = p
	return nil
}

// legacy reports whether the gateway is older than 8.3, without a REST interface.
func (g *gateway) legacy() bool {
	v := g.platform.Version
	return !v.IsZero() && !v.AtLeast(8, 3)
}

// versionNote is the note with the gateway's last known version.
const versionNote = "gateway-version"

// version returns the gateway's version, or the last known one if it does not answer.
func (g *gateway) version(ctx context.Context) ignition.Version {
	last := ignition.ParseVersion(g.note(versionNote))
	if g.Gateway == nil || g.beforeStart {
		return last
	}
	if g.readPlatform(ctx) != nil || g.platform.Version.IsZero() {
		return last
	}
	if g.platform.Version != last {
		g.setNote(versionNote, g.platform.Version.String())
	}
	return g.platform.Version
}

// identity returns the gateway's name and mode, and keeps what the gateway answered.
func (g *gateway) identity(ctx context.Context) (ignition.Info, error) {
	if g.info == nil {
		info, err := g.Info(ctx)
		if err != nil {
			return ignition.Info{}, err
		}
		g.info = &info
	}
	return *g.info, nil
}

// trialExpired reports whether the gateway says that its trial is over.
func (g *gateway) trialExpired(ctx context.Context) bool {
	expired, err := g.TrialExpired(ctx)
	if err != nil {
		g.log.Debug("gateway trial state unknown", "error", err)
	}
	return expired
}

// modules returns the ids of the modules that the gateway runs, or nil if it does not say. A gateway that starts has not loaded all of them.
func (g *gateway) modules(ctx context.Context) []string {
	if g.Gateway == nil || !g.hasAPIToken || g.beforeStart {
		return nil
	}
	if state, _ := g.state(ctx); state != running || g.readPlatform(ctx) != nil || g.legacy() {
		return nil
	}
	list, err := g.Modules(ctx)
	if err != nil {
		g.log.Debug("gateway modules unknown", "error", err)
		return nil
	}
	return list
}

// clock returns the gateway's time, for reading its log, or fallback if the gateway does not answer.
func (g *gateway) clock(ctx context.Context, fallback time.Time) time.Time {
	if p, err := g.Ping(ctx); err == nil && !p.Date.IsZero() {
		return p.Date
	}
	return fallback
}

// pairSource returns the source of the node's state in a pair. Only the REST API reports it, which begins with 8.3 and needs an API key.
func (g *gateway) pairSource(state gatewayState) redundancy.Source {
	source := redundancy.Source{Running: state == running, Role: g.platform.Role}
	if g.Gateway != nil && g.hasAPIToken && !g.legacy() {
		source.Gateway = g.Gateway
	}
	return source
}
