// Package forgetest has small fakes of forges, and a suite that each forge must pass. The answers of a fake have all fields that
// the published description of the API requires; test/forge compares them.
package forgetest

import (
	"context"
	"embed"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/forge"
	"stoker.io/stoker/internal/giturl"
	"stoker.io/stoker/internal/secret"
)

// Token is the token that a fake accepts.
const Token = "t0ken-0f-tests"

// Commit is the tip of every branch.
var Commit = strings.Repeat("ab", 20)

// Providers lists the providers that have a fake.
var Providers = slices.Sorted(maps.Keys(fakes))

var fakes = map[string]struct {
	routes     func(*Fake) http.Handler
	accepts    func(*http.Request) bool
	repository string // below the address of the fake
	api        string
}{
	giturl.GitHub:      {githubRoutes, bearer, "/plants/site.git", ""},
	giturl.GitLab:      {gitlabRoutes, bearer, "/plants/site.git", ""},
	giturl.Bitbucket:   {bitbucketRoutes, bearer, "/plants/site.git", "/2.0"},
	giturl.AzureDevOps: {azureRoutes, basic, "/plants/line/_git/site", "/plants"},
}

// templates has a pull request of each provider, with the fields that a fake does not change.
//
//go:embed *.json
var templates embed.FS

// Fake is a small forge with one repository. It keeps pull requests in memory, and answers in the JSON of one provider.
type Fake struct {
	*httptest.Server
	// Answer may handle a request. If it returns true, the fake does not handle the request.
	Answer func(w http.ResponseWriter, r *http.Request) bool

	provider string
	template object
	mu       sync.Mutex
	list     []forge.PullRequest
	requests []string
	statuses map[string][]forge.CommitStatus // by commit and context
}

// Start starts a fake of a provider. wrap wraps the handler of all requests; it may be nil.
func Start(t testing.TB, provider string, wrap func(http.Handler) http.Handler) *Fake {
	t.Helper()
	fake, ok := fakes[provider]
	require.True(t, ok, "no fake of %q", provider)
	f := &Fake{provider: provider}
	raw, err := templates.ReadFile(provider + ".json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(raw, &f.template))
	routes := fake.routes(f)
	var handler http.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.requests = append(f.requests, r.Method+" "+r.URL.Path)
		switch {
		case f.Answer != nil && f.Answer(w, r):
		case fake.accepts(r) && f.lacks(r.URL.Path):
			f.replyError(w, http.StatusNotFound, "Not Found")
		case fake.accepts(r):
			routes.ServeHTTP(w, r)
		default:
			f.replyError(w, http.StatusUnauthorized, "Bad credentials")
		}
	})
	if wrap != nil {
		handler = wrap(handler)
	}
	f.Server = httptest.NewServer(handler)
	t.Cleanup(f.Close)
	return f
}

// Forge returns a client of the fake's repository.
func (f *Fake) Forge(t testing.TB, token string) forge.Forge {
	t.Helper()
	fake, base := fakes[f.provider], ""
	if fake.api != "" {
		base = f.URL + fake.api
	}
	c, err := forge.New(f.provider, forge.Config{
		Repository: f.URL + fake.repository, APIBaseURL: base, Token: func(context.Context) (secret.String, error) { return secret.New(token), nil },
	})
	require.NoError(t, err)
	return c
}

// Merge merges a pull request.
func (f *Fake) Merge(number int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.list[number-1].State = forge.Merged
}

// Status returns the status of a commit that was set last, and how many have been set.
func (f *Fake) Status(commit, context string) (forge.CommitStatus, int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	list := f.statuses[commit+" "+context]
	if len(list) == 0 {
		return forge.CommitStatus{}, 0
	}
	return list[len(list)-1], len(list)
}

