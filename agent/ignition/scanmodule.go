package ignition

import (
	"context"
	"errors"
	"net/http"
	"net/url"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// The routes of the project-scan module, the only way to request a scan from an 8.1 gateway. It is a third-party
// module, design-group/ignition-project-scan-endpoint, and not part of Ignition.
const (
	moduleScan    = "/data/project-scan-endpoint/scan"
	moduleSupport = "/data/project-scan-endpoint/confirm-support"
)

// ErrNoScanModule means that the gateway has no project-scan module.
var ErrNoScanModule = errors.New("the gateway has no project-scan module")

// ModuleScan is the result of ScanByModule.
type ModuleScan struct {
	// DesignersNotified reports whether the module notified open Designers of the changes.
	DesignersNotified bool
}

// ScanByModule makes the project-scan module scan the projects and notify the Designers: POST
// /data/project-scan-endpoint/scan?updateDesigners=true. With force it adds forceUpdate=true, so that the Designers do not leave the
// update to their users. The module's routes need no token in 8.1, but the client sends one if it has one. ScanByModule returns
// ErrNoScanModule if the gateway does not have the module.
func (c *Client) ScanByModule(ctx context.Context, force bool) (ModuleScan, error) {
	support, err := get[struct {
		Supported bool `json:"supported"`
	}](ctx, c, moduleSupport, nil)
	if errors.Is(err, ErrNotFound) || err == nil && !support.Supported {
		return ModuleScan{}, ErrNoScanModule
	}
	if err != nil {
		return ModuleScan{}, err
	}
	query := url.Values{"updateDesigners": {"true"}}
	if force {
		query.Set("forceUpdate", "true")
	}
	done, err := doJSON[struct {
		Scanned  bool `json:"gatewayProjectScanSuccess"`
		Notified bool `json:"sentDesignerUpdateNotification"`
	}](ctx, c, call{
		method: http.MethodPost, path: moduleScan, query: query,
		extraTimeout: c.cfg.ScanTimeout, // the module responds when the scan is over
	})
	switch {
	case err != nil:
		return ModuleScan{}, err
	case !done.Scanned:
		return ModuleScan{}, failure.New(v1alpha1.ReasonScanFailed, "the project-scan module did not finish a scan; see the gateway's own log")
	}
	return ModuleScan{DesignersNotified: done.Notified}, nil
}
