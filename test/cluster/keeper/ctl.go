//go:build linux

package keeper

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"time"

	"stoker.io/stoker/test/cluster/node"
	"stoker.io/stoker/test/cluster/process"
)

func socket(run string) string { return filepath.Join(run, "ctl.sock") }

func listen(run string) (net.Listener, error) { return net.Listen("unix", socket(run)) }

// serve answers the requests of a Client until ctx is done.
func (k *cluster) serve(ctx context.Context, l net.Listener) error {
	mux := http.NewServeMux()
	handle := func(verb string, do func(context.Context, string) (any, error)) {
		mux.HandleFunc("POST /"+verb, func(w http.ResponseWriter, r *http.Request) {
			answer, err := do(r.Context(), r.URL.Query().Get("of"))
			if err != nil {
				http.Error(w, err.Error(), http.StatusConflict)
				return
			}
			_ = json.NewEncoder(w).Encode(answer) // the client treats a truncated answer as an error
		})
	}
	handleProgram := func(verb string, do func(string) error) {
		handle(verb, func(_ context.Context, name string) (any, error) { return nil, do(name) })
	}
	handleProgram("stop", k.programs.Stop)
	handleProgram("kill", k.programs.Kill)
	handleProgram("pause", k.programs.Pause)
	handleProgram("resume", k.programs.Resume)
	handle("start", func(ctx context.Context, name string) (any, error) { return nil, k.restart(ctx, name) })
	handle("config", func(context.Context, string) (any, error) { return Running{k.plane.Kubeconfig(), k.Bin}, nil })
	handle("states", func(context.Context, string) (any, error) { return k.programs.States(), nil })
	handle("tail", func(_ context.Context, name string) (any, error) { return k.programs.Tail(name), nil })
	handle("import", func(ctx context.Context, archive string) (any, error) {
		if len(k.nodes) == 0 {
			return nil, errors.New("the cluster has no node that could run the image: it is only a control plane")
		}
		for _, n := range k.nodes {
			if err := n.Import(ctx, archive); err != nil {
				return nil, err
			}
		}
		return nil, nil
	})
	handle("volumes", func(_ context.Context, name string) (any, error) { return k.makeVolume(name) })
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// restart restarts a program that has ended, and waits until it is ready.
func (k *cluster) restart(ctx context.Context, name string) error {
	for _, n := range k.nodes {
		if mine, err := n.Restart(ctx, name); mine || err != nil {
			return err
		}
	}
	return k.plane.Restart(ctx, name)
}

// Running has the kubeconfig and the commands of a running cluster.
type Running struct{ Kubeconfig, Bin string }

// Volume is a directory on a node.
type Volume struct{ Node, Path string }

// makeVolume creates a directory for a volume on every node.
func (k *cluster) makeVolume(name string) ([]Volume, error) {
	var dirs []Volume
	for i, n := range k.nodes {
		path, err := n.Volume(name)
		if err != nil {
			return nil, err
		}
		dirs = append(dirs, Volume{node.Name(i + 1), path})
	}
	return dirs, nil
}

// Client controls a running cluster.
type Client struct{ http *http.Client }

// NewClient returns a client for the cluster of a run directory.
func NewClient(run string) *Client {
	var d net.Dialer
	return &Client{&http.Client{
		Timeout: 5 * time.Minute,
		Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return d.DialContext(ctx, "unix", socket(run))
		}},
	}}
}

func (c *Client) call(ctx context.Context, verb, of string, answer any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://cluster/"+verb+"?of="+url.QueryEscape(of), nil)
	if err != nil {
		return err
	}
	res, err := c.http.Do(req)
	if err != nil {
		return fmt.Errorf("the cluster does not answer; does it run? %w", err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	if err != nil {
		return err
	}
	if res.StatusCode != http.StatusOK {
		return errors.New(strings.TrimSpace(string(body)))
	}
	if answer == nil {
		return nil
	}
	return json.Unmarshal(body, answer)
}

// Config returns the kubeconfig and the commands of the cluster.
func (c *Client) Config(ctx context.Context) (r Running, err error) {
	err = c.call(ctx, "config", "", &r)
	return r, err
}

// Stop terminates a program, and kills it if it does not end.
func (c *Client) Stop(name string) error { return c.call(context.Background(), "stop", name, nil) }

// Kill kills a program with SIGKILL.
func (c *Client) Kill(name string) error { return c.call(context.Background(), "kill", name, nil) }

// Pause freezes a program.
func (c *Client) Pause(name string) error { return c.call(context.Background(), "pause", name, nil) }

// Resume continues a paused program.
func (c *Client) Resume(name string) error { return c.call(context.Background(), "resume", name, nil) }

// Restart restarts a program that has ended, and waits until it is ready.
func (c *Client) Restart(ctx context.Context, name string) error {
	return c.call(ctx, "start", name, nil)
}

// States lists the programs.
func (c *Client) States() (states []process.State, err error) {
	err = c.call(context.Background(), "states", "", &states)
	return states, err
}

// Tail returns the end of a program's output.
func (c *Client) Tail(name string) (tail string, err error) {
	err = c.call(context.Background(), "tail", name, &tail)
	return tail, err
}

// Import imports an image's archive into every node.
func (c *Client) Import(ctx context.Context, archive string) error {
	return c.call(ctx, "import", archive, nil)
}

// MakeVolume creates a directory for a volume on every node.
func (c *Client) MakeVolume(ctx context.Context, name string) (dirs []Volume, err error) {
	err = c.call(ctx, "volumes", name, &dirs)
	return dirs, err
}
