package sync

import (
	"context"
	"errors"
	"slices"
	"strings"

	"stoker.io/stoker/agent/ignition"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// wrong is what the gateway does not show as it was delivered.
type wrong struct {
	projects  []string
	resources []configID
}

// verify checks that the gateway shows what was delivered. A finished scan does not prove that: a gateway skips a
// resource that it cannot read without an error.
func (l *loader) verify(ctx context.Context) error {
	defer l.step("verify")()
	projects, err := l.compareProjects(ctx, l.unloaded.Projects, l.unloaded.Gone)
	if err != nil {
		return err
	}
	resources, err := l.unlisted(ctx, l.unloaded.Resources)
	if err != nil {
		return err
	}
	l.wrong = wrong{projects.names(), resources}
	errs := projects.errs()
	if len(resources) > 0 {
		var names []string
		for _, r := range resources[:min(len(resources), maxNotes)] {
			names = append(names, r.Module+"/"+r.Type+"/"+r.Name)
		}
		errs = append(errs, failure.New(v1alpha1.ReasonVerificationFailed, "the gateway does not show the config resource %s: see its log for the reason",
			strings.Join(names, ", ")))
	}
	return errors.Join(errs...)
}

// shownProjects are projects that the gateway does not show as they are on the disk.
type shownProjects struct {
	missing []string
	orphans []ignition.Project // without a valid parent
	left    []string           // shown, although they are deleted
}

func (s shownProjects) names() []string {
	names := slices.Concat(s.missing, s.left)
	for _, p := range s.orphans {
		names = append(names, p.Name)
	}
	return names
}

func (s shownProjects) errs() []error {
	var errs []error
	if len(s.missing) > 0 {
		errs = append(errs, failure.New(v1alpha1.ReasonVerificationFailed, "the gateway does not show the project %s: see its log for the reason", strings.Join(s.missing, ", ")))
	}
	if len(s.orphans) > 0 {
		var names []string
		for _, p := range s.orphans {
			names = append(names, p.Name+" (parent "+p.Parent+")")
		}
		errs = append(errs, failure.New(v1alpha1.ReasonVerificationFailed, "the gateway finds no valid parent for the project %s: is the parent synced and inheritable?", strings.Join(names, ", ")))
	}
	if len(s.left) > 0 {
		errs = append(errs, failure.New(v1alpha1.ReasonVerificationFailed, "the gateway still shows the deleted project %s", strings.Join(s.left, ", ")))
	}
	return errs
}

// compareProjects asks the gateway for projects that it has to show, and those that it must not show.
func (j *job) compareProjects(ctx context.Context, there, gone []string) (shownProjects, error) {
	var s shownProjects
	if len(there)+len(gone) == 0 {
		return s, nil
	}
	list, err := j.gateway.Projects(ctx)
	if err != nil {
		return s, err
	}
	loaded := make(map[string]ignition.Project, len(list))
	for _, p := range list {
		loaded[p.Name] = p
	}
	for _, name := range there {
		p, ok := loaded[name]
		if !ok { // the list may omit projects that cannot run: disabled ones, templates
			if p, err = j.gateway.Project(ctx, name); err == nil {
				ok = true
			} else if !errors.Is(err, ignition.ErrNotFound) {
				return s, err
			}
		}
		switch {
		case !ok:
			s.missing = append(s.missing, name)
		case p.InvalidParent:
			p.Name = name
			s.orphans = append(s.orphans, p)
		}
	}
	for _, name := range gone {
		if _, ok := loaded[name]; ok {
			s.left = append(s.left, name)
		}
	}
	return s, nil
}

// unlisted looks up config resources by name, and returns those that the gateway does not list. It omits those that the gateway cannot tell:
// of collections that are not effective in its mode, and of types that it does not list by name.
func (j *job) unlisted(ctx context.Context, all []configID) ([]configID, error) {
	if len(all) == 0 {
		return nil, nil
	}
	effective := []string{"external", "core"}
	if info, ok := j.gateway.identity(ctx); ok && info.DeploymentMode != "" {
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
		if _, asked := names[k]; !asked {
			list, err := j.gateway.ResourceNames(ctx, k.module, k.typ)
			if err != nil && !errors.Is(err, ignition.ErrNotFound) {
				return nil, err
			}
			if err == nil {
				names[k] = make(map[string]bool, len(list))
			} else {
				names[k] = nil
				j.Log.Debug("gateway does not list type", "module", k.module, "type", k.typ)
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
