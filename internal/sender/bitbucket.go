package sender

import (
	"net/http"
	"strings"

	kjson "sigs.k8s.io/json"
)

// maxLinks is the maximum number of clone links that the parser uses.
const maxLinks = 8

func parseBitbucket(h http.Header, body []byte) (Request, error) {
	id := deliveryID(h, "X-Request-Uuid", "X-Request-Id")
	switch event := h.Get("X-Event-Key"); event {
	case "diagnostics:ping":
		return Request{Kind: KindPing, ID: id}, nil
	case "repo:push":
		return parseBitbucketCloud(h, body, id)
	case "repo:refs_changed", "mirror:repo_synchronized":
		return parseBitbucketDataCenter(h, body, id)
	default:
		return nothing(id, "event %s does not change what to run", quote(event)), nil
	}
}

// bitbucketCloudBody has the fields of a repo:push event that the parser reads.
type bitbucketCloudBody struct {
	Push struct {
		Changes list[struct {
			New *struct { // null if deleted
				Type string `json:"type"`
				Name string `json:"name"`
			} `json:"new"`
		}] `json:"changes"`
	} `json:"push"`
	Repository struct {
		Links struct {
			HTML struct {
				Href string `json:"href"`
			} `json:"html"`
		} `json:"links"`
	} `json:"repository"`
}

func parseBitbucketCloud(h http.Header, body []byte, id string) (Request, error) {
	var b bitbucketCloudBody
	if err := decode(h, body, &b); err != nil {
		return Request{}, err
	}
	r := Request{Kind: KindPush, ID: id, Repositories: addresses(b.Repository.Links.HTML.Href)}
	for _, c := range b.Push.Changes {
		if c.New == nil || c.New.Name == "" {
			continue
		}
		switch c.New.Type {
		case "branch", "named_branch":
			r.Refs = append(r.Refs, branches+c.New.Name)
		case "tag", "annotated_tag":
			r.Refs = append(r.Refs, tags+c.New.Name)
		}
	}
	if len(r.Refs) == 0 {
		return nothing(id, "no branch or tag was created or moved"), nil
	}
	if len(r.Repositories) == 0 {
		return Request{}, invalid("repository.links.html.href is missing")
	}
	return r, nil
}

// bitbucketDataCenterBody has the fields of repo:refs_changed and mirror:repo_synchronized events that the parser reads. Older versions send
// no links.
type bitbucketDataCenterBody struct {
	Changes list[struct {
		Ref struct {
			ID string `json:"id"`
		} `json:"ref"`
		Type   string `json:"type"`
		ToHash string `json:"toHash"`
	}] `json:"changes"`
	Repository struct {
		Slug    string `json:"slug"`
		Project struct {
			Key string `json:"key"`
		} `json:"project"`
		Links optional[struct {
			Clone list[struct {
				Href string `json:"href"`
			}] `json:"clone"`
		}] `json:"links"`
	} `json:"repository"`
}

// optional is a value that some versions of a sender send in a form that T cannot hold. Such a value counts as missing.
type optional[T any] struct{ value T }

// UnmarshalJSON never fails: if the value does not fit T, it stays zero.
func (o *optional[T]) UnmarshalJSON(data []byte) error {
	var value T
	if kjson.UnmarshalCaseSensitivePreserveInts(data, &value) == nil {
		o.value = value
	}
	return nil
}

func parseBitbucketDataCenter(h http.Header, body []byte, id string) (Request, error) {
	var b bitbucketDataCenterBody
	if err := decode(h, body, &b); err != nil {
		return Request{}, err
	}
	r := Request{Kind: KindPush, ID: id}
	for i, link := range b.Repository.Links.value.Clone {
		if i == maxLinks {
			break
		}
		r.Repositories = append(r.Repositories, addresses(link.Href)...)
	}
	if key, slug := b.Repository.Project.Key, b.Repository.Slug; len(r.Repositories) == 0 && key != "" && slug != "" {
		r.Repositories = []Repository{{Path: key + "/" + slug}}
	}
	for _, c := range b.Changes {
		if (c.Type == "ADD" || c.Type == "UPDATE") && isCommit(c.ToHash) && strings.HasPrefix(c.Ref.ID, "refs/") {
			r.Refs = append(r.Refs, c.Ref.ID)
		}
	}
	if len(r.Refs) == 0 {
		return nothing(id, "no branch or tag was created or moved"), nil
	}
	if len(r.Repositories) == 0 {
		return Request{}, invalid("repository has neither links.clone nor project.key and slug")
	}
	return r, nil
}
