package simulator

import (
	"maps"
	"net/http"
	"path"
	"slices"
	"strings"

	"stoker.io/stoker/test/gateway/simulator/datadir"
	"stoker.io/stoker/test/gateway/simulator/ordered"
	"stoker.io/stoker/test/gateway/simulator/resource"
)

func (g *Gateway) loadedProjects() map[string]*resource.Project {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.projects
}

func (g *Gateway) loadedConfig() resource.Config {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.config
}

func projectDoc(all map[string]*resource.Project, p *resource.Project) ordered.Value {
	return ordered.Object{
		{"name", p.Name}, {"description", p.Description}, {"title", p.Title}, {"enabled", p.Enabled}, {"parent", p.Parent},
		{"inheritable", p.Inheritable}, {"invalidParent", resource.InvalidParent(all, p)}, {"mutable", true},
	}
}

func (g *Gateway) getProjects(w http.ResponseWriter, r *http.Request) {
	all := g.loadedProjects()
	items := make([]ordered.Value, 0, len(all))
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if all[name].Enabled || !g.opts.Unknowns.RunnableOnly {
			items = append(items, projectDoc(all, all[name]))
		}
	}
	writeList(w, r, items)
}

func (g *Gateway) getProjectNames(w http.ResponseWriter, r *http.Request) {
	all := g.loadedProjects()
	items := make([]ordered.Value, 0, len(all))
	for _, name := range slices.Sorted(maps.Keys(all)) {
		items = append(items, ordered.Object{{"name", name}})
	}
	writeList(w, r, items)
}

func (g *Gateway) getProject(w http.ResponseWriter, r *http.Request) {
	all := g.loadedProjects()
	p := all[r.PathValue("name")]
	if p == nil {
		htmlError(w, http.StatusNotFound, "Not Found")
		return
	}
	writeJSON(w, http.StatusOK, projectDoc(all, p))
}

// getResources answers the names and list routes of a type.
func (g *Gateway) getResources(w http.ResponseWriter, r *http.Request) {
	cfg := g.loadedConfig()
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
		if g.opts.Unknowns.LeafNames && short != "" {
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
func (g *Gateway) getResource(w http.ResponseWriter, r *http.Request) {
	name := path.Join(r.PathValue("module"), r.PathValue("type"), r.PathValue("name"))
	res, from, in := g.loadedConfig().Effective(name)
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

// Loaded returns the loaded files of a resource with the lower-case hex SHA-256 of each. dir is the resource's
// directory below the data directory, for example projects/P/com.inductiveautomation.perspective/views/Main. It returns
// nil if the gateway has no such resource. A project is loaded if the result for projects/P is not nil.
func (g *Gateway) Loaded(dir string) map[string]string {
	g.mu.Lock()
	defer g.mu.Unlock()
	parts := strings.SplitN(dir, "/", 3)
	if len(parts) >= 2 && parts[0] == datadir.ProjectsDir {
		p := g.projects[parts[1]]
		switch {
		case p == nil:
			return nil
		case len(parts) == 2:
			return map[string]string{}
		}
		return digests(p.Tree.Resources[parts[2]])
	}
	for _, c := range g.config {
		if rel, ok := strings.CutPrefix(dir, c.Tree.Dir+"/"); ok {
			return digests(c.Tree.Resources[rel])
		}
	}
	return nil
}

func digests(r *resource.Resource) map[string]string {
	if r == nil {
		return nil
	}
	return maps.Clone(r.Digests)
}
