// Package podcase reads the pods that tests of the injector share, from injector/inject/testdata:
//
//	base.yaml           the base pod and its GatewaySync
//	base.injected.yaml  the base pod after the injection of its agent
//	*.txtar             cases as differences from these: <case>/<file>, see the constants for the files
package podcase

import (
	"bytes"
	"cmp"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/diff"
	"github.com/rogpeppe/go-internal/txtar"
	"github.com/stretchr/testify/require"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"sigs.k8s.io/yaml"

	"stoker.io/stoker/api/v1alpha1"
)

// Base is the name of the case without any difference.
const Base = "base"

// The files of a case in an archive. The first three are the input, the others the expected result.
const (
	podFile      = "pod.yaml"               // a strategic merge patch of the base pod
	syncFile     = "gatewaysync.yaml"       // a JSON merge patch of the base GatewaySync
	otherFile    = "other-gatewaysync.yaml" // the same, for another GatewaySync of the namespace
	decisionFile = "decision.yaml"          // the inject.Decision
	diffFile     = "injected.diff"          // from base.injected.yaml to the injected pod
)

// Case is a pod that gets an agent, and the GatewaySyncs of its namespace.
type Case struct {
	Name         string
	Pod          *corev1.Pod
	Raw          []byte // Pod as JSON
	GatewaySyncs []*v1alpha1.GatewaySync

	archive  string
	expected map[string][]byte
}

// All returns the base case and the cases of all archives in dir.
func All(tb testing.TB, dir string) []Case {
	tb.Helper()
	return read(tb, dir, func(string) bool { return true })
}

// read returns the cases in dir whose name is wanted.
func read(tb testing.TB, dir string, wanted func(name string) bool) []Case {
	tb.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "base.yaml"))
	require.NoError(tb, err)
	podText, syncText, _ := strings.Cut(string(text), "\n---\n")
	pod, sync := toJSON(tb, []byte(podText)), toJSON(tb, []byte(syncText))
	var list []Case
	if wanted(Base) {
		list = append(list, Case{Name: Base, Raw: pod, GatewaySyncs: []*v1alpha1.GatewaySync{merge(tb, sync, nil)}})
	}
	archives, err := filepath.Glob(filepath.Join(dir, "*.txtar"))
	require.NoError(tb, err)
	for _, file := range archives {
		archive, err := txtar.ParseFile(file)
		require.NoError(tb, err)
		files, names := map[string][]byte{}, []string{}
		for _, f := range archive.Files {
			name, _, _ := strings.Cut(f.Name, "/")
			files[f.Name] = f.Data
			if wanted(name) && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
		for _, name := range names {
			c := Case{Name: name, Raw: pod, archive: file, expected: map[string][]byte{}}
			for _, kind := range []string{decisionFile, diffFile} {
				c.expected[kind] = files[name+"/"+kind]
			}
			if patch := files[name+"/"+podFile]; patch != nil {
				c.Raw, err = strategicpatch.StrategicMergePatch(pod, toJSON(tb, patch), corev1.Pod{})
				require.NoError(tb, err, name)
			}
			c.GatewaySyncs = append(c.GatewaySyncs, merge(tb, sync, files[name+"/"+syncFile]))
			if patch := files[name+"/"+otherFile]; patch != nil {
				c.GatewaySyncs = append(c.GatewaySyncs, merge(tb, sync, patch))
			}
			list = append(list, c)
		}
	}
	for i := range list {
		list[i].Pod = &corev1.Pod{}
		require.NoError(tb, yaml.UnmarshalStrict(list[i].Raw, list[i].Pod), list[i].Name)
	}
	return list
}

// Named returns one case.
func Named(tb testing.TB, dir, name string) Case {
	tb.Helper()
	list := read(tb, dir, func(n string) bool { return n == name })
	require.Len(tb, list, 1, "no case %s in %s", name, dir)
	return list[0]
}

// Check compares the decision and the injected pod with those of the case. If update is set, it writes them instead.
func (c Case) Check(tb testing.TB, dir string, decision any, injected *corev1.Pod, update bool) {
	tb.Helper()
	result := toYAML(tb, injected)
	baseFile := filepath.Join(dir, "base.injected.yaml")
	if c.Name == Base {
		if update {
			require.NoError(tb, os.WriteFile(baseFile, result, 0o644))
		}
		want, err := os.ReadFile(baseFile)
		require.NoError(tb, err)
		require.Empty(tb, string(diff.Diff("want", want, "got", result)), "the injected base pod differs; run go test -update")
		return
	}
	base, err := os.ReadFile(baseFile)
	require.NoError(tb, err)
	got := map[string][]byte{decisionFile: toYAML(tb, decision), diffFile: diff.Diff(Base, base, c.Name, result)}
	for _, kind := range []string{decisionFile, diffFile} {
		if update {
			c.write(tb, kind, got[kind])
		} else {
			require.Equal(tb, string(c.expected[kind]), string(got[kind]), "%s of %s in %s; run go test -update", kind, c.Name, c.archive)
		}
	}
}

// write replaces a file of the case in its archive, or adds it after the other files of the case.
func (c Case) write(tb testing.TB, kind string, data []byte) {
	tb.Helper()
	archive, err := txtar.ParseFile(c.archive)
	require.NoError(tb, err)
	index := 0
	for i, f := range archive.Files {
		if f.Name == c.Name+"/"+kind {
			archive.Files = slices.Delete(archive.Files, i, i+1)
			index = i
			break
		}
		if strings.HasPrefix(f.Name, c.Name+"/") {
			index = i + 1
		}
	}
	archive.Files = slices.Insert(archive.Files, index, txtar.File{Name: c.Name + "/" + kind, Data: data})
	require.NoError(tb, os.WriteFile(c.archive, txtar.Format(archive), 0o644))
}

// merge applies a JSON merge patch in YAML to a GatewaySync.
func merge(tb testing.TB, sync, patch []byte) *v1alpha1.GatewaySync {
	tb.Helper()
	raw, err := jsonpatch.MergePatch(sync, toJSON(tb, []byte(cmp.Or(string(patch), "{}"))))
	require.NoError(tb, err)
	gs := &v1alpha1.GatewaySync{}
	require.NoError(tb, yaml.UnmarshalStrict(raw, gs))
	return gs
}

func toJSON(tb testing.TB, text []byte) []byte {
	tb.Helper()
	raw, err := yaml.YAMLToJSONStrict(text)
	require.NoError(tb, err)
	return bytes.TrimSpace(raw)
}

func toYAML(tb testing.TB, value any) []byte {
	tb.Helper()
	raw, err := json.Marshal(value)
	require.NoError(tb, err)
	text, err := yaml.JSONToYAML(raw)
	require.NoError(tb, err)
	return text
}
