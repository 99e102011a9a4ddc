package fleet

import (
	"bytes"
	"errors"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/internal/request"
	"stoker.io/stoker/test/fleet/plant"
	"stoker.io/stoker/test/gitserver"
	"stoker.io/stoker/test/program"
)

// person is a user at a terminal who may only request refs.
type person struct {
	t                  *testing.T
	binary, kubeconfig string
}

func newPerson(t *testing.T, p *plant.Plant) *person {
	t.Helper()
	p.Allow("setter", "stoker-setter")
	return &person{t: t, binary: program.Build(t, "hooks"), kubeconfig: p.Kubeconfig("setter", "")}
}

// command returns a command that has not started, and the buffer for its output.
func (w *person) command(args ...string) (*exec.Cmd, *bytes.Buffer) {
	cmd := exec.Command(w.binary, append(args, "--kubeconfig", w.kubeconfig)...)
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	return cmd, &said
}

// types runs a command for at most plant.Liveness, expects an exit code and returns the output.
func (w *person) types(code int, args ...string) string {
	w.t.Helper()
	is, said := w.tries(args...)
	require.Equal(w.t, code, is, "stoker %q: %s", args, said)
	return said
}

// tries runs a command for at most plant.Liveness and returns its exit code and its output.
func (w *person) tries(args ...string) (code int, said string) {
	w.t.Helper()
	cmd, output := w.command(args...)
	require.NoError(w.t, cmd.Start())
	timer := time.AfterFunc(plant.Liveness, func() { _ = cmd.Process.Signal(syscall.SIGTERM) })
	defer timer.Stop()
	return codeOf(w.t, cmd.Wait()), output.String()
}

func codeOf(t *testing.T, err error) int {
	t.Helper()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode()
	}
	require.NoError(t, err)
	return 0
}

// requests types the commands that request something of two gateways, which follow the branch main at its first commit.
func requests(t *testing.T, p *plant.Plant, who *person) {
	t.Helper()
	titles := func(want string) {
		t.Helper()
		for _, g := range p.Gateways() {
			assert.Equal(t, want, g.Title(), "when the command ends, the gateways must run the ref")
		}
	}
	who.types(0, "wait", "site")
	titles("first")
	p.Tag("v1", p.First)
	second := p.Push("second")
	who.types(0, "sync", "site", "--wait")
	titles("second")

	who.types(0, "set-ref", "site", "v1", "--wait", "--by", "argocd", "--id", "job-1")
	titles("first")
	version := p.GatewaySync().Annotations
	who.types(0, "set-ref", "site", "v1", "--wait", "--by", "argocd", "--id", "job-1")
	assert.Equal(t, version, p.GatewaySync().Annotations, "a repeat must change nothing")
	who.types(0, "set-ref", "site", "main", "--wait")
	titles("second")

	p.Commit("broken", gitserver.Files(map[string]string{"projects/line/project.json": `{"title": `}))
	began := time.Now()
	assert.Contains(t, who.types(1, "sync", "site", "--wait"), "ConfigSyntaxError")
	assert.Less(t, time.Since(began), plant.Liveness, "the command must end before its timeout")
	assert.Contains(t, who.types(0, "rollback", "site", "--wait"), "until main moves on")
	titles("second")
	assert.Contains(t, who.types(0, "rollback", "site"), "already")
	assert.Equal(t, second, p.Status().LastGood.Commit)
	third := p.Push("third")
	p.Converges("third", third)

	assert.Contains(t, who.types(1, "set-ref", "site", "nothing", "--wait"), "RefNotFound")
	titles("third")
	who.types(0, "set-ref", "site", "main", "--wait")

	who.types(0, "pause", "site")
	fourth := p.Push("fourth")
	assert.Contains(t, who.types(6, "sync", "site", "--wait"), "paused")
	who.types(0, "resume", "site")
	p.Converges("fourth", fourth)
}

// P4, P5: The commands work with running agents, with the rights of the shipped role.
func TestRequestCommands(t *testing.T) {
	t.Parallel()
	p := plant.New(t, 2)
	who := newPerson(t, p)
	p.Start()
	requests(t, p, who)

	waiting, said := who.command("wait", "site", "--ref", "main")
	for _, g := range p.Gateways() {
		require.NoError(t, g.Agent.End(t, syscall.SIGTERM)) // no agent is left to handle the request
	}
	who.types(0, "sync", "site")
	require.NoError(t, waiting.Start())
	who.types(0, "set-ref", "site", "v1", "--by", "kargo")
	require.Equal(t, 4, codeOf(t, waiting.Wait()), "%s", said)
	assert.Contains(t, said.String(), "requested by kargo")
	assert.Contains(t, who.types(3, "wait", "site", "--timeout", "2s"), "not done")
}

