package server

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/desiredref"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/internal/request"
	"stoker.io/stoker/internal/sender"
	"stoker.io/stoker/receiver/queue"
)

// A full receiver must answer 429 or 503. After another 4xx or a 500, git hosts and Kargo steps drop the request.
func TestFullQueueAnswers503(t *testing.T) {
	t.Parallel()
	w := newWorld(t, plant+"---"+others)
	arrived, open := make(chan struct{}, 1), make(chan struct{})
	w.before(func(r *http.Request) error { // all patches wait until open is closed
		if r.Method == http.MethodPatch {
			select {
			case arrived <- struct{}{}:
			default:
			}
			<-open
		}
		return nil
	})
	w.start()
	release := sync.OnceFunc(func() { close(open) })
	t.Cleanup(release) // must run before the receiver ends, because the receiver waits for requests in progress
	w.server.queue.MaxWaiting, w.server.queue.MaxObjects = 2, 1

	var all sync.WaitGroup
	answers := make(chan said, 4)
	ask := func(ref string) {
		all.Go(func() { answers <- w.post("plant", fmt.Sprintf(`{"ref":%q}`, ref), bearer(ownSecret)) })
	}
	ask("v0")
	require.Eventually(t, func() bool { return len(arrived) > 0 }, liveness, firstRetry/50, "the first request is in progress")
	for i := range 3 {
		ask(fmt.Sprintf("v%d", i+1))
	}
	var crowded said
	for range 4 { // requests in the queue may get their error before the rejected one does
		if crowded = <-answers; crowded.Code == http.StatusTooManyRequests {
			break
		}
	}
	assert.Equal(t, http.StatusTooManyRequests, crowded.Code, crowded.Raw)
	assert.Equal(t, "busy", crowded.A.Result)
	assert.Equal(t, "5", crowded.Header.Get("Retry-After"))
	assert.Contains(t, crowded.A.Message, "too many different requests for this object")

	for _, body := range []string{"{}", `{"ref":"v1"}`} {
		full := w.post("rotated", body, bearer("S3CR3T-new"))
		assert.Equal(t, http.StatusServiceUnavailable, full.Code, full.Raw)
		assert.Equal(t, "busy", full.A.Result)
		assert.Equal(t, "5", full.Header.Get("Retry-After"))
		assert.Contains(t, full.A.Message, "too many objects")
	}
	release()
	all.Wait()
	require.Eventually(t, func() bool { return w.post("rotated", "{}", bearer("S3CR3T-new")).Code == http.StatusAccepted }, liveness, firstRetry, "the queue accepts requests again")
}

// C8: values in requests, with or without a valid secret, create no metric series.
func TestC8SendersCannotGrowMetrics(t *testing.T) {
	t.Parallel()
	w := newWorld(t, plant+"---"+others)
	const seed = 8
	random := rand.New(rand.NewPCG(seed, 0))
	word := func() string { return fmt.Sprintf("x%08x", random.Uint32()) }
	var events []string
	for _, s := range sender.All() {
		events = append(events, s.Headers...)
	}
	requests := make(chan func(), 64)
	var all sync.WaitGroup
	for range 64 {
		all.Go(func() {
			for request := range requests {
				request()
			}
		})
	}
	for i := range 1000 {
		method, path := http.MethodPost, "/webhook/"+w.ns+"/plant"
		switch i % 5 {
		case 0:
			method, path = http.MethodGet, "/status/"+w.ns+"/plant?ref="+word()+"&id="+word()
		case 1:
			path = "/webhook/" + word() + "/" + word()
		case 2:
			path = "/" + word()
		}
		body, err := json.Marshal(map[string]string{"source": word(), "id": word(), "actor": word(), []string{"ref", "stage"}[i%2]: word()})
		require.NoError(t, err)
		header := http.Header{"User-Agent": {word()}, word(): {word()}, "X-Forwarded-For": {word()}}
		if i%3 == 0 {
			header.Set(events[i%len(events)], word())
			header.Set("X-Github-Delivery", word())
		}
		switch i % 4 {
		case 0:
			header.Set("Authorization", "Bearer "+ownSecret)
		case 1:
			header.Set("Authorization", "Bearer "+installSecret)
		case 2:
			header.Set("Authorization", "Bearer "+word())
		}
		requests <- func() {
			req, err := http.NewRequestWithContext(t.Context(), method, w.url+path, strings.NewReader(string(body)))
			if !assert.NoError(t, err) {
				return
			}
			req.Header = header
			res, err := http.DefaultClient.Do(req)
			if !assert.NoError(t, err) {
				return
			}
			_, err = io.Copy(io.Discard, res.Body)
			assert.NoError(t, err)
			assert.NoError(t, res.Body.Close())
		}
	}
	close(requests)
	all.Wait()

	results := []string{"accepted", "repeated", "ignored", "pong", "superseded", "invalid", "refused", "unknown", "toolarge", "busy", "failed",
		string(request.Progressing), string(request.Succeeded), string(request.Failed), string(request.Overtaken), "read", "missing", "forbidden"}
	closed := map[string][]string{
		"source": append([]string{unknownSource}, sender.Names()...),
		"result": results, "version": {"test"},
	}
	families, err := w.reg.Gather()
	require.NoError(t, err)
	seen := map[string]bool{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == "goversion" {
					continue
				}
				seen[l.GetValue()] = true
				assert.True(t, slices.Contains(closed[l.GetName()], l.GetValue()), "%s{%s=%q}", f.GetName(), l.GetName(), l.GetValue())
			}
		}
	}
	for _, value := range []string{unknownSource, sender.Generic, "accepted", "ignored", "refused"} {
		assert.True(t, seen[value], "no request led to %s: the test covers too little", value)
	}
	problems, err := testutil.GatherAndLint(w.reg)
	require.NoError(t, err)
	assert.Empty(t, problems)
}

