package ignition

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"
)

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
	return oneLine(string(doc.Actor), 100), err == nil, err
}

// describeHolder names the holder of a lock for an error, or returns "" if it is not known.
func (c *Client) describeHolder(ctx context.Context, kind Kind) string {
	actor, held, err := c.LockHolder(ctx, kind)
	if err != nil || !held || actor == "" {
		return ""
	}
	return " (holder: " + actor + ")"
}
