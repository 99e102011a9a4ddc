package simulator

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path"

	"stoker.io/stoker/test/gateway/simulator/access"
	"stoker.io/stoker/test/gateway/simulator/datadir"
	"stoker.io/stoker/test/gateway/simulator/ordered"
	"stoker.io/stoker/test/gateway/simulator/resource"
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
	for name, raw := range platformFiles(d.opts) {
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

// platformFiles are the gateway's own files, each a canary.
func platformFiles(o *Options) map[string][]byte {
	leftover := []byte(`{"custom":{},"params":{}}`)
	sum := sha256.Sum256(leftover)
	return map[string][]byte{
		"config/ignition/keys/root.json":                       []byte(`{"kty":"oct","kid":"root","k":"simulated"}`),
		"config/ignition/keys/kek.json":                        []byte(`{"kty":"oct","kid":"kek","k":"simulated"}`),
		"config/ignition/tags/valueStore.idb":                  bytes.Repeat([]byte("SQLite format 3\x00"), 256),
		"config/local/ignition/keystore/metro-keystore.pfx":    []byte("simulated keystore"),
		"config/local/ignition/gateway-network/uuid":           []byte("5e1b0c9e-0c3f-4b7e-9a52-6f1d2c8a7b10"),
		"config/com.inductiveautomation.opcua/certificates/ca": []byte("simulated certificate"),
		"db/config.idb":                    []byte("simulated database"),
		"metricsdb/metrics.idb":            []byte("simulated metrics"),
		"var/ignition/modl/installed.list": []byte("simulated modules"),
		"jar-cache/ignition.jar":           []byte("simulated jar"),
		"autobackup/first.gwbk":            []byte("simulated backup"),
		"modules.json":                     []byte("{}"),
		"commissioning.json":               []byte(`{"isComplete":true}`),
		"gateway.xml":                      []byte("<properties/>\n"),
		"gateway.xml_clean":                []byte("<properties/>\n"),
		"ignition.conf":                    []byte("wrapper.java.maxmemory=1024\n"),
		"logback.xml":                      []byte("<configuration/>\n"),
		"redundancy.xml":                   redundancyXML(o.Role),
		path.Join(datadir.BlobDir, hex.EncodeToString(sum[:])): leftover,
	}
}

func redundancyXML(role string) []byte {
	return fmt.Appendf(nil, `<?xml version="1.0" encoding="UTF-8" standalone="no"?>
<!DOCTYPE properties SYSTEM "http://java.sun.com/dtd/properties.dtd">
<properties>
<entry key="redundancy.noderole">%s</entry>
</properties>
`, role)
}

func configMode(title, parent string, inheritable bool) []byte {
	return ordered.Pretty(ordered.Object{
		{"title", title}, {"description", ""}, {"enabled", true}, {"inheritable", inheritable}, {"parent", parent},
	})
}

// seedResources writes the resource collections of a fresh gateway.
func (d *Data) seedResources() error {
	above := "core"
	if d.opts.Mode != "" {
		above = d.opts.Mode
	}
	for name, raw := range map[string][]byte{
		"external": configMode("External", "system", true),
		"core":     configMode("Core", "external", true),
		"local":    configMode("Local", above, false),
	} {
		if err := d.canaries.Write(path.Join(datadir.ResourcesDir, name, "config-mode.json"), raw); err != nil {
			return err
		}
	}
	for name, doc := range map[string]ordered.Value{
		access.PermissionsPath:                          access.Permissions(ownTokenLevel),
		"ignition/system-properties":                    ordered.Object{{"homepageUrl", "/web/home"}, {"systemName", d.opts.Name}},
		"ignition/user-source/default":                  ordered.Object{{"profile", ordered.Object{{"type", "INTERNAL"}}}},
		"ignition/identity-provider/default":            ordered.Object{{"profile", ordered.Object{{"type", "internal"}}}},
		"ignition/tag-provider/default":                 ordered.Object{{"profile", ordered.Object{{"type", "STANDARD"}}}},
		"com.inductiveautomation.opcua/one-time":        ordered.Object{},
		"ignition/gateway-network-settings":             ordered.Object{{"enabled", true}},
		"com.inductiveautomation.perspective/themes/ui": ordered.Object{{"private", true}},
	} {
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
