package sync

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"stoker.io/stoker/agent/ignition"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/unloaded"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// A Designer works on a copy of a project that it loaded when it was opened. If files change meanwhile, nothing is
// lost, but the user gets a conflict at the next save and may overwrite the new files. So a profile can make the sync
// check the open sessions before files move.

// designersBlock reports whether the profile lets an open Designer stop the sync.
func (g guard) designersBlock() bool {
	p := g.in.task.Profile.DesignerSessionPolicy
	return p == v1alpha1.DesignerWait || p == v1alpha1.DesignerFail
}

// checkDesigners looks for Designers that have open what a plan changes, or for all if the policy's scope is the gateway. If there are
// any, it returns DesignerSessionActive if the policy is wait or fail, and otherwise notes the sessions.
func (g guard) checkDesigners(ctx context.Context, changes *plan.Changes) error {
	touched := changes.Projects()
	all := g.in.task.Profile.DesignerSessionScope == v1alpha1.DesignerScopeGateway
	if g.state != running || len(touched) == 0 && (!all || !changes.Writes()) {
		return nil
	}
	strict := g.designersBlock()
	open, err := g.in.gateway.openSessions(ctx, touched, all)
	switch {
	case err != nil && ctx.Err() != nil:
		return ctx.Err()
	case err != nil && strict:
		return g.unknownSessions(changes, err)
	case err != nil:
		g.in.Log.Debug("open Designers unknown", "error", err)
		return nil
	case len(open) == 0:
		return nil
	case !strict:
		g.in.report.designersOpen = true
		g.in.note("written under an open Designer (%s): it shows the change after File > Update Project", unloaded.FirstNames(open))
		return nil
	}
	g.memory.hold = g.holdFor("")
	// A repair waits instead of failing, because the saves of a Designer are what it repairs.
	g.in.report.failHeld = g.in.task.Profile.DesignerSessionPolicy == v1alpha1.DesignerFail && !g.in.task.Repair
	return failure.New(v1alpha1.ReasonDesignerSessionActive,
		"a Designer is open on what would change (%s): close it, or set designerSessionPolicy: proceed; nothing was written", unloaded.FirstNames(open))
}

var errNoSessionList = errors.New("it does not list Designer sessions")

// openSessions describes the open Designers, sorted: all, or those that show a touched project.
func (g *gateway) openSessions(ctx context.Context, touched []string, all bool) ([]string, error) {
	switch {
	case g.legacy():
		return nil, fmt.Errorf("the gateway is Ignition %s: %w", g.platform.Version, errNoSessionList)
	case !g.hasAPIToken:
		return nil, fmt.Errorf("spec.gateway.api has no API key: %w", errNoSessionList)
	}
	list, err := g.Designers(ctx)
	if err != nil {
		return nil, err
	}
	var parents map[string]string
	if !all {
		if parents, err = g.parents(ctx, list, touched); err != nil {
			return nil, err
		}
	}
	var sessions []string
	for _, d := range list {
		if changed, affected := changedAncestor(d.Project, touched, parents); all || affected {
			sessions = append(sessions, describeSession(d, changed))
		}
	}
	slices.Sort(sessions)
	return slices.Compact(sessions), nil
}

// parents maps each project of the gateway to its parent. It returns nil if each session is open on a changed project or on none, so that
// parents do not matter.
func (g *gateway) parents(ctx context.Context, list []ignition.Designer, touched []string) (map[string]string, error) {
	if !slices.ContainsFunc(list, func(d ignition.Designer) bool { return d.Project != "" && !slices.Contains(touched, d.Project) }) {
		return nil, nil
	}
	projects, err := g.Projects(ctx)
	parents := make(map[string]string, len(projects))
	for _, p := range projects {
		parents[p.Name] = p.Parent
	}
	return parents, err
}

// changedAncestor returns the first changed project among a project and its ancestors. A Designer shows the resources of
// all ancestors, and copies one into its own project for an override, so a change of an ancestor affects it. A parent does
// not see changes of its children.
func changedAncestor(project string, touched []string, parents map[string]string) (string, bool) {
	visited := map[string]bool{}
	for name := project; name != "" && !visited[name]; name = parents[name] {
		if slices.Contains(touched, name) {
			return name, true
		}
		visited[name] = true
	}
	return "", false
}

// describeSession names the user and the project of a session. changed is the changed project that it shows, or "".
func describeSession(d ignition.Designer, changed string) string {
	user := d.User
	if user == "" {
		user = "an unnamed user"
	}
	switch {
	case d.Project == "":
		return user + " on no project"
	case changed != "" && changed != d.Project:
		return fmt.Sprintf("%s on project %s, which inherits from %s", user, d.Project, changed)
	}
	return user + " on project " + d.Project
}

// unknownSessions returns the error for the policies wait and fail if the open sessions are unknown. It returns nil only for
// a commit that brings the API key or the permissions that the query lacks: otherwise the agent could never write them.
func (g guard) unknownSessions(changes *plan.Changes, err error) error {
	policy := g.in.task.Profile.DesignerSessionPolicy
	switch {
	case errors.Is(err, errNoSessionList) || errors.Is(err, ignition.ErrNotFound):
		return failure.New(v1alpha1.ReasonProfilesInvalid,
			"designerSessionPolicy is %s, but the gateway cannot list the open Designers (%w): set designerSessionPolicy: proceed for this gateway", policy, err)
	case failure.Is(err, v1alpha1.ReasonGatewayForbidden) && bringsAccess(changes):
		g.in.note("written without checking for open Designers, because the commit grants the access that the check needs: %v", err)
		return nil
	}
	return fmt.Errorf("designerSessionPolicy is %s, but the gateway did not list the open Designers: %w", policy, err)
}

// bringsAccess reports whether a plan writes an API key or the gateway's permissions.
func bringsAccess(changes *plan.Changes) bool {
	return slices.ContainsFunc(changes.ConfigResources(), func(r plan.ConfigResource) bool {
		return r.Module == "ignition" && (r.Type == "api-token" || r.Type == "security-properties") && !r.Deleted
	})
}
