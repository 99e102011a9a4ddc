package kargo

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
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
	"stoker.io/stoker/test/fleet/receivertest"
	"stoker.io/stoker/test/gitserver"
)

// line is a plant with the real receiver in front.
type line struct {
	*plant.Plant
	t        *testing.T
	receiver *httptest.Server
	promoted int // the number of promotions so far; their names sort by it
	mu       sync.Mutex
	posts    int
	gets     int
}

func newLine(t *testing.T, p *plant.Plant) *line {
	t.Helper()
	to, err := url.Parse(receivertest.Start(t, p).URL)
	require.NoError(t, err)
	l := &line{Plant: p, t: t}
	through := httputil.NewSingleHostReverseProxy(to)
	through.ModifyResponse = func(res *http.Response) error {
		if res.Request.Method == http.MethodPost && res.StatusCode < http.StatusInternalServerError {
			l.mu.Lock()
			l.posts++
			l.mu.Unlock()
		}
		return nil
	}
	l.receiver = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			l.mu.Lock()
			l.gets++
			l.mu.Unlock()
		}
		through.ServeHTTP(w, r)
	}))
	t.Cleanup(l.receiver.Close)
	return l
}

// counts returns the requests since the last call, without the posts that failed and that Kargo repeats.
func (l *line) counts() (posts, gets int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	posts, gets = l.posts, l.gets
	l.posts, l.gets = 0, 0
	return posts, gets
}

// taken reports whether the receiver has accepted a post since the last call of counts.
func (l *line) taken() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.posts > 0
}

// promotion creates the next promotion, for a tag.
func (l *line) promotion(tag string, vars ...variable) *promotion {
	l.t.Helper()
	l.promoted++
	p := promote(l.t, "stoker-request", append([]variable{
		{"receiver", l.receiver.URL}, {"namespace", l.Namespace}, {"gatewaysync", l.Name}, {"timeout", "80s"},
		{"ref", "${{ quote(commitFrom('https://git.example.com/site.git').Tag) }}"},
		{"commit", "${{ quote(commitFrom('https://git.example.com/site.git').ID) }}"},
	}, vars...)...)
	p.name = fmt.Sprintf("test.01m7vmb2qdrn90aaqkkr%06d.51f97f6", l.promoted)
	p.scale, p.real = 50, true
	p.commits[0].Tag = tag
	if at := l.Repo.Git("for-each-ref", "--format=%(objectname)", "refs/tags/"+tag, "refs/heads/"+tag); at != "" {
		p.commits[0].ID = strings.TrimSpace(at)
	}
	p.secrets["stoker-webhook"]["token"] = receivertest.Token
	return p
}

// run runs a promotion and asserts its phase and its message.
func (l *line) run(p *promotion, phase, says string) {
	l.t.Helper()
	require.NoError(l.t, p.run(l.t.Context(), nil))
	require.Equal(l.t, phase, p.phase, p.message)
	assert.Contains(l.t, p.message, says)
}

func (l *line) titles(want string) {
	l.t.Helper()
	for _, g := range l.Gateways() {
		assert.Equal(l.t, want, g.Title())
	}
}

// follows reports whether the ref of the target in the status is ref.
func (l *line) follows(ref string) bool {
	target := l.Status().Target
	return target != nil && target.Ref == ref
}

// requests returns the annotations with the request.
func (l *line) requests() map[string]string { return l.GatewaySync().Annotations }

func (l *line) patch(patch string) {
	l.t.Helper()
	_, err := kube.GatewaySyncs(l.Kube.Dynamic, l.Namespace).Patch(l.t.Context(), l.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{FieldManager: "test"})
	require.NoError(l.t, err)
}

