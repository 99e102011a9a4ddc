package render

import (
	"fmt"
	"slices"
	"strings"

	"github.com/tidwall/gjson"
)

// indent is one level of a gateway's indentation.
const indent = "  "

// add inserts a missing member or element into an existing container, in the layout of its siblings.
func (e *Edit) add(doc string, into gjson.Result, path []segment) (string, error) {
	for i, s := range path[1:] {
		if s.index >= 0 {
			return "", fmt.Errorf("there is no list %q for element %d; write :%d if it is a name", path[i].name, s.index, s.index)
		}
	}
	l := layoutOf(doc, into)
	value := e.newValue()
	for depth, s := range slices.Backward(path[1:]) {
		value = "{" + l.space(depth+1) + quote(s.name) + l.colon + value + l.space(depth) + "}"
	}
	if into.IsObject() {
		value = quote(path[0].name) + l.colon + value
	}
	if l.empty {
		closing := into.Index + len(into.Raw) - 1
		return doc[:into.Index+1] + l.before + value + l.outer + doc[closing:], nil
	}
	return doc[:l.end] + "," + l.before + value + doc[l.end:], nil
}

// layout is the formatting of a container's members.
type layout struct {
	before string // white space before a member
	outer  string // white space before the closing bracket of an empty container once it is filled
	colon  string
	end    int // end of the last member
	empty  bool
}

// space returns the white space before a member that is nested deeper.
func (l *layout) space(deeper int) string {
	if !strings.Contains(l.before, "\n") {
		return ""
	}
	return l.before + strings.Repeat(indent, deeper)
}

// layoutOf returns the layout of the members of into.
func layoutOf(doc string, into gjson.Result) layout {
	l := layout{empty: true, colon: ":"}
	if strings.Contains(doc, "\n") {
		l.colon = ": "
	}
	into.ForEach(func(key, value gjson.Result) bool {
		start := value.Index
		if into.IsObject() {
			start = key.Index
			l.colon = doc[key.Index+len(key.Raw) : value.Index]
		}
		before := strings.TrimRight(doc[:start], " \t\r\n")
		l.before, l.end, l.empty = doc[len(before):start], value.Index+len(value.Raw), false
		return true
	})
	if l.empty && strings.Contains(doc, "\n") {
		line := doc[strings.LastIndexByte(doc[:into.Index], '\n')+1 : into.Index]
		white := line[:len(line)-len(strings.TrimLeft(line, " \t"))]
		l.outer = "\n" + white
		l.before = l.outer + indent
	}
	return l
}
