package references

import (
	"maps"
	"slices"
	"strings"

	"stoker.io/stoker/agent/plan"
)

// platform is the folder of the resources that need no module.
const platform = "ignition"

// moduleFolder returns the folder of a path that is named for the module of its resource: projects/<project>/<module> or
// config/resources/<collection>/<module>. It returns "" for files of no module and for those of the platform.
func moduleFolder(path string) (folder, module string) {
	parts, level := strings.Split(path, "/"), 2
	if parts[0] == "config" {
		level = 3
	}
	if len(parts) < level+2 || parts[0] != "projects" && !strings.HasPrefix(path, "config/resources/") {
		return "", ""
	}
	// The id of a module has the form of a Java package. Folders such as .resources do not belong to a module.
	if module = parts[level]; module == platform || strings.Count(module, ".") < 2 || strings.HasPrefix(module, ".") {
		return "", ""
	}
	return strings.Join(parts[:level+1], "/"), module
}

// newModules returns the modules of folders that changes create, and the first file of each.
func newModules(changes *plan.Changes, state plan.State) map[string]string {
	first, folders := map[string]string{}, map[string]bool{}
	for _, c := range changes.List {
		folder, module := moduleFolder(c.Path)
		if c.Op != plan.Create || folder == "" || folders[folder] {
			continue
		}
		folders[folder] = true
		if st, err := state.Stat(folder); err != nil || st.Kind != plan.Missing {
			continue // there before the commit
		}
		if old, ok := first[module]; !ok || c.Path < old {
			first[module] = c.Path
		}
	}
	return first
}

// BringModules reports whether changes create the folder of a module.
func BringModules(changes *plan.Changes, state plan.State) bool {
	return len(newModules(changes, state)) > 0
}

// missingModules returns findings about modules that the gateway does not run. What the disk had before is not reported again.
func (t *Target) missingModules() (list []Finding) {
	first := newModules(t.Changes, t.State)
	if len(first) == 0 {
		return nil
	}
	running := t.Modules()
	if !slices.ContainsFunc(running, func(id string) bool { return strings.Count(id, ".") >= 2 }) {
		return nil // the gateway does not answer, or names its modules in another way
	}
	for _, id := range slices.Sorted(maps.Keys(first)) {
		if !slices.Contains(running, id) {
			list = append(list, Finding{File: first[id], Kind: Module, Name: id, Problem: Missing})
		}
	}
	return list
}
