package resource

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// htmlUnsafe are the characters that a gateway escapes in the strings of its files, besides those that JSON requires. This is
// Gson's default (htmlSafe); all 63 views of a public repository show it. encoding/json escapes other characters.
const htmlUnsafe = "<>&='"

// AppendString appends a string as JSON with the escapes that a gateway uses. Invalid UTF-8 becomes U+FFFD.
func AppendString(b []byte, s string) []byte { return appendString(b, s, htmlUnsafe) }

// appendString is AppendString with the characters to escape. Signatures escape none beyond those that JSON requires.
func appendString(b []byte, s, escaped string) []byte {
	b = append(b, '"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b = append(b, '\\', byte(r))
		case r == '\b':
			b = append(b, `\b`...)
		case r == '\t':
			b = append(b, `\t`...)
		case r == '\n':
			b = append(b, `\n`...)
		case r == '\f':
			b = append(b, `\f`...)
		case r == '\r':
			b = append(b, `\r`...)
		case r < ' ', r == '\u2028', r == '\u2029', strings.ContainsRune(escaped, r):
			b = fmt.Appendf(b, `\u%04x`, r)
		default:
			b = utf8.AppendRune(b, r)
		}
	}
	return append(b, '"')
}
