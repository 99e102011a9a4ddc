package sync

import (
	"context"
	"errors"
	"slices"
	"time"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/unloaded"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// verifyTime bounds all requests of a verification together: there may be thousands, and each may take seconds.
const verifyTime = 10 * time.Minute

// withVerifyTime returns a context that ends after verifyTime.
func withVerifyTime(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, verifyTime, failure.New(v1alpha1.ReasonGatewayUnreachable, "the gateway did not show within %s what it has loaded", verifyTime))
}

// verify checks that the gateway shows what was delivered. A finished scan does not prove that: a gateway skips a
// resource that it cannot read, and reports no error.
func (l *loader) verify(ctx context.Context) error {
	defer l.in.step("verify")()
	ctx, cancel := withVerifyTime(ctx)
	defer cancel()
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
	info, err := g.identity(ctx)
	if err != nil && unloaded.DependOnMode(all) {
		return nil, err
	}
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
