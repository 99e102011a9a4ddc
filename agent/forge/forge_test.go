package forge_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/forge"
	"stoker.io/stoker/agent/forge/forgetest"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/backoff"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/giturl"
	"stoker.io/stoker/internal/secret"
)

// each runs a test with every fake. Gitea is tested against a real one in test/gitea.
func each(t *testing.T, test func(t *testing.T, f *forgetest.Fake)) {
	for _, provider := range forgetest.Providers {
		t.Run(provider, func(t *testing.T) { test(t, forgetest.Start(t, provider, nil)) })
	}
}

func TestPullRequests(t *testing.T) {
	each(t, func(t *testing.T, f *forgetest.Fake) { forgetest.Suite(t, f.Env(t)) })
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
		"a sign-in page":  {http.StatusNonAuthoritativeInfo, [2]string{"Content-Type", "text/html"}, `<html>`, v1alpha1.ReasonAuthFailed}, // from Azure DevOps
		"a page":          {http.StatusOK, [2]string{"Content-Type", "text/html"}, `<html>`, v1alpha1.ReasonUnsupportedRepository},
		"not JSON":        {http.StatusOK, [2]string{"Content-Type", "application/json"}, `{"value`, v1alpha1.ReasonGitUnreachable},
		"an endless list": {http.StatusOK, [2]string{"Content-Type", "application/json"}, "[" + strings.Repeat(`{"title":"x"},`, 8<<20/10), v1alpha1.ReasonLimitExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			each(t, func(t *testing.T, f *forgetest.Fake) {
				f.Answer = func(w http.ResponseWriter, _ *http.Request) bool {
					if tc.header[0] != "" {
						w.Header().Set(tc.header[0], tc.header[1])
					}
					w.WriteHeader(tc.code)
					_, _ = w.Write([]byte(tc.body))
					return true
				}
				_, err := f.Forge(t, forgetest.Token).Open(t.Context(), "main")
				require.Error(t, err)
				assert.Equal(t, tc.want, failure.Reason(err, ""), "%v", err)
				assert.NotContains(t, err.Error(), forgetest.Token)
				assert.NotContains(t, err.Error(), "S3CR3T")
				if tc.header[0] == "Retry-After" {
					after, ok := backoff.Asked(err)
					assert.True(t, ok)
					assert.Equal(t, 90*time.Second, after)
				}
				if tc.want != v1alpha1.ReasonLimitExceeded { // after which some clients ask for one pull request at a time
					assert.Len(t, f.Requests(), 1, "one request, because the agent decides about retries")
				}
			})
		})
	}
	t.Run("a status", func(t *testing.T) {
		for code, want := range map[int]struct {
			reason v1alpha1.Reason
			text   string
		}{
			http.StatusForbidden:           {v1alpha1.ReasonAuthFailed, "forbids setting the status of a commit (HTTP 403): give the token the right "},
			http.StatusUnauthorized:        {v1alpha1.ReasonAuthFailed, "rejects the token"},
			http.StatusUnprocessableEntity: {v1alpha1.ReasonPushRejected, `rejects setting the status of a commit (HTTP 422): "No commit found`},
			http.StatusConflict:            {v1alpha1.ReasonPushRejected, "rejects setting the status of a commit (HTTP 409)"},
		} {
			t.Run(fmt.Sprint(code), func(t *testing.T) {
				each(t, func(t *testing.T, f *forgetest.Fake) {
					f.Answer = func(w http.ResponseWriter, _ *http.Request) bool {
						w.Header().Set("Content-Type", "application/json")
						w.WriteHeader(code)
						_, _ = w.Write([]byte(`{"message": "No commit found: it already exists"}`))
						return true
					}
					err := f.Forge(t, forgetest.Token).SetStatus(t.Context(), forgetest.Commit, forge.CommitStatus{State: forge.Success, Context: "a/b"})
					require.ErrorContains(t, err, want.text)
					assert.Equal(t, want.reason, failure.Reason(err, ""))
					assert.NotContains(t, err.Error(), forgetest.Token)
				})
			})
		}
	})
	t.Run("a status that cannot take the state", func(t *testing.T) {
		f := forgetest.Start(t, giturl.GitLab, nil)
		f.Answer = func(w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusBadRequest)
			_, _ = w.Write([]byte(`{"message": "Cannot transition status via :success from :canceled"}`))
			return true
		}
		for state, want := range map[forge.CommitState]v1alpha1.Reason{forge.Pending: "", forge.Success: v1alpha1.ReasonPushRejected, forge.Failure: v1alpha1.ReasonPushRejected} {
			t.Run(string(state), func(t *testing.T) {
				err := f.Forge(t, forgetest.Token).SetStatus(t.Context(), forgetest.Commit, forge.CommitStatus{State: state, Context: "a/b"})
				assert.Equal(t, want, failure.Reason(err, ""), "%v", err)
				assert.NotErrorIs(t, err, forge.ErrExists)
			})
		}
	})
	t.Run("an answer that echoes the token", func(t *testing.T) {
		const token = `S3cr3t-"\<-end`
		message := func(v any) string {
			text, err := json.Marshal(map[string]any{"message": v, "error": map[string]any{"details": []any{v}}})
			require.NoError(t, err)
			return string(text)
		}
		for name, tc := range map[string]struct {
			contentType, body string
		}{
			"message":              {"application/json", message("no such user " + token)},
			"cut within the token": {"application/json", message(strings.Repeat("x", 190) + token)},
			"list":                 {"application/json", message([]string{token})},
			"content type":         {"text/" + token, "x"},
		} {
			t.Run(name, func(t *testing.T) {
				each(t, func(t *testing.T, f *forgetest.Fake) {
					f.Answer = func(w http.ResponseWriter, _ *http.Request) bool {
						w.Header().Set("Content-Type", tc.contentType)
						if strings.HasSuffix(tc.contentType, "json") {
							w.WriteHeader(http.StatusUnprocessableEntity)
						}
						_, _ = w.Write([]byte(tc.body))
						return true
					}
					_, err := f.Forge(t, token).Open(t.Context(), "main")
					require.Error(t, err)
					assert.NotContains(t, err.Error(), "S3cr3t")
					assert.NotContains(t, err.Error(), "-end")
					assert.ErrorContains(t, err, "REDACTED")
				})
			})
		}
	})
	t.Run("an answer with the token as a time", func(t *testing.T) { // of Gitea, whose library quotes it
		_, err := gitea(t, func(*http.Request) any { return []any{map[string]any{"number": 7, "created_at": "S3cr3t-token"}} }).Open(t.Context(), "main")
		require.ErrorContains(t, err, "the expected JSON")
		assert.NotContains(t, err.Error(), "S3cr3t")
	})
	t.Run("an answer that echoes the header", func(t *testing.T) { // of Azure DevOps, which has the token in base64
		f := forgetest.Start(t, giturl.AzureDevOps, nil)
		basic := base64.StdEncoding.EncodeToString([]byte(":" + forgetest.Token))
		f.Answer = func(w http.ResponseWriter, r *http.Request) bool {
			w.WriteHeader(http.StatusUnprocessableEntity)
			_, _ = w.Write([]byte(`{"message":"` + r.Header.Get("Authorization") + `"}`))
			return true
		}
		_, err := f.Forge(t, forgetest.Token).Open(t.Context(), "main")
		require.ErrorContains(t, err, "Basic REDACTED")
		assert.NotContains(t, err.Error(), basic)
	})
	t.Run("a wrong token", func(t *testing.T) {
		each(t, func(t *testing.T, f *forgetest.Fake) {
			_, err := f.Forge(t, "wrong").Open(t.Context(), "main")
			assert.Equal(t, v1alpha1.ReasonAuthFailed, failure.Reason(err, ""), "%v", err)
		})
	})
	t.Run("a malformed token", func(t *testing.T) {
		each(t, func(t *testing.T, f *forgetest.Fake) {
			_, err := f.Forge(t, "two\nlines").Open(t.Context(), "main")
			assert.Equal(t, v1alpha1.ReasonAuthFailed, failure.Reason(err, ""), "%v", err)
			assert.Empty(t, f.Requests())
		})
	})
}

