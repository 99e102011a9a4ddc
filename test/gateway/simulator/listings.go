package simulator

import (
	"archive/zip"
	"encoding/json"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"stoker.io/stoker/test/gateway/simulator/datadir"
	"stoker.io/stoker/test/gateway/simulator/ordered"
	"stoker.io/stoker/test/gateway/simulator/resource"
)

// listings answers what the gateway has loaded.
type listings struct {
	opts *Options
	data *Data
}

func projectDoc(all map[string]*resource.Project, p *resource.Project) ordered.Value {
	return ordered.Object{
		{"name", p.Name}, {"description", p.Description}, {"title", p.Title}, {"enabled", p.Enabled}, {"parent", p.Parent},
		{"inheritable", p.Inheritable}, {"invalidParent", resource.InvalidParent(all, p)}, {"mutable", true},
	}
}

func (l *listings) getProjects(w http.ResponseWriter, r *http.Request) {
	all := l.data.loadedProjects()
	items := make([]ordered.Value, 0, len(all))
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if all[name].Enabled || !l.opts.Unknowns.RunnableOnly {
			items = append(items, projectDoc(all, all[name]))
		}
	}
	writeList(w, r, items)
}

func (l *listings) getProjectNames(w http.ResponseWriter, r *http.Request) {
	all := l.data.loadedProjects()
	items := make([]ordered.Value, 0, len(all))
	for _, name := range slices.Sorted(maps.Keys(all)) {
		items = append(items, ordered.Object{{"name", name}})
	}
	writeList(w, r, items)
}

func (l *listings) getProject(w http.ResponseWriter, r *http.Request) {
	all := l.data.loadedProjects()
	p := all[r.PathValue("name")]
	if p == nil {
		htmlError(w, http.StatusNotFound, "Not Found")
		return
	}
	writeJSON(w, http.StatusOK, projectDoc(all, p))
}

// getResources answers the names and list routes of a type.
func (l *listings) getResources(w http.ResponseWriter, r *http.Request) {
	cfg := l.data.loadedConfig()
	prefix := r.PathValue("module") + "/" + r.PathValue("type")
	if module := r.PathValue("module"); module != "ignition" && !strings.HasPrefix(module, "com.") {
		htmlError(w, http.StatusNotFound, "Not Found")
		return
	}
	detailed := strings.HasPrefix(r.URL.Path, "/data/api/v1/resources/list/")
	items := []ordered.Value{}
	for _, name := range cfg.Names(prefix) {
		res, from, in := cfg.Effective(name)
		short := strings.TrimPrefix(strings.TrimPrefix(name, prefix), "/")
		if l.opts.Unknowns.LeafNames && short != "" {
			short = path.Base(short)
		}
		item := resourceDoc(short, res, in)
		if detailed {
			item = append(item, resourceDetails(res, from)...)
		}
		items = append(items, item)
	}
	writeList(w, r, items)
}

// getResource answers the find and singleton routes.
func (l *listings) getResource(w http.ResponseWriter, r *http.Request) {
	name := path.Join(r.PathValue("module"), r.PathValue("type"), r.PathValue("name"))
	res, from, in := l.data.loadedConfig().Effective(name)
	if res == nil {
		htmlError(w, http.StatusNotFound, "Not Found")
		return
	}
	writeJSON(w, http.StatusOK, append(resourceDoc(r.PathValue("name"), res, in), resourceDetails(res, from)...))
}

func resourceDoc(name string, r *resource.Resource, in []string) ordered.Object {
	modes := make(ordered.Array, 0, len(in))
	for _, c := range in {
		modes = append(modes, c)
	}
	return ordered.Object{{"name", name}, {"enabled", r.Enabled()}, {"modes", modes}}
}

func resourceDetails(r *resource.Resource, from string) ordered.Object {
	description, _ := ordered.Dig(r.Doc, "description").(string)
	return ordered.Object{{"collection", from}, {"description", description}, {"signature", r.StoredSignature()}, {"config", r.Config}}
}

func (l *listings) getModes(w http.ResponseWriter, r *http.Request) {
	items := []ordered.Value{}
	for _, c := range l.data.loadedConfig() {
		if c.Declared {
			items = append(items, ordered.Object{
				{"name", c.Name}, {"title", c.Title}, {"description", c.Description},
				{"resourceCount", len(c.Tree.Resources)},
			})
		}
	}
	writeList(w, r, items)
}

