package server

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/Masterminds/semver/v3"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/internal/request"
	"stoker.io/stoker/internal/sender"
	"stoker.io/stoker/receiver/queue"
	"stoker.io/stoker/test/cluster/kubetest"
)

// others has GatewaySyncs for the same repository as plant, each with another webhook.
const others = `
apiVersion: stoker.io/v1alpha1
kind: GatewaySync
metadata: {name: open}
spec: {git: {repo: "https://git.example.com/acme/plant.git", ref: main}}
---
apiVersion: stoker.io/v1alpha1
kind: GatewaySync
metadata: {name: closed}
spec: {git: {repo: "https://git.example.com/acme/plant.git", ref: main}, webhook: {enabled: false, secretRef: {name: webhook, key: secret}}}
---
apiVersion: stoker.io/v1alpha1
kind: GatewaySync
metadata: {name: blank}
spec: {git: {repo: "https://git.example.com/acme/plant.git", ref: main}, webhook: {secretRef: {name: webhook, key: empty}}}
---
apiVersion: stoker.io/v1alpha1
kind: GatewaySync
metadata: {name: rotated}
spec: {git: {repo: "https://git.example.com/acme/plant.git", ref: main}, webhook: {secretRef: {name: webhook, key: both}}}
---
apiVersion: stoker.io/v1alpha1
kind: GatewaySync
metadata: {name: ungranted}
spec: {git: {repo: "https://git.example.com/acme/plant.git", ref: main}, webhook: {secretRef: {name: ungranted, key: secret}}}
---
apiVersion: stoker.io/v1alpha1
kind: GatewaySync
metadata: {name: tagged}
spec: {git: {repo: "https://git.example.com/acme/plant.git", ref: main}, webhook: {followTags: ["v*"], secretRef: {name: webhook, key: secret}}}
`

func TestPushOfDesiredBranchPolls(t *testing.T) {
	t.Parallel()
	w := newWorld(t, plant)
	body := push("refs/heads/main")
	got := w.post("plant", body, gitHub(ownSecret, "d1", body))
	require.Equal(t, http.StatusAccepted, got.Code, got.Raw)
	assert.Equal(t, "accepted", got.A.Result)
	gs := w.gs("plant")
	assert.Equal(t, got.A.RequestedAt, gs.Annotations[v1alpha1.AnnotationRequestedAt], "the answer must come after the write")
	assert.Equal(t, "github", gs.Annotations[v1alpha1.AnnotationRequestedBy])
	assert.JSONEq(t, `{"github":"d1"}`, gs.Annotations[v1alpha1.AnnotationRequestedIDs])
	assert.NotContains(t, gs.Annotations, v1alpha1.AnnotationRequestedRef, "R3: the ref of the body must not be requested")
	assert.EqualValues(t, 1, gs.Generation)
	for _, m := range gs.ManagedFields {
		assert.Contains(t, []string{"kubetest", request.FieldManager}, m.Manager)
	}

	again := w.post("plant", body, gitHub(ownSecret, "d1", body))
	assert.Equal(t, http.StatusAccepted, again.Code)
	assert.Equal(t, "repeated", again.A.Result, "R4: a repeated delivery must have no effect")
	assert.Equal(t, gs.ResourceVersion, w.gs("plant").ResourceVersion)

	for name, body := range map[string]string{
		"another branch":     push("refs/heads/dev"),
		"a tag":              push("refs/tags/v1"),
		"another repository": strings.Replace(push("refs/heads/main"), "acme/plant", "acme/else", 1),
		"R3: a pattern":      strings.Replace(push("refs/heads/main"), "https://git.example.com/acme/plant.git", "https://.*/", 1),
		"a deletion":         strings.Replace(push("refs/heads/main"), `"deleted":false`, `"deleted":true`, 1),
	} {
		t.Run(name, func(t *testing.T) {
			got := w.post("plant", body, gitHub(ownSecret, "d2", body))
			assert.Equal(t, http.StatusAccepted, got.Code)
			assert.Equal(t, "ignored", got.A.Result)
			assert.NotEmpty(t, got.A.Message)
		})
	}
	assert.Equal(t, gs.ResourceVersion, w.gs("plant").ResourceVersion, "none of the deliveries may write")
	assert.Equal(t, 1.0, w.counted("stoker_webhook_received_total", "github", "accepted"))
	problems, err := testutil.GatherAndLint(w.reg)
	require.NoError(t, err)
	assert.Empty(t, problems)
}