// A retry of Close does not repeat the comment.
func TestCloseAgain(t *testing.T) {
	each(t, func(t *testing.T, f *forgetest.Fake) {
		c := f.Forge(t, forgetest.Token)
		pr, err := c.Create(t.Context(), forge.Draft{Branch: "a", Base: "main", Title: "t"})
		require.NoError(t, err)
		comments, failures := 0, 1
		f.Answer = func(w http.ResponseWriter, r *http.Request) bool {
			comment := strings.HasSuffix(r.URL.Path, "/comments") || strings.HasSuffix(r.URL.Path, "/notes") || strings.HasSuffix(r.URL.Path, "/threads")
			if comment {
				comments++
				return false
			}
			if r.Method != http.MethodGet && failures > 0 {
				failures--
				w.WriteHeader(http.StatusBadGateway)
				return true
			}
			return false
		}
		require.Error(t, c.Close(t.Context(), pr.Number, "undone"))
		require.NoError(t, c.Close(t.Context(), pr.Number, "undone"))
		require.NoError(t, c.Close(t.Context(), pr.Number, "undone"))
		assert.Equal(t, 1, comments)
	})
}

// gitea returns a Gitea that answers as given.
func gitea(t *testing.T, answer func(*http.Request) any) forge.Forge {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(answer(r)) // the agent does not read long answers to the end
	}))
	t.Cleanup(server.Close)
	g, err := forge.New(giturl.Gitea, forge.Config{Repository: server.URL + "/plants/site", Token: func(context.Context) (secret.String, error) { return secret.New("S3cr3t-token"), nil }})
	require.NoError(t, err)
	return g
}