// setStatus stores a status. state is one of states, the provider's names for pending, success and failure. On GitLab, setStatus returns false if
// the last status has the same state.
func (f *Fake) setStatus(r *http.Request, state, context, description, url string, states ...string) bool {
	s := forge.CommitStatus{State: []forge.CommitState{forge.Pending, forge.Success, forge.Failure}[slices.Index(states, state)], Context: context, Description: description, URL: url}
	key := r.PathValue("commit") + " " + context
	list := f.statuses[key]
	if f.statuses == nil {
		f.statuses = map[string][]forge.CommitStatus{}
	}
	if len(list) > 0 && list[len(list)-1].State == s.State && f.provider == giturl.GitLab {
		return false
	}
	f.statuses[key] = append(list, s)
	return true
}

// Requests returns the methods and paths of all requests.
func (f *Fake) Requests() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.requests)
}

func bearer(r *http.Request) bool { return r.Header.Get("Authorization") == "Bearer "+Token }

func basic(r *http.Request) bool {
	return r.Header.Get("Authorization") == "Basic "+base64.StdEncoding.EncodeToString([]byte(":"+Token))
}

// replyError answers with an error as the provider does.
func (f *Fake) replyError(w http.ResponseWriter, code int, message string) {
	switch f.provider {
	case giturl.Bitbucket:
		reply(w, code, object{"type": "error", "error": object{"message": message}})
	case giturl.AzureDevOps:
		if code == http.StatusUnauthorized {
			w.WriteHeader(code) // without content
			return
		}
		reply(w, code, object{"message": message, "typeKey": "GitException", "typeName": "GitException", "errorCode": 0, "eventId": 3000})
	default:
		reply(w, code, object{"message": message, "documentation_url": "https://forge.example.com/docs"})
	}
}

// complete returns the template with the fields of o.
func (f *Fake) complete(o object) object {
	out := maps.Clone(f.template)
	maps.Copy(out, o)
	return out
}

func reply(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	w.WriteHeader(code)
	_, _ = w.Write(b)
}

func read(r *http.Request, v any) {
	if err := json.NewDecoder(r.Body).Decode(v); err != nil {
		panic(err)
	}
}

// create adds a pull request. It returns false if one from the branch to the base is open.
func (f *Fake) create(branch, base, title, body string) (*forge.PullRequest, bool) {
	if slices.ContainsFunc(f.list, func(p forge.PullRequest) bool { return p.Branch == branch && p.Base == base && p.State == forge.Open }) {
		return nil, false
	}
	n := int64(len(f.list) + 1)
	f.list = append(f.list, forge.PullRequest{
		Number: n, State: forge.Open, Branch: branch, Base: base, Title: title, Body: body, Commit: Commit, URL: fmt.Sprintf("https://forge.example.com/pr/%d", n),
	})
	return &f.list[n-1], true
}

// filter returns the pull requests that match, newest first. An empty branch or base matches all.
func (f *Fake) filter(branch, base string, onlyOpen bool) []*forge.PullRequest {
	var out []*forge.PullRequest
	for i := range slices.Backward(f.list) {
		p := &f.list[i]
		if (branch == "" || p.Branch == branch) && (base == "" || p.Base == base) && (!onlyOpen || p.State == forge.Open) {
			out = append(out, p)
		}
	}
	return out
}

var numbered = regexp.MustCompile(`/(?:pulls|issues|merge_requests|pullrequests)/([0-9]+)`)

// lacks reports whether a path has the number of a pull request that does not exist.
func (f *Fake) lacks(path string) bool {
	n := 0
	if m := numbered.FindStringSubmatch(path); m != nil {
		_, _ = fmt.Sscan(m[1], &n)
	}
	return n > len(f.list)
}

func (f *Fake) pullRequest(r *http.Request) *forge.PullRequest {
	var n int
	_, _ = fmt.Sscan(r.PathValue("n"), &n)
	return &f.list[n-1]
}

func convertAll[T any](list []*forge.PullRequest, convert func(*forge.PullRequest) T) []T {
	out := make([]T, 0, len(list))
	for _, p := range list {
		out = append(out, convert(p))
	}
	return out
}

type object = map[string]any

// created is the only time in a fake.
const created = "2026-01-02T03:04:05Z"