func TestAuthenticatedRefRequests(t *testing.T) {
	t.Parallel()
	w := newWorld(t, plant+"---"+others)
	older, newer := "test.01hz0000000000000000000001.abcdef0", "test.01hz0000000000000000000002.abcdef0"
	// sequence: a refused request leaves the ref of the step before
	for _, step := range []struct {
		body   string
		code   int
		result string
		ref    string
	}{
		{`{"ref":"v1.10","id":"` + newer + `","source":"kargo","freight":"51f97f6","stage":"test"}`, 202, "accepted", "v1.10"},
		{`{"ref":"v1.10","id":"` + newer + `","source":"kargo"}`, 202, "repeated", "v1.10"},
		{`{"ref":"v1.9","id":"` + older + `","source":"kargo"}`, 409, "superseded", "v1.10"},
		{`{"ref":1.10}`, 400, "invalid", "v1.10"},
		{`{"ref":null}`, 400, "invalid", "v1.10"},
		{`{"ref":""}`, 400, "invalid", "v1.10"},
		{`{"ref":"a..b"}`, 400, "invalid", "v1.10"},
		{`{"ref":"--upload-pack=x"}`, 400, "invalid", "v1.10"},
		{`{"ref":"v2","id":"has space"}`, 400, "invalid", "v1.10"},
		{`[]`, 400, "invalid", "v1.10"},
		{``, 202, "accepted", "v1.10"},
		{`{"source":"argocd","id":"site/2026-11-20T04:47:45Z"}`, 202, "accepted", "v1.10"},
		{`{"ref":"refs/heads/dev"}`, 202, "accepted", "refs/heads/dev"},
		{`{"ref":"main"}`, 202, "accepted", "main"},
	} {
		got := w.post("plant", step.body, bearer(ownSecret))
		assert.Equal(t, step.code, got.Code, "%s: %s", step.body, got.Raw)
		assert.Equal(t, step.result, got.A.Result, step.body)
		assert.NotEmpty(t, got.A.Message+got.A.Ref, step.body)
		assert.Equal(t, step.ref, w.desired("plant").Ref, step.body)
	}

	got := w.post("plant", `{"ref":"v5"}`, bearer(installSecret))
	assert.Equal(t, http.StatusUnauthorized, got.Code, "an install-wide secret may only hint")
	assert.Contains(t, got.A.Message, "secretRef")
	assert.Equal(t, http.StatusUnauthorized, w.send("GET", "/status/"+w.ns+"/plant", "", bearer(installSecret)).Code)
	assert.Equal(t, "main", w.desired("plant").Ref)
	got = w.post("open", `{}`, bearer(installSecret))
	assert.Equal(t, http.StatusAccepted, got.Code, got.Raw)
	assert.Equal(t, http.StatusNotFound, w.post("nobody", `{}`, bearer(installSecret)).Code, "an authenticated caller gets 404")
	assert.Equal(t, http.StatusNotFound, w.post("closed", `{}`, bearer(installSecret)).Code)
}

