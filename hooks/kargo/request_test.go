package kargo

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/internal/sender"
)

// script simulates a receiver, or any other server that may answer at its address.
type script struct {
	*httptest.Server
	mu       sync.Mutex
	posts    []string
	gets     []string
	deletes  []string
	requests []*http.Request
	post     func(n int) answer
	get      func(n int) answer
}

// answer is an answer of a script. Without a code, the script aborts the connection.
type answer struct {
	code int
	kind string // the Content-Type
	body string
}

func says(code int, body string) answer { return answer{code, "application/json", body} }

func always(a answer) func(int) answer { return func(int) answer { return a } }

// then returns the answers in turn, then the last one forever.
func then(all ...answer) func(int) answer {
	return func(n int) answer { return all[min(n, len(all)-1)] }
}

// phase returns the status of a GatewaySync in a phase. rest has more fields, as JSON that begins with a comma.
func phase(name, rest string) answer {
	return says(200, fmt.Sprintf(`{"phase": %q, "ref": "v1.0.0", "commit": "1111111111111111111111111111111111111111", "gateways": {"total": 2, "synced": 1, "failed": 0}%s}`, name, rest))
}

var accepted = always(says(202, `{"result": "accepted", "message": "asked for"}`))

func newScript(t *testing.T, post, get func(int) answer) *script {
	s := &script{post: post, get: get}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		s.mu.Lock()
		var a answer
		switch r.Method {
		case http.MethodDelete:
			a = says(200, `{"result": "withdrawn", "message": "the desired ref is main again"}`)
			s.deletes = append(s.deletes, r.URL.String())
		case http.MethodPost:
			a = s.post(len(s.posts))
			s.posts = append(s.posts, string(b))
			s.requests = append(s.requests, r)
		default:
			s.requests = append(s.requests, r)
			a = s.get(len(s.gets))
			s.gets = append(s.gets, r.URL.String())
		}
		s.mu.Unlock()
		if a.code == 0 { // abort the connection
			panic(http.ErrAbortHandler)
		}
		w.Header().Set("Content-Type", a.kind)
		w.WriteHeader(a.code)
		_, _ = io.WriteString(w, a.body)
	}))
	t.Cleanup(s.Close)
	return s
}

// seen returns the requests so far: the bodies of POST, the URLs of GET, and all requests in order.
func (s *script) seen() (posts, gets []string, all []*http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.posts), slices.Clone(s.gets), slices.Clone(s.requests)
}

const promotionName = "test.01m7vmb2qdrn90aaqkkrvbgrfk.51f97f6"

// promote returns a promotion with one of our tasks and a fast clock.
func promote(t *testing.T, name string, vars ...variable) *promotion {
	t.Helper()
	p := &promotion{
		name: promotionName, project: "stoker-demo", stage: "test", freight: "51f97f6e0c1d2b3a", actor: "admin", scale: 5000,
		secrets: map[string]map[string]string{"stoker-webhook": {"token": "s3cret"}},
		commits: []commit{{RepoURL: "https://git.example.com/site.git", ID: "1111111111111111111111111111111111111111", Branch: "main", Tag: "v1.0.0"}},
		steps:   []step{{As: "stoker", Task: &taskRef{Name: name, Kind: "ClusterPromotionTask"}, Vars: vars}},
	}
	require.NoError(t, p.inflate(tasks(t)))
	return p
}

func requestOf(t *testing.T, s *script, more ...variable) *promotion {
	return promote(t, "stoker-request", append([]variable{
		{"receiver", s.URL}, {"namespace", "plant"}, {"gatewaysync", "site"}, {"ref", "${{ quote(commitFrom('https://git.example.com/site.git').Tag) }}"},
		{"commit", "${{ quote(commitFrom('https://git.example.com/site.git').ID) }}"},
	}, more...)...)
}

func TestRequestsAndOutputsOfTask(t *testing.T) {
	t.Parallel()
	s := newScript(t, accepted, then(phase("Progressing", ""), phase("Progressing", ""), phase("Succeeded", `, "message": "2 of 2 gateways run v1.0.0"`)))
	p := requestOf(t, s)
	p.actor = ""
	require.NoError(t, p.run(t.Context(), nil))
	require.Equal(t, succeeded, p.phase, p.message)

	posts, gets, requests := s.seen()
	require.Len(t, posts, 1)
	assert.Equal(t, `{"actor":"","commit":"1111111111111111111111111111111111111111","freight":"51f97f6e0c1d2b3a","id":"`+promotionName+`","project":"stoker-demo","ref":"v1.0.0",`+
		`"source":"kargo","stage":"test","url":"https://kargo.example.com/project/stoker-demo/promotion/`+promotionName+`"}`+"\n", posts[0])
	status := "/status/plant/site?commit=1111111111111111111111111111111111111111&id=" + promotionName + "&wait=8s"
	assert.Equal(t, []string{status, status, status}, gets)
	for _, r := range requests {
		assert.Equal(t, "Bearer s3cret", r.Header.Get("Authorization"))
	}
	assert.Equal(t, "/webhook/plant/site", requests[0].URL.Path)
	assert.Equal(t, "application/json", requests[0].Header.Get("Content-Type"))
	delete(p.state["stoker"].(map[string]any), "started")
	assert.Equal(t, map[string]any{
		"ref": "v1.0.0", "commit": "1111111111111111111111111111111111111111", "message": "2 of 2 gateways run v1.0.0", "gateways": float64(2),
	}, p.state["stoker"], "the outputs of the task")
}

