package kustomize

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/kustomize/api/types"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/configsync/builder"
	"stoker.io/stoker/internal/configsync/manifest"
	"stoker.io/stoker/internal/failure"
)

// decode parses a kustomization. An unknown field is an error.
func (s *spec) decode(content []byte) error {
	if len(content) > maxKustomizationBytes {
		return failure.New(v1alpha1.ReasonLimitExceeded, "%s has %d bytes; at most %d are allowed", failure.Quote(s.file), len(content), maxKustomizationBytes)
	}
	documents, err := manifest.Documents(s.file, content)
	switch {
	case err != nil:
		return err
	case len(documents) != 1:
		return failure.New(v1alpha1.ReasonManifestInvalid, "%s has %d documents; a kustomization is one", failure.Quote(s.file), len(documents))
	}
	if err := decodeStrict(s.file, documents[0].JSON, &s.Kustomization); err != nil {
		return err
	}
	s.FixKustomization() // renames fields of older versions
	if problems := s.EnforceFields(); len(problems) > 0 {
		return failure.New(v1alpha1.ReasonManifestInvalid, "%s: %s", failure.Quote(s.file), strings.Join(problems, "; "))
	}
	return nil
}

// typeError matches the field and its type in an error of the JSON decoder.
var typeError = regexp.MustCompile(`struct field ([A-Za-z]+\.)?(\S*) of type (\S+)$`)

// decodeStrict decodes JSON. An unknown field is an error. Errors name fields, but never values.
func decodeStrict(at string, data []byte, into any) error {
	unknown, err := kjson.UnmarshalStrict(data, into)
	switch {
	case err != nil:
		if m := typeError.FindStringSubmatch(err.Error()); m != nil {
			return failure.New(v1alpha1.ReasonManifestInvalid, "%s: %s: this is not a %s", failure.Quote(at), m[2], strings.TrimPrefix(m[3], "types."))
		}
		return failure.New(v1alpha1.ReasonManifestInvalid, "%s does not have the fields of its kind", failure.Quote(at))
	case len(unknown) > 0:
		return failure.New(v1alpha1.ReasonManifestInvalid, "%s: %s", failure.Quote(at), unknown[0])
	}
	return nil
}

// check returns an error if the kustomization uses an unsupported feature. It sets s.resources and s.dataFiles.
func (s *spec) check(tree builder.Tree) error {
	for _, f := range []struct {
		field string
		used  bool
		why   string
	}{
		{"generators", len(s.Generators) > 0, "generators can start programs: use configMapGenerator and secretGenerator"},
		{"transformers", len(s.Transformers) > 0, "transformers can start programs: use patches, replacements, labels and images"},
		{"validators", len(s.Validators) > 0, "validators can start programs: the API server validates all objects before the first is changed"},
		{"helmCharts", len(s.HelmCharts) > 0, "put the chart beside the kustomization: a folder with Chart.yaml is rendered"},
		{"helmGlobals", s.HelmGlobals != nil, "put the chart beside the kustomization: a folder with Chart.yaml is rendered"},
		{"openapi", len(s.OpenAPI) > 0, "the built-in schema is used: remove the field"},
		{"crds", len(s.Crds) > 0, "use configurations with nameReference"},
		{"vars", len(s.Vars) > 0, "use replacements"},
		{"buildMetadata", len(s.BuildMetadata) > 0, "the status shows the file and the commit of each object: remove the field"},
	} {
		if f.used {
			return s.invalid(f.field, "%s", f.why)
		}
	}
	for i, p := range s.Resources {
		ref, err := s.resolve(tree, fmt.Sprintf("resources[%d]", i), p)
		if err == nil && !ref.folder {
			ref, err = s.resolveFile(tree, ref.field, p)
		}
		if err != nil {
			return err
		}
		s.resources = append(s.resources, ref)
	}
	for i, p := range s.Components {
		ref, err := s.resolve(tree, fmt.Sprintf("components[%d]", i), p)
		if err == nil && !ref.folder {
			err = s.invalid(ref.field, "%s is a file: name the folder of a Component", failure.Quote(ref.path))
		}
		if err != nil {
			return err
		}
		s.resources = append(s.resources, ref)
	}
	return s.checkFiles(tree)
}

// checkFiles sets s.dataFiles. Of several errors it returns the first by text, so that the error is the same each time although checkFiles
// iterates over maps.
func (s *spec) checkFiles(tree builder.Tree) error {
	add := func(p, format string, args ...any) error {
		ref, err := s.resolveFile(tree, fmt.Sprintf(format, args...), p)
		s.dataFiles = append(s.dataFiles, ref)
		return err
	}
	var errs []error
	for i, p := range s.Configurations {
		errs = append(errs, add(p, "configurations[%d]", i))
	}
	for i, p := range s.PatchesStrategicMerge {
		if !isInlinePatch(string(p)) {
			errs = append(errs, add(string(p), "patchesStrategicMerge[%d]", i))
		}
	}
	for field, list := range map[string][]types.Patch{"patches": s.Patches, "patchesJson6902": s.PatchesJson6902} {
		for i, p := range list {
			if p.Options != nil && p.Options.AllowKindChange {
				errs = append(errs, s.invalid(fmt.Sprintf("%s[%d].options.allowKindChange", field, i), "remove the object and add one of the other kind"))
			}
			if p.Path != "" {
				errs = append(errs, add(p.Path, "%s[%d].path", field, i))
			}
		}
	}
	for i, r := range s.Replacements {
		if r.Path != "" {
			errs = append(errs, add(r.Path, "replacements[%d].path", i))
		}
	}
	for field, list := range s.generators() {
		for i, g := range list {
			for n, p := range g.FileSources {
				_, file, found := strings.Cut(p, "=")
				if !found {
					file = p
				}
				errs = append(errs, add(file, "%s[%d].files[%d]", field, i, n))
			}
			for n, p := range g.EnvSources {
				errs = append(errs, add(p, "%s[%d].envs[%d]", field, i, n))
			}
		}
	}
	errs = slices.DeleteFunc(errs, func(err error) bool { return err == nil })
	if len(errs) > 0 {
		return slices.MinFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	}
	return nil
}

