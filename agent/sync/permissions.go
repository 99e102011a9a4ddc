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
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// firstBoot is how long a refused token is tolerated after a gateway's first start with our files. Commissioning
// rewrites ignition/security-properties and drops what it granted [LIVE].
const firstBoot = 5 * time.Minute

// refused handles a gateway that refuses our token. At a first boot it restores the permissions once and waits. It
// returns other errors unchanged.
func (s *run) refused(ctx context.Context, err error) error {
	status, ok := errors.AsType[*ignition.StatusError](err)
	if !ok || status.Status != http.StatusForbidden && status.Status != http.StatusUnauthorized {
		return err
	}
	if status.Status == http.StatusForbidden && s.trialExpired(ctx) { // it is not known whether that stops scans
		return fmt.Errorf("the gateway's trial has expired, which may be why; it helps if somebody %s: %w", newTrial, err)
	}
	if slices.ContainsFunc(s.owed.Resources, func(r configID) bool { return r.Type == "api-token" }) {
		s.note("the commit brings an API token: a running gateway knows it after a restart, or after a scan from its own web page (Platform > System > Modes)")
	}
	if !s.owed.Fresh || status.Status != http.StatusForbidden {
		return err
	}
	if now := s.Now(); s.owed.Refused.IsZero() || s.owed.Refused.After(now) { // or recorded while the clock was ahead
		s.owed.Refused = now
		if saveErr := s.owed.save(s.dir); saveErr != nil {
			return errors.Join(err, saveErr)
		}
	}
	if putErr := s.putBackPermissions(ctx); putErr != nil {
		s.note("ignition/security-properties could not be put back: %v", putErr)
	}
	until := s.owed.Refused.Add(firstBoot)
	if s.Now().After(until) {
		return err
	}
	return failure.New(v1alpha1.ReasonWaitingForCommissioning,
		"a gateway rewrites its permissions at its first boot: waited for until %s: %w", until.UTC().Format(time.RFC3339), err)
}

// putBackPermissions restores, once, the permissions of git that the first boot rewrote. The gateway reads them at its
// next start, or when a user starts a scan.
func (s *run) putBackPermissions(ctx context.Context) error {
	if s.owed.PutBack || !s.Store.Has(s.t.Commit) {
		return nil
	}
	defer s.during(ctx)()
	desired, err := s.desire(s.t.Commit)
	if err != nil {
		return err
	}
	h := s.dir.Manifest().Header()
	changes, err := plan.Compute(plan.Input{
		Desired: desired, From: h.Commit, To: s.t.Commit, Manifest: s.dir.Manifest(), State: s.dir.Within(ctx), Repair: true,
	})
	if err != nil {
		return err
	}
	changes.List = slices.DeleteFunc(changes.List, func(c plan.Change) bool {
		return c.Op != plan.Create && c.Op != plan.Update || !isPermission(c.Path)
	})
	s.owed.PutBack = true
	if len(changes.List) == 0 {
		return s.owed.save(s.dir)
	}
	staged, err := s.dir.Stage(ctx, changes, s.Store.SortKey, s.source(changes))
	if err != nil {
		return err
	}
	h.Mappings = changes.Mappings
	if _, err := staged.Apply(ctx, h); err != nil {
		return err
	}
	s.owed.ScanConfig = true
	s.note("the first boot rewrote ignition/security-properties; what git has was put back (the gateway's version is in lost+found) and counts after a restart of the gateway")
	return s.owed.save(s.dir)
}

func isPermission(file string) bool {
	dir, ok := strings.CutPrefix(path.Dir(file), "config/resources/")
	if !ok {
		return false
	}
	_, name, _ := strings.Cut(dir, "/")
	return name == "ignition/security-properties"
}
