package fields

import (
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"

	"stoker.io/stoker/agent/connect"
	"stoker.io/stoker/agent/decide"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/agent/review"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/effective"
	"stoker.io/stoker/internal/secret"
	"stoker.io/stoker/test/gitserver"
)

// noon is the time of syncs whose outcome depends on it.
var noon = time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC)

// reviewGroups are the fields of the validation webhook.
func reviewGroups(t *testing.T, s *site) []group[v1alpha1.GatewaySync] {
	server := newWeb(t, "", "validation.example.com", func(w http.ResponseWriter, _ *http.Request, _ string) bool {
		_, err := w.Write([]byte(`{"uid":"1","allowed":true}`))
		return err == nil
	})
	known := secrets{"ca/value": server.ca, "key/value": "K3Y"}
	webhook := func(url string) func(*v1alpha1.GatewaySync) {
		return func(gs *v1alpha1.GatewaySync) {
			gs.Spec.Validation = &v1alpha1.ValidationSpec{Webhook: &v1alpha1.ValidationWebhook{URL: url, SecretRef: ref("key"), CASecretRef: ref("ca")}}
		}
	}
	see := func(t *testing.T, gs *v1alpha1.GatewaySync) string {
		c, err := connect.New(&gs.Spec, connect.Gateway{}, known, repo.RemoteOptions{}, slog.New(slog.DiscardHandler))
		require.NoError(t, err)
		defer func() { require.NoError(t, c.Remote.Close()) }()
		w := *c.Webhook
		w.Client.Loopback = true
		answer, err := w.Send(t.Context(), review.Request{UID: "1"})
		return fmt.Sprintln(server.take(), w.Client.Timeout, answer.Message, message(err))
	}
	return []group[v1alpha1.GatewaySync]{
		{"requests to the validation webhook", "validation.webhook", webhook(server.url + "/allow"), see, map[string]any{"url": nil, "timeout": "7s", "secretRef": nil, "caSecretRef": nil}},
		// Agents do not contact loopback addresses, so that this webhook does not answer.
		{"validation webhook without an answer", "validation.webhook", webhook("https://127.0.0.1:1/"), s.afterwards(known, nil), map[string]any{"failurePolicy": "Ignore"}},
	}
}

// signatureGroups are the fields that say which commits a gateway accepts.
func signatureGroups(t *testing.T, s *site) []group[v1alpha1.GatewaySync] {
	signer, private, err := gitserver.NewSSHKey()
	require.NoError(t, err)
	text := s.repo.Git("cat-file", "commit", s.second) + "\n"
	signature, err := repo.NewSigner(v1alpha1.SigningSSH, "", func() (secret.String, error) { return secret.New(private), nil })([]byte(text))
	require.NoError(t, err)
	head, rest, _ := strings.Cut(text, "\n\n")
	file := filepath.Join(t.TempDir(), "commit")
	require.NoError(t, os.WriteFile(file, []byte(head+"\ngpgsig "+strings.ReplaceAll(strings.TrimSpace(signature), "\n", "\n ")+"\n\n"+rest), 0o600))
	s.repo.Git("update-ref", "refs/heads/signed", s.repo.Git("hash-object", "-t", "commit", "-w", file))
	known := secrets{"keys/value": string(ssh.MarshalAuthorizedKey(signer.PublicKey()))}
	signed := func(v v1alpha1.GitVerify) func(*v1alpha1.GatewaySync) {
		return func(gs *v1alpha1.GatewaySync) { gs.Spec.Git.Ref, gs.Spec.Git.Verify = "signed", v.DeepCopy() }
	}
	admits := func(t *testing.T, gs *v1alpha1.GatewaySync) string {
		url, err := repo.ParseURL(s.repo.Dir)
		require.NoError(t, err)
		remote, err := repo.NewRemote(url, repo.Auth{}, repo.RemoteOptions{})
		require.NoError(t, err)
		defer func() { require.NoError(t, remote.Close()) }()
		store, err := repo.Open(t.TempDir(), repo.StoreOptions{})
		require.NoError(t, err)
		defer func() { require.NoError(t, store.Close()) }()
		commit, err := plan.ParseID(s.second)
		require.NoError(t, err)
		name, err := store.Admit(t.Context(), remote, &gs.Spec.Git, "refs/heads/main", commit)
		return fmt.Sprint(name, message(err))
	}
	return []group[v1alpha1.GatewaySync]{
		{"signatures by keys of a Secret", "git.verify", signed(v1alpha1.GitVerify{KeysSecretRef: ref("keys")}), s.afterwards(known, nil),
			map[string]any{"mode": "Tag", "keysSecretRef": nil, "formats": []string{"openpgp"}}},
		{"signatures by keys of a ConfigMap", "git.verify", signed(v1alpha1.GitVerify{KeysConfigMapRef: ref("keys")}), s.afterwards(known, nil), map[string]any{"keysConfigMapRef": nil}},
		{"requests for a ref", "git", nil, admits, map[string]any{"allowedRefs": []string{"refs/tags/**"}}},
	}
}

