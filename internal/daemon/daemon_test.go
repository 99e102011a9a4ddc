package daemon_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/klog/v2"

	"stoker.io/stoker/internal/daemon"
	"stoker.io/stoker/internal/serve"
	"stoker.io/stoker/test/leak"
	"stoker.io/stoker/test/program"
)

// settings are the settings of a binary with an additional flag.
type settings struct {
	daemon.Settings
	mood string
}

func parse(out io.Writer, args ...string) (settings, error) {
	var s settings
	f := daemon.Flags("sweeper", out, "sweeper sweeps.\n\n  sweeper [flags]", "Environment: none.")
	s.Register(f)
	f.StringVar(&s.mood, "mood", "good", "the `mood`: good or bad")
	if err := daemon.Parse(f, args); err != nil || s.Version {
		return s, err
	}
	err := daemon.Explain(f, append(s.Problems(), daemon.OneOf("mood", s.mood, "", "good", "bad"))...)
	return s, err
}

func TestExitCode(t *testing.T) {
	for _, c := range []struct {
		args    []string
		code    int
		printed string
	}{
		{args: []string{"--log-format=text"}, code: daemon.ExitDone},
		{args: []string{"--version", "--mood=odd", "extra"}, code: daemon.ExitDone},
		{args: []string{"--watch-namespace="}, code: daemon.ExitUsage, printed: "it is empty"},
		{args: []string{"--nonsense"}, code: daemon.ExitUsage, printed: "flag provided but not defined: -nonsense\nSee sweeper --help.\n"},
		{args: []string{"--mood=odd"}, code: daemon.ExitUsage, printed: "--mood: \"odd\" is not one of good, bad\nSee sweeper --help.\n"},
	} {
		t.Run(strings.Join(c.args, " "), func(t *testing.T) {
			var stderr bytes.Buffer
			_, err := parse(&stderr, c.args...)
			assert.Equal(t, c.code, daemon.Exit(err, "sweeper", &stderr))
			assert.Contains(t, stderr.String(), c.printed)
			assert.NotContains(t, stderr.String(), "usage:", "a usage error must not print the usage")
			if c.printed == "" {
				assert.Empty(t, stderr.String())
			}
		})
	}
	var stderr bytes.Buffer
	assert.Equal(t, daemon.ExitFailed, daemon.Exit(errors.New("the broom broke"), "sweeper", &stderr))
	assert.Equal(t, "sweeper: the broom broke\n", stderr.String())
}

func TestHelp(t *testing.T) {
	var stderr bytes.Buffer
	_, err := parse(&stderr, "--help")
	require.ErrorIs(t, err, flag.ErrHelp)
	assert.Equal(t, daemon.ExitDone, daemon.Exit(err, "sweeper", &stderr))
	assert.Regexp(t, `(?s)^sweeper sweeps\.\n\n  sweeper \[flags\]\n\nFlags:\n  -health-addr address\n.*  -mood mood\n.*  -watch-namespace namespace\n.*\n\nEnvironment: none\.\n$`, stderr.String())
}

func TestAllErrorsAreReported(t *testing.T) {
	var stderr bytes.Buffer
	_, err := parse(&stderr, "--mood=odd", "--log-format=xml", "--log-level=loud", "--watch-namespace=a", "--watch-namespace=B", "--watch-label-selector=a=b=c", "extra")
	require.ErrorIs(t, err, daemon.ErrUsage)
	assert.Regexp(t, `^unexpected argument "extra"
--log-format: "xml" is not one of json, text
--log-level: "loud" is not one of debug, info, warn, error
--watch-namespace: "B" is not a valid namespace name
--watch-label-selector: .*
--mood: "odd" is not one of good, bad
See sweeper --help\.
$`, stderr.String())
}

func TestSettingsAreRead(t *testing.T) {
	s, err := parse(io.Discard, "--watch-namespace=a", "--watch-namespace=b", "--watch-label-selector=tier=test")
	require.NoError(t, err)
	assert.Equal(t, daemon.Texts{"a", "b"}, s.WatchNamespace)
	assert.True(t, s.Selector.Matches(labels.Set{"tier": "test"}))
	assert.False(t, s.Selector.Matches(labels.Set{"tier": "live"}))
	s, err = parse(io.Discard)
	require.NoError(t, err)
	assert.True(t, s.Selector.Matches(labels.Set{"tier": "live"}), "an empty selector matches every label")
}

func TestLogFormatAndLevel(t *testing.T) {
	for _, c := range []struct{ format, level, want string }{
		{"json", "warn", `{"level":"WARN","msg":"two"}` + "\n"},
		{"text", "info", "level=INFO msg=one\nlevel=WARN msg=two\n"},
		{"", "", `{"level":"INFO","msg":"one"}` + "\n" + `{"level":"WARN","msg":"two"}` + "\n"},
	} {
		t.Run(cmp.Or(c.format, "default"), func(t *testing.T) {
			var out bytes.Buffer
			log := slog.New(timeless{daemon.Log(&out, c.format, c.level).Handler()})
			log.Debug("none")
			log.Info("one")
			log.Warn("two")
			assert.Equal(t, c.want, out.String())
		})
	}
}