// P9: a promotion that fails or times out withdraws its request, and only then. It fails with the first reason.
func TestFailedPromotionWithdraws(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		get   func(int) answer
		phase string
		says  string
	}{
		"succeeded": {always(phase("Succeeded", `, "message": "all"`)), succeeded, ""},
		"failed":    {always(phase("Failed", `, "reason": "RefMoved", "message": "v1.0.0 is at 2222222"`)), failed, "RefMoved: v1.0.0 is at 2222222"},
		"timed out": {always(phase("Progressing", `, "reason": "MaintenanceWindow", "message": "waits"`)), failed, "not done after 1s: MaintenanceWindow: waits"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScript(t, accepted, c.get)
			p := requestOf(t, s, variable{"timeout", "1s"})
			p.scale = 100 // the expressions use the real clock
			require.NoError(t, p.run(t.Context(), nil))
			assert.Equal(t, c.phase, p.phase)
			assert.Contains(t, p.message, c.says)
			s.mu.Lock()
			defer s.mu.Unlock()
			if c.phase == succeeded {
				assert.Empty(t, s.deletes)
				return
			}
			assert.Equal(t, []string{"/webhook/plant/site?id=" + promotionName}, s.deletes)
		})
	}
}

func TestPermanentFailureMessage(t *testing.T) {
	t.Parallel()
	login := answer{200, "text/html", "<html>sign in</html>"}
	for _, c := range []struct {
		name      string
		post, get func(int) answer
		posts     int
		gets      int
		says      string
	}{
		{"a wrong secret", always(says(401, `{"message": "the secret is not the one"}`)), nil, 1, 0, "either the receiver does not serve site in namespace plant, or key token of Secret stoker-webhook in Project stoker-demo differs from the Secret that its spec.webhook.secretRef names: the secret is not the one"},
		{"invalid request", always(says(400, `{"message": "ref is a number"}`)), nil, 1, 0, "HTTP (400) response met failure criteria: \\\"ref is a number"},
		{"no such object", always(says(404, `{"message": "there is no GatewaySync plant/site"}`)), nil, 1, 0, "there is no GatewaySync"},
		{"older promotion", always(says(409, `{"message": "promotion a is older than b"}`)), nil, 1, 0, "promotion a is older than b"},
		{"404 of another server", always(answer{404, "text/plain", "default backend - 404"}), nil, 1, 0, "check the var receiver"},
		{"failed sync", accepted, then(phase("Progressing", ""), phase("Failed", `, "reason": "RefNotFound", "message": "no branch or tag v1.0.0"`)), 1, 2, "HTTP (200) response met failure criteria: \\\"RefNotFound: no branch or tag v1.0.0"},
		{"another ref", accepted, always(phase("Superseded", `, "message": "the desired ref is main (requested by cli) and no longer v1.0.0"`)), 1, 1, "Superseded: the desired ref is main (requested by cli)"},
		{"secret changed during the wait", accepted, then(phase("Progressing", ""), says(401, `{"message": "the secret is not the one"}`)), 1, 2, "the secret is not the one"},
		{"object deleted during the wait", accepted, then(phase("Progressing", ""), says(404, `{"message": "there is no GatewaySync plant/site"}`)), 1, 2, "there is no GatewaySync"},
		{"login page", always(login), always(login), 1, 1, "no answer from the receiver; check the var receiver"},
		{"list instead of an object", accepted, always(says(200, `["Succeeded"]`)), 1, 1, "no answer from the receiver"},
		{"string instead of an object", accepted, always(answer{200, "text/plain", "Succeeded"}), 1, 1, "no answer from the receiver"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newScript(t, c.post, c.get)
			p := requestOf(t, s)
			require.NoError(t, p.run(t.Context(), nil))
			assert.Equal(t, failed, p.phase)
			assert.Contains(t, fmt.Sprintf("%q", p.message), c.says)
			posts, gets, _ := s.seen()
			assert.Len(t, posts, c.posts)
			assert.Len(t, gets, c.gets)
			assert.NotContains(t, p.state["stoker"], "commit", "a failed task must not have outputs")
		})
	}
}

