// Package seed has the files that the simulated gateway writes to an empty data directory before its first start.
package seed

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path"

	"stoker.io/stoker/test/gateway/simulator/access"
	"stoker.io/stoker/test/gateway/simulator/datadir"
	"stoker.io/stoker/test/gateway/simulator/ordered"
)

// Platform returns the files that only the gateway may write, for a gateway with a redundancy role.
func Platform(role string) map[string][]byte {
	unreferenced := []byte(`{"custom":{},"params":{}}`) // a blob that no file of a project refers to any more
	sum := sha256.Sum256(unreferenced)
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
		"redundancy.xml":                   redundancyXML(role),
		path.Join(datadir.BlobDir, hex.EncodeToString(sum[:])): unreferenced,
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

// Collections returns the config-mode.json of each resource collection. mode is the active deployment mode of the gateway, which local
// inherits from; "" for none.
func Collections(mode string) map[string][]byte {
	above := "core"
	if mode != "" {
		above = mode
	}
	return map[string][]byte{
		"external": configMode("External", "system", true),
		"core":     configMode("Core", "external", true),
		"local":    configMode("Local", above, false),
	}
}

// Resources returns the config.json of each resource of the collection core, for a gateway with a name. granted is the security
// level that its permissions admit.
func Resources(name, granted string) map[string]ordered.Value {
	return map[string]ordered.Value{
		access.PermissionsPath:                          access.Permissions(granted),
		access.LevelsPath:                               access.Levels("Authenticated/Roles", granted),
		"ignition/system-properties":                    ordered.Object{{"homepageUrl", "/web/home"}, {"systemName", name}},
		"ignition/user-source/default":                  ordered.Object{{"profile", ordered.Object{{"type", "INTERNAL"}}}},
		"ignition/identity-provider/default":            ordered.Object{{"profile", ordered.Object{{"type", "internal"}}}},
		"ignition/tag-provider/default":                 ordered.Object{{"profile", ordered.Object{{"type", "STANDARD"}}}},
		"com.inductiveautomation.opcua/one-time":        ordered.Object{},
		"ignition/gateway-network-settings":             ordered.Object{{"enabled", true}},
		"com.inductiveautomation.perspective/themes/ui": ordered.Object{{"private", true}},
	}
}