// generators returns the arguments of both kinds of generators.
func (s *spec) generators() map[string][]types.GeneratorArgs {
	all := map[string][]types.GeneratorArgs{}
	for _, g := range s.ConfigMapGenerator {
		all["configMapGenerator"] = append(all["configMapGenerator"], g.GeneratorArgs)
	}
	for _, g := range s.SecretGenerator {
		all["secretGenerator"] = append(all["secretGenerator"], g.GeneratorArgs)
	}
	return all
}

// repoPath converts a path of the kustomization to a path in the repository.
func (s *spec) repoPath(p string) string { return path.Join(s.dir, p) }

// isInlinePatch reports whether an entry of patchesStrategicMerge is a patch and not the path of a patch, by the rule of kustomize.
func isInlinePatch(p string) bool { return strings.ContainsAny(p, "\n{") }

// inlineFiles copies the contents of patches and replacements into the kustomization, so that the build reads no file for them. It sets
// s.configurations, and makes patchesStrategicMerge a part of patches.
func (s *spec) inlineFiles(files map[string][]byte) error {
	for _, p := range s.Configurations {
		documents, err := manifest.Documents(s.repoPath(p), files[s.repoPath(p)])
		if err != nil {
			return err
		}
		for _, d := range documents {
			s.configurations = append(s.configurations, d.JSON)
		}
	}
	var merges []types.Patch
	for i, p := range s.PatchesStrategicMerge {
		patch := types.Patch{Path: string(p)}
		if isInlinePatch(string(p)) {
			patch = types.Patch{Patch: string(p)}
		}
		if err := s.inlinePatch(fmt.Sprintf("patchesStrategicMerge[%d]", i), &patch, files); err != nil {
			return err
		}
		merges = append(merges, patch)
	}
	s.PatchesStrategicMerge = nil
	for i := range s.Patches {
		if err := s.inlinePatch(fmt.Sprintf("patches[%d]", i), &s.Patches[i], files); err != nil {
			return err
		}
	}
	s.Patches = append(merges, s.Patches...)
	for i := range s.PatchesJson6902 {
		if err := s.inlinePatch(fmt.Sprintf("patchesJson6902[%d]", i), &s.PatchesJson6902[i], files); err != nil {
			return err
		}
	}
	return s.inlineReplacements(files)
}

// inlinePatch replaces a patch, or the path of one, by the patch as JSON, which has no YAML anchors.
func (s *spec) inlinePatch(field string, p *types.Patch, files map[string][]byte) error {
	at, text := s.file+": "+field, []byte(p.Patch)
	if (p.Path == "") == (p.Patch == "") {
		return s.invalid(field, "set either patch or path")
	}
	if p.Path != "" {
		at = s.repoPath(p.Path)
		text = files[at]
	}
	documents, err := manifest.Documents(at, text)
	if err != nil {
		return err
	}
	if len(documents) == 0 {
		return s.invalid(field, "the patch is empty")
	}
	var parts []string
	for _, d := range documents {
		if hasCopy(d.JSON) {
			return s.invalid(field, "the operation copy can multiply an object: use add with the value, or replacements")
		}
		parts = append(parts, string(d.JSON))
	}
	p.Path, p.Patch = "", strings.Join(parts, "\n---\n")
	return nil
}

// hasCopy reports whether a JSON patch has the operation copy. Each copy can double an object, so that forty of them exceed any memory. It
// uses the parser of kustomize, because kustomize applies the copies before an invalid operation.
func hasCopy(patch []byte) bool {
	list, err := jsonpatch.DecodePatch(patch)
	return err == nil && slices.ContainsFunc(list, func(o jsonpatch.Operation) bool { return o.Kind() == "copy" }) // otherwise a merge patch
}

// inlineReplacements replaces the paths of replacements by the replacements in these files.
func (s *spec) inlineReplacements(files map[string][]byte) error {
	var all []types.ReplacementField
	for i, r := range s.Replacements {
		field := fmt.Sprintf("replacements[%d]", i)
		if r.Path == "" {
			all = append(all, r)
			continue
		}
		if r.Source != nil || r.SourceValue != nil || r.Targets != nil {
			return s.invalid(field, "set either path or source")
		}
		file := s.repoPath(r.Path)
		documents, err := manifest.Documents(file, files[file])
		if err != nil {
			return err
		}
		for _, d := range documents {
			if d.JSON[0] != '[' {
				d.JSON = slices.Concat([]byte("["), d.JSON, []byte("]"))
			}
			var list []types.Replacement
			if err := decodeStrict(file, d.JSON, &list); err != nil {
				return err
			}
			for _, r := range list {
				all = append(all, types.ReplacementField{Replacement: r})
			}
		}
	}
	s.Replacements = all
	for i, r := range all {
		if r.Source == nil && r.SourceValue == nil || len(r.Targets) == 0 {
			return s.invalid(fmt.Sprintf("replacements[%d]", i), "set a source and at least one target")
		}
		if slices.ContainsFunc(r.Targets, func(t *types.TargetSelector) bool { return t == nil || t.Select == nil }) {
			return s.invalid(fmt.Sprintf("replacements[%d].targets", i), "set select in each target")
		}
	}
	return nil
}
