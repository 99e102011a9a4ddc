package create_test

import (
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"stoker.io/stoker/agent/ignition/resource"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/effective"
	"stoker.io/stoker/hooks/create"
	"stoker.io/stoker/hooks/create/createtest"
	"stoker.io/stoker/hooks/offline"
	"stoker.io/stoker/hooks/preflight"
	"stoker.io/stoker/hooks/specfile"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/test/gitserver"
	"stoker.io/stoker/test/trees"
)

// commit makes a repository with one commit.
func commit(t *testing.T, edits ...gitserver.Edit) (dir string) {
	t.Helper()
	repo := gitserver.NewRepo(t, filepath.Join(t.TempDir(), "plant.git"))
	repo.Commit("first", edits...)
	return repo.Dir
}

// created creates the GatewaySync for the branch main of a repository, and checks that it passes preflight. problems are the reasons
// that preflight must find.
func created(t *testing.T, dir string, gateways []string, problems ...v1alpha1.Reason) (*create.Result, preflight.Result) {
	t.Helper()
	checkout, err := offline.Open(dir)
	require.NoError(t, err)
	defer func() { require.NoError(t, checkout.Close()) }()
	at, err := checkout.Resolve(t.Context(), "main")
	require.NoError(t, err)
	source, err := checkout.Commit(t.Context(), at)
	require.NoError(t, err)
	r, err := create.GatewaySync(create.Input{Name: "plant", Git: v1alpha1.GitSpec{Repo: dir, Ref: "main"}, Project: "press", Source: source})
	require.NoError(t, err)
	t.Logf("%s%s", r.YAML, strings.Join(append(r.Warnings, r.LeftOut...), "\n"))

	var strict v1alpha1.GatewaySync
	require.NoError(t, yaml.UnmarshalStrict(r.YAML, &strict))
	require.Equal(t, &strict, r.GatewaySync)
	in := preflight.Input{GatewaySync: r.GatewaySync, Form: resource.Form83}
	for _, g := range gateways {
		name, profile, _ := strings.Cut(g, "=")
		in.Gateways = append(in.Gateways, preflight.Gateway{Name: name, Profile: profile})
	}
	checked, err := preflight.Run(t.Context(), in)
	require.NoError(t, err)
	var found []v1alpha1.Reason
	for _, p := range checked.Problems {
		found = append(found, p.Reason)
		if !slices.Contains(problems, p.Reason) {
			t.Errorf("%s: %s", p.Reason, p.Message)
		}
	}
	assert.ElementsMatch(t, problems, found)
	return r, checked
}

// mappings returns the mappings as text: a line for each, with ! for a required one and - for an exclude.
func mappings(gs *v1alpha1.GatewaySync) string {
	var b strings.Builder
	for _, x := range gs.Spec.Sync.Defaults.ExcludePatterns {
		fmt.Fprintf(&b, "- %s\n", x)
	}
	for _, name := range slices.Sorted(maps.Keys(gs.Spec.Sync.Profiles)) {
		p := gs.Spec.Sync.Profiles[name]
		for _, x := range p.ExcludePatterns {
			fmt.Fprintf(&b, "%s - %s\n", name, x)
		}
		for _, m := range p.Mappings {
			mark := ""
			if m.Required {
				mark = " !"
			}
			fmt.Fprintf(&b, "%s: %s > %s%s\n", name, m.Source, m.Destination, mark)
		}
	}
	return b.String()
}

// want is what is expected for a tree: mappings, and parts of warnings and of paths that are left out.
type want struct {
	mappings       string
	warnings, left []string
}

