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

// The gateways of a redundant pair copy core, the deployment modes and the projects from the node with config access to
// the other one, which is on standby. The agent of the standby node writes only what the pair does not copy, and
// compares the content of the rest. It adopts copied files that equal git into the manifest, so that the manifest is
// right after a failover. docs/redundancy.md has the details.

// standby is the place of a node in a redundant pair. on means that it has no config access.
type standby struct {
	on, paired bool
	role       string
	// peer reports whether the other node is connected, asked whether the gateway itself answered, pending whether it
	// says that the pair has something to copy.
	peer, asked, pending bool
	activity             string
	behind               int    // replicated files that are not git's yet
	first                string // one of them
}

// replicated reports whether the gateways of a pair copy a path to each other [IA]. If that is not certain, as for the
// config of modules, both agents write the same bytes.
func replicated(path string) bool {
	if strings.HasPrefix(path, "projects/") {
		return true
	}
	rest, ok := strings.CutPrefix(path, "config/resources/")
	return ok && !strings.HasPrefix(rest, "external/") && !strings.HasPrefix(rest, "local/")
}

// askPlace determines the node's place from the gateway, or from redundancy.xml if the gateway does not answer.
func (s *run) askPlace(ctx context.Context, state gatewayState) error {
	s.standby = standby{}
	if state == running && s.conn.Token && !s.older() {
		red, err := s.conn.Gateway.Redundancy(ctx)
		if err == nil {
			s.standby = standby{
				on: red.Paired() && !red.HasConfigAccess, paired: red.Paired(), role: red.Role, peer: red.PeerConnected, asked: true,
				pending: red.SyncPending, activity: red.ActivityLevel,
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
	s.standby = standby{on: role == ignition.RoleBackup, paired: ignition.Redundancy{Role: role}.Paired(), role: role}
	return nil
}

// roleOnDisk returns the role that the gateway starts with.
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

// restrict removes from a plan what a standby node must not write, and counts it. Adoptions stay: a file that equals
// git is owned, whoever wrote it.
func (s *run) restrict(changes *plan.Changes) (*plan.Changes, error) {
	if !s.standby.on {
		return changes, nil
	}
	own := *changes
	own.List = make([]plan.Change, 0, len(changes.List))
	known := members{s: s, list: changes.List}
	var changed, strange []plan.Change
	for _, c := range changes.List {
		copied := writes(c) && replicated(c.Path)
		if copied {
			var err error
			if copied, err = known.has(c); err != nil {
				return nil, err
			}
		}
		if !copied {
			keep, err := s.mayRestore(changes, c)
			if err != nil {
				return nil, err
			}
			if keep {
				own.List = append(own.List, c)
			} else {
				own.Drifted++
			}
			continue
		}
		what, err := s.judge(changes, c)
		if err != nil {
			return nil, err
		}
		switch what {
		case equal:
		case odd:
			changed = append(changed, c)
		case unrecorded:
			strange = append(strange, c)
		case stray:
			own.Drifted++
		default:
			s.standby.wait(c)
		}
	}
	own.Drifted += len(s.leave(changes, changed, strange))
	own.Held = s.stillHeld(changes.Held, own.List)
	return &own, nil
}

// mayRestore reports whether the policies allow a change that this node would make itself. The plan of a standby node
// restores everything that the pair may have copied, but a user may have changed a file that no pair copies, such as a
// README.
func (s *run) mayRestore(changes *plan.Changes, c plan.Change) (bool, error) {
	if s.force || s.t.Repair || !replicated(c.Path) || !writes(c) {
		return true, nil
	}
	rec, owned, err := s.dir.Manifest().Get(c.Path)
	return !owned || !asBefore(changes, c, rec), err
}

// stillHeld returns the reason to hold the plan after restrict. Conflicts are only of files that the pair does not copy,
// and always hold. A mass deletion still holds if this node deletes any file itself: the active node is held for the
// same reason.
func (s *run) stillHeld(held *plan.Held, list []plan.Change) *plan.Held {
	if held == nil || held.Reason == v1alpha1.ReasonConflictDetected {
		return held
	}
	if slices.ContainsFunc(list, func(c plan.Change) bool {
		return c.Op == plan.Delete || s.rules.Conflict == plan.Hold && c.Conflict && writes(c)
	}) {
		return held
	}
	return nil
}

// header returns the header of the new manifest. While replicated files are missing it keeps the old commit and is
// incomplete, so that the reported commit is never ahead of the disk, and the next plan compares every file.
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

// stand ends a successful sync. On a standby node the outcome is Standby, or waiting for the other node.
func (s *run) stand() error {
	if !s.standby.on {
		return s.nameStrangers()
	}
	if s.standby.behind == 0 {
		s.r.Phase, s.r.Reason = Standby, v1alpha1.ReasonStandby
		s.r.Message = also(s.r.Message, fmt.Sprintf("%s without config access: its replicated files are those of %s%s",
			s.standby.who(), s.t.Commit.Short(), s.exceptions()))
		return s.nameStrangers()
	}
	waits := fmt.Sprintf("%d replicated files are not those of %s yet (%s first); the other node of the pair has to write them",
		s.standby.behind, s.t.Commit.Short(), s.standby.first)
	if s.standby.asked && !s.standby.peer {
		return failure.New(v1alpha1.ReasonNoConfigAccess,
			"%s has no config access, and its peer is not connected: %s", s.standby.who(), waits)
	}
	return failure.New(v1alpha1.ReasonProgressing, "%s: %s", s.standby.who(), waits)
}

// wait counts a change that the other node has to make.
func (p *standby) wait(c plan.Change) {
	if p.behind++; p.first == "" {
		p.first = c.Path
	}
}

func (p standby) who() string {
	if p.activity == "" {
		return "the " + strings.ToLower(p.role) + " of a redundant pair"
	}
	return fmt.Sprintf("the %s of a redundant pair (activity %s)", strings.ToLower(p.role), p.activity)
}