type timeless struct{ slog.Handler }

func (h timeless) Handle(ctx context.Context, r slog.Record) error {
	r.Time = time.Time{}
	return h.Handler.Handle(ctx, r)
}

// running is a running binary with its own ports.
type running struct {
	log  *program.Log
	stop context.CancelFunc
	done chan error
}

func run(t *testing.T, c daemon.Config) *running {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	r := &running{log: &program.Log{}, stop: stop, done: make(chan error, 1)}
	c.Log, c.Metrics, c.Namespace = daemon.Log(r.log, "json", "info"), daemon.Registry(), "stoker-system"
	for _, addr := range []*string{&c.Settings.HealthAddr, &c.Settings.MetricsAddr} {
		if *addr == "" {
			*addr = "127.0.0.1:0"
		}
	}
	if c.Ready == nil {
		c.Ready = func() bool { return true }
	}
	go func() { r.done <- daemon.Run(ctx, c) }()
	t.Cleanup(stop)
	return r
}

// ends waits for the binary to end and returns its error.
func (r *running) ends(t *testing.T) error {
	t.Helper()
	select {
	case err := <-r.done:
		return err
	case <-time.After(time.Minute):
		require.Fail(t, "the daemon did not end", "%s", r.log)
		return nil
	}
}

// listens returns the address of the server that a flag configures.
func (r *running) listens(t *testing.T, flag string) string {
	t.Helper()
	require.Eventually(t, func() bool { return r.log.Address(flag) != "" }, time.Minute, time.Millisecond, "%s", r.log)
	return r.log.Address(flag)
}

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := client.Get(url)
	require.NoError(t, err)
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	require.NoError(t, err)
	return res.StatusCode, string(body)
}

// own returns an additional server of the binary.
func own(addr string) []daemon.Endpoint {
	return []daemon.Endpoint{{Flag: "broom-addr", Listen: func(ctx context.Context) (*serve.Server, error) {
		return serve.Listen(ctx, addr, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "swept") }))
	}}}
}

func TestRunUntilCanceled(t *testing.T) {
	defer leak.None(t)
	ready := make(chan struct{})
	r := run(t, daemon.Config{
		Endpoints: own("127.0.0.1:0"), Waits: "waiting for the broom",
		Ready: func() bool {
			select {
			case <-ready:
				return true
			default:
				return false
			}
		},
		Loops: []func(context.Context) error{func(ctx context.Context) error {
			klog.FromContext(ctx).Info("sweeping")
			<-ctx.Done()
			return nil
		}},
	})
	metrics, health := "http://"+r.listens(t, "metrics-addr"), "http://"+r.listens(t, "health-addr")
	code, said := get(t, "http://"+r.listens(t, "broom-addr"))
	assert.Equal(t, http.StatusOK, code)
	assert.Equal(t, "swept", said)
	code, said = get(t, metrics+"/metrics")
	assert.Equal(t, http.StatusOK, code)
	assert.Contains(t, said, "go_goroutines")
	code, said = get(t, health+"/readyz")
	assert.Equal(t, http.StatusServiceUnavailable, code)
	assert.Equal(t, "waiting for the broom\n", said)
	code, _ = get(t, health+"/healthz")
	assert.Equal(t, http.StatusOK, code)
	close(ready)
	code, said = get(t, health+"/readyz")
	assert.Equal(t, http.StatusOK, code)
	assert.Equal(t, "ok\n", said)

	r.stop()
	require.NoError(t, r.ends(t))
	assert.Contains(t, r.log.String(), `"msg":"sweeping"`, "the context of a loop holds the logger")
	assert.Contains(t, r.log.String(), `"namespace":"stoker-system"`)
}

func TestListenErrorNamesFlag(t *testing.T) {
	defer leak.None(t)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { assert.NoError(t, taken.Close()) }()
	for name, c := range map[string]daemon.Config{
		"broom-addr":   {Endpoints: own(taken.Addr().String())},
		"health-addr":  {Endpoints: own("127.0.0.1:0"), Settings: daemon.Settings{HealthAddr: taken.Addr().String()}},
		"metrics-addr": {Endpoints: own("127.0.0.1:0"), Settings: daemon.Settings{MetricsAddr: taken.Addr().String()}},
	} {
		t.Run(name, func(t *testing.T) {
			c.Loops = []func(context.Context) error{func(context.Context) error { t.Error("the loop ran although the address is in use"); return nil }}
			err := run(t, c).ends(t)
			require.ErrorContains(t, err, "--"+name+": listen on "+taken.Addr().String())
		})
	}
}

func TestFailedLoopEndsAll(t *testing.T) {
	defer leak.None(t)
	broke := errors.New("the broom broke")
	r := run(t, daemon.Config{Endpoints: own("127.0.0.1:0"), Loops: []func(context.Context) error{
		func(ctx context.Context) error { <-ctx.Done(); return nil },
		func(context.Context) error { return broke },
	}})
	require.ErrorIs(t, r.ends(t), broke)
	_, err := net.Dial("tcp", r.listens(t, "broom-addr"))
	assert.Error(t, err)
}