func TestFollowNewerTags(t *testing.T) {
	t.Parallel()
	w := newWorld(t, plant+"---"+others)
	n := 0
	tag := func(name, key, ref string) said {
		n++
		body := push(ref)
		got := w.post(name, body, gitHub(key, "d"+string(rune('a'+n)), body))
		w.sees(name)
		return got
	}
	assert.Equal(t, "ignored", tag("plant", ownSecret, "refs/tags/v1.0.0").A.Result, "plant does not follow tags")
	assert.Equal(t, "ignored", tag("tagged", ownSecret, "refs/tags/nightly").A.Result)
	assert.Equal(t, "ignored", tag("tagged", installSecret, "refs/tags/v1.0.0").A.Result)
	assert.Equal(t, "main", w.desired("tagged").Ref)
	assert.Equal(t, "accepted", tag("tagged", ownSecret, "refs/tags/v1.9.0").A.Result)
	assert.Equal(t, "v1.9.0", w.desired("tagged").Ref)
	assert.Equal(t, "accepted", tag("tagged", ownSecret, "refs/tags/v1.10.0").A.Result)
	assert.Equal(t, "v1.10.0", w.desired("tagged").Ref, "versions must be compared as numbers")
	got := tag("tagged", ownSecret, "refs/tags/v1.9.0")
	assert.Equal(t, "ignored", got.A.Result, "R3: a replayed delivery must not downgrade the fleet")
	assert.Contains(t, got.A.Message, "lower version")
	assert.Equal(t, "v1.10.0", w.desired("tagged").Ref)

	release := `{"action":"published","release":{"tag_name":"v1.11.0","draft":false},"repository":{"ssh_url":"git@git.example.com:acme/plant.git"}}`
	got = w.post("tagged", release, gitHub(ownSecret, "dr", release), header("X-Github-Event", "release"))
	assert.Equal(t, "accepted", got.A.Result, got.Raw)
	assert.Equal(t, "v1.11.0", w.desired("tagged").Ref)
	w.sees("tagged")
	at := w.gs("tagged").Annotations[v1alpha1.AnnotationRequestedAt]
	assert.Equal(t, "accepted", tag("tagged", ownSecret, "refs/tags/v1.11.0").A.Result, "a moved tag must lead to a poll")
	assert.NotEqual(t, at, w.gs("tagged").Annotations[v1alpha1.AnnotationRequestedAt])
	assert.Equal(t, "v1.11.0", w.desired("tagged").Ref)

	// v1.12.0 is broken, and an operator rolls back. Then the host sends the release event for v1.12.0.
	w.lead("tagged", func(gs *v1alpha1.GatewaySync) {
		gs.Status.LastGood = &v1alpha1.CommitRecord{Ref: "v1.11.0", Commit: commit, At: metav1.Now()}
	})
	assert.Equal(t, "accepted", tag("tagged", ownSecret, "refs/tags/v1.12.0").A.Result)
	w.lead("tagged", func(gs *v1alpha1.GatewaySync) { gs.Status.ObservedGeneration = gs.Generation })
	_, err := request.NewSetter(w.admin.Dynamic, nil).Rollback(t.Context(), w.ns, "tagged", "", "", "cli", "")
	require.NoError(t, err)
	w.sees("tagged")
	release = strings.Replace(release, "v1.11.0", "v1.12.0", 1)
	got = w.post("tagged", release, gitHub(ownSecret, "ds", release), header("X-Github-Event", "release"))
	assert.Equal(t, "ignored", got.A.Result, "a rollback must stay after a push of the same tag")
	assert.Contains(t, got.A.Message, "was requested before")
	assert.Equal(t, commit, w.desired("tagged").Ref)
	assert.Equal(t, "accepted", tag("tagged", ownSecret, "refs/tags/v1.12.1").A.Result, "the next version must be requested")
	assert.Equal(t, "v1.9.0 v1.10.0 v1.11.0 v1.12.0 v1.12.1", w.gs("tagged").Annotations[v1alpha1.AnnotationRequestedTags])
}

// R3: simultaneous deliveries, in any order and through any replica, must be judged by the current object at the time of the
// write, not by the cache of a replica.
func TestR3SimultaneousTagsNeverGoDown(t *testing.T) {
	t.Parallel()
	w := newWorld(t, plant+"---"+others)
	replicas := []string{w.url}
	w.start()
	replicas = append(replicas, w.url)
	changes, err := w.admin.Dynamic.Resource(v1alpha1.GroupVersion.WithResource("gatewaysyncs")).Namespace(w.ns).Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=tagged"})
	require.NoError(t, err)
	defer changes.Stop()
	const rounds, tags = 6, 30 // each round has more simultaneous deliveries than the queue admits
	written := make(chan int, 1)
	go func() {
		highest, writes, last := semver.MustParse("0.0.0"), 0, fmt.Sprintf("v%d.%d.0", rounds, tags)
		for ref := ""; ref != last; writes++ {
			change, open := <-changes.ResultChan()
			if !open {
				break
			}
			object, err := meta.Accessor(change.Object)
			if !assert.NoError(t, err) {
				break
			}
			if ref = object.GetAnnotations()[v1alpha1.AnnotationRequestedRef]; ref != "" {
				v := semver.MustParse(ref)
				assert.False(t, v.LessThan(highest), "%s after %s", v, highest)
				highest = v
			}
		}
		written <- writes
	}()
	for major := 1; major <= rounds; major++ {
		var all sync.WaitGroup
		results := make(chan string, 2*tags)
		for i := range 2 * tags { // each delivery comes twice; the repeat has its own id
			url, tag := replicas[(i+major)%2], fmt.Sprintf("v%d.%d.0", major, tags-(i+major)%tags)
			body := push("refs/tags/" + tag)
			all.Go(func() {
				got := w.sendTo(url, http.MethodPost, "/webhook/"+w.ns+"/tagged", body, gitHub(ownSecret, fmt.Sprintf("d-%d-%d", major, i), body))
				assert.Equal(t, http.StatusAccepted, got.Code, got.Raw)
				results <- got.A.Result
			})
		}
		all.Wait()
		close(results)
		require.Equal(t, fmt.Sprintf("v%d.%d.0", major, tags), w.desired("tagged").Ref)
		for result := range results {
			assert.Contains(t, []string{"accepted", "ignored"}, result)
		}
	}
	require.GreaterOrEqual(t, <-written, rounds)
}

