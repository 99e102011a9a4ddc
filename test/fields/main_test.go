package fields

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"flag"
	"fmt"
	"io"
	"log"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"stoker.io/stoker/agent/lead"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/schedule"
	"stoker.io/stoker/api/v1alpha1/secretrefs"
	"stoker.io/stoker/internal/configsync/builder"
	"stoker.io/stoker/internal/configsync/render"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/metrics"
	"stoker.io/stoker/internal/secret"
)

func TestMain(m *testing.M) {
	builder.Main(render.Functions())
	// A name server that never answers, also in virtual time.
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}}
	done, cancel := context.WithCancel(context.Background())
	cancel()
	_, _ = net.DefaultResolver.LookupHost(done, "slow.example.com") // reads the settings of this machine before virtual time begins
	proxy := httptest.NewServer(http.NotFoundHandler())             // no test reaches another machine
	_ = os.Setenv("HTTPS_PROXY", proxy.URL)
	_ = os.Setenv("NO_PROXY", "")
	flag.Parse()
	_ = flag.Set("test.parallel", "8") // most groups wait
	code := m.Run()
	proxy.Close()
	os.Exit(code)
}

// web is a server that records what arrives. Requests that no handler answers are forbidden.
type web struct {
	url, ca string
	answer  func(w http.ResponseWriter, r *http.Request, body string) bool

	used sync.Mutex // see alone
	mu   sync.Mutex
	got  []string
}

// newWeb starts a server at an address, by default on loopback. With a name, it has TLS and a self-signed certificate.
func newWeb(t *testing.T, host, name string, answer func(w http.ResponseWriter, r *http.Request, body string) bool) *web {
	t.Helper()
	s := &web{answer: answer}
	server := httptest.NewUnstartedServer(s)
	if host != "" {
		_ = server.Listener.Close()
		var err error
		server.Listener, err = net.Listen("tcp", net.JoinHostPort(host, "0"))
		require.NoError(t, err)
	}
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	if name == "" {
		server.Start()
	} else {
		at, _, err := net.SplitHostPort(server.Listener.Addr().String())
		require.NoError(t, err)
		var pair tls.Certificate
		pair, s.ca = certificate(t, at, name)
		server.TLS = &tls.Config{Certificates: []tls.Certificate{pair}}
		server.StartTLS()
	}
	t.Cleanup(server.Close)
	s.url = server.URL
	return s
}

// certificate returns a self-signed certificate for an address and a name.
func certificate(t *testing.T, address, name string) (tls.Certificate, string) {
	t.Helper()
	public, key, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature, DNSNames: []string{name}}
	if ip := net.ParseIP(address); ip != nil {
		template.IPAddresses = []net.IP{ip}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, public, key)
	require.NoError(t, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

func (s *web) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	if err != nil {
		return
	}
	line := r.Method + " " + r.URL.RequestURI()
	for _, name := range []string{"Authorization", "X-Ignition-Api-Token", "X-Hub-Signature-256", "Private-Token"} {
		if value := r.Header.Get(name); value != "" {
			line += "; " + readable(value)
		}
	}
	s.record(line)
	if s.answer == nil || !s.answer(w, r, string(body)) {
		w.WriteHeader(http.StatusForbidden)
	}
}

func (s *web) record(line string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.got = append(s.got, line)
}

// readable returns the value of a header without what differs between two equal requests: times, and what is signed with them.
func readable(value string) string {
	kind, token, _ := strings.Cut(value, " ")
	switch parts := strings.Split(token, "."); {
	case kind == "Bearer" && len(parts) == 3:
		claims, _ := base64.RawURLEncoding.DecodeString(parts[1])
		_, issuer, _ := strings.Cut(string(claims), `"iss":`)
		issuer, _, _ = strings.Cut(issuer, ",")
		return "a token of " + strings.TrimSuffix(issuer, "}")
	case kind == "AWS4-HMAC-SHA256":
		scope, _, _ := strings.Cut(token, ",")
		_, region, _ := strings.Cut(scope[strings.Index(scope, "/")+1:], "/")
		return scope[:strings.Index(scope, "/")] + " in " + region
	case kind == "SharedKey":
		name, _, _ := strings.Cut(token, ":")
		return "SharedKey " + name
	}
	return value
}

