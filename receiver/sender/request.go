// Package sender understands what git hosts, Argo CD, Kargo and others send: one parser each, and one Request that comes
// out of all of them. It is pure. It trusts nobody: what a body says is compared with the GatewaySync by the caller, and no
// parser takes an address out of a body to be used, nor a commit out of what a git host sends.
package sender

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"
	"unicode/utf8"

	kjson "sigs.k8s.io/json"
)

// Kind is what a delivery is.
type Kind string

// The kinds.
const (
	// Ping only asks whether somebody is there.
	Ping Kind = "ping"
	// Move says that refs of a repository were made or have moved.
	Move Kind = "move"
	// Ask is a request of somebody who may choose the ref.
	Ask Kind = "ask"
	// Nothing is understood, and nothing follows from it.
	Nothing Kind = "nothing"
)

// The senders, as they stand in stoker.io/requested-by.
const (
	GitHub      = "github"
	GitLab      = "gitlab"
	Gitea       = "gitea"
	Bitbucket   = "bitbucket"
	AzureDevOps = "azuredevops"
	ArgoCD      = "argocd"
	Kargo       = "kargo"
	Generic     = "generic"
)

// Request is what a delivery comes down to.
type Request struct {
	// Sender is one of the constants above.
	Sender string
	Kind   Kind
	// ID tells a delivery that is repeated from a new one; "" where it has none.
	ID string
	// Repositories are the addresses under which a moved repository is known, in any form (Move).
	Repositories []Repository
	// Refs are the full names that were made or have moved (Move).
	Refs []string
	// Ref is what is asked for (Ask); "" for a fresh look at git.
	Ref string
	// Commit is where Ref has to stand (Ask); "" for wherever it stands.
	Commit string
	// For says in words what is asked for belongs to (Ask).
	For string
	// Commits are offered instead of a Ref: that of the right repository counts (Ask).
	Commits []Commit
	// Why says in words why nothing follows (Nothing).
	Why string
}

// Commit is a commit of some repository: its id, a tag that stands at it, or both.
type Commit struct {
	Repository Repository
	Tag, ID    string
}

// InvalidError means that a body is none of what its sender sends. Its text may be shown to the sender.
type InvalidError struct{ text string }

func (e *InvalidError) Error() string { return e.text }

func invalid(format string, args ...any) error { return &InvalidError{fmt.Sprintf(format, args...)} }

// maxRefs bounds how many refs of one delivery are looked at; hosts send fewer.
const maxRefs = 1000

// Parse understands a delivery by its header and body. Its error is an *InvalidError.
func Parse(h http.Header, body []byte) (Request, error) {
	if !utf8.Valid(body) {
		return Request{}, invalid("the body is no UTF-8")
	}
	name, parse := choose(h)
	r, err := parse(h, body)
	if err != nil {
		return Request{Sender: name}, err
	}
	if r.Sender == "" {
		r.Sender = name
	}
	if len(r.Refs) > maxRefs {
		return Request{Sender: name}, invalid("the delivery speaks of more than %d refs", maxRefs)
	}
	return r, nil
}

// Name says who sends, as far as the header tells.
func Name(h http.Header) string {
	name, _ := choose(h)
	return name
}

type parser func(http.Header, []byte) (Request, error)

// choose finds the parser. Gitea and Forgejo send the header of GitHub, too.
func choose(h http.Header) (string, parser) {
	switch {
	case h.Get("X-Forgejo-Event") != "", h.Get("X-Gitea-Event") != "":
		return Gitea, parseGitea
	case h.Get("X-Github-Event") != "":
		return GitHub, parseGitHub
	case h.Get("X-Gitlab-Event") != "":
		return GitLab, parseGitLab
	case h.Get("X-Event-Key") != "":
		return Bitbucket, parseBitbucket
	case h.Get("X-Vss-Activityid") != "", h.Get("X-Vss-Subscriptionid") != "":
		return AzureDevOps, parseAzure
	}
	return Generic, parseGeneric
}

// decode reads a JSON object into a struct of ours. Fields that it does not have are passed over, names count as they are
// written, and a value of another type than ours is an error that names it.
func decode(h http.Header, body []byte, into any) error {
	if bytes.HasPrefix(body, []byte("payload=")) { // what the header says of it does not count: curl calls everything a form
		return invalid("the body is a form: choose application/json as the content type of the webhook")
	}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(body, into); err != nil {
		return invalid("the body is not what %s sends: %s", Name(h), short(err))
	}
	return nil
}

// short keeps what a JSON error repeats of the body from growing.
func short(err error) string {
	text := strings.ToValidUTF8(err.Error(), "")
	if len(text) > 200 {
		text = strings.ToValidUTF8(text[:200], "") + "…"
	}
	return text
}

// delivery is the id of a delivery, or "" where it is none that can be kept.
func delivery(h http.Header, names ...string) string {
	for _, name := range names {
		id := h.Get(name)
		if id == "" {
			continue
		}
		if len(id) > 100 || strings.ContainsFunc(id, func(c rune) bool { return c <= ' ' || c > '~' }) {
			return ""
		}
		return id
	}
	return ""
}

// isCommit reports whether an id is one of a commit that is there. Hosts send zeros after a ref was deleted.
func isCommit(id string) bool {
	return (len(id) == 40 || len(id) == 64) && strings.Trim(id, "0123456789abcdef") == "" && strings.Trim(id, "0") != ""
}

// isNone reports whether an id is that of nothing.
func isNone(id string) bool { return id != "" && strings.Trim(id, "0") == "" }

const (
	branches = "refs/heads/"
	tags     = "refs/tags/"
)

// nothing is a delivery that changes nothing here.
func nothing(id, format string, args ...any) Request {
	return Request{Kind: Nothing, ID: id, Why: fmt.Sprintf(format, args...)}
}

// quote shows a word of a body.
func quote(s string) string { return fmt.Sprintf("%.60q", s) }
