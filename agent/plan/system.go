package plan

import (
	"fmt"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// systemNameKey is where a gateway's name stands in its system properties. In public repositories no other file has a key
// of that name.
const systemNameKey = "systemName"

// systemFile is the file of the system properties in a collection of resources.
func systemFile(collection string) string {
	return "config/resources/" + collection + "/ignition/system-properties/config.json"
}

// findSystem finds the system properties that count for the deployment mode, where the gateway's name is to be set: a
// later collection hides an earlier one (external, core, the mode's own).
func (d *Desired) findSystem() error {
	if d.rules.SystemName.Path == "" {
		return nil
	}
	for _, collection := range []string{d.rules.Facts.DeploymentMode, "core", "external"} {
		if collection == "" {
			continue
		}
		path := systemFile(collection)
		_, found, err := d.lookup(path, d.listGit)
		if err != nil {
			return fmt.Errorf("look for the system properties: %w", err)
		}
		if found {
			d.system = path
			return nil
		}
	}
	return nil
}

// checkRendering refuses what was asked for and cannot be: a name for a gateway whose system properties are not in git, or
// a patch that no file is for.
func (d *Desired) checkRendering() error {
	if d.rules.SystemName.Path != "" && d.system == "" {
		return failure.New(v1alpha1.ReasonPatchFailed, "the commit brings no %s (nor that of the external collection or of the "+
			"deployment mode), so that the name %q of the annotation cannot be set: remove the annotation, or sync that file",
			systemFile("core"), d.rules.SystemName.Value)
	}
	return d.checkPatches()
}
