package resource

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestNeverTouch(t *testing.T) {
	for _, path := range []string{
		"projects/.resources", "projects/.resources/0a1b", "projects/p/.resources/x", ".resources/x",
		"config/local", "config/local/ignition/x.pfx", "config/resources/local/ignition/tag-provider/p/config.json",
		"config/ignition/keys/root.json", "config/ignition/tags/valueStore.idb", "config/ignition/tags/valueStore.idb-wal",
		"config/ignition/tags/valueStore.idb-shm", "db/config.idb", "metricsdb/x", "var/ignition/modl/m.modl",
		"autobackup/x.gwbk", "jar-cache/x", "logs/wrapper.log", "wrapper.log", "config/x/y.log",
		"config/com.inductiveautomation.opcua/certificates/x.der", "config/ignition/keystore/x", "keystore",
		".container-init.conf", ".ignition-seed-complete", "commissioning.json", "modules.json", "redundancy.xml",
		"gateway.xml", "gateway.xml_clean", "gateway.xml.bak", "ignition.conf", "logback.xml", "conversion-report.txt",
		"migration-log-2026.md", "config/resources/core/x.digest.json", "config/.digest.json", ".alarms_1", "var/.alarms_x",
		".git", ".git/config", "projects/p/.git/HEAD", "projects/p/.GIT", "projects/p/git~1/x", "projects/p/.git./x",
		".stoker", ".stoker/manifest", "projects/.stoker/staging/1",
		"VAR/x", "Config/Local/x", "projects/p/.Resources/x", "REDUNDANCY.XML", "projects/.sto\u212aer/x",
	} {
		t.Run(path, func(t *testing.T) {
			assert.True(t, NeverTouch(path), path)
		})
	}
}

func TestNeverTouchLeavesGitFiles(t *testing.T) {
	for _, path := range []string{
		"projects", "projects/p/project.json", "projects/p/com.inductiveautomation.perspective/views/v/view.json",
		"projects/p/views/certificates/view.json", "projects/p/views/keystore/resource.json", "projects/p/x.log",
		"projects/db/project.json", "projects/var/project.json", "projects/logs/project.json", "projects/p/modules.json",
		"config", "config/resources", "config/resources/core/config-mode.json", "config/resources/locale/x",
		"config/resources/core/ignition/tag-provider/local/config.json", "config/localization/x",
		"config/ignition/keys-of-mine/x", "config/resources/external/redundancy.xml", "dbx/y", "variable", "gateway.json",
		".gitignore", ".gitkeep", "projects/p/.github/x", "projects/p/digest.json", "config/valueStore/x",
	} {
		t.Run(path, func(t *testing.T) {
			assert.False(t, NeverTouch(path), path)
		})
	}
}

func FuzzNeverTouch(f *testing.F) {
	f.Add("config/local", "x")
	f.Add("projects/p", "a/.GIT/b")
	f.Fuzz(func(t *testing.T, dir, below string) {
		if strings.HasSuffix(dir, "/") || dir == "" || below == "" {
			return
		}
		if NeverTouch(dir) && strings.Contains(dir, "/") && !NeverTouch(dir+"/"+below) {
			t.Fatalf("%q is never touched, but %q is", dir, dir+"/"+below)
		}
		if NeverTouch(dir) != NeverTouch(strings.ToUpper(dir)) && isASCII(dir) {
			t.Fatalf("the case of %q matters", dir)
		}
	})
}

func isASCII(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r >= 0x80 })
}

// The page states for each rule in which directories it holds.
func TestNeverTouchDocumentation(t *testing.T) {
	page, err := os.ReadFile("../../../docs/reference/files.md")
	require.NoError(t, err)
	_, section, _ := strings.Cut(string(page), "## Never touched\n")
	section, _, _ = strings.Cut(section, "\n## ")
	places := []string{"", "config/", "modules/a/", "projects/line/"}
	holds := map[string][]bool{ // for each of places
		"directly in the data directory": {true, false, false, false},
		"directly in `config/`":          {false, true, false, false},
		"anywhere outside `projects/`":   {true, true, true, false},
		"anywhere":                       {true, true, true, true},
	}
	for _, row := range regexp.MustCompile(`(?m)^\| (.+) \| (`+"`"+`.+) \|$`).FindAllStringSubmatch(section, -1) {
		for _, name := range strings.Split(row[2], ", ") {
			name = strings.ReplaceAll(strings.Trim(name, "`"), "*", "x")
			for i, place := range places {
				t.Run(place, func(t *testing.T) {
					assert.Equal(t, holds[row[1]][i], NeverTouch(place+name), place+name)
					assert.Equal(t, holds[row[1]][i], NeverTouch(place+strings.ToUpper(name)), place+name)
				})
			}
		}
		delete(holds, row[1])
	}
	assert.Empty(t, holds, "rows missing from the page")
}