// Deliveries of one sender for one repository are merged; others are not.
func TestDeliveriesAreCoalesced(t *testing.T) {
	of := func(ref string, change func(*delivery)) *delivery {
		d := newDelivery(follows("main"), sender.Request{Sender: "gitea", Kind: sender.KindPush, ID: ref, Repositories: []sender.Repository{{Address: "https://git.example.com/acme/plant"}}, Refs: []string{"refs/tags/" + ref}}, true)
		if change != nil {
			change(d)
		}
		return d
	}
	first := of("v1.0.0", nil)
	both, ok := first.Join(of("v1.10.0", nil))
	require.True(t, ok)
	both, ok = both.(*delivery).Join(of("v1.9.0", nil))
	require.True(t, ok)
	ask, why, err := both.Decide(follows("main"))
	require.NoError(t, err)
	assert.Empty(t, why)
	assert.Equal(t, request.Request{Ref: "v1.10.0", By: "gitea", Follows: true}, ask)
	assert.Equal(t, of("v1.0.0", nil), first, "the first delivery must not change")
	for name, change := range map[string]func(*delivery){
		"another sender": func(d *delivery) { d.Sender = "github" },
		"another secret": func(d *delivery) { d.ownSecret = false },
		"not deferrable": func(d *delivery) { d.deferrable = false },
		"another repository": func(d *delivery) {
			d.Repositories = []sender.Repository{{Address: "https://git.example.com/acme/else"}}
		},
		"too many refs": func(d *delivery) { d.Refs = slices.Repeat(d.Refs, maxJoinedRefs) },
	} {
		t.Run(name, func(t *testing.T) {
			_, ok := first.Join(of("v1.10.0", change))
			assert.False(t, ok)
		})
	}
	assert.True(t, first.Deferrable(), "a late tag does not supersede a later request")
	assert.False(t, newDelivery(follows("main", downgrades), first.Request, true).Deferrable(), "a late tag may supersede a later request if downgrades are allowed")
}

// careless is a Decider with a defect.
type careless struct{}

func (careless) Decide(v1alpha1.Requestable) (request.Request, string, error) {
	panic("a defect")
}

// R2: a panic in the queue, outside of request handlers, must not end the process either.
func TestPanicCostsOneRequest(t *testing.T) {
	t.Parallel()
	w := newWorld(t, plant)
	key := queue.Key{Kind: kube.GatewaySync, Namespace: w.ns, Name: "plant"}
	_, err := w.server.queue.Ask(t.Context(), key, request.Request{By: "github", Ref: "v1", Decider: careless{}})
	require.ErrorIs(t, err, errPanic)
	assert.Equal(t, 1.0, w.counted("stoker_webhook_panics_total"))
	assert.Contains(t, w.log.String(), "please report it")
	got := w.post("plant", `{"ref":"v2"}`, bearer(ownSecret))
	assert.Equal(t, http.StatusAccepted, got.Code, got.Raw)
	assert.Equal(t, "v2", w.desired("plant").Ref)
	assert.Equal(t, 1, strings.Count(w.log.String(), `"did":"written"`), "each write must be logged once")
}

// R2: a panic while an object is read for GET /status, also outside of request handlers, must not end the process either.
func TestPanicOfStatusRead(t *testing.T) {
	t.Parallel()
	w := newWorld(t, plant)
	var defective atomic.Bool
	w.before(func(r *http.Request) error {
		if defective.Load() && strings.HasSuffix(r.URL.Path, "/gatewaysyncs/plant") {
			panic("a defect")
		}
		return nil
	})
	w.start()
	status := func() said { return w.send(http.MethodGet, "/status/"+w.ns+"/plant", "", bearer(ownSecret)) }
	defective.Store(true)
	assert.Equal(t, http.StatusServiceUnavailable, status().Code)
	assert.Equal(t, 1.0, w.counted("stoker_webhook_panics_total"))
	assert.Contains(t, w.log.String(), "please report it")
	defective.Store(false)
	assert.Equal(t, http.StatusOK, status().Code)
}

