// Package redundancy decides what the agent of one node of a redundant pair writes.
//
// The gateways of a pair copy core, the deployment modes and the projects from the node with config access to the other
// one, which is on standby. The agent of the standby node writes only what the pair does not copy, and compares the
// content of the rest. It adopts copied files that equal git into the manifest, so that the manifest is right after a
// failover. docs/how-to/redundancy.md has the details.
//
// The manifest of a node that takes over does not tell what is on its disk: the pair has copied files, perhaps of a
// commit that this agent never saw. So a note records the node's place. The first plan with config access compares
// every file that the pair may have copied, and replaces differences with git's version, after saving them to lost+found.
// Only then is the node synced.
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

// Gateway is the part of the gateway's REST API that tells a node's place.
type Gateway interface {
	Redundancy(ctx context.Context) (ignition.Redundancy, error)
}

// Config is what a Node needs to know of a sync.
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

// Node is this gateway during one sync. An independent gateway is a Node with every right.
type Node struct {
	Config
	place   place
	last    lastPlace // the recorded place
	paired  bool
	copied  bool
	takes   bool
	steps   bool
	missing missing
}

// place is what is known of the node's place in its pair. standby means that it has no config access.
type place struct {
	standby, paired bool
	role            string
	// connected reports whether the other node is connected, asked whether the gateway itself answered, pending whether
	// it says that the pair has something to copy.
	connected, asked, pending bool
	activity                  string
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

// lastPlace is the content of placeNote: the node's role if it was on standby, or withAccess if it had config access
// and its files have been compared since. An independent gateway has no such note.
type lastPlace string

const (
	placeNote  = "standby"
	withAccess = "active"
)

func (p lastPlace) standby() bool { return p != "" && p != withAccess }

// New returns the node with its last known place.
func New(c Config) (*Node, error) {
	note, err := c.Dir.Note(placeNote)
	n := &Node{Config: c, last: lastPlace(note)}
	n.paired, n.copied = n.last != "", n.last.standby()
	return n, err
}

// Paired reports whether the gateway is one of a pair, so that its place may change at any time.
func (n *Node) Paired() bool { return n.paired }

// Standby reports whether the node has no config access.
func (n *Node) Standby() bool { return n.place.standby }

// WasStandby reports whether the node had no config access when its files were last compared.
func (n *Node) WasStandby() bool { return n.last.standby() }

// Copied reports whether the pair may have copied the replicated files, so that the manifest does not tell what is on
// the disk, and a plan must compare them.
func (n *Node) Copied() bool { return n.copied }

// Moved reports whether the node has taken over, or stepped back, since its files were compared.
func (n *Node) Moved() bool { return n.takes || n.steps }

// Replicated reports whether the gateways of a pair copy a path to each other [IA]. If that is not certain, as for the
// config of modules, both agents write the same bytes.
func Replicated(path string) bool {
	if strings.HasPrefix(path, "projects/") {
		return true
	}
	rest, ok := strings.CutPrefix(path, "config/resources/")
	return ok && !strings.HasPrefix(rest, "external/") && !strings.HasPrefix(rest, "local/")
}

// Source is where the node's place is read from.
type Source struct {
	Gateway Gateway // nil if the gateway can never tell its place
	Running bool
	Role    string // as the running gateway reports it without a token; "" if unknown
}

// Locate determines whether this node has config access, and records it.
func (n *Node) Locate(ctx context.Context, from Source) error {
	if err := n.ask(ctx, from); err != nil {
		return err
	}
	was, known := n.last, n.place.asked || from.Gateway == nil
	if was == withAccess && from.Running && !known { // a single failed answer is not a failover
		n.place.standby, n.place.paired = false, true
	}
	n.copied = n.place.standby || was.standby()
	n.takes = was.standby() && !n.place.standby && known
	n.steps = n.steps || n.place.standby && !was.standby()
	n.paired = n.place.paired || was != ""
	switch {
	case n.place.standby:
		return n.record(lastPlace(n.place.role))
	case was.standby(): // keep it until the files are compared
		return nil
	case n.place.paired:
		return n.record(withAccess)
	case known: // otherwise its role stands in for its place, and its next answer may differ
		return n.record("")
	}
	return nil
}

// Stays reports whether the node has the place that it had when its files were last compared. It does not record the
// current place, so that the next sync notices a change and compares the files.
func (n *Node) Stays(ctx context.Context, from Source) (bool, error) {
	if n.last == "" {
		return true, nil
	}
	err := n.ask(ctx, from)
	return n.place.standby == n.last.standby(), err
}

// ask determines the node's place from the gateway, or from redundancy.xml if the gateway does not answer.
func (n *Node) ask(ctx context.Context, from Source) error {
	n.place, n.missing = place{}, missing{}
	if from.Running && from.Gateway != nil {
		red, err := from.Gateway.Redundancy(ctx)
		if err == nil {
			n.place = place{
				standby: red.Paired() && !red.HasConfigAccess, paired: red.Paired(), role: red.Role, connected: red.PeerConnected,
				asked: true, pending: red.SyncPending, activity: red.ActivityLevel,
			}
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		n.Log.Debug("gateway did not report its redundancy", "error", err)
	}
	role := from.Role
	if role == "" {
		var err error
		if role, err = n.roleOnDisk(); err != nil {
			return err
		}
	}
	n.place = place{standby: role == ignition.RoleBackup, paired: ignition.Redundancy{Role: role}.Paired(), role: role}
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

func (n *Node) record(now lastPlace) error {
	if now == n.last {
		return nil
	}
	note := []byte(now)
	if now == "" {
		note = nil
	}
	if err := n.Dir.SetNote(placeNote, note); err != nil {
		return err
	}
	n.last = now
	return nil
}

// Compared records that the replicated files have been compared with tree and are the commit's.
func (n *Node) Compared(tree *desired.Tree) error {
	if err := n.recordExtra(tree); err != nil || !n.takes {
		return err
	}
	if n.place.paired {
		return n.record(withAccess)
	}
	return n.record("")
}

// Header returns the header of the new manifest. While replicated files are missing it keeps the old commit and is
// incomplete, so that the reported commit is never ahead of the disk, and the next plan compares every file.
func (n *Node) Header(changes *plan.Changes) plan.Header {
	h := plan.Header{Ref: n.Ref, Commit: n.Commit, Rules: n.Rules.Fingerprint(), Mappings: changes.Mappings, Complete: true}
	if n.missing.files > 0 {
		was := n.Dir.Manifest().Header()
		h.Ref, h.Commit, h.Complete = was.Ref, was.Commit, false
	}
	return h
}

// Outcome returns what a successful sync reports of the pair, or why a standby node still waits for the other node.
func (n *Node) Outcome() (message string, err error) {
	if n.place.standby && n.missing.files > 0 {
		waits := fmt.Sprintf("%d replicated files do not match %s yet (%s first); the other node of the pair has to write them",
			n.missing.files, n.Commit.Short(), n.missing.first)
		if n.place.asked && !n.place.connected {
			return "", failure.New(v1alpha1.ReasonNoConfigAccess, "%s has no config access, and its peer is not connected: %s", n.place, waits)
		}
		return "", failure.New(v1alpha1.ReasonProgressing, "%s: %s", n.place, waits)
	}
	var parts []string
	if n.place.standby {
		parts = append(parts, fmt.Sprintf("%s without config access: its replicated files match %s%s", n.place, n.Commit.Short(), n.exceptions()))
	}
	extra, err := n.describeExtra()
	if extra != "" {
		parts = append(parts, extra)
	}
	return strings.Join(parts, "; "), err
}

func (p place) String() string {
	if p.activity == "" {
		return "the " + strings.ToLower(p.role) + " of a redundant pair"
	}
	return fmt.Sprintf("the %s of a redundant pair (activity %s)", strings.ToLower(p.role), p.activity)
}
