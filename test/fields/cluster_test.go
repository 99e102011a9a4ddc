package fields

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/desiredref"
	"stoker.io/stoker/injector/inject"
	"stoker.io/stoker/internal/httpclient"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/internal/metrics"
	"stoker.io/stoker/internal/notify"
	"stoker.io/stoker/internal/secret"
	"stoker.io/stoker/receiver/server"
	"stoker.io/stoker/test/clientset"
)

const (
	stokerPath = "/apis/stoker.io/v1alpha1/namespaces/site/"
	corePath   = "/api/v1/namespaces/site/"
)

// injects is a probe that sees what the injector adds to a pod.
func injects(t *testing.T, gs *v1alpha1.GatewaySync) string {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "line-1", Namespace: "site", Annotations: map[string]string{v1alpha1.AnnotationInject: "true"}}}
	pod.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}}
	pod.Spec.Containers = []corev1.Container{{Name: "gateway", VolumeMounts: []corev1.VolumeMount{{Name: "data", MountPath: inject.IgnitionData}}}}
	ops, decision := inject.Patch(pod, gs, inject.Defaults{Image: v1alpha1.AgentImage{Repository: "example.com/agent", Tag: "1"}, AllowedImages: []string{"example.com/"}})
	require.True(t, decision.Injected, decision.Message)
	text, err := json.Marshal(ops)
	require.NoError(t, err)
	return string(text)
}

func injectorGroups() []group[v1alpha1.GatewaySync] {
	given := func(gs *v1alpha1.GatewaySync) {
		key := func(name string) v1alpha1.SecretKeyRef { return *ref(name) }
		s := &gs.Spec
		s.Git.Auth = &v1alpha1.Credential{Token: &v1alpha1.TokenAuth{SecretRef: key("token")}, GitHubApp: &v1alpha1.GitHubAppAuth{PrivateKeySecretRef: key("app")},
			SSHKey: &v1alpha1.SSHKeyAuth{SecretRef: key("key"), KnownHosts: &v1alpha1.SecretSource{SecretRef: key("hosts")}}}
		s.Git.CASecretRef, s.Git.Verify = ref("ca"), &v1alpha1.GitVerify{KeysSecretRef: ref("keys"), KeysConfigMapRef: ref("map")}
		s.Gateway = v1alpha1.GatewaySpec{API: &v1alpha1.GatewayAPI{SecretName: "api", SecretKey: "token"}, TLSConfig: &v1alpha1.GatewayTLSConfig{CASecretRef: ref("gateway-ca")}}
		s.Validation = &v1alpha1.ValidationSpec{Webhook: &v1alpha1.ValidationWebhook{SecretRef: ref("review"), CASecretRef: ref("review-ca")}}
		s.Bidirectional = &v1alpha1.BidirectionalSpec{Enabled: true, Signing: &v1alpha1.CommitSigning{Format: v1alpha1.SigningSSH, KeySecretRef: key("signing")}}
		s.Bidirectional.Auth = &v1alpha1.Credential{Token: &v1alpha1.TokenAuth{SecretRef: key("p-token")}, GitHubApp: &v1alpha1.GitHubAppAuth{PrivateKeySecretRef: key("p-app")},
			SSHKey: &v1alpha1.SSHKeyAuth{SecretRef: key("p-key"), KnownHosts: &v1alpha1.SecretSource{SecretRef: key("p-hosts")}}}
		s.Snapshots = &v1alpha1.SnapshotsSpec{Enabled: true, Storage: &v1alpha1.SnapshotStorage{Type: v1alpha1.StorageS3, SecretRef: ref("s3")}}
	}
	mounted := map[string]any{"gateway.api": nil}
	for _, path := range []string{"git.caSecretRef", "git.verify.keysSecretRef", "git.verify.keysConfigMapRef", "gateway.tlsConfig.caSecretRef", "validation.webhook.secretRef",
		"validation.webhook.caSecretRef", "bidirectional.signing.keySecretRef", "snapshots.storage.secretRef"} { // setup: all rows are alike
		mounted[path] = nil
	}
	for _, auth := range []string{"git.auth", "bidirectional.auth"} { // setup: all rows are alike
		mounted[auth+".token.secretRef"], mounted[auth+".githubApp.privateKeySecretRef"], mounted[auth+".sshKey.secretRef"], mounted[auth+".sshKey.knownHosts"] = nil, nil, nil, nil
	}
	digest := "sha256:" + strings.Repeat("a", 64)
	return []group[v1alpha1.GatewaySync]{
		{"mounted secrets", "", given, injects, mounted},
		{"the container of the agent", "", nil, injects, map[string]any{"agent.image.repository": "example.com/agent/other", "agent.image.tag": "2", "agent.image.digest": digest,
			"agent.image.pullPolicy": "Always", "agent.resources": object{"limits": object{"memory": "1Gi"}}, "progressDeadline": "5m", "gateway.port": 9088, "gateway.tls": true}},
	}
}

