// Package render makes the objects of a ConfigSync from the files of a commit: templates, kustomizations, charts, Jsonnet, overlays, files that
// become data, and the selection by targets. It reads neither git nor the cluster. The repository may be hostile, so time, steps and sizes
// are bounded.
package render

import (
	"context"
	"encoding/base64"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	templates "stoker.io/stoker/agent/plan/render"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/configsync/builder"
	"stoker.io/stoker/internal/configsync/chart"
	"stoker.io/stoker/internal/configsync/jsonnet"
	"stoker.io/stoker/internal/configsync/kustomize"
	"stoker.io/stoker/internal/configsync/manifest"
	"stoker.io/stoker/internal/failure"
)

const (
	// maxTime bounds the rendering of all files, not counting the wait for tools of other ConfigSyncs.
	maxTime = 10 * time.Second
	// maxSteps bounds the executed parts of all templates together.
	maxSteps = 10_000_000
	// maxData bounds the total bytes of the files of one target with fromFiles.
	maxData = 1 << 20
)

// File is a file of the commit.
type File struct {
	Path    string
	Content []byte
	// One of these replaces Content if it is not nil. Path is the folder of a kustomization or a chart.
	Kustomization *kustomize.Sources
	Chart         *chart.Sources
	Jsonnet       *jsonnet.Sources
}

// built reports whether a tool makes the objects.
func (f *File) built() bool { return f.Kustomization != nil || f.Chart != nil || f.Jsonnet != nil }

// Input is everything that determines the objects.
type Input struct {
	// Layers[0] has the manifests of the path of spec.source, and each further layer those of one overlay. An object of a later layer
	// replaces that of an earlier one.
	Layers [][]File
	// Targets is spec.targets. Release is the name of the release of charts, and Values are the paths of their value files. Files has the
	// contents of the files that Targets and Values name.
	Targets []v1alpha1.ConfigTarget
	Release string
	Values  []string
	Files   map[string][]byte
	// Template enables templates, which can use Vars. Tainted means that Vars contains values of Secrets.
	Template bool
	Vars     map[string]any
	Tainted  bool
	// Secrets are the values of Secrets among Vars.
	Secrets []string
	// Namespace of the ConfigSync.
	Namespace string
}

// Objects renders all objects, in the order of the files. An error about the input carries a reason, names the file, and shows no value
// of a Secret. In each namespace, only one call at a time runs tools such as kustomize. The others wait, see builder.NewBuilder.
func Objects(ctx context.Context, in Input) ([]manifest.Object, error) {
	return objects(ctx, in, maxTime)
}

// objects is Objects with another bound on the time.
func objects(ctx context.Context, in Input, limit time.Duration) ([]manifest.Object, error) {
	r := &rendering{Input: in, remaining: manifest.MaxBytes, index: map[manifest.ID]int{}}
	all := slices.Concat(in.Layers...)
	if len(in.Values) > 0 && !slices.ContainsFunc(all, func(f File) bool { return f.Chart != nil }) {
		return nil, failure.New(v1alpha1.ReasonSourceMissing, "spec.render.valuesFiles is set, but no folder of the path has a %s: correct the path, or remove the field", chart.FileName)
	}
	if slices.ContainsFunc(all, func(f File) bool { return f.built() }) {
		b, err := builder.NewBuilder(ctx, in.Namespace)
		if err != nil {
			return nil, err
		}
		defer b.Close()
		r.builder = b
	}
	ctx, cancel := context.WithTimeoutCause(ctx, limit,
		failure.New(v1alpha1.ReasonLimitExceeded, "the manifests do not render within %s; split them over several ConfigSyncs", limit))
	defer cancel()
	for _, layer := range in.Layers {
		if err := r.addLayer(ctx, layer); err != nil {
			return nil, err
		}
	}
	if len(in.Targets) == 0 {
		return r.list, nil
	}
	return r.selectTargets()
}

// rendering is the state of one call of Objects.
type rendering struct {
	Input
	builder   *builder.Builder // nil without tools
	list      []manifest.Object
	index     map[manifest.ID]int // indexes of list
	remaining int64
	steps     int
}

// addLayer adds the objects of the manifests of one layer.
func (r *rendering) addLayer(ctx context.Context, files []File) error {
	seen := map[manifest.ID]string{}
	for _, f := range files {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		objects, err := r.fileObjects(ctx, f)
		if err != nil {
			return err
		}
		for _, o := range objects {
			id := o.ID()
			if o.Tainted && r.revealsSecret(o) {
				return failure.New(v1alpha1.ReasonManifestInvalid,
					"%s: the kind, namespace or name of an object contains a value of a Secret, which plans and the status would show: take the value from vars or a ConfigMap", failure.Quote(o.File))
			}
			if before, twice := seen[id]; twice {
				return failure.New(v1alpha1.ReasonManifestInvalid, "%s is in %s and in %s: keep one of them, or move the second one into an overlay",
					id, failure.Quote(before), failure.Quote(o.File))
			}
			seen[id] = o.File
			if err := r.add(id, o); err != nil {
				return err
			}
		}
	}
	return nil
}

