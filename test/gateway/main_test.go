package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/test/document"
	"stoker.io/stoker/test/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

// running starts the program and returns the variables that it prints: GATEWAY, GATEWAY_TLS, ADMIN.
func running(t *testing.T, args ...string) map[string]string {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	r, w := io.Pipe()
	done := make(chan error, 1)
	go func() {
		err := run(ctx, append([]string{"--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"}, args...), w, io.Discard)
		_ = w.CloseWithError(err)
		done <- err
	}()
	t.Cleanup(func() {
		stop()
		assert.NoError(t, <-done)
	})
	printed := map[string]string{}
	lines := bufio.NewScanner(r)
	for len(printed) < 3 && lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), "=")
		printed[name] = value
	}
	require.Len(t, printed, 3, "%v", lines.Err())
	return printed
}

func TestTokenAndCertificateFiles(t *testing.T) {
	dir := t.TempDir()
	token, ca := filepath.Join(dir, "token"), filepath.Join(dir, "ca.pem")
	args := []string{"--data", filepath.Join(dir, "data"), "--seed", "--tls-listen", "127.0.0.1:0", "--token-out", token, "--ca-out", ca}
	var tokens []string
	for range 2 {
		t.Run("start", func(t *testing.T) {
			at := running(t, args...)
			raw, err := os.ReadFile(token)
			require.NoError(t, err)
			tokens = append(tokens, string(raw))
			assert.True(t, strings.HasPrefix(at["GATEWAY_TLS"], "https://"))
			cert, err := os.ReadFile(ca)
			require.NoError(t, err)
			assert.Contains(t, string(cert), "BEGIN CERTIFICATE")
		})
	}
	require.Len(t, tokens, 2)
	assert.Equal(t, tokens[0], tokens[1])
}

func TestInvalidArguments(t *testing.T) {
	for name, args := range map[string][]string{
		"no data directory": {}, "unknown flag": {"--nothing"}, "extra argument": {"extra"}, "data directory below a file": {"--data", "/dev/null/x"},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Error(t, run(t.Context(), args, io.Discard, io.Discard))
		})
	}
}

func readme(t *testing.T) string {
	t.Helper()
	raw, err := os.ReadFile("README.md")
	require.NoError(t, err)
	return string(raw)
}

func TestREADMECoversFlags(t *testing.T) {
	var usage bytes.Buffer
	_, err := parse([]string{"-h"}, &usage)
	require.ErrorIs(t, err, flag.ErrHelp)
	doc, flags := readme(t), 0
	for line := range strings.Lines(usage.String()) {
		if name, ok := strings.CutPrefix(line, "  -"); ok {
			flags++
			name = strings.Fields(name)[0]
			assert.Contains(t, doc, "`--"+name+"`")
		}
	}
	assert.Greater(t, flags, 15)
}

func TestREADMECoversAdminRoutes(t *testing.T) {
	at := running(t, "--data", t.TempDir(), "--seed")
	resp, err := http.Get(at["ADMIN"] + "/?")
	require.NoError(t, err)
	defer http.DefaultClient.CloseIdleConnections()
	defer resp.Body.Close()
	var list struct{ Routes []string }
	require.NoError(t, json.NewDecoder(resp.Body).Decode(&list))
	require.Greater(t, len(list.Routes), 15)
	doc := readme(t)
	for _, route := range list.Routes {
		method, path, _ := strings.Cut(route, " ")
		stem, _, _ := strings.Cut(path, "{")
		found := false
		for line := range strings.Lines(doc) {
			has := strings.HasPrefix(line, "curl ") && strings.Contains(line, "$ADMIN"+stem)
			switch method {
			case "GET":
				has = has && !strings.Contains(line, "-X") && !strings.Contains(line, "-d")
			case "POST":
				has = has && (strings.Contains(line, "-X POST") || strings.Contains(line, "-d '"))
			default:
				has = has && strings.Contains(line, "-X "+method)
			}
			found = found || has
		}
		assert.True(t, found, "README.md has no example of %s", route)
	}
}

// Runs the examples unchanged, except for addresses and the directory. One shell runs all of them, with the variables that
// the first example prints.
func TestREADMEExamplesWork(t *testing.T) {
	for _, tool := range []string{"sh", "curl"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("no %s on this machine: the examples are not run", tool)
		}
	}
	lines := document.Open(t)
	dir := t.TempDir()
	here := func(c document.Command) string { return strings.ReplaceAll(c.Text, "/tmp/", dir+"/") }
	const begin = "go run ./test/gateway "
	start := strings.Fields(strings.TrimPrefix(here(lines.Take(t, "test/gateway/README.md", begin)), begin))
	at := running(t, start...)
	// A restarting gateway refuses connections for a moment, so curl retries.
	script := "curl() { command curl --fail-with-body --retry 50 --retry-delay 0 --retry-connrefused --max-time 10 \"$@\"; }\nset -ex\n"
	for c := range lines.Of("test/gateway/README.md") {
		if !strings.HasPrefix(c.Text, begin) {
			script += here(c) + "\n"
		}
	}
	cmd := exec.CommandContext(t.Context(), "sh", "-c", script)
	cmd.Env = append(os.Environ(), "GATEWAY="+at["GATEWAY"], "ADMIN="+at["ADMIN"], "no_proxy=*")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
}
