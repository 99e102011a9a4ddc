// Package agents asks agents for the state of their gateways, through the API server's proxy of pods. What an agent answers comes from a
// gateway's pod: it is bounded, and it counts only if it names the gateway that was asked for.
package agents

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/sync"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// State holds the fields of an agent's /state that the command line reads.
type State struct {
	Gateway string `json:"gateway"`

	Ref      string             `json:"ref"`
	Target   plan.ID            `json:"target"`
	Commit   plan.ID            `json:"commit"`
	Problems []Problem          `json:"problems"`
	Plan     []string           `json:"plan"`
	Drift    *Drift             `json:"drift"`
	Report   Report             `json:"report"`
	Proposal *v1alpha1.Proposal `json:"proposal"`
	History  []Past             `json:"history"`
	// Snapshots are those on the data volume and in object storage, oldest first.
	Snapshots []Snapshot `json:"snapshots"`
}

// Problem keeps an agent from following.
type Problem struct {
	Reason  v1alpha1.Reason `json:"reason"`
	Message string          `json:"message"`
}

// Drift is what was changed on the gateway itself.
type Drift struct {
	Files int `json:"files"`
	Paths []struct {
		Path string `json:"path"`
		What string `json:"what"`
	} `json:"paths"`
}

// Report is the last sync.
type Report struct {
	Started  time.Time   `json:"started"`
	Duration string      `json:"duration"`
	Files    sync.Counts `json:"files"`
	Projects []string    `json:"projects"`
	Notes    []string    `json:"notes"`
}

// Snapshot is a snapshot of a gateway.
type Snapshot struct {
	Gateway string    `json:"gateway,omitempty"`
	ID      string    `json:"id"`
	Time    time.Time `json:"time"`
	Ref     string    `json:"ref"`
	Commit  plan.ID   `json:"commit"`
	To      plan.ID   `json:"to"`
	Files   int       `json:"files"`
	Bytes   int64     `json:"bytes"`
	// Stored is where the snapshot is, if there is object storage.
	Stored v1alpha1.SnapshotStored `json:"stored,omitempty"`
	// Backup reports whether a backup of the whole gateway with this id is there.
	Backup bool `json:"backup,omitempty"`
}

// Past is a sync that did something or failed.
type Past struct {
	At       time.Time                 `json:"at"`
	Ref      string                    `json:"ref"`
	Commit   plan.ID                   `json:"commit"`
	Phase    v1alpha1.GatewaySyncState `json:"phase"`
	Reason   v1alpha1.Reason           `json:"reason"`
	Message  string                    `json:"message"`
	Duration string                    `json:"duration"`
	Files    sync.Counts               `json:"files"`
}

const (
	healthPort = "8082"  // default port, for an agent that was added by hand and names no port
	maxAnswer  = 8 << 20 // bytes
	within     = 30 * time.Second
)

// Agent is the agent of one gateway.
type Agent struct {
	core    kubernetes.Interface
	pod     *corev1.Pod
	gateway string
}

// Of returns the agent of a gateway, whose pod it reads.
func Of(ctx context.Context, core kubernetes.Interface, namespace string, g v1alpha1.DiscoveredGateway) (Agent, error) {
	pod, err := core.CoreV1().Pods(namespace).Get(ctx, g.PodName, metav1.GetOptions{})
	if err != nil {
		return Agent{}, fmt.Errorf("read the pod of gateway %s: %w", g.Name, err)
	}
	return Agent{core, pod, g.Name}, nil
}

// Pod returns the pod of the gateway.
func (a Agent) Pod() *corev1.Pod { return a.pod }

// port returns the health port of the agent. The injector picks another port if a container uses the default one.
func (a Agent) port() (port string, ok bool) {
	for _, c := range slices.Concat(a.pod.Spec.InitContainers, a.pod.Spec.Containers) {
		if c.Name != v1alpha1.AgentContainer {
			continue
		}
		for _, p := range c.Ports {
			if p.Name == v1alpha1.AgentHealthPort {
				return strconv.Itoa(int(p.ContainerPort)), true
			}
		}
		return healthPort, true
	}
	return "", false
}

