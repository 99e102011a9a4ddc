package sender

import (
	"net/http"
	"strings"
)

// azureBody has the fields of any Azure DevOps event that the parser reads.
type azureBody struct {
	ID        string `json:"id"`
	EventType string `json:"eventType"`
}

type azurePush struct {
	Resource struct {
		RefUpdates *list[struct {
			Name        string `json:"name"`
			NewObjectID string `json:"newObjectId"`
		}] `json:"refUpdates"`
		Repository struct {
			RemoteURL string `json:"remoteUrl"`
			SSHURL    string `json:"sshUrl"`
			WebURL    string `json:"webUrl"`
		} `json:"repository"`
	} `json:"resource"`
}

func parseAzure(h http.Header, body []byte) (Request, error) {
	var b azureBody
	if err := decode(h, body, &b); err != nil {
		return Request{}, err
	}
	id := deliveryID(http.Header{"Id": {b.ID}}, "Id")
	switch b.EventType {
	case "git.push":
	case "":
		return Request{}, invalid("eventType is missing")
	default:
		return nothing(id, "event %s does not change what to run", quote(b.EventType)), nil
	}
	var p azurePush // decoded separately, because other events use these names for other types
	if err := decode(h, body, &p); err != nil {
		return Request{}, err
	}
	repository := p.Resource.Repository
	r := Request{Kind: KindPush, ID: id, Repositories: addresses(repository.RemoteURL, repository.SSHURL, repository.WebURL)}
	if p.Resource.RefUpdates == nil {
		return Request{}, invalid("resource.refUpdates is missing: set \"Resource details to send\" of the web hook to All")
	}
	for _, u := range *p.Resource.RefUpdates {
		if isCommit(u.NewObjectID) && strings.HasPrefix(u.Name, "refs/") {
			r.Refs = append(r.Refs, u.Name)
		}
	}
	if len(r.Refs) == 0 {
		return nothing(id, "no branch or tag was created or moved"), nil
	}
	if len(r.Repositories) == 0 {
		return Request{}, invalid("resource.repository.remoteUrl is missing")
	}
	return r, nil
}
