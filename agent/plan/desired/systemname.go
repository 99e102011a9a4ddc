package desired

import (
	"fmt"

	"stoker.io/stoker/agent/plan/relpath"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// systemFile returns the path of a collection's system properties.
func systemFile(collection string) string {
	return "config/resources/" + collection + "/ignition/system-properties/config.json"
}

// findSystem finds the system properties file that is in effect for the deployment mode, if the spec sets the
// gateway's name. A later collection hides an earlier one: external, core, the mode's own.
func (d *Tree) findSystem() error {
	if d.rules.SystemName.Path == "" {
		return nil
	}
	for _, collection := range []string{d.rules.Facts.DeploymentMode, "core", "external"} {
		if collection == "" {
			continue
		}
		path := systemFile(collection)
		children, err := d.children(relpath.Parent(path), d.listGit)
		if err != nil {
			return fmt.Errorf("look for the system properties: %w", err)
		}
		if fileOf(children, relpath.Base(path)) != nil {
			d.system = path
			return nil
		}
	}
	return nil
}

// CheckRendering returns an error if the name cannot be set because git has no system properties file, or if a patch
// matches no file.
func (d *Tree) CheckRendering() error {
	if d.rules.SystemName.Path != "" && d.system == "" {
		return failure.New(v1alpha1.ReasonPatchFailed, "the commit has no %s (or that of the external collection or of the "+
			"deployment mode), so the agent cannot set the name %q of the annotation: remove the annotation, or sync that file",
			systemFile("core"), d.rules.SystemName.Value)
	}
	return d.checkPatches()
}
