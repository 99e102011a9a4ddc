package scenario

import (
	"fmt"

	"stoker.io/stoker/test/gitserver"
)

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
