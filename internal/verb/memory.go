package verb

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"stoker.io/stoker/api/v1alpha1"
)

// What is remembered of the past, so that a request that comes again is known: of each sender the last ids, and the last
// tags that were followed. It stands in two annotations, which people read, too.
const (
	maxID  = 256
	maxIDs = 32 << 10 // the whole annotation; all of an object's annotations have 256 KiB together
	// keptIDs of a sender, keptTags, and how many characters either may have together.
	keptIDs, keptTags, keptChars = 8, 16, 1024
	// ahead is how far the clock of Kargo may be ahead. An id of a later time says nothing about the order of others.
	ahead = 5 * time.Minute
)

// remember returns the list with one more as its last, which is always kept; the oldest are forgotten.
func remember(list []string, one string, most int) []string {
	list = append(slices.DeleteFunc(slices.Clone(list), func(s string) bool { return s == one }), one)
	list = list[max(0, len(list)-most):]
	for len(list) > 1 && len(strings.Join(list, " ")) > keptChars {
		list = list[1:]
	}
	return list
}

func words(text string) []string {
	return slices.DeleteFunc(strings.Split(text, " "), func(s string) bool { return s == "" })
}

// readIDs reads the annotation stoker.io/requested-ids: of each sender the ids, the newest last. What somebody else wrote
// there, and is not of its form, counts for nothing.
func readIDs(text string) map[string][]string {
	var have map[string]string
	if len(text) > maxIDs || json.Unmarshal([]byte(text), &have) != nil {
		have = nil
	}
	ids := make(map[string][]string, len(have))
	for sender, list := range have {
		ids[sender] = words(list)
	}
	return ids
}

// writeIDs writes the annotation. Senders that are none, and ids that can be none, are forgotten, so that it cannot grow.
func writeIDs(ids map[string][]string) (string, error) {
	lines := map[string]string{}
	for _, sender := range Senders {
		var kept []string
		for _, id := range ids[sender] {
			if len(id) <= maxID {
				kept = remember(kept, id, keptIDs)
			}
		}
		if len(kept) > 0 {
			lines[sender] = strings.Join(kept, " ")
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

// before looks for a request in what is remembered, and says what became of it where it is not a new one.
func before(ids map[string][]string, by, id string, now time.Time) (Outcome, string) {
	if id == "" {
		return "", ""
	}
	if last := newest(ids, by); older(by, id, last) && stamped(last).Before(now.Add(ahead)) {
		return Superseded, fmt.Sprintf("promotion %s is older than %s, which was asked for already", id, last)
	}
	if slices.Contains(ids[by], id) {
		return Unchanged, fmt.Sprintf("request %s of %s was taken before", id, by)
	}
	return "", ""
}

func newest(ids map[string][]string, by string) string {
	if list := ids[by]; len(list) > 0 {
		return list[len(list)-1]
	}
	return ""
}

// Taken reports whether a request of this sender with this id was carried out before, as far as is remembered.
func Taken(gs *v1alpha1.GatewaySync, by, id string) bool {
	return id != "" && slices.Contains(readIDs(gs.Annotations[v1alpha1.AnnotationRequestedIDs])[by], id)
}

// NotTaken reports whether a request with this id is known never to have been taken: it would have left its id, and only
// ids that are older stand there. Of ids without an order nothing is known.
func NotTaken(gs *v1alpha1.GatewaySync, id string) bool {
	last := newest(readIDs(gs.Annotations[v1alpha1.AnnotationRequestedIDs]), "kargo")
	return last != "" && older("kargo", last, id) && !Taken(gs, "kargo", id)
}

// Followed are the tags that were followed last, the newest last.
func Followed(gs *v1alpha1.GatewaySync) []string {
	text := gs.Annotations[v1alpha1.AnnotationRequestedTags]
	if len(text) > maxIDs {
		return nil
	}
	tags := words(text)
	return tags[max(0, len(tags)-keptTags):]
}

// Ordered reports whether the id is one of those that have an order: the name of a promotion of Kargo is
// <stage>.<ulid>.<freight>, and ULIDs sort by time.
func Ordered(by, id string) bool { return by == "kargo" && ulid(id) != "" }

// older reports whether a promotion of Kargo is older than the last one. Ids of others have no order.
func older(by, id, last string) bool {
	return Ordered(by, id) && Ordered(by, last) && ulid(id) < ulid(last)
}

// digits are those of a ULID. Its first ten are the milliseconds since 1970.
const digits = "0123456789abcdefghjkmnpqrstvwxyz"

// ulid returns the ULID in the name of a promotion in lower case, or "". The stage may hold dots itself.
func ulid(id string) string {
	parts := strings.Split(strings.ToLower(id), ".")
	for i := len(parts) - 1; i >= 0; i-- {
		if p := parts[i]; len(p) == 26 && p[0] <= '7' && strings.Trim(p, digits) == "" {
			return p
		}
	}
	return ""
}

// stamped is when a promotion was made, by the clock of Kargo.
func stamped(id string) time.Time {
	var ms int64
	for _, c := range ulid(id)[:min(10, len(ulid(id)))] {
		ms = ms<<5 | int64(strings.IndexRune(digits, c))
	}
	return time.UnixMilli(ms)
}
