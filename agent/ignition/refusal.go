package ignition

import (
	"bytes"
	"encoding/json"
	"html"
	"strings"
	"unicode"
	"unicode/utf8"
)

const maxMessage = 300 // characters of a gateway's own text in an error

// refusalMessage extracts the message from an error body: the MESSAGE cell of the web server's HTML page, or the
// message of a JSON document ({"message","url","status":"403"}, or {"messages":[…]} with a 422) [LIVE 8.3.6]. It
// returns "" for anything else, so that no markup of another server gets into a log.
func refusalMessage(body []byte) string {
	trimmed := bytes.TrimSpace(body)
	if len(trimmed) > 0 && trimmed[0] == '{' {
		return oneLine(jsonMessage(trimmed), maxMessage)
	}
	return oneLine(htmlMessage(decodeText(trimmed)), maxMessage)
}

func jsonMessage(body []byte) string {
	// The status is not decoded, because it is a string in some bodies and a number in others.
	var doc struct {
		Message  text   `json:"message"`
		Messages []text `json:"messages"`
	}
	if json.Unmarshal(body, &doc) != nil {
		return ""
	}
	if doc.Message != "" {
		return string(doc.Message)
	}
	var all []string
	for _, m := range doc.Messages {
		all = append(all, string(m))
	}
	return strings.Join(all, "; ")
}

func htmlMessage(page string) string {
	_, rest, ok := strings.Cut(page, "MESSAGE:")
	if !ok {
		return ""
	}
	_, rest, ok = strings.Cut(rest, "<td>")
	if !ok {
		return ""
	}
	cell, _, ok := strings.Cut(rest, "</td>")
	if !ok {
		return ""
	}
	return html.UnescapeString(dropTags(cell))
}

func dropTags(s string) string {
	var out strings.Builder
	for {
		before, rest, ok := strings.Cut(s, "<")
		out.WriteString(before)
		if !ok {
			return out.String()
		}
		if _, s, ok = strings.Cut(rest, ">"); !ok {
			return out.String()
		}
		out.WriteByte(' ')
	}
}

// decodeText decodes a page as UTF-8 if valid, otherwise as ISO 8859-1, which the gateway's web server uses.
func decodeText(page []byte) string {
	if utf8.Valid(page) {
		return string(page)
	}
	runes := make([]rune, len(page))
	for i, b := range page {
		runes[i] = rune(b)
	}
	return string(runes)
}

// oneLine makes text of a server printable: one line, no control or formatting characters, at most limit characters.
func oneLine(s string, limit int) string {
	s = strings.Map(func(r rune) rune {
		switch {
		case unicode.IsSpace(r):
			return ' '
		case r == utf8.RuneError, !unicode.IsPrint(r):
			return -1
		}
		return r
	}, s)
	s = strings.Join(strings.Fields(s), " ")
	if utf8.RuneCountInString(s) > limit {
		s = string([]rune(s)[:limit-1]) + "…"
	}
	return s
}
