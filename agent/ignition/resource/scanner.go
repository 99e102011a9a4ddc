package resource

import "fmt"

// maxNesting is the maximum depth of objects and lists, the same as in encoding/json.
const maxNesting = 10000

// scanner checks streamed JSON. Its memory is one byte per open bracket, whatever the size of the file. It accepts what
// encoding/json accepts (a fuzz test compares them), and a leading byte order mark, which Gson, the gateway's parser,
// skips.
type scanner struct {
	state     state
	closers   []byte // the expected closing brackets, innermost last
	literal   string // the rest of true, false or null
	hex       int    // remaining digits of a \u escape
	bom       int    // bytes of the byte order mark so far
	at        int64  // offset of the byte being read or, between two calls of write, of the next one
	line      int    // its line, from 0
	lineStart int64  // offset of the start of that line
	err       error
}

type state uint8

// The order matters. In the states from value to done, a space between two tokens is skipped. str, escape and unicode are each
// followed by the same state for a key, so that stepString can go from one to another by their difference.
const (
	start      state = iota // before the value; a byte order mark may follow
	value                   // a value must follow
	firstItem               // a value or ]
	firstKey                // a key or }
	key                     // a key must follow
	colon                   // : must follow
	after                   // a value has ended: , or a closing bracket
	done                    // the outermost value has ended
	str                     // inside a string
	strKey                  // inside a key
	escape                  // after a backslash in a string
	escapeKey               // after a backslash in a key
	unicode                 // in \uXXXX of a string
	unicodeKey              // in \uXXXX of a key
	word                    // in true, false, null
	minus                   // after -
	zero                    // after a leading 0
	integer                 // in the digits before the point
	point                   // after the point
	fraction                // in the digits after the point
	exp                     // after e
	expSign                 // after e+ or e-
	expDigits               // in the digits of the exponent
)

// betweenTokens reports whether white space is skipped in this state.
func (s state) betweenTokens() bool { return s >= value && s <= done }

// syntaxError is a position and reason at which a JSON text is invalid. Line and column count from 1, the column in
// bytes.
type syntaxError struct {
	line, column int
	text         string
}

func (e *syntaxError) Error() string { return e.text }

func (s *scanner) write(p []byte) {
	base := s.at
	for i := 0; i < len(p) && s.err == nil; i++ {
		if s.state == str || s.state == strKey { // fast path: most bytes of a file are in strings
			for i < len(p) && p[i] >= ' ' && p[i] != '"' && p[i] != '\\' {
				i++
			}
			if i == len(p) {
				break
			}
		}
		if p[i] == ' ' && s.state.betweenTokens() { // fast path: most others are indentation
			continue
		}
		s.at = base + int64(i)
		if p[i] == '\n' {
			s.newline()
			continue
		}
		s.step(p[i])
	}
	s.at = base + int64(len(p))
}

func (s *scanner) newline() {
	s.step('\n')
	s.line, s.lineStart = s.line+1, s.at+1
}

// end returns the first error of the text, also if the text ends too early. The caller calls it after the last byte.
func (s *scanner) end() error {
	if s.err != nil {
		return s.err
	}
	switch s.state {
	case done:
		return nil
	case zero, integer, fraction, expDigits:
		if len(s.closers) == 0 {
			return nil
		}
	case start:
		s.fail("the file is empty; expected JSON")
		return s.err
	}
	s.fail("the file ends in the middle of a value")
	return s.err
}

func (s *scanner) fail(format string, args ...any) {
	s.err = &syntaxError{line: s.line + 1, column: int(s.at-s.lineStart) + 1, text: fmt.Sprintf(format, args...)}
}

// step reads one byte.
func (s *scanner) step(c byte) {
	switch s.state {
	case start:
		s.stepStart(c)
	case str, strKey, escape, escapeKey, unicode, unicodeKey:
		s.stepString(c)
	case word:
		if c != s.literal[0] {
			s.fail("unexpected %s in a literal; want true, false or null", quote(c))
			return
		}
		if s.literal = s.literal[1:]; s.literal == "" {
			s.endValue()
		}
	case minus, zero, integer, point, fraction, exp, expSign, expDigits:
		s.stepNumber(c)
	default:
		if !space(c) {
			s.stepStructure(c)
		}
	}
}

const byteOrderMark = "\xef\xbb\xbf"

func (s *scanner) stepStart(c byte) {
	switch {
	case s.bom < len(byteOrderMark) && s.at == int64(s.bom) && c == byteOrderMark[s.bom]:
		s.bom++
	case s.bom > 0 && s.bom < len(byteOrderMark):
		s.fail("unexpected %s; want a value", quote(c))
	case !space(c):
		s.stepStructure(c)
	}
}

