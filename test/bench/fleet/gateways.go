package fleet

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	gosync "sync"

	"stoker.io/stoker/test/gateway/simulator"
)

// gateways are the simulated gateways and the proxy before them. They run in a process of their own, because a process may have only so many
// open files, and 1,000 agents take most of them.
type gateways struct {
	port int32 // of the proxy

	process *exec.Cmd
	stderr  bytes.Buffer
	mu      gosync.Mutex // one order at a time
	stdin   io.WriteCloser
	orders  *json.Encoder
	answers *json.Decoder
}

// gatewaysArg is the argument of this program that makes it the process of the gateways.
const gatewaysArg = "fleet-gateways"

// order starts a gateway.
type order struct{ Name, Data string }

// answer is the answer to an order. The first one is not to an order, and has the port of the proxy.
type answer struct {
	Port         int32
	Token, Error string
}

// startGateways starts the process. It ends when ctx is done, too.
func startGateways(ctx context.Context) (*gateways, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	g := &gateways{process: exec.CommandContext(ctx, self, gatewaysArg)}
	g.process.Stderr = &g.stderr
	stdout, err := g.process.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if g.stdin, err = g.process.StdinPipe(); err != nil {
		return nil, err
	}
	g.orders, g.answers = json.NewEncoder(g.stdin), json.NewDecoder(stdout)
	if err := g.process.Start(); err != nil {
		return nil, err
	}
	first, err := g.answer()
	if err != nil {
		return nil, errors.Join(err, g.close())
	}
	g.port = first.Port
	return g, nil
}

// add starts a gateway, and returns its API token.
func (g *gateways) add(o order) (token string, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.orders.Encode(o); err != nil {
		return "", err
	}
	a, err := g.answer()
	return a.Token, err
}

func (g *gateways) answer() (a answer, err error) {
	if err = g.answers.Decode(&a); err == nil && a.Error != "" {
		err = errors.New(a.Error)
	}
	if err != nil {
		err = fmt.Errorf("the process of the gateways: %w", err)
	}
	return a, err
}

func (g *gateways) close() error {
	err := errors.Join(g.stdin.Close(), g.process.Wait())
	if err != nil {
		err = fmt.Errorf("the process of the gateways: %w: %s", err, g.stderr.Bytes())
	}
	return err
}

// RunGateways is the process of the gateways, if args ask for it. It runs until stdin ends.
func RunGateways(ctx context.Context, args []string, stdin io.Reader, stdout io.Writer) (asked bool, err error) {
	if len(args) != 1 || args[0] != gatewaysArg {
		return false, nil
	}
	p, err := newProxy(ctx)
	if err != nil {
		return true, err
	}
	closers := []func() error{p.close}
	defer func() {
		for _, closer := range closers {
			err = errors.Join(err, closer())
		}
	}()
	answers, orders := json.NewEncoder(stdout), json.NewDecoder(stdin)
	if err := answers.Encode(answer{Port: p.port}); err != nil {
		return true, err
	}
	for {
		var o order
		if err := orders.Decode(&o); err != nil {
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return true, err
		}
		var a answer
		if gateway, err := startGateway(p, o); err != nil {
			a.Error = err.Error()
		} else {
			a.Token = gateway.Token()
			closers = append(closers, gateway.Close)
		}
		if err := answers.Encode(a); err != nil {
			return true, err
		}
	}
}

func startGateway(p *proxy, o order) (*simulator.Gateway, error) {
	gateway, err := simulator.Start(simulator.Options{Data: o.Data, Name: o.Name})
	if err != nil {
		return nil, err
	}
	u, err := url.Parse(gateway.URL())
	if err != nil {
		return nil, errors.Join(err, gateway.Close())
	}
	p.add(gateway.Token(), u)
	return gateway, nil
}