// failing is a cache with a ConfigSync that fails.
type failing struct{}

func (failing) List() []*v1alpha1.ConfigSync {
	cs := &v1alpha1.ConfigSync{ObjectMeta: metav1.ObjectMeta{Namespace: "site", Name: "site"}}
	cs.Status.ObservedRequest = desiredref.Key(cs)
	cs.Status.Outcome = &v1alpha1.Outcome{Phase: v1alpha1.OutcomeFailed, Reason: v1alpha1.ReasonManifestInvalid}
	return []*v1alpha1.ConfigSync{cs}
}
func (failing) Undecodable() []*kube.UndecodableError { return nil }
func (failing) Seen(string) bool                      { return true }

// alertGroups are the fields of notifications. The probe sees which messages arrive where if a gateway and a ConfigSync fail.
func alertGroups(t *testing.T) []group[v1alpha1.GatewaySync] {
	var receiver *web
	receiver = newWeb(t, "", "alerts.example.com", func(w http.ResponseWriter, r *http.Request, body string) bool {
		var message object
		_ = json.Unmarshal([]byte(body), &message)
		header, signed := http.Header{}, ""           // the signature covers the time, too
		for _, key := range []string{"A", "B", "C"} { // setup: the keys that a message can be signed with
			if httpclient.Sign(header, secret.New(key), []byte(body)); header.Get("X-Hub-Signature-256") == r.Header.Get("X-Hub-Signature-256") {
				signed = key
			}
		}
		r.Header.Del("X-Hub-Signature-256")
		receiver.record(fmt.Sprint(r.URL.Path, slices.Sorted(maps.Keys(message)), message["routing_key"], " signed with ", signed, strings.Count(body, "SyncFailed"), strings.Count(body, "ConfigSync site")))
		_, err := io.WriteString(w, "ok")
		return err == nil
	})
	values := map[string][]byte{"value": []byte("value")}
	objects := func(name string, data map[string][]byte) *corev1.Secret {
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "site", Name: name}, Data: data}
	}
	core := clientset.New(objects("url", map[string][]byte{"value": []byte(receiver.url + "/a"), "value2": []byte(receiver.url + "/b")}), objects("url2", map[string][]byte{"value": []byte(receiver.url + "/c")}),
		objects("key", map[string][]byte{"value": []byte("A"), "value2": []byte("B")}), objects("key2", map[string][]byte{"value": []byte("C")}),
		objects("ca", map[string][]byte{"value": []byte(receiver.ca)}), objects("none", values))
	see := alone(receiver, func(t *testing.T, gs *v1alpha1.GatewaySync) string {
		gs.Status.ObservedGeneration, gs.Status.ObservedRequest = 1, desiredref.Key(gs)
		failed := metav1.Condition{Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: string(v1alpha1.ReasonTemplateFailed), Message: "no such field", LastTransitionTime: metav1.NewTime(noon)}
		gs.Status.Conditions = []metav1.Condition{failed}
		gs.Status.Outcome = &v1alpha1.Outcome{Phase: v1alpha1.OutcomeFailed, Ref: "main", Commit: strings.Repeat("a", 40), Reason: v1alpha1.ReasonTemplateFailed, Message: "no such field"}
		gs.Status.DiscoveredGateways = []v1alpha1.DiscoveredGateway{{Name: "line-1", SyncStatus: v1alpha1.GatewayError, Reason: v1alpha1.ReasonTemplateFailed}}
		ctx, stop := context.WithTimeout(t.Context(), 20*time.Second)
		defer stop()
		if gs.Spec.Alerting == nil || !gs.Spec.Alerting.Enabled { // there is nothing to wait for
			ctx, stop = context.WithTimeout(t.Context(), 1500*time.Millisecond)
			defer stop()
		}
		var results []string
		n := notify.New(notify.Config{Core: core, Client: httpclient.Client{Loopback: true}, Log: slog.New(slog.DiscardHandler),
			List:        func() ([]*v1alpha1.GatewaySync, bool) { return []*v1alpha1.GatewaySync{gs}, true },
			ConfigSyncs: failing{}, Changed: make(chan struct{}), Load: func(context.Context) (string, error) { return "", nil }, Save: func(context.Context, string) error { return nil },
			Sent: func(kind v1alpha1.AlertType, result string) {
				results = append(results, string(kind)+" "+result)
				stop()
			}})
		require.NoError(t, n.Run(ctx))
		return fmt.Sprintln(changing.ReplaceAllString(receiver.take(), "…"), results)
	})
	hook := func(kind v1alpha1.AlertType) func(*v1alpha1.GatewaySync) {
		return func(gs *v1alpha1.GatewaySync) {
			w := v1alpha1.AlertWebhook{Type: kind, URLSecretRef: ref("url"), SigningSecretRef: ref("key"), CASecretRef: ref("ca")}
			if kind == v1alpha1.AlertPagerDuty {
				w.IntegrationKeySecretRef, w.SigningSecretRef = ref("key"), nil
			}
			gs.Spec.Alerting = &v1alpha1.AlertingSpec{Enabled: true, Webhooks: []v1alpha1.AlertWebhook{w}}
		}
	}
	return []group[v1alpha1.GatewaySync]{
		{"notifications", "alerting", hook(v1alpha1.AlertWebhookCE), see, map[string]any{"enabled": false, "webhooks[].type": "slack", "webhooks[].urlSecretRef": nil,
			"webhooks[].signingSecretRef": nil, "webhooks[].caSecretRef": nil, "webhooks[].topics": []string{"SyncFailed"}}},
		{"notifications about ConfigSyncs", "alerting.webhooks[]", hook(v1alpha1.AlertWebhookCE), see, map[string]any{"topics": []string{"ConfigSyncNotReady"}}},
		{"incidents", "alerting.webhooks[]", hook(v1alpha1.AlertPagerDuty), see, map[string]any{"integrationKeySecretRef": nil}},
	}
}

