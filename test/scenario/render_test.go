package scenario

import (
	"crypto/sha256"
	"fmt"
	"io"
	"maps"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/ignition/resource"
	"stoker.io/stoker/test/gateway/simulator"
	"stoker.io/stoker/test/gitserver"
)

const (
	systemDir = "config/resources/core/ignition/system-properties"
	siteCode  = "projects/line/ignition/script-python/site/code.py"
	notesFile = "projects/line/notes.txt"
)

// signedJSON returns the resource.json of a resource with one data file, signed like by a gateway.
func signedJSON(t *testing.T, file, content string) string {
	t.Helper()
	s, err := resource.ParseSigned([]byte(strings.Replace(resourceJSON(file), `"attributes": {}`, `"attributes": {
    "lastModification": {
      "actor": "maria",
      "timestamp": "2026-01-02T03:04:05Z"
    },
    "lastModificationSignature": ""
  }`, 1)))
	require.NoError(t, err)
	sum, err := s.Signature(resource.Form83, func(w io.Writer, _ string) error {
		_, err := io.WriteString(w, content)
		return err
	})
	require.NoError(t, err)
	return string(s.WithSignature(sum))
}

// newLines returns two plants with the same repository and equal GatewaySyncs.
func newLines(t *testing.T) (one, two *plant) {
	t.Helper()
	sign := func(_ *plant, o *simulator.Options) { o.Unknowns.SignConfig = true }
	one, two = newPlant(t, sign), newPlant(t, sign)
	two.git, two.repo, two.spec.repo = one.git, one.repo, one.spec.repo
	for _, p := range []*plant{one, two} {
		p.spec.mappings = [][2]string{{"shared/config", "config"}, {"'services/{{.GatewayName}}/projects'", "projects"}}
		p.spec.more = map[string]string{"projects": `, required: true, template: true, patches: [{file: "*/com.inductiveautomation.perspective/views/**/view.json",` +
			` set: {root.props.text: "{{.site}}: {{.GatewayName}}"}}]`}
		p.spec.defaults = "      vars: {site: \"042\"}\n"
	}
	return one, two
}

// line returns the edits of a commit for one gateway.
func line(t *testing.T, name string) []gitserver.Edit {
	dir := "services/" + name + "/"
	const code = "SITE = \"{{.Vars.site}}\"\nGATEWAY = \"{{.GatewayName}}\"\nLABEL = \"{{index .Labels \"example.com/area\"}}\"\n"
	return []gitserver.Edit{
		gitserver.Write(dir+"projects/line/project.json", projectJSON("Line of {{.GatewayName}}")),
		gitserver.Write(dir+viewPath, view("from git")),
		gitserver.Write(dir+viewDir+"/resource.json", signedJSON(t, "view.json", view("from git"))),
		gitserver.Write(dir+siteCode, code),
		gitserver.Write(dir+strings.Replace(siteCode, "code.py", "resource.json", 1), signedJSON(t, "code.py", code)),
		gitserver.Write(dir+notesFile, "first"),
	}
}

// expect checks the rendered files on a gateway, that the gateway has loaded them, and that it did not
// re-sign any.
func (p *plant) expect(name, site, area string) {
	p.t.Helper()
	assert.Equal(p.t, view(site+": "+name), p.read(viewPath))
	assert.Equal(p.t, projectJSON("Line of "+name), p.read("projects/line/project.json"))
	assert.Equal(p.t, fmt.Sprintf("SITE = %q\nGATEWAY = %q\nLABEL = %q\n", site, name, area), p.read(siteCode))
	assert.Equal(p.t, fmt.Sprintf("{\n  \"systemName\": %q,\n  \"x\": 1.0\n}", "north-"+name), p.read(systemDir+"/config.json"))
	want := map[string]string{}
	for _, path := range []string{viewPath, siteCode, systemDir + "/config.json"} {
		want[path] = ""
		signed := p.read(path[:strings.LastIndexByte(path, '/')] + "/resource.json")
		assert.Contains(p.t, signed, `"actor": "maria"`, "the gateway must not change %s", path)
	}
	p.checkLoaded(want)
	p.checkForeign()
}

