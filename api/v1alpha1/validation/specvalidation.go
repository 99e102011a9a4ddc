package validation

import (
	"regexp"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/internal/fielderr"
	"stoker.io/stoker/api/v1alpha1/syntax"
)

func validateValidation(path *field.Path, gs *v1alpha1.GatewaySync) field.ErrorList {
	if gs.Spec.Validation == nil {
		return nil
	}
	errs := fielderr.OneOf(path.Child("references"), gs.Spec.Validation.References, v1alpha1.ReferencesIgnore, v1alpha1.ReferencesWarn, v1alpha1.ReferencesRefuse)
	w := gs.Spec.Validation.Webhook
	if w == nil {
		return errs
	}
	path = path.Child("webhook")
	switch at := path.Child("url"); {
	case w.URL == "":
		errs = append(errs, field.Required(at, "name the URL of the service"))
	case utf8.RuneCountInString(w.URL) > maxURL:
		errs = append(errs, field.TooLongCharacters(at, "", maxURL))
	case !webhookURLRegexp.MatchString(w.URL):
		errs = append(errs, field.Invalid(at, field.OmitValueType{}, "use https://host/path, without credentials")) // the value may contain some
	}
	if w.Timeout != "" {
		if _, problem := syntax.ParseDuration(w.Timeout, v1alpha1.MinDuration, v1alpha1.MaxValidationTimeout); problem != "" {
			errs = append(errs, fielderr.Invalid(path.Child("timeout"), w.Timeout, problem))
		}
	}
	errs = append(errs, validateSecret(path.Child("secretRef"), w.SecretRef)...)
	errs = append(errs, validateSecret(path.Child("caSecretRef"), w.CASecretRef)...)
	return append(errs, fielderr.OneOf(path.Child("failurePolicy"), w.FailurePolicy, v1alpha1.FailurePolicyFail, v1alpha1.FailurePolicyIgnore)...)
}

const webhookURLPattern = `^https://[^/?#@\s\x00-\x1f\x7f-][^#@\s\x00-\x1f\x7f]*$`

var webhookURLRegexp = regexp.MustCompile(webhookURLPattern)
