package simulator

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"path"
	"slices"
	"strings"
	"time"

	"stoker.io/stoker/test/gateway/simulator/datadir"
	"stoker.io/stoker/test/gateway/simulator/ordered"
	"stoker.io/stoker/test/gateway/simulator/resource"
)

// session is an open Designer. Gateway.mu guards it.
type session struct {
	id, user, project string
	since             time.Time
	opened            map[string]string // resource → its signature when it was opened
	notifications     int               // notifications from the project-scan module
}

// ErrConflict means that a resource was changed since the Designer opened it, for which a user would see a dialog.
var ErrConflict = errors.New("the resource was changed since it was opened")

const (
	maxSessions   = 1000
	thumbnailFile = "thumbnail.png" // of a Perspective view
)

// OpenDesigner opens a Designer session on a project and returns its id.
func (g *Gateway) OpenDesigner(user, project string) (string, error) {
	now := g.now()
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.designers) >= maxSessions {
		return "", errors.New("too many Designer sessions")
	}
	g.sessionCount++
	s := &session{id: fmt.Sprintf("designer-%d", g.sessionCount), user: user, project: project, since: now, opened: map[string]string{}}
	g.designers[s.id] = s
	return s.id, nil
}

// DesignerNotifications returns how many notifications the project-scan module sent to the Designers that are open now.
func (g *Gateway) DesignerNotifications() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := 0
	for _, s := range g.designers {
		n += s.notifications
	}
	return n
}

// CloseDesigner closes a session.
func (g *Gateway) CloseDesigner(id string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.designers[id] == nil {
		return errSession(id)
	}
	delete(g.designers, id)
	return nil
}

// OpenResource opens a loaded resource <module>/<type>/<name> of the session's project.
func (g *Gateway) OpenResource(id, resourcePath string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := g.designers[id]
	if s == nil {
		return errSession(id)
	}
	r := g.projectResource(s.project, resourcePath)
	if r == nil {
		return fmt.Errorf("the project %s has no resource %s", s.project, resourcePath)
	}
	s.opened[resourcePath] = r.StoredSignature()
	return nil
}

// SaveResource saves data files of a resource in a Designer: it writes them and resource.json, with the session's user
// as actor, and the gateway loads them at once. A Perspective view gets a thumbnail. SaveResource waits while a scan lock
// is held. If the gateway has loaded another version since the session opened the resource, it returns ErrConflict,
// unless force is set.
func (g *Gateway) SaveResource(ctx context.Context, id, resourcePath string, files map[string][]byte, force bool) error {
	if err := g.saveInDesigner(ctx, id, resourcePath, files, force); err != nil {
		return err
	}
	return g.replicate()
}

func (g *Gateway) saveInDesigner(ctx context.Context, id, resourcePath string, files map[string][]byte, force bool) error {
	if err := checkSave(resourcePath, files); err != nil {
		return err
	}
	if err := g.awaitLock(ctx, kindProjects); err != nil {
		return err
	}
	g.filesMu.Lock()
	defer g.filesMu.Unlock()
	g.mu.Lock()
	s := g.designers[id]
	if s == nil {
		g.mu.Unlock()
		return errSession(id)
	}
	old, base := g.projectResource(s.project, resourcePath), s.opened[resourcePath]
	known := g.projects[s.project] != nil
	g.mu.Unlock()
	switch {
	case !known:
		return fmt.Errorf("the gateway has no project %s", s.project)
	case old == nil:
		old = resource.New(resourcePath, "G")
		if g.before83() {
			old.Raw = map[string][]byte{}
		}
	case old.StoredSignature() != base && !force:
		return ErrConflict
	}
	files = withThumbnail(resourcePath, files)
	saved, err := g.saveProjectResource(s.project, old, s.user, files)
	if err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	s.opened[resourcePath] = saved.StoredSignature()
	return nil
}

