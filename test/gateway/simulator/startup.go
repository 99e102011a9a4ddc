package simulator

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"stoker.io/stoker/test/gateway/simulator/datadir"
	"stoker.io/stoker/test/gateway/simulator/resource"
)

// startupFault returns what prevents a gateway from starting on this data directory, or nil.
func (d *Data) startupFault() error {
	if err := d.checkWritable(); err != nil {
		return fmt.Errorf("the data directory cannot be written to: %w", err)
	}
	if d.opts.before83() {
		return nil // its configuration is in a database
	}
	if !datadir.Exists(d.root, path.Join(datadir.ResourcesDir, "core", "config-mode.json")) {
		return errors.New("there is no resource collection core: the data directory was not empty, and so was never seeded")
	}
	external, err := datadir.List(d.root, path.Join(datadir.ResourcesDir, "external"))
	if err != nil {
		return err
	}
	if len(external) > 0 && !datadir.Exists(d.root, path.Join(datadir.ResourcesDir, "external", "config-mode.json")) {
		return errors.New("the collection external exists but is not empty and has no config-mode.json")
	}
	loaded, _ := resource.LoadConfig(d.root, d.opts.Mode, nil)
	if singleton := singletonOnlyInMode(loaded, d.opts.Mode); singleton != "" {
		return fmt.Errorf("the singleton %s is defined in the mode %s only: it must be in core or external", singleton, d.opts.Mode)
	}
	_, problems := resource.LoadProjects(d.root, nil)
	for _, p := range problems {
		if errors.Is(p.Err, resource.ErrNoAttributes) {
			return fmt.Errorf("ProjectResourceBuilder.setAttributes: %s", p)
		}
	}
	return nil
}

func (d *Data) checkWritable() error {
	probe := "var/ignition/probe"
	if err := datadir.Write(d.root, probe, nil); err != nil {
		return err
	}
	return d.root.Remove(probe)
}

// singletonOnlyInMode returns a singleton resource that only the mode defines, or "".
func singletonOnlyInMode(c resource.Config, mode string) string {
	if mode == "" {
		return ""
	}
	for _, name := range c.Collection(mode).Tree.Names("") {
		_, _, in := c.Effective(name)
		if strings.Count(name, "/") == 1 && !slices.Contains(in, "core") && !slices.Contains(in, "external") {
			return name
		}
	}
	return ""
}
