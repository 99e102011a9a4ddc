package rules

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"go.yaml.in/yaml/v3"
)

// githubConfig has what the rules check of workflows and of the configuration of Dependabot.
type githubConfig struct {
	Permissions any
	Jobs        map[string]struct {
		Permissions any
		Uses        string
		Steps       []struct{ Uses, Run string }
	}
	Updates []struct {
		Ecosystem   string `yaml:"package-ecosystem"`
		Directories []string
	}
}

var (
	withVersion = regexp.MustCompile(`@(v\d+(\.\d+)*|[0-9a-f]{40})$`)
	makeCommand = regexp.MustCompile(`\bmake ([a-z0-9-]+)`)
	makeTarget  = regexp.MustCompile(`(?m)^([a-z0-9-]+):`)
)

// brokenWorkflows returns the violations in workflows, and the modules and packages that Dependabot does not update.
func brokenWorkflows(all []file) (broken []string) {
	targets, manifests := map[string]bool{}, map[string][]string{}
	for _, f := range all {
		if f.path == "Makefile" {
			for _, m := range makeTarget.FindAllSubmatch(f.content, -1) {
				targets[string(m[1])] = true
			}
		}
		if ecosystem := map[string]string{"go.mod": "gomod", "package.json": "npm"}[path.Base(f.path)]; ecosystem != "" {
			manifests[ecosystem] = append(manifests[ecosystem], path.Join("/", path.Dir(f.path)))
		}
	}
	updated := map[string][]string{}
	for _, f := range all {
		if !strings.HasPrefix(f.path, ".github/") || !isYAML(f.path) {
			continue
		}
		var config githubConfig
		bad := func(format string, args ...any) { broken = append(broken, f.path+": "+fmt.Sprintf(format, args...)) }
		if err := yaml.Unmarshal(f.content, &config); err != nil {
			bad("%v", err)
		}
		for _, u := range config.Updates {
			updated[u.Ecosystem] = append(updated[u.Ecosystem], u.Directories...)
		}
		for name, job := range config.Jobs {
			none := config.Permissions == nil && job.Permissions == nil
			if none || config.Permissions == "write-all" || job.Permissions == "write-all" {
				bad("job %s: name the permissions that it needs", name)
			}
			for _, s := range append(job.Steps, struct{ Uses, Run string }{Uses: job.Uses}) {
				if s.Uses != "" && !withVersion.MatchString(s.Uses) {
					bad("job %s: %s has no version", name, s.Uses)
				}
				if strings.Count(strings.TrimSpace(s.Run), "\n") >= 3 {
					bad("job %s: a step of more than 3 lines belongs in a script or the Makefile, so that a developer can run it: %.60q", name, s.Run)
				}
				for _, m := range makeCommand.FindAllStringSubmatch(s.Run, -1) {
					if !targets[m[1]] {
						bad("job %s: the Makefile has no target %s", name, m[1])
					}
				}
			}
		}
	}
	for ecosystem, want := range manifests {
		if got := updated[ecosystem]; !slices.Equal(slices.Sorted(slices.Values(want)), slices.Sorted(slices.Values(got))) {
			broken = append(broken, fmt.Sprintf(".github/dependabot.yaml: %s has %v, but there are %v", ecosystem, got, want))
		}
	}
	return broken
}

func TestWorkflows(t *testing.T) { report(t, brokenWorkflows(files(t))) }

func TestWorkflowRules(t *testing.T) {
	workflow := func(permissions, job string) []string {
		return brokenWorkflows([]file{{"Makefile", []byte("build: x ## y\n")}, {".github/workflows/a.yaml", []byte("on: push\n" + permissions + "\njobs:\n  a:\n    " + job)}})
	}
	job := func(text string) []string { return workflow("permissions: {contents: read}", text) }
	dependabot := func(updates string) []string {
		return brokenWorkflows([]file{{".github/dependabot.yaml", []byte("updates:\n" + updates)}, {"go.mod", nil}, {"test/a/go.mod", nil}})
	}
	updates := func(directories string) []string {
		return dependabot("- package-ecosystem: gomod\n  directories: [" + directories + "]\n")
	}
	for name, c := range map[string]struct {
		broken []string
		want   int
	}{
		"good job":                         {job("steps: [{uses: a/b@v1.2.3}, {uses: a/b@" + strings.Repeat("0a", 20) + "}, {run: \"a\\nb\\nmake build X=1\\n\"}]"), 0},
		"not YAML":                         {job("\t"), 1},
		"long step":                        {job(`steps: [{run: "a\nb\nc\nd\n"}]`), 1},
		"no version":                       {job("steps: [{uses: a/b}, {uses: a/b@main}]"), 2},
		"reusable workflow":                {job("uses: a/b/.github/workflows/c.yaml@main"), 1},
		"all permissions":                  {job("permissions: write-all"), 1},
		"all permissions, of the workflow": {workflow("permissions: write-all", "steps: []"), 1},
		"no permissions":                   {workflow("", "steps: []"), 1},
		"permissions of the job only":      {workflow("", "permissions: {contents: read}"), 0},
		"no such target":                   {job("steps: [{run: make biuld}]"), 1},
		"good Dependabot":                  {updates("/test/a, /"), 0},
		"module is not there":              {updates("/, /test/a, /test/b"), 1},
		"module is left out":               {updates("/"), 1},
		"no entry for modules":             {dependabot("- package-ecosystem: npm\n"), 1},
		"no Dependabot":                    {brokenWorkflows([]file{{"go.mod", nil}}), 1},
	} {
		t.Run(name, func(t *testing.T) { assert.Len(t, c.broken, c.want, "%q", c.broken) })
	}
}
