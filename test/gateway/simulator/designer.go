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

	"stoker.io/stoker/test/gateway/simulator/ordered"
	"stoker.io/stoker/test/gateway/simulator/resource"
)

// Designers are the open Designer sessions.
type Designers struct {
	clock      *clock
	run        *run
	data       *Data
	locks      *Locks
	redundancy *Redundancy

	// run.mu guards the following fields.

	sessions map[string]*session
	count    int // of all sessions so far
}

// session is an open Designer. run.mu guards it.
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

// resetLocked drops all sessions. The caller holds run.mu.
func (d *Designers) resetLocked() { d.sessions = map[string]*session{} }

// Open opens a Designer session on a project and returns its id.
func (d *Designers) Open(user, project string) (string, error) {
	now := d.clock.now()
	d.run.mu.Lock()
	defer d.run.mu.Unlock()
	if len(d.sessions) >= maxSessions {
		return "", errors.New("too many Designer sessions")
	}
	d.count++
	s := &session{id: fmt.Sprintf("designer-%d", d.count), user: user, project: project, since: now, opened: map[string]string{}}
	d.sessions[s.id] = s
	return s.id, nil
}

// Notifications returns how many notifications the project-scan module sent to the Designers that are open now.
func (d *Designers) Notifications() int {
	d.run.mu.Lock()
	defer d.run.mu.Unlock()
	n := 0
	for _, s := range d.sessions {
		n += s.notifications
	}
	return n
}

// Close closes a session.
func (d *Designers) Close(id string) error {
	d.run.mu.Lock()
	defer d.run.mu.Unlock()
	if d.sessions[id] == nil {
		return errSession(id)
	}
	delete(d.sessions, id)
	return nil
}

// OpenResource opens a loaded resource <module>/<type>/<name> of the session's project.
func (d *Designers) OpenResource(id, resourcePath string) error {
	d.run.mu.Lock()
	defer d.run.mu.Unlock()
	s := d.sessions[id]
	if s == nil {
		return errSession(id)
	}
	r := d.data.projectResource(s.project, resourcePath)
	if r == nil {
		return fmt.Errorf("the project %s has no resource %s", s.project, resourcePath)
	}
	s.opened[resourcePath] = r.StoredSignature()
	return nil
}

// SaveResource saves data files of a resource in a Designer: it writes them and resource.json, with the session's user
// as actor, and the gateway loads them at once. A Perspective view gets a thumbnail. SaveResource waits while a scan lock
// is held. If the session has not opened the version that the gateway has loaded, SaveResource returns ErrConflict, unless
// force is set.
func (d *Designers) SaveResource(ctx context.Context, id, resourcePath string, files map[string][]byte, force bool) error {
	if err := d.save(ctx, id, resourcePath, files, force); err != nil {
		return err
	}
	return d.redundancy.replicate()
}

func (d *Designers) save(ctx context.Context, id, resourcePath string, files map[string][]byte, force bool) error {
	if err := checkSave(resourcePath, files); err != nil {
		return err
	}
	if err := d.locks.await(ctx, kindProjects); err != nil {
		return err
	}
	d.data.writing.Lock()
	defer d.data.writing.Unlock()
	d.run.mu.Lock()
	s := d.sessions[id]
	if s == nil {
		d.run.mu.Unlock()
		return errSession(id)
	}
	old, base := d.data.projectResource(s.project, resourcePath), s.opened[resourcePath]
	known := d.data.loadedProjects()[s.project] != nil
	d.run.mu.Unlock()
	switch {
	case !known:
		return fmt.Errorf("the gateway has no project %s", s.project)
	case old == nil:
		old = resource.New(resourcePath, "G")
		if d.data.opts.before83() {
			old.Raw = map[string][]byte{}
		}
	case old.StoredSignature() != base && !force:
		return ErrConflict
	}
	files = withThumbnail(resourcePath, files)
	saved, err := d.data.saveProjectResource(s.project, old, s.user, files)
	if err != nil {
		return err
	}
	d.run.mu.Lock()
	defer d.run.mu.Unlock()
	s.opened[resourcePath] = saved.StoredSignature()
	return nil
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

func checkSave(resourcePath string, files map[string][]byte) error {
	if strings.Count(resourcePath, "/") < 1 || path.Clean("/"+resourcePath) != "/"+resourcePath {
		return fmt.Errorf("%q is not a resource: want <module>/<type>[/<name>]", resourcePath)
	}
	for name := range files {
		if name == "" || name == resource.File || name == ".." || strings.ContainsAny(name, `/\`) {
			return fmt.Errorf("%q is not a data file", name)
		}
	}
	return nil
}

func errSession(id string) error { return fmt.Errorf("there is no Designer session %q", id) }

func (s *session) doc(now time.Time, seen ordered.Value) ordered.Value {
	return ordered.Object{
		{"id", s.id}, {"user", s.user}, {"uptime", now.Sub(s.since).Milliseconds()}, {"lastcomm", seen},
		{"timeout", 30000}, {"memory", ordered.Object{{"used", 512}, {"max", 2048}}}, {"project", s.project},
		{"address", "192.0.2.10"}, {"timezone", "UTC"},
	}
}

// notify sends a notification to each open Designer.
func (d *Designers) notify() {
	d.run.mu.Lock()
	defer d.run.mu.Unlock()
	for _, s := range d.sessions {
		s.notifications++
	}
}

// open returns the number of sessions.
func (d *Designers) open() int {
	d.run.mu.Lock()
	defer d.run.mu.Unlock()
	return len(d.sessions)
}

// list answers the sessions.
func (d *Designers) list(w http.ResponseWriter, r *http.Request) {
	writeList(w, r, d.docs())
}

func (d *Designers) docs() []ordered.Value {
	now := d.clock.now()
	seen := d.clock.moment(now)
	d.run.mu.Lock()
	defer d.run.mu.Unlock()
	items := make([]ordered.Value, 0, len(d.sessions))
	for _, id := range slices.Sorted(maps.Keys(d.sessions)) {
		items = append(items, d.sessions[id].doc(now, seen))
	}
	return items
}

// get answers a session.
func (d *Designers) get(w http.ResponseWriter, r *http.Request) {
	now := d.clock.now()
	seen := d.clock.moment(now)
	d.run.mu.Lock()
	var doc ordered.Value
	if s := d.sessions[r.PathValue("id")]; s != nil {
		doc = s.doc(now, seen)
	}
	d.run.mu.Unlock()
	if doc == nil {
		htmlError(w, http.StatusNotFound, "Not Found")
		return
	}
	writeJSON(w, http.StatusOK, doc)
}

// delete closes a session.
func (d *Designers) delete(w http.ResponseWriter, r *http.Request) {
	if err := d.Close(r.PathValue("id")); err != nil {
		htmlError(w, http.StatusNotFound, "Not Found")
		return
	}
	writeJSON(w, http.StatusOK, ordered.Object{})
}
