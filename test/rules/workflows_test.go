package rules

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

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
