package simulator

import (
	"path"

	"stoker.io/stoker/test/gateway/simulator/datadir"
	"stoker.io/stoker/test/gateway/simulator/ordered"
	"stoker.io/stoker/test/gateway/simulator/resource"
	"stoker.io/stoker/test/gateway/simulator/seed"
)

// seed fills the data directory according to Options.Seeding, and reports whether it did. The start that follows is the
// first one.
func (d *Data) seed() (seeded bool, err error) {
	switch d.opts.Seeding {
	case SeedImage:
		list, err := datadir.List(d.root, ".")
		if err != nil || len(list) > 0 {
			return false, err
		}
	case SeedChart:
		if datadir.Exists(d.root, datadir.SeedMarker) {
			return false, nil
		}
		// The chart's script sets the marker before it copies.
		if err := d.canaries.Write(datadir.SeedMarker, nil); err != nil {
			return false, err
		}
	default:
		return false, nil
	}
	for name, raw := range seed.Platform(d.opts.Role) {
		if err := d.canaries.Write(name, raw); err != nil {
			return true, err
		}
	}
	if err := d.root.MkdirAll(datadir.BlobDir, 0o755); err != nil {
		return true, err
	}
	if err := d.seedResources(); err != nil {
		return true, err
	}
	return true, d.canaries.Write(datadir.SeedMarker, nil)
}

// seedResources writes the resource collections of a fresh gateway.
func (d *Data) seedResources() error {
	for name, raw := range seed.Collections(d.opts.Mode) {
		if err := d.canaries.Write(path.Join(datadir.ResourcesDir, name, "config-mode.json"), raw); err != nil {
			return err
		}
	}
	for name, doc := range seed.Resources(d.opts.Name, ownTokenLevel) {
		dir := path.Join(datadir.ResourcesDir, "core", name)
		files := map[string][]byte{"config.json": ordered.Pretty(doc)}
		if _, err := d.saveResource(dir, resource.New(name, "A"), "initialization", files); err != nil {
			return err
		}
	}
	return nil
}

// ownTokenLevel is the security level of the token that the simulator issues.
const ownTokenLevel = "Authenticated/ApiKeys/Stoker"
