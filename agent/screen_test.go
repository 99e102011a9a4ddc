package main

import (
	"bytes"
	"encoding/json"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"stoker.io/stoker/agent/loop"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/sync"
	"stoker.io/stoker/api/v1alpha1"
)

func shown(s settings, onTerminal bool) (out, talk string) {
	var stdout, stderr bytes.Buffer
	if s.LogFormat == "" {
		s.LogFormat = "auto"
	}
	s.LogLevel = "info"
	c := newScreen(&stdout, &stderr, s, func(io.Writer) bool { return onTerminal })
	c.log.Info("following", "gateway", "g")
	c.progress("stage", 5, 10)
	c.log.Warn("something is odd")
	r := &sync.Report{Phase: v1alpha1.GatewaySynced, Notes: []string{"no config; skipped", "without the lock"}}
	st := loop.State{GatewayName: "g", Phase: v1alpha1.GatewaySynced, Reason: v1alpha1.ReasonSynced, Commit: plan.ID{0xab}, Ref: "main", Message: "done", Report: r,
		Plan: []string{"first sync → ab00000: 1 created", "+ projects/p/project.json", "warning: no config; skipped"}}
	c.state(st)
	c.state(st)
	return stdout.String(), stderr.String()
}

func TestTerminalOutput(t *testing.T) {
	out, talk := shown(settings{}, true)
	assert.Equal(t, "first sync → ab00000: 1 created\n+ projects/p/project.json\nwarning: no config; skipped\nnote: without the lock\ng: Synced at ab00000 (main): done\n", out)
	assert.Contains(t, talk, "\r\x1b[Kstage 5/10\r\x1b[K", "the progress is erased before a log line")
	assert.Contains(t, talk, "something is odd")
	assert.NotContains(t, talk, "following", "a terminal shows the plan instead of the log event")
}

func TestJSONLogsWithoutTerminal(t *testing.T) {
	out, talk := shown(settings{}, false)
	assert.Empty(t, out)
	lines := strings.Split(strings.TrimSpace(talk), "\n")
	assert.Len(t, lines, 2)
	for _, l := range lines {
		assert.True(t, json.Valid([]byte(l)), l)
	}
	assert.NotContains(t, talk, "\x1b")
}

func TestOnceOutput(t *testing.T) {
	out, talk := shown(settings{Once: true}, false)
	assert.Contains(t, out, "+ projects/p/project.json")
	assert.Contains(t, out, "g: Synced")
	assert.Contains(t, talk, `"msg":"following"`)
}
