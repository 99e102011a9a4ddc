package unloaded

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/disk"
	"stoker.io/stoker/agent/ignition"
	"stoker.io/stoker/agent/plan"
)

func openDir(t *testing.T) (*disk.Dir, string) {
	t.Helper()
	data := t.TempDir()
	d, err := disk.Open(data, disk.Options{AllowUnseeded: true})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, d.Close()) })
	return d, data
}

func TestNote(t *testing.T) {
	d, _ := openDir(t)
	o, err := NewNote(d, nil).Load()
	require.NoError(t, err)
	assert.True(t, o.Empty())

	o = Set{Commit: plan.ID{1, 2}, ScanProjects: true, Projects: []string{"a"}, Deleted: []string{"b"},
		Resources: []Resource{{"core", "ignition", "database-connection", "db"}}}
	require.NoError(t, NewNote(d, nil).Save(o))
	back, err := NewNote(d, nil).Load()
	require.NoError(t, err)
	assert.Equal(t, o, back)

	require.NoError(t, NewNote(d, nil).Save(Set{Commit: plan.ID{1, 2}}))
	note, err := d.Note(unloadedNote)
	require.NoError(t, err)
	assert.Nil(t, note, "a Set with only a commit is empty")
}

// F17: an unreadable note must not count as a missing one.
func TestDamagedNote(t *testing.T) {
	for name, damage := range map[string]func(path string) error{
		"torn": func(path string) error { return os.WriteFile(path, []byte("{torn"), 0o600) },
		"resource without name": func(path string) error {
			return os.WriteFile(path, []byte(`{"resources":[{"collection":"core","module":"ignition","type":"x","name":""}]}`), 0o600)
		},
		"project outside the directory": func(path string) error { return os.WriteFile(path, []byte(`{"gone":["../../x"]}`), 0o600) },
		"a directory":                   func(path string) error { return os.MkdirAll(path+"/x", 0o700) },
		"oversized": func(path string) error {
			if err := os.WriteFile(path, nil, 0o600); err != nil {
				return err
			}
			return os.Truncate(path, 1<<30)
		},
	} {
		t.Run(name, func(t *testing.T) {
			d, data := openDir(t)
			require.NoError(t, damage(filepath.Join(data, ".stoker", "note-"+unloadedNote)))
			for range 2 { // the first call sets the note aside
				o, err := NewNote(d, nil).Load()
				require.NoError(t, err)
				assert.True(t, o.ScanProjects && o.ScanConfig)
			}
			require.NoError(t, NewNote(d, nil).Save(Set{}))
			o, err := NewNote(d, nil).Load()
			require.NoError(t, err)
			assert.True(t, o.Empty())
		})
	}
}

// The gateway can write the note, but hides nothing from the process that saved it.
func TestNoteOfThisProcess(t *testing.T) {
	d, data := openDir(t)
	n, file := NewNote(d, nil), filepath.Join(data, ".stoker", "note-"+unloadedNote)
	o := Set{Commit: plan.ID{1}, ScanProjects: true, Projects: []string{"a", "b"}}
	require.NoError(t, n.Save(o))
	// sequence: the note is removed, then replaced
	for _, content := range []string{"", `{"scanConfig":true}`} {
		if content == "" {
			require.NoError(t, os.Remove(file))
		} else {
			require.NoError(t, os.WriteFile(file, []byte(content), 0o600))
		}
		back, err := n.Load()
		require.NoError(t, err)
		assert.Equal(t, o, back)
		require.NoError(t, back.DropContradicted(d)) // changes its lists in place
	}
	require.NoError(t, n.Save(Set{}))
	back, err := n.Load()
	require.NoError(t, err)
	assert.True(t, back.Empty())
}

// Projects and resources whose name cannot be that of a file count as missing on the disk.
func TestNamesThatAreNoFiles(t *testing.T) {
	d, _ := openDir(t)
	o := Set{ScanProjects: true, Projects: []string{".stoker", strings.Repeat("x", 300), "a\\b"}, Deleted: []string{strings.Repeat("x", 300)},
		Resources: []Resource{{"core", "ignition", "type", strings.Repeat("y/", 3000) + "z"}}}
	require.NoError(t, o.DropContradicted(d))
	assert.Empty(t, o.Projects)
	assert.Empty(t, o.Resources)
}

