package ui

import (
	"context"
	"html"
	"html/template"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/duration"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/syntax"
	"stoker.io/stoker/hooks/agents"
	"stoker.io/stoker/hooks/output"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/giturl"
)

// Bounds of texts in characters.
const (
	maxWord    = 253
	maxMessage = 1200
	maxCell    = 220
)

// clean returns at most n characters of a text. It replaces control characters and those that change the direction of writing.
func clean(s string, n int) string {
	if len(s) > 4*n {
		s = s[:4*n]
	}
	s = strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return ' '
		case unicode.IsControl(r) || unicode.In(r, unicode.Bidi_Control) || r == unicode.ReplacementChar:
			return '?'
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
	if r := []rune(s); len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return s
}

// number returns a number with commas between groups of three digits.
func number(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// sentence returns a text with a capital letter at its start and a period at its end.
func sentence(s string) string {
	r, size := utf8.DecodeRuneInString(s)
	if s == "" {
		return ""
	}
	return string(unicode.ToUpper(r)) + s[size:] + "."
}

// breakable returns a word such as DesignerSessionActive as HTML that allows a line break before a capital letter.
func breakable(s string) template.HTML {
	var b strings.Builder
	last := rune(0)
	for _, r := range s {
		if unicode.IsUpper(r) && unicode.IsLower(last) {
			b.WriteString("<wbr>")
		}
		b.WriteString(html.EscapeString(string(r)))
		last = r
	}
	return template.HTML(b.String())
}

// counted returns a number with its noun.
func counted(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return number(n) + " " + what
}

// moment is a time that a page shows as how long ago it was, relative to now. The title of the HTML element has the exact time.
type moment struct{ at, now time.Time }

// Known reports whether there is a time.
func (m moment) Known() bool { return !m.at.IsZero() }

// Machine returns the time for programs.
func (m moment) Machine() string { return m.at.UTC().Format(time.RFC3339) }

// Exact returns the time for people, in the zone of the machine that runs the command, which is that of the reader.
func (m moment) Exact() string { return m.at.Local().Format("2006-01-02 15:04:05 MST") }

// Ago returns how long ago the time was.
func (m moment) Ago() string {
	d := m.now.Sub(m.at)
	switch {
	case d < -time.Minute:
		return "in " + duration.HumanDuration(-d)
	case d < 10*time.Second:
		return "just now"
	}
	return duration.HumanDuration(d) + " ago"
}

// compareNatural orders names so that line-2 comes before line-10.
func compareNatural(a, b string) int {
	for a != "" && b != "" {
		da, db := leadingDigits(a), leadingDigits(b)
		if da > 0 && db > 0 {
			na, nb := strings.TrimLeft(a[:da], "0"), strings.TrimLeft(b[:db], "0")
			if len(na) != len(nb) {
				return len(na) - len(nb)
			}
			if c := strings.Compare(na, nb); c != 0 {
				return c
			}
			a, b = a[da:], b[db:]
			continue
		}
		if a[0] != b[0] {
			return int(a[0]) - int(b[0])
		}
		a, b = a[1:], b[1:]
	}
	return len(a) - len(b)
}

func leadingDigits(s string) int {
	n := 0
	for n < len(s) && s[n] >= '0' && s[n] <= '9' {
		n++
	}
	return n
}

// web returns the pages of the fleet's repository at its git host.
func (f fleet) web() giturl.Web {
	if f.gs == nil {
		return giturl.Web{}
	}
	return giturl.WebOf(f.gs.Spec.Git.Repo, f.gs.Spec.Provider())
}

// commit is a commit as pages show it.
type commit struct{ ID, Link, Subject string }

// newCommit returns a commit with the address of its page at the git host, and its subject if the status has it.
func (f fleet) newCommit(id string) commit {
	c := commit{ID: clean(syntax.ShortCommit(id), 7), Link: f.web().Commit(id)}
	if f.gs == nil || id == "" {
		return c
	}
	if t := f.gs.Status.Target; t != nil && t.Commit == id {
		c.Subject = t.Subject
	} else if i := slices.IndexFunc(f.gs.Status.History, func(h v1alpha1.CommitRecord) bool { return h.Commit == id }); i >= 0 {
		c.Subject = f.gs.Status.History[i].Subject
	}
	c.Subject = clean(c.Subject, maxMessage)
	return c
}

// Desired returns the desired commit.
func (f fleet) Desired() commit {
	if f.gs == nil || f.gs.Status.Outcome == nil || f.Commit == "" || !strings.HasPrefix(f.gs.Status.Outcome.Commit, f.Commit) {
		return commit{ID: f.Commit}
	}
	return f.newCommit(f.gs.Status.Outcome.Commit)
}

// compare returns the address of what changed between two commits at the git host, or "".
func (f fleet) compare(from, to plan.ID) string { return f.web().Compare(from.String(), to.String()) }

// textPage shows the text of what changed in one file.
type textPage struct {
	frame
	Gateway gateway
	Path    string
	OfSync  bool       // the change of a sync; else what was changed on the gateway
	Lines   []textLine // none if there is only a note
	Note    string     // why the text is not shown
}

// textLine is a line of a diff. Kind is added, deleted, hunk or "".
type textLine struct{ Kind, Text string }

// maxLine bounds a line of a diff in characters.
const maxLine = 4000

// textPath returns the address of the page with the text of a file: what the sync with this report changed, or what was changed on the gateway if
// id is "". It returns "" if the path does not fit into an address.
func textPath(f fleet, g gateway, id, path string) string {
	query := url.Values{"name": {g.row.Name}, "path": {path}}
	if id != "" {
		query.Set("id", id)
	}
	if address := query.Encode(); len(address) <= maxQuery {
		return f.Path + "/text?" + address
	}
	return ""
}

func (s *Server) serveText(w http.ResponseWriter, r *http.Request) {
	f, g, l, ok := s.requestedGateway(w, r)
	if !ok {
		return
	}
	id, path := r.URL.Query().Get("id"), r.URL.Query().Get("path")
	ctx, cancel := context.WithTimeout(r.Context(), queryTimeout)
	defer cancel()
	agent, err := agents.Of(ctx, f.site.Clients.Core, f.Namespace, g.row)
	text := ""
	switch {
	case err != nil:
	case id != "":
		text, err = agent.TextOfSync(ctx, f.site.Clients, id, []string{path})
	default:
		text, err = agent.TextDrift(ctx, f.site.Clients, []string{path})
	}
	if err != nil {
		n := textNotice(err, f.Namespace)
		s.writeProblem(w, http.StatusNotFound, n.Title, n.Text)
		return
	}
	trail := []crumb{{"Fleets", "/"}, {f.Name, f.Path}, {g.Name, g.Path}}
	p := textPage{frame: s.newFrame(f.site, "Text of a change", trail...), Gateway: g, Path: clean(path, 1024), OfSync: id != ""}
	p.Notices = f.site.notices(l)
	if p.Lines = newTextLines(text); p.Lines == nil {
		p.Note = clean(text, maxMessage)
	}
	s.writePage(w, http.StatusOK, "text", p)
}

// textNotice returns a notice about a text that the agent did not return.
func textNotice(err error, namespace string) notice {
	switch {
	case apierrors.IsForbidden(err):
		return notice{Title: "You may not see the text of files", Text: "Your user lacks the right to get pods or to create pods/exec in namespace " + clean(namespace, maxWord) +
			": " + clean(err.Error(), 400)}
	case failure.Is(err, v1alpha1.ReasonMissingSidecar):
		return notice{Title: "The pod has no agent"}
	case apierrors.IsNotFound(err):
		return notice{Title: "The pod is gone"}
	}
	return notice{Title: "The agent does not show the text", Text: clean(err.Error(), 400)}
}

// newTextLines returns the lines of a unified diff of one file, or nil if text is not one.
func newTextLines(text string) (lines []textLine) {
	if !strings.HasPrefix(text, "--- ") {
		return nil
	}
	kinds := map[byte]string{'+': "added", '-': "deleted", '@': "hunk"}
	head := 2 // the names of both sides
	for line := range strings.Lines(output.CleanText(text)) {
		line = strings.TrimSuffix(line, "\n")
		kind := ""
		if line != "" {
			kind = kinds[line[0]]
		}
		if head > 0 {
			head, kind = head-1, "hunk"
		}
		if r := []rune(line); len(r) > maxLine {
			line = string(r[:maxLine]) + "…"
		}
		lines = append(lines, textLine{kind, line})
	}
	return lines
}
