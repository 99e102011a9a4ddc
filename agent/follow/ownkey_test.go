package follow

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"

	"stoker.io/stoker/agent/apikey"
	"stoker.io/stoker/agent/sync"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/test/gateway/simulator"
	"stoker.io/stoker/test/gitserver"
)

// managed makes the agents make their own API keys.
func managed(gs *v1alpha1.GatewaySync) { gs.Spec.Gateway.API = &v1alpha1.GatewayAPI{Managed: true} }

// keyIn gives an agent a place for its key.
func keyIn(dir string) func(*Config) {
	return func(c *Config) { c.Key = apikey.New(dir, time.Now) }
}

// A gateway with a seeded volume accepts the key at its first start with it.
func TestOwnKey(t *testing.T) {
	w := onSharedCluster(t)
	p := w.stopped("line-0")
	first := w.commit("one")
	w.gatewaySync(p, managed)
	w.lead(targetCommit(first))
	p.start(keyIn(t.TempDir())).opens()
	require.NoError(t, p.gw.SetState(simulator.Running))
	p.awaitSynced(first, "one")
	p.follows("two")
	for _, r := range p.gw.Requests.List() {
		assert.NotEqual(t, "stoker", r.Token, "the token of the Secret is not used")
	}

	// A pod without a place for the key says so. It removes what the last one installed.
	p.agent.end()
	p.recreate()
	p.start()
	p.await("PodRestartNeeded", func(s v1alpha1.SyncReportStatus) bool { return s.Reason == v1alpha1.ReasonPodRestartNeeded })
	_, err := os.Stat(filepath.Join(p.data, apikey.Folder))
	assert.ErrorIs(t, err, os.ErrNotExist)
}

// A gateway with an empty volume drops grants at its first start. The agent asks for one more start of its pod, once for the volume.
func TestOwnKeyNeedsAnotherStart(t *testing.T) {
	w := onSharedCluster(t)
	p := w.pod("line-0", func(o *simulator.Options) { o.Down, o.ResetPermissions = true, true })
	first := w.commit("one")
	w.gatewaySync(p, managed)
	w.lead(targetCommit(first))
	key := t.TempDir()
	a := p.start(keyIn(key))
	a.opens()
	require.NoError(t, p.gw.SetState(simulator.Running))
	assert.ErrorIs(t, a.result(), ErrRestartGateway)
	report := p.await("the report says what it waits for", func(s v1alpha1.SyncReportStatus) bool { return s.Reason == v1alpha1.ReasonWaitingForGateway })
	assert.Contains(t, report.Message, "after its next start")
	a.end()

	// The kubelet starts the agent again, which waits now.
	a = p.start(keyIn(key))
	p.await("still waiting", func(s v1alpha1.SyncReportStatus) bool { return s.Reason == v1alpha1.ReasonWaitingForGateway })
	select {
	case err := <-a.ended:
		t.Fatalf("the agent asked again: %v", err)
	case <-time.After(2 * time.Second):
	}
	a.end()

	// The injector evicts the pod. Its successor has another key.
	require.NoError(t, p.gw.SetState(simulator.Down))
	p.recreate()
	a = p.start(keyIn(t.TempDir()))
	a.opens()
	require.NoError(t, p.gw.SetState(simulator.Running))
	p.awaitSynced(first, "one")

	// If that does not help, because a user has removed the grants, the status says what to do, and nothing restarts.
	a.end()
	require.NoError(t, p.gw.Administrator.Grant()) // removes the grants
	p.recreate()
	w.lead(targetCommit(w.commit("two")))
	a = p.start(keyIn(t.TempDir()))
	p.await("GatewayForbidden", func(s v1alpha1.SyncReportStatus) bool { return s.Reason == v1alpha1.ReasonGatewayForbidden })
	select {
	case err := <-a.ended:
		t.Fatalf("the agent asked again: %v", err)
	case <-time.After(2 * time.Second):
	}
}

// result waits until Run has ended, and returns its error.
func (a *agent) result() error {
	a.p.w.t.Helper()
	ctx, cancel := context.WithTimeout(a.p.w.t.Context(), time.Minute)
	defer cancel()
	select {
	case err := <-a.ended:
		a.ended <- err
		return err
	case <-ctx.Done():
		return errors.New("the agent runs on")
	}
}

// After a change of the spec to a Secret, a restart of the agent grants nothing again.
func TestOwnKeyStaysRemoved(t *testing.T) {
	w := onSharedCluster(t)
	p := w.stopped("line-0")
	w.gatewaySync(p, managed)
	w.moves("one")
	key := t.TempDir()
	a := p.start(keyIn(key))
	a.opens()
	require.NoError(t, p.gw.SetState(simulator.Running))
	at := filepath.Join(p.data, apikey.Folder, "config.json")
	require.FileExists(t, at)
	gs := w.edit(func(gs *v1alpha1.GatewaySync) { gs.Spec.Gateway.API = &v1alpha1.GatewayAPI{SecretName: "gateway"} })
	w.lead(generation(gs.Generation))
	require.Eventually(t, func() bool { _, err := os.Stat(at); return err != nil }, time.Minute, 20*time.Millisecond)
	a.end()
	require.NoError(t, p.gw.Administrator.Grant()) // removes the grants
	granted := filepath.Join(p.data, "config/resources/core/ignition/security-properties/config.json")
	before, err := os.ReadFile(granted)
	require.NoError(t, err)
	p.start(keyIn(key))
	p.await("synced", func(s v1alpha1.SyncReportStatus) bool { return s.Reason == v1alpha1.ReasonSynced })
	after, err := os.ReadFile(granted)
	require.NoError(t, err)
	assert.Equal(t, string(before), string(after))
	assert.NoFileExists(t, at)
}

