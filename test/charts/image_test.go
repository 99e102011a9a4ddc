package charts

import (
	"bytes"
	"debug/elf"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	certmanager "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

const root = "../.."

func stages(t *testing.T) map[string]instructions.Stage {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "Dockerfile"))
	require.NoError(t, err)
	tree, err := parser.Parse(bytes.NewReader(text))
	require.NoError(t, err)
	list, _, err := instructions.Parse(tree.AST, nil)
	require.NoError(t, err)
	found := map[string]instructions.Stage{}
	for _, s := range list {
		found[s.Name] = s
	}
	return found
}

func commands[T any](s instructions.Stage) []T {
	var found []T
	for _, c := range s.Commands {
		if c, ok := c.(T); ok {
			found = append(found, c)
		}
	}
	return found
}

// Every image of the chart is a target in the Dockerfile. It runs only its program, and not as root.
func TestImagesAreDockerfileTargets(t *testing.T) {
	t.Parallel()
	all := stages(t)
	for part, name := range parts {
		t.Run(part, func(t *testing.T) {
			require.Contains(t, all, part)
			s := all[part]
			entry := commands[*instructions.EntrypointCommand](s)
			require.Len(t, entry, 1)
			assert.Equal(t, []string{"/" + name}, entry[0].CmdLine, "the image must set the command, because the injector sets only arguments")
			copies := commands[*instructions.CopyCommand](s)
			require.Len(t, copies, 1)
			assert.Equal(t, "build", copies[0].From)
			assert.Equal(t, []string{"/out/" + name}, copies[0].SourcePaths)
			assert.Empty(t, commands[*instructions.RunCommand](s), "the image must not need a shell")
			base := all[s.BaseName]
			users := commands[*instructions.UserCommand](base)
			require.Len(t, users, 1, "base %s", s.BaseName)
			uid, _, _ := strings.Cut(users[0].User, ":")
			assert.Regexp(t, "^[1-9][0-9]*$", uid, "runAsNonRoot needs a numeric user")
		})
	}
	assert.Equal(t, "$BUILDPLATFORM", all["build"].Platform)
}

// programs holds the output of the Dockerfile's build stage, which all tests share.
var programs struct {
	sync.Once
	dir  string
	said []byte
	err  error
}

// shipped returns the path of a program. It runs the command of the build stage on the files that
// .dockerignore lets through.
func shipped(t *testing.T, part string) string {
	t.Helper()
	programs.Do(func() {
		build := stages(t)["build"]
		runs := commands[*instructions.RunCommand](build)
		require.Len(t, runs, 1)
		dir, err := os.MkdirTemp("", "stoker-images-")
		require.NoError(t, err)
		programs.dir = dir // TestMain removes it
		source, out := filepath.Join(dir, "src"), filepath.Join(dir, "out")
		buildContext(t, source)
		command := strings.ReplaceAll(strings.Join(runs[0].CmdLine, " "), "/out/", out+"/")
		cmd := exec.Command("sh", "-c", command)
		cmd.Dir = source
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOTOOLCHAIN=local", "GOFLAGS=-mod=readonly", "TARGETOS=linux", "TARGETARCH="+runtime.GOARCH, "VERSION=1.2.3")
		programs.said, programs.err = cmd.CombinedOutput()
	})
	require.NoError(t, programs.err, "%s", programs.said)
	require.NotEmpty(t, programs.dir, "the build did not run: see the first failed test")
	return filepath.Join(programs.dir, "out", part)
}

// parts maps each image to the program that it runs.
var parts = map[string]string{"agent": "agent", "injector": "injector", "receiver": "receiver", "hooks": "stoker"}

func TestImageBuild(t *testing.T) {
	t.Parallel()
	for part, name := range parts {
		t.Run(part, func(t *testing.T) {
			path := shipped(t, name)
			file, err := elf.Open(path)
			require.NoError(t, err)
			libraries, err := file.ImportedLibraries()
			require.NoError(t, err)
			assert.Empty(t, libraries, "the binary must be static")
			require.NoError(t, file.Close())
			ask := "--version"
			if name == "stoker" {
				ask = "version"
			}
			version, err := exec.CommandContext(t.Context(), path, ask).Output()
			require.NoError(t, err)
			assert.Contains(t, string(version), "1.2.3")
		})
	}
}

