package server

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/internal/request"
	"stoker.io/stoker/test/cluster/kubetest"
	"stoker.io/stoker/test/program"
)

// R7: without the secret, a caller cannot find out whether a GatewaySync, its Secret or the permission to read it exists. Status,
// headers, body and time are the same.
func TestR7ObjectsCannotBeProbed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, plant+"---"+others)
	large := strings.Repeat("x", 900<<10)
	paths := []string{"/plant", "/nobody", "/open", "/closed", "/blank", "/ungranted", "/" + strings.Repeat("a", 300), "/..%2fplant"}
	for kind, body := range map[string]string{"small": push("refs/heads/main"), "large": large} {
		t.Run(kind, func(t *testing.T) {
			var mu sync.Mutex
			var all sync.WaitGroup
			answers := map[string][]string{}
			times := map[string][]time.Duration{}
			for range 3 { // the first round finds no Secret in the cache
				// sequence: the requests of a round run at the same time, and their times are compared
				for _, path := range paths {
					for name, mod := range map[string]func(*http.Request){"signed": signed("wrong", body), "token": bearer("wrong"), "none": func(*http.Request) {}} {
						for _, method := range []string{http.MethodPost, http.MethodGet} {
							route, sent := "/webhook/", body
							if method == http.MethodGet {
								route, sent = "/status/", ""
							}
							all.Go(func() {
								began := time.Now()
								got := w.send(method, route+w.ns+path, sent, mod, header("X-Github-Event", "push"))
								took := time.Since(began)
								got.Header.Del("Date")
								mu.Lock()
								defer mu.Unlock()
								key := name + method
								answers[key] = append(answers[key], got.Raw+headerText(got.Header))
								times[path+key] = append(times[path+key], took)
								assert.Equal(t, http.StatusUnauthorized, got.Code)
							})
						}
					}
				}
				all.Wait()
			}
			for key, list := range answers {
				assert.Len(t, slices.Compact(slices.Sorted(slices.Values(list))), 1, key)
			}
			for key, list := range times {
				assert.GreaterOrEqual(t, slices.Min(list), rejectDelay, key)
			}
		})
	}
	assert.LessOrEqual(t, w.counted("stoker_webhook_secret_reads_total", "read")+w.counted("stoker_webhook_secret_reads_total", "missing")+
		w.counted("stoker_webhook_secret_reads_total", "forbidden"), 40.0, "missing Secrets must be cached, too")
	assert.Zero(t, w.counted("stoker_webhook_panics_total"))
	require.NotContains(t, w.log.String(), "S3CR3T", "C7")
}

const slowRead = 800 * time.Millisecond

// R7: the duration reveals nothing either if the API server is slow and the receiver reads the Secret for the first time.
func TestR7RequestsDoNotWaitForSecrets(t *testing.T) {
	t.Parallel()
	w := newWorld(t, plant+"---"+others)
	w.before(func(r *http.Request) error {
		if strings.Contains(r.URL.Path, "/secrets/") {
			time.Sleep(slowRead)
		}
		return nil
	})
	w.start()
	fastest := map[string]time.Duration{}
	apart := func() time.Duration {
		times := slices.Sorted(maps.Values(fastest))
		return times[len(times)-1] - times[0]
	}
	// A busy machine may delay one kind of request four times in a row. A wait for a read delays every time.
	for i := 0; i < 4 || i < 20 && apart() >= slowRead/2; i++ {
		late := fmt.Sprintf("late%d", i)
		w.cluster.ApplyYAML(t, w.ns, strings.Replace(plant, "name: plant", "name: "+late, 1)+
			strings.NewReplacer("name: plant", "name: own"+late, "key: secret", "key: k"+late).Replace("---"+plant))
		// sequence: the times of all classes are compared
		for class, name := range map[string]string{"own, new": "own" + late, "new": late, "there": "plant", "rotated": "rotated", "nobody": "nobody", "open": "open", "ungranted": "ungranted", "closed": "closed"} {
			began := time.Now()
			got := w.post(name, "{}", bearer("wrong"))
			took := time.Since(began)
			assert.Contains(t, []int{http.StatusUnauthorized, http.StatusServiceUnavailable}, got.Code)
			if best, ok := fastest[class]; !ok || took < best {
				fastest[class] = took
			}
		}
	}
	assert.GreaterOrEqual(t, slices.Min(slices.Collect(maps.Values(fastest))), rejectDelay)
	assert.Less(t, apart(), slowRead/2, "%v", fastest)
	require.Eventually(t, func() bool { return w.post("late3", "{}", bearer(ownSecret)).Code == http.StatusAccepted }, liveness, 50*time.Millisecond, "a caller with the secret must be admitted")
}

