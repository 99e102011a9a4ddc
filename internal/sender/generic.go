package sender

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strings"

	kjson "sigs.k8s.io/json"

	"stoker.io/stoker/api/v1alpha1/annotation"
)

// genericBody holds the fields of Stoker's own format, {"ref": "…", "commit": "…", "id": "…", "source": "…"}, and of two older
// formats: app from Argo CD notifications, and freight from Kargo events. All fields are optional. They are raw to distinguish a
// missing field from null or a number: a template may render an empty ref, or 1.10 as 1.1, and both must be rejected.
type genericBody struct {
	Ref         json.RawMessage `json:"ref"`
	Commit      json.RawMessage `json:"commit"`
	ID          json.RawMessage `json:"id"`
	Source      json.RawMessage `json:"source"`
	App         json.RawMessage `json:"app"`
	Freight     json.RawMessage `json:"freight"`
	EventType   json.RawMessage `json:"eventType"`
	PublisherID json.RawMessage `json:"publisherId"`
	// Fields of a Kargo promotion, for display only.
	Project json.RawMessage `json:"project"`
	Stage   json.RawMessage `json:"stage"`
	Actor   json.RawMessage `json:"actor"`
	URL     json.RawMessage `json:"url"`
	// Fields of git hosts. A body with one of them is an event of a git host, so its ref is not a request.
	Repository json.RawMessage `json:"repository"`
	ObjectKind json.RawMessage `json:"object_kind"`
	EventName  json.RawMessage `json:"event_name"`
	RefType    json.RawMessage `json:"ref_type"`
	Before     json.RawMessage `json:"before"`
	After      json.RawMessage `json:"after"`
	Changes    json.RawMessage `json:"changes"`
	Resource   json.RawMessage `json:"resource"`
}

func parseGeneric(h http.Header, body []byte) (Request, error) {
	if len(bytes.TrimSpace(body)) == 0 {
		return Request{Kind: KindRequest}, nil
	}
	var b genericBody
	if err := decode(h, body, &b); err != nil {
		return Request{}, err
	}
	if b.EventType != nil && b.PublisherID != nil { // from Azure DevOps, but a proxy removed the headers
		r, err := parseAzure(h, body)
		r.Sender = azureDevOps
		return r, err
	}
	for _, hostField := range []json.RawMessage{b.Repository, b.ObjectKind, b.EventName, b.RefType, b.Before, b.After, b.Changes, b.Resource, b.PublisherID} {
		if hostField != nil {
			return Request{}, invalid("the body is from a git host, but the header that names the event is missing: check whether a proxy removes headers")
		}
	}
	if !isObject(b.App) && !isObject(b.Freight) { // the older formats contain whole objects of other programs
		if unknown, err := kjson.UnmarshalStrict(body, &genericBody{}, kjson.DisallowUnknownFields); err == nil && len(unknown) > 0 {
			return Request{}, invalid("%s: the fields are ref, commit, id and source", truncate(unknown[0]))
		}
	}
	r := Request{Kind: KindRequest}
	source := ""
	for _, f := range []struct {
		name string
		raw  json.RawMessage
		into *string
	}{{"ref", b.Ref, &r.Ref}, {"commit", b.Commit, &r.Commit}, {"id", b.ID, &r.ID}, {"source", b.Source, &source}} {
		if err := text(f.name, f.raw, f.into); err != nil {
			return Request{}, err
		}
	}
	switch {
	case r.Commit == "":
	case r.Ref == "":
		return Request{}, invalid("commit is set without ref: add the ref that must resolve to the commit")
	case len(r.Commit) != 40 || !isCommit(r.Commit):
		return Request{}, invalid("commit: %s is not a commit of 40 hexadecimal digits", quote(r.Commit))
	}
	r.Sender = Generic
	if isGenericSource(source) {
		r.Sender = source
	}
	switch {
	case b.Ref != nil:
		if r.Sender == Kargo {
			r.For = b.describePromotion()
		}
		return r, nil
	case isObject(b.App):
		return parseApplication(r, b.App)
	case isObject(b.Freight):
		return parseFreight(r, b.Freight)
	}
	return r, nil
}

// describePromotion returns a line of text about the Kargo promotion that sent the request.
func (b genericBody) describePromotion() string {
	var parts []string
	for _, f := range []struct {
		label string
		raw   json.RawMessage
	}{{"project ", b.Project}, {"stage ", b.Stage}, {"freight ", b.Freight}, {"by ", b.Actor}, {"", b.URL}} {
		var value string
		if len(f.raw) > 0 && json.Unmarshal(f.raw, &value) == nil && value != "" {
			parts = append(parts, f.label+annotation.Line(value))
		}
	}
	return strings.Join(parts, ", ")
}