// Statuses, pages and messages show the address of a pull request.
func TestShownURL(t *testing.T) {
	for url, shown := range map[string]bool{"https://x/pulls/7": true, "javascript:alert(1)": false, "https://x/<b>": false, "https://user:p@x/": false, "https://x/" + strings.Repeat("a", 600): false,
		"x": false, "https://x/a)b": false} {
		t.Run(fmt.Sprintf("%.20s", url), func(t *testing.T) {
			side := map[string]any{"ref": "a", "repo_id": 1, "sha": forgetest.Commit}
			pr, err := gitea(t, func(*http.Request) any {
				return map[string]any{"number": 7, "state": "open", "html_url": url, "head": side, "base": side}
			}).Get(t.Context(), 7)
			require.NoError(t, err)
			assert.Equal(t, map[bool]string{true: url}[shown], pr.URL)
		})
	}
}

// git.repo may have the former name of a repository.
func TestRenamedGitHubRepository(t *testing.T) {
	for head, fork := range map[string]bool{`{"full_name":"plants/new"}`: false, `{"full_name":"user/site"}`: true, `null`: true} {
		t.Run(head, func(t *testing.T) {
			f := forgetest.Start(t, giturl.GitHub, nil)
			f.Answer = func(w http.ResponseWriter, _ *http.Request) bool {
				w.Header().Set("Content-Type", "application/json")
				_, _ = fmt.Fprintf(w, `[{"number":1,"state":"open","head":{"ref":"b","repo":%s},"base":{"ref":"main","repo":{"full_name":"plants/new"}}}]`, head)
				return true
			}
			list, err := f.Forge(t, forgetest.Token).ByHead(t.Context(), "b", "main")
			require.NoError(t, err)
			require.Len(t, list, 1)
			assert.Equal(t, fork, list[0].Fork)
		})
	}
}

// A Gitea may send fewer pull requests for each page than asked for, and lists those that were updated last. Their texts may be long.
func TestGiteaPages(t *testing.T) {
	const open, closed, long = 150, 50, 30
	most, last := 0, 0 // of a page; the newest one with a long text
	g := gitea(t, func(r *http.Request) any {
		q := r.URL.Query()
		var list []map[string]any
		for n := open + closed; n > 0; n-- {
			state := "closed"
			if n <= open { // the oldest ones
				state = "open"
			}
			if s := q.Get("state"); s == state || s == "all" {
				side := map[string]any{"ref": fmt.Sprint("b", n), "repo_id": 1, "sha": forgetest.Commit}
				body := ""
				if n > last-long && n <= last { // a page of them exceeds what the agent accepts
					body = strings.Repeat("x", 1<<20)
				}
				list = append(list, map[string]any{"number": n, "state": state, "body": body, "head": side, "base": map[string]any{"ref": "main", "repo_id": 1}})
			}
		}
		var page, limit int
		_, _ = fmt.Sscan(q.Get("page"), &page)
		_, _ = fmt.Sscan(q.Get("limit"), &limit)
		limit = min(limit, most)
		list = list[min((page-1)*limit, len(list)):]
		return list[:min(limit, len(list))]
	})
	var newest []int64
	for n := open; n > open-forge.MaxListed; n-- {
		newest = append(newest, int64(n))
	}
	for name, c := range map[string]struct{ most, last int }{
		"long texts from the first page":                {20, open},
		"long texts from the first page, smaller pages": {10, open},
		"long texts from a later page, smaller pages":   {10, open - 10},
	} {
		t.Run(name, func(t *testing.T) {
			most, last = c.most, c.last
			list, err := g.ByHead(t.Context(), "b1", "main")
			require.NoError(t, err)
			require.Len(t, list, 1, "the open pull request that was updated first")
			assert.Equal(t, int64(1), list[0].Number)
			list, err = g.Open(t.Context(), "main")
			require.NoError(t, err)
			var numbers []int64
			for _, pr := range list { // setup
				numbers = append(numbers, pr.Number)
			}
			assert.Equal(t, newest, numbers)
		})
	}
}