func headerText(h http.Header) string {
	var b strings.Builder
	_ = h.Write(&b) // a strings.Builder returns no error
	return b.String()
}

// C9: every route with every method: without a credential, with a wrong one, and with the right one. A new route needs a row here.
func TestC9OnlyAuthenticatedPostsWrite(t *testing.T) {
	t.Parallel()
	w := newWorld(t, plant+`---
apiVersion: stoker.io/v1alpha1
kind: ConfigSync
metadata: {name: plant}
spec: {source: {git: {repoURL: "https://git.example.com/acme/plant.git"}}, webhook: {secretRef: {name: webhook, key: secret}}}
`)
	version := func(pattern string) string {
		kind := kube.GatewaySync
		if strings.Contains(pattern, "/configsync/") {
			kind = kube.ConfigSync
		}
		o, err := request.NewSetter(w.admin.Dynamic, nil).Of(kind).Get(t.Context(), w.ns, "plant")
		require.NoError(t, err)
		return o.GetResourceVersion()
	}
	rows := map[string]struct {
		right   int // the status for the right secret
		changes bool
	}{
		"POST /webhook/{namespace}/{name}":            {right: http.StatusAccepted, changes: true},
		"GET /status/{namespace}/{name}":              {right: http.StatusOK},
		"POST /webhook/{namespace}/configsync/{name}": {right: http.StatusAccepted, changes: true},
		"GET /status/{namespace}/configsync/{name}":   {right: http.StatusOK},
		// A withdrawal without the id of a request changes nothing.
		"DELETE /webhook/{namespace}/{name}":            {right: http.StatusBadRequest},
		"DELETE /webhook/{namespace}/configsync/{name}": {right: http.StatusBadRequest},
	}
	patterns := w.server.Routes().Patterns()
	assert.ElementsMatch(t, slices.Collect(maps.Keys(rows)), patterns)
	paths := map[string]bool{}
	// setup: the paths of the patterns.
	for _, pattern := range patterns {
		_, path, _ := strings.Cut(pattern, " ")
		paths[path] = true
	}
	for pattern := range paths {
		path := strings.NewReplacer("{namespace}", w.ns, "{name}", "plant").Replace(pattern)
		for _, method := range methods {
			t.Run(method+" "+pattern, func(t *testing.T) {
				row, served := rows[strings.Replace(method, http.MethodHead, http.MethodGet, 1)+" "+pattern]
				for name, c := range map[string]struct {
					token string
					want  int
				}{
					"without secret": {"", http.StatusUnauthorized},
					"wrong secret":   {"wrong", http.StatusUnauthorized},
					"right secret":   {ownSecret, row.right},
				} {
					t.Run(name, func(t *testing.T) {
						if !served {
							c.want = http.StatusMethodNotAllowed
						}
						before := version(pattern)
						assert.Equal(t, c.want, w.try(method, path, c.token))
						if row.changes && c.token == ownSecret {
							assert.NotEqual(t, before, version(pattern))
						} else {
							assert.Equal(t, before, version(pattern))
						}
					})
				}
			})
		}
	}
}

var methods = []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"}

// try sends a request without a body and returns the status code. The response may have no body.
func (w *world) try(method, path, token string) int {
	w.Helper()
	req, err := http.NewRequestWithContext(w.Context(), method, w.url+path, nil)
	require.NoError(w, err)
	if token != "" {
		bearer(token)(req)
	}
	res, err := http.DefaultClient.Do(req)
	require.NoError(w, err)
	require.NoError(w, res.Body.Close())
	return res.StatusCode
}

// C9: every method on existing and on plausible paths.
func TestC9Methods(t *testing.T) {
	t.Parallel()
	w := newWorld(t, plant)
	for _, path := range []string{"/", "/webhook", "/webhook/a", "/webhook/a/b", "/webhook/a/b/c", "/status", "/status/a/b", "/metrics", "/healthz", "/debug/pprof/", "/shutdown"} {
		t.Run(path, func(t *testing.T) {
			for _, method := range methods {
				t.Run(method, func(t *testing.T) {
					want := http.StatusNotFound
					switch {
					case path == "/webhook/a/b" && (method == "POST" || method == "DELETE"), path == "/status/a/b" && (method == "GET" || method == "HEAD"):
						want = http.StatusUnauthorized
					case path == "/webhook/a/b", path == "/status/a/b":
						want = http.StatusMethodNotAllowed
					}
					assert.Equal(t, want, w.try(method, path, ""))
				})
			}
		})
	}
}

