package ignition

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"time"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/backoff"
	"stoker.io/stoker/internal/failure"
)

// Kind is one of the two trees that a gateway scans.
type Kind string

// The trees that can be scanned [SPEC].
const (
	Projects   Kind = "projects" // data/projects
	ConfigScan Kind = "config"   // data/config
)

// ScanStatus is the status of the gateway's scans of one kind.
type ScanStatus struct {
	Active bool
	// Last is when the last scan ended, in the gateway's clock; zero before the first scan.
	Last time.Time
	// Duration is the duration of the last scan.
	Duration time.Duration
}

// ScanResult describes a finished scan.
type ScanResult struct {
	Kind   Kind
	Status ScanStatus
	// Posts is the number of scans requested: more than one after a failure, or if another scan was running.
	Posts int
}

type scanDoc struct {
	Active   bool  `json:"scanActive"`
	Last     stamp `json:"lastScanTimestamp"`
	Duration int64 `json:"lastScanDuration"` // ms
}

func (d scanDoc) status() ScanStatus {
	return ScanStatus{Active: d.Active, Last: d.Last.Time, Duration: time.Duration(d.Duration) * time.Millisecond}
}

func (k Kind) scanPath() string { return "/data/api/v1/scan/" + string(k) }

// ScanStatus returns the status of a kind: GET /data/api/v1/scan/{projects,config} [SPEC].
func (c *Client) ScanStatus(ctx context.Context, kind Kind) (ScanStatus, error) {
	doc, err := get[scanDoc](ctx, c, kind.scanPath(), nil)
	return doc.status(), err
}

// Scan makes the gateway read a tree again and waits for the end of the scan. It sends POST /data/api/v1/scan/{projects,config}
// without parameters and body, and polls until no scan is active and the last one ended later than the last one before the
// POST [SPEC, LIVE 8.3.9]. The POST also releases a scan lock.
//
// The scan covers everything written before the call. A scan that is already running may have started earlier, so Scan
// requests a second one. It cannot observe whether the gateway starts a new scan for a POST or joins the running one.
//
// Scan retries server errors, broken connections, restarts of the gateway and scans without a result a bounded number
// of times. If that does not help, or a scan exceeds Config.ScanTimeout, it returns ScanFailed, or a more specific reason such as
// GatewayForbidden. The result then only has the Kind, the Posts, and the Status of the last scan that ended.
func (c *Client) Scan(ctx context.Context, kind Kind) (ScanResult, error) {
	result := ScanResult{Kind: kind}
	var last error
	for attempt := range scanAttempts {
		if attempt > 0 {
			c.log.LogAttrs(ctx, slog.LevelInfo, "retrying the scan",
				slog.String("kind", string(kind)), slog.Int("attempt", attempt+1), slog.Any("error", last))
			if err := pause(ctx, 2*pollPause(c.cfg.PollInterval, 2*attempt)); err != nil {
				last = fmt.Errorf("%w: %w", err, last)
				break
			}
		}
		if last = c.scanOnce(ctx, &result); last == nil {
			return result, nil
		}
		if ctx.Err() != nil || !retryable(last) {
			break
		}
	}
	return result, scanFailure(kind, result.Posts, last)
}

const scanAttempts = 4

var (
	errScanLost       = errors.New("the gateway restarted, or its clock went back, during the scan")
	errScanNoProgress = errors.New("the scan ended without a result")
	errScanEndless    = errors.New("the scan did not end in time")
)

// scanOnce requests a scan and waits for its end. If another scan was running, it then requests and waits once more.
func (c *Client) scanOnce(ctx context.Context, result *ScanResult) error {
	before, err := c.ScanStatus(ctx, result.Kind)
	if err != nil {
		return err
	}
	rounds := 1
	if before.Active {
		// Do not wait for the running scan first, because it might wait for our lock.
		rounds = 2
	}
	for range rounds {
		result.Posts++
		posted, err := doJSON[scanDoc](ctx, c, call{method: http.MethodPost, path: result.Kind.scanPath()})
		if err != nil {
			return err
		}
		after, err := c.waitForScan(ctx, result.Kind, before, posted.status())
		if err != nil {
			return err
		}
		before, result.Status = after, after
	}
	return nil
}

// waitForScan polls until a scan has ended after before.Last. now is the status after the request. It compares only times of the
// gateway.
func (c *Client) waitForScan(ctx context.Context, kind Kind, before, now ScanStatus) (ScanStatus, error) {
	bounded, cancel := context.WithTimeoutCause(ctx, c.cfg.ScanTimeout, errScanEndless)
	defer cancel()
	// A scan is asynchronous: it may take a moment to show as active, and may be too short to be seen active.
	idlePolls, maxIdlePolls := 0, 10
	var pollErr error // of the last poll, as when the gateway restarts meanwhile
	for n := 0; ; n++ {
		switch {
		case pollErr != nil: // no new status
		case now.Last.Before(before.Last):
			return now, errScanLost
		case !now.Active && now.Last.After(before.Last):
			return now, nil
		case now.Active:
			idlePolls, maxIdlePolls = 0, 2
		default:
			if idlePolls++; idlePolls > maxIdlePolls {
				return now, errScanNoProgress
			}
		}
		if err := pause(bounded, pollPause(c.cfg.PollInterval, n)); err != nil {
			if pollErr != nil {
				err = fmt.Errorf("%w; the last check: %w", err, pollErr)
			}
			return now, err
		}
		if now, pollErr = c.ScanStatus(bounded, kind); pollErr != nil && !retryable(pollErr) && bounded.Err() == nil {
			return now, pollErr
		}
	}
}

