// Package forge opens and follows pull requests, and sets the status of commits, on the forge that hosts a repository: GitHub, GitLab,
// Gitea (and Forgejo), Bitbucket Cloud or Azure DevOps. Commits travel through git, never through the API of a forge.
//
// A forge is not trusted: the package limits bodies, lists and waits, and quotes texts of the server. No error contains a
// credential.
package forge

import (
	"context"
	"errors"
	"net/http"
	"time"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/giturl"
	"stoker.io/stoker/internal/httpclient"
	"stoker.io/stoker/internal/secret"
)

// Forge accesses the pull requests and the statuses of commits of one repository. Several goroutines may use it.
//
// An error has a reason of v1alpha1: AuthFailed if the token is invalid or lacks a right (the text names the right), GitThrottled if
// the forge limits the rate of requests (backoff.Asked returns how long to wait), GitUnreachable if its answer is missing or unusable,
// UnsupportedRepository if the forge has no such repository or the provider is the wrong one, and a few others.
type Forge interface {
	PullRequests
	// SetStatus sets the status of a commit, a full id. It replaces the status of the same context.
	SetStatus(ctx context.Context, commit string, s CommitStatus) error
}

// PullRequests accesses the pull requests of a repository.
type PullRequests interface {
	// ByHead returns the pull requests from branch to base, newest first, at most MaxListed of them. An empty base matches all.
	ByHead(ctx context.Context, branch, base string) ([]PullRequest, error)
	// Get returns a pull request. The reason of the error is UnsupportedRepository if the forge has none of this number, or no such repository.
	Get(ctx context.Context, number int64) (PullRequest, error)
	// Open returns the open pull requests to base, newest first, at most MaxListed of them.
	Open(ctx context.Context, base string) ([]PullRequest, error)
	// Create opens a pull request. If one from the same branch to the same base is open, the error is ErrExists. Create leaves
	// out labels that the forge cannot set, and names them in Notes: Gitea does not create missing labels, as GitHub and GitLab
	// do.
	Create(ctx context.Context, d Draft) (PullRequest, error)
	// Update replaces title and body.
	Update(ctx context.Context, number int64, title, body string) error
	// Close closes a pull request without merging it, and then adds comment, if it is not empty. If the pull request is closed or merged
	// already, Close does nothing, so that a retry does not repeat the comment.
	Close(ctx context.Context, number int64, comment string) error
}

// CommitState is the state of a commit.
type CommitState string

// The states of a commit.
const (
	Pending CommitState = "pending"
	Success CommitState = "success"
	Failure CommitState = "failure"
)

// Bounds of the texts of a status in bytes: GitHub's limit for descriptions, and GitLab's for the others.
const (
	MaxDescription = 140
	MaxContext     = 255
	MaxURL         = 255
)

// CommitStatus is what a forge shows beside a commit.
type CommitStatus struct {
	State       CommitState
	Context     string // a name of the sender, such as stoker/namespace/name
	Description string
	URL         string // the page behind the status; may be empty
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
	Commit string // the tip of the branch as the forge knows it, at least its first 12 digits; "" if the forge does not say
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
	// Token returns the token. It is called for every request, so that a rotated token takes effect at once. If it is nil, each request fails
	// with AuthFailed.
	Token func(ctx context.Context) (secret.String, error)
	// Transport sends the requests, for example through the agent's proxy with the agent's CA certificates; default: through the proxy of the
	// environment.
	Transport http.RoundTripper
	Timeout   time.Duration // for one request; default 30s
}

// NoForge is the provider of a repository whose branches are pushed without a pull request. Package giturl names the other providers.
const NoForge = "none"

// New returns the Forge of a repository. It sends no request. The reason of an error is UnsupportedRepository.
func New(provider string, c Config) (Forge, error) {
	c = c.withDefaults()
	repo, err := locate(provider, c.Repository, c.APIBaseURL)
	if err != nil {
		return nil, err
	}
	client := httpclient.Policy{Refusal: redirected, Timeout: c.Timeout}.ClientOf(&transport{provider, repo.api, c})
	rest := restClient{client, repo}
	switch provider {
	case giturl.GitHub:
		return &gitHub{rest}, nil
	case giturl.GitLab:
		return &gitLab{rest}, nil
	case giturl.Gitea:
		return &gitea{client, repo}, nil
	case giturl.Bitbucket:
		return &bitbucket{rest}, nil
	case giturl.AzureDevOps:
		return &azure{rest}, nil
	}
	return nil, failure.New(v1alpha1.ReasonUnsupportedRepository, "%q is not a provider: use github, gitlab, gitea, bitbucket or azuredevops", provider)
}

func (c Config) withDefaults() Config {
	if c.Timeout <= 0 {
		c.Timeout = 30 * time.Second
	}
	if c.Transport == nil {
		c.Transport = httpclient.Policy{Proxy: http.ProxyFromEnvironment}.Transport()
	}
	return c
}

// ErrExists means that an open pull request from the same branch to the same base exists. It has no reason: the caller adopts that pull
// request.
var ErrExists = errors.New("an open pull request of this branch exists")
