// Package redundancy decides what the agent of one node of a redundant pair writes.
//
// The gateways of a pair copy core, the deployment modes and the projects from the node with config access to the other
// one, which is on standby. These are the replicated files. The agent of the standby node writes only other files, and
// compares the replicated ones. It adopts those that equal git into the manifest, so that the manifest is right after a
// failover. docs/how-to/redundancy.md has the details.
//
// The manifest of a node that takes over may not match its disk: the pair has copied files, perhaps of a commit that this
// agent never saw. So a note records whether the node had config access. The first plan with config access compares every
// replicated file, and replaces differences with git's version, after saving them to lost+found. Only then is the node
// synced.
package redundancy

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"strings"
	"time"

	"stoker.io/stoker/agent/disk"
	"stoker.io/stoker/agent/ignition"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/plan/desired"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// Gateway is the part of the gateway's REST API that reports a node's state in its pair.
type Gateway interface {
	Redundancy(ctx context.Context) (ignition.Redundancy, error)
}

// Config configures a Node for one sync.
type Config struct {
	Dir    *disk.Dir
	Memory *Memory
	Log    *slog.Logger
	Now    func() time.Time
	Note   func(format string, args ...any) // adds a note to the sync's report

	Ref    string
	Commit plan.ID
	Rules  plan.Rules
	// Repair reports that the sync restores files that users changed on the gateway.
	Repair bool
	// BeforeStart reports that the gateway starts only after the sync.
	BeforeStart bool
}

// Node is this gateway during one sync. An independent gateway is a Node that may write everything.
type Node struct {
	Config
	state       pairState
	recorded    recordedAccess
	paired      bool // see Paired
	copied      bool // see Copied
	tookOver    bool // it has config access, and had none when its files were last compared
	steppedDown bool // it has no config access, and had it when its files were last compared
	missing     missing
}

// pairState is what is known of the node's state in its pair.
type pairState struct {
	standby   bool // it has no config access
	paired    bool
	role      string
	answered  bool // the gateway itself has reported the state
	connected bool // the other node is connected
	pending   bool // the pair still has something to copy
	activity  string
}

// missing counts the replicated files that the other node has to write.
type missing struct {
	files int
	first string
}

func (m *missing) add(c plan.Change) {
	if m.files++; m.first == "" {
		m.first = c.Path
	}
}

// recordedAccess is the content of accessNote: the node's role if the node is on standby, or was and has not compared its files since;
// withAccess if it has config access. It is empty, and there is no note, for an independent gateway.
type recordedAccess string

const (
	accessNote = "standby"
	withAccess = "active"
)

func (r recordedAccess) standby() bool { return r != "" && r != withAccess }

// New returns the node with the access that the last sync recorded.
func New(c Config) (*Node, error) {
	note, err := c.Dir.Note(accessNote)
	n := &Node{Config: c, recorded: recordedAccess(note)}
	n.paired, n.copied = n.recorded != "", n.recorded.standby()
	return n, err
}

// Paired reports whether the gateway is one of a pair, so that it may gain or lose config access at any time.
func (n *Node) Paired() bool { return n.paired }

// Standby reports whether the node has no config access.
func (n *Node) Standby() bool { return n.state.standby }

// WasStandby reports whether the node had no config access when its files were last compared.
func (n *Node) WasStandby() bool { return n.recorded.standby() }

// Copied reports whether the pair may have copied files to this node, so that a plan must compare the replicated files.
func (n *Node) Copied() bool { return n.copied }

// AccessChanged reports whether the node has gained or lost config access since its files were last compared.
func (n *Node) AccessChanged() bool { return n.tookOver || n.steppedDown }

// Replicated reports whether a path is in a directory that the gateways of a pair copy to each other, according to the vendor: projects, and
// config/resources except external and local. A file there that belongs to no resource may not be copied; see mayWrite.
func Replicated(path string) bool {
	if strings.HasPrefix(path, "projects/") {
		return true
	}
	rest, ok := strings.CutPrefix(path, "config/resources/")
	return ok && !strings.HasPrefix(rest, "external/") && !strings.HasPrefix(rest, "local/")
}

// Source is where a Node reads its state from.
type Source struct {
	Gateway Gateway // nil if the gateway can never report the state
	Running bool
	Role    string // as the running gateway reports it without a token; "" if unknown
}

// DetermineAccess determines whether this node has config access, and records it. RecordCompared records a takeover.
func (n *Node) DetermineAccess(ctx context.Context, src Source) error {
	if err := n.readState(ctx, src); err != nil {
		return err
	}
	// If the gateway has no API, the role on the disk is all there is to know.
	last, known := n.recorded, n.state.answered || src.Gateway == nil
	n.copied = n.state.standby || last.standby()
	n.tookOver = last.standby() && !n.state.standby && known
	n.steppedDown = n.steppedDown || n.state.standby && !last.standby()
	n.paired = n.state.paired || last != ""
	switch {
	case n.state.standby:
		return n.recordAccess(recordedAccess(n.state.role))
	case last.standby(): // RecordCompared changes the note
		return nil
	case n.state.paired:
		return n.recordAccess(withAccess)
	case known: // without an answer, the note stays: the role on the disk may be out of date
		return n.recordAccess("")
	}
	return nil
}

