package main

import (
	"go/ast"
	"strings"
	"unicode"
	"unicode/utf8"
)

// initial returns the default of a field, or "required".
func initial(f structField) string {
	if _, ok := f.markers["required"]; ok {
		return "required"
	}
	value := f.markers["kubebuilder:default"]
	switch {
	case value == "" || value == "{}":
		return ""
	case strings.HasPrefix(value, "{"):
		return "`[" + strings.ReplaceAll(strings.Trim(value, "{}"), ",", ", ") + "]`"
	}
	return "`" + strings.Trim(value, `"`) + "`"
}

// prose returns the comment of a type without the type's name at the beginning.
func prose(doc, name string) string {
	rest, ok := strings.CutPrefix(doc, name+" ")
	if !ok {
		return cell(doc)
	}
	return sentence(cell(rest))
}

// sentence removes "is" or "are" at the beginning, and capitalizes the first word.
func sentence(s string) string {
	s = strings.TrimPrefix(strings.TrimPrefix(s, "is "), "are ")
	r, n := utf8.DecodeRuneInString(s)
	return string(unicode.ToUpper(r)) + s[n:]
}

// cell returns a text for a cell of a table. It marks templates, patterns and annotations as code.
func cell(s string) string {
	words := splitWords(s)
	for i, w := range words {
		open := len(w) - len(strings.TrimLeft(w, "("))
		end := len(strings.TrimRight(w, ".,;:)"))
		if strings.HasPrefix(w, `\`) {
			end = len(strings.TrimRight(w, ",;:)")) // the dot is what is escaped
		}
		if bare := w[open:max(open, end)]; isCode(bare) {
			words[i] = w[:open] + "`" + bare + "`" + w[end:]
		}
	}
	return strings.ReplaceAll(strings.Join(words, " "), "|", `\|`)
}

// splitWords splits a text at spaces. A quoted phrase is one word.
func splitWords(s string) (words []string) {
	quoted := false
	for w := range strings.SplitSeq(s, " ") {
		if quoted {
			words[len(words)-1] += " " + w
		} else {
			words = append(words, w)
		}
		quoted = quoted != (strings.Count(w, `"`)%2 == 1)
	}
	return words
}

func isCode(word string) bool {
	return strings.ContainsAny(word, `*\`) || strings.Contains(word, "{{") || strings.HasSuffix(word, "/…") ||
		strings.Contains(word, ".io/")
}

// typeName returns the name of the type of a field, or of the elements of its list or map.
func typeName(e ast.Expr) string {
	switch t := e.(type) {
	case *ast.StarExpr:
		return typeName(t.X)
	case *ast.ArrayType:
		return typeName(t.Elt)
	case *ast.MapType:
		return typeName(t.Value)
	case *ast.Ident:
		return t.Name
	}
	return ""
}

// suffix returns what follows the path of a list or map in the path of its elements.
func suffix(e ast.Expr) string {
	switch e.(type) {
	case *ast.ArrayType:
		return "[]"
	case *ast.MapType:
		return ".*"
	}
	return ""
}