// R11: however many callers ask for one object, it is read about twice a second at most, and reads of other objects are not delayed.
func TestReadsAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		count := map[string]int{}
		s := newSharedReads(func(_ context.Context, key queue.Key) observation {
			mu.Lock()
			defer mu.Unlock()
			count[key.Name]++
			return observation{}
		})
		key := func(name string) queue.Key { return queue.Key{Kind: kube.GatewaySync, Namespace: "plant", Name: name} }
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		var callers sync.WaitGroup
		var answers atomic.Int64
		for range 500 {
			callers.Go(func() {
				for s.get(ctx, key("attacked")).err == nil {
					answers.Add(1)
				}
			})
		}
		for range 50 { // setup: the attack goes on meanwhile
			began := time.Now()
			assert.NoError(t, s.get(ctx, key("other")).err)
			assert.Less(t, time.Since(began), maxReadPause)
			time.Sleep(time.Second)
		}
		callers.Wait()
		s.close()
		mu.Lock()
		defer mu.Unlock()
		assert.LessOrEqual(t, count["attacked"], 130)
		assert.Equal(t, 50, count["other"])
		assert.GreaterOrEqual(t, answers.Load(), int64(500*(count["attacked"]-3)), "each read must answer all callers, except for the last ones, before which some callers ended")
		assert.Empty(t, s.objects)
	})
}

// A read that began before the call may show the state before the caller's own request.
func TestReadIsNotOlderThanTheCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var reads atomic.Int32
		release := make(chan struct{})
		s := newSharedReads(func(context.Context, queue.Key) observation {
			reads.Add(1)
			<-release
			return observation{}
		})
		defer s.close()
		var callers sync.WaitGroup
		callers.Go(func() { s.get(t.Context(), queue.Key{}) })
		synctest.Wait()
		second := make(chan struct{})
		callers.Go(func() { s.get(t.Context(), queue.Key{}); close(second) })
		synctest.Wait()
		release <- struct{}{}
		synctest.Wait()
		select {
		case <-second:
			assert.Fail(t, "the second call got the read of the first one")
		default:
		}
		close(release)
		callers.Wait()
		assert.EqualValues(t, 2, reads.Load())
	})
}

// site has ConfigSyncs with and without a repository of their own.
const site = `
apiVersion: stoker.io/v1alpha1
kind: ConfigSync
metadata: {name: site}
spec:
  source: {git: {repoURL: "https://git.example.com/acme/plant.git", branch: main}}
  webhook: {secretRef: {name: webhook, key: secret}, followTags: ["v*"]}
---
apiVersion: stoker.io/v1alpha1
kind: ConfigSync
metadata: {name: follower}
spec:
  source: {gatewaySync: {name: plant}}
  webhook: {secretRef: {name: webhook, key: secret}}
---
apiVersion: stoker.io/v1alpha1
kind: ConfigSync
metadata: {name: closed}
spec:
  source: {git: {repoURL: "https://git.example.com/acme/plant.git"}}
  webhook: {enabled: false}
`