var wanted = map[string]want{
	"data directory": {mappings: "- **/.gitignore\ndefault: projects > projects !\ndefault: config > config\n",
		warnings: []string{"config/ignition/keys/, config/ignition/tags/valueStore.idb, config/local/ and 1 more: never written, because they belong to the gateway"},
		left:     []string{"README.md", "db/", "gateway.xml", "ignition.conf", "modules.json", "var/"}},
	"projects in the root":                     {mappings: "default - projects/README.md\ndefault: . > projects !\n", left: []string{"README.md"}},
	"projects in the root and other folders":   {mappings: "default: Library > projects/Library !\ndefault: Press > projects/Press\n", left: []string{"docs/"}},
	"root is a project":                        {mappings: "default - projects/press/docs/\ndefault - projects/press/LICENSE\ndefault: . > projects/press !\n", left: []string{"LICENSE", "docs/"}},
	"root is a project among many files":       {mappings: "default: project.json > projects/press/project.json !\ndefault: ignition > projects/press/ignition\n", left: []string{"a", "b", "c", "d", "e", "f", "g", "h", "i"}},
	"two services":                             {mappings: "area: services/area/projects > projects !\narea: services/area/config > config\nsite: services/site/projects > projects !\nsite: services/site/config > config\n", left: []string{"docs/"}},
	"shared and sites":                         {mappings: perSite("North-Plant", "sites/North Plant", sharedBoth) + perSite("South-Plant", "sites/South Plant", sharedBoth)},
	"folders of gateways":                      {mappings: perSite("default", "gateways/{{.GatewayName}}", "shared/projects > projects\n")},
	"folders with the system name":             {mappings: perSite("default", "plants/{{.GatewayName}}")},
	"seventy lines":                            {mappings: perSite("default", "lines/{{.GatewayName}}")},
	"deployment modes":                         {mappings: "default: projects > projects !\ndefault: config > config\n"},
	"collections without resources":            {mappings: "default: gateway/projects > projects !\ndefault: gateway/core > config/resources/core\ndefault: gateway/dev > config/resources/dev\n"},
	"resources in the root":                    {mappings: "default: resources > config/resources !\n"},
	"projects for all, configuration for each": {mappings: "a: projects > projects\na: sites/a/config > config !\nb: projects > projects\nb: sites/b/config > config !\n"},
	"library without a telling name":           {mappings: perSite("filler", "filler", "foundation/projects > projects\n") + perSite("mixer", "mixer", "foundation/projects > projects\n")},
	"shared within a plant": {mappings: perSite("filler", "plants/north/filler", "common/projects > projects\n", "plants/north/shared/projects > projects\n") +
		perSite("north-mixer", "plants/north/mixer", "common/projects > projects\n", "plants/north/shared/projects > projects\n") + perSite("south-mixer", "plants/south/mixer", "common/projects > projects\n")},
	"data directories":             {mappings: perSite("north", "north/data", "shared/data/projects > projects\n") + perSite("south", "south/data", "shared/data/projects > projects\n")},
	"data directories of gateways": {mappings: perSite("default", "gateways/{{.GatewayName}}/data")},
	"kind and its gateways":        {mappings: "default: line/projects > projects !\ndefault: line/config > config\ndefault: lines/{{.GatewayName}}/config > config !\n"},
	"generated resources": {mappings: "- config/resources/*/ignition/quickstart/\n- config/resources/*/ignition/tag-definition/MQTT Engine/\n" +
		"- config/resources/*/com.inductiveautomation.opcua/one-time/\ndefault: config > config !\n"},
	"links and submodules": {mappings: "default - projects/\\[lib\\]\ndefault: projects > projects !\n",
		warnings: []string{"projects/[lib]: symbolic links", "projects/module: submodules"}, left: []string{"config (a symbolic link)", "shared (a submodule)"}},
	"secrets": {mappings: "default: projects > projects !\ndefault: config > config\n",
		warnings: []string{"database-connection/x/config.json: embedded secrets", "projects/p/ignition/x/server.pfx: keys in git"}},
	"two writers": {mappings: perSite("default", "services/a", "shared/projects > projects\n"),
		warnings: []string{"projects/lib/ignition/script-python/a/code.py: both shared/projects and services/a/projects write it; the later one wins"}},
	"files of other tools": {mappings: "- **/.editorconfig\n- **/.vscode/\ndefault: projects > projects !\n", left: []string{"web/"}},
}

// sharedBoth are the mappings of the folder shared in the tree "shared and sites".
const sharedBoth = "shared/projects > projects\nshared/config > config\n"

// perSite returns the mappings of a profile with projects and configuration, after those of shared folders.
func perSite(profile, dir string, shared ...string) string {
	var b strings.Builder
	for _, line := range strings.SplitAfter(strings.Join(shared, ""), "\n") {
		if line != "" {
			b.WriteString(profile + ": " + line)
		}
	}
	return b.String() + profile + ": " + dir + "/projects > projects !\n" + profile + ": " + dir + "/config > config\n"
}

func TestTreesOfAllShapes(t *testing.T) {
	for _, tree := range createtest.Trees() {
		t.Run(tree.Name, func(t *testing.T) {
			r, checked := created(t, commit(t, tree.Edits...), tree.Gateways)
			for _, c := range checked.Checked {
				assert.Positive(t, c.Files, c.Profile)
			}
			if tree.Name == "strange names" {
				return // TestStrangeNames checks the rest
			}
			w, ok := wanted[tree.Name]
			require.True(t, ok)
			assert.Equal(t, w.mappings, mappings(r.GatewaySync))
			assert.ElementsMatch(t, w.left, r.LeftOut)
			all := strings.Join(r.Warnings, "\n")
			for _, part := range w.warnings {
				assert.Contains(t, all, part)
			}
			if len(w.warnings) == 0 {
				assert.Empty(t, r.Warnings)
			}
		})
	}
}