// fileObjects returns the objects of a file, or those that a tool makes.
func (r *rendering) fileObjects(ctx context.Context, f File) ([]manifest.Object, error) {
	switch {
	case f.Kustomization != nil:
		return f.Kustomization.Build(ctx, r.builder, r.renderText)
	case f.Chart != nil:
		release, err := r.release()
		if err != nil {
			return nil, err
		}
		return f.Chart.Build(ctx, r.builder, release)
	case f.Jsonnet != nil:
		vars := map[string]string{}
		for name, value := range r.Vars {
			if text, isText := value.(string); isText {
				vars[name] = text
			}
		}
		return f.Jsonnet.Build(ctx, r.builder, vars, r.Tainted)
	}
	text, tainted, err := r.renderText(f.Path, f.Content)
	if err != nil {
		return nil, err
	}
	objects, err := manifest.Parse(ctx, f.Path, text)
	for i := range objects {
		objects[i].Tainted = tainted
	}
	return objects, err
}

// release returns the release of a chart, with its value files rendered.
func (r *rendering) release() (chart.Release, error) {
	release := chart.Release{Name: r.Release, Namespace: r.Namespace}
	for _, file := range r.Values {
		text, tainted, err := r.renderText(file, r.Files[file])
		if err != nil {
			return release, err
		}
		release.Values = append(release.Values, builder.InputFile{Name: file, Content: text})
		release.Tainted = release.Tainted || tainted
	}
	return release, nil
}

// add adds an object, or replaces that of an earlier layer.
func (r *rendering) add(id manifest.ID, o manifest.Object) error {
	if i, ok := r.index[id]; ok {
		r.list[i] = o
		return nil
	}
	if len(r.list) >= manifest.MaxObjects {
		return failure.New(v1alpha1.ReasonLimitExceeded, "the commit has more than %d objects; split them over several ConfigSyncs", manifest.MaxObjects)
	}
	r.index[id] = len(r.list)
	r.list = append(r.list, o)
	return nil
}

// renderText returns the text of a manifest or of a value file, and whether it may hold values of Secrets. It subtracts the length of the
// text from r.remaining.
func (r *rendering) renderText(file string, content []byte) (text []byte, tainted bool, err error) {
	if text = content; r.Template && templates.IsTemplate(content) {
		tainted = r.Tainted
		t, err := templates.Parse(file, string(content))
		if err != nil {
			return nil, false, err
		}
		text, err = t.ExecuteValues(r.Vars, r.remaining)
		if r.steps += t.Steps(); err == nil && r.steps > maxSteps {
			err = failure.New(v1alpha1.ReasonLimitExceeded, "the templates do not finish within %d steps", maxSteps)
		}
		if err != nil && tainted {
			err = redacted(file, err)
		}
		if err != nil {
			return nil, tainted, err
		}
	}
	if r.remaining -= int64(len(text)); r.remaining < 0 {
		return nil, tainted, failure.New(v1alpha1.ReasonLimitExceeded, "the manifests have more than %d bytes; split them over several ConfigSyncs", manifest.MaxBytes)
	}
	return text, tainted, nil
}

// minSecretBytes is the length in bytes of the shortest Secret value that is searched for in names. Shorter values occur in names by chance.
const minSecretBytes = 4

// revealsSecret reports whether the apiVersion, kind, namespace or name of an object contains a value of a Secret. It catches mistakes; an author
// of templates who wants to show a value can encode it.
func (r *rendering) revealsSecret(o manifest.Object) bool {
	shown := strings.Join([]string{o.GetAPIVersion(), o.GetKind(), o.GetNamespace(), o.GetName()}, "\n")
	return slices.ContainsFunc(r.Secrets, func(value string) bool { return len(value) >= minSecretBytes && strings.Contains(shown, value) })
}

// templateLine matches the line in an error of a template.
var templateLine = regexp.MustCompile(`:(\d+)(:\d+)?: executing `)

// redacted returns an error with the reason and the line of err, but without its text, which may quote a value.
func redacted(file string, err error) error {
	line := ""
	if m := templateLine.FindStringSubmatch(err.Error()); m != nil {
		line = ", line " + m[1]
	}
	return failure.New(failure.Reason(err, v1alpha1.ReasonTemplateFailed),
		"%s%s: the template cannot be rendered; the message is not shown because it may hold a value of a Secret", failure.Quote(file), line)
}