// receives returns a probe that sees what the receiver answers and writes if a git host reports three tags in turn.
func receives[T any](kind string) func(*testing.T, *T) string {
	return func(t *testing.T, o *T) string {
		var lines []string
		synctest.Test(t, func(t *testing.T) {
			api := newAPI()
			api.put(t, stokerPath+kind+"s/plant", o)
			api.put(t, corePath+"secrets/hook", object{"kind": "Secret", "apiVersion": "v1", "data": object{"value": []byte("S3CRET"), "value2": []byte("OTHER")}})
			s, err := server.New(server.Config{Clients: api.clients(t), Namespace: "site", Watch: []string{"site"}, Metrics: metrics.NewReceiver(prometheus.NewRegistry(), ""), Log: slog.New(slog.DiscardHandler)})
			require.NoError(t, err)
			ctx, stop := context.WithCancel(t.Context())
			done := make(chan error)
			go func() { done <- s.Run(ctx) }()
			for !s.Ready() { // sequence: waits until the receiver is ready
				time.Sleep(time.Second)
			}
			for _, tag := range []string{"v2", "w3", "v1"} { // sequence: a tag may be lower than the one before
				path := "/webhook/site/plant"
				if kind == "configsync" {
					path = "/webhook/site/configsync/plant"
				}
				body := fmt.Sprintf(`{"ref":"refs/tags/%s","after":"%040d","repository":{"clone_url":"https://git.example.com/acme/plant.git"}}`, tag, 1)
				r := httptest.NewRequestWithContext(ctx, http.MethodPost, path, strings.NewReader(body))
				r.Header.Set("X-GitHub-Event", "push")
				r.Header.Set("Content-Type", "application/json")
				httpclient.Sign(r.Header, secret.New("S3CRET"), []byte(body))
				w := httptest.NewRecorder()
				s.Routes().ServeHTTP(w, r)
				lines = append(lines, fmt.Sprint(w.Code, changing.ReplaceAllString(w.Body.String(), "…")))
				time.Sleep(2 * time.Second)
			}
			stop()
			require.NoError(t, <-done)
			s.Close()
			lines = append(lines, api.taken())
		})
		return strings.Join(lines, "\n")
	}
}

// webhookGroup are the fields of spec.webhook, which both kinds have.
func webhookGroup[T any](kind string, webhook func(*T) *v1alpha1.WebhookSpec) group[T] {
	return group[T]{"webhooks of git hosts", "webhook", func(o *T) {
		*webhook(o) = v1alpha1.WebhookSpec{SecretRef: ref("hook"), FollowTags: []string{"v*"}}
	}, receives[T](kind), map[string]any{"enabled": false, "secretRef": nil, "followTags": []string{"w*"}, "allowDowngrade": true}}
}

