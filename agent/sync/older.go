package sync

import (
	"context"
	"errors"
	"fmt"

	"stoker.io/stoker/agent/ignition"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// askPlatform reads the gateway's version. An unknown version counts as a current one.
func (s *run) askPlatform(ctx context.Context) error {
	p, err := s.conn.Gateway.Platform(ctx)
	if err != nil {
		s.Log.Debug("the gateway's version is not known", "error", err)
		return ctx.Err()
	}
	s.platform = p
	return nil
}

// older reports whether the gateway is older than 8.3, without a REST interface.
func (s *run) older() bool {
	v := s.platform.Version
	return !v.IsZero() && !v.AtLeast(8, 3)
}

// handOverOlder makes a gateway before 8.3 load its projects through the project-scan module, if it has one. Such a
// gateway cannot show what it has loaded, so nothing is verified.
func (s *run) handOverOlder(ctx context.Context) error {
	defer s.step("scan")()
	if s.owed.ScanConfig {
		s.note("Ignition %s keeps its configuration in a database: files below config/ mean nothing to it", s.platform.Version)
	}
	if s.owed.ScanProjects {
		if err := s.scanOlder(ctx); err != nil {
			return s.undelivered(err)
		}
	}
	s.r.Projects = s.owed.Projects
	s.owed = owed{}
	return s.owed.save(s.dir)
}

func (s *run) scanOlder(ctx context.Context) error {
	started := s.Now()
	did, err := s.conn.Gateway.ScanByModule(ctx)
	if errors.Is(err, ignition.ErrNoScanModule) {
		s.r.Message = also(s.r.Message, fmt.Sprintf(
			"files only: Ignition %s has no interface for scans, and no project-scan module; it reads its projects by itself every few minutes", s.platform.Version))
		return nil
	}
	out := ScanOutcome{Kind: string(ignition.Projects), Duration: s.Now().Sub(started)}
	if err != nil {
		out.Reason = string(failure.Reason(err, v1alpha1.ReasonScanFailed))
	}
	s.r.Scans = append(s.r.Scans, out)
	if err != nil {
		return err
	}
	told := ""
	if did.DesignersTold {
		told = " and told the open Designers"
	}
	s.r.Message = also(s.r.Message, fmt.Sprintf(
		"the project-scan module scanned%s; Ignition %s cannot show what it loaded, so that this is not verified", told, s.platform.Version))
	return nil
}

// withoutToken ends a sync without an API token. Only a gateway before 8.3 scans without one.
func (s *run) withoutToken(ctx context.Context) error {
	if !s.owed.empty() && !s.t.BeforeStart {
		if state, _ := s.look(ctx); state == running {
			if err := s.askPlatform(ctx); err != nil {
				return err
			}
		}
		if s.older() {
			return s.handOverOlder(ctx)
		}
	}
	s.r.Message = also(s.r.Message, "files only, spec.gateway.api names no API token: nothing was scanned or verified")
	return nil
}