// alone returns a probe that uses a server while no other probe uses it.
func alone[T any](s *web, see func(*testing.T, *T) string) func(*testing.T, *T) string {
	return func(t *testing.T, object *T) string {
		s.used.Lock()
		defer s.used.Unlock()
		return see(t, object)
	}
}

// take returns what has arrived since the last call, each line once.
func (s *web) take() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var lines []string
	for _, line := range s.got {
		if !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	s.got = nil
	return strings.Join(lines, "\n")
}

// secrets are the values of Secrets by NAME/KEY. They implement connect.Secrets.
type secrets map[string]string

func (s secrets) Read(field secretrefs.Field, ref v1alpha1.SecretKeyRef) (secret.String, error) {
	value, ok := s[ref.Name+"/"+ref.Key]
	if !ok {
		return secret.String{}, fmt.Errorf("%s: no key %s of Secret %s", field, ref.Key, ref.Name)
	}
	return secret.New(value), nil
}

func (s secrets) Reachable(secretrefs.Field, v1alpha1.SecretKeyRef) error { return nil }

func ref(name string) *v1alpha1.SecretKeyRef { return &v1alpha1.SecretKeyRef{Name: name, Key: "value"} }

// appKey returns a new private key of a GitHub App.
func appKey(t *testing.T) string {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(t, err)
	return string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}))
}

var commitA, commitB = strings.Repeat("a", 40), strings.Repeat("b", 40)

// fleet is a lead, in virtual time, whose two gateways do what the SyncTarget says.
type fleet struct {
	t      *testing.T
	api    *apiServer
	gs     *v1alpha1.GatewaySync
	broken string // the name of a gateway that cannot load what it gets
	lines  []string
	last   map[string]string
	// followed is when a gateway began to follow the last target.
	followed time.Time
	ready    string // the last condition Ready
	polls    int
}

type fleetMetrics struct {
	*metrics.Agent
	*metrics.Fleet
}

// leads returns what a lead publishes about a GatewaySync in some time, without repetitions, and how often it polls git, which fails.
func leads(t *testing.T, gs *v1alpha1.GatewaySync, d time.Duration, broken string, git v1alpha1.Reason) string {
	var text string
	synctest.Test(t, func(t *testing.T) {
		f := &fleet{t: t, api: newAPI(), gs: gs, broken: broken, last: map[string]string{}}
		gs.Status.LastGood = &v1alpha1.CommitRecord{Ref: commitA, Commit: commitA, At: metav1.NewTime(time.Now())}
		f.api.put(t, stokerPath+"gatewaysyncs/plant", gs)
		f.api.put(t, stokerPath+"synctargets/plant", v1alpha1.SyncTarget{Spec: v1alpha1.SyncTargetSpec{Format: v1alpha1.TargetFormat, Revision: 1, Generation: 1, Ref: commitA, Commit: commitA}})
		for _, name := range []string{"line-1", "line-2"} { // setup: two gateways that run the first commit
			f.api.put(t, corePath+"pods/"+name, object{"kind": "Pod", "apiVersion": "v1", "metadata": object{"uid": "uid-" + name, "labels": object{v1alpha1.LabelCRName: "plant"}},
				"spec": object{"containers": []any{object{"name": "stoker-agent", "env": []any{object{"name": "POD_UID"}}}}}, "status": object{"phase": "Running"}})
			f.report(name, v1alpha1.SyncTargetSpec{Revision: 1, Commit: commitA})
		}
		f.api.onWrite = f.written
		log := slog.New(slog.DiscardHandler)
		registry := prometheus.NewRegistry()
		l, err := lead.New(lead.Config{Namespace: "site", GatewaySync: "plant", Pod: "line-1", Clients: f.api.clients(t), Log: log,
			Metrics: fleetMetrics{metrics.NewAgent(registry, "", "", "", ""), metrics.NewFleet(registry, "", "")},
			Connect: func(*v1alpha1.GatewaySync) (*repo.Remote, error) {
				f.polls++
				return nil, failure.New(git, "git fails")
			}})
		require.NoError(t, err)
		ctx, stop := context.WithTimeout(t.Context(), d)
		defer stop()
		go func() { _ = l.Watch(ctx) }()
		require.NoError(t, l.Run(ctx))
		time.Sleep(time.Minute) // what is under way ends
		text = strings.Join(append(f.lines, f.ready), "\n")
		switch every := d / time.Duration(max(f.polls, 1)); {
		case f.polls > 2 && every < 3*time.Minute:
			text += "\ngit is polled often"
		case f.polls > 2:
			text += "\ngit is polled rarely"
		}
	})
	return text
}