// pollPause returns the pause after poll n, with jitter. It starts at the interval and grows by half with each poll, up to eight times
// the interval.
func pollPause(interval time.Duration, n int) time.Duration {
	d := interval
	for range min(n, 6) {
		d += d / 2
	}
	return backoff.Jitter(min(d, 8*interval))
}

// pause waits for d. It returns an error if ctx ends before.
func pause(ctx context.Context, d time.Duration) error {
	if !backoff.Wait(ctx, d) {
		return fmt.Errorf("canceled: %w", context.Cause(ctx))
	}
	return nil
}

// retryable reports whether the same request may succeed soon without intervention.
func retryable(err error) bool {
	if errors.Is(err, errScanLost) || errors.Is(err, errScanNoProgress) {
		return true
	}
	if errors.Is(err, errScanEndless) {
		return false // the scan may still be running, and another POST would queue one more
	}
	if s, ok := errors.AsType[*StatusError](err); ok {
		return s.Status >= 500
	}
	return failure.Is(err, v1alpha1.ReasonGatewayUnreachable)
}

// scanFailure returns the error of Scan: ScanFailed, unless err has a more specific reason, or the gateway's port is closed.
func scanFailure(kind Kind, posts int, err error) error {
	switch reason := failure.Reason(err, v1alpha1.ReasonScanFailed); {
	case reason != v1alpha1.ReasonGatewayUnreachable && reason != v1alpha1.ReasonScanFailed:
		return failure.New(reason, "the %s scan failed: %w", kind, err)
	case isDial(err):
		return failure.New(v1alpha1.ReasonGatewayUnreachable, "the %s scan failed: %w", kind, err)
	}
	return failure.New(v1alpha1.ReasonScanFailed,
		"the gateway did not finish a scan of %s after %d requests; see the gateway's own log: %w", kind, posts, err)
}

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

// lockDoc is the gateway's answer about a lock.
type lockDoc struct {
	Actor text `json:"actor"` // the holder, as the gateway names it
}

func (k Kind) lockPath() string { return "/data/api/v1/scan-lock/" + string(k) }

// Lock takes the scan lock for hold, in whole seconds and at least one: POST /data/api/v1/scan-lock/{projects,config} [SPEC]
// (the package comment explains such marks). Until the lock ends, the gateway does not write to the tree, and saves of users
// wait, so hold should be short. The lock ends with the next Scan of the kind, or after hold; there is no other way to release
// or to renew it.
//
// After ErrLockHeld or ErrLockTimeout the caller may continue without the lock, and should report that.
func (c *Client) Lock(ctx context.Context, kind Kind, hold time.Duration) error {
	hold = max(hold.Truncate(time.Second), time.Second)
	wait := max(c.cfg.LockWait.Truncate(time.Second), time.Second)
	_, err := doJSON[lockDoc](ctx, c, call{
		method:       http.MethodPost,
		path:         kind.lockPath(),
		body:         map[string]int64{"acquireTimeout": int64(wait / time.Second), "holdTimeout": int64(hold / time.Second)},
		extraTimeout: wait,
	})
	switch s, ok := errors.AsType[*StatusError](err); {
	case ok && s.Status == http.StatusConflict:
		return fmt.Errorf("%w of %s%s: %w", ErrLockHeld, kind, c.describeHolder(ctx, kind), s)
	case ok && s.Status == http.StatusRequestTimeout:
		return fmt.Errorf("%w of %s for %s%s: %w", ErrLockTimeout, kind, wait, c.describeHolder(ctx, kind), s)
	}
	return err
}

// LockHolder returns the holder of the scan lock, as the gateway names it, and whether there is one: GET
// /data/api/v1/scan-lock/{projects,config}. The gateway answers 204 without a lock [SPEC].
func (c *Client) LockHolder(ctx context.Context, kind Kind) (actor string, held bool, err error) {
	r := call{method: http.MethodGet, path: kind.lockPath()}
	got, err := c.do(ctx, r)
	if err != nil || got.status == http.StatusNoContent {
		return "", false, err
	}
	doc, err := decode[lockDoc](c, r, got)
	return serverText(string(doc.Actor), got.key), err == nil, err
}

// describeHolder names the holder of a lock for an error, or returns "" if it is not known.
func (c *Client) describeHolder(ctx context.Context, kind Kind) string {
	actor, held, err := c.LockHolder(ctx, kind)
	if err != nil || !held || actor == "" {
		return ""
	}
	return " (holder: " + actor + ")"
}
