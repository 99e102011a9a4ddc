package ignition

import (
	"bytes"
	"encoding/json"
	"strconv"
	"time"
)

// text is a JSON string, or a number or boolean as written; other values become "". The vendor's document does not give
// the type of every field, and a field that is only shown must not make a whole response unreadable.
type text string

// UnmarshalJSON implements json.Unmarshaler.
func (t *text) UnmarshalJSON(raw []byte) error {
	raw = bytes.TrimSpace(raw)
	*t = ""
	if len(raw) == 0 {
		return nil
	}
	switch raw[0] {
	case '"':
		var s string
		if err := json.Unmarshal(raw, &s); err != nil {
			return err
		}
		*t = text(s)
	case '{', '[', 'n': // n begins null
	default:
		*t = text(raw)
	}
	return nil
}

// stamp is a time of the gateway: milliseconds since 1970 as a number [SPEC], or a text in RFC 3339. Anything else
// becomes the zero time.
type stamp struct{ time.Time }

// UnmarshalJSON implements json.Unmarshaler.
func (s *stamp) UnmarshalJSON(raw []byte) error {
	var t text
	if err := t.UnmarshalJSON(raw); err != nil {
		return err
	}
	s.Time = time.Time{}
	if ms, err := strconv.ParseInt(string(t), 10, 64); err == nil {
		if ms > 0 {
			s.Time = time.UnixMilli(ms)
		}
	} else if at, err := time.Parse(time.RFC3339Nano, string(t)); err == nil {
		s.Time = at
	}
	return nil
}
