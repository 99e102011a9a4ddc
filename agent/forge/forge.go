// Package forge opens and follows pull requests on the forge that hosts a repository. It speaks to GitHub, GitLab, Gitea (and
// Forgejo), Bitbucket Cloud and Azure DevOps through one small interface. Commits travel through git, never through a forge's
// API. The package knows nothing of Kubernetes, of gateways, or of who asks.
//
// Everything that a forge answers is untrusted: bodies, lists and waits are bounded, texts of the server are quoted, and no error
// repeats a credential.
package forge

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/secret"
)

// Forge is the pull requests of one repository. Its methods may be called from several goroutines.
//
// An error has a reason of v1alpha1: AuthFailed if the token is invalid or lacks a right (the text names the right),
// GitThrottled if the forge asks to wait (RetryAfter returns how long), GitUnreachable if it does not answer or answers what
// cannot be used, UnsupportedRepository if the forge has no such repository or the provider is the wrong one.
type Forge interface {
	// ByHead returns the pull requests from branch, newest first, at most MaxListed of them. base may be "" for all.
	ByHead(ctx context.Context, branch, base string) ([]PullRequest, error)
	// Open returns the open pull requests to base, newest first, at most MaxListed of them.
	Open(ctx context.Context, base string) ([]PullRequest, error)
	// Create opens a pull request. If one from the same branch to the same base is open, the error is ErrExists: list and adopt
	// it. Gitea does not create labels: those that it lacks are left out and named in the result's Notes. GitHub and GitLab create them.
	Create(ctx context.Context, d Draft) (PullRequest, error)
	// Update replaces title and body.
	Update(ctx context.Context, number int64, title, body string) error
	// Close closes a pull request without merging it, after it has added comment ("" for none). Closing a pull request that is
	// closed or merged is no error.
	Close(ctx context.Context, number int64, comment string) error
}

// MaxListed is the maximum number of pull requests that a list returns.
const MaxListed = 100

// State is the state of a pull request.
type State string

// The states of a pull request.
const (
	Open   State = "open"
	Merged State = "merged"
	Closed State = "closed" // without a merge
)

// PullRequest is a pull request, or a merge request.
type PullRequest struct {
	Number int64 // the number within the repository that users see
	URL    string
	State  State
	Branch string // the head's branch, without refs/heads/
	Commit string // the tip of the branch as the forge knows it, 40 hex digits; "" if the forge does not say
	Base   string // the target branch, without refs/heads/
	Title  string
	Body   string
	Fork   bool     // the branch is in another repository
	Notes  []string // what Create could not do, such as a missing label
}

// Draft is a pull request to create.
type Draft struct {
	Branch, Base, Title, Body string
	Labels                    []string
}

// Config configures a Forge.
type Config struct {
	// Repository is the address of the repository for git: https, ssh or scp-like. Its host and path name the project.
	Repository string
	// APIBaseURL is the address of the API; "" for the one that the provider uses for the host.
	APIBaseURL string
	// Token returns the token for every request, so that a rotated one counts at once. ctx bounds how long that takes.
	Token func(ctx context.Context) (secret.String, error)
	// Transport sends the requests. It carries the proxy and the trusted certificates.
	Transport http.RoundTripper
	Timeout   time.Duration // for one request; default 30s
	Log       *slog.Logger  // default: discard
}

// The providers.
const (
	GitHub      = "github"
	GitLab      = "gitlab"
	Gitea       = "gitea" // and Forgejo
	Bitbucket   = "bitbucket"
	AzureDevOps = "azuredevops"
)

// New returns the Forge of a repository. Nothing is sent yet.
func New(provider string, c Config) (Forge, error) {
	c = c.withDefaults()
	at, err := locate(provider, c.Repository, c.APIBaseURL)
	if err != nil {
		return nil, err
	}
	client := &http.Client{Transport: newTransport(provider, at.api, c), CheckRedirect: sameOrigin, Timeout: c.Timeout}
	switch provider {
	case GitHub:
		return &gitHub{rest{client, at.api}, at}, nil
	case GitLab:
		return &gitLab{rest{client, at.api}, at}, nil
	case Gitea:
		return &gitea{client, at}, nil
	case Bitbucket:
		return &bitbucket{rest{client, at.api}, at}, nil
	case AzureDevOps:
		return &azure{rest{client, at.api}, at}, nil
	}
	return nil, failure.New(v1alpha1.ReasonUnsupportedRepository, "%q is not a provider: use github, gitlab, gitea, bitbucket or azuredevops", provider)
}

func (c Config) withDefaults() Config {
	if c.Timeout <= 0 {
		c.Timeout = 30 * time.Second
	}
	if c.Transport == nil {
		c.Transport = http.DefaultTransport
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

// ErrExists means that an open pull request from the same branch to the same base exists.
var ErrExists = failure.New(v1alpha1.ReasonGitUnreachable, "an open pull request of this branch exists")

// throttledError carries the wait that a forge asked for.
type throttledError struct{ after time.Duration }

func (e *throttledError) Error() string { return "come back after " + e.after.String() }

// RetryAfter returns how long the forge asked to wait, if err is such an answer.
func RetryAfter(err error) (time.Duration, bool) {
	t, ok := errors.AsType[*throttledError](err)
	if !ok {
		return 0, false
	}
	return t.after, true
}