// The kubelet adds no key to a running pod that was created without it. The agent reports this, and another agent leads.
func TestMissingSecretKeyYieldsLead(t *testing.T) {
	w := onSharedCluster(t)
	old := w.pod("line-0")
	first := w.commit("one")
	w.gatewaySync(old, func(gs *v1alpha1.GatewaySync) { gs.Spec.Polling.Interval = "5s" })
	a := old.run(w.cluster.Kubeconfig())
	old.awaitSynced(first, "one")
	holder := func() string {
		target, err := kube.SyncTargets(w.clients.Dynamic, w.ns).Get(t.Context(), crName)
		require.NoError(t, err)
		return target.Spec.Lead.Holder
	}
	require.True(t, strings.HasPrefix(holder(), "line-0_"), holder())

	gs := w.edit(func(gs *v1alpha1.GatewaySync) { gs.Spec.Git.Auth.Token.SecretRef.Key = "token-2" })
	old.writeSecretFile("git", "token-2", "S3CR3T-git") // a real pod would not even get the file
	// The lead first reports the missing key, then yields to pods that were created later.
	eventually(t, "the lead reports the missing key", func() bool {
		gs, err := kube.GatewaySyncs(w.clients.Dynamic, w.ns).Get(t.Context(), crName)
		if err != nil {
			return false
		}
		c := meta.FindStatusCondition(gs.Status.Conditions, v1alpha1.ConditionRefResolved)
		return c != nil && c.ObservedGeneration == gs.Generation && c.Reason == string(v1alpha1.ReasonPodRestartNeeded)
	})
	young := w.pod("line-1")
	young.writeSecretFile("git", "token-2", "S3CR3T-git")
	young.run(w.cluster.Kubeconfig())
	s := old.await("the agent reports the missing key", func(s v1alpha1.SyncReportStatus) bool { return s.Reason == v1alpha1.ReasonPodRestartNeeded })
	assert.Contains(t, s.Message, "spec.git.auth.token names key token-2 of Secret git")
	eventually(t, "another agent leads", func() bool { return strings.HasPrefix(holder(), "line-1_") }, holder)
	second := w.commit("two")
	young.await("the agent with the key follows", func(s v1alpha1.SyncReportStatus) bool { return s.Target == second && s.Generation == gs.Generation })
	assert.Equal(t, "one", old.title(), "the gateway without the key keeps its commit")
	assert.Less(t, a.stop(), grace)
}

// A rejected credential is retried once a minute. If the kubelet updates it, lead and agent retry at once.
func TestFixedCredential(t *testing.T) {
	w := onSharedCluster(t)
	p := w.pod("line-0")
	first := w.commit("one")
	w.git.SetAuth(gitserver.Basic("git", "S3CR3T-git"))
	p.mountSecret("git", "token", "S3CR3T-wrong")
	w.gatewaySync(p, func(gs *v1alpha1.GatewaySync) { gs.Spec.Polling.Interval = "1h" })
	p.run(w.cluster.Kubeconfig())
	refused := func(gs *v1alpha1.GatewaySync) bool {
		c := meta.FindStatusCondition(gs.Status.Conditions, v1alpha1.ConditionRefResolved)
		return c != nil && c.Reason == string(v1alpha1.ReasonAuthFailed)
	}
	eventually(t, "the lead reports AuthFailed", func() bool {
		gs, err := kube.GatewaySyncs(w.clients.Dynamic, w.ns).Get(t.Context(), crName)
		return err == nil && refused(gs)
	}, func() string { return "" })
	p.mountSecret("git", "token", "S3CR3T-git")
	p.awaitSynced(first, "one")
}

func TestFixedCredentialWithoutLead(t *testing.T) {
	w := onSharedCluster(t)
	p := w.pod("line-0")
	first := w.commit("one")
	w.git.SetAuth(gitserver.Basic("git", "S3CR3T-git"))
	p.mountSecret("git", "token", "S3CR3T-wrong")
	hour := int32(3600)
	gs := w.gatewaySync(p, func(gs *v1alpha1.GatewaySync) { gs.Spec.Sync.Defaults.SyncPeriod = &hour })
	w.lead(func(s *v1alpha1.SyncTargetSpec) { s.Generation, s.Commit = gs.Generation, first })
	p.start(func(c *Config) { c.SecretFiles = []string{filepath.Join(p.dir, "secrets", "git", "..data")} })
	p.await("the agent reports AuthFailed", func(s v1alpha1.SyncReportStatus) bool { return s.Reason == v1alpha1.ReasonAuthFailed })
	p.mountSecret("git", "token", "S3CR3T-git")
	p.awaitSynced(first, "one")
}

// A volume that cannot be opened delays the restart of the gateway. It does not refuse the restart for good.
func TestOwnKeyRestartIsRetried(t *testing.T) {
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	data := filepath.Join(t.TempDir(), "data")
	f := &Follower{Config: Config{Key: apikey.New(t.TempDir(), time.Now), Engine: sync.New(sync.Config{DataDir: data, Log: log}), Log: log}}
	t.Cleanup(func() { assert.NoError(t, f.Engine.Close()) })
	var ended error
	f.restart.Store(true)
	f.restartGateway(func(err error) { ended = err })
	require.NoError(t, ended)
	require.NoError(t, os.Mkdir(data, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(data, "ignition.conf"), nil, 0o644))
	f.restartGateway(func(err error) { ended = err })
	assert.ErrorIs(t, ended, ErrRestartGateway)
}
