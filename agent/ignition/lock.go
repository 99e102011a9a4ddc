package ignition

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"
)

// Lock is a scan lock of the gateway.
type Lock struct {
	Kind Kind
	// Actor is the holder, as the gateway names it.
	Actor string
	// GrantedAt is when the gateway granted the lock, in the gateway's clock.
	GrantedAt time.Time
	// Until is the earliest time at which the lock may expire, in the clock of this process; zero in the result of LockHolder.
	Until time.Time
}

type lockDoc struct {
	Timestamp stamp `json:"timestamp"`
	Actor     text  `json:"actor"`
	// "remaining" is missing here, because its unit is not documented
}

func (d lockDoc) lock(kind Kind, until time.Time) Lock {
	return Lock{Kind: kind, Actor: oneLine(string(d.Actor), 100), GrantedAt: d.Timestamp.Time, Until: until}
}

func (k Kind) lockPath() string { return "/data/api/v1/scan-lock/" + string(k) }

// Lock takes the scan lock for hold, in whole seconds and at least one: POST /data/api/v1/scan-lock/{projects,config}
// [SPEC]. Until the lock ends, the gateway does not write to the tree, and saves of users wait, so hold should be short. The lock ends
// with the next Scan of the kind, or after hold; there is no other way to release or to renew it.
//
// After ErrLockHeld or ErrLockTimeout the caller may continue without the lock, and should report that.
func (c *Client) Lock(ctx context.Context, kind Kind, hold time.Duration) (Lock, error) {
	start := time.Now()
	hold = max(hold.Truncate(time.Second), time.Second)
	wait := max(c.cfg.LockWait.Truncate(time.Second), time.Second)
	doc, err := doJSON[lockDoc](ctx, c, call{
		method:       http.MethodPost,
		path:         kind.lockPath(),
		body:         map[string]int64{"acquireTimeout": int64(wait / time.Second), "holdTimeout": int64(hold / time.Second)},
		extraTimeout: wait,
	})
	if err == nil {
		return doc.lock(kind, start.Add(hold)), nil
	}
	switch s, ok := errors.AsType[*StatusError](err); {
	case ok && s.Status == http.StatusConflict:
		return Lock{}, fmt.Errorf("%w of %s%s: %w", ErrLockHeld, kind, c.heldBy(ctx, kind), s)
	case ok && s.Status == http.StatusRequestTimeout:
		return Lock{}, fmt.Errorf("%w (%s of %s%s): %w", ErrLockTimeout, wait, kind, c.heldBy(ctx, kind), s)
	}
	return Lock{}, err
}

// LockHolder returns the scan lock in force: GET /data/api/v1/scan-lock/{projects,config}. The gateway answers 204 without
// a lock [SPEC].
func (c *Client) LockHolder(ctx context.Context, kind Kind) (Lock, bool, error) {
	r := call{method: http.MethodGet, path: kind.lockPath()}
	got, err := c.do(ctx, r)
	if err != nil || got.status == http.StatusNoContent {
		return Lock{}, false, err
	}
	doc, err := decode[lockDoc](c, r, got)
	return doc.lock(kind, time.Time{}), err == nil, err
}

// heldBy names the holder of a lock for an error, or returns "".
func (c *Client) heldBy(ctx context.Context, kind Kind) string {
	lock, held, err := c.LockHolder(ctx, kind)
	if err != nil || !held || lock.Actor == "" {
		return ""
	}
	return ", held by " + lock.Actor
}
