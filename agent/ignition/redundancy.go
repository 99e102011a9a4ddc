package ignition

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// Roles of a node in a redundant pair, as the gateway names them [IA].
const (
	RoleIndependent = "Independent"
	RoleMaster      = "Master"
	RoleBackup      = "Backup"
)

// Redundancy is a node's state in a redundant pair: GET /data/api/v1/redundancy [SPEC].
type Redundancy struct {
	Role          string
	ActivityLevel string
	ProjectState  string
	PeerConnected bool
	// HasConfigAccess reports whether this node may change its configuration now.
	HasConfigAccess bool
	SyncPending     bool
}

// Paired reports whether the node is part of a redundant pair.
func (r Redundancy) Paired() bool { return r.Role != "" && r.Role != RoleIndependent }

// Redundancy returns the node's state in a redundant pair.
func (c *Client) Redundancy(ctx context.Context) (Redundancy, error) {
	doc, err := get[struct {
		Role            text `json:"role"`
		ActivityLevel   text `json:"activityLevel"`
		ProjectState    text `json:"projectState"`
		PeerConnected   bool `json:"peerConnected"`
		HasConfigAccess bool `json:"hasConfigAccess"`
		SyncPending     bool `json:"syncPending"`
	}](ctx, c, "/data/api/v1/redundancy", nil)
	return Redundancy{
		Role: oneLine(string(doc.Role), 40), ActivityLevel: oneLine(string(doc.ActivityLevel), 40),
		ProjectState: oneLine(string(doc.ProjectState), 40), PeerConnected: doc.PeerConnected,
		HasConfigAccess: doc.HasConfigAccess, SyncPending: doc.SyncPending,
	}, err
}

// RedundancyFile is the file with the gateway's role in a redundant pair, relative to its data directory [IA].
// MaxRedundancyFile is far larger than any such file.
const (
	RedundancyFile    = "redundancy.xml"
	MaxRedundancyFile = 64 << 10
)

// maxEntries bounds how many entries of redundancy.xml NodeRole reads.
const maxEntries = 1000

// NodeRole parses the node's role from redundancy.xml: Java properties in XML with the entry redundancy.noderole [IA].
// It is the role that the gateway starts with; only Redundancy returns the current one. A file without the entry
// belongs to an independent gateway; invalid XML is an error.
func NodeRole(raw []byte) (string, error) {
	if len(raw) > MaxRedundancyFile {
		return "", fmt.Errorf("%s has %d bytes: not a redundancy file", RedundancyFile, len(raw))
	}
	dec := xml.NewDecoder(bytes.NewReader(raw))
	// Java writes UTF-8. Ignore another declared encoding, because it does not affect the entry that matters here.
	dec.CharsetReader = func(_ string, in io.Reader) (io.Reader, error) { return in, nil }
	for range maxEntries {
		start, err := nextEntry(dec)
		if errors.Is(err, io.EOF) {
			return RoleIndependent, nil
		}
		if err != nil {
			return "", fmt.Errorf("%s: %w", RedundancyFile, err)
		}
		var value string
		if err := dec.DecodeElement(&value, &start); err != nil {
			return "", fmt.Errorf("%s: %w", RedundancyFile, err)
		}
		if keyOf(start) == "redundancy.noderole" {
			return role(value), nil
		}
	}
	return RoleIndependent, nil
}

// nextEntry finds the next <entry> element.
func nextEntry(dec *xml.Decoder) (xml.StartElement, error) {
	for {
		tok, err := dec.Token()
		if err != nil {
			return xml.StartElement{}, err
		}
		if start, ok := tok.(xml.StartElement); ok && start.Name.Local == "entry" {
			return start, nil
		}
	}
}

func keyOf(e xml.StartElement) string {
	for _, a := range e.Attr {
		if a.Name.Local == "key" {
			return a.Value
		}
	}
	return ""
}

func role(value string) string {
	value = strings.TrimSpace(value)
	for _, known := range []string{RoleIndependent, RoleMaster, RoleBackup} {
		if strings.EqualFold(value, known) {
			return known
		}
	}
	return oneLine(value, 40)
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
