package sender

import (
	"net/http"
	"slices"
)

// Sender is a program that sends requests. To add one, write its parser in a new file of this package, add a row to All, and put
// deliveries from its documentation into testdata.
type Sender struct {
	// Name is the value of stoker.io/requested-by.
	Name string
	// Headers are the headers that name the event of a delivery. A sender without them sends the generic format, with its name in the
	// field source.
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

// All returns all senders. The first one with a header of a delivery is its sender. Gitea and Forgejo also send the header of GitHub,
// so they come first.
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
