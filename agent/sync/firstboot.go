package sync

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path"
	"slices"
	"strings"
	"time"

	"stoker.io/stoker/agent/ignition"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/plan/planner"
	"stoker.io/stoker/agent/unloaded"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

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
	if status.Status == http.StatusForbidden && l.in.gateway.trialExpired(ctx) { // whether an expired trial stops scans is not known
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
