//go:build linux && !race

package ignition_test

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"runtime/debug"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/ignition"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

const (
	envAsk  = "STOKER_TEST_ASK"
	envHost = "STOKER_TEST_HOST"
)

// lists has the requests that return lists.
var lists = map[string]func(ctx context.Context, c *ignition.Client) (any, error){
	"projects": func(ctx context.Context, c *ignition.Client) (any, error) { return c.Projects(ctx) },
	"names": func(ctx context.Context, c *ignition.Client) (any, error) {
		return c.ResourceNames(ctx, "ignition", "database")
	},
	"designers": func(ctx context.Context, c *ignition.Client) (any, error) { return c.Designers(ctx) },
	"restarts":  func(ctx context.Context, c *ignition.Client) (any, error) { return c.PendingRestarts(ctx) },
	"errors":    func(ctx context.Context, c *ignition.Client) (any, error) { return c.ErrorsSince(ctx, time.Time{}) },
}

// TestListInChildProcess is the child process of TestListMemory.
func TestListInChildProcess(t *testing.T) {
	ask := lists[os.Getenv(envAsk)]
	if ask == nil {
		t.Skip("runs in a process of TestListMemory")
	}
	debug.SetGCPercent(20) // as the agent does
	limit := syscall.Rlimit{Cur: 512 << 20, Max: 512 << 20}
	require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_DATA, &limit))
	c, err := ignition.New(ignition.Config{URL: os.Getenv(envHost)})
	require.NoError(t, err)
	t.Cleanup(c.Close)
	_, err = ask(t.Context(), c)
	require.True(t, failure.Is(err, v1alpha1.ReasonGatewayUnreachable), "%v", err)
}

// F11, F19 of docs/internals/threats.md: no list from a gateway makes the agent exceed its memory, whatever the pages contain.
func TestListMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("measures memory")
	}
	const size = 8<<20 - 100
	many := func(item string) []byte {
		return append(bytes.Repeat([]byte(item+","), size/(len(item)+1)-1), item...)
	}
	half := many("{}")[:size/2-size/2%3-1] // ends after a {}, because {} and its comma have three bytes
	const endless = `"metadata":{"total":1000000000}}`
	for name, body := range map[string][]byte{
		"empty items": fmt.Appendf(nil, `{"items":[%s],"pending":[%s],%s`, half, half, endless),
		"long items":  fmt.Appendf(nil, `{"items":[{"name":"%s"}],"pending":{},%s`, bytes.Repeat([]byte("x"), 4<<20), endless),
		"empty parts": fmt.Appendf(nil, `{"items":[{"modes":[%s]}],"pending":[%s],%s`, half, half, endless),
		"deep parts":  fmt.Appendf(nil, `{"items":[{"modes":%s`, bytes.Repeat([]byte("["), size)),
		"endless":     fmt.Appendf(nil, `{"items":[%s`, many("{}")),
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(body) }))
		for list := range lists {
			if list == "errors" && (name == "long items" || name == "empty parts") {
				continue // the log has one page, and no parts
			}
			t.Run(name+" of "+list, func(t *testing.T) {
				cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestListInChildProcess$")
				cmd.Env = append(os.Environ(), envAsk+"="+list, envHost+"="+server.URL)
				out, err := cmd.CombinedOutput()
				require.NoError(t, err, "%s", out[:min(len(out), 4000)])
			})
		}
		server.Close()
	}
}