// selectTargets returns the objects that the targets select, and those that they make from files.
func (r *rendering) selectTargets() ([]manifest.Object, error) {
	chosen := make([]bool, len(r.list))
	var made []manifest.Object
	for i := range r.Targets {
		t := &r.Targets[i]
		if t.FromFiles != nil {
			o, err := r.fromFiles(t)
			if err != nil {
				return nil, err
			}
			made = append(made, o)
			continue
		}
		found := false
		for n, o := range r.list {
			if r.matches(t, o.ID()) {
				chosen[n], found = true, true
			}
		}
		if !found {
			return nil, failure.New(v1alpha1.ReasonSourceMissing,
				"spec.targets[%d] selects nothing: the commit has no %s; correct the target, or remove it", i, describe(t))
		}
	}
	var list []manifest.Object
	for n, o := range r.list {
		if chosen[n] {
			list = append(list, o)
		}
	}
	for _, o := range made {
		id := o.ID()
		if slices.ContainsFunc(list, func(other manifest.Object) bool { return r.sameObject(other.ID(), id) }) {
			return nil, failure.New(v1alpha1.ReasonManifestInvalid, "%s is made by fromFiles twice, or also by a manifest: keep one of them", id)
		}
		list = append(list, o)
	}
	if len(list) > manifest.MaxObjects {
		return nil, failure.New(v1alpha1.ReasonLimitExceeded, "the targets select more than %d objects; split them over several ConfigSyncs", manifest.MaxObjects)
	}
	return list, nil
}

// matches reports whether a target selects an object. An object without a namespace counts as one of the ConfigSync's namespace, also if
// its kind has none, which only the cluster knows.
func (r *rendering) matches(t *v1alpha1.ConfigTarget, id manifest.ID) bool {
	return (t.Type == id.Type() || t.Type == id.Kind) && (t.Name == "" || t.Name == id.Name) &&
		(t.Namespace == "" || t.Namespace == id.Namespace || id.Namespace == "" && t.Namespace == r.Namespace)
}

// sameObject compares the identities of two namespaced objects. An empty namespace means that of the ConfigSync.
func (r *rendering) sameObject(a, b manifest.ID) bool {
	for _, id := range []*manifest.ID{&a, &b} {
		if id.Namespace == "" {
			id.Namespace = r.Namespace
		}
	}
	return a == b
}

// describe returns the type, name and namespace that a target selects, for errors.
func describe(t *v1alpha1.ConfigTarget) string {
	s := t.Type
	if t.Name != "" {
		s += " " + t.Name
	}
	if t.Namespace != "" {
		s += " in namespace " + t.Namespace
	}
	return s
}

// fromFiles makes the ConfigMap or the Secret of a target with fromFiles.
func (r *rendering) fromFiles(t *v1alpha1.ConfigTarget) (manifest.Object, error) {
	data, binary := map[string]any{}, map[string]any{}
	size := 0
	for _, f := range t.FromFiles {
		content := r.Files[f.Path]
		if size += len(content); size > maxData {
			return manifest.Object{}, failure.New(v1alpha1.ReasonLimitExceeded, "the files of %s have more than %d bytes", describe(t), maxData)
		}
		key := f.Key
		if key == "" {
			key = path.Base(f.Path)
		}
		if _, twice := data[key]; twice || binary[key] != nil {
			return manifest.Object{}, failure.New(v1alpha1.ReasonManifestInvalid, "two files of %s have the key %s: set key", describe(t), failure.Quote(key))
		}
		switch {
		case t.Type == "Secret":
			data[key] = base64.StdEncoding.EncodeToString(content)
		case utf8.Valid(content):
			data[key] = string(content)
		default:
			binary[key] = base64.StdEncoding.EncodeToString(content)
		}
	}
	metadata := map[string]any{"name": t.Name}
	if t.Namespace != "" {
		metadata["namespace"] = t.Namespace
	}
	object := map[string]any{"apiVersion": "v1", "kind": t.Type, "metadata": metadata, "data": data}
	if len(binary) > 0 {
		object["binaryData"] = binary
	}
	return manifest.Object{Unstructured: &unstructured.Unstructured{Object: object}, File: t.FromFiles[0].Path}, nil
}

// Functions returns the functions of all tools, for builder.Main.
func Functions() map[string]builder.Function {
	return map[string]builder.Function{kustomize.Name: kustomize.Run, chart.Name: chart.Run, jsonnet.Name: jsonnet.Run}
}

// Values returns the values that templates can use, as in a GatewaySync: the built-in values, the variables as Vars, and each variable
// also under its own name. Built-in values take precedence.
func Values(builtin, vars map[string]string) map[string]any {
	all := make(map[string]any, len(builtin)+len(vars)+1)
	for name, v := range vars {
		all[name] = v
	}
	for name, v := range builtin {
		all[name] = v
	}
	all["Vars"] = vars
	return all
}

// Path renders a path of the spec and cleans it. A path that leads out of the repository is an error; field names the path in errors.
func Path(field, text string, values map[string]any) (string, error) {
	if templates.IsTemplate([]byte(text)) {
		t, err := templates.Parse(field, text)
		if err != nil {
			return "", err
		}
		out, err := t.ExecuteValues(values, 1024)
		if err != nil {
			return "", err
		}
		text = string(out)
	}
	clean := path.Clean(text)
	if text == "" || strings.HasPrefix(text, "/") || clean == ".." || strings.HasPrefix(clean, "../") || strings.Contains(text, `\`) ||
		strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r == 0x7f }) || !utf8.ValidString(text) {
		return "", failure.New(v1alpha1.ReasonUnsafePath, "%s: %s is not a path below the root of the repository", field, failure.Quote(text))
	}
	return clean, nil
}
