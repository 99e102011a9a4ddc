package unloaded

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"stoker.io/stoker/agent/ignition"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// Gateway is the part of the gateway's REST API that shows what it has loaded.
type Gateway interface {
	Projects(ctx context.Context) ([]ignition.Project, error)
	Project(ctx context.Context, name string) (ignition.Project, error)
	ResourceNames(ctx context.Context, module, typ string) ([]ignition.ResourceName, error)
}

// Mismatches are the projects and resources that the gateway does not show as they were delivered.
type Mismatches struct {
	Projects  []string
	Resources []Resource
}

// ProjectMismatches are projects that the gateway does not show as they are on the disk.
type ProjectMismatches struct {
	missing   []string
	orphans   []ignition.Project // without a valid parent
	undeleted []string           // shown, although they are deleted
}

// Names returns the names of all these projects.
func (m ProjectMismatches) Names() []string {
	names := slices.Concat(m.missing, m.undeleted)
	for _, p := range m.orphans {
		names = append(names, p.Name)
	}
	return names
}

// Errors returns an error for each kind of mismatch that there is.
func (m ProjectMismatches) Errors() []error {
	var errs []error
	add := func(format string, names []string) {
		if len(names) > 0 {
			errs = append(errs, failure.New(v1alpha1.ReasonVerificationFailed, format, FirstNames(names)))
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

// CompareProjects compares the gateway's projects with those that it has to show, and with deleted ones.
func CompareProjects(ctx context.Context, g Gateway, present, deleted []string) (ProjectMismatches, error) {
	var m ProjectMismatches
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
		_, ok := loaded[name]
		if !ok { // the list may omit it
			if _, err := g.Project(ctx, name); err == nil {
				ok = true
			} else if !errors.Is(err, ignition.ErrNotFound) {
				return m, err
			}
		}
		if ok {
			m.undeleted = append(m.undeleted, name)
		}
	}
	return m, nil
}

// withoutMode are the collections that are in effect without a deployment mode. Each overrides those before it.
var withoutMode = []string{"system", "external", "core"}

// DependOnMode reports whether the deployment mode decides which of the resources the gateway can show.
func DependOnMode(all []Resource) bool {
	return slices.ContainsFunc(all, func(r Resource) bool { return !slices.Contains(withoutMode, r.Collection) })
}

// Unlisted returns the config resources that the gateway does not list. It omits those of the collection system, and those that the gateway
// cannot show: resources of collections that its deployment mode does not use, and of types that it does not list by name. mode is "" if
// there is none.
func Unlisted(ctx context.Context, g Gateway, mode string, all []Resource, log *slog.Logger) ([]Resource, error) {
	order := slices.Clone(withoutMode)
	if mode != "" {
		order = append(order, mode)
	}
	type kind struct{ module, typ string }
	wanted := map[kind]map[string][]Resource{} // by name
	for _, r := range all {
		if slices.Contains(order[1:], r.Collection) {
			k := kind{r.Module, r.Type}
			if wanted[k] == nil {
				wanted[k] = map[string][]Resource{}
			}
			wanted[k][r.Name] = append(wanted[k][r.Name], r)
		}
	}
	listed := map[Resource]bool{} // of a long list only what is wanted
	for k, named := range wanted {
		list, err := g.ResourceNames(ctx, k.module, k.typ)
		if errors.Is(err, ignition.ErrNotFound) {
			log.Debug("gateway does not list type", "module", k.module, "type", k.typ)
			delete(wanted, k)
		} else if err != nil {
			return nil, err
		}
		for _, n := range list {
			for _, r := range named[n.Name] {
				listed[r] = listed[r] || hasLoaded(n.Modes, r.Collection, order)
			}
		}
	}
	var missing []Resource
	for _, r := range all {
		if wanted[kind{r.Module, r.Type}] != nil && slices.Contains(order[1:], r.Collection) && !listed[r] {
			missing = append(missing, r)
		}
	}
	return missing, nil
}

// hasLoaded reports whether a gateway that lists a resource with some collections may have it from collection c. order has the collections in
// effect; each overrides those before it. hasLoaded returns false only if all listed collections come before c [SPEC]. A gateway may list all
// collections of a resource, only the last one, or none. It may also list others, such as local.
func hasLoaded(listed []string, c string, order []string) bool {
	return len(listed) == 0 || slices.ContainsFunc(listed, func(l string) bool {
		i := slices.Index(order, l)
		return i < 0 || i >= slices.Index(order, c)
	})
}

// maxNamed bounds the names in one message.
const maxNamed = 5

// FirstNames joins names for a message.
func FirstNames(names []string) string {
	if len(names) <= maxNamed {
		return strings.Join(names, "; ")
	}
	return fmt.Sprintf("%s; and %d more", strings.Join(names[:maxNamed], "; "), len(names)-maxNamed)
}