// timeGroups are the fields of maintenance windows and of snapshots.
func timeGroups(s *site) []group[v1alpha1.GatewaySync] {
	snapshots := func(gs *v1alpha1.GatewaySync) {
		gs.Spec.Snapshots = &v1alpha1.SnapshotsSpec{Enabled: true, RetentionCount: 2}
	}
	windows := func(gs *v1alpha1.GatewaySync) {
		gs.Spec.Deployment = &v1alpha1.DeploymentSpec{Windows: []v1alpha1.MaintenanceWindow{
			{Name: "night", Kind: v1alpha1.WindowAllow, Schedule: "0 22 * * *", Duration: "2h", TimeZone: "Europe/Berlin", Gateways: []string{"line-*"}}}}
	}
	atNoon := func(g *gateway) { g.now = func() time.Time { return noon } }
	// afterMany makes a snapshot an hour before noon, and another one at noon.
	afterMany := func(t *testing.T, gs *v1alpha1.GatewaySync) string {
		g := newGateway(t, s, nil, false)
		g.now = func() time.Time { return noon.Add(-time.Hour) }
		g.start(snapshots)
		step := plant()
		snapshots(step)
		g.sync(step)
		g.now = func() time.Time { return noon }
		step.Spec.Git.Ref = s.first
		if gs.Spec.Rollback == nil {
			g.sync(step)
		}
		return g.sync(gs)
	}
	return []group[v1alpha1.GatewaySync]{
		{"maintenance windows", "deployment.windows[]", windows, s.afterwards(nil, atNoon),
			map[string]any{"name": nil, "kind": "deny", "schedule": "0 12 * * *", "duration": "16h", "timeZone": "Australia/Brisbane", "gateways": []string{"area-*"}}},
		{"several snapshots", "snapshots", snapshots, afterMany, map[string]any{"retentionCount": 1}},
		{"restored snapshots", "rollback", func(gs *v1alpha1.GatewaySync) {
			snapshots(gs)
			gs.Spec.Rollback = &v1alpha1.RollbackSpec{}
		}, afterMany, map[string]any{"toSnapshot": "line-1-20261124-110000"}},
	}
}

// goesBack is a probe that sees after which failures an agent rolls its gateway back.
func goesBack(t *testing.T, gs *v1alpha1.GatewaySync) string {
	e, err := effective.Of(gs, "", nil)
	require.NoError(t, err)
	var lines []string
	for _, symptom := range v1alpha1.AutoRollbackTriggers() {
		var f decide.Failures
		var due v1alpha1.AutoRollbackTrigger
		for i := range 10 { // sequence: the gateway fails for some time
			f, due, _ = f.Add(decide.LoadFailure{Target: plan.ID{1}, Symptoms: []v1alpha1.AutoRollbackTrigger{symptom}, Triggers: e.AutoRollback, Known: true, Running: true,
				Now: noon.Add(time.Duration(i) * 10 * time.Second)})
		}
		lines = append(lines, string(symptom)+": "+string(due))
	}
	return strings.Join(lines, "\n")
}

// simulatedGroups are the fields whose effect needs a gateway that runs.
func simulatedGroups(s *site) []group[v1alpha1.GatewaySync] {
	run := func(prepare func(g *gateway)) func(*testing.T, *v1alpha1.GatewaySync) string {
		return func(t *testing.T, gs *v1alpha1.GatewaySync) string {
			g := newGateway(t, s, nil, true)
			g.start(func(*v1alpha1.GatewaySync) {})
			prepare(g)
			gs.Spec.ProgressDeadline = "1s"
			return g.sync(gs)
		}
	}
	designer := func(project string) func(*testing.T, *v1alpha1.GatewaySync) string {
		return run(func(g *gateway) {
			_, err := g.sim.Designers.Open("anna", project)
			require.NoError(g.t, err)
		})
	}
	waits := func(gs *v1alpha1.GatewaySync) { gs.Spec.Sync.Defaults.DesignerSessionPolicy = v1alpha1.DesignerWait }
	rollback := func(gs *v1alpha1.GatewaySync) {
		gs.Spec.Snapshots.Enabled, gs.Spec.AutoRollback = true, &v1alpha1.AutoRollbackSpec{Enabled: true}
		gs.Spec.Validation = &v1alpha1.ValidationSpec{DryRunBefore: true}
	}
	return []group[v1alpha1.GatewaySync]{
		{"Designer sessions", "sync.defaults", nil, designer("line"), map[string]any{"designerSessionPolicy": "wait"}},
		{"Designer sessions on other projects", "sync.defaults", waits, designer("other"), map[string]any{"designerSessionScope": "gateway"}},
		{"Designer sessions by a profile", "sync.profiles{}", nil, func(t *testing.T, gs *v1alpha1.GatewaySync) string {
			e, err := effective.Of(gs, "", nil)
			require.NoError(t, err)
			return fmt.Sprint(e.DesignerSessionPolicy, e.DesignerSessionScope) // which the groups above prove to have an effect
		}, map[string]any{"designerSessionPolicy": "wait", "designerSessionScope": "gateway"}},
		{"backups of the gateway", "snapshots", func(gs *v1alpha1.GatewaySync) { gs.Spec.Snapshots.Enabled = true }, run(func(*gateway) {}), map[string]any{"gatewayBackup": "beforeSync"}},
		{"automatic rollbacks", "autoRollback", rollback, goesBack, map[string]any{"enabled": false, "triggers": []string{"configError"}, "scope": "rollout"}},
	}
}
