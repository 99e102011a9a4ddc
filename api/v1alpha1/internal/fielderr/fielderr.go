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

// Shorten returns at most 80 bytes of a value, for a message.
func Shorten(value string) string {
	const maxLength = 80
	if len(value) <= maxLength {
		return value
	}
	return strings.ToValidUTF8(value[:maxLength], "") + "…"
}

// OneOf checks a value of an enumeration. An empty value is valid.
func OneOf[T ~string](path *field.Path, value T, allowed ...T) field.ErrorList {
	if value == "" || slices.Contains(allowed, value) {
		return nil
	}
	return field.ErrorList{field.NotSupported(path, T(Shorten(string(value))), allowed)}
}