func TestGiteaLabels(t *testing.T) {
	var labels []any
	g := gitea(t, func(r *http.Request) any {
		var page, limit int
		_, _ = fmt.Sscan(r.URL.Query().Get("page"), &page)
		_, _ = fmt.Sscan(r.URL.Query().Get("limit"), &limit)
		if r.Method == http.MethodPost {
			var in map[string]any
			_ = json.NewDecoder(r.Body).Decode(&in)
			labels, _ = in["labels"].([]any)
			return map[string]any{"number": 1, "state": "open"}
		}
		list := []map[string]any{}
		for id := (page - 1) * limit; id < min(page*limit, 51); id++ {
			list = append(list, map[string]any{"id": id, "name": fmt.Sprint("l", id)})
		}
		return list
	})
	pr, err := g.Create(t.Context(), forge.Draft{Branch: "b", Base: "main", Title: "t", Labels: []string{"l50", "unknown"}})
	require.NoError(t, err)
	assert.Equal(t, []any{50.0}, labels)
	assert.Equal(t, []string{`the repository has no label "unknown"`}, pr.Notes)
}

func TestRedirectToAnotherHost(t *testing.T) {
	var seen []string
	other := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { seen = append(seen, r.URL.Path) }))
	defer other.Close()
	each(t, func(t *testing.T, f *forgetest.Fake) {
		f.Answer = func(w http.ResponseWriter, r *http.Request) bool {
			http.Redirect(w, r, other.URL+r.URL.Path, http.StatusTemporaryRedirect)
			return true
		}
		_, err := f.Forge(t, forgetest.Token).Open(t.Context(), "main")
		assert.Equal(t, v1alpha1.ReasonRedirectRefused, failure.Reason(err, ""), "%v", err)
	})
	assert.Empty(t, seen)
}

func TestRedirectOnSameHost(t *testing.T) {
	each(t, func(t *testing.T, f *forgetest.Fake) {
		f.URL = strings.Replace(f.URL, "127.0.0.1", "localhost", 1)
		other := strings.Replace(f.URL, "localhost", "LOCALHOST", 1)
		redirected := false
		f.Answer = func(w http.ResponseWriter, r *http.Request) bool {
			if redirected {
				return false
			}
			redirected = true
			http.Redirect(w, r, other+r.URL.RequestURI(), http.StatusTemporaryRedirect)
			return true
		}
		_, err := f.Forge(t, forgetest.Token).Open(t.Context(), "main")
		require.NoError(t, err)
		assert.True(t, redirected)
	})
}

func TestAddresses(t *testing.T) {
	for repository, provider := range map[string]string{
		"https://github.com/o/r.git": giturl.GitHub, "git@github.com:o/r.git": giturl.GitHub, "https://x.ghe.com/o/r": giturl.GitHub, "https://gitlab.com/a/b/c.git": giturl.GitLab,
		"https://bitbucket.org/o/r": giturl.Bitbucket, "https://dev.azure.com/o/p/_git/r": giturl.AzureDevOps, "git@ssh.dev.azure.com:v3/o/p/r": giturl.AzureDevOps,
		"https://o.visualstudio.com/p/_git/r": giturl.AzureDevOps, "https://codeberg.org/o/r": giturl.Gitea,
	} {
		t.Run(repository, func(t *testing.T) {
			_, err := forge.New(provider, forge.Config{Repository: repository})
			assert.NoError(t, err)
		})
	}
	for name, tc := range map[string]struct{ provider, repository, api string }{
		"no owner":               {giturl.GitHub, "https://github.com/r", ""},
		"a token in the clear":   {giturl.GitHub, "https://github.com/o/r", "http://api.example.com"},
		"credentials in the URL": {giturl.GitLab, "https://gitlab.com/o/r", "https://user:S3CR3T@gitlab.com/api/v4"},
		"a query":                {giturl.Gitea, "https://git.example.com/o/r", "https://git.example.com/?x=S3CR3T"},
		"no project":             {giturl.AzureDevOps, "https://dev.azure.com/o/r", ""},
		"a directory":            {giturl.GitHub, "/srv/git/r", ""},
		"an unknown provider":    {"sourceforge", "https://github.com/o/r", ""},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := forge.New(tc.provider, forge.Config{Repository: tc.repository, APIBaseURL: tc.api})
			require.Error(t, err)
			assert.NotContains(t, err.Error(), "S3CR3T")
		})
	}
}