func TestTwoGateways(t *testing.T) {
	one, two := newLines(t)
	const name = "{\n  \"systemName\": \"dev\",\n  \"x\": 1.0\n}"
	edits := append(line(t, "line-1"), line(t, "line-2")...)
	edits = append(edits, gitserver.Write("shared/"+systemDir+"/config.json", name),
		gitserver.Write("shared/"+systemDir+"/resource.json", signedJSON(t, "config.json", name)))
	first := one.repo.Commit("first", edits...)
	plants := map[string]*plant{"line-1": one, "line-2": two}
	args := func(name string) []string {
		return []string{"--gateway-name", name, "--label", "example.com/area=" + strings.TrimPrefix(name, "line-"),
			"--annotation", "stoker.io/system-name-template=north-{{.GatewayName}}"}
	}
	delivered := func(commit string) {
		t.Helper()
		for name, p := range plants {
			p.await("Synced at "+commit+" on "+name, func(s state) bool { return s.Phase == "Synced" && s.Commit == commit })
		}
	}
	for name, p := range plants {
		p.start(args(name)...)
	}
	delivered(first)
	for name, p := range plants {
		p.expect(name, "042", strings.TrimPrefix(name, "line-"))
	}

	// A commit that changes another file must not touch rendered files.
	before := map[string]map[string]string{}
	for name, p := range plants {
		before[name] = p.fingerprint()
		p.gw.Requests.Reset()
	}
	second := one.repo.Commit("second", gitserver.Write("services/line-1/"+notesFile, "second"), gitserver.Write("services/line-2/"+notesFile, "second"))
	delivered(second)
	// sequence: both gateways follow one repository, and each step follows the one before
	for name, p := range plants {
		after := p.fingerprint()
		for _, m := range []map[string]string{before[name], after} {
			maps.DeleteFunc(m, func(path, _ string) bool {
				return path == notesFile || strings.HasPrefix(path, ".stoker/") || strings.HasPrefix(path, "projects/.resources/")
			})
		}
		assert.Equal(t, before[name], after)
		assert.Equal(t, "second", p.read(notesFile))
		assert.Equal(t, 1, p.gw.Requests.Count("POST /data/api/v1/scan/projects"))
		assert.Zero(t, p.gw.Requests.Count("POST /data/api/v1/scan/config"))
	}

	// A gateway whose template fails keeps its last good commit. The other gateway is not affected.
	third := one.repo.Commit("third", gitserver.Write("services/line-2/"+notesFile, "\n{{.Nobody}}"))
	s := two.reason("TemplateFailed")
	assert.Contains(t, s.Message, notesFile+":2")
	assert.Contains(t, s.Message, "Nobody")
	assert.Equal(t, second, s.Commit)
	one.await("Synced", func(s state) bool { return s.Phase == "Synced" && s.Commit == third })
	two.expect("line-2", "042", "2")

	// Changed values with the same commit.
	fourth := one.repo.Commit("fourth", gitserver.Write("services/line-2/"+notesFile, "{{.site}}"))
	delivered(fourth)
	for _, p := range plants {
		p.spec.defaults = "      vars: {site: \"043\"}\n"
		p.saveSpec()
	}
	for name, p := range plants {
		loaded := fmt.Sprintf("%x", sha256.Sum256([]byte(view("043: "+name))))
		p.eventually("the gateway loads the new values", func() bool { return p.gw.Data.Loaded(viewDir)["view.json"] == loaded })
		p.await("Synced", func(s state) bool { return s.Phase == "Synced" })
		p.expect(name, "043", strings.TrimPrefix(name, "line-"))
	}
	assert.Equal(t, "043", two.read(notesFile))

	// sequence: the gateways stop after the steps above
	for name, p := range plants {
		p.stop()
		p.checkSecondRun(args(name)...)
	}
}

const (
	viewDir  = "projects/line/com.inductiveautomation.perspective/views/overview"
	viewPath = viewDir + "/view.json"
	inGit    = "services/gw/"
)

// view returns a Perspective view that shows a text.
func view(text string) string {
	return fmt.Sprintf("{\n  \"custom\": {},\n  \"root\": {\n    \"props\": {\n      \"text\": %q\n    },\n    \"type\": \"ia.display.label\"\n  }\n}", text)
}

// resourceJSON returns the resource.json of a resource with one data file. It has no signature, so a
// gateway signs it.
func resourceJSON(file string) string {
	return fmt.Sprintf("{\n  \"scope\": \"G\",\n  \"version\": 1,\n  \"restricted\": false,\n  \"overridable\": true,\n  \"files\": [\n    %q\n  ],\n  \"attributes\": {}\n}", file)
}

func projectJSON(title string) string {
	return fmt.Sprintf("{\n  \"title\": %q,\n  \"description\": \"\",\n  \"parent\": \"\",\n  \"enabled\": true,\n  \"inheritable\": false\n}", title)
}

// site returns the edits of a first commit: a project with a view and scripts, a config resource, and a
// file outside of the mappings.
func site(extra ...gitserver.Edit) []gitserver.Edit {
	edits := []gitserver.Edit{
		gitserver.Write("README.md", "not for the gateway"),
		gitserver.Write(inGit+"projects/line/project.json", projectJSON("Line")),
		gitserver.Write(inGit+viewPath, view("one")),
		gitserver.Write(inGit+viewDir+"/resource.json", resourceJSON("view.json")),
		gitserver.Write(inGit+"config/resources/core/ignition/database-connection/historian/config.json", `{"connectURL": "jdbc:postgresql://db/historian"}`),
		gitserver.Write(inGit+"config/resources/core/ignition/database-connection/historian/resource.json", resourceJSON("config.json")),
	}
	for i := range 12 {
		dir := fmt.Sprintf("%sprojects/line/ignition/script-python/pkg%d/mod", inGit, i)
		edits = append(edits,
			gitserver.Write(dir+"/code.py", fmt.Sprintf("def run():\n    return %d\n", i)),
			gitserver.Write(dir+"/resource.json", resourceJSON("code.py")))
	}
	return append(edits, extra...)
}
