// Package fielderr makes errors about fields of a spec. They are short even if the value of the field is not.
package fielderr

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Invalid is field.Invalid with a shortened value.
func Invalid(path *field.Path, value, advice string) *field.Error {
	return field.Invalid(path, Shorten(value), advice)
}

// Shorten returns a value for a message: the value, or at most its first 80 bytes and an ellipsis.
func Shorten(value string) string {
	const maxLength = 80
	if len(value) <= maxLength {
		return value
	}
	return strings.ToValidUTF8(value[:maxLength], "") + "…"
}

// OneOf returns an error unless a value of an enumeration is allowed. An empty value is valid.
func OneOf[T ~string](path *field.Path, value T, allowed ...T) field.ErrorList {
	if value == "" || slices.Contains(allowed, value) {
		return nil
	}
	return field.ErrorList{field.NotSupported(path, T(Shorten(string(value))), allowed)}
}
