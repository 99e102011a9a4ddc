package chart

import (
	"bytes"
	"encoding/gob"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/ignore"
	"sigs.k8s.io/yaml"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/configsync/builder"
	"stoker.io/stoker/internal/configsync/manifest"
	"stoker.io/stoker/internal/failure"
)

// Name names Run among the functions of builder.Main.
const Name = "helm"

// kubeVersion is what templates see as the version of Kubernetes: that of client-go. The cluster's own would make objects change when the
// cluster is upgraded.
const kubeVersion = "v1.37.2"

// input is what a child decodes.
type input struct {
	Name, Namespace string
	Files           []builder.InputFile
	Values          [][]byte // as JSON
}

// Run renders a chart in a child. It returns the rendered files.
func Run(in *gob.Decoder) ([]byte, error) {
	var c input
	if err := in.Decode(&c); err != nil {
		return nil, err
	}
	first, top, err := c.render()
	if err != nil {
		return nil, err
	}
	if mentionsTime(top) || slices.ContainsFunc(c.Values, timeFunction.Match) {
		<-time.NewTimer(time.Until(time.Now().Truncate(time.Second).Add(time.Second))).C // render again in another second; the parent kills this process when its context ends
		zone := time.FixedZone("", otherZone)
		time.Local, time.UTC = zone, zone // this process does nothing else
	}
	second, _, err := c.render()
	if err != nil {
		return nil, err
	}
	var files []builder.InputFile
	size := 0
	for _, name := range slices.Sorted(maps.Keys(first)) {
		text := first[name]
		if text != second[name] {
			return nil, failure.New(v1alpha1.ReasonManifestInvalid, "%s: it renders differently each time, so that each run would change objects: "+
				"set the values that replace its random texts, keys, certificates and times", failure.Quote(name))
		}
		if size += len(text); size > manifest.MaxBytes*3/4 {
			return nil, failure.New(v1alpha1.ReasonLimitExceeded, "the objects have more than %d bytes; split it over several ConfigSyncs", manifest.MaxBytes*3/4)
		}
		files = append(files, builder.InputFile{Name: name, Content: []byte(text)})
	}
	var out bytes.Buffer
	err = gob.NewEncoder(&out).Encode(files)
	return out.Bytes(), err
}

// otherZone is the time zone of the second rendering, in seconds. It changes the year, month, day, weekday, hour and minute.
const otherZone = (400*24+1)*3600 + 60

// timeFunction matches the functions of templates whose result depends on the time.
var timeFunction = regexp.MustCompile(`\b(now|ago)\b`)

// mentionsTime reports whether a template of a chart or of its dependencies may show the time. The template may be in a value, or in any file.
func mentionsTime(c *chart.Chart) bool {
	return slices.ContainsFunc(c.Raw, func(f *chart.File) bool { return timeFunction.Match(f.Data) }) || slices.ContainsFunc(c.Dependencies(), mentionsTime)
}

// render renders the chart, and returns it with its dependencies. The names of the files are paths below the folder of the chart.
func (c *input) render() (files map[string]string, top *chart.Chart, err error) {
	top, err = c.load()
	if err != nil {
		return nil, nil, err
	}
	values := map[string]any{}
	for _, text := range c.Values {
		next := map[string]any{}
		if err := yaml.Unmarshal(text, &next); err != nil {
			return nil, nil, err
		}
		values = chartutil.MergeTables(next, values)
	}
	if err := chartutil.ProcessDependenciesWithMerge(top, values); err != nil {
		return nil, nil, err
	}
	kube, err := chartutil.ParseKubeVersion(kubeVersion)
	if err != nil {
		return nil, nil, err
	}
	capabilities := chartutil.DefaultCapabilities.Copy()
	capabilities.KubeVersion = *kube
	if wanted := top.Metadata.KubeVersion; wanted != "" && !chartutil.IsCompatibleRange(wanted, kubeVersion) {
		return nil, nil, fmt.Errorf("kubeVersion: the chart is for Kubernetes %q, and is rendered for %s: use a version of the chart for it", wanted, kubeVersion)
	}
	rendered, err := chartutil.ToRenderValuesWithSchemaValidation(top, values,
		chartutil.ReleaseOptions{Name: c.Name, Namespace: c.Namespace, Revision: 1, IsInstall: true}, capabilities, true)
	if err != nil {
		return nil, nil, err
	}
	merged, err := rendered.Table("Values")
	if err != nil {
		return nil, nil, err
	}
	if err := validate(top, merged); err != nil {
		return nil, nil, err
	}
	texts, err := engine.Render(top, rendered)
	if err != nil {
		return nil, nil, errors.New(withoutValues(err.Error()))
	}
	return result(top, texts), top, nil
}

// call matches the name of a function in an error of a template.
var call = regexp.MustCompile(`error calling (\w+)`)

// withoutValues removes from an error of a template what a function says of its arguments, which may be passwords, and all but the last
// of nested templates. What the author of the chart says with fail and required has no such part.
func withoutValues(text string) string {
	for _, m := range call.FindAllStringSubmatchIndex(text, -1) {
		if text[m[2]:m[3]] != "include" {
			text = text[:m[1]]
			break
		}
	}
	return lastOf(text, "error calling include: ")
}

