// Package agents reads the state of gateways from their agents, through the pod proxy of the API server, and the text of files through exec.
// An answer comes from the pod of a gateway, so it may be hostile: its size is bounded, and a state is valid only if it names the gateway of
// the request.
package agents

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/agent/audit"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/sync"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/annotation"
	"stoker.io/stoker/api/v1alpha1/gatewaypod"
	"stoker.io/stoker/internal/bound"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/internal/kube/podexec"
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
	History  []PastSync         `json:"history"`
	// Snapshots of the gateway on the data volume and in object storage, oldest first.
	Snapshots []Snapshot `json:"snapshots"`
}

// Problem is why an agent does not reach its target.
type Problem struct {
	Reason  v1alpha1.Reason `json:"reason"`
	Message string          `json:"message"`
}

// Drift lists files that were changed on the gateway itself. Files counts them all; Paths may be cut.
type Drift struct {
	Files int `json:"files"`
	Paths []struct {
		Path string `json:"path"`
		What string `json:"what"` // how the file was changed, such as modified
	} `json:"paths"`
}

// Report is the last sync.
type Report struct {
	Files sync.Counts `json:"files"`
	Notes []string    `json:"notes"`
}

// Snapshot has the files that a sync from Commit to To replaced or deleted. Files and Bytes count them.
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
	// Backup is true if there is a backup of the whole gateway with this id.
	Backup bool `json:"backup,omitempty"`
}

// PastSync is a sync that changed something or failed.
type PastSync struct {
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
	defaultPort    = "8082"  // of an agent that was added by hand and names no port
	maxAnswer      = 8 << 20 // bytes
	maxText        = 2 << 20 // bytes of a text diff; an agent prints at most 1 MiB
	requestTimeout = 30 * time.Second
)

// Agent is the agent of one gateway.
type Agent struct {
	core    kube.Core
	pod     *corev1.Pod
	gateway string
}

// Of returns the agent of a gateway. It reads the pod, but does not connect to the agent.
func Of(ctx context.Context, core kube.Core, namespace string, g v1alpha1.DiscoveredGateway) (Agent, error) {
	pod, err := core.CoreV1().Pods(namespace).Get(ctx, g.PodName, metav1.GetOptions{})
	if err != nil {
		return Agent{}, fmt.Errorf("read the pod of gateway %s: %w", g.Name, err)
	}
	return Agent{core, pod, g.Name}, nil
}

// Pod returns the pod of the gateway.
func (a Agent) Pod() *corev1.Pod { return a.pod }

// port returns the health port of the agent, or false if the pod has no agent. The injector picks another port if a container
// uses the default one.
func (a Agent) port() (port string, ok bool) {
	for _, c := range slices.Concat(a.pod.Spec.InitContainers, a.pod.Spec.Containers) {
		if c.Name != gatewaypod.AgentContainer {
			continue
		}
		for _, p := range c.Ports {
			if p.Name == gatewaypod.AgentHealthPort {
				return strconv.Itoa(int(p.ContainerPort)), true
			}
		}
		return defaultPort, true
	}
	return "", false
}

// get returns what the agent serves at a path. More than maxAnswer bytes are an error.
func (a Agent) get(ctx context.Context, path string) ([]byte, error) {
	port, ok := a.port()
	if !ok {
		return nil, failure.New(v1alpha1.ReasonMissingSidecar, "pod %s has no agent", a.pod.Name)
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	body, err := a.core.CoreV1().Pods(a.pod.Namespace).ProxyGet("http", a.pod.Name, port, path, nil).Stream(ctx)
	if err != nil {
		return nil, fmt.Errorf("ask the agent of pod %s: %w", a.pod.Name, err)
	}
	defer body.Close()
	raw, err := bound.ReadAll(body, maxAnswer)
	switch {
	case errors.Is(err, bound.ErrTooLarge):
		return nil, fmt.Errorf("the agent of pod %s sent more than %d bytes", a.pod.Name, maxAnswer)
	case err != nil:
		return nil, fmt.Errorf("ask the agent of pod %s: %w", a.pod.Name, err)
	}
	return raw, nil
}

// State returns the state of the gateway. It verifies the name of the gateway, because another program may use the port.
func (a Agent) State(ctx context.Context) (State, error) {
	raw, err := a.get(ctx, "state")
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
			port, a.pod.Name, a.gateway, s.Gateway, gatewaypod.AgentHealthPort)
	}
	return s, nil
}

