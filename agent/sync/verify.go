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

// verify checks that the gateway shows what was delivered. A finished scan does not prove that: a gateway skips a
// resource that it cannot read without an error.
func (l *loader) verify(ctx context.Context) error {
	defer l.step("verify")()
	if err := l.verifyProjects(ctx); err != nil {
		return err
	}
	return l.verifyResources(ctx)
}

func (l *loader) verifyProjects(ctx context.Context) error {
	if len(l.unloaded.Projects)+len(l.unloaded.Gone) == 0 {
		return nil
	}
	list, err := l.gateway.Projects(ctx)
	if err != nil {
		return err
	}
	loaded := make(map[string]ignition.Project, len(list))
	for _, p := range list {
		loaded[p.Name] = p
	}
	var missing, orphans, left []string
	for _, name := range l.unloaded.Projects {
		p, ok := loaded[name]
		if !ok { // the list may omit projects that cannot run: disabled ones, templates
			if p, err = l.gateway.Project(ctx, name); err == nil {
				ok = true
			} else if !errors.Is(err, ignition.ErrNotFound) {
				return err
			}
		}
		switch {
		case !ok:
			missing = append(missing, name)
		case p.InvalidParent:
			orphans = append(orphans, name+" (parent "+p.Parent+")")
		}
	}
	for _, name := range l.unloaded.Gone {
		if _, ok := loaded[name]; ok {
			left = append(left, name)
		}
	}
	var errs []error
	if len(missing) > 0 {
		errs = append(errs, failure.New(v1alpha1.ReasonVerificationFailed, "the gateway does not show the project %s: see its log for the reason", strings.Join(missing, ", ")))
	}
	if len(orphans) > 0 {
		errs = append(errs, failure.New(v1alpha1.ReasonVerificationFailed, "the gateway finds no valid parent for the project %s: is the parent synced and inheritable?", strings.Join(orphans, ", ")))
	}
	if len(left) > 0 {
		errs = append(errs, failure.New(v1alpha1.ReasonVerificationFailed, "the gateway still shows the deleted project %s", strings.Join(left, ", ")))
	}
	return errors.Join(errs...)
}

// verifyResources looks up changed config resources by name, but only if the gateway can tell: in collections that are
// effective in its mode, for types that it lists by name.
func (l *loader) verifyResources(ctx context.Context) error {
	if len(l.unloaded.Resources) == 0 {
		return nil
	}
	effective := []string{"external", "core"}
	if info, ok := l.gateway.identity(ctx); ok && info.DeploymentMode != "" {
		effective = append(effective, info.DeploymentMode)
	}
	type kind struct{ module, typ string }
	names := map[kind]map[string]bool{} // nil: the gateway does not list this type
	var missing []string
	for _, r := range l.unloaded.Resources {
		if !slices.Contains(effective, r.Collection) {
			continue
		}
		k := kind{r.Module, r.Type}
		if _, asked := names[k]; !asked {
			list, err := l.gateway.ResourceNames(ctx, k.module, k.typ)
			if err != nil && !errors.Is(err, ignition.ErrNotFound) {
				return err
			}
			if err == nil {
				names[k] = make(map[string]bool, len(list))
			} else {
				names[k] = nil
				l.Log.Debug("gateway does not list type", "module", k.module, "type", k.typ)
			}
			for _, n := range list {
				names[k][n.Name] = true
			}
		}
		if names[k] != nil && !names[k][r.Name] {
			missing = append(missing, k.module+"/"+k.typ+"/"+r.Name)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return failure.New(v1alpha1.ReasonVerificationFailed, "the gateway does not show the config resource %s: see its log for the reason",
		strings.Join(missing[:min(len(missing), maxNotes)], ", "))
}
