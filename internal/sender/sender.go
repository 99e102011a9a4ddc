// Package sender parses the deliveries of the programs that send requests: git hosts, Argo CD, Kargo and scripts. It does no I/O and
// does not trust a delivery: the caller compares the Request with the GatewaySync. The addresses in a Request are only for that, and not to
// connect to. No parser returns a commit that a git host sent.
package sender

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"unicode/utf8"

	kjson "sigs.k8s.io/json"

	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/giturl"
)

// Kind is the kind of a delivery.
type Kind string

// The kinds.
const (
	// KindPing only tests the connection.
	KindPing Kind = "ping"
	// KindPush reports that refs of a repository were created or moved.
	KindPush Kind = "push"
	// KindRequest is a request of a sender that may choose the ref.
	KindRequest Kind = "request"
	// KindNothing has no effect.
	KindNothing Kind = "nothing"
)

// Request is the result of parsing a delivery.
type Request struct {
	// Sender is the Name of one of All.
	Sender string
	Kind   Kind
	// ID identifies a delivery, so that a repeated one is recognized; "" if it has none.
	ID string
	// Repositories are the addresses of the repository, in any form (KindPush).
	Repositories []Repository
	// Refs are the full names that were created or moved (KindPush).
	Refs []string
	// Prerelease means that the host marks the release as a prerelease (KindPush).
	Prerelease bool
	// Ref is the requested ref (KindRequest); "" for a poll of git.
	Ref string
	// Commit is the commit that Ref must resolve to (KindRequest); "" for any.
	Commit string
	// Description describes the promotion or job that the request belongs to (KindRequest).
	Description string
	// Why is why the delivery has no effect (KindNothing).
	Why string
}

// InvalidError means that a body is not valid for its sender. The text may be shown to the sender.
type InvalidError struct{ text string }

func (e *InvalidError) Error() string { return e.text }

func invalid(format string, args ...any) error { return &InvalidError{fmt.Sprintf(format, args...)} }

// maxRefs bounds each list of a delivery, maxRef the bytes of a ref. Hosts send fewer and shorter ones.
const maxRefs, maxRef = 1000, 1024

// Parse parses a delivery. The error is an *InvalidError, and then the Request has only the Sender.
func Parse(h http.Header, body []byte) (Request, error) {
	if !utf8.Valid(body) {
		return Request{}, invalid("the body is not UTF-8")
	}
	s := senderOf(h)
	r, err := s.parse(h, body)
	if err != nil {
		return Request{Sender: s.Name}, err
	}
	if r.Sender == "" {
		r.Sender = s.Name
	}
	if slices.ContainsFunc(r.Refs, func(ref string) bool { return len(ref) > maxRef }) {
		return Request{Sender: s.Name}, invalid("a ref is longer than %d bytes", maxRef)
	}
	return r, nil
}

// CutObject returns the JSON object of a body that was cut, without its last, incomplete member. Hosts that send long lists of commits send them
// after what matters. A body that is not an object is returned as it is.
func CutObject(body []byte) []byte {
	members := json.NewDecoder(bytes.NewReader(body))
	var object bytes.Buffer
	if start, err := members.Token(); err != nil || start != json.Delim('{') {
		return body
	}
	for members.More() {
		name, err := members.Token()
		key, isName := name.(string)
		var value json.RawMessage
		if err != nil || !isName || members.Decode(&value) != nil {
			break
		}
		quoted, err := json.Marshal(key)
		if err != nil {
			break
		}
		object.WriteByte(',')
		object.Write(quoted)
		object.WriteByte(':')
		object.Write(value)
	}
	text := append(object.Bytes(), '}')
	if len(text) == 1 {
		return []byte("{}")
	}
	text[0] = '{'
	return text
}

// decode decodes a JSON object into a struct. It ignores unknown fields and compares names exactly. The error for a value of a
// wrong type names the field, or the type if it is a list.
func decode(h http.Header, body []byte, into any) error {
	if bytes.HasPrefix(body, []byte("payload=")) { // regardless of the content type: curl labels everything as a form
		return invalid("the body is a form: choose application/json as the content type of the webhook")
	}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(body, into); err != nil {
		return invalid("the body is not what %s sends: %s", senderOf(h).Name, truncate(err))
	}
	return nil
}

// list is a list of at most maxRefs items. Decoding more fails at the limit, because small items take far more memory than their text.
type list[T any] []T

// UnmarshalJSON implements json.Unmarshaler.
func (l *list[T]) UnmarshalJSON(data []byte) error {
	*l = nil // of duplicate fields, the last one counts
	if data[0] != '[' {
		var items []T
		return kjson.UnmarshalCaseSensitivePreserveInts(data, &items) // null is an empty list; the error names the type
	}
	items := json.NewDecoder(bytes.NewReader(data))
	_, err := items.Token()
	for err == nil && items.More() {
		if len(*l) == maxRefs {
			return fmt.Errorf("it lists more than %d refs or commits", maxRefs)
		}
		var raw json.RawMessage
		var item T
		if err = items.Decode(&raw); err == nil {
			err = kjson.UnmarshalCaseSensitivePreserveInts(raw, &item)
		}
		*l = append(*l, item)
	}
	return err
}