// C7: the test puts secrets into every part of a request. Logs of all levels, metrics and answers must not contain them.
func TestC7NoSecretIsLogged(t *testing.T) {
	t.Parallel()
	w := newWorld(t, plant+"---"+others)
	body := push("refs/heads/main")
	answers := &program.Log{}
	say := func(text string) { _, _ = answers.Write([]byte(text)) }
	var all sync.WaitGroup
	for _, name := range []string{"plant", "rotated", "ungranted", "blank", "nobody"} {
		for _, mod := range []func(*http.Request){
			bearer(ownSecret), bearer(installSecret), bearer("S3CR3T-wrong"), gitHub(ownSecret, "d", body), header("X-Gitlab-Token", "S3CR3T-wrong"),
			func(r *http.Request) { r.SetBasicAuth("S3CR3T-user", "S3CR3T-wrong") },
			func(r *http.Request) { r.URL.RawQuery = "token=S3CR3T-query"; bearer("S3CR3T-wrong")(r) },
		} {
			all.Go(func() {
				say(w.post(name, body, mod).Raw)
				say(w.post(name, `{"ref":{"S3CR3T":1}}`, mod).Raw)
				say(w.send(http.MethodGet, "/status/"+w.ns+"/"+name, "", mod).Raw)
			})
		}
	}
	all.Wait()
	families, err := w.reg.Gather()
	require.NoError(t, err)
	for _, f := range families {
		say(f.String())
	}
	assert.NotContains(t, answers.String(), "S3CR3T")
	assert.NotContains(t, w.log.String(), "S3CR3T")
	gs := w.gs("plant")
	for key, value := range gs.Annotations {
		if key != "kubectl.kubernetes.io/last-applied-configuration" {
			assert.NotContains(t, value, "S3CR3T", key)
		}
	}
}

func TestUnservedGatewaySyncs(t *testing.T) {
	t.Parallel()
	w := newWorld(t, plant+"---"+strings.ReplaceAll(plant, "{name: plant}", "{name: line, labels: {serve: here}}"))
	elsewhere := w.cluster.Namespace(t)
	w.cluster.ApplyYAML(t, elsewhere, plant)
	for name, want := range map[string]int{"plant": http.StatusAccepted, "line": http.StatusAccepted} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, want, w.post(name, "", bearer(ownSecret)).Code)
		})
	}
	w.labels = "serve=here"
	w.start()
	for path, want := range map[string]int{w.ns + "/plant": http.StatusNotFound, w.ns + "/line": http.StatusAccepted, elsewhere + "/plant": http.StatusNotFound} {
		t.Run(strings.NewReplacer(w.ns+"/", "", elsewhere, "elsewhere").Replace(path), func(t *testing.T) {
			token := installSecret // with this secret, the receiver reports what does not exist
			assert.Equal(t, want, w.send(http.MethodPost, "/webhook/"+path, "", bearer(token)).Code)
		})
	}
}

// A short outage of the API server only delays the answer. During a long outage the receiver answers 503 instead of 401, whether
// or not the GatewaySync exists.
func TestAPIServerOutageAnswers503(t *testing.T) {
	t.Parallel()
	var patches, secrets atomic.Int64 // number of requests that will fail
	w := newWorld(t, plant)
	w.before(func(r *http.Request) error {
		if r.Method == http.MethodPatch && patches.Add(-1) >= 0 || strings.Contains(r.URL.Path, "/secrets/") && secrets.Add(-1) >= 0 {
			return errors.New("connection refused")
		}
		return nil
	})
	w.start()
	patches.Store(2)
	began := time.Now()
	got := w.post("plant", `{"ref":"v1"}`, bearer(ownSecret))
	assert.Equal(t, http.StatusAccepted, got.Code, got.Raw)
	assert.Equal(t, "v1", w.desired("plant").Ref)
	assert.GreaterOrEqual(t, time.Since(began), 3*firstRetry)

	patches.Store(1 << 40)
	w.server.queue.Timeout = time.Second
	got = w.post("plant", `{"ref":"v2"}`, bearer(ownSecret))
	assert.Equal(t, http.StatusServiceUnavailable, got.Code, "the receiver must not accept what it cannot write")
	assert.Equal(t, "failed", got.A.Result)
	assert.Equal(t, "5", got.Header.Get("Retry-After"))
	assert.Equal(t, "v1", w.desired("plant").Ref)
	assert.Equal(t, http.StatusUnauthorized, w.post("plant", "", bearer("wrong")).Code)

	secrets.Store(1 << 40)
	w.start() // the new replica has read no Secret yet
	raw := ""
	// sequence: each answer is compared with the one before
	for _, name := range []string{"plant", "nobody", "plant"} {
		got := w.post(name, "", bearer(ownSecret))
		assert.Equal(t, http.StatusServiceUnavailable, got.Code, name)
		assert.Equal(t, "5", got.Header.Get("Retry-After"))
		if raw != "" {
			assert.Equal(t, raw, got.Raw)
		}
		raw = got.Raw
	}
	require.NotContains(t, w.log.String(), "S3CR3T", "C7")
}

