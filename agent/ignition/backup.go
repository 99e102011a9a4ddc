package ignition

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

const (
	// backupTime bounds a whole backup. An iteration of the agent's loop may make two, because it may plan a sync twice, and must take
	// less than maxIteration of package loop, an hour.
	backupTime = 20 * time.Minute
	// zipMagic is how a backup begins: it is a zip file.
	zipMagic = "PK\x03\x04"
)

// Backup streams a backup of the gateway (.gwbk), as the gateway makes it [SPEC], to w. It does not limit the size.
// An error of w ends the backup and is returned unchanged.
func (c *Client) Backup(ctx context.Context, w io.Writer) error {
	r := call{method: http.MethodGet, path: "/data/api/v1/backup"}
	timed, end := context.WithTimeoutCause(ctx, backupTime, fmt.Errorf("it took more than %s", backupTime))
	defer end()
	inner, cancel := context.WithCancelCause(timed)
	defer cancel(nil)
	stall := c.cfg.BackupStall
	stalled := time.AfterFunc(stall, func() { cancel(fmt.Errorf("no bytes arrived for %s", stall)) })
	defer stalled.Stop()
	key, err := c.key(r)
	if err != nil {
		return err
	}
	interrupted := func(err error) error {
		if inner.Err() != nil {
			err = context.Cause(inner)
		}
		return c.unreachable(ctx, r, backupTime, key, err)
	}
	req, err := newRequest(inner, c.base, r, key)
	if err != nil {
		return err
	}
	req.Header.Set("Accept", "*/*")
	resp, err := c.http.Do(req)
	if err != nil {
		return interrupted(err)
	}
	defer resp.Body.Close()
	got := answer{status: resp.StatusCode, header: resp.Header}
	if !got.success() {
		got.body, _ = io.ReadAll(io.LimitReader(resp.Body, maxRefusal)) // a truncated error page still has its status
		return c.refused(ctx, r, got, key)
	}
	buf := make([]byte, 64<<10)
	n, err := io.ReadAtLeast(resp.Body, buf, len(zipMagic))
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return interrupted(err)
	}
	if !bytes.HasPrefix(buf[:n], []byte(zipMagic)) {
		return failure.New(v1alpha1.ReasonGatewayUnreachable, "%s %s on %s did not answer with a backup: it begins with %q", r.method, r.path, c.base, buf[:min(n, len(zipMagic))])
	}
	for err == nil {
		if _, err := w.Write(buf[:n]); err != nil {
			return err
		}
		stalled.Reset(stall)
		n, err = resp.Body.Read(buf)
	}
	if !errors.Is(err, io.EOF) {
		return interrupted(err)
	}
	_, err = w.Write(buf[:n])
	return err
}