// getTags exports the tags of a provider from its files.
func (l *listings) getTags(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	provider := q.Get("provider")
	if provider == "" || strings.ContainsAny(provider, `/\`) || q.Get("type") != "" && q.Get("type") != "json" {
		htmlError(w, http.StatusBadRequest, "Bad Request")
		return
	}
	tags := ordered.Array{}
	for _, collection := range l.data.loadedConfig() {
		for _, kind := range []string{"tag-definition", "tag-type-definition"} {
			if kind == "tag-type-definition" && q.Get("includeUdts") != "true" {
				continue
			}
			tags = append(tags, l.tagsBelow(path.Join(collection.Tree.Dir, "ignition", kind, provider, path.Clean("/"+q.Get("path"))))...)
		}
	}
	writeJSON(w, http.StatusOK, ordered.Object{{"name", provider}, {"tagType", "Provider"}, {"tags", tags}})
}

func (l *listings) tagsBelow(dir string) ordered.Array {
	var tags ordered.Array
	_ = fs.WalkDir(l.data.root.FS(), dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || d.Name() != "tags.json" && d.Name() != "udts.json" {
			return nil //nolint:nilerr // a folder that is not there has no tags
		}
		raw, err := datadir.Read(l.data.root, name)
		if err != nil {
			return nil //nolint:nilerr // gone meanwhile
		}
		if v, err := ordered.Parse(raw); err == nil {
			list, _ := v.(ordered.Array)
			tags = append(tags, list...)
		}
		return nil
	})
	return tags
}

// getBackup serves a backup of the gateway, which is a zip file: its projects and its configuration.
func (l *listings) getBackup(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/octet-stream")
	out := zip.NewWriter(w)
	for _, dir := range []string{"projects", "config"} {
		_ = filepath.WalkDir(filepath.Join(l.opts.Data, dir), func(path string, e os.DirEntry, err error) error {
			if err != nil || !e.Type().IsRegular() {
				return nil //nolint:nilerr // it was removed meanwhile
			}
			rel, err := filepath.Rel(l.opts.Data, path)
			if err != nil {
				return err
			}
			return addFile(out, filepath.ToSlash(rel), path)
		}) // an error leaves files out of the backup, which its reader notices
	}
	_ = out.Close()
}

func addFile(out *zip.Writer, name, path string) error {
	in, err := os.Open(path)
	if err != nil {
		return nil // it was removed meanwhile
	}
	defer func() { _ = in.Close() }() // opened for reading
	w, err := out.Create(name)
	if err != nil {
		return err
	}
	_, err = io.Copy(w, in)
	return err
}

// info answers what the gateway says about itself.
type info struct {
	opts       *Options
	data       *Data
	designers  *Designers
	redundancy *Redundancy
}

func (i *info) getInfo(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, ordered.Object{
		{"name", i.name()}, {"redundancyRole", i.opts.Role}, {"edition", "standard"},
		{"ignitionVersion", i.opts.Version + " (b2026042713)"}, {"deploymentMode", i.opts.Mode},
		{"timeZone", "Coordinated Universal Time"}, {"timeZoneId", "UTC"}, {"allowUnsignedModules", false},
		{"license", ordered.Object{{"mode", "Trial"}}},
	})
}

// name returns the systemName of the configuration, unless the gateway was started with a fixed name.
// On a live gateway of version 8.3.8, systemName takes effect after a scan.
func (i *info) name() string {
	if r, _, _ := i.data.loadedConfig().Effective("ignition/system-properties"); r != nil && !i.opts.FixedName {
		if name, ok := ordered.Dig(r.Config, "systemName").(string); ok && name != "" {
			return name
		}
	}
	return i.opts.Name
}

func (i *info) getRedundancy(w http.ResponseWriter, _ *http.Request) {
	m, activity := i.redundancy.status(), "Active"
	if !m.active {
		activity = "Warm"
	}
	writeJSON(w, http.StatusOK, ordered.Object{
		{"role", i.opts.Role}, {"projectState", "Good"}, {"activityLevel", activity}, {"localId", i.opts.Name},
		{"peerConnected", m.peer}, {"peerId", i.opts.Name + "-peer"}, {"hasConfigAccess", m.access},
		{"syncPending", m.pair != nil && m.pair.isPaused()},
		{"failoverPending", false}, {"uptime", json.Number("1000")}, {"lastSyncTimestamp", json.Number("0")},
	})
}

func (i *info) getModules(w http.ResponseWriter, r *http.Request) {
	items := make([]ordered.Value, 0, len(i.opts.Modules))
	for _, id := range i.opts.Modules {
		items = append(items, ordered.Object{{"id", id}, {"name", id}, {"state", "ACTIVE"}})
	}
	writeList(w, r, items)
}

// getOverview answers with the data of the start page.
func (i *info) getOverview(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, ordered.Object{
		{"name", i.opts.Name}, {"version", i.opts.Version}, {"designerSessions", i.designers.open()},
		{"projects", len(i.data.loadedProjects())},
	})
}

func (i *info) statusPing(s State) ordered.Value {
	if s == Starting && i.opts.Unknowns.OtherStates {
		return ordered.Object{{"state", "INITIALIZING"}}
	}
	if s == Commissioning {
		return ordered.Object{{"state", string(Running)}, {"details", string(Commissioning)}}
	}
	return ordered.Object{{"state", string(s)}}
}

// gwinfo returns the text that the vendor's health checks read.
func (i *info) gwinfo(s State) string {
	status := string(s)
	if s == Commissioning {
		status = "NEEDS_COMMISSIONING"
	}
	node := "Active"
	if !i.redundancy.status().active {
		node = "Warm"
	}
	return strings.Join([]string{
		"ContextStatus=" + status, "PlatformName=" + i.opts.Name, "Version=" + i.opts.Version, "PlatformEdition=standard",
		"RedundancyStatus=" + i.opts.Role, "RedundantState=Good", "RedundantNodeActiveStatus=" + node,
	}, ";")
}
