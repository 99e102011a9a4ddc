package forge

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/secret"
)

// kinds are the providers with a fake. Gitea is tested against a real one in test/gitea.
var kinds = map[string]struct {
	routes     func(*fake) http.Handler
	accepts    func(*http.Request) bool
	repository string // below the address of the fake
	api        string
}{
	GitHub:      {githubRoutes, bearer, "/plants/site.git", ""},
	GitLab:      {gitlabRoutes, bearer, "/plants/site.git", ""},
	Bitbucket:   {bitbucketRoutes, bearer, "/plants/site.git", "/2.0"},
	AzureDevOps: {azureRoutes, basic, "/plants/line/_git/site", "/plants"},
}

// each runs a test with every fake.
func each(t *testing.T, test func(t *testing.T, f *fake, open func(token string) Forge)) {
	for name, k := range kinds {
		t.Run(name, func(t *testing.T) {
			f := newFake(t, k.routes, k.accepts)
			test(t, f, func(token string) Forge {
				base := ""
				if k.api != "" {
					base = f.URL + k.api
				}
				c, err := New(name, Config{
					Repository: f.URL + k.repository, APIBaseURL: base, Token: func(context.Context) (secret.String, error) { return secret.New(token), nil },
				})
				require.NoError(t, err)
				return c
			})
		})
	}
}

func TestPullRequests(t *testing.T) {
	each(t, func(t *testing.T, f *fake, open func(string) Forge) {
		c := open(goodToken)
		d := Draft{Branch: "gateway-changes/a", Base: "main", Title: "title", Body: "body", Labels: []string{"gateway-change"}}
		made, err := c.Create(t.Context(), d)
		require.NoError(t, err)
		assert.Equal(t, int64(1), made.Number)
		_, err = c.Create(t.Context(), d)
		require.ErrorIs(t, err, ErrExists)
		_, err = c.Create(t.Context(), Draft{Branch: "gateway-changes/b", Base: "main", Title: "other"})
		require.NoError(t, err)

		list, err := c.ByHead(t.Context(), "gateway-changes/a", "main")
		require.NoError(t, err)
		require.Len(t, list, 1)
		got := list[0]
		assert.Equal(t, Open, got.State)
		assert.Equal(t, "gateway-changes/a main title body false", fmt.Sprint(got.Branch, " ", got.Base, " ", got.Title, " ", got.Body, " ", got.Fork))
		assert.NotEmpty(t, got.URL)
		if got.Commit != "" { // Bitbucket tells a short one
			assert.Equal(t, strings.Repeat("ab", 20), got.Commit)
		}

		require.NoError(t, c.Update(t.Context(), 1, "new title", "new body"))
		list, err = c.Open(t.Context(), "main")
		require.NoError(t, err)
		require.Len(t, list, 2)
		assert.Equal(t, "new title", list[1].Title)

		f.mu.Lock()
		f.list[1].State = Merged
		f.mu.Unlock()
		require.NoError(t, c.Close(t.Context(), 1, "undone on the gateway"))
		require.NoError(t, c.Close(t.Context(), 1, ""))
		require.NoError(t, c.Close(t.Context(), 2, ""))
		for branch, want := range map[string]State{"gateway-changes/a": Closed, "gateway-changes/b": Merged} {
			list, err := c.ByHead(t.Context(), branch, "main")
			require.NoError(t, err)
			require.Len(t, list, 1)
			assert.Equal(t, want, list[0].State, branch)
		}
		list, err = c.Open(t.Context(), "main")
		require.NoError(t, err)
		assert.Empty(t, list)
	})
}

