package main

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/disk"
	"stoker.io/stoker/agent/propose"
	"stoker.io/stoker/internal/daemon"
)

func TestProposalShow(t *testing.T) {
	show := func(args ...string) (int, string, string) {
		var out, talk bytes.Buffer
		code := run(t.Context(), append([]string{"proposal"}, args...), nil, &out, &talk)
		return code, out.String(), talk.String()
	}
	for name, args := range map[string][]string{
		"no verb": {}, "an unknown verb": {"burn"}, "no directory": {"show"}, "an unknown format": {"show", "--data-dir", "x", "-o", "xml"}, "an argument": {"show", "--data-dir", "x", "y"},
	} {
		t.Run(name, func(t *testing.T) {
			code, _, talk := show(args...)
			assert.Equal(t, daemon.ExitUsage, code)
			assert.Contains(t, talk, "agent proposal show --data-dir DIR")
		})
	}
	data := t.TempDir()
	t.Run("nothing proposed", func(t *testing.T) {
		code, out, _ := show("show", "--data-dir", data)
		assert.Equal(t, daemon.ExitDone, code)
		assert.Equal(t, "Nothing has been proposed.\n", out)
	})
	d, err := disk.Open(data, disk.Options{AllowUnseeded: true})
	require.NoError(t, err)
	require.NoError(t, d.SetNote("proposal", []byte(`{"branch":"gateway-changes/a","tip":"1111111111111111111111111111111111111111","digest":"d","number":3,
		"url":"https://git.example.com/3\u001b[2J","files":{"site/projects/line/a.json":{"path":"projects/line/a.json","op":"modified","id":"2222222222222222222222222222222222222222"}}}`)))
	require.NoError(t, d.Close())
	t.Run("as a table", func(t *testing.T) {
		code, out, _ := show("show", "--data-dir", data)
		assert.Equal(t, daemon.ExitDone, code)
		assert.Equal(t, `STATE         Open
BRANCH        gateway-changes/a
COMMIT        1111111111111111111111111111111111111111
PULL REQUEST  "https://git.example.com/3\x1b[2J"

WHAT      FILE                  IN GIT
modified  projects/line/a.json  site/projects/line/a.json
`, out)
	})
	t.Run("as JSON", func(t *testing.T) {
		code, out, _ := show("show", "-o", "json", "--data-dir", data)
		assert.Equal(t, daemon.ExitDone, code)
		var r propose.Summary
		require.NoError(t, json.Unmarshal([]byte(out), &r))
		assert.EqualValues(t, 3, r.Number)
		assert.Equal(t, []propose.Change{{Path: "projects/line/a.json", Source: "site/projects/line/a.json", Op: propose.Modified}}, r.Changes)
	})
}
