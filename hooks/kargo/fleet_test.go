package kargo

import (
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/test/fleet/plant"
	"stoker.io/stoker/test/fleet/receivertest"
	"stoker.io/stoker/test/ociregistry"
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

// counts returns the requests since the last call, without the posts that the receiver answered with 500 or more, which Kargo repeats.
func (l *line) counts() (posts, gets int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	posts, gets = l.posts, l.gets
	l.posts, l.gets = 0, 0
	return posts, gets
}

// taken reports whether counts would return a post.
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

// titles asserts the title of the project that the promotions change, on each gateway.
func (l *line) titles(want string) {
	l.t.Helper()
	for _, g := range l.Gateways() {
		assert.Equal(l.t, want, g.Title())
	}
}

// requests returns the annotations of the GatewaySync. Some of them are the request.
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
	inForce := func() map[string]string {
		m := maps.Clone(l.requests())
		delete(m, v1alpha1.AnnotationRequestedBefore) // a failed promotion withdraws itself from what was replaced
		return m
	}
	before := inForce()
	l.run(late, failed, "is older than")
	posts, gets := l.counts()
	assert.Equal(t, []int{1, 0}, []int{posts, gets})
	assert.Equal(t, before, inForce())

	// A wrong secret fails the promotion without another attempt.
	p = l.promotion("1.10")
	p.secrets["stoker-webhook"]["token"] = "wrong"
	l.run(p, failed, "key token of Secret stoker-webhook in Project stoker-demo differs from the Secret")
	posts, gets = l.counts()
	assert.Equal(t, []int{1, 0}, []int{posts, gets}, "the request must not be repeated")
	assert.Equal(t, before, inForce())

	// So does a missing GatewaySync.
	l.run(l.promotion("1.10", variable{"gatewaysync", "nothing"}), failed, "either the receiver does not serve nothing in namespace ")
	l.titles("first")

	// A verification for which the Freight has no commit must not accept any commit.
	for commit, want := range map[string]string{l.First: "Successful", "": ""} {
		t.Run(fmt.Sprintf("verification of %q", commit), func(t *testing.T) {
			run, err := analyse(t, "stoker-status", map[string]string{
				"namespace": l.Namespace, "gatewaysync": l.Name, "commit": commit, "receiver": l.receiver.URL, "token": receivertest.Token,
			})
			require.NoError(t, err)
			outcome, err := run.Spec.Metrics[0].measure(t.Context())
			assert.Equal(t, want, outcome)
			assert.Equal(t, want == "", err != nil, "%v", err)
		})
	}
}

// The digest of an artifact is promoted without a commit.
func TestDigestReachesFleet(t *testing.T) {
	t.Parallel()
	registry := ociregistry.Start(t)
	push := func(title string) string {
		return registry.Push("stable", ociregistry.Files(t, map[string]string{
			"projects/line/project.json": fmt.Sprintf(`{"title": %q, "description": "", "parent": "", "enabled": true, "inheritable": false}`, title),
		}), nil)
	}
	first := push("first")
	l := newLine(t, plant.New(t, 1, receivertest.SetSecret, func(gs *v1alpha1.GatewaySync) {
		gs.Spec.Git.Repo, gs.Spec.Git.Ref = registry.Repo(), "stable"
	}))
	l.Start()
	push("second")
	l.run(l.promotion("", variable{"ref", first}, variable{"commit", `${{ quote("") }}`}), succeeded, "")
	l.titles("first")
	assert.Equal(t, first, l.requests()[v1alpha1.AnnotationRequestedRef])
}
