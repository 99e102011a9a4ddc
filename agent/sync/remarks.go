package sync

import (
	"context"

	"stoker.io/stoker/agent/ignition"
)

// identity returns the gateway's name, version and mode, and asks at most once per sync. ok is false if they are
// unknown.
func (s *run) identity(ctx context.Context) (ignition.Info, bool) {
	if !s.infoAsked {
		info, err := s.conn.Gateway.Info(ctx)
		s.info, s.infoKnown, s.infoAsked = info, err == nil, true
		if err != nil {
			s.Log.Debug("the gateway does not say who it is", "error", err)
		}
	}
	return s.info, s.infoKnown
}

// remarks notes problems of a gateway that did load its files: another mode or name than the profile says, an expired
// trial, or a pending restart.
func (s *run) remarks(ctx context.Context) {
	if info, ok := s.identity(ctx); ok {
		p := s.t.Profile
		if p.DeploymentMode != "" && info.DeploymentMode != p.DeploymentMode {
			s.note("the gateway runs %s, and not the deployment mode %q of its annotation: what config/resources/%s holds is not in force "+
				"(start the gateway with -Dignition.config.mode=%s)", modeName(info.DeploymentMode), p.DeploymentMode, p.DeploymentMode, p.DeploymentMode)
		}
		if want := s.rules.SystemName.Value; want != "" && info.Name != want {
			s.note("the gateway calls itself %q, and not %q as its annotation system-name has it: is it started with another name?", info.Name, want)
		}
	}
	if s.trialExpired(ctx) {
		s.note("the gateway's trial has expired: what was synced does not run before somebody %s", newTrial)
	}
	pending, err := s.conn.Gateway.PendingRestarts(ctx)
	if err != nil {
		s.Log.Debug("whether the gateway wants a restart is not known", "error", err)
		return
	}
	if len(pending) > 0 {
		s.note("the gateway has to be restarted before this counts: %s", some(pending))
	}
}

// newTrial is what helps a gateway without a license.
const newTrial = "resets the trial on the gateway's home page, or activates a license"

// trialExpired reports whether the gateway says that its trial is over.
func (s *run) trialExpired(ctx context.Context) bool {
	expired, err := s.conn.Gateway.TrialExpired(ctx)
	if err != nil {
		s.Log.Debug("whether the gateway's trial has expired is not known", "error", err)
	}
	return expired
}

func modeName(mode string) string {
	if mode == "" {
		return "no deployment mode"
	}
	return "deployment mode " + mode
}
