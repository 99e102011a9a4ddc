package ui

import (
	"context"
	"errors"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"stoker.io/stoker/agent/audit"
	"stoker.io/stoker/api/v1alpha1/syntax"
	"stoker.io/stoker/hooks/agents"
)

// syncPage is the page of the files that one sync changed.
type syncPage struct {
	frame
	Fleet    fleet
	Gateway  gateway
	At       moment
	From, To string
	Compare  string // address of the text of the change, or ""

	Added, Modified, Deleted int
	Projects                 []string
	Changes                  []fileChange
	More                     int
	Truncated                bool
	Search, ID               string
}

type fileChange struct {
	Path, Action, Before, After string
	Text                        string // address of the page with its text, or ""
	Link                        string // address of the file at the git host, or ""
}

func (s *Server) serveSync(w http.ResponseWriter, r *http.Request) {
	f, g, l, ok := s.requestedGateway(w, r)
	if !ok {
		return
	}
	id := r.URL.Query().Get("id")
	ctx, cancel := context.WithTimeout(r.Context(), queryTimeout)
	defer cancel()
	a, err := agents.Of(ctx, f.site.Clients.Core, f.Namespace, g.row)
	found := err == nil
	var d audit.Diff
	if found {
		d, err = a.Diff(ctx, id)
	}
	if err != nil {
		n := s.agentNotice(err, f.Namespace)
		if found && apierrors.IsNotFound(err) {
			n = notice{toneUnknown, "There is no report of this sync", "The agent keeps the reports of the last ten syncs that changed files."}
		}
		status := http.StatusBadGateway
		if apierrors.IsForbidden(err) || apierrors.IsNotFound(err) || errors.Is(err, context.DeadlineExceeded) {
			status = http.StatusNotFound
		}
		s.writeProblem(w, status, n.Title, n.Text)
		return
	}
	p := syncPage{frame: s.newFrame(f.site, "Changes of a sync", crumb{"Fleets", "/"}, crumb{f.Name, f.Path}, crumb{g.Name, g.Path}), Fleet: f, Gateway: g,
		From: shortID(d.FromCommit), To: shortID(d.ToCommit), Added: d.FilesAdded, Modified: d.FilesModified, Deleted: d.FilesDeleted, Truncated: d.Truncated,
		Search: clean(r.URL.Query().Get("q"), 200), ID: id, Compare: f.compare(d.FromCommit, d.ToCommit)}
	p.At = moment{d.Timestamp, p.Now.now}
	p.Notices = f.site.notices(l)
	for _, name := range d.Projects[:min(len(d.Projects), maxRecords)] {
		p.Projects = append(p.Projects, clean(name, 64))
	}
	for _, c := range d.Changes {
		if p.Search != "" && !strings.Contains(strings.ToLower(c.Path), strings.ToLower(p.Search)) {
			continue
		}
		if len(p.Changes) == maxChanges {
			p.More++
			continue
		}
		p.Changes = append(p.Changes, fileChange{clean(c.Path, 1024), clean(c.Action, 10), shortChecksum(c.Checksum.Before), shortChecksum(c.Checksum.After), textPath(f, g, id, c.Path),
			f.web().File(d.ToCommit.String(), c.Source)})
	}
	s.writePage(w, http.StatusOK, "sync", p)
}

// shortChecksum shortens the git id of a file.
func shortChecksum(sum string) string {
	return clean(syntax.ShortCommit(strings.TrimPrefix(sum, "git:")), 7)
}
