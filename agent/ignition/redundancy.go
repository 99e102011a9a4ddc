package ignition

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"strings"
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
		PeerConnected   bool `json:"peerConnected"`
		HasConfigAccess bool `json:"hasConfigAccess"`
		SyncPending     bool `json:"syncPending"`
	}](ctx, c, "/data/api/v1/redundancy", nil)
	return Redundancy{
		Role: oneLine(string(doc.Role), 40), ActivityLevel: oneLine(string(doc.ActivityLevel), 40),
		PeerConnected: doc.PeerConnected, HasConfigAccess: doc.HasConfigAccess, SyncPending: doc.SyncPending,
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
// belongs to an independent gateway. Invalid XML before the entry is an error.
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
