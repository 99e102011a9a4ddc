package kargo

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// This file lists the fields of Kargo 1.11's built-in steps that the tasks use or may use. A step rejects other fields and values
// of another type.

type shape struct {
	kind     string // string, text (may be empty), bool, number, duration, any
	of       fields // the fields of an object, or of the elements if list is set
	list     bool
	required bool
	among    []string
}

type fields map[string]shape

var pair = fields{"name": {kind: "string", required: true}, "value": {kind: "string", required: true}}

var steps = map[string]fields{
	"http": {
		"method": {kind: "string", among: []string{"DELETE", "GET", "HEAD", "PATCH", "POST", "PUT"}}, "url": {kind: "string", required: true},
		"headers": {of: pair, list: true}, "queryParams": {of: pair, list: true}, "body": {kind: "text"},
		"insecureSkipTLSVerify": {kind: "bool"}, "proxy": {kind: "string"}, "timeout": {kind: "duration"}, "pollInterval": {kind: "duration"},
		"responseContentType": {kind: "string"}, "successExpression": {kind: "text"}, "failureExpression": {kind: "text"}, "errorExpression": {kind: "text"},
		"outputs": {list: true, of: fields{"name": {kind: "string", required: true}, "fromExpression": {kind: "string", required: true}}},
	},
	"fail": {"message": {kind: "string"}},
	"git-clone": {
		"repoURL": {kind: "string", required: true}, "insecureSkipTLSVerify": {kind: "bool"},
		"checkout": {list: true, required: true, of: fields{"branch": {kind: "text"}, "commit": {kind: "text"}, "tag": {kind: "text"}, "create": {kind: "bool"}, "path": {kind: "string", required: true}}},
	},
	"yaml-update": {
		"path":    {kind: "string", required: true},
		"updates": {list: true, required: true, of: fields{"key": {kind: "string", required: true}, "value": {kind: "any", required: true}}},
	},
	"git-commit": {"path": {kind: "string", required: true}, "message": {kind: "string", required: true}},
	"git-push":   {"path": {kind: "string", required: true}, "targetBranch": {kind: "text"}, "maxAttempts": {kind: "number"}, "generateTargetBranch": {kind: "bool"}},
	"argocd-update": {"apps": {list: true, required: true, of: fields{
		"name": {kind: "string"}, "namespace": {kind: "string"},
		"sources": {list: true, of: fields{"repoURL": {kind: "string", required: true}, "chart": {kind: "string"}, "desiredRevision": {kind: "string"}, "updateTargetRevision": {kind: "bool"}}},
	}}},
}

// check returns the problems for which a step would reject its configuration.
func (f fields) check(at string, value any) []string {
	object, is := value.(map[string]any)
	if !is {
		return []string{fmt.Sprintf("%s is %T and no object", at, value)}
	}
	var wrong []string
	for _, name := range slices.Sorted(maps.Keys(object)) {
		s, known := f[name]
		if !known {
			wrong = append(wrong, fmt.Sprintf("%s.%s is not a field", at, name))
			continue
		}
		wrong = append(wrong, s.check(at+"."+name, object[name])...)
	}
	for _, name := range slices.Sorted(maps.Keys(f)) {
		if _, there := object[name]; f[name].required && !there {
			wrong = append(wrong, fmt.Sprintf("%s.%s is missing", at, name))
		}
	}
	return wrong
}

func (s shape) check(at string, value any) []string {
	if s.list {
		list, is := value.([]any)
		if !is || len(list) == 0 && s.required {
			return []string{fmt.Sprintf("%s is %T and no list with elements", at, value)}
		}
		var wrong []string
		for i := range list {
			wrong = append(wrong, s.of.check(fmt.Sprintf("%s[%d]", at, i), list[i])...)
		}
		return wrong
	}
	ok := true
	switch s.kind {
	case "any":
	case "bool":
		_, ok = value.(bool)
	case "number":
		_, ok = value.(float64)
	default:
		var text string
		text, ok = value.(string)
		ok = ok && (s.kind == "text" || text != "") && (s.among == nil || slices.Contains(s.among, text))
		if _, err := time.ParseDuration(text); s.kind == "duration" {
			ok = ok && err == nil && !strings.HasPrefix(text, "-")
		}
	}
	if !ok {
		return []string{fmt.Sprintf("%s: %T %v is not %s", at, value, value, strings.TrimSpace(s.kind+" "+strings.Join(s.among, "|")))}
	}
	return nil
}