func (s *scanner) stepStructure(c byte) {
	switch s.state {
	case firstKey, key:
		switch {
		case c == '"':
			s.state = strKey
		case c == '}' && s.state == firstKey:
			s.closeBracket()
		default:
			s.fail("unexpected %s; want a key in double quotes", quote(c))
		}
	case colon:
		if c != ':' {
			s.fail("unexpected %s after a key; want a colon", quote(c))
			return
		}
		s.state = value
	case after:
		closing := s.closers[len(s.closers)-1]
		switch {
		case c == closing:
			s.closeBracket()
		case c == ',' && closing == '}':
			s.state = key
		case c == ',':
			s.state = value
		default:
			s.fail("unexpected %s after a value; want a comma or %s", quote(c), quote(closing))
		}
	case done:
		s.fail("unexpected %s after the end of the JSON value", quote(c))
	default:
		if c == ']' && s.state == firstItem {
			s.closeBracket()
			return
		}
		s.beginValue(c)
	}
}

func (s *scanner) beginValue(c byte) {
	switch {
	case c == '{':
		s.open('}', firstKey)
	case c == '[':
		s.open(']', firstItem)
	case c == '"':
		s.state = str
	case c == '-':
		s.state = minus
	case c == '0':
		s.state = zero
	case c >= '1' && c <= '9':
		s.state = integer
	case c == 't':
		s.state, s.literal = word, "true"[1:]
	case c == 'f':
		s.state, s.literal = word, "false"[1:]
	case c == 'n':
		s.state, s.literal = word, "null"[1:]
	default:
		s.fail("unexpected %s; want a value", quote(c))
	}
}

func (s *scanner) open(closing byte, next state) {
	if len(s.closers) == maxNesting {
		s.fail("nested deeper than %d", maxNesting)
		return
	}
	s.closers = append(s.closers, closing)
	s.state = next
}

// closeBracket ends an object or a list.
func (s *scanner) closeBracket() {
	s.closers = s.closers[:len(s.closers)-1]
	s.endValue()
}

// endValue ends a value.
func (s *scanner) endValue() {
	s.state = after
	if len(s.closers) == 0 {
		s.state = done
	}
}

func (s *scanner) stepString(c byte) {
	switch s.state {
	case escape, escapeKey:
		switch c {
		case 'b', 'f', 'n', 'r', 't', '\\', '/', '"':
			s.state -= escape - str
		case 'u':
			s.state += unicode - escape
			s.hex = 4
		default:
			s.fail("unexpected %s after a backslash", quote(c))
		}
	case unicode, unicodeKey:
		if !hexDigit(c) {
			s.fail("unexpected %s in a \\u escape; want a hex digit", quote(c))
			return
		}
		if s.hex--; s.hex == 0 {
			s.state -= unicode - str
		}
	default:
		switch {
		case c == '"' && s.state == strKey:
			s.state = colon
		case c == '"':
			s.endValue()
		case c == '\\':
			s.state += escape - str
		case c < ' ':
			s.fail("unexpected %s in a string; a control character must be escaped", quote(c))
		}
	}
}

func (s *scanner) stepNumber(c byte) {
	digit := c >= '0' && c <= '9'
	switch s.state {
	case minus:
		switch {
		case c == '0':
			s.state = zero
		case digit:
			s.state = integer
		default:
			s.fail("unexpected %s after a minus; want a digit", quote(c))
		}
		return
	case point, exp, expSign:
		switch {
		case digit && s.state == point:
			s.state = fraction
		case digit:
			s.state = expDigits
		case s.state == exp && (c == '+' || c == '-'):
			s.state = expSign
		default:
			s.fail("unexpected %s in a number; want a digit", quote(c))
		}
		return
	case integer, fraction, expDigits:
		if digit {
			return
		}
	}
	switch {
	case c == '.' && (s.state == zero || s.state == integer):
		s.state = point
	case (c == 'e' || c == 'E') && s.state != expDigits:
		s.state = exp
	default: // the previous byte ended the number
		if s.endValue(); !space(c) {
			s.stepStructure(c)
		}
	}
}

func space(c byte) bool { return c == ' ' || c == '\n' || c == '\t' || c == '\r' }

func hexDigit(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F'
}

func quote(c byte) string {
	if c < ' ' || c >= 0x7f {
		return fmt.Sprintf("byte 0x%02x", c)
	}
	return "'" + string(rune(c)) + "'"
}
