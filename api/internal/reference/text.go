package main

import (
	"go/ast"
	"strings"
	"unicode"
	"unicode/utf8"
)

// initial is what counts for a field that is left out.
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

// prose turns a type's comment into a sentence that does not begin with the type's name where that reads badly.
func prose(doc, name string) string {
	rest, ok := strings.CutPrefix(doc, name+" ")
	if !ok {
		return cell(doc)
	}
	return sentence(cell(rest))
}

// sentence makes "is the…" and "names the…" begin with a capital.
func sentence(s string) string {
	s = strings.TrimPrefix(strings.TrimPrefix(s, "is "), "are ")
	r, n := utf8.DecodeRuneInString(s)
	return string(unicode.ToUpper(r)) + s[n:]
}

// cell makes a text safe within a table. Templates, patterns and annotations are code.
func cell(s string) string {
	words := strings.Split(s, " ")
	for i, w := range words {
		open := len(w) - len(strings.TrimLeft(w, "("))
		end := len(strings.TrimRight(w, ".,;:)"))
		if strings.HasPrefix(w, `\`) {
			end = len(strings.TrimRight(w, ",;:)")) // the dot belongs to what is escaped
		}
		if bare := w[open:max(open, end)]; isCode(bare) {
			words[i] = w[:open] + "`" + bare + "`" + w[end:]
		}
	}
	return strings.ReplaceAll(strings.Join(words, " "), "|", `\|`)
}

func isCode(word string) bool {
	return strings.ContainsAny(word, `*\`) || strings.Contains(word, "{{") || strings.HasSuffix(word, "/…") ||
		strings.Contains(word, ".io/")
}

// typeName is the name of the type that a field holds, in a list or map or not.
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

// suffix is how a path goes on into a list or a map.
func suffix(e ast.Expr) string {
	switch e.(type) {
	case *ast.ArrayType:
		return "[]"
	case *ast.MapType:
		return ".*"
	}
	return ""
}
