package request

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/sender"
)

// Two annotations record past requests, so that a repeated request is recognized: the last ids of each sender, and the last
// tags that were followed. People read these annotations too.
const (
	maxID  = 256      // bytes of one id
	maxIDs = 32 << 10 // limit of each of the two in bytes; all annotations of an object may have 256 KiB
	// keptIDs is the number of ids per sender, keptTags the number of tags, and keptChars the limit of either list in bytes.
	keptIDs, keptTags, keptChars = 8, 16, 1024
	// maxClockSkew is how far the clock of Kargo may be ahead. Ids from further in the future say nothing about the order of others.
	maxClockSkew = 5 * time.Minute
)

// appendBounded moves or adds one to the end of a copy of the list, and drops the oldest entries above most entries and keptChars. It always
// keeps one.
func appendBounded(list []string, one string, most int) []string {
	list = append(slices.DeleteFunc(slices.Clone(list), func(s string) bool { return s == one }), one)
	list = list[max(0, len(list)-most):]
	for len(list) > 1 && len(strings.Join(list, " ")) > keptChars {
		list = list[1:]
	}
	return list
}

func fields(text string) []string {
	return slices.DeleteFunc(strings.Split(text, " "), func(s string) bool { return s == "" })
}

// readIDs parses the annotation stoker.io/requested-ids: the ids of each sender, newest last. It ignores an annotation of
// another form.
func readIDs(text string) map[string][]string {
	var have map[string]string
	if len(text) > maxIDs || json.Unmarshal([]byte(text), &have) != nil {
		have = nil
	}
	ids := make(map[string][]string, len(have))
	for sender, list := range have {
		ids[sender] = fields(list)
	}
	return ids
}

// writeIDs formats the annotation. It drops unknown senders and overlong ids, so that the annotation cannot grow.
func writeIDs(ids map[string][]string) (string, error) {
	lines := map[string]string{}
	for _, by := range sender.Names() {
		var kept []string
		for _, id := range ids[by] {
			if len(id) <= maxID {
				kept = appendBounded(kept, id, keptIDs)
			}
		}
		if len(kept) > 0 {
			lines[by] = strings.Join(kept, " ")
		}
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(lines); err != nil {
		return "", errors.Join(errors.New("the ids cannot be written"), err)
	}
	return strings.TrimSpace(b.String()), nil
}

// knownOutcome returns the outcome of a request that was made before or is older than the last one, or "" if the request is new.
func knownOutcome(ids map[string][]string, by, id string, now time.Time) (Outcome, string) {
	if id == "" {
		return "", ""
	}
	if last := newest(ids, by); older(by, id, last) && createdAt(last).Before(now.Add(maxClockSkew)) {
		return Superseded, fmt.Sprintf("promotion %s is older than %s, which was already requested", id, last)
	}
	if slices.Contains(ids[by], id) {
		return Unchanged, fmt.Sprintf("request %s of %s was already carried out", id, by)
	}
	return "", ""
}

func newest(ids map[string][]string, by string) string {
	if list := ids[by]; len(list) > 0 {
		return list[len(list)-1]
	}
	return ""
}

// Taken reports whether a request of this sender with this id is recorded as carried out.
func Taken(o v1alpha1.Requestable, by, id string) bool {
	return id != "" && slices.Contains(readIDs(o.GetAnnotations()[v1alpha1.AnnotationRequestedIDs])[by], id)
}

// NotTaken reports whether a request of Kargo with this id was certainly never carried out: it would have left its id, and only older
// ids are recorded. Nothing is certain about ids without an order (see Ordered).
func NotTaken(o v1alpha1.Requestable, id string) bool {
	last := newest(readIDs(o.GetAnnotations()[v1alpha1.AnnotationRequestedIDs]), sender.Kargo)
	return last != "" && older(sender.Kargo, last, id) && !Taken(o, sender.Kargo, id)
}

// Followed returns the tags that were followed last, newest last.
func Followed(o v1alpha1.Requestable) []string {
	text := o.GetAnnotations()[v1alpha1.AnnotationRequestedTags]
	if len(text) > maxIDs {
		return nil
	}
	tags := fields(text)
	return tags[max(0, len(tags)-keptTags):]
}

// Ordered reports whether ids of this kind have an order: the name of a Kargo promotion is <stage>.<ulid>.<freight>, and ULIDs
// sort by time.
func Ordered(by, id string) bool { return by == sender.Kargo && ulid(id) != "" }

// older reports whether id is of an older Kargo promotion than last. Ids of other senders have no order.
func older(by, id, last string) bool {
	return Ordered(by, id) && Ordered(by, last) && ulid(id) < ulid(last)
}

// digits are the digits of a ULID. Its first ten encode the milliseconds since 1970.
const digits = "0123456789abcdefghjkmnpqrstvwxyz"

// ulid returns the ULID in the name of a promotion in lower case, or "". The stage may contain dots itself.
func ulid(id string) string {
	parts := strings.Split(strings.ToLower(id), ".")
	for i := len(parts) - 1; i >= 0; i-- {
		if p := parts[i]; len(p) == 26 && p[0] <= '7' && strings.Trim(p, digits) == "" {
			return p
		}
	}
	return ""
}

// createdAt returns when a promotion was created, by the clock of Kargo.
func createdAt(id string) time.Time {
	var ms int64
	for _, c := range ulid(id)[:min(10, len(ulid(id)))] {
		ms = ms<<5 | int64(strings.IndexRune(digits, c))
	}
	return time.UnixMilli(ms)
}