func TestTransientErrorsAreRetried(t *testing.T) {
	t.Parallel()
	broken := answer{502, "text/html", "<html>bad gateway</html>"}
	done := phase("Succeeded", `, "message": "done"`)
	for _, c := range []struct {
		name      string
		post, get func(int) answer
		posts     int
		gets      int
	}{
		{"receiver busy", then(says(503, `{"message": "busy"}`), says(429, `{"message": "slowly"}`), says(202, `{}`)), always(done), 3, 1},
		{"receiver restarts", accepted, then(phase("Progressing", ""), answer{}, answer{}, broken, says(503, `{"message": "starting"}`), done), 1, 6},
		{"ingress without backend", then(broken, answer{503, "text/plain", "no endpoints"}, answer{}, says(202, `{}`)), always(done), 4, 1},
		{"a slow answer", then(says(408, ``), says(202, ``)), then(says(408, ``), done), 2, 2},
		{"unknown phase", accepted, then(phase("Held", `, "message": "paused"`), done), 1, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newScript(t, c.post, c.get)
			p := requestOf(t, s)
			require.NoError(t, p.run(t.Context(), nil))
			assert.Equal(t, succeeded, p.phase, p.message)
			posts, gets, _ := s.seen()
			assert.Len(t, posts, c.posts)
			assert.Len(t, gets, c.gets)
		})
	}
}

func TestTimeoutLimit(t *testing.T) {
	t.Parallel()
	s := newScript(t, accepted, always(phase("Succeeded", `, "message": "done"`)))
	p := requestOf(t, s, variable{"timeout", "48h"})
	require.NoError(t, p.run(t.Context(), nil))
	assert.Equal(t, failed, p.phase)
	assert.Contains(t, p.message, "the var timeout of task stoker-request is more than 24h")
	posts, _, _ := s.seen()
	assert.Empty(t, posts, "no request may be sent")
}

// Kargo converts values that look like numbers, booleans or objects. quote() keeps them strings. Without quote(), the task must
// fail without sending a request.
func TestRefsArriveUnchanged(t *testing.T) {
	t.Parallel()
	for _, tag := range []string{
		"1.10", "2", "1e3", "0x10", "true", "t", "null", "inf", "{}", "[1]", "v1.0.0+build.1", "release/1.2", "refs/tags/1.10", "größe", "a&b=c", "a#b", "100%", `a"b`,
		"0123456789012345678901234567890123456789",
	} {
		t.Run(fmt.Sprintf("%.20s", tag), func(t *testing.T) {
			s := newScript(t, accepted, always(phase("Succeeded", `, "message": "done"`)))
			p := requestOf(t, s)
			p.commits[0].Tag = tag
			require.NoError(t, p.run(t.Context(), nil))
			require.Equal(t, succeeded, p.phase, p.message)
			var body struct{ Ref any }
			posts, _, requests := s.seen()
			require.NoError(t, json.Unmarshal([]byte(posts[0]), &body))
			assert.Equal(t, tag, body.Ref)
			assert.Equal(t, p.commits[0].ID, requests[1].URL.Query().Get("commit"))
		})
	}
	for ref, tag := range map[string]string{
		"${{ commitFrom('https://git.example.com/site.git').Tag }}":        "1.10",
		"${{commitFrom('https://git.example.com/site.git').Tag}}":          "true",
		"${% commitFrom('https://git.example.com/site.git').Tag %}":        `{"a": 1}`,
		"${{ quote(commitFrom('https://git.example.com/site.git').Tag) }}": "", // a Warehouse of branches has no tags
	} {
		t.Run(ref, func(t *testing.T) {
			s := newScript(t, accepted, always(phase("Succeeded", `, "message": "done"`)))
			p := requestOf(t, s, variable{"ref", ref})
			p.commits[0].Tag = tag
			require.NoError(t, p.run(t.Context(), nil))
			assert.Equal(t, failed, p.phase)
			assert.Contains(t, p.message, "quote()")
			_, _, requests := s.seen()
			assert.Empty(t, requests, "%s with %s: no request may be sent", ref, tag)
		})
	}
	// Kargo does not know the commit of an artifact, and sends no empty parameter.
	for ref, want := range map[string]string{"sha256:" + strings.Repeat("6e", 32): succeeded, "v1.0.0": failed} {
		t.Run("no commit/"+ref[:6], func(t *testing.T) {
			s := newScript(t, accepted, always(phase("Succeeded", `, "message": "done"`)))
			p := promote(t, "stoker-request", variable{"receiver", s.URL}, variable{"namespace", "plant"}, variable{"gatewaysync", "site"}, variable{"ref", ref})
			require.NoError(t, p.run(t.Context(), nil))
			require.Equal(t, want, p.phase, p.message)
			posts, _, requests := s.seen()
			if want == failed {
				assert.Contains(t, p.message, "is not a commit of 40 digits")
				assert.Empty(t, requests)
				return
			}
			parsed, err := sender.Parse(http.Header{"Content-Type": {"application/json"}}, []byte(posts[0]))
			require.NoError(t, err)
			assert.Equal(t, []string{ref, "", promotionName}, []string{parsed.Ref, parsed.Commit, parsed.ID})
			assert.Equal(t, url.Values{"ref": {ref}, "id": {promotionName}, "wait": {"8s"}}, requests[1].URL.Query())
		})
	}
}

