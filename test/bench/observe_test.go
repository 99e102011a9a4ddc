package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestObservedGoals(t *testing.T) {
	for name, c := range map[string]struct {
		took        time.Duration
		bytes       int
		memory      int64
		own, others int
		missed      string
	}{
		"good":           {20 * time.Millisecond, 60 << 10, 30 << 20, 30, 0, ""},
		"slow":           {time.Second, 60 << 10, 30 << 20, 30, 0, "the fleet: at most 200 ms"},
		"large":          {20 * time.Millisecond, 1 << 20, 30 << 20, 30, 0, "the fleet: at most 200 ms"},
		"memory":         {20 * time.Millisecond, 60 << 10, 100 << 20, 30, 0, "anonymous memory"},
		"memory unknown": {20 * time.Millisecond, 60 << 10, 0, 30, 0, "anonymous memory"},
		"requests":       {20 * time.Millisecond, 60 << 10, 30 << 20, 30, 2, "no request besides"},
		"lease":          {20 * time.Millisecond, 60 << 10, 30 << 20, 60, 0, "requests for its Lease"},
	} {
		t.Run(name, func(t *testing.T) {
			p := page{name: "the fleet", bytes: c.bytes, loads: results{}}
			p.loads.add("", "page", "ui", sample{wall: c.took})
			var out bytes.Buffer
			require.NoError(t, writeObserved(&out, 1000, 1, time.Minute, []page{p}, c.memory, c.own, c.others))
			var missed []string
			for line := range strings.Lines(out.String()) {
				if strings.Contains(line, "**missed**") {
					missed = append(missed, line)
				}
			}
			if c.missed == "" {
				assert.Empty(t, missed)
				return
			}
			require.Len(t, missed, 1)
			assert.Contains(t, missed[0], c.missed)
		})
	}
}
