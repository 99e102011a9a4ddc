package ignition_test

import (
	"archive/zip"
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/ignition"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/test/gateway/simulator"
)

func TestBackup(t *testing.T) {
	g := start(t, simulator.Options{})
	var b bytes.Buffer
	require.NoError(t, client(t, g).Backup(t.Context(), &b))
	_, err := zip.NewReader(bytes.NewReader(b.Bytes()), int64(b.Len()))
	require.NoError(t, err)
	require.NoError(t, g.Faults.Add(simulator.Fault{Route: "GET /data/api/v1/backup", Status: 403}))
	requireReason(t, v1alpha1.ReasonGatewayForbidden, client(t, g).Backup(t.Context(), &b))
}

// bounded fails beyond a number of bytes.
type bounded int

var errFull = errors.New("full")

func (b *bounded) Write(p []byte) (int, error) {
	if *b -= bounded(len(p)); *b < 0 {
		return 0, errFull
	}
	return len(p), nil
}

// F25: a gateway whose backup is truncated, late, endless or not a backup.
func TestHostileBackup(t *testing.T) {
	part := append([]byte("PK\x03\x04"), make([]byte, 1<<20)...)
	send := func(w http.ResponseWriter, p []byte) {
		_, _ = w.Write(p)
		_ = http.NewResponseController(w).Flush()
	}
	cases := map[string]struct {
		answer func(w http.ResponseWriter, r *http.Request)
		want   string
	}{
		"empty":     {func(http.ResponseWriter, *http.Request) {}, "did not answer with a backup"},
		"a page":    {func(w http.ResponseWriter, _ *http.Request) { send(w, []byte("<html>")) }, "did not answer with a backup"},
		"truncated": {func(w http.ResponseWriter, _ *http.Request) { send(w, part); panic(http.ErrAbortHandler) }, "EOF"},
		"shorter than its length": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "2000000")
			send(w, part)
		}, "EOF"},
		"no answer": {func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done(); panic(http.ErrAbortHandler) }, "no bytes arrived"},
		"stalls": {func(w http.ResponseWriter, r *http.Request) {
			send(w, part)
			<-r.Context().Done()
			panic(http.ErrAbortHandler)
		}, "no bytes arrived"},
		"missing": {func(w http.ResponseWriter, r *http.Request) { http.NotFound(w, r) }, "404"},
	}
	ask := func(t *testing.T, answer http.HandlerFunc, stall time.Duration, w io.Writer) error {
		server := httptest.NewServer(answer)
		t.Cleanup(server.Close)
		c, err := ignition.New(ignition.Config{URL: server.URL, BackupStall: stall})
		require.NoError(t, err)
		t.Cleanup(c.Close)
		return c.Backup(t.Context(), w)
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			err := ask(t, c.answer, 200*time.Millisecond, io.Discard)
			requireReason(t, v1alpha1.ReasonGatewayUnreachable, err)
			assert.ErrorContains(t, err, c.want)
		})
	}
	t.Run("endless", func(t *testing.T) {
		endless := func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				send(w, part)
			}
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		limit := bounded(64 << 20)
		require.ErrorIs(t, ask(t, endless, time.Minute, &limit), errFull)
		runtime.ReadMemStats(&after)
		assert.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(16<<20), "the client keeps no part of the backup")
	})
	t.Run("canceled", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		g := start(t, simulator.Options{})
		cancel()
		assert.ErrorIs(t, client(t, g).Backup(ctx, io.Discard), context.Canceled)
	})
}
