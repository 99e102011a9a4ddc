package ui

import (
	"html"
	"html/template"
	"net/http"
	"path"
	"regexp"
	"strings"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/status"
)

// troubleshooting is the path of the document that advice comes from.
const troubleshooting = "docs/how-to/troubleshooting.md"

// Advice says what a reason means and what to do.
type Advice struct {
	Reason  string
	Meaning string
	Next    string        // what happens next
	Body    template.HTML // section of the troubleshooting page
	Path    string        // of the page of the reason; "" if the reason is unknown
}

// advisor has the advice for each reason. The advice is in the embedded documentation, so pages show it without a connection to
// the Internet.
type advisor struct {
	manual   func(string) string // returns the address on the web of a page of the documentation
	byReason map[v1alpha1.Reason]Advice
}

// newAdvisor reads the troubleshooting page. A heading of level three begins the section of a reason.
func newAdvisor(page string, manual func(string) string) *advisor {
	a := &advisor{manual, map[v1alpha1.Reason]Advice{}}
	sections := map[string]string{}
	name := ""
	for line := range strings.Lines(page) {
		switch heading, isReason := strings.CutPrefix(line, "### "); {
		case isReason:
			name = strings.TrimSpace(heading)
		case strings.HasPrefix(line, "#"):
			name = ""
		case name != "":
			sections[name] += line
		}
	}
	for _, r := range v1alpha1.Reasons {
		a.byReason[r.Reason] = Advice{string(r.Reason), r.Meaning, status.Next(r.Reason), a.render(sections[string(r.Reason)]), "/reasons/" + string(r.Reason)}
	}
	return a
}

// advice returns the advice for a reason. For an unknown reason, which a newer agent or a forged report may have, the advice has
// only the name.
func (a *advisor) advice(r v1alpha1.Reason) Advice {
	if found, ok := a.byReason[r]; ok {
		return found
	}
	return Advice{Reason: clean(string(r), 64)}
}

// adviceOf returns the advice for a reason of a fleet or of one of its gateways. Its commands name the fleet.
func (a *advisor) adviceOf(f fleet, r v1alpha1.Reason) Advice {
	found := a.advice(r)
	found.Next = status.NextOf(f.Name+f.flags, r)
	return found
}

var (
	markup   = regexp.MustCompile("`([^`]+)`|\\*([^*]+)\\*|\\[([^\\]]+)\\]\\(([^)]+)\\)")
	listItem = regexp.MustCompile(`^- `)
)

// render converts a section of the documentation to HTML. It supports paragraphs, lists, code, emphasis and links. A test checks
// that the sections of reasons use nothing else.
func (a *advisor) render(section string) template.HTML {
	var b strings.Builder
	list := false
	for block := range strings.SplitSeq(strings.TrimSpace(section), "\n\n") {
		var items []string
		for line := range strings.Lines(block) {
			line = strings.TrimRight(line, "\n")
			if len(items) == 0 || listItem.MatchString(line) {
				items = append(items, line)
			} else {
				items[len(items)-1] += " " + strings.TrimSpace(line)
			}
		}
		for _, text := range items {
			if is := listItem.MatchString(text); is != list {
				list = is
				b.WriteString(map[bool]string{true: "<ul>", false: "</ul>"}[is])
			}
			tag := map[bool]string{true: "li", false: "p"}[list]
			b.WriteString("<" + tag + ">" + a.inline(listItem.ReplaceAllString(text, "")) + "</" + tag + ">")
		}
	}
	if list {
		b.WriteString("</ul>")
	}
	return template.HTML(b.String())
}

// inline converts one paragraph. Everything that is not markup is escaped.
func (a *advisor) inline(text string) string {
	var b strings.Builder
	last := 0
	for _, m := range markup.FindAllStringSubmatchIndex(text, -1) {
		b.WriteString(html.EscapeString(text[last:m[0]]))
		last = m[1]
		switch {
		case m[2] >= 0:
			b.WriteString("<code>" + html.EscapeString(text[m[2]:m[3]]) + "</code>")
		case m[4] >= 0:
			b.WriteString("<em>" + a.inline(text[m[4]:m[5]]) + "</em>")
		default:
			b.WriteString(a.link(a.inline(text[m[6]:m[7]]), text[m[8]:m[9]]))
		}
	}
	b.WriteString(html.EscapeString(text[last:]))
	return b.String()
}

// link returns a link that a section contains. A link to the section of a reason leads to the page of that reason. Any other
// relative link leads to the documentation on the web.
func (a *advisor) link(text, to string) string {
	if anchor, ok := strings.CutPrefix(to, "#"); ok {
		for _, r := range v1alpha1.Reasons {
			if strings.EqualFold(string(r.Reason), anchor) {
				return `<a href="/reasons/` + string(r.Reason) + `">` + text + `</a>`
			}
		}
		to = troubleshooting + to
	} else if !strings.Contains(to, "://") {
		to = path.Join(path.Dir(troubleshooting), to)
	}
	if !strings.Contains(to, "://") {
		to = a.manual(to)
	}
	return `<a href="` + html.EscapeString(to) + `" rel="noopener noreferrer">` + text + `</a>`
}

func (s *Server) serveReason(w http.ResponseWriter, r *http.Request) {
	a, ok := s.advisor.byReason[v1alpha1.Reason(r.PathValue("reason"))]
	if !ok {
		s.writeProblem(w, http.StatusNotFound, "There is no such reason", "")
		return
	}
	s.writePage(w, http.StatusOK, "reason", struct {
		frame
		Advice Advice
		Web    string
	}{s.newFrame(nil, a.Reason, crumb{"Fleets", "/"}), a, s.Manual(troubleshooting + "#" + strings.ToLower(a.Reason))})
}
