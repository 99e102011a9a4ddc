// Package fielderr makes errors about fields of the spec. They are short, whatever the spec holds.
package fielderr

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Invalid is field.Invalid with no more of the value than a person wants to read.
func Invalid(path *field.Path, value, advice string) *field.Error {
	return field.Invalid(path, Shown(value), advice)
}

// Shown shortens a value for a message.
func Shown(value string) string {
	const most = 80
	if len(value) <= most {
		return value
	}
	return strings.ToValidUTF8(value[:most], "") + "…"
}

// OneOf checks an enumerated string; empty means left out.
func OneOf[T ~string](path *field.Path, value T, allowed ...T) field.ErrorList {
	if value == "" || slices.Contains(allowed, value) {
		return nil
	}
	return field.ErrorList{field.NotSupported(path, T(Shown(string(value))), allowed)}
}
