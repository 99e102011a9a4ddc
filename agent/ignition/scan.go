package ignition

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// Kind is one of the two trees that a gateway scans.
type Kind string

// The trees that can be scanned [SPEC].
const (
	Projects   Kind = "projects" // data/projects
	ConfigScan Kind = "config"   // data/config
)

// ScanStatus is what a gateway says of its scans of one kind.
type ScanStatus struct {
	Active bool
	// Last is when the last scan ended, in the gateway's clock; zero before the first.
	Last time.Time
	// Duration is how long the last scan took.
	Duration time.Duration
}

// ScanResult is a scan that ended.
type ScanResult struct {
	Kind   Kind
	Status ScanStatus
	// Posts is how many scans were asked for: more than one after a failure, or where another scan was under way.
	Posts int
	// Took is the time from the call of Scan to the end of the scan as it was seen, in our clock.
	Took time.Duration
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

// ScanStatus asks how the scans of a kind stand: GET /data/api/v1/scan/{projects,config} [SPEC].
func (c *Client) ScanStatus(ctx context.Context, kind Kind) (ScanStatus, error) {
	doc, err := get[scanDoc](ctx, c, kind.scanPath(), nil)
	return doc.status(), err
}

// Scan makes the gateway read a tree again and waits until it has: POST /data/api/v1/scan/{projects,config}, without
// parameters and body, then polling until no scan is active and the time of the last one is later than before the POST
// [SPEC, LIVE 8.3.9]. The POST also releases a scan lock.
//
// Whatever was written before the call is in the scan: where another scan is under way, which may have begun before, a
// second one is asked for. It cannot be seen whether a gateway starts a scan anew for a POST during one, or joins them.
//
// A server error, a broken connection, a restart of the gateway and a scan that ends without a result are tried again, a
// bounded number of times; what then remains is ScanFailed. So is a scan that does not end within Config.ScanTimeout.
func (c *Client) Scan(ctx context.Context, kind Kind) (ScanResult, error) {
	result := ScanResult{Kind: kind}
	started := time.Now()
	var last error
	for attempt := range scanAttempts {
		if attempt > 0 {
			c.log.LogAttrs(ctx, slog.LevelInfo, "the scan is tried again",
				slog.String("kind", string(kind)), slog.Int("attempt", attempt+1), slog.Any("error", last))
			if err := pause(ctx, 2*c.backoff(2*attempt)); err != nil {
				last = fmt.Errorf("%w: %w", err, last)
				break
			}
		}
		if last = c.scanOnce(ctx, &result); last == nil {
			result.Took = time.Since(started)
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
	errScanLost       = errors.New("the time of the gateway's last scan went back: it was restarted, or its clock was set")
	errScanNoProgress = errors.New("the scan ended without a result")
	errScanEndless    = errors.New("the scan did not end in time")
)

// scanOnce posts and waits; it posts twice where another scan was under way.
func (c *Client) scanOnce(ctx context.Context, result *ScanResult) error {
	before, err := c.ScanStatus(ctx, result.Kind)
	if err != nil {
		return err
	}
	rounds := 1
	if before.Active {
		// Not waited for: with our lock in force it might wait for us in turn.
		rounds = 2
	}
	for range rounds {
		result.Posts++
		posted, err := ask[scanDoc](ctx, c, call{method: http.MethodPost, path: result.Kind.scanPath()})
		if err != nil {
			return err
		}
		after, err := c.awaitScan(ctx, result.Kind, before, posted.status())
		if err != nil {
			return err
		}
		before, result.Status = after, after
	}
	return nil
}

// awaitScan polls until a scan has ended that ends after before. Only times of the gateway are compared.
func (c *Client) awaitScan(ctx context.Context, kind Kind, before, now ScanStatus) (ScanStatus, error) {
	bounded, cancel := context.WithTimeoutCause(ctx, c.cfg.ScanTimeout, errScanEndless)
	defer cancel()
	// A scan is asynchronous: it may need a moment before it shows as active, and may be too short to be seen so.
	idle, patience := 0, 10
	var unseen error // why the last look failed: a gateway may restart while it is waited for
	for n := 0; ; n++ {
		switch {
		case unseen != nil: // nothing new to judge by
		case now.Last.Before(before.Last):
			return now, errScanLost
		case !now.Active && now.Last.After(before.Last):
			return now, nil
		case now.Active:
			idle, patience = 0, 2
		default:
			if idle++; idle > patience {
				return now, errScanNoProgress
			}
		}
		if err := pause(bounded, c.backoff(n)); err != nil {
			if unseen != nil {
				err = fmt.Errorf("%w; the last look: %w", err, unseen)
			}
			return now, err
		}
		if now, unseen = c.ScanStatus(bounded, kind); unseen != nil && !retryable(unseen) && bounded.Err() == nil {
			return now, unseen
		}
	}
}

// retryable reports whether the same request may succeed in a moment, without anybody's help.
func retryable(err error) bool {
	if errors.Is(err, errScanLost) || errors.Is(err, errScanNoProgress) {
		return true
	}
	if errors.Is(err, errScanEndless) {
		return false // it may still be at it: another POST would queue one more
	}
	if s, ok := errors.AsType[*StatusError](err); ok {
		return s.Status >= 500
	}
	return failure.Is(err, v1alpha1.ReasonGatewayUnreachable) && !Untrusted(err)
}

// scanFailure keeps the reasons that tell more than that the scan failed.
func scanFailure(kind Kind, posts int, err error) error {
	switch reason := failure.Reason(err, v1alpha1.ReasonScanFailed); {
	case reason != v1alpha1.ReasonGatewayUnreachable && reason != v1alpha1.ReasonScanFailed:
		return failure.New(reason, "the %s scan was not done: %w", kind, err)
	case isDial(err) || Untrusted(err):
		return failure.New(v1alpha1.ReasonGatewayUnreachable, "the %s scan was not done: %w", kind, err)
	}
	return failure.New(v1alpha1.ReasonScanFailed,
		"the gateway did not finish a scan of %s (asked for %d times); see the gateway's own log: %w", kind, posts, err)
}