// truncate truncates a JSON error, which may quote the body.
func truncate(err error) string {
	return failure.Cut(err.Error(), 200)
}

// deliveryID returns the first id among the named headers, or "" if there is none or it is unsuitable for an annotation.
func deliveryID(h http.Header, names ...string) string {
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

// isCommit reports whether id is a full commit id. Hosts send zeros for a deleted ref.
func isCommit(id string) bool {
	return (len(id) == 40 || len(id) == 64) && strings.Trim(id, "0123456789abcdef") == "" && strings.Trim(id, "0") != ""
}

// isZeros reports whether id consists of zeros.
func isZeros(id string) bool { return id != "" && strings.Trim(id, "0") == "" }

const (
	branches = "refs/heads/"
	tags     = "refs/tags/"
)

// nothing returns a Request without effect.
func nothing(id, format string, args ...any) Request {
	return Request{Kind: KindNothing, ID: id, Why: fmt.Sprintf(format, args...)}
}

// quote quotes and truncates a word of a body.
func quote(s string) string { return fmt.Sprintf("%.60q", s) }

// Repository identifies a repository in a delivery: by an address or, if the host sends no address, by the last two elements of the
// repository's path.
type Repository struct {
	Address string
	// Path, such as PLANT/site, is used if there is no address.
	Path string
}

// Is reports whether r is the repository with the address repo (spec.git.repo), whatever form the two addresses have.
func (r Repository) Is(repo string) bool {
	if r.Address != "" {
		return giturl.Same(r.Address, repo)
	}
	want := strings.FieldsFunc(strings.TrimSuffix(strings.TrimRight(repo, "/"), ".git"), func(c rune) bool { return c == '/' || c == ':' })
	have := strings.Split(strings.Trim(r.Path, "/"), "/")
	n := len(want)
	return len(have) == 2 && n > 2 && have[0] != "" && strings.EqualFold(want[n-2], have[0]) && strings.EqualFold(want[n-1], have[1])
}

// addresses returns the non-empty addresses as repositories.
func addresses(list ...string) []Repository {
	var all []Repository
	for _, a := range list {
		if a != "" {
			all = append(all, Repository{Address: a})
		}
	}
	return all
}

// Sender is a program that sends requests. To add one, write its parser in a new file of this package, add a row to All, and put
// deliveries from its documentation into testdata.
type Sender struct {
	// Name is the value of stoker.io/requested-by.
	Name string
	// Headers are the headers that name the event of a delivery. A sender with a parser and without headers sends the generic format,
	// with its name in the field source.
	Headers []string
	// Proof is how the sender proves that it knows a secret, and Deliveries what it sends. Both are for the documentation.
	Proof, Deliveries string
	parse             func(http.Header, []byte) (Request, error)
}

// Names of senders that other code refers to.
const (
	ArgoCD  = "argocd"
	Kargo   = "kargo"
	Generic = "generic"
	Hook    = "hook"
	CLI     = "cli"

	azureDevOps = "azuredevops"
)

const (
	signature    = "`X-Hub-Signature-256: sha256=…` of the body"
	oldSignature = "`X-Hub-Signature: sha256=…` of the body, or `Authorization: Basic …`"
	bearer       = "`Authorization: Bearer …`"
	basic        = "`Authorization: Basic …`"
)

// All returns all senders. The first one with a header of a delivery is its sender; without any of the headers, it is generic. Gitea and
// Forgejo also send the header of GitHub, so they come first.
func All() []Sender {
	return []Sender{
		{"gitea", []string{"X-Forgejo-Event", "X-Gitea-Event"}, signature, "push, create, release (Gitea and Forgejo)", parseGitea},
		{"github", []string{"X-Github-Event"}, signature, "push, create, release", parseGitHub},
		{"gitlab", []string{"X-Gitlab-Event"}, "`webhook-signature: v1,…`, or `X-Gitlab-Token: …`", "push, tag push, release, system hook", parseGitLab},
		{"bitbucket", []string{"X-Event-Key"}, oldSignature, "push (Cloud), refs changed (Data Center)", parseBitbucket},
		{azureDevOps, []string{"X-Vss-Activityid", "X-Vss-Subscriptionid"}, basic, "code pushed", parseAzure},
		{ArgoCD, nil, bearer, "a notification: a poll of git", parseGeneric},
		{Kargo, nil, bearer, "a promotion: a ref", parseGeneric},
		{Generic, nil, bearer, "a ref, or a poll of git", parseGeneric},
		{Hook, nil, "", "a Job that runs `stoker`", nil},
		{CLI, nil, "", "a user of `stoker`", nil},
	}
}

// isGenericSource reports whether name is a sender of the generic format, which the field source may name.
func isGenericSource(name string) bool {
	return slices.ContainsFunc(All(), func(s Sender) bool { return s.Name == name && s.Headers == nil && s.parse != nil })
}

// Names returns the names of all senders.
func Names() (names []string) {
	for _, s := range All() {
		names = append(names, s.Name)
	}
	return names
}

// senderOf returns the sender of a delivery.
func senderOf(h http.Header) Sender {
	all := All()
	i := slices.IndexFunc(all, func(s Sender) bool {
		return s.Name == Generic || slices.ContainsFunc(s.Headers, func(name string) bool { return h.Get(name) != "" })
	})
	return all[i]
}
