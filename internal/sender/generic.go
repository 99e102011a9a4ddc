package sender

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strings"

	kjson "sigs.k8s.io/json"

	"stoker.io/stoker/api/v1alpha1/annotation"
)

// genericBody holds the fields of Stoker's own format, {"ref": "…", "commit": "…", "id": "…", "source": "…"}. All fields are optional.
// They are raw to distinguish a missing field from null or a number: a template may render an empty ref, or 1.10 as 1.1, and both must
// be rejected.
type genericBody struct {
	Ref    json.RawMessage `json:"ref"`
	Commit json.RawMessage `json:"commit"`
	ID     json.RawMessage `json:"id"`
	Source json.RawMessage `json:"source"`
	// Fields that every event of Azure DevOps has.
	EventType   json.RawMessage `json:"eventType"`
	PublisherID json.RawMessage `json:"publisherId"`
	// Fields of a Kargo promotion, for display only.
	Project json.RawMessage `json:"project"`
	Stage   json.RawMessage `json:"stage"`
	Freight json.RawMessage `json:"freight"`
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
	if unknown, err := kjson.UnmarshalStrict(body, &genericBody{}, kjson.DisallowUnknownFields); err == nil && len(unknown) > 0 {
		return Request{}, invalid("%s: the fields are ref, commit, id and source", truncate(unknown[0]))
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
	if b.Ref != nil && r.Sender == Kargo {
		r.Description = b.describePromotion()
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