// ask returns what the agent serves at a path: at most maxAnswer bytes.
func (a Agent) ask(ctx context.Context, path string) ([]byte, error) {
	port, ok := a.port()
	if !ok {
		return nil, failure.New(v1alpha1.ReasonMissingSidecar, "pod %s has no agent", a.pod.Name)
	}
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	body, err := a.core.CoreV1().Pods(a.pod.Namespace).ProxyGet("http", a.pod.Name, port, path, nil).Stream(ctx)
	if err != nil {
		return nil, fmt.Errorf("ask the agent of pod %s: %w", a.pod.Name, err)
	}
	defer body.Close()
	raw, err := io.ReadAll(io.LimitReader(body, maxAnswer+1))
	if err != nil {
		return nil, fmt.Errorf("ask the agent of pod %s: %w", a.pod.Name, err)
	}
	if len(raw) > maxAnswer {
		return nil, fmt.Errorf("the agent of pod %s sent more than %d bytes", a.pod.Name, maxAnswer)
	}
	return raw, nil
}

// State returns what the gateway runs. It verifies the gateway's name, because another program may answer on that port.
func (a Agent) State(ctx context.Context) (State, error) {
	raw, err := a.ask(ctx, "state")
	if err != nil {
		return State{}, err
	}
	var s State
	if err := json.Unmarshal(raw, &s); err != nil {
		return State{}, fmt.Errorf("the agent of pod %s sent an invalid state: %s: %w", a.pod.Name, strings.TrimSpace(string(raw[:min(len(raw), 80)])), err)
	}
	if s.Gateway != a.gateway {
		port, _ := a.port()
		return State{}, fmt.Errorf("port %s of pod %s does not belong to the agent of gateway %s but reports gateway %.100q; if you added the agent by hand, name its port %s",
			port, a.pod.Name, a.gateway, s.Gateway, v1alpha1.AgentHealthPort)
	}
	return s, nil
}

// Snapshots returns the snapshots of the gateway. It leaves out what cannot be one of this gateway.
func (a Agent) Snapshots(s State) (list []Snapshot) {
	for _, s := range s.Snapshots {
		if v1alpha1.RestoresOn(s.ID, a.gateway) == s.ID {
			s.Gateway = a.gateway
			list = append(list, s)
		}
	}
	return list
}

// Audit returns the audit record of the gateway, oldest first. A line that is not an entry of this gateway is left out, because the gateway
// can write to its volume; the error says how many there are.
func (a Agent) Audit(ctx context.Context) ([]sync.Audit, error) {
	raw, err := a.ask(ctx, "state/audit")
	if err != nil {
		return nil, err
	}
	var list []sync.Audit
	other := 0
	for line := range bytes.Lines(raw) {
		var e sync.Audit
		if json.Unmarshal(line, &e) != nil || e.Schema < 1 || e.Gateway != a.gateway {
			other++
			continue
		}
		list = append(list, e)
	}
	if other > 0 {
		err = fmt.Errorf("%d lines of its audit record are not entries of this gateway", other)
	}
	return list, err
}

// Diff returns the report of what a sync of the gateway changed.
func (a Agent) Diff(ctx context.Context, id string) (sync.Diff, error) {
	raw, err := a.ask(ctx, "state/diffs/"+url.PathEscape(id))
	if err != nil {
		return sync.Diff{}, err
	}
	var d sync.Diff
	if err := json.Unmarshal(raw, &d); err != nil || d.Schema < 1 || d.Gateway != a.gateway {
		return sync.Diff{}, fmt.Errorf("the report %.300q on the volume of gateway %s is not one of this gateway", id, a.gateway)
	}
	return d, nil
}