// text decodes an optional field, which must be a non-empty string.
func text(name string, raw json.RawMessage, into *string) error {
	if raw == nil {
		return nil
	}
	if raw[0] != '"' {
		return invalid("%s must be a string in quotes, not %s: a number loses digits (1.10 becomes 1.1)", name, kindOf(raw))
	}
	if json.Unmarshal(raw, into) != nil || *into == "" {
		return invalid("%s is empty: set a value, or omit the field", name)
	}
	if len(*into) >= 40 && isZeros(*into) { // git hosts send zeros for a deleted branch
		return invalid("%s consists of zeros, so it is not a commit", name)
	}
	return nil
}

// kindOf names the JSON type of a value that is not a string.
func kindOf(raw json.RawMessage) string {
	switch raw[0] {
	case 'n':
		return "null"
	case 't', 'f':
		return "true or false"
	case '{':
		return "an object"
	case '[':
		return "a list"
	}
	return "a number"
}

func isObject(raw json.RawMessage) bool { return len(raw) > 0 && raw[0] == '{' }

// parseApplication parses the older format of Argo CD notifications, which has the requested ref in an annotation.
func parseApplication(r Request, raw json.RawMessage) (Request, error) {
	var app struct {
		Metadata struct {
			Annotations struct {
				Ref json.RawMessage `json:"git.ref"`
			} `json:"annotations"`
		} `json:"metadata"`
	}
	if err := decode(nil, raw, &app); err != nil {
		return Request{}, err
	}
	ref := app.Metadata.Annotations.Ref
	if ref == nil {
		return Request{}, invalid(`app.metadata.annotations has no git.ref; to make Stoker poll git, send {"source": "argocd"}`)
	}
	r.Sender = ArgoCD
	return r, text("app.metadata.annotations[git.ref]", ref, &r.Ref)
}

// maxFreight is the maximum number of commits in a freight.
const maxFreight = 100

// parseFreight parses the older format of Kargo events. It offers all commits of the freight; Choose selects one of them.
func parseFreight(r Request, raw json.RawMessage) (Request, error) {
	var freight struct {
		Commits list[struct {
			RepoURL string          `json:"repoURL"`
			Tag     json.RawMessage `json:"tag"`
			ID      json.RawMessage `json:"id"`
		}] `json:"commits"`
	}
	if err := decode(nil, raw, &freight); err != nil {
		return Request{}, err
	}
	if n := len(freight.Commits); n == 0 || n > maxFreight {
		return Request{}, invalid("freight.commits has %d commits: send 1 to %d", n, maxFreight)
	}
	r.Sender = Kargo
	for _, c := range freight.Commits {
		commit := Commit{Repository: Repository{Address: c.RepoURL}}
		// Kargo sends an empty tag for a commit of a branch.
		if c.Tag != nil && !bytes.Equal(c.Tag, []byte(`""`)) {
			if err := text("freight.commits[].tag", c.Tag, &commit.Tag); err != nil {
				return Request{}, err
			}
		}
		if err := text("freight.commits[].id", c.ID, &commit.ID); err != nil {
			return Request{}, err
		}
		if commit.ID != "" && (len(commit.ID) != 40 || !isCommit(commit.ID)) {
			return Request{}, invalid("freight.commits[].id: %s is not a commit of 40 hexadecimal digits", quote(commit.ID))
		}
		r.Commits = append(r.Commits, commit)
	}
	return r, nil
}

// Choose returns the ref to request, and the commit that this ref must resolve to ("" for any commit). If r offers Commits, Choose
// selects the one from the repository of git; found is false if there is none. The error is an *InvalidError.
func (r Request) Choose(repo string) (ref, commit string, found bool, err error) {
	if r.Commits == nil {
		return r.Ref, r.Commit, true, nil
	}
	for _, c := range r.Commits {
		if !c.Repository.Is(repo) {
			continue
		}
		offered := c.Tag
		if offered == "" {
			offered = c.ID
		}
		switch {
		case offered == "":
			return "", "", false, invalid("freight.commits: the commit of this repository has neither a tag nor an id")
		case found && (offered != ref || c.ID != commit):
			return "", "", false, invalid("freight.commits: two commits are from this repository: send {\"ref\": \"…\"} instead")
		}
		ref, commit, found = offered, c.ID, true
	}
	return ref, commit, found, nil
}
