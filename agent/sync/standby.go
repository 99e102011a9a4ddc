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
	on, paired bool
	role       string
	// peer is whether the other node is connected; asked is whether the gateway itself said so.
	// pending is whether it says that the pair has something to copy.
	peer, asked, pending bool
	activity             string
	behind               int    // files of the replicated trees that are not git's yet
	first                string // one of them
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

// askPlace asks the gateway; one that does not run, or does not say, is what its redundancy.xml makes of it.
func (s *run) askPlace(ctx context.Context, state gatewayState) error {
	s.standby = standby{}
	if state == running && s.peers.Token && !s.older() {
		red, err := s.peers.Gateway.Redundancy(ctx)
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

// mayRestore reports whether a change that this node would make itself is one that its policies let it make: a plan of a
// standby node restores all that may have come by the pair, and a README was perhaps changed by a person.
func (s *run) mayRestore(changes *plan.Changes, c plan.Change) (bool, error) {
	if s.force || s.t.Repair || !replicated(c.Path) || !writes(c) {
		return true, nil
	}
	rec, owned, err := s.dir.Manifest().Get(c.Path)
	return !owned || !asBefore(changes, c, rec), err
}

// stillHeld is what is left of a reason to wait for a person, when the changes that are not made here are out of the plan.
// Conflicts are only those of files that no pair copies. A mass deletion stays one for each file that this node would delete
// itself: the active node is held for the same.
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

// stand ends a sync that went well as far as it could: on a standby node it is Standby, or not yet.
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
