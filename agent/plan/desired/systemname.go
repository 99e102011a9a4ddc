package desired

import (
	"fmt"

	"stoker.io/stoker/agent/plan/relpath"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// systemProperties returns the path of a collection's system properties.
func systemProperties(collection string) string {
	return "config/resources/" + collection + "/ignition/system-properties/config.json"
}

// systemFile returns the system properties file that is in effect for the deployment mode, if the rules set the
// gateway's name, and "" otherwise. A later collection hides an earlier one: external, core, the mode's own.
func (o *overlay) systemFile() (string, error) {
	if o.rules.SystemName.Path == "" {
		return "", nil
	}
	for _, collection := range []string{o.rules.Facts.DeploymentMode, "core", "external"} {
		if collection == "" {
			continue
		}
		path := systemProperties(collection)
		children, err := o.children(relpath.Parent(path), o.list)
		if err != nil {
			return "", fmt.Errorf("look for the system properties: %w", err)
		}
		if fileOf(children, relpath.Base(path)) != nil {
			return path, nil
		}
	}
	return "", nil
}

// CheckRendering returns an error if the name cannot be set because git has no system properties file, or if a patch
// matches no file.
func (t *Tree) CheckRendering() error {
	if name := t.overlay.rules.SystemName; name.Path != "" && t.renderer.system == "" {
		return failure.New(v1alpha1.ReasonPatchFailed, "the commit has no %s (or that of the external collection or of the "+
			"deployment mode), so the agent cannot set the name %q of the annotation: remove the annotation, or sync that file",
			systemProperties("core"), name.Value)
	}
	return t.checkPatches()
}