// Only what is kept of a long body is parsed. A request must not lose its commit, which could come after that.
func TestLongRequest(t *testing.T) {
	t.Parallel()
	w := newWorld(t, plant)
	got := w.post("plant", `{"ref":"v2","freight":"`+strings.Repeat("x", 1<<20)+`","commit":"`+strings.Repeat("a", 40)+`"}`, bearer(ownSecret))
	assert.Equal(t, http.StatusRequestEntityTooLarge, got.Code, got.Raw)
	assert.Equal(t, "main", w.desired("plant").Ref)
}

// The receiver must judge a push by the current spec.git.ref, not by its cache.
func TestPushAfterSpecChange(t *testing.T) {
	t.Parallel()
	w := newWorld(t, plant)
	for i := range 10 {
		branch := fmt.Sprintf("b%d", i)
		patch := fmt.Sprintf(`{"spec":{"git":{"ref":%q}}}`, branch)
		_, err := kube.GatewaySyncs(w.admin.Dynamic, w.ns).Patch(t.Context(), "plant", types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		require.NoError(t, err)
		body := push("refs/heads/" + branch)
		got := w.post("plant", body, gitHub(ownSecret, branch, body))
		require.Equal(t, "accepted", got.A.Result, got.Raw)
	}
}

// R4: without the secret, both routes refuse every other credential.
func TestR4SecretIsRequired(t *testing.T) {
	t.Parallel()
	w := newWorld(t, plant+"---"+others)
	body := push("refs/heads/main")
	good := signature(ownSecret, body)
	before := w.gs("plant").ResourceVersion
	for name, mod := range map[string]func(*http.Request){
		"nothing":                          func(*http.Request) {},
		"a blank signature":                header("X-Hub-Signature-256", ""),
		"no prefix":                        header("X-Hub-Signature-256", strings.TrimPrefix(good, "sha256=")),
		"sha1":                             header("X-Hub-Signature-256", "sha1="+strings.TrimPrefix(good, "sha256=")[:40]),
		"upper case":                       header("X-Hub-Signature-256", "sha256="+strings.ToUpper(strings.TrimPrefix(good, "sha256="))),
		"truncated signature":              header("X-Hub-Signature-256", good[:len(good)-2]),
		"signature of another body":        signed(ownSecret, body+" "),
		"signature of another GatewaySync": signed("S3CR3T-new", body),
		"an empty key":                     signed("", body),
		"second signature is valid":        func(r *http.Request) { signed("x", body)(r); header("X-Hub-Signature", good)(r) },
		"signature sent twice":             func(r *http.Request) { r.Header["X-Hub-Signature-256"] = []string{good, good} },
		"wrong signature, valid token":     func(r *http.Request) { signed("x", body)(r); bearer(ownSecret)(r) },
		"a blank token":                    bearer(""),
		"a wrong token":                    bearer(ownSecret + "x"),
		"prefix of the token":              bearer(ownSecret[:len(ownSecret)-1]),
		"a GitLab token":                   header("X-Gitlab-Token", "no"),
		"a password":                       func(r *http.Request) { r.SetBasicAuth(ownSecret, "no") },
		"an empty password":                func(r *http.Request) { r.SetBasicAuth("", "") },
		"another scheme":                   header("Authorization", "Digest "+ownSecret),
		"secret as the scheme":             header("Authorization", ownSecret),
	} {
		t.Run(name, func(t *testing.T) {
			var all sync.WaitGroup
			for _, method := range []string{"POST", "GET"} {
				path := map[string]string{"POST": "/webhook/", "GET": "/status/"}[method] + w.ns + "/plant"
				all.Go(func() { // each refusal is delayed
					got := w.send(method, path, map[string]string{"POST": body}[method], mod, header("X-Github-Event", "push"))
					assert.Equal(t, http.StatusUnauthorized, got.Code, "%s %s: %s", method, name, got.Raw)
				})
			}
			all.Wait()
		})
	}
	assert.Equal(t, http.StatusUnauthorized, w.send("GET", "/status/"+w.ns+"/plant", "", signed(ownSecret, "")).Code, "the signature of an empty body could be replayed")
	assert.Equal(t, before, w.gs("plant").ResourceVersion)

	for name, mod := range map[string]func(*http.Request){
		"GitHub":               signed(ownSecret, body),
		"Bitbucket":            header("X-Hub-Signature", good),
		"GitLab":               header("X-Gitlab-Token", ownSecret),
		"Bearer":               bearer(ownSecret),
		"Bearer in lower case": header("Authorization", "bearer "+ownSecret),
		"Basic":                func(r *http.Request) { r.SetBasicAuth("user", ownSecret) },
	} {
		t.Run(name, func(t *testing.T) {
			got := w.post("plant", body, mod, header("X-Github-Event", "ping"))
			assert.Equal(t, http.StatusOK, got.Code, got.Raw)
		})
	}
	for _, value := range []string{"S3CR3T-new", "S3CR3T-old"} {
		assert.Equal(t, http.StatusAccepted, w.post("rotated", "{}", bearer(value)).Code, "both values must be accepted during a rotation")
	}
	assert.Equal(t, http.StatusUnauthorized, w.post("rotated", "{}", bearer("S3CR3T-new S3CR3T-old")).Code)
	assert.Equal(t, http.StatusUnauthorized, w.post("blank", "{}", bearer("anything")).Code, "an empty secret must not admit callers")
	assert.Contains(t, w.log.String(), "is empty")
}

// For the sender, a missing permission looks like a wrong secret. Only the log names it.
func TestMissingRightIsLogged(t *testing.T) {
	kubetest.NotShort(t) // rights
	t.Parallel()
	w := newWorld(t, plant+"---"+others)
	for range 3 {
		got := w.post("ungranted", `{}`, bearer("S3CR3T-ungranted"))
		assert.Equal(t, http.StatusUnauthorized, got.Code)
		assert.NotContains(t, got.Raw, "role")
	}
	log := w.log.String()
	assert.Equal(t, 1, strings.Count(log, "kubectl create role "), log)
	assert.Contains(t, log, "kubectl create role stoker-receiver-secrets-ungranted -n "+w.ns+" --verb=get --resource=secrets --resource-name=ungranted "+
		`&& kubectl create rolebinding stoker-receiver-secrets-ungranted -n `+w.ns+" --role=stoker-receiver-secrets-ungranted --serviceaccount=stoker-system:stoker-receiver",
		"the name must differ from the Role of another Secret")
	assert.Less(t, w.counted("stoker_webhook_secret_reads_total", "forbidden"), 10.0, "the Secret must be read rarely")
}

// P9, R3: a request is withdrawn with the secret that the request needs, and by its id.
func TestWithdraw(t *testing.T) {
	t.Parallel()
	w := newWorld(t, plant)
	const id = "test.01hz0000000000000000000001.abcdef0"
	require.Equal(t, "accepted", w.post("plant", `{"ref":"v2","id":"`+id+`","source":"kargo"}`, bearer(ownSecret)).A.Result)
	require.Equal(t, "v2", w.desired("plant").Ref)
	// sequence: only the last call withdraws
	for _, c := range []struct {
		query  string
		proof  func(*http.Request)
		code   int
		result string
		ref    string
	}{
		{"?id=" + id, func(*http.Request) {}, 401, "refused", "v2"},
		{"?id=" + id, bearer("wrong"), 401, "refused", "v2"},
		{"?id=" + id, gitHub(ownSecret, "d1", ""), 401, "refused", "v2"},
		{"?id=" + id, bearer(installSecret), 401, "refused", "v2"},
		{"", bearer(ownSecret), 400, "invalid", "v2"},
		{"?id=other", bearer(ownSecret), 200, "ignored", "v2"},
		{"?id=" + id, bearer(ownSecret), 200, "withdrawn", "main"},
		{"?id=" + id, bearer(ownSecret), 200, "ignored", "main"},
	} {
		got := w.send(http.MethodDelete, "/webhook/"+w.ns+"/plant"+c.query, "", c.proof)
		assert.Equal(t, c.code, got.Code, "%s: %s", c.query, got.Raw)
		assert.Equal(t, c.result, got.A.Result, c.query)
		assert.Equal(t, c.ref, w.desired("plant").Ref, c.query)
	}
}
