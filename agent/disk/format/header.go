package format

import (
	"encoding/json"

	"stoker.io/stoker/agent/plan"
)

// header is the encoding of plan.Header in our files.
type header struct {
	Ref      string        `json:"ref,omitempty"`
	Commit   string        `json:"commit"`
	Rules    string        `json:"rules,omitempty"`
	Mappings []plan.Origin `json:"mappings,omitempty"`
	Files    int           `json:"files"`
	Complete bool          `json:"complete"`
}

func encodeHeader(h plan.Header) ([]byte, error) {
	return json.Marshal(header{h.Ref, h.Commit.String(), h.Rules, h.Mappings, h.Files, h.Complete})
}

func decodeHeader(b []byte) (plan.Header, error) {
	var h header
	if err := json.Unmarshal(b, &h); err != nil {
		return plan.Header{}, err
	}
	commit, err := plan.ParseID(h.Commit)
	if err != nil {
		return plan.Header{}, err
	}
	return plan.Header{
		Ref: h.Ref, Commit: commit, Rules: h.Rules, Mappings: h.Mappings, Files: h.Files, Complete: h.Complete,
	}, nil
}