// lastOf returns what follows the last separator.
func lastOf(text, separator string) string {
	if i := strings.LastIndex(text, separator); i >= 0 {
		return text[i+len(separator):]
	}
	return text
}

// load loads the chart and its dependencies without the files that .helmignore excludes.
func (c *input) load() (*chart.Chart, error) {
	rules := ignore.Empty()
	for _, f := range c.Files {
		if f.Name == ignore.HelmIgnore {
			var err error
			if rules, err = ignore.Parse(bytes.NewReader(f.Content)); err != nil {
				return nil, err
			}
		}
	}
	rules.AddDefaults()
	var files []*loader.BufferedFile
	for _, f := range c.Files {
		if !ignored(rules, f.Name) {
			files = append(files, &loader.BufferedFile{Name: f.Name, Data: bytes.TrimPrefix(f.Content, []byte("\xef\xbb\xbf"))})
		}
	}
	top, err := loader.LoadFiles(files)
	if err != nil {
		return nil, err
	}
	if strings.EqualFold(top.Metadata.Type, "library") {
		return nil, errors.New("a chart of the type library renders nothing: name it in the dependencies of another chart")
	}
	return top, checkDependencies(top)
}

// ignored reports whether a file, or a folder that contains it, is excluded.
func ignored(rules *ignore.Rules, name string) bool {
	for at, isDir := name, false; at != "."; at, isDir = path.Dir(at), true {
		if rules.Ignore(at, fileInfo{name: path.Base(at), isDir: isDir}) {
			return true
		}
	}
	return false
}

// fileInfo is what ignore.Rules need to know of a file.
type fileInfo struct {
	fs.FileInfo
	name  string
	isDir bool
}

func (f fileInfo) Name() string { return f.name }

func (f fileInfo) IsDir() bool { return f.isDir }

// checkDependencies returns an error if the chart lacks one of its dependencies.
func checkDependencies(c *chart.Chart) error {
	for _, d := range c.Metadata.Dependencies {
		if !slices.ContainsFunc(c.Dependencies(), func(have *chart.Chart) bool { return have.Name() == d.Name }) {
			return fmt.Errorf("the dependency %q is not in charts/, and nothing is fetched: run 'helm dependency build', and commit the folder charts", d.Name)
		}
	}
	return nil
}

// validate checks values against the schemas of a chart and of its dependencies.
func validate(c *chart.Chart, values map[string]any) error {
	if c.Schema != nil {
		schema, err := jsonschema.UnmarshalJSON(bytes.NewReader(c.Schema))
		if err != nil {
			return fmt.Errorf("values.schema.json of the chart %s: %w", c.Name(), err)
		}
		const at = "file:///values.schema.json"
		compiler := jsonschema.NewCompiler()
		compiler.UseLoader(noLoader{})
		if err := compiler.AddResource(at, schema); err != nil {
			return fmt.Errorf("values.schema.json of the chart %s: %w", c.Name(), err)
		}
		compiled, err := compiler.Compile(at)
		if err != nil {
			return fmt.Errorf("values.schema.json of the chart %s: %w", c.Name(), err)
		}
		if err := compiled.Validate(values); err != nil {
			return fmt.Errorf("the values do not fit values.schema.json of the chart %s: %s", c.Name(), violations(err))
		}
	}
	for _, d := range c.Dependencies() {
		own, isTable := values[d.Name()].(map[string]any)
		if !isTable {
			continue // Helm refuses other types when it merges the values
		}
		if err := validate(d, own); err != nil {
			return err
		}
	}
	return nil
}

// violations lists which value breaks which keyword of a schema, without the values.
func violations(err error) string {
	var list []string
	var add func(e *jsonschema.ValidationError)
	add = func(e *jsonschema.ValidationError) {
		if len(e.Causes) == 0 {
			list = append(list, fmt.Sprintf(".%s: %s", strings.Join(e.InstanceLocation, "."), strings.Join(e.ErrorKind.KeywordPath(), ".")))
		}
		for _, cause := range e.Causes {
			add(cause)
		}
	}
	if e, is := errors.AsType[*jsonschema.ValidationError](err); is {
		add(e)
	}
	slices.Sort(list)
	return strings.Join(list, "; ")
}

// noLoader refuses to load a schema that another schema names.
type noLoader struct{}

func (noLoader) Load(url string) (any, error) {
	return nil, fmt.Errorf("the schema names %s, and no other schema is read: copy it into definitions", url)
}

// result returns the rendered manifests, and the CustomResourceDefinitions of the folders crds.
func result(top *chart.Chart, texts map[string]string) map[string]string {
	files := map[string]string{}
	below := func(name string) string { return strings.TrimPrefix(name, top.Name()+"/") }
	for name, text := range texts {
		if !strings.HasSuffix(name, "NOTES.txt") && strings.TrimSpace(text) != "" {
			files[below(name)] = text
		}
	}
	for _, crd := range top.CRDObjects() {
		files[below(crd.Filename)] = string(crd.File.Data)
	}
	return files
}