func TestAddTwoSyncs(t *testing.T) {
	d, data := openDir(t)
	first := &plan.Changes{To: plan.ID{1}, List: []plan.Change{
		{Op: plan.Create, Path: "config/resources/core/ignition/database-connection/db/resource.json"},
		{Op: plan.Create, Path: "config/resources/core/ignition/system-properties/config.json"},
		{Op: plan.Create, Path: "projects/a/project.json"}}}
	o := Set{}.Add(first, []string{"a"}, nil)
	assert.True(t, o.ScanProjects && o.ScanConfig)
	assert.Equal(t, []Resource{{"core", "ignition", "database-connection", "db"}}, o.Resources, "singletons have no name to look up")

	second := &plan.Changes{To: plan.ID{2}, List: []plan.Change{{Op: plan.Delete, Path: "projects/a/project.json"}, {Op: plan.Create, Path: "projects/b/project.json"}}}
	o = o.Add(second, []string{"b"}, []string{"a"})
	assert.Equal(t, []string{"b"}, o.Projects)
	assert.Equal(t, []string{"a"}, o.Deleted)

	// None of it is on disk except project a, which came back.
	require.NoError(t, os.MkdirAll(filepath.Join(data, "projects/a"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(data, "projects/a/project.json"), []byte("{}"), 0o644))
	require.NoError(t, o.DropContradicted(d))
	assert.Empty(t, o.Projects)
	assert.Empty(t, o.Deleted)
	assert.Empty(t, o.Resources)
	assert.True(t, o.ScanProjects, "a superfluous scan does no harm")
}

// If a sync fails before the first file moves, the Set from before the sync is in force again. So Add must not change it.
func TestAddKeepsOldSet(t *testing.T) {
	d, data := openDir(t)
	const dir = "config/resources/core/ignition/database-connection/"
	a, b := Resource{"core", "ignition", "database-connection", "a"}, Resource{"core", "ignition", "database-connection", "b"}
	for _, r := range []Resource{a, b} {
		require.NoError(t, os.MkdirAll(filepath.Join(data, dir+r.Name), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(data, r.File()), []byte("{}"), 0o644))
	}
	before := Set{ScanConfig: true, Resources: []Resource{a, b}}
	before.Add(&plan.Changes{List: []plan.Change{{Op: plan.Delete, Path: a.File()}}}, nil, nil)
	assert.Equal(t, []Resource{a, b}, before.Resources)
	require.NoError(t, before.DropContradicted(d))
	assert.Equal(t, []Resource{a, b}, before.Resources)
}

func TestLongLists(t *testing.T) {
	changes := &plan.Changes{}
	for i := range maxListed + 50 {
		changes.List = append(changes.List, plan.Change{Op: plan.Create, Path: fmt.Sprintf("config/resources/core/ignition/database-connection/db%05d/resource.json", i)})
	}
	o := Set{}.Add(changes, nil, nil)
	assert.Len(t, o.Resources, maxListed)

	d, _ := openDir(t)
	for i := range o.Resources {
		o.Resources[i].Name += strings.Repeat("<", 200) // six bytes each in JSON
	}
	require.NoError(t, NewNote(d, nil).Save(o))
	back, err := NewNote(d, nil).Load()
	require.NoError(t, err)
	assert.Equal(t, o.Resources[:maxListed/4], back.Resources, "the list was halved twice, to less than maxBytes")
}

// shown is what a gateway shows.
type shown struct {
	listed, found []string // the projects in the list, and those that it returns by name
	names         []ignition.ResourceName
}

func (s shown) Projects(context.Context) (list []ignition.Project, err error) {
	for _, name := range s.listed {
		list = append(list, ignition.Project{Name: name})
	}
	return list, nil
}

func (s shown) Project(_ context.Context, name string) (ignition.Project, error) {
	if slices.Contains(s.found, name) {
		return ignition.Project{Name: name}, nil
	}
	return ignition.Project{}, ignition.ErrNotFound
}

func (s shown) ResourceNames(_ context.Context, _, typ string) ([]ignition.ResourceName, error) {
	if typ == "unlisted" {
		return nil, ignition.ErrNotFound
	}
	return s.names, nil
}

// The list of projects may omit those that are disabled. So CompareProjects also asks for each project by its name.
func TestCompareProjects(t *testing.T) {
	g := shown{listed: []string{"a"}, found: []string{"a", "off"}}
	m, err := CompareProjects(t.Context(), g, []string{"a", "off", "none"}, []string{"a", "off", "none"})
	require.NoError(t, err)
	assert.Equal(t, ProjectMismatches{missing: []string{"none"}, undeleted: []string{"a", "off"}}, m)
}

// The gateway lists the resource with the collections in modes. Its deployment mode is prod.
func TestCollectionsOfListedResources(t *testing.T) {
	for name, c := range map[string]struct {
		collection, typ string
		modes           []string
		loaded          bool
	}{
		"the mode":                   {"prod", "db", []string{"core", "prod"}, true},
		"core without the mode":      {"prod", "db", []string{"core"}, false},
		"core that a mode overrides": {"core", "db", []string{"prod"}, true},
		"external without core":      {"core", "db", []string{"external", "system"}, false},
		"external below core":        {"external", "db", []string{"core"}, true},
		"local alone":                {"prod", "db", []string{"local"}, true},
		"no collections":             {"prod", "db", nil, true},
		"not in effect":              {"dev", "db", []string{"core"}, true},
		"a type without a list":      {"prod", "unlisted", []string{"core"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			r := Resource{c.collection, "ignition", c.typ, "line"}
			missing, err := Unlisted(t.Context(), shown{names: []ignition.ResourceName{{Name: "other"}, {Name: "line", Modes: c.modes}}}, "prod", []Resource{r},
				slog.New(slog.DiscardHandler))
			require.NoError(t, err)
			assert.Equal(t, c.loaded, len(missing) == 0)
		})
	}
}

func TestMismatchMessagesAreBounded(t *testing.T) {
	errs := ProjectMismatches{missing: []string{"a", "b"}, undeleted: []string{"1", "2", "3", "4", "5", "6", "7"}}.Errors()
	require.Len(t, errs, 2)
	assert.ErrorContains(t, errs[0], "does not show these projects (see its log for the reason): a; b")
	assert.ErrorContains(t, errs[1], "still shows these deleted projects: 1; 2; 3; 4; 5; and 2 more")
}
