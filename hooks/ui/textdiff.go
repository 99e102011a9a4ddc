package ui

import (
	"context"
	"net/http"
	"net/url"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/hooks/agents"
	"stoker.io/stoker/hooks/output"
	"stoker.io/stoker/internal/failure"
)

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
