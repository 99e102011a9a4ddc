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
	// Taken is when the lock was granted, in the gateway's clock.
	Taken time.Time
	// Until is the earliest time at which the lock may expire, in our clock; zero for a lock of another actor.
	Until time.Time
}

type lockDoc struct {
	Timestamp stamp `json:"timestamp"`
	Actor     text  `json:"actor"`
	// "remaining" is ignored: its unit is not documented
}

func (d lockDoc) lock(kind Kind, until time.Time) Lock {
	return Lock{Kind: kind, Actor: oneLine(string(d.Actor), 100), Taken: d.Timestamp.Time, Until: until}
}

func (k Kind) lockPath() string { return "/data/api/v1/scan-lock/" + string(k) }

// Lock takes the scan lock for hold, which is whole seconds and at least one: POST
// /data/api/v1/scan-lock/{projects,config} [SPEC]. While the lock is held, the gateway does not write to the tree, and
// saves of users wait, so hold it briefly. It ends with the next Scan of the kind, or after hold; it can be neither
// released nor renewed.
//
// After ErrLockHeld or ErrLockTimeout the caller may continue without the lock and should report that.
func (c *Client) Lock(ctx context.Context, kind Kind, hold time.Duration) (Lock, error) {
	asked := time.Now()
	hold = max(hold.Truncate(time.Second), time.Second)
	wait := max(c.cfg.LockWait.Truncate(time.Second), time.Second)
	doc, err := ask[lockDoc](ctx, c, call{
		method:   http.MethodPost,
		path:     kind.lockPath(),
		body:     map[string]int64{"acquireTimeout": int64(wait / time.Second), "holdTimeout": int64(hold / time.Second)},
		patience: wait,
	})
	if err == nil {
		return doc.lock(kind, asked.Add(hold)), nil
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

func (c *Client) heldBy(ctx context.Context, kind Kind) string {
	lock, held, err := c.LockHolder(ctx, kind)
	if err != nil || !held || lock.Actor == "" {
		return ""
	}
	return ", held by " + lock.Actor
}