// A ConfigSync takes requests at a path of its own, with the rules of a GatewaySync.
func TestConfigSyncWebhooks(t *testing.T) {
	t.Parallel()
	w := newWorld(t, plant+"---"+site)
	post := func(name, body string, mods ...func(*http.Request)) said {
		return w.send(http.MethodPost, "/webhook/"+w.ns+"/configsync/"+name, body, mods...)
	}
	get := func(name string) *v1alpha1.ConfigSync {
		cs, err := kube.ConfigSyncs(w.admin.Dynamic, w.ns).Get(t.Context(), name)
		require.NoError(t, err)
		return cs
	}
	// sequence: each step starts with the state that the last one left
	for _, step := range []struct {
		name, body string
		mod        func(*http.Request)
		code       int
		result     string
		says       string
	}{
		{"site", push("refs/heads/main"), gitHub("wrong", "1", push("refs/heads/main")), http.StatusUnauthorized, "refused", ""},
		{"site", push("refs/heads/main"), gitHub(ownSecret, "1", push("refs/heads/main")), http.StatusAccepted, "accepted", "git is polled again"},
		{"site", push("refs/heads/main"), gitHub(installSecret, "2", push("refs/heads/main")), http.StatusAccepted, "accepted", ""},
		{"site", push("refs/heads/other"), gitHub(ownSecret, "3", push("refs/heads/other")), http.StatusAccepted, "ignored", "is not main"},
		{"site", `{"ref":"v0"}`, bearer(installSecret), http.StatusUnauthorized, "refused", "for pushes only"},
		{"site", `{"ref":"release"}`, bearer(ownSecret), http.StatusAccepted, "accepted", "the desired ref is release"},
		{"site", push("refs/tags/v2"), gitHub(ownSecret, "4", push("refs/tags/v2")), http.StatusAccepted, "accepted", "the desired ref is v2"},
		{"follower", push("refs/heads/main"), gitHub(ownSecret, "5", push("refs/heads/main")), http.StatusAccepted, "ignored", "request the ref of the GatewaySync"},
		{"follower", `{"ref":"v1"}`, bearer(ownSecret), http.StatusBadRequest, "invalid", "request the ref of the GatewaySync"},
		{"follower", `{}`, bearer(ownSecret), http.StatusAccepted, "accepted", ""},
		{"closed", `{}`, bearer(installSecret), http.StatusNotFound, "unknown", "no such ConfigSync"},
		{"plant", `{}`, bearer(ownSecret), http.StatusUnauthorized, "refused", ""},
	} {
		got := post(step.name, step.body, step.mod)
		assert.Equal(t, step.code, got.Code, "%s %s: %s", step.name, step.body, got.Raw)
		assert.Equal(t, step.result, got.A.Result, "%s %s: %s", step.name, step.body, got.Raw)
		assert.Contains(t, got.A.Message, step.says)
	}
	assert.Equal(t, "v2", get("site").Annotations[v1alpha1.AnnotationRequestedRef])
	assert.Equal(t, []string{"v2"}, request.Followed(get("site")))
	assert.NotContains(t, get("follower").Annotations, v1alpha1.AnnotationRequestedRef)
	assert.NotEmpty(t, get("follower").Annotations[v1alpha1.AnnotationRequestedAt])
	assert.Empty(t, w.gs("plant").Annotations, "the GatewaySync of the same name must not change")

	current := func() Status {
		return w.send(http.MethodGet, "/status/"+w.ns+"/configsync/site?ref=v2", "", bearer(ownSecret)).S
	}
	assert.Equal(t, request.Progressing, current().Phase, "no run has handled the request")
	cs := get("site")
	cs.Status = v1alpha1.ConfigSyncStatus{ObservedGeneration: cs.Generation, ObservedRequest: desiredref.Key(cs),
		Outcome: &v1alpha1.Outcome{Phase: v1alpha1.OutcomeSucceeded, Ref: "v2", Commit: other, Reason: v1alpha1.ReasonSynced}}
	_, err := kube.ConfigSyncs(w.admin.Dynamic, w.ns).Update(t.Context(), cs, metav1.UpdateOptions{}, "status")
	require.NoError(t, err)
	assert.Equal(t, request.Succeeded, current().Phase)
	assert.Equal(t, other, current().Commit)
}

// The sender of a request that waited too long behind others delivers it again.
func TestLateRequestIsBusy(t *testing.T) {
	t.Parallel()
	w := httptest.NewRecorder()
	assert.Equal(t, Busy, new(Server).writeFailure(w, queue.Key{}, queue.ErrLate))
	assert.Equal(t, http.StatusServiceUnavailable, w.Code)
	assert.Equal(t, "5", w.Header().Get("Retry-After"))
}
