package sender

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"strings"
)

// gitLabBody has what the parser reads of a push or a release.
type gitLabBody struct {
	Ref     string        `json:"ref"`
	After   string        `json:"after"`
	Tag     string        `json:"tag"`
	Action  string        `json:"action"`
	Project gitLabProject `json:"project"`
}

type gitLabProject struct {
	GitHTTPURL string `json:"git_http_url"`
	GitSSHURL  string `json:"git_ssh_url"`
	WebURL     string `json:"web_url"`
}

func parseGitLab(h http.Header, body []byte) (Request, error) {
	id := deliveryID(h, "Webhook-Id", "Idempotency-Key") // the first one is signed; both are the same for a repeated delivery
	switch event := h.Get("X-Gitlab-Event"); event {
	case "Push Hook", "Tag Push Hook", "Release Hook", "System Hook":
	default:
		return nothing(id, "event %s does not change what to run", quote(event)), nil
	}
	var kind struct {
		ObjectKind string `json:"object_kind"`
		EventName  string `json:"event_name"` // instead of object_kind in system hooks
	}
	if err := decode(h, body, &kind); err != nil {
		return Request{}, err
	}
	what := kind.ObjectKind
	if what == "" {
		what = kind.EventName
	}
	switch what {
	case "push", "tag_push", "release":
	case "":
		return Request{}, invalid("object_kind is missing")
	default:
		return nothing(id, "%s does not change what to run", quote(what)), nil
	}
	var b gitLabBody // decoded separately, because other kinds use these names for other types
	if err := decode(h, body, &b); err != nil {
		return Request{}, err
	}
	r := Request{Kind: KindPush, ID: id, Repositories: addresses(b.Project.GitHTTPURL, b.Project.GitSSHURL, b.Project.WebURL)}
	switch {
	case what == "release" && b.Action != "create":
		return nothing(id, "only created releases count; this one is %s", quote(b.Action)), nil
	case what == "release" && b.Tag == "":
		return Request{}, invalid("tag is missing")
	case what == "release":
		r.Refs = []string{tags + b.Tag}
	case isZeros(b.After):
		return nothing(id, "deletions are not synced"), nil
	case !isCommit(b.After): // the request names the ref, so the id is only checked
		return Request{}, invalid("after: %s is not the id of a commit", quote(b.After))
	case !strings.HasPrefix(b.Ref, "refs/"):
		return Request{}, invalid("ref: %s is not a full name such as refs/heads/main", quote(b.Ref))
	default:
		r.Refs = []string{b.Ref}
	}
	if id == "" { // older versions have only an id of the event, which is the same for all refs that were pushed together
		if event := deliveryID(h, "X-Gitlab-Event-Uuid"); event != "" {
			sum := sha256.Sum256([]byte(r.Refs[0]))
			r.ID = event + "-" + hex.EncodeToString(sum[:4])
		}
	}
	if len(r.Repositories) == 0 {
		return Request{}, invalid("project has no address: neither git_http_url nor git_ssh_url nor web_url")
	}
	return r, nil
}
