package sender

import (
	"net/http"
	"strings"
)

// gitHubBody has the fields of events of GitHub, Gitea and Forgejo that the parser reads.
type gitHubBody struct {
	Ref        string           `json:"ref"`
	RefType    string           `json:"ref_type"` // of create and delete: branch or tag; Ref is then a short name
	After      string           `json:"after"`
	Deleted    bool             `json:"deleted"`
	Action     string           `json:"action"`
	Release    *gitHubRelease   `json:"release"`
	Repository gitHubRepository `json:"repository"`
}

type gitHubRelease struct {
	TagName string `json:"tag_name"`
	Draft   bool   `json:"draft"`

	Prerelease bool `json:"prerelease"`
}

type gitHubRepository struct {
	CloneURL string `json:"clone_url"`
	SSHURL   string `json:"ssh_url"`
	GitURL   string `json:"git_url"`
	HTMLURL  string `json:"html_url"`
}

func parseGitHub(h http.Header, body []byte) (Request, error) {
	return parseLikeGitHub(h, body, h.Get("X-Github-Event"), deliveryID(h, "X-Github-Delivery"))
}

func parseGitea(h http.Header, body []byte) (Request, error) {
	event := h.Get("X-Forgejo-Event")
	if event == "" {
		event = h.Get("X-Gitea-Event")
	}
	return parseLikeGitHub(h, body, event, deliveryID(h, "X-Forgejo-Delivery", "X-Gitea-Delivery"))
}

func parseLikeGitHub(h http.Header, body []byte, event, id string) (Request, error) {
	switch event {
	case "ping":
		return Request{Kind: KindPing, ID: id}, nil
	case "push", "create", "release":
	case "delete":
		return nothing(id, "deletions are not synced"), nil
	default:
		return nothing(id, "event %s does not change what to run", quote(event)), nil
	}
	var b gitHubBody
	if err := decode(h, body, &b); err != nil {
		return Request{}, err
	}
	r := Request{Kind: KindPush, ID: id, Repositories: addresses(b.Repository.CloneURL, b.Repository.SSHURL, b.Repository.GitURL, b.Repository.HTMLURL)}
	switch event {
	case "push":
		if b.Deleted || isZeros(b.After) {
			return nothing(id, "deletions are not synced"), nil
		}
		if !isCommit(b.After) { // the request names the ref, so the id is only checked
			return Request{}, invalid("after: %s is not the id of a commit", quote(b.After))
		}
		if !strings.HasPrefix(b.Ref, "refs/") {
			return Request{}, invalid("ref: %s is not a full name such as refs/heads/main", quote(b.Ref))
		}
		r.Refs = []string{b.Ref}
	case "create":
		prefix := map[string]string{"branch": branches, "tag": tags}[b.RefType]
		if prefix == "" {
			return nothing(id, "a %s was created, not a branch or a tag", quote(b.RefType)), nil
		}
		if b.Ref == "" {
			return Request{}, invalid("ref is missing")
		}
		r.Refs = []string{prefix + b.Ref}
	case "release":
		if b.Release == nil {
			return Request{}, invalid("release is missing")
		}
		if b.Action != "published" && b.Action != "released" || b.Release.Draft {
			return nothing(id, "only published releases count; this one is %s", quote(b.Action)), nil
		}
		if b.Release.TagName == "" {
			return Request{}, invalid("release.tag_name is missing")
		}
		r.Refs, r.Prerelease = []string{tags + b.Release.TagName}, b.Release.Prerelease
	}
	if len(r.Repositories) == 0 {
		return Request{}, invalid("repository has no address: neither clone_url nor ssh_url nor git_url nor html_url")
	}
	return r, nil
}