// saveProjectResource saves and loads a resource of a project. The caller holds filesMu.
func (g *Gateway) saveProjectResource(name string, r *resource.Resource, actor string, files map[string][]byte) (*resource.Resource, error) {
	dir := path.Join(datadir.ProjectsDir, name, r.Path)
	saved, err := g.saveResource(dir, r, actor, files)
	if err == nil && !g.opts.NoBlobs {
		err = g.storeBlobs(dir, saved)
	}
	if err != nil {
		return nil, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if p := g.projects[name]; p != nil {
		changed := *p
		changed.Tree = p.Tree.With(saved)
		g.projects = maps.Clone(g.projects)
		g.projects[name] = &changed
	}
	return saved, nil
}

// withThumbnail adds the picture of a Perspective view that a Designer saves with the view.
func withThumbnail(resourcePath string, files map[string][]byte) map[string][]byte {
	view, ok := files["view.json"]
	if _, has := files[thumbnailFile]; has || !ok || !strings.HasPrefix(resourcePath, "com.inductiveautomation.perspective/views/") {
		return files
	}
	files = maps.Clone(files)
	files[thumbnailFile] = fakePNG(fmt.Sprintf("%x", sha256.Sum256(view)))
	return files
}

// SaveConfig saves a resource's config.json in a collection like the web interface. It waits while a scan lock is held,
// and the gateway loads the resource at once.
func (g *Gateway) SaveConfig(ctx context.Context, collection, resourcePath, actor string, raw []byte) error {
	files := map[string][]byte{"config.json": raw}
	if err := checkSave(resourcePath, files); err != nil {
		return err
	}
	doc, err := ordered.Parse(raw)
	if err != nil {
		return err
	}
	if g.loadedConfig().Collection(collection) == nil || collection == "external" {
		return fmt.Errorf("the collection %s is not one that the web interface writes", collection)
	}
	if err := g.awaitLock(ctx, kindConfig); err != nil {
		return err
	}
	if err := g.putConfig(collection, resourcePath, actor, doc); err != nil {
		return err
	}
	return g.replicate()
}

func checkSave(resourcePath string, files map[string][]byte) error {
	if strings.Count(resourcePath, "/") < 1 || path.Clean("/"+resourcePath) != "/"+resourcePath {
		return fmt.Errorf("%q is no resource: want <module>/<type>[/<name>]", resourcePath)
	}
	for name := range files {
		if name == "" || name == resource.File || name == ".." || strings.ContainsAny(name, `/\`) {
			return fmt.Errorf("%q is no data file", name)
		}
	}
	return nil
}

func errSession(id string) error { return fmt.Errorf("there is no Designer session %q", id) }

// projectResource must be called with mu held.
func (g *Gateway) projectResource(project, resourcePath string) *resource.Resource {
	p := g.projects[project]
	if p == nil {
		return nil
	}
	return p.Tree.Resources[resourcePath]
}

func (s *session) doc(now time.Time, seen ordered.Value) ordered.Value {
	return ordered.Object{
		{"id", s.id}, {"user", s.user}, {"uptime", now.Sub(s.since).Milliseconds()}, {"lastcomm", seen},
		{"timeout", 30000}, {"memory", ordered.Object{{"used", 512}, {"max", 2048}}}, {"project", s.project},
		{"address", "192.0.2.10"}, {"timezone", "UTC"},
	}
}

func (g *Gateway) getDesigners(w http.ResponseWriter, r *http.Request) {
	writeList(w, r, g.sessionDocs())
}

func (g *Gateway) sessionDocs() []ordered.Value {
	now := g.now()
	seen := g.moment(now)
	g.mu.Lock()
	defer g.mu.Unlock()
	items := make([]ordered.Value, 0, len(g.designers))
	for _, id := range slices.Sorted(maps.Keys(g.designers)) {
		items = append(items, g.designers[id].doc(now, seen))
	}
	return items
}

func (g *Gateway) getDesigner(w http.ResponseWriter, r *http.Request) {
	now := g.now()
	seen := g.moment(now)
	g.mu.Lock()
	var doc ordered.Value
	if s := g.designers[r.PathValue("id")]; s != nil {
		doc = s.doc(now, seen)
	}
	g.mu.Unlock()
	if doc == nil {
		htmlError(w, http.StatusNotFound, "Not Found")
		return
	}
	writeJSON(w, http.StatusOK, doc)
}

func (g *Gateway) deleteDesigner(w http.ResponseWriter, r *http.Request) {
	if err := g.CloseDesigner(r.PathValue("id")); err != nil {
		htmlError(w, http.StatusNotFound, "Not Found")
		return
	}
	writeJSON(w, http.StatusOK, ordered.Object{})
}
