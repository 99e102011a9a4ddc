package sync

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"path"
	"slices"
	"strings"
	"syscall"
	"time"

	"stoker.io/stoker/agent/disk"
	"stoker.io/stoker/agent/ignition"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/plan/planner"
	"stoker.io/stoker/agent/redundancy"
	"stoker.io/stoker/agent/unloaded"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// gateway is the gateway during one sync. It embeds the REST client, and keeps what it has read.
type gateway struct {
	Gateway     // nil: none is configured
	hasAPIToken bool
	log         *slog.Logger
	dir         *disk.Dir
	readOnly    bool // write no notes
	start       string
	// seenStart is the last start after which the agent saw the gateway running. The Engine keeps it in case the note cannot be
	// written.
	seenStart   *string
	beforeStart bool

	platform            ignition.Platform
	info                ignition.Info
	infoKnown, infoRead bool
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

// runningNote names the last start after which the agent saw the gateway running, so that a restarted agent does not check again.
const runningNote = "gateway-ran"

// seenRunning reports whether the agent saw the gateway running after its start.
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

// versionNote has the gateway's last known version.
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

// identity returns the gateway's name, version and mode, and reads them at most once. ok is false if they are unknown.
func (g *gateway) identity(ctx context.Context) (ignition.Info, bool) {
	if !g.infoRead {
		info, err := g.Info(ctx)
		g.info, g.infoKnown, g.infoRead = info, err == nil, true
		if err != nil {
			g.log.Debug("gateway identity unknown", "error", err)
		}
	}
	return g.info, g.infoKnown
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

// pairSource returns the source of the node's state in a pair. Only the REST API of 8.3 reports it, with an API key.
func (g *gateway) pairSource(state gatewayState) redundancy.Source {
	source := redundancy.Source{Running: state == running, Role: g.platform.Role}
	if g.Gateway != nil && g.hasAPIToken && !g.legacy() {
		source.Gateway = g.Gateway
	}
	return source
}

// A dry run and a pause do not make the gateway scan. If the target's files are on the disk, they report whether the gateway has
// loaded them.

// endDryRun ends a dry run.
func (j *job) endDryRun(ctx context.Context) error {
	in := j.in
	if !in.task.Profile.DryRun {
		return nil
	}
	if in.report.DryRun { // stager.dryRun has reported the plan
		return errEnd
	}
	confirmed, err := confirm(ctx, in, &j.unloaded)
	if err != nil {
		return err
	}
	if !confirmed {
		in.report.Phase, in.report.Reason, in.report.DryRun = v1alpha1.GatewayApplied, v1alpha1.ReasonDryRun, true
		in.report.Message = fmt.Sprintf("dry run: no scan was requested; the files of %s are on the disk, but the gateway has not confirmed that it loaded them", in.task.Commit.Short())
	}
	return errEnd
}

// pause ends a sync while syncing is paused. If the gateway already runs the target, the report says so.
func (j *job) pause(ctx context.Context) error {
	in := j.in
	if !in.task.Profile.Paused {
		return nil
	}
	held := failure.New(v1alpha1.ReasonPaused, "syncing is paused; the files on the disk stay")
	in.report.Phase = v1alpha1.GatewayHeld
	if j.openDir() != nil || j.open(ctx) != nil || !in.filesDone() { // openDir first: invalid rules must not hide the commit
		return held
	}
	upToDate, err := confirm(ctx, in, &j.unloaded)
	if upToDate {
		upToDate, err = j.accessUnchanged(ctx)
	}
	if err != nil {
		return err
	}
	if !upToDate {
		return held
	}
	in.report.Phase, in.report.Reason = v1alpha1.GatewaySynced, v1alpha1.ReasonPaused
	if in.node.Standby() {
		in.report.Phase = v1alpha1.GatewayStandby
	}
	in.report.Message = "syncing is paused; " + in.task.Commit.Short() + " is on the disk already"
	return errEnd
}

// accessUnchanged reports whether the node's config access is the same as when its files were last compared.
func (j *job) accessUnchanged(ctx context.Context) (bool, error) {
	if !j.in.node.Paired() {
		return true, nil
	}
	j.in.report.Paired = true
	state, _ := j.in.gateway.state(ctx)
	return j.in.node.AccessUnchanged(ctx, j.in.gateway.pairSource(state))
}

// PausedError returns the error of Task.Stop for a sync that was paused while it ran. Its reason is not Paused, so that the sync is tried again
// unless the next order is paused.
func PausedError() error {
	return failure.New(v1alpha1.ReasonProgressing, "syncing was paused during the sync; nothing was written")
}

// firstBootGrace is how long a gateway may refuse the API key after its first start with the agent's files.
// Commissioning rewrites ignition/security-properties and drops what the file granted, as seen on a live gateway.
const firstBootGrace = 5 * time.Minute

// handleRefusal handles the error of a gateway that refuses the API key, and returns the error of the sync. At a first
// boot it restores the permissions once, and the sync waits. It returns other errors unchanged.
func (l *loader) handleRefusal(ctx context.Context, err error) error {
	status, ok := errors.AsType[*ignition.StatusError](err)
	if !ok || status.Status != http.StatusForbidden && status.Status != http.StatusUnauthorized {
		return err
	}
	if status.Status == http.StatusForbidden && l.in.gateway.trialExpired(ctx) { // it is not known whether that stops scans
		return fmt.Errorf("the gateway's trial has expired, which may be the cause (%s): %w", trialAdvice, err)
	}
	if slices.ContainsFunc(l.unloaded.Resources, func(r unloaded.Resource) bool { return r.Type == "api-token" }) {
		l.in.note("the commit has an API key, which a running gateway accepts only after a restart, or after a scan from its web page (Platform > System > Modes)")
	}
	if !l.unloaded.FirstStart || status.Status != http.StatusForbidden {
		return err
	}
	if now := l.in.Now(); l.unloaded.FirstRefused.IsZero() || l.unloaded.FirstRefused.After(now) { // or recorded while the clock was ahead
		l.unloaded.FirstRefused = now
		if saveErr := l.in.unloadedNote.Save(l.unloaded); saveErr != nil {
			return errors.Join(err, saveErr)
		}
	}
	if restoreErr := l.restorePermissions(ctx); restoreErr != nil {
		l.in.note("ignition/security-properties could not be restored: %v", restoreErr)
	}
	until := l.unloaded.FirstRefused.Add(firstBootGrace)
	if l.in.Now().After(until) {
		return err
	}
	return failure.New(v1alpha1.ReasonWaitingForCommissioning,
		"the gateway rewrites its permissions at its first boot; the agent retries until %s: %w", until.UTC().Format(time.RFC3339), err)
}

// restorePermissions restores, once, git's version of the permissions that the first boot rewrote. The gateway reads them
// at its next start, or when a user starts a scan.
func (l *loader) restorePermissions(ctx context.Context) error {
	if l.unloaded.PermissionsRestored || !l.in.Store.Has(l.in.task.Commit) {
		return nil
	}
	defer l.in.trees.limit(ctx)()
	tree, err := l.in.trees.tree(l.in.Store, l.in.task.Commit, l.in.rules)
	if err != nil {
		return err
	}
	h := l.in.dir.Manifest().Header()
	changes, err := planner.Compute(planner.Input{
		Desired: tree, From: h.Commit, To: l.in.task.Commit, Manifest: l.in.dir.Manifest(), State: l.in.dir.Within(ctx), Repair: true,
	})
	if err != nil {
		return err
	}
	changes.List = slices.DeleteFunc(changes.List, func(c plan.Change) bool {
		return c.Op != plan.Create && c.Op != plan.Update || !isPermission(c.Path)
	})
	l.unloaded.PermissionsRestored = true
	if len(changes.List) == 0 {
		return l.in.unloadedNote.Save(l.unloaded)
	}
	files := stager{in: l.in, desired: tree}
	staged, err := l.in.dir.Stage(ctx, changes, l.in.Store.SortKey, files.source(changes))
	if err != nil {
		return err
	}
	if err := takeSnapshot(&l.in.task, staged); err != nil {
		return errors.Join(err, staged.Discard())
	}
	l.unloaded.ScanConfig = true
	if err := l.in.unloadedNote.Save(l.unloaded); err != nil {
		return errors.Join(err, staged.Discard())
	}
	h.Mappings = changes.Mappings
	if _, err := staged.Apply(ctx, h); err != nil {
		return err
	}
	l.in.note("the first boot rewrote ignition/security-properties; the agent restored the version of git (the gateway's version is in lost+found), which takes effect after a restart of the gateway")
	return nil
}

func isPermission(file string) bool {
	dir, ok := strings.CutPrefix(path.Dir(file), "config/resources/")
	if !ok {
		return false
	}
	_, name, _ := strings.Cut(dir, "/")
	return name == "ignition/security-properties"
}
