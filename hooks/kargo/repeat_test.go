package kargo

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	"sigs.k8s.io/yaml"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/syntax"
	"stoker.io/stoker/internal/request"
	"stoker.io/stoker/test/fleet/plant"
	"stoker.io/stoker/test/gitserver"
	"stoker.io/stoker/test/program"
)

// application simulates an Argo CD Application. Its syncs apply a GatewaySync and run the hooks of examples/argocd/plain.
type application struct {
	*line
	binary, kubeconfig string
	hooks              map[string][]string // hook phase → arguments of its Job
	syncs              int
}

func newApplication(l *line) *application {
	l.t.Helper()
	l.Allow("setter", "stoker-setter")
	a := &application{line: l, binary: program.Build(l.t, "hooks"), kubeconfig: l.Kubeconfig("setter", ""), hooks: map[string][]string{}}
	b, err := os.ReadFile("../../examples/argocd/plain/hooks.yaml")
	require.NoError(l.t, err)
	for document := range strings.SplitSeq(string(b), "\n---\n") {
		var job batchv1.Job
		require.NoError(l.t, yaml.Unmarshal([]byte(document), &job))
		a.hooks[job.Annotations["argocd.argoproj.io/hook"]] = job.Spec.Template.Spec.Containers[0].Args
	}
	return a
}

// hook runs the command of the hook Job for a phase. If it fails, the error is its output.
func (a *application) hook(phase string) error {
	a.t.Helper()
	args := slices.Clone(a.hooks[phase])
	require.Greater(a.t, len(args), 1, phase)
	require.Equal(a.t, "line", args[1])
	args[1] = a.Name
	job := fmt.Sprint(phase, a.syncs)
	for i := range args {
		args[i] = strings.NewReplacer("$(JOB_UID)", job, "$(JOB_NAME)", job).Replace(args[i])
	}
	out, err := exec.CommandContext(a.t.Context(), a.binary, append(args, "--kubeconfig", a.kubeconfig)...).CombinedOutput()
	if err != nil {
		return errors.New(strings.TrimSpace(string(out)))
	}
	return nil
}

// sync simulates the rest of a sync after the manifest was applied. It waits until the GatewaySync is healthy or has failed, and then runs
// the hooks.
func (a *application) sync() error {
	a.t.Helper()
	a.syncs++
	var v request.Verdict
	a.Eventually("the wave of the GatewaySync completes", func() bool {
		v = request.Read(a.GatewaySync(), "", nil, time.Now())
		return v.Phase != request.Progressing
	})
	var err error
	if v.Phase != request.Succeeded {
		err = errors.New(v.Message)
	} else if a.hooks["PostSync"] != nil {
		err = a.hook("PostSync")
	}
	if err != nil {
		require.NoError(a.t, a.hook("SyncFail"))
		return &terminalError{err}
	}
	return nil
}

// The test promotes a broken version twice through git. The first promotion fails and is rolled back. The second promotion has nothing to
// commit, and the gateways are healthy, because they run the commit of the rollback. Only the PostSync hook can detect that git names
// another version. Without that hook, the third promotion succeeds, and only the status message shows the rollback.
func TestSecondPromotionOfBrokenVersion(t *testing.T) {
	t.Parallel()
	l := newLine(t, plant.New(t, 1, func(gs *v1alpha1.GatewaySync) { gs.Spec.Git.Ref = "v1.0.0" }))
	l.Tag("v1.0.0", l.First)
	l.Start()
	l.Converges("first", l.First)
	broken := l.Commit("broken", gitserver.Files(map[string]string{"projects/line/project.json": `{"title": `}))
	l.Tag("v1.1.0", broken)
	a := newApplication(l)
	promoted := func() *promotion {
		p := l.promotion("v1.1.0")
		p.steps = l.git(p)
		apply := p.others["argocd-update"]
		p.others["argocd-update"] = func(config map[string]any) (map[string]any, error) {
			if out, err := apply(config); err != nil {
				return out, err
			}
			return nil, a.sync()
		}
		return p
	}
	l.run(promoted(), failed, "gw-0: projects/line/project.json:1:11")
	assert.Equal(t, broken, l.requests()[v1alpha1.AnnotationRequestedUnless])
	l.Converges("first", l.First)

	l.run(promoted(), failed, "RolledBack: "+syntax.ShortCommit(broken)+" of v1.1.0 is blocked")
	l.titles("first")

	delete(a.hooks, "PostSync")
	l.run(promoted(), succeeded, "")
	assert.Contains(t, request.Read(l.GatewaySync(), "", nil, time.Now()).Message, "rolled back: "+syntax.ShortCommit(broken)+" of v1.1.0 is blocked", "the status must show the rollback")
	l.titles("first")
}
