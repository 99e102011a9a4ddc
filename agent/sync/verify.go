package sync

import (
	"context"
	"errors"
	"slices"

	"stoker.io/stoker/agent/ignition"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// mismatches are the projects and resources that the gateway does not show as they were delivered.
type mismatches struct {
	projects  []string
	resources []configID
}

// verify checks that the gateway shows what was delivered. A finished scan does not prove that: a gateway skips a
// resource that it cannot read without an error.
func (l *loader) verify(ctx context.Context) error {
	defer l.in.step("verify")()
	projects, err := l.in.gateway.compareProjects(ctx, l.unloaded.Projects, l.unloaded.Deleted)
	if err != nil {
		return err
	}
	resources, err := l.in.gateway.unlistedResources(ctx, l.unloaded.Resources)
	if err != nil {
		return err
	}
	l.mismatches = mismatches{projects.names(), resources}
	errs := projects.errs()
	if len(resources) > 0 {
		var names []string
		for _, r := range resources {
			names = append(names, r.Module+"/"+r.Type+"/"+r.Name)
		}
		errs = append(errs, failure.New(v1alpha1.ReasonVerificationFailed, "the gateway does not show these config resources (see its log for the reason): %s",
			firstNames(names)))
	}
	return errors.Join(errs...)
}

// projectMismatches are projects that the gateway does not show as they are on the disk.
type projectMismatches struct {
	missing   []string
	orphans   []ignition.Project // without a valid parent
	undeleted []string           // shown, although they are deleted
}

func (m projectMismatches) names() []string {
	names := slices.Concat(m.missing, m.undeleted)
	for _, p := range m.orphans {
		names = append(names, p.Name)
	}
	return names
}

func (m projectMismatches) errs() []error {
	var errs []error
	add := func(format string, names []string) {
		if len(names) > 0 {
			errs = append(errs, failure.New(v1alpha1.ReasonVerificationFailed, format, firstNames(names)))
		}
	}
	var orphans []string
	for _, p := range m.orphans {
		orphans = append(orphans, p.Name+" (parent "+p.Parent+")")
	}
	add("the gateway does not show these projects (see its log for the reason): %s", m.missing)
	add("the gateway finds no valid parent for these projects (is it synced and inheritable?): %s", orphans)
	add("the gateway still shows these deleted projects: %s", m.undeleted)
	return errs
}

// compareProjects asks the gateway for projects that it has to show, and for deleted ones.
func (g *gateway) compareProjects(ctx context.Context, present, deleted []string) (projectMismatches, error) {
	var m projectMismatches
	if len(present)+len(deleted) == 0 {
		return m, nil
	}
	list, err := g.Projects(ctx)
	if err != nil {
		return m, err
	}
	loaded := make(map[string]ignition.Project, len(list))
	for _, p := range list {
		loaded[p.Name] = p
	}
	for _, name := range present {
		p, ok := loaded[name]
		if !ok { // the list may omit projects that cannot run: disabled ones, templates
			if p, err = g.Project(ctx, name); err == nil {
				ok = true
			} else if !errors.Is(err, ignition.ErrNotFound) {
				return m, err
			}
		}
		switch {
		case !ok:
			m.missing = append(m.missing, name)
		case p.InvalidParent:
			p.Name = name
			m.orphans = append(m.orphans, p)
		}
	}
	for _, name := range deleted {
		if _, ok := loaded[name]; ok {
			m.undeleted = append(m.undeleted, name)
		}
	}
	return m, nil
}

// unlistedResources returns the config resources that the gateway does not list. It omits those that the gateway cannot
// show: resources of collections that its deployment mode does not use, and of types that it does not list by name.
func (g *gateway) unlistedResources(ctx context.Context, all []configID) ([]configID, error) {
	if len(all) == 0 {
		return nil, nil
	}
	effective := []string{"external", "core"}
	if info, ok := g.identity(ctx); ok && info.DeploymentMode != "" {
		effective = append(effective, info.DeploymentMode)
	}
	type kind struct{ module, typ string }
	names := map[kind]map[string]bool{} // nil: the gateway does not list this type
	var missing []configID
	for _, r := range all {
		if !slices.Contains(effective, r.Collection) {
			continue
		}
		k := kind{r.Module, r.Type}
		if _, read := names[k]; !read {
			list, err := g.ResourceNames(ctx, k.module, k.typ)
			if err != nil && !errors.Is(err, ignition.ErrNotFound) {
				return nil, err
			}
			if err == nil {
				names[k] = make(map[string]bool, len(list))
			} else {
				names[k] = nil
				g.log.Debug("gateway does not list type", "module", k.module, "type", k.typ)
			}
			for _, n := range list {
				names[k][n.Name] = true
			}
		}
		if names[k] != nil && !names[k][r.Name] {
			missing = append(missing, r)
		}
	}
	return missing, nil
}
