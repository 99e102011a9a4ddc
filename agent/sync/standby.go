package sync

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"stoker.io/stoker/agent/ignition"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// The two gateways of a redundant pair copy core, the deployment modes and the projects from the one that has config
// access to the other. The other one is on standby: its agent writes only what the pair does not copy, and judges the
// rest by its content. What came by the pair and is equal to git is adopted into the manifest, so that a failover finds
// a manifest that says the truth; docs/redundancy.md has the whole argument.

// standby is the place of a node that has no config access.
type standby struct {
	on   bool
	role string
	// peer is whether the other node is connected; asked is whether the gateway itself said so.
	peer, asked bool
	activity    string
	behind      int    // files of the replicated trees that are not git's yet
	first       string // one of them
}

// replicated reports whether the gateways of a pair copy a path to each other [IA]. Where that is not known for sure (config
// of modules), both agents write: they write the same bytes.
func replicated(path string) bool {
	if strings.HasPrefix(path, "projects/") {
		return true
	}
	rest, ok := strings.CutPrefix(path, "config/resources/")
	return ok && !strings.HasPrefix(rest, "external/") && !strings.HasPrefix(rest, "local/")
}

// findPlace finds out whether this node may change its configuration, and keeps it for recall.
func (s *run) findPlace(ctx context.Context, state gatewayState) error {
	if err := s.askPlace(ctx, state); err != nil {
		return err
	}
	note, err := s.dir.Note(standbyNote)
	if err != nil || (note != nil) == s.standby.on {
		return err
	}
	if s.standby.on {
		return s.dir.SetNote(standbyNote, []byte(s.standby.role))
	}
	return s.dir.SetNote(standbyNote, nil)
}

