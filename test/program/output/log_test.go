package output_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/test/program/output"
)

const said = `{"level":"INFO","msg":"starting"}
not JSON, with "listening" in it
{"level":"INFO","msg":"listening","for":"health","address":"127.0.0.1:4001"}
{"level":"INFO","msg":"a server is \"listening\"","for":"health","address":"127.0.0.1:9"}
{"level":"INFO","msg":"listening","for":"metrics","address":"127.0.0.1:4002"}
`

func TestAddressFromLogChunks(t *testing.T) {
	for size := 1; size <= len(said); size++ {
		log := &output.Log{MaxBytes: 10}
		for rest := said; rest != ""; {
			n, err := fmt.Fprint(log, rest[:min(size, len(rest))])
			require.NoError(t, err)
			rest = rest[n:]
		}
		assert.Equal(t, "127.0.0.1:4001", log.Address("health"), size)
		assert.Equal(t, "127.0.0.1:4002", log.Address("metrics"), size)
		assert.Empty(t, log.Address("other"), size)
		assert.Equal(t, said[len(said)-10:], log.String(), size)
	}
}

func TestLogKeepsEverything(t *testing.T) {
	var log output.Log
	long := strings.Repeat("x", 1<<20) + "\n"
	for _, line := range []string{long, said} {
		_, err := fmt.Fprint(&log, line)
		require.NoError(t, err)
	}
	assert.Equal(t, long+said, log.String())
	assert.Equal(t, "127.0.0.1:4002", log.Address("metrics"), "a long line must not hide later lines")
	assert.Equal(t, strings.TrimSpace(long+said), log.Tail())
}
