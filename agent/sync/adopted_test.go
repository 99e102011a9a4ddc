package sync_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/test/gateway/simulator"
	"stoker.io/stoker/test/gitserver"
)

// A commit with an invalid file must fail even if that file is already on the gateway, for example through a copy.
func TestExistingFilesAreValidated(t *testing.T) {
	for name, c := range map[string]struct {
		file, content string
		reason        v1alpha1.Reason
	}{
		"a pointer":    {"image.png", "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n", v1alpha1.ReasonLFSPointer},
		"broken JSON":  {"other.json", `{"broken": `, v1alpha1.ReasonConfigSyntaxError},
		"a bad shape":  {"in/resource.json", `{"scope":"G","version":1,"files":[]}`, v1alpha1.ReasonConfigSyntaxError},
		"a large file": {"large.json", `"` + strings.Repeat("x", 1<<20) + `"`, v1alpha1.ReasonLimitExceeded},
		"a good file":  {"good.json", `{}`, v1alpha1.ReasonSynced},
	} {
		t.Run(name, func(t *testing.T) {
			for place, there := range map[string]bool{"on the gateway": true, "only in git": false} {
				t.Run(place, func(t *testing.T) {
					b := newBench(t, simulator.Options{})
					b.push(append(firstCommit(), gitserver.Write(viewDir+"/"+c.file, c.content))...)
					if there {
						at := filepath.Join(b.data, viewDir, c.file)
						require.NoError(t, os.MkdirAll(filepath.Dir(at), 0o755))
						require.NoError(t, os.WriteFile(at, []byte(c.content), 0o644))
					}
					b.target.Profile.DryRun = true
					planned := b.sync()
					b.target.Profile.DryRun = false
					r := b.sync()
					assert.Equal(t, c.reason, r.Reason, "%s", r)
					if c.reason == v1alpha1.ReasonSynced {
						assert.Equal(t, v1alpha1.GatewaySynced, r.Phase, "%s", r)
						return
					}
					assert.Equal(t, c.reason, planned.Reason, "dry run: %s", planned)
					assert.Zero(t, planned.Files.Total)
					assert.Zero(t, r.Files.Total, "the agent owns no file")
				})
			}
		})
	}
}