// P5, P4: Three Jobs with one id make one request. A wait that started on an older generation does not
// end on it. It reports which gateway is behind, and ends when the object is deleted.
func TestRepeatedHookJobs(t *testing.T) {
	t.Parallel()
	p := plant.New(t, 2)
	who := newPerson(t, p)
	p.Start()
	p.Tag("v1", p.First)
	second := p.Push("second")
	p.Converges("second", second)
	seen := p.Watch()

	var jobs []*exec.Cmd
	var said []*bytes.Buffer
	for range 3 {
		cmd, out := who.command("set-ref", "site", "v1", "--wait", "--by", "argocd", "--id", "stoker-set-ref-1")
		require.NoError(t, cmd.Start())
		jobs, said = append(jobs, cmd), append(said, out)
	}
	for i, cmd := range jobs {
		require.Equal(t, 0, codeOf(t, cmd.Wait()), "%s", said[i])
	}
	p.Converges("first", p.First)
	requests := map[string]bool{}
	for _, gs := range seen() {
		requests[gs.Annotations[v1alpha1.AnnotationRequestedAt]] = true
	}
	delete(requests, "")
	assert.Len(t, requests, 1, "three Jobs with one id must be one request")
	resolved := "v1 is at " + p.First[:7] + "; before, all gateways ran main at " + second[:7] + "; requested by argocd"
	p.Eventually("the event", func() bool { return events(t, p, "RefResolved", resolved) > 0 })
	assert.Equal(t, 1, events(t, p, "RefResolved", resolved), "the fleet must change once")

	// A generation that no lead has observed yet, and then a gateway whose agent does not progress.
	lead := p.Lead()
	behind := p.Gateways()[0]
	if behind == lead {
		behind = p.Gateways()[1]
	}
	behind.Agent.Signal(t, syscall.SIGSTOP)
	patch(t, p, `{"spec": {"git": {"ref": "refs/heads/main"}}}`)
	who.types(3, "wait", "site", "--timeout", "4s")
	p.Eventually("the other gateway syncs", func() bool { return lead.Title() == "second" })
	p.Eventually("the status names the gateway that is behind", func() bool {
		v, err := request.ReadWithLock(t.Context(), p.Kube, p.GatewaySync(), "")
		require.NoError(t, err)
		return v.Ref == "refs/heads/main" && len(v.Behind) == 1 && v.Behind[0].Name == behind.Name
	})
	assert.Contains(t, who.types(3, "wait", "site", "--timeout", "1s"), behind.Name, "the output must name the gateway that is behind")
	assert.Equal(t, "first", behind.Title())
	waiting, out := who.command("wait", "site")
	require.NoError(t, waiting.Start())
	behind.Agent.Signal(t, syscall.SIGCONT)
	require.Equal(t, 0, codeOf(t, waiting.Wait()), "%s", out)
	assert.Equal(t, "second", behind.Title())

	behind.Agent.Signal(t, syscall.SIGSTOP)
	p.Push("third")
	who.types(0, "sync", "site")
	waiting, out = who.command("wait", "site")
	require.NoError(t, waiting.Start())
	require.NoError(t, kube.GatewaySyncs(p.Kube.Dynamic, p.Namespace).Delete(t.Context(), "site", metav1.DeleteOptions{}))
	require.Equal(t, 1, codeOf(t, waiting.Wait()), "%s", out)
	assert.Contains(t, out.String(), "site")
	assert.Equal(t, "second", behind.Title(), "the gateways must not change")
}

// P6: All agents end and do not come back, as after a restart of the gateways while no injector runs. The status says Ready
// forever, but wait and get must not report the fleet as done.
func TestWaitWithoutAgents(t *testing.T) {
	t.Parallel()
	for name, signal := range map[string]syscall.Signal{"agents stopped": syscall.SIGTERM, "agents killed": syscall.SIGKILL} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := plant.New(t, 2)
			who := newPerson(t, p)
			p.Start()
			p.Converges("first", p.First)
			who.types(0, "wait", "site", "--timeout", "60s")
			for _, g := range p.Gateways() {
				g.Agent.Signal(t, signal)
			}
			p.Eventually("all agents have ended", func() bool {
				return !slices.ContainsFunc(p.Gateways(), func(g *plant.Gateway) bool { return !g.Agent.Ended() })
			})
			p.Eventually("the status reports that no agent leads", func() bool {
				v, err := request.ReadWithLock(t.Context(), p.Kube, p.GatewaySync(), "")
				require.NoError(t, err)
				return v.Phase == request.Progressing && v.Reason == v1alpha1.ReasonAgentsAway && strings.Contains(v.Message, "no agent leads")
			})
			// The API server may carry out a takeover that an agent sent right before its end. That lock expires.
			p.Eventually("the wait reports it", func() bool {
				code, said := who.tries("wait", "site", "--timeout", "1s")
				return code == 3 && strings.Contains(said, "no agent leads")
			})
			assert.NotContains(t, who.types(0, "get", "site"), "2/2")
			p.Start()
			who.types(0, "wait", "site", "--timeout", "60s")
		})
	}
}

func patch(t *testing.T, p *plant.Plant, text string) {
	t.Helper()
	_, err := kube.GatewaySyncs(p.Kube.Dynamic, p.Namespace).Patch(t.Context(), p.Name, types.MergePatchType, []byte(text), metav1.PatchOptions{FieldManager: "test"})
	require.NoError(t, err)
}

// events counts the events with a reason and a text.
func events(t *testing.T, p *plant.Plant, reason, what string) (n int) {
	t.Helper()
	list, err := p.Kube.Core.EventsV1().Events(p.Namespace).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	for _, e := range list.Items {
		if e.Reason == reason && strings.Contains(e.Note, what) {
			n++
		}
	}
	return n
}
