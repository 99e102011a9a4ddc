package tuning

import (
	"flag"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestDefaultsAndChecks(t *testing.T) {
	s := Settings{LogLevel: "info", MaxFiles: 7, LostFoundAge: time.Hour}
	read := func(args ...string) []error {
		t.Helper()
		f := flag.NewFlagSet("x", flag.ContinueOnError)
		f.SetOutput(io.Discard)
		s.Register(f)
		require.NoError(t, f.Parse(args))
		return s.Problems(f)
	}
	assert.Empty(t, read("--max-blob=1KiB"))
	assert.Equal(t, Settings{LogLevel: "info", MaxFiles: 7, MaxBlob: 1024, LostFoundAge: time.Hour}, s)
	assert.Empty(t, read("--log-format=auto", "--log-level=debug", "--lost-found-age=1s", "--max-files=1"))
	var said []string
	for _, err := range read("--log-format=xml", "--log-level=loud", "--max-files=-1", "--max-blob=0",
		"--max-repository=0", "--max-lost-found=0", "--lost-found-age=-1s") {
		said = append(said, err.Error())
	}
	assert.ElementsMatch(t, []string{`--log-format: "xml" is not one of auto, json, text`, `--log-level: "loud" is not one of debug, info, warn, error`, "--max-files must be positive",
		"--max-blob must be positive",
		"--max-repository must be positive", "--max-lost-found must be positive", "--lost-found-age must be positive"}, said)
}

func TestSize(t *testing.T) {
	for text, want := range map[string]int64{"0": 0, "17": 17, "1KiB": 1 << 10, "512MiB": 512 << 20, "8GiB": 8 << 30} {
		t.Run(text, func(t *testing.T) {
			var b Size
			require.NoError(t, b.Set(text))
			assert.EqualValues(t, want, b)
			assert.Equal(t, text, b.String())
		})
	}
	for _, text := range []string{"", "-1", "1.5GiB", "GiB", "9999999999GiB", "5MB", "0x10"} {
		t.Run(text, func(t *testing.T) {
			var b Size
			assert.Error(t, b.Set(text))
		})
	}
}

func TestParseAge(t *testing.T) {
	for text, want := range map[string]time.Duration{"30d": 720 * time.Hour, "720h": 720 * time.Hour, "1h30m": 90 * time.Minute, "0d": 0} {
		t.Run(text, func(t *testing.T) {
			var a age
			require.NoError(t, a.Set(text))
			assert.Equal(t, want, time.Duration(a))
		})
	}
	for _, text := range []string{"", "d", "30", "30 days", "1.5d", "1d12h", "-1d", "99999999999d", "36501d"} {
		t.Run(text, func(t *testing.T) {
			var a age
			assert.ErrorContains(t, a.Set(text), "is not a duration such as 720h or 30d")
		})
	}
}