// AccessUnchanged reports whether the node's config access is the same as when its files were last compared. It does not
// record the current access, so that the next sync notices a change.
func (n *Node) AccessUnchanged(ctx context.Context, src Source) (bool, error) {
	if n.recorded == "" {
		return true, nil
	}
	err := n.readState(ctx, src)
	return n.state.standby == n.recorded.standby(), err
}

// readState reads the node's state from the gateway. If the gateway does not answer, readState takes the role from src or redundancy.xml.
func (n *Node) readState(ctx context.Context, src Source) error {
	n.state, n.missing = pairState{}, missing{}
	if src.Running && src.Gateway != nil {
		red, err := src.Gateway.Redundancy(ctx)
		if err == nil {
			n.state = pairState{
				standby: red.Paired() && !red.HasConfigAccess, paired: red.Paired(), role: red.Role, connected: red.PeerConnected,
				answered: true, pending: red.SyncPending, activity: red.ActivityLevel,
			}
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		n.Log.Debug("gateway did not report its redundancy", "error", err)
	}
	role := src.Role
	if role == "" {
		var err error
		if role, err = n.roleOnDisk(); err != nil {
			return err
		}
	}
	n.state = pairState{standby: role == ignition.RoleBackup, paired: ignition.Redundancy{Role: role}.Paired(), role: role}
	if n.recorded != "" && n.state.paired && src.Running && src.Gateway != nil { // a single failed answer is not a failover
		n.state.standby = n.recorded.standby()
	}
	return nil
}

// roleOnDisk returns the role that the gateway starts with.
func (n *Node) roleOnDisk() (string, error) {
	raw, err := n.Dir.Read(ignition.RedundancyFile, ignition.MaxRedundancyFile)
	if errors.Is(err, fs.ErrNotExist) {
		return ignition.RoleIndependent, nil
	}
	if err != nil {
		return "", fmt.Errorf("read the gateway's redundancy role: %w", err)
	}
	role, err := ignition.NodeRole(raw)
	if err != nil {
		n.Note("%v: the agent treats the gateway as independent", err)
		return ignition.RoleIndependent, nil
	}
	return role, nil
}

func (n *Node) recordAccess(access recordedAccess) error {
	if access == n.recorded {
		return nil
	}
	note := []byte(access)
	if access == "" {
		note = nil
	}
	if err := n.Dir.SetNote(accessNote, note); err != nil {
		return err
	}
	n.recorded = access
	return nil
}

// RecordCompared records that a sync has compared the replicated files with desired, and delivered what it had to.
func (n *Node) RecordCompared(desired *desired.Tree) error {
	if err := n.recordUntracked(desired); err != nil || !n.tookOver {
		return err
	}
	if n.state.paired {
		return n.recordAccess(withAccess)
	}
	return n.recordAccess("")
}

// Header returns the header of the new manifest. While replicated files are missing it keeps the old commit and is
// incomplete, so that the reported commit is never ahead of the disk, and the next plan compares every file.
func (n *Node) Header(changes *plan.Changes) plan.Header {
	h := plan.Header{Ref: n.Ref, Commit: n.Commit, Rules: n.Rules.Fingerprint(), Mappings: changes.Mappings, Complete: true}
	if n.missing.files > 0 {
		old := n.Dir.Manifest().Header()
		h.Ref, h.Commit, h.Complete = old.Ref, old.Commit, false
		if old.Rules == "" && !old.Commit.IsZero() { // no sync has written the old commit
			h.Rules = ""
		}
	}
	return h
}

// Outcome returns the message of a successful sync about the pair, or an error if this node waits for the other one.
func (n *Node) Outcome() (message string, err error) {
	if n.state.standby && n.missing.files > 0 {
		waits := fmt.Sprintf("%d replicated files do not match %s yet (%s first); the other node of the pair has to write them",
			n.missing.files, n.Commit.Short(), n.missing.first)
		if n.state.answered && !n.state.connected {
			return "", failure.New(v1alpha1.ReasonNoConfigAccess, "%s has no config access, and its peer is not connected: %s", n.state, waits)
		}
		return "", failure.New(v1alpha1.ReasonProgressing, "%s: %s", n.state, waits)
	}
	var parts []string
	if n.state.standby {
		parts = append(parts, fmt.Sprintf("%s without config access: its replicated files match %s%s", n.state, n.Commit.Short(), n.driftSuffix()))
	}
	untracked, err := n.describeUntracked()
	if untracked != "" {
		parts = append(parts, untracked)
	}
	return strings.Join(parts, "; "), err
}

func (p pairState) String() string {
	if p.activity == "" {
		return "the " + strings.ToLower(p.role) + " of a redundant pair"
	}
	return fmt.Sprintf("the %s of a redundant pair (activity %s)", strings.ToLower(p.role), p.activity)
}