// buildContext copies the files that .dockerignore lets through.
func buildContext(t *testing.T, to string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, ".dockerignore"))
	require.NoError(t, err)
	var kept []string
	for line := range strings.Lines(string(text)) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "!"); ok {
			kept = append(kept, name)
		}
	}
	require.Contains(t, string(text), "\n*\n", ".dockerignore must exclude everything else")
	for _, name := range kept {
		copyFiles(t, filepath.Join(root, name), filepath.Join(to, name), func(path string) bool {
			return !strings.HasSuffix(path, "_test.go") && !slices.Contains(strings.Split(path, string(filepath.Separator)), "testdata")
		})
	}
}

// copyFiles copies a file, or the wanted files below a folder.
func copyFiles(t *testing.T, from, to string, wanted func(path string) bool) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !wanted(path) {
			return err
		}
		relative, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if err := os.MkdirAll(filepath.Dir(filepath.Join(to, relative)), 0o755); err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(to, relative), content, 0o644)
	}))
}

// others maps kinds of other projects to their Go types, because the test cluster does not serve them.
var others = map[string]func() any{
	"cert-manager.io/v1 Issuer":               func() any { return new(certmanager.Issuer) },
	"cert-manager.io/v1 Certificate":          func() any { return new(certmanager.Certificate) },
	"monitoring.coreos.com/v1 ServiceMonitor": func() any { return new(monitoring.ServiceMonitor) },
	"monitoring.coreos.com/v1 PodMonitor":     func() any { return new(monitoring.PodMonitor) },
	"monitoring.coreos.com/v1 PrometheusRule": func() any { return new(monitoring.PrometheusRule) },

	"kargo.akuity.io/v1alpha1 ClusterPromotionTask": func() any { return new(promotionTask) },
	"argoproj.io/v1alpha1 ClusterAnalysisTemplate":  func() any { return new(analysisTemplate) },
}

// promotionTask has the fields that Kargo 1.11 reads. analysisTemplate has the fields that Argo Rollouts
// 1.8 reads of our templates. Package hooks/kargo tests their behavior.
type (
	promotionTask struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata"`

		Spec struct {
			Vars []struct {
				Name  string `json:"name"`
				Value string `json:"value"`
			} `json:"vars"`
			Steps []struct {
				Uses            string `json:"uses"`
				As              string `json:"as"`
				If              string `json:"if"`
				ContinueOnError bool   `json:"continueOnError"`
				Retry           struct {
					Timeout        string `json:"timeout"`
					ErrorThreshold uint32 `json:"errorThreshold"`
				} `json:"retry"`
				Vars   []any          `json:"vars"`
				Config map[string]any `json:"config"`
			} `json:"steps"`
		} `json:"spec"`
	}
	analysisTemplate struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata"`

		Spec struct {
			Args []struct {
				Name      string `json:"name"`
				Value     string `json:"value"`
				ValueFrom struct {
					SecretKeyRef struct {
						Name string `json:"name"`
						Key  string `json:"key"`
					} `json:"secretKeyRef"`
				} `json:"valueFrom"`
			} `json:"args"`
			Metrics []struct {
				Name                  string `json:"name"`
				Interval              string `json:"interval"`
				Count                 int    `json:"count"`
				SuccessCondition      string `json:"successCondition"`
				FailureCondition      string `json:"failureCondition"`
				FailureLimit          int    `json:"failureLimit"`
				InconclusiveLimit     int    `json:"inconclusiveLimit"`
				ConsecutiveErrorLimit int    `json:"consecutiveErrorLimit"`
				Provider              struct {
					Web struct {
						URL     string `json:"url"`
						Headers []struct {
							Key   string `json:"key"`
							Value string `json:"value"`
						} `json:"headers"`
						TimeoutSeconds int    `json:"timeoutSeconds"`
						JSONPath       string `json:"jsonPath"`
					} `json:"web"`
					Job struct {
						Spec batchv1.JobSpec `json:"spec"`
					} `json:"job"`
				} `json:"provider"`
			} `json:"metrics"`
		} `json:"spec"`
	}
)

func other(o *object) (func() any, bool) {
	made, ok := others[o.GetAPIVersion()+" "+o.GetKind()]
	return made, ok
}

func TestThirdPartyObjectsAreValid(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, c := range valueCases {
		for name, o := range rendered(t, c.values()) {
			made, ok := other(o)
			if !ok {
				continue
			}
			seen[o.GetKind()] = true
			data, err := yaml.Marshal(o.Object)
			require.NoError(t, err)
			assert.NoError(t, yaml.UnmarshalStrict(data, made()), "%s with %s", name, c.path)
		}
	}
	assert.Len(t, seen, len(others))
}