// P5, R3, R4: promotions against the real receiver, a real API server, and agents that sync.
func TestPromotionsReachFleet(t *testing.T) {
	t.Parallel()
	l := newLine(t, plant.New(t, 2, receivertest.SetSecret))
	l.Start()
	l.Tag("v1.0.0", l.First)
	second := l.Push("second")
	l.Tag("1.10", second)
	l.Converges("second", second)

	// A tag that looks like a number must arrive unchanged.
	p := l.promotion("v1.0.0")
	l.run(p, succeeded, "")
	l.titles("first")
	assert.Equal(t, l.First, p.state["stoker"].(map[string]any)["commit"])
	old := p.name
	p = l.promotion("1.10")
	l.run(p, succeeded, "")
	l.titles("second")
	assert.Equal(t, "1.10", l.requests()[v1alpha1.AnnotationRequestedRef])
	assert.Equal(t, "kargo", l.requests()[v1alpha1.AnnotationRequestedBy])
	delete(p.state["stoker"].(map[string]any), "started")
	assert.Equal(t, map[string]any{"ref": "1.10", "commit": second, "gateways": 2.0, "message": p.state["stoker"].(map[string]any)["message"]}, p.state["stoker"])

	// The controller restarts while the promotion waits. It sends the same request again, and the repeat must have no effect.
	l.counts()
	l.patch(`{"metadata":{"annotations":{"stoker.io/paused":"true"}}}`)
	p = l.promotion("v1.0.0")
	var asked map[string]string
	restarted := false
	require.NoError(t, p.run(t.Context(), func(int) {
		if l.taken() && !restarted { // the post may take a few visits
			l.patch(`{"metadata":{"annotations":{"stoker.io/paused":null}}}`)
			asked, restarted = l.requests(), true
			p.restart()
		}
	}))
	require.Equal(t, succeeded, p.phase, p.message)
	posts, _ := l.counts()
	assert.Equal(t, 2, posts)
	require.NotEmpty(t, asked)
	assert.Equal(t, asked, l.requests(), "the repeated promotion must not write")
	l.titles("first")

	// A late old promotion must not overwrite a newer one.
	late := l.promotion("1.10")
	late.name = old
	before := l.requests()
	l.run(late, failed, "is older than")
	posts, gets := l.counts()
	assert.Equal(t, []int{1, 0}, []int{posts, gets})
	assert.Equal(t, before, l.requests())

	// A wrong secret fails the promotion without another attempt.
	p = l.promotion("1.10")
	p.secrets["stoker-webhook"]["token"] = "wrong"
	l.run(p, failed, "key token of Secret stoker-webhook in Project stoker-demo differs from the Secret")
	posts, gets = l.counts()
	assert.Equal(t, []int{1, 0}, []int{posts, gets}, "the request must not be repeated")
	assert.Equal(t, before, l.requests())

	// So does a missing GatewaySync.
	l.run(l.promotion("1.10", variable{"gatewaysync", "nothing"}), failed, "either the receiver does not serve nothing in namespace ")
	l.titles("first")
}

// P4: a promotion that cannot succeed, or that is superseded, fails with the reason, and the gateways do not change.
func TestFailedPromotionReason(t *testing.T) {
	t.Parallel()
	l := newLine(t, plant.New(t, 1, receivertest.SetSecret))
	l.Start()
	l.Tag("v1.0.0", l.First)
	l.Converges("first", l.First)
	l.run(l.promotion("v9.9.9"), failed, "RefNotFound")
	l.titles("first")
	l.Tag("v1.1.0", l.Commit("broken", gitserver.Files(map[string]string{"projects/line/project.json": `{"title": `})))
	l.run(l.promotion("v1.1.0"), failed, "ConfigSyntaxError")
	l.titles("first")

	// The tag moved after Kargo created the Freight.
	moved := l.promotion("v1.0.0")
	moved.commits[0].ID = strings.Repeat("1", 40)
	l.run(moved, failed, "RefMoved: v1.0.0 is at "+l.First[:7]+", but was requested at 1111111")
	l.titles("first")

	// A newer promotion overtakes a waiting one, which must fail as superseded.
	l.patch(`{"metadata":{"annotations":{"stoker.io/paused":"true"}}}`) // first, because the gateway follows main
	l.Tag("v1.2.0", l.Push("second"))
	l.Push("third")
	p, newer := l.promotion("v1.2.0"), l.promotion("main")
	require.NoError(t, p.run(t.Context(), func(visit int) {
		if visit == 1 {
			newer.visit(t.Context())
		}
	}))
	assert.Equal(t, failed, p.phase)
	assert.Contains(t, p.message, "Superseded: the desired ref is main at ")
	assert.Contains(t, p.message, "requested by kargo for project stoker-demo, stage test, freight 51f97f6e0c1d2b3a, by admin, https://kargo.example.com/project/stoker-demo/promotion/"+newer.name)
	l.patch(`{"metadata":{"annotations":{"stoker.io/paused":null}}}`)
	l.run(newer, succeeded, "")
	l.titles("third")
}