// Missing permissions in one namespace, or a namespace that does not exist yet, must not affect other namespaces. Requests for
// that namespace get 503, because the secret may be right.
func TestForbiddenNamespaceIsIsolated(t *testing.T) {
	kubetest.NotShort(t) // rights
	t.Parallel()
	w := newWorld(t, plant)
	w.more = []string{"elsewhere"}
	w.start()
	got := w.post("plant", `{"ref":"v1"}`, bearer(ownSecret))
	assert.Equal(t, http.StatusAccepted, got.Code, got.Raw)
	for path, code := range map[string]int{w.ns + "/nobody": http.StatusUnauthorized, "nowhere/plant": http.StatusUnauthorized, "elsewhere/plant": http.StatusServiceUnavailable} {
		t.Run(strings.TrimPrefix(path, w.ns+"/"), func(t *testing.T) {
			for method, route := range map[string]string{http.MethodPost: "/webhook/", http.MethodGet: "/status/"} {
				t.Run(method, func(t *testing.T) {
					got := w.send(method, route+path, "", bearer(ownSecret))
					assert.Equal(t, code, got.Code, got.Raw)
				})
			}
		})
	}
	assert.Contains(t, w.log.String(), "watch failed")
	assert.Contains(t, w.log.String(), "elsewhere")
}

// A team recreates a GatewaySync while the receiver carries out a request for the old one. The secret of the old one must change
// nothing in the new one and reveal nothing about it, not even its existence.
func TestR7SecretOfDeletedGatewaySync(t *testing.T) {
	t.Parallel()
	w := newWorld(t, plant+"---"+others) // others keep the Secret in the cache
	var next sync.Map                    // "do": func(), before the next read of the GatewaySync plant, after the receiver has authorized the request
	w.before(func(r *http.Request) error {
		if r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/gatewaysyncs/plant") {
			if do, ok := next.LoadAndDelete("do"); ok {
				do.(func())()
			}
		}
		return nil
	})
	w.start()
	syncs := w.admin.Dynamic.Resource(kube.GatewaySync.Resource()).Namespace(w.ns)
	was, err := syncs.Get(t.Context(), "plant", metav1.GetOptions{})
	require.NoError(t, err)
	was.SetUID("")
	was.SetResourceVersion("")
	recreate := func() {
		_, err := syncs.Create(t.Context(), was, metav1.CreateOptions{})
		assert.NoError(t, err)
	}
	desired := push("refs/heads/main")
	other := push("refs/heads/dev")
	for name, send := range map[string]func() said{
		"ref":            func() said { return w.post("plant", `{"ref":"v1","id":"1"}`, bearer(ownSecret)) },
		"desired branch": func() said { return w.post("plant", desired, gitHub(ownSecret, "d1", desired)) },
		"another branch": func() said { return w.post("plant", other, gitHub(ownSecret, "d2", other)) },
		"status":         func() said { return w.send(http.MethodGet, "/status/"+w.ns+"/plant", "", bearer(ownSecret)) },
	} {
		t.Run(name, func(t *testing.T) {
			answer := func(replaced bool) string {
				w.sees("plant")
				next.Store("do", func() {
					assert.NoError(t, syncs.Delete(t.Context(), "plant", metav1.DeleteOptions{}))
					if replaced {
						recreate()
					}
				})
				got := send()
				got.Header.Del("Date")
				assert.Equal(t, http.StatusNotFound, got.Code, got.Raw)
				if !replaced {
					recreate()
				}
				for annotation := range w.gs("plant").Annotations {
					assert.NotContains(t, annotation, v1alpha1.GroupVersion.Group)
				}
				return got.Raw + headerText(got.Header)
			}
			assert.Equal(t, answer(true), answer(false), "the answer must not reveal the new GatewaySync")
		})
	}
	w.sees("plant")
	got := w.post("plant", `{"ref":"v1"}`, bearer(ownSecret))
	assert.Equal(t, http.StatusAccepted, got.Code, got.Raw)
}