// In the written YAML, the name of a folder ends neither a comment nor a scalar, and is not a template. A folder that a mapping cannot name is
// left out.
func TestStrangeNames(t *testing.T) {
	i := slices.IndexFunc(createtest.Trees(), func(tree createtest.Tree) bool { return tree.Name == "strange names" })
	r, _ := created(t, commit(t, createtest.Trees()[i].Edits...), nil)
	var sources []string
	for _, p := range r.GatewaySync.Spec.Sync.Profiles {
		for _, m := range p.Mappings {
			sources = append(sources, m.Source)
		}
	}
	assert.ElementsMatch(t, []string{"odd/yes/projects", "odd/Line 1: #2/projects", "odd/- dash/projects", "odd/it's/projects", `odd/say "hi"/projects`,
		"odd/[a]*{b}/projects", "odd/ünï/projects", "odd/null/projects", "odd/007/projects"}, sources)
	for _, pods := range r.Pods {
		var annotations map[string]string
		require.NoError(t, yaml.Unmarshal([]byte(strings.Join(pods.Annotations, "\n")), &annotations), pods.Annotations)
		assert.Equal(t, pods.Profile, annotations[v1alpha1.AnnotationProfile])
	}
	all := strings.Join(r.Warnings, "\n")
	assert.Contains(t, all, `"odd/tab\there/projects" is left out`)
	assert.Contains(t, all, `"odd/new\nkind: Secret/projects" is left out`)
	assert.Contains(t, all, `odd/{{.Vars.x}}/projects is left out, because a mapping is a template`)
	assert.NotContains(t, string(r.YAML), "\nkind: Secret")
}

func TestPointersOfLFS(t *testing.T) {
	r, _ := created(t, commit(t, createtest.LFS().Edits...), nil, v1alpha1.ReasonLFSPointer)
	assert.Equal(t, []string{"projects/press/com.x.y/images/a.png: pointers of Git LFS, and the agent refuses a commit with them: commit the files without LFS, or exclude them"}, r.Warnings)
}

// The GatewaySync that is created for the tree of an example delivers the same files as the one that the example has.
func TestExamplesDeliverTheSameFiles(t *testing.T) {
	for example, gateways := range map[string][]struct{ name, profile, annotation string }{
		"single":        {{name: "press"}},
		"secrets":       {{name: "mixer"}},
		"stages":        {{name: "dev-gateway"}},
		"config/paired": {{name: "line"}},
		"frontends":     {{name: "frontends"}, {name: "backend", profile: "backend"}},
		"areas":         {{name: "site", profile: "site"}, {name: "filling", profile: "area"}, {name: "utilities", profile: "area"}},
		"services":      {{name: "bottling", profile: "bottling", annotation: "services/bottling"}, {name: "glass", profile: "glass", annotation: "services/glass"}},
		"quickstart":    {{name: "site-a", profile: "site-a"}, {name: "site-b", profile: "site-b"}},
	} {
		t.Run(example, func(t *testing.T) {
			folder := filepath.Join("../../examples", example)
			tree := filepath.Join(folder, "repository")
			if _, err := os.Stat(tree); os.IsNotExist(err) {
				tree = folder
			}
			dir := commit(t, gitserver.Files(trees.Files(t, tree)))
			r, _ := created(t, dir, nil)
			written, err := specfile.GatewaySync(filepath.Join(folder, "gatewaysync.yaml"), nil)
			require.NoError(t, err)
			for _, g := range gateways {
				profile, annotations := g.profile, map[string]string{}
				if g.annotation != "" {
					profile, annotations[v1alpha1.AnnotationServicePath] = "", g.annotation
				}
				assert.Equal(t, delivered(t, dir, written, g.name, profile, annotations), delivered(t, dir, r.GatewaySync, g.name, g.profile, nil), g.name)
			}
		})
	}
}