// A later change of spec.git.ref supersedes a request without any cleanup, even while a promotion waits.
func TestSpecChangeDuringPromotion(t *testing.T) {
	t.Parallel()
	l := newLine(t, plant.New(t, 1, receivertest.SetSecret))
	l.Start()
	l.Tag("v1.0.0", l.First)
	second := l.Push("second")
	l.Tag("1.10", second)
	l.Converges("second", second)

	l.patch(`{"metadata":{"annotations":{"stoker.io/paused":"true"}}}`)
	p := l.promotion("v1.0.0")
	require.NoError(t, p.run(t.Context(), func(visit int) {
		if visit == 2 {
			l.patch(`{"metadata":{"annotations":{"stoker.io/paused":null}},"spec":{"git":{"ref":"1.10"}}}`)
		}
	}))
	assert.Equal(t, failed, p.phase)
	assert.Contains(t, p.message, "(spec.git.ref)")
	l.Eventually("the fleet follows the spec", func() bool { return l.follows("1.10") })
	l.patch(`{"spec":{"git":{"ref":"main"}}}`)
	l.Eventually("the request does not return", func() bool { return l.follows("main") })
	l.Converges("second", second)
	assert.Equal(t, "v1.0.0", l.requests()[v1alpha1.AnnotationRequestedRef], "the superseded annotation must stay without effect")

	// The promotion changes git first and then requests. A manual request stays in force while the spec does not change; a
	// promotion to the ref of the spec must end it.
	for range 2 {
		_, err := request.NewSetter(l.Kube.Dynamic, nil).Ask(t.Context(), l.Namespace, l.Name, request.Request{Ref: "1.10", By: "cli"})
		require.NoError(t, err)
		l.Converges("second", second)
		p := l.promotion("v1.0.0")
		p.steps = append(l.git(p), p.steps...)
		l.run(p, succeeded, "")
		l.titles("first")
		assert.Equal(t, "v1.0.0", l.GatewaySync().Spec.Git.Ref)
	}
}

// git returns the steps of the task stoker-argocd and simulates Kargo's steps and Argo CD: the content of the written file becomes
// the spec.
func (l *line) git(p *promotion) []step {
	l.t.Helper()
	first := promote(l.t, "stoker-argocd", variable{"ref", "${{ quote(commitFrom('https://git.example.com/site.git').Tag) }}"},
		variable{"repoURL", "https://git.example.com/deploy.git"}, variable{"path", "gatewaysync.yaml"}, variable{"application", "line"})
	for i := range first.steps {
		first.steps[i].As = strings.Replace(first.steps[i].As, "stoker::", "git::", 1)
	}
	pushed := map[string]any{"commit": "2222222222222222222222222222222222222222"}
	nothing := func(map[string]any) (map[string]any, error) { return pushed, nil }
	var patch string
	p.others = map[string]func(map[string]any) (map[string]any, error){
		"git-clone": nothing, "git-commit": nothing, "git-push": nothing,
		"yaml-update": func(config map[string]any) (map[string]any, error) {
			set := config["updates"].([]any)[0].(map[string]any)
			value := set["value"]
			for _, key := range slices.Backward(strings.Split(set["key"].(string), ".")) {
				value = map[string]any{key: value}
			}
			b, err := json.Marshal(value)
			patch = string(b)
			return nil, err
		},
		"argocd-update": func(map[string]any) (map[string]any, error) { l.patch(patch); return nil, nil },
	}
	return first.steps
}

// If gateways wait for an operator, the promotion must fail at its own timeout and report what it waited for.
func TestHeldPromotionMessage(t *testing.T) {
	t.Parallel()
	l := newLine(t, plant.New(t, 1, receivertest.SetSecret))
	l.Start()
	l.Converges("first", l.First)
	l.patch(`{"spec":{"paused":true}}`)
	l.Eventually("the SyncTarget is paused", func() bool { return l.Target().Paused })
	l.Tag("v2", l.Push("second"))
	// The first promotions may time out before the lead reports the reason for v2.
	for end := time.Now().Add(plant.Liveness); ; {
		p := l.promotion("v2", variable{"timeout", "2s"})
		l.run(p, failed, "not done after 2s: ")
		if strings.Contains(p.message, "not done after 2s: Paused: ") {
			break
		}
		require.Less(t, time.Now(), end, p.message)
	}
	l.patch(`{"spec":{"paused":false}}`)
	l.run(l.promotion("v2"), succeeded, "")
	l.titles("second")
}

// The receiver must refuse a ref that is not a string, although the task never sends one.
func TestNumericRefIsRejected(t *testing.T) {
	t.Parallel()
	l := newLine(t, plant.New(t, 0, receivertest.SetSecret))
	p := l.promotion("1.10")
	body, err := json.Marshal(map[string]any{"source": "kargo", "id": p.name, "ref": 1.1})
	require.NoError(t, err)
	status, _, _, err := httpStep(t.Context(), map[string]any{
		"method": "POST", "url": l.receiver.URL + "/webhook/" + l.Namespace + "/" + l.Name, "body": string(body),
		"headers":           []any{map[string]any{"name": "Authorization", "value": "Bearer " + receivertest.Token}},
		"successExpression": p.steps[4].Config["successExpression"], "failureExpression": "response.status >= 300", "errorExpression": "response.body.message",
	})
	assert.Equal(t, failed, status)
	require.ErrorContains(t, err, "HTTP (400)")
	assert.NotContains(t, l.requests(), v1alpha1.AnnotationRequestedRef)
}
