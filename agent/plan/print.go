package plan

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// maxLines is the largest number of changes that String prints.
const maxLines = 200

// Counts are the totals of a plan.
type Counts struct {
	// Each change counts in one of these, also if it counts in Conflicts.
	Added, Modified, Deleted, Kept, Adopted, Released int
	// Conflicts are files whose gateway version goes to lost+found.
	Conflicts int
}

// Counts returns the totals of the plan.
func (c *Changes) Counts() Counts {
	var n Counts
	for i := range c.List {
		x := &c.List[i]
		switch x.Op {
		case Create:
			n.Added++
		case Update:
			n.Modified++
		case Delete:
			n.Deleted++
		case Keep:
			n.Kept++
		case Adopt:
			n.Adopted++
		case Release:
			n.Released++
		}
		if x.Conflict {
			n.Conflicts++
		}
	}
	return n
}

// Writes reports whether the plan changes any file, and not only records.
func (c *Changes) Writes() bool {
	return slices.ContainsFunc(c.List, func(x Change) bool { return x.Writes() })
}

// Summary returns the plan in one line.
func (c *Changes) Summary() string {
	from := "first sync"
	if !c.From.IsZero() {
		from = c.From.Short()
	}
	text := from + " → " + c.To.Short() + ": " + c.Counts().String()
	if len(c.Mounted) > 0 {
		text += "; not synced because the gateway has mounts there: " + Enumerate(c.Mounted, 3)
	}
	return text
}

// String returns the totals that are not zero.
func (n Counts) String() string {
	var parts []string
	for _, part := range []struct {
		count int
		word  string
	}{
		{n.Added, "created"}, {n.Modified, "updated"}, {n.Deleted, "deleted"}, {n.Kept, "kept"},
		{n.Adopted, "adopted"}, {n.Released, "released"},
	} {
		if part.count > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", part.count, part.word))
		}
	}
	if len(parts) == 0 {
		return "nothing to do"
	}
	if n.Conflicts > 0 {
		parts = append(parts, fmt.Sprintf("%d to lost+found", n.Conflicts))
	}
	return strings.Join(parts, ", ")
}

// String returns the plan for display: the Summary, why the plan is held, at most maxLines changes, and the warnings. The adopted files
// follow the other changes; both are sorted by path.
func (c *Changes) String() string {
	var b strings.Builder
	b.WriteString(c.Summary() + "\n")
	if c.Held != nil {
		fmt.Fprintf(&b, "held (%s): %s\n", c.Held.Reason, c.Held.Message)
	}
	lines := 0
	for _, adopted := range []bool{false, true} {
		for i := range c.List {
			x := &c.List[i]
			if (x.Op == Adopt) != adopted {
				continue
			}
			if lines++; lines <= maxLines {
				b.WriteString(x.line() + "\n")
			}
		}
	}
	if lines > maxLines {
		fmt.Fprintf(&b, "… and %d more\n", lines-maxLines)
	}
	for _, w := range c.Warnings {
		b.WriteString("warning: " + w + "\n")
	}
	return b.String()
}

// line returns the change as a line of String.
func (c *Change) line() string {
	path := printable(c.Path)
	switch {
	case c.Op == Delete && c.Conflict:
		return "! " + path + " (deleted; the gateway's version goes to lost+found)"
	case c.Conflict:
		return "! " + path + " (the gateway's version goes to lost+found)"
	case c.Op == Create:
		return "+ " + path
	case c.Op == Update && c.ID == c.FoundID:
		return "~ " + path + " (mode)"
	case c.Op == Update:
		return "~ " + path
	case c.Op == Delete:
		return "- " + path
	case c.Op == Adopt:
		return "= " + path + " (adopted)"
	case c.Op == Keep:
		return "= " + path + " (kept: the gateway's version)"
	case c.Found.Kind == Missing:
		return "= " + path + " (already deleted)"
	}
	return "= " + path + " (released: the file stays)"
}

// printable quotes a path that could break a line or a terminal.
func printable(path string) string {
	if strings.ContainsFunc(path, func(r rune) bool { return !strconv.IsPrint(r) }) {
		return strconv.Quote(path)
	}
	return path
}

// Enumerate joins at most limit names for a message, and says how many more there are.
func Enumerate(names []string, limit int) string {
	shown := make([]string, min(len(names), limit))
	for i := range shown {
		shown[i] = printable(names[i])
	}
	text := strings.Join(shown, ", ")
	if more := len(names) - len(shown); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}