// report stores the report of a gateway that does what a target says.
func (f *fleet) report(name string, target v1alpha1.SyncTargetSpec) {
	r := v1alpha1.SyncReport{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{v1alpha1.LabelCRName: "plant"},
		OwnerReferences: []metav1.OwnerReference{{Kind: "Pod", Name: name, UID: types.UID("uid-" + name)}}}}
	r.Status = v1alpha1.SyncReportStatus{Format: v1alpha1.ReportFormat, Gateway: name, Phase: v1alpha1.GatewaySynced, Reason: v1alpha1.ReasonSynced, Commit: target.Commit,
		Target: target.Commit, Revision: target.Revision, Generation: 1}
	if o := target.Rollout; o != nil && !o.Done && schedule.StepOf(f.gs, name) > int(o.Open) {
		r.Status.Phase, r.Status.Reason, r.Status.Commit = v1alpha1.GatewayPending, v1alpha1.ReasonGateClosed, commitA
		if o.Open == 0 {
			r.Status.Planned = target.Commit
		}
	} else {
		if f.line("%s follows %.7s", name, target.Commit) {
			f.followed = time.Now()
		}
		if name == f.broken {
			r.Status.Phase, r.Status.Reason = v1alpha1.GatewayError, v1alpha1.ReasonTemplateFailed
		}
	}
	text, err := json.Marshal(r)
	require.NoError(f.t, err)
	var o object
	require.NoError(f.t, json.Unmarshal(text, &o))
	f.api.store(stokerPath+"syncreports/"+name, o)
}

// written records what the lead writes, and makes the gateways follow.
func (f *fleet) written(path string, o object) {
	text, err := json.Marshal(o)
	require.NoError(f.t, err)
	switch {
	case strings.Contains(path, "/synctargets/"):
		var target v1alpha1.SyncTarget
		require.NoError(f.t, json.Unmarshal(text, &target))
		s := target.Spec
		if s.Rollout != nil {
			s.Rollout.Rules, s.Rollout.Order = "", ""
		}
		rollout, err := json.Marshal(s.Rollout)
		require.NoError(f.t, err)
		f.line("target %.7s paused %t, %s", s.Commit, s.Paused, rollout)
		if s.Commit == "" {
			return
		}
		for _, name := range []string{"line-1", "line-2"} { // setup: all gateways follow
			f.report(name, target.Spec)
		}
	case strings.Contains(path, "/gatewaysyncs/"):
		var gs v1alpha1.GatewaySync
		require.NoError(f.t, json.Unmarshal(text, &gs))
		r := gs.Status.Rollout
		if r != nil && r.Phase != v1alpha1.RolloutProgressing && !strings.HasSuffix(r.Message, "health check succeeds") { // the next status may come before this one is written
			if f.line("rollout %s of %s: %s", r.Phase, r.Stage, r.Message) && r.Phase == v1alpha1.RolloutAborted {
				f.line("aborted after %s", time.Since(f.followed).Truncate(10*time.Second))
			}
		}
		for _, c := range gs.Status.Conditions {
			if c.Type == v1alpha1.ConditionReady {
				f.ready = changing.ReplaceAllString(fmt.Sprintf("ready %s %s %s", c.Status, c.Reason, c.Message), "…")
			}
		}
	}
}

// line adds a line unless it repeats the last one about the same subject, its first word.
func (f *fleet) line(format string, args ...any) (isNew bool) {
	text := changing.ReplaceAllString(fmt.Sprintf(format, args...), "…")
	kind, _, _ := strings.Cut(text, " ")
	if f.last[kind] == text {
		return false
	}
	f.lines, f.last[kind] = append(f.lines, text), text
	return true
}

// privateAddress returns an address of this machine that a lead may contact, or "" if it has only loopback.
func privateAddress(t *testing.T) string {
	t.Helper()
	all, err := net.InterfaceAddrs()
	require.NoError(t, err)
	for _, a := range all {
		if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil && n.IP.IsGlobalUnicast() {
			return n.IP.String()
		}
	}
	return ""
}

