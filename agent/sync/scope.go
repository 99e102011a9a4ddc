package sync

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"stoker.io/stoker/agent/decide"
	"stoker.io/stoker/agent/disk"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/redundancy"
	"stoker.io/stoker/agent/unloaded"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// scope is what all steps of a sync read. The steps pause and open fill it; later ones change only the report.
type scope struct {
	*Config
	conn   Connections
	task   Task
	trees  *trees
	report *Report

	dir          *disk.Dir
	readOnly     bool // dir was opened only for this dry run
	unloadedNote *unloaded.Note
	from         plan.ID // the commit in dir before the sync
	rules        plan.Rules
	force        bool // the force-sync request is new
	node         *redundancy.Node
	gateway      *gateway
}

// of returns the scope of a sync to another target.
func (s *scope) of(ref string, commit plan.ID) *scope {
	other := *s
	other.task.Ref, other.task.Commit = ref, commit
	return &other
}

// step starts a step for Report.Steps and the progress display. The returned function ends it.
func (s *scope) step(name string) func() {
	s.Progress(name, 0, 0)
	started := s.Now()
	return func() { s.report.Steps[name] += s.Now().Sub(started) }
}

func (s *scope) note(format string, args ...any) {
	s.report.Notes = append(s.report.Notes, fmt.Sprintf(format, args...))
}

// rulesAt returns the rules for a ref and a commit, which the profile's templates may use, with the gateway's mounts.
func rulesAt(c *Config, t *Task, ref string, commit plan.ID) (plan.Rules, error) {
	f := t.Facts
	f.Ref, f.Commit = ref, commit.String()
	r, err := plan.ParseRules(t.Profile, f, c.Limits)
	if err != nil {
		return r, err
	}
	found, err := disk.Mounts(c.DataDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // opening a missing directory reports it
		return r, err
	}
	r.Mounts = plan.NewMounts(append(found, c.Mounts...))
	return r, nil
}

// describes reports whether a manifest was written for the files of a target under the rules.
func describes(h plan.Header, t *Task, rules plan.Rules) bool {
	sameRef := h.Ref == t.Ref || !rules.DependsOnRef()
	return h.Commit == t.Commit && sameRef && h.Rules == rules.Fingerprint()
}

// filesDone reports whether, by the manifest alone, the target's files are on the disk already.
func (s *scope) filesDone() bool {
	h := s.dir.Manifest().Header()
	return describes(h, &s.task, s.rules) && h.Complete && !s.force && !s.task.Repair
}

// delivery returns what package decide needs to know about this sync.
func (s *scope) delivery() decide.Delivery {
	h := s.dir.Manifest().Header()
	return decide.Delivery{
		First: h.Commit.IsZero(), DryRun: s.task.Profile.DryRun, Repair: s.task.Repair && describes(h, &s.task, s.rules), Rollback: s.task.RequestedRollback,
		Approved: s.task.WindowApproved, Forced: s.force && s.Record.NewForce(s.task.Force), AccessChanged: s.node.AccessChanged(),
		SameCommit: h.Commit == s.task.Commit, SameRules: h.Rules == s.rules.Fingerprint(),
		LacksFiles: (s.task.BeforeStart || s.task.NewVolume) && !h.Complete, Recorded: s.Record.Allows(s.task.Commit),
	}
}

// determineAccess determines whether the node of a redundant pair has config access.
func (s *scope) determineAccess(ctx context.Context, state gatewayState) error {
	err := s.node.DetermineAccess(ctx, s.gateway.pairSource(state))
	s.report.Paired = s.node.Paired()
	return err
}

// forceNote has the last force-sync request that was carried out, so that a restart does not repeat it.
const forceNote = "force-sync"

// recordForced records that the force-sync request was carried out.
func (s *scope) recordForced() error {
	if !s.force {
		return nil
	}
	s.Record.Forced(s.task.Force)
	return s.dir.SetNote(forceNote, []byte(s.task.Force))
}

// outlive returns a context that outlives ctx by grace, for the scan that loads the files and releases the scan lock.
func outlive(ctx context.Context, grace time.Duration) (context.Context, context.CancelFunc) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(grace, cancel) })
	return longer, func() { stop(); cancel() }
}

func join(message, more string) string {
	if message == "" || more == "" {
		return message + more
	}
	return message + "; " + more
}

// verify checks that the gateway shows what was delivered. A finished scan does not prove that: a gateway skips a
// resource that it cannot read without an error.
func (l *loader) verify(ctx context.Context) error {
	defer l.in.step("verify")()
	projects, err := unloaded.CompareProjects(ctx, l.in.gateway, l.unloaded.Projects, l.unloaded.Deleted)
	if err != nil {
		return err
	}
	resources, err := l.in.gateway.unlistedResources(ctx, l.unloaded.Resources)
	if err != nil {
		return err
	}
	l.mismatches = unloaded.Mismatches{Projects: projects.Names(), Resources: resources}
	errs := projects.Errors()
	if len(resources) > 0 {
		var names []string
		for _, r := range resources {
			names = append(names, r.Module+"/"+r.Type+"/"+r.Name)
		}
		errs = append(errs, failure.New(v1alpha1.ReasonVerificationFailed, "the gateway does not show these config resources (see its log for the reason): %s",
			unloaded.FirstNames(names)))
	}
	return errors.Join(errs...)
}

// unlistedResources returns the config resources that the gateway should list and does not.
func (g *gateway) unlistedResources(ctx context.Context, all []unloaded.Resource) ([]unloaded.Resource, error) {
	if len(all) == 0 {
		return nil, nil
	}
	info, _ := g.identity(ctx)
	return unloaded.Unlisted(ctx, g, info.DeploymentMode, all, g.log)
}

// projects returns the projects that the gateway has to show after the changes, and those that it must not show. It has
// to show those with a project.json, from git or its own.
func (a *applier) projects(changes *plan.Changes) (present, deleted []string, err error) {
	var names []string
	if a.desired != nil { // otherwise the files are those of a snapshot
		if names, err = a.desired.Dirs("projects"); err != nil {
			return nil, nil, err
		}
	}
	for _, name := range unloaded.Union(names, changes.Projects()) {
		file := unloaded.ProjectFile(name)
		changed := func(ops ...plan.Op) bool {
			return slices.ContainsFunc(changes.List, func(c plan.Change) bool { return c.Path == file && slices.Contains(ops, c.Op) })
		}
		wanted := changed(plan.Create, plan.Update)
		if a.desired != nil {
			if _, wanted, err = a.desired.Lookup(file); err != nil {
				return nil, nil, err
			}
		}
		st, err := a.in.dir.Stat(file)
		if err != nil {
			return nil, nil, err
		}
		switch isDeleted := changed(plan.Delete); {
		case wanted || st.Kind == plan.File && !isDeleted:
			present = append(present, name)
		case isDeleted:
			deleted = append(deleted, name)
		}
	}
	return present, deleted, nil
}
