package ignition

import (
	"context"
	"net/http"
	"time"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// States on the gateway's status page [LIVE 8.3.6]. There may be others; they count as not running.
const (
	StateRunning  = "RUNNING"
	StateStarting = "STARTING"
	// DetailCommissioning accompanies RUNNING while the gateway waits for its commissioning and is not usable.
	DetailCommissioning = "COMMISSIONING"
)

// Ping is the state of a gateway.
type Ping struct {
	State, Details string
	// Date is the gateway's clock in whole seconds, or zero if the response has none.
	Date time.Time
}

// Running reports whether the gateway is usable.
func (p Ping) Running() bool { return p.State == StateRunning && p.Details != DetailCommissioning }

// Commissioning reports whether the gateway waits for a user to commission it.
func (p Ping) Commissioning() bool { return p.Details == DetailCommissioning }

func (p Ping) String() string {
	if p.Details == "" {
		return p.State
	}
	return p.State + "/" + p.Details
}

// Ping returns the gateway's state. It needs no API key: GET /StatusPing [LIVE 8.3.6]. Without a state, the error is
// GatewayUnreachable, WaitingForGateway (503) or WaitingForCommissioning (a redirect to the welcome page).
func (c *Client) Ping(ctx context.Context) (Ping, error) {
	r := call{method: http.MethodGet, path: "/StatusPing", public: true}
	got, err := c.do(ctx, r)
	if err != nil {
		return Ping{}, err
	}
	doc, err := decode[struct {
		State   text `json:"state"`
		Details text `json:"details"`
	}](c, r, got)
	if err != nil {
		return Ping{}, err
	}
	if doc.State == "" {
		return Ping{}, failure.New(v1alpha1.ReasonGatewayUnreachable,
			"%s returns no state at /StatusPing: is this an Ignition gateway?", c.base)
	}
	p := Ping{State: oneLine(string(doc.State), 40), Details: oneLine(string(doc.Details), 40)}
	if date, err := http.ParseTime(got.header.Get("Date")); err == nil {
		p.Date = date
	}
	return p, nil
}