// leadGroups are the fields that say how gateways follow the target.
func leadGroups(t *testing.T) []group[v1alpha1.GatewaySync] {
	staged := func(gs *v1alpha1.GatewaySync) {
		gs.Spec.Git.Ref = commitB
		gs.Spec.Deployment = &v1alpha1.DeploymentSpec{Stages: []v1alpha1.Stage{{Name: "first", Gateways: []string{"line-1"}, PostSyncWait: "1m"}}}
	}
	ordered := func(gs *v1alpha1.GatewaySync) {
		gs.Spec.Git.Ref = commitB
		gs.Spec.Deployment = &v1alpha1.DeploymentSpec{SyncOrder: []v1alpha1.SyncOrderEntry{{Name: "line-1", Weight: new(int32(5))}}}
	}
	backable := func(gs *v1alpha1.GatewaySync) {
		staged(gs)
		gs.Spec.Snapshots.Enabled = true
		gs.Spec.AutoRollback = &v1alpha1.AutoRollbackSpec{Enabled: true, Scope: v1alpha1.AutoRollbackRollout}
	}
	see := func(broken string, d time.Duration, git v1alpha1.Reason) func(*testing.T, *v1alpha1.GatewaySync) string {
		return func(t *testing.T, gs *v1alpha1.GatewaySync) string { return leads(t, gs, d, broken, git) }
	}
	groups := []group[v1alpha1.GatewaySync]{
		{"stages", "deployment", staged, see("", 5*time.Minute, ""), map[string]any{"stages[].name": nil, "stages[].gateways": []string{"line-2"},
			"stages[].postSyncWait": "0s", "stages[].requireApproval": true}},
		{"order", "deployment.syncOrder[]", ordered, see("", 5*time.Minute, ""), map[string]any{"name": "line-3", "weight": 100}},
		{"dry run before a rollout", "validation", func(gs *v1alpha1.GatewaySync) {
			gs.Spec.Git.Ref, gs.Spec.Validation = commitB, &v1alpha1.ValidationSpec{}
		}, see("", 5*time.Minute, ""), map[string]any{"dryRunBefore": true}},
		{"rollback of a rollout", "autoRollback", backable, see("line-1", 5*time.Minute, ""), map[string]any{"enabled": false, "scope": "gateway"}},
		{"target of the lead", "", func(gs *v1alpha1.GatewaySync) { gs.Spec.Git.Ref = commitA }, see("", time.Minute, ""), map[string]any{"paused": true, "git.ref": commitB}},
		{"polls of git", "", nil, see("", time.Hour, v1alpha1.ReasonRefNotFound), map[string]any{"polling.enabled": false, "polling.interval": "10m"}},
		{"deadline of the lead", "", nil, see("", 15*time.Minute, v1alpha1.ReasonGitUnreachable), map[string]any{"progressDeadline": "5m"}},
	}
	return append(groups, healthGroups(t, staged)...)
}

// healthGroups are the fields of health checks.
func healthGroups(t *testing.T, staged func(*v1alpha1.GatewaySync)) []group[v1alpha1.GatewaySync] {
	at := privateAddress(t)
	server := newWeb(t, at, "health.example.com", func(w http.ResponseWriter, r *http.Request, _ string) bool {
		if r.URL.Path == "/healthy" {
			w.WriteHeader(http.StatusOK)
		}
		return r.URL.Path == "/healthy"
	})
	see := func(t *testing.T, gs *v1alpha1.GatewaySync) string {
		if at == "" {
			t.Skip("this machine has no address but loopback, which no lead contacts")
		}
		return leads(t, gs, 5*time.Minute, "", "")
	}
	checked := func(url, ca string) func(*v1alpha1.GatewaySync) {
		return func(gs *v1alpha1.GatewaySync) {
			staged(gs)
			gs.Spec.Deployment.Stages[0].PostSyncWait = ""
			gs.Spec.Deployment.Stages[0].HealthCheck = &v1alpha1.HealthCheck{URL: url, CABundle: ca}
		}
	}
	check := "deployment.stages[].healthCheck"
	return []group[v1alpha1.GatewaySync]{
		{"health checks", check, checked(server.url+"/healthy", server.ca), see, map[string]any{"url": nil, "expectedStatus": 204, "caBundle": ""}},
		{"health checks that fail", check, checked(server.url+"/ill", server.ca), see, map[string]any{"failureThreshold": 5}},
		{"health checks of an unknown server", check, checked(server.url+"/healthy", ""), see, map[string]any{"insecureSkipVerify": true}},
		{"health checks without an answer", check, checked("http://slow.example.com/", ""), see, map[string]any{"timeout": "2s"}},
	}
}
