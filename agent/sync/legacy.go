package sync

import (
	"context"
	"errors"
	"fmt"

	"stoker.io/stoker/agent/ignition"
)

// loadLegacy makes a gateway before 8.3 load its projects through the project-scan module, if it has one. Such a
// gateway cannot show what it has loaded, so nothing is verified.
func (l loader) loadLegacy(ctx context.Context) error {
	defer l.step("scan")()
	if l.unloaded.ScanConfig {
		l.note("Ignition %s keeps its configuration in a database and ignores files below config/", l.gateway.platform.Version)
	}
	if l.unloaded.ScanProjects {
		if err := l.scanByModule(ctx); err != nil {
			return l.notLoadedError(err)
		}
	}
	return l.recordLoaded()
}

func (l loader) scanByModule(ctx context.Context) error {
	started := l.Now()
	result, err := l.gateway.ScanByModule(ctx)
	if errors.Is(err, ignition.ErrNoScanModule) {
		l.r.Message = join(l.r.Message, fmt.Sprintf(
			"files only: Ignition %s has no scan API, and the project-scan module is not installed; the gateway reads its projects by itself every few minutes", l.gateway.platform.Version))
		return nil
	}
	if l.recordScan(ignition.Projects, l.Now().Sub(started), err); err != nil {
		return err
	}
	notified := ""
	if result.DesignerNotifications {
		notified = " and notified the open Designers"
	}
	l.r.Message = join(l.r.Message, fmt.Sprintf(
		"the project-scan module scanned%s; Ignition %s cannot show what it loaded, so nothing is verified", notified, l.gateway.platform.Version))
	return nil
}

// loadWithoutAPIToken ends a sync without an API token. Only a gateway before 8.3 scans without one.
func (l loader) loadWithoutAPIToken(ctx context.Context) error {
	if !l.unloaded.empty() && !l.t.BeforeStart {
		if state, _ := l.gateway.state(ctx); state == running {
			if err := l.gateway.readPlatform(ctx); err != nil {
				return err
			}
		}
		if l.gateway.legacy() {
			return l.loadLegacy(ctx)
		}
	}
	l.r.Message = join(l.r.Message, "files only, spec.gateway.api has no API token: nothing was scanned or verified")
	return nil
}