// askPlace asks the gateway; one that does not run, or does not say, is what its redundancy.xml makes of it.
func (s *run) askPlace(ctx context.Context, state gatewayState) error {
	s.standby = standby{}
	if state == running && s.peers.Token && !s.older() {
		red, err := s.peers.Gateway.Redundancy(ctx)
		if err == nil {
			s.standby = standby{
				on: red.Paired() && !red.HasConfigAccess, role: red.Role, peer: red.PeerConnected, asked: true, activity: red.ActivityLevel,
			}
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		s.Log.Debug("redundancy is not known from the gateway", "error", err)
	}
	role := s.platform.Role
	if role == "" {
		var err error
		if role, err = s.roleOnDisk(); err != nil {
			return err
		}
	}
	s.standby = standby{on: role == ignition.RoleBackup, role: role}
	return nil
}

// roleOnDisk is the role that the gateway starts with.
func (s *run) roleOnDisk() (string, error) {
	raw, err := s.dir.Read(ignition.RedundancyFile, ignition.MaxRedundancyFile)
	if errors.Is(err, fs.ErrNotExist) {
		return ignition.RoleIndependent, nil
	}
	if err != nil {
		return "", fmt.Errorf("whether this gateway is one of a redundant pair: %w", err)
	}
	role, err := ignition.NodeRole(raw)
	if err != nil {
		s.note("%v: taken for an independent gateway", err)
		return ignition.RoleIndependent, nil
	}
	return role, nil
}

// restrict takes out of a plan what a standby node must not write, and counts it. Adoptions stay: what lies there and is
// equal is ours, whoever brought it.
func (s *run) restrict(changes *plan.Changes) (*plan.Changes, error) {
	if !s.standby.on {
		return changes, nil
	}
	own := *changes
	own.List = make([]plan.Change, 0, len(changes.List))
	known := members{s: s, list: changes.List}
	for _, c := range changes.List {
		copied := writes(c) && replicated(c.Path)
		if copied {
			var err error
			if copied, err = known.has(c); err != nil {
				return nil, err
			}
		}
		if !copied {
			own.List = append(own.List, c)
			continue
		}
		drifted, err := s.drifted(c)
		if err != nil {
			return nil, err
		}
		if drifted {
			own.Drifted++
			continue
		}
		if s.standby.behind++; s.standby.first == "" {
			s.standby.first = c.Path
		}
	}
	if n := own.Drifted - changes.Drifted; n > 0 && (s.force || s.t.Repair) {
		s.note("%d replicated files were changed on the gateway and are not restored on a node without config access", n)
	}
	own.Held = stillHeld(changes.Held, own.List)
	return &own, nil
}

// drifted reports whether a change would only restore what git wanted before already. Nobody is waited for then: the pair
// copies what changes on the other node, and does not look at what was changed on this one.
func (s *run) drifted(c plan.Change) (bool, error) {
	if !c.Owned || c.Op == plan.Delete {
		return false, nil
	}
	rec, ok, err := s.dir.Manifest().Get(c.Path)
	return ok && rec.Want == c.ID && rec.Exec == c.Exec, err
}

// massOwn is how many deletions a standby node makes by itself before a held plan stays held.
const massOwn = 20

// stillHeld is what is left of a reason to wait for a person, when the changes that are not made here are out of it.
func stillHeld(held *plan.Held, list []plan.Change) *plan.Held {
	if held == nil {
		return nil
	}
	deleted := 0
	for _, c := range list {
		if c.Op == plan.Delete {
			deleted++
		}
		if held.Reason == v1alpha1.ReasonConflictDetected && c.Conflict && writes(c) {
			return held
		}
	}
	own := slices.ContainsFunc(held.Paths, func(p string) bool { return !replicated(p) })
	if held.Reason == v1alpha1.ReasonConflictDetected && own || deleted > massOwn {
		return held
	}
	return nil
}

// header is what the manifest says after this sync. While replicated files are missing it stays at the commit that was
// there, incomplete: the commit that is reported is never ahead of the disk, and the next plan looks at every file.
func (s *run) header(changes *plan.Changes) plan.Header {
	h := plan.Header{
		Ref: s.t.Ref, Commit: s.t.Commit, Rules: s.rules.Fingerprint(), Mappings: changes.Mappings, Complete: true,
	}
	if s.standby.behind > 0 {
		was := s.dir.Manifest().Header()
		h.Ref, h.Commit, h.Complete = was.Ref, was.Commit, false
	}
	return h
}

const standbyNote = "standby"

// recall finds out, for a sync that had nothing to do, whether the node is on standby still: only one that was so at its
// last sync is asked.
func (s *run) recall(ctx context.Context) error {
	note, err := s.dir.Note(standbyNote)
	if err != nil || note == nil || s.t.BeforeStart || s.t.Profile.DryRun {
		return err
	}
	state, _ := s.look(ctx)
	return s.findPlace(ctx, state)
}

// stand ends a sync that went well as far as it could: on a standby node it is Standby, or not yet.
func (s *run) stand() error {
	if !s.standby.on {
		return nil
	}
	if s.standby.behind == 0 {
		s.r.Phase, s.r.Reason = Standby, v1alpha1.ReasonStandby
		s.r.Message = also(s.r.Message, fmt.Sprintf("%s without config access: its replicated files are those of %s", s.standby.who(), s.t.Commit.Short()))
		return nil
	}
	waits := fmt.Sprintf("%d replicated files are not those of %s yet (%s first); the other node of the pair has to write them",
		s.standby.behind, s.t.Commit.Short(), s.standby.first)
	if s.standby.asked && !s.standby.peer {
		return failure.New(v1alpha1.ReasonNoConfigAccess,
			"%s has no config access, and its peer is not connected: %s", s.standby.who(), waits)
	}
	return failure.New(v1alpha1.ReasonProgressing, "%s: %s", s.standby.who(), waits)
}

func (p standby) who() string {
	if p.activity == "" {
		return "the " + strings.ToLower(p.role) + " of a redundant pair"
	}
	return fmt.Sprintf("the %s of a redundant pair (activity %s)", strings.ToLower(p.role), p.activity)
}