// delivered returns the paths of the files that a gateway gets.
func delivered(t *testing.T, dir string, gs *v1alpha1.GatewaySync, gateway, profile string, annotations map[string]string) []string {
	t.Helper()
	checkout, err := offline.Open(dir)
	require.NoError(t, err)
	defer func() { require.NoError(t, checkout.Close()) }()
	at, err := checkout.Resolve(t.Context(), "main")
	require.NoError(t, err)
	settings, err := effective.Of(gs, profile, annotations)
	require.NoError(t, err)
	tree, err := checkout.Tree(t.Context(), offline.Gateway{Profile: settings, Form: resource.Form83, Facts: plan.Facts{GatewayName: gateway, PodName: gateway}}, at, "main")
	require.NoError(t, err)
	changes, err := tree.From(&offline.Tree{})
	require.NoError(t, err)
	var paths []string
	for _, c := range changes.List {
		paths = append(paths, c.Path)
	}
	require.NotEmpty(t, paths)
	return paths
}

func TestRealTrees(t *testing.T) {
	entries, err := os.ReadDir(trees.Root(t))
	require.NoError(t, err)
	for _, e := range entries {
		t.Run(e.Name(), func(t *testing.T) {
			dir := filepath.Join(trees.Root(t), e.Name())
			_, checked := created(t, commit(t, gitserver.Files(trees.Files(t, dir))), nil)
			assert.Greater(t, checked.Checked[0].Files, 100)
		})
	}
}

func TestNothingOfIgnition(t *testing.T) {
	for name, c := range map[string]struct {
		edits []gitserver.Edit
		says  string
	}{
		"other files":                  {[]gitserver.Edit{gitserver.Write("src/main.go", ""), gitserver.Write("README.md", "")}, "nothing of Ignition was found: a project is a folder with a project.json"},
		"project.json too large":       {[]gitserver.Edit{gitserver.Write("a/project.json", `{"title":"`+strings.Repeat("a", 1<<20)+`"}`)}, "nothing of Ignition was found"},
		"no files":                     {nil, "the tree has no files"},
		"project.json of another tool": {[]gitserver.Edit{gitserver.Write("web/project.json", `{"name":"web","targets":{}}`)}, "The tree has web/"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := commit(t, c.edits...)
			checkout, err := offline.Open(dir)
			require.NoError(t, err)
			defer func() { require.NoError(t, checkout.Close()) }()
			at, err := checkout.Resolve(t.Context(), "main")
			require.NoError(t, err)
			source, err := checkout.Commit(t.Context(), at)
			require.NoError(t, err)
			_, err = create.GatewaySync(create.Input{Name: "plant", Git: v1alpha1.GitSpec{Repo: dir, Ref: "main"}, Source: source})
			require.ErrorContains(t, err, c.says)
		})
	}
}

// endless is a repository whose every directory has a thousand directories, which are the same object.
type endless struct{ trees int }

func (e *endless) Root() plan.ID            { return plan.ID{1} }
func (e *endless) Prefetch([]plan.ID) error { return nil }
func (e *endless) Has(plan.ID) bool         { return true }
func (e *endless) WriteBlob(w io.Writer, _ plan.ID) (int64, error) {
	n, err := io.CopyN(w, zeros{}, 1<<30)
	return n, err
}

func (e *endless) Tree(plan.ID) ([]plan.Entry, error) {
	e.trees++
	list := []plan.Entry{{Name: "project.json", Mode: plan.Regular, ID: plan.ID{2}}}
	for i := range 1000 {
		list = append(list, plan.Entry{Name: fmt.Sprintf("d%03d", i), Mode: plan.Directory, ID: plan.ID{1}})
	}
	return list, nil
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// A commit can have more files than fit into memory: the same tree a thousand times at each level.
func TestReadsAreBounded(t *testing.T) {
	e := &endless{}
	_, err := create.GatewaySync(create.Input{Name: "plant", Git: v1alpha1.GitSpec{Repo: "https://git.example.com/a.git", Ref: "main"}, Source: e})
	assert.Equal(t, v1alpha1.ReasonLimitExceeded, failure.Reason(err, ""))
	assert.Less(t, e.trees, 1100) // of 1,001 entries each, until there are a million
}

// A pattern of .gitattributes that takes years to match is ignored.
func TestHostileAttributes(t *testing.T) {
	edits := append(createtest.LFS().Edits, gitserver.Write(".gitattributes", strings.Repeat("{a,aa}", 40)+".png filter=lfs\n"),
		gitserver.Write("projects/press/com.x.y/images/"+strings.Repeat("a", 60)+".gif", "x"))
	dir := commit(t, edits...)
	done := make(chan bool)
	go func() {
		defer close(done)
		created(t, dir, nil, v1alpha1.ReasonLFSPointer)
	}()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatal("the pattern is matched")
	}
}
