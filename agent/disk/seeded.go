package disk

import (
	"stoker.io/stoker/agent/disk/safe"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// Seeded returns an error for a directory that Ignition has not filled yet: its image seeds only an empty directory, so
// even our lock file would leave the gateway without its data. A directory counts as seeded if it has one of
//
//   - .stoker/manifest: an agent was here before;
//   - .ignition-seed-complete: the mark of the Helm chart's init container;
//   - ignition.conf, gateway.xml or gateway.xml_clean: files at the root of every installation;
//   - config/resources/core: the resource collection of 8.3;
//   - db and projects: 8.1 with its other root files elsewhere.
func (d *Dir) Seeded() error {
	n := &safe.Folder{Root: d.top}
	if n.Has(safe.OwnDir, "manifest") || n.Has("config", "resources", "core") || n.Has("db") && n.Has("projects") {
		return nil
	}
	for _, name := range []string{".ignition-seed-complete", "ignition.conf", "gateway.xml", "gateway.xml_clean"} {
		if fi, err := d.top.Lstat(name); err == nil && fi.Mode().IsRegular() {
			return nil
		}
	}
	return failure.New(v1alpha1.ReasonWaitingForGateway,
		"the data directory is not seeded yet (no .ignition-seed-complete, ignition.conf, gateway.xml or config/resources/core); start the gateway once, or check that the volume is the gateway's data directory")
}