// plant returns a valid GatewaySync, to which the groups add alternatives such as credentials.
func plant() *v1alpha1.GatewaySync {
	gs := &v1alpha1.GatewaySync{TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.KindGatewaySync}}
	gs.ObjectMeta = metav1.ObjectMeta{Namespace: "site", Name: "plant", UID: "uid-1", Generation: 1}
	gs.Spec = v1alpha1.GatewaySyncSpec{
		Git: v1alpha1.GitSpec{Repo: "https://git.example.com/acme/plant.git", Ref: "main"},
		Sync: v1alpha1.SyncSpec{Profiles: map[string]v1alpha1.SyncProfile{"default": {Mappings: []v1alpha1.Mapping{
			{Source: "gw/projects", Destination: "projects"}, {Source: "gw/config", Destination: "config"}}}}},
		Bidirectional: &v1alpha1.BidirectionalSpec{},
		Snapshots:     &v1alpha1.SnapshotsSpec{},
	}
	return gs
}

func TestGatewaySync(t *testing.T) {
	s := newSite(t)
	table := slices.Concat(gitGroups(t), gatewayGroups(t), storageGroups(t), syncGroups(s), proposalGroups(t, s), reviewGroups(t, s), signatureGroups(t, s), timeGroups(s), simulatedGroups(s),
		injectorGroups(), alertGroups(t), leadGroups(t), followGroups(t, s), []group[v1alpha1.GatewaySync]{webhookGroup("gatewaysync", func(gs *v1alpha1.GatewaySync) *v1alpha1.WebhookSpec { return &gs.Spec.Webhook })})
	checkTable(t, plant, func(gs *v1alpha1.GatewaySync) any { return &gs.Spec }, table)
}

// group is a part of a table: fields whose effect one probe sees.
type group[T any] struct {
	name string
	// at is the path that contains the fields.
	at string
	// given changes the complete object, so that the fields have an effect; it may be nil.
	given func(*T)
	// see returns what a program builds from an object, as text. The same object must give the same text.
	see func(t *testing.T, object *T) string
	// to has the changed value of each field; nil stands for any other value. A field that contains others stands for all of them.
	to map[string]any
}

// checkTable runs the table of a kind. spec returns the spec of an object.
func checkTable[T any](t *testing.T, complete func() *T, spec func(*T) any, table []group[T]) {
	t.Helper()
	leaves := Leaves(reflect.TypeOf(spec(complete())), "")
	var observed []string
	for _, g := range table {
		rows := map[string]any{}
		for name, to := range g.to {
			path := join(g.at, name)
			below := slices.DeleteFunc(slices.Clone(leaves), func(leaf string) bool { return leaf != path && !strings.HasPrefix(leaf, path+".") })
			require.NotEmpty(t, below, "no field is named %s", path)
			for _, leaf := range below {
				rows[leaf] = to
				observed = append(observed, leaf)
			}
		}
		t.Run(g.name, func(t *testing.T) {
			t.Parallel()
			object := func() *T {
				o := complete()
				if g.given != nil {
					g.given(o)
				}
				return o
			}
			before := g.see(t, object())
			t.Logf("without a change: %s", before)
			require.Equal(t, before, g.see(t, object()), "the probe must see the same in equal objects")
			for path, to := range rows {
				t.Run(path, func(t *testing.T) {
					changed := object()
					require.NoError(t, Set(reflect.ValueOf(spec(changed)), path, to))
					require.NotEqual(t, object(), changed, "the object is not changed")
					after := g.see(t, changed)
					t.Logf("after the change: %s", after)
					assert.NotEqual(t, before, after, "%s has no effect", path)
				})
			}
		})
	}
	missing := slices.DeleteFunc(slices.Clone(leaves), func(leaf string) bool { return slices.Contains(observed, leaf) })
	assert.Empty(t, missing, "add each of these fields to a group of the table whose probe sees its effect")
}

func TestSet(t *testing.T) {
	type object struct {
		Text string         `json:"text"`
		More map[string]int `json:"more"`
	}
	v := &object{}
	require.NoError(t, Set(reflect.ValueOf(v), "text", nil))
	require.NoError(t, Set(reflect.ValueOf(v), "more", map[string]int{"a": 1}))
	assert.Equal(t, &object{"2", map[string]int{"a": 1}}, v)
	require.ErrorContains(t, Set(reflect.ValueOf(v), "none", nil), "no field")
}