func TestMissingVariable(t *testing.T) {
	t.Parallel()
	for name, all := range map[string][]string{"stoker-request": {"ref", "namespace", "gatewaysync"}, "stoker-argocd": {"ref", "repoURL", "path", "application"}} {
		t.Run(name, func(t *testing.T) {
			for left := range all {
				t.Run(all[left], func(t *testing.T) {
					p := &promotion{steps: []step{{Task: &taskRef{Name: name, Kind: "ClusterPromotionTask"}}}}
					for i, v := range all {
						if i != left {
							p.steps[0].Vars = append(p.steps[0].Vars, variable{v, "x"})
						}
					}
					assert.EqualError(t, p.inflate(tasks(t)), fmt.Sprintf("missing value for variable %q", all[left]))
				})
			}
		})
	}
}

// Fake steps record the configuration that Kargo would pass to them.
func TestGitPromotion(t *testing.T) {
	t.Parallel()
	pushed := "1234567890123456789012345678901234567890" // only digits: unquoted, it would become a number
	got := map[string]map[string]any{}
	p := promote(t, "stoker-argocd",
		variable{"ref", "${{ quote(commitFrom('https://git.example.com/site.git').Tag) }}"}, variable{"repoURL", "https://git.example.com/deploy.git"},
		variable{"path", "plant/gatewaysync.yaml"}, variable{"application", "2"}, variable{"branch", "1.0"})
	p.commits[0].Tag = "1.10"
	p.others = map[string]func(map[string]any) (map[string]any, error){}
	for _, uses := range []string{"git-clone", "yaml-update", "git-commit", "git-push", "argocd-update"} {
		p.others[uses] = func(config map[string]any) (map[string]any, error) {
			got[uses] = config
			return map[string]any{"commit": pushed}, nil
		}
	}
	require.NoError(t, p.run(t.Context(), nil))
	require.Equal(t, succeeded, p.phase, p.message)
	assert.Equal(t, map[string]map[string]any{
		"git-clone":   {"repoURL": "https://git.example.com/deploy.git", "checkout": []any{map[string]any{"branch": "1.0", "path": "./deploy"}}},
		"yaml-update": {"path": "./deploy/plant/gatewaysync.yaml", "updates": []any{map[string]any{"key": "spec.git.ref", "value": "1.10"}}},
		"git-commit":  {"path": "./deploy", "message": "stoker: stoker-demo/test to 1.10"},
		"git-push":    {"path": "./deploy", "targetBranch": "1.0"},
		"argocd-update": {"apps": []any{map[string]any{"name": "2", "namespace": "argocd", "sources": []any{
			map[string]any{"repoURL": "https://git.example.com/deploy.git", "desiredRevision": pushed},
		}}}},
	}, got)
	assert.Equal(t, map[string]any{"ref": "1.10", "commit": pushed}, p.state["stoker"])
}

func TestGitPromotionRejectsNonStringRef(t *testing.T) {
	t.Parallel()
	for _, tag := range []string{"1.10", ""} {
		t.Run(fmt.Sprintf("%q", tag), func(t *testing.T) {
			p := promote(t, "stoker-argocd", variable{"ref", "${{ commitFrom('https://git.example.com/site.git').Tag }}"},
				variable{"repoURL", "x"}, variable{"path", "x"}, variable{"application", "x"})
			p.commits[0].Tag = tag
			require.NoError(t, p.run(t.Context(), nil)) // others is nil, so each of these steps would return an error of its own
			assert.Equal(t, failed, p.phase)
			assert.Contains(t, p.message, "the var ref of task stoker-argocd is not a string, or empty")
			for _, r := range p.done[1:] {
				assert.Equal(t, skipped, r.status, r.alias)
			}
		})
	}
}
