package plan

import (
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"stoker.io/stoker/agent/plan/render"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/validation"
)

// Validate returns the errors of a GatewaySync that can be found without a gateway: those of validation.GatewaySync,
// templates that do not parse, and unsafe paths. It does not render templates, because it has no facts of a gateway.
func Validate(gs *v1alpha1.GatewaySync) field.ErrorList {
	errs := validation.GatewaySync(gs)
	if len(errs) > 0 {
		return errs // the checks below would repeat some of these
	}
	profiles := field.NewPath("spec", "sync", "profiles")
	for _, name := range slices.Sorted(maps.Keys(gs.Spec.Sync.Profiles)) {
		for i, m := range gs.Spec.Sync.Profiles[name].Mappings {
			mapping := profiles.Key(name).Child("mappings").Index(i)
			errs = append(errs, pathErrors(mapping.Child("source"), m.Source)...)
			errs = append(errs, pathErrors(mapping.Child("destination"), m.Destination)...)
			for j, p := range m.Patches {
				for _, key := range slices.Sorted(maps.Keys(p.Set)) {
					errs = append(errs, templateErrors(mapping.Child("patches").Index(j).Child("set").Key(key), string(p.Set[key]))...)
				}
			}
		}
	}
	return errs
}

func pathErrors(path *field.Path, text string) field.ErrorList {
	if render.IsTemplate([]byte(text)) {
		return templateErrors(path, text)
	}
	if _, err := ParsePath(text); err != nil {
		return refused(path, err)
	}
	return nil
}

// templateErrors returns the error of a text that is a template and does not parse.
func templateErrors(path *field.Path, text string) field.ErrorList {
	if !render.IsTemplate([]byte(text)) {
		return nil
	}
	if _, err := render.Parse("template", text); err != nil {
		return refused(path, err)
	}
	return nil
}

// refused turns an error of the agent into a field error. It omits the value, because the error has the value if that helps, and
// cuts long texts.
func refused(path *field.Path, err error) field.ErrorList {
	return field.ErrorList{field.Invalid(path, field.OmitValueType{}, fmt.Sprintf("%.500v", err))}
}