func TestRefusals(t *testing.T) {
	for name, tc := range map[string]struct {
		code   int
		header [2]string
		body   string
		want   v1alpha1.Reason
	}{
		"forbidden":       {http.StatusForbidden, [2]string{}, `{"message":"S3CR3T"}`, v1alpha1.ReasonAuthFailed},
		"not found":       {http.StatusNotFound, [2]string{}, `{"message":"Not Found"}`, v1alpha1.ReasonUnsupportedRepository},
		"throttled":       {http.StatusTooManyRequests, [2]string{"Retry-After", "90"}, `{}`, v1alpha1.ReasonGitThrottled},
		"limit reached":   {http.StatusForbidden, [2]string{"X-RateLimit-Remaining", "0"}, `{}`, v1alpha1.ReasonGitThrottled},
		"broken":          {http.StatusBadGateway, [2]string{}, `<html>`, v1alpha1.ReasonGitUnreachable},
		"a page":          {http.StatusOK, [2]string{"Content-Type", "text/html"}, `<html>`, v1alpha1.ReasonUnsupportedRepository},
		"no JSON":         {http.StatusOK, [2]string{"Content-Type", "application/json"}, `{"value`, v1alpha1.ReasonGitUnreachable},
		"an endless list": {http.StatusOK, [2]string{"Content-Type", "application/json"}, "[" + strings.Repeat(`{"title":"x"},`, maxAnswer/10), v1alpha1.ReasonLimitExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			each(t, func(t *testing.T, f *fake, open func(string) Forge) {
				f.answer = func(w http.ResponseWriter, _ *http.Request) bool {
					if tc.header[0] != "" {
						w.Header().Set(tc.header[0], tc.header[1])
					}
					w.WriteHeader(tc.code)
					_, _ = w.Write([]byte(tc.body))
					return true
				}
				_, err := open(goodToken).Open(t.Context(), "main")
				require.Error(t, err)
				assert.Equal(t, tc.want, failure.Reason(err, ""), "%v", err)
				assert.NotContains(t, err.Error(), goodToken)
				assert.NotContains(t, err.Error(), "S3CR3T")
				if tc.header[0] == "Retry-After" {
					after, ok := RetryAfter(err)
					assert.True(t, ok)
					assert.Equal(t, 90*time.Second, after)
				}
				assert.Len(t, f.requests, 1, "it is asked once: the agent decides when again")
			})
		})
	}
	t.Run("a wrong token", func(t *testing.T) {
		each(t, func(t *testing.T, _ *fake, open func(string) Forge) {
			_, err := open("wrong").Open(t.Context(), "main")
			assert.Equal(t, v1alpha1.ReasonAuthFailed, failure.Reason(err, ""), "%v", err)
		})
	})
	t.Run("a token that is none", func(t *testing.T) {
		each(t, func(t *testing.T, f *fake, open func(string) Forge) {
			_, err := open("two\nlines").Open(t.Context(), "main")
			assert.Equal(t, v1alpha1.ReasonAuthFailed, failure.Reason(err, ""), "%v", err)
			assert.Empty(t, f.requests)
		})
	})
}

func TestTokenStaysAtHome(t *testing.T) {
	var seen []string
	other := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { seen = append(seen, r.URL.Path) }))
	defer other.Close()
	each(t, func(t *testing.T, f *fake, open func(string) Forge) {
		f.answer = func(w http.ResponseWriter, r *http.Request) bool {
			http.Redirect(w, r, other.URL+r.URL.Path, http.StatusTemporaryRedirect)
			return true
		}
		_, err := open(goodToken).Open(t.Context(), "main")
		assert.Equal(t, v1alpha1.ReasonRedirectRefused, failure.Reason(err, ""), "%v", err)
	})
	assert.Empty(t, seen)
}

func TestUnchangedListsAreNotSentAgain(t *testing.T) {
	each(t, func(t *testing.T, f *fake, open func(string) Forge) {
		c := open(goodToken)
		_, err := c.Create(t.Context(), Draft{Branch: "a", Base: "main", Title: "t"})
		require.NoError(t, err)
		sent := 0
		f.answer = func(w http.ResponseWriter, r *http.Request) bool {
			if r.Header.Get("If-None-Match") == "" {
				sent++
				return false
			}
			w.WriteHeader(http.StatusNotModified)
			return true
		}
		for range 3 {
			list, err := c.Open(t.Context(), "main")
			require.NoError(t, err)
			require.Len(t, list, 1)
		}
		assert.Equal(t, 1, sent)
	})
}

func TestAddresses(t *testing.T) {
	for repository, want := range map[string]string{
		"https://github.com/o/r.git": GitHub, "git@github.com:o/r.git": GitHub, "https://x.ghe.com/o/r": GitHub, "https://gitlab.com/a/b/c.git": GitLab,
		"https://bitbucket.org/o/r": Bitbucket, "https://dev.azure.com/o/p/_git/r": AzureDevOps, "git@ssh.dev.azure.com:v3/o/p/r": AzureDevOps,
		"https://o.visualstudio.com/p/_git/r": AzureDevOps, "https://codeberg.org/o/r": Gitea, "https://git.example.com/o/r": "", "/srv/git/r": "", "": "",
	} {
		t.Run(repository, func(t *testing.T) {
			assert.Equal(t, want, ProviderOf(repository))
			if want != "" {
				_, err := New(want, Config{Repository: repository})
				assert.NoError(t, err)
			}
		})
	}
	for name, tc := range map[string]struct{ provider, repository, api string }{
		"no owner":             {GitHub, "https://github.com/r", ""},
		"a token in the clear": {GitHub, "https://github.com/o/r", "http://api.example.com"},
		"credentials in it":    {GitLab, "https://gitlab.com/o/r", "https://user:S3CR3T@gitlab.com/api/v4"},
		"a query":              {Gitea, "https://git.example.com/o/r", "https://git.example.com/?x=S3CR3T"},
		"no project":           {AzureDevOps, "https://dev.azure.com/o/r", ""},
		"a folder":             {GitHub, "/srv/git/r", ""},
		"an unknown provider":  {"sourceforge", "https://github.com/o/r", ""},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := New(tc.provider, Config{Repository: tc.repository, APIBaseURL: tc.api})
			require.Error(t, err)
			assert.NotContains(t, err.Error(), "S3CR3T")
		})
	}
	for _, bad := range []string{"javascript:alert(1)", "https://x/<b>", "https://user:p@x/", "https://x/" + strings.Repeat("a", 600), "x", "https://x/a)b"} {
		assert.Empty(t, shownURL(bad), bad)
	}
}