// Snapshots returns the snapshots in the state of the gateway, without those whose id is not one of this gateway.
func (a Agent) Snapshots(state State) (list []Snapshot) {
	for _, s := range state.Snapshots {
		if annotation.RestoresOn(s.ID, a.gateway) == s.ID {
			s.Gateway = a.gateway
			list = append(list, s)
		}
	}
	return list
}

// Audit returns the audit record of the gateway, oldest first. The gateway can write to the record, so lines that are not entries of this
// gateway are left out. The error then says how many there are, and the returned entries are valid.
func (a Agent) Audit(ctx context.Context) ([]audit.Entry, error) {
	raw, err := a.get(ctx, "state/audit")
	if err != nil {
		return nil, err
	}
	var list []audit.Entry
	invalid := 0
	for line := range bytes.Lines(raw) {
		var e audit.Entry
		if json.Unmarshal(line, &e) != nil || e.Schema < 1 || e.Gateway != a.gateway {
			invalid++
			continue
		}
		list = append(list, e)
	}
	if invalid > 0 {
		err = fmt.Errorf("%d lines of its audit record are not entries of this gateway", invalid)
	}
	return list, err
}

// Diff returns the report with this id of what a sync of the gateway changed.
func (a Agent) Diff(ctx context.Context, id string) (audit.Diff, error) {
	raw, err := a.get(ctx, "state/diffs/"+url.PathEscape(id))
	if err != nil {
		return audit.Diff{}, err
	}
	var d audit.Diff
	if err := json.Unmarshal(raw, &d); err != nil || d.Schema < 1 || d.Gateway != a.gateway {
		return audit.Diff{}, fmt.Errorf("the report %.300q on the volume of gateway %s is not one of this gateway", id, a.gateway)
	}
	return d, nil
}

// TextDrift returns, as a unified diff, what was changed on the gateway in files that the agent wrote. The agent prints it, through exec: its HTTP
// port serves no contents, because it has no authentication. The text may have any characters.
func (a Agent) TextDrift(ctx context.Context, clients kube.Clients, paths []string) (string, error) {
	return a.textDiff(ctx, clients, append([]string{"drift", "--"}, paths...))
}

// TextOfSync is like TextDrift for what a sync changed. id is that of its report. If there are no paths, it returns all files of the report.
func (a Agent) TextOfSync(ctx context.Context, clients kube.Clients, id string, paths []string) (string, error) {
	return a.textDiff(ctx, clients, append([]string{"sync", "--", id}, paths...))
}

func (a Agent) textDiff(ctx context.Context, clients kube.Clients, args []string) (string, error) {
	if _, ok := a.port(); !ok {
		return "", failure.New(v1alpha1.ReasonMissingSidecar, "pod %s has no agent", a.pod.Name)
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	result, err := podexec.Run(ctx, clients, a.pod, gatewaypod.AgentContainer, append([]string{"/agent", "text-diff"}, args...), maxText)
	switch {
	case apierrors.IsForbidden(err):
		return "", fmt.Errorf("the text of files needs the right to create pods/exec in namespace %s: %w", a.pod.Namespace, err)
	case err != nil:
		return "", fmt.Errorf("run text-diff in the agent of pod %s: %w", a.pod.Name, err)
	case result.Code == exitUsage:
		return "", fmt.Errorf("the agent of pod %s is too old to show the text of files: update it", a.pod.Name)
	case result.Code != 0:
		return "", fmt.Errorf("the agent of pod %s cannot show the text: %s", a.pod.Name, strings.TrimSpace(result.Stderr))
	}
	return result.Stdout, nil
}

// exitUsage is the exit code of an agent that does not know a command.
const exitUsage = 2
